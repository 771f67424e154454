package sandbox_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"holdfast/internal/skip"
	"holdfast/sandbox"
)

// script is a program for an interpreter of the system.
func script(t *testing.T, interpreter string, args ...string) sandbox.Spec {
	t.Helper()
	path := "/usr/bin/" + interpreter
	if _, err := os.Stat(path); err != nil {
		path = ""
	}
	if path == "" {
		skip.Program(t, interpreter)
		skip.Missing(t, interpreter+" is installed, but not in a folder that every turn sees")
	}
	s := shell(t, "")
	s.Program, s.Arguments = canonical(t, path), args
	return s
}

// works fails the test unless a turn prints what it should.
func works(t *testing.T, s sandbox.Spec, want string) {
	t.Helper()
	r, o := run(t, s)
	exited(t, r, o, 0)
	if got := strings.TrimSpace(o.stdout.String()); got != want {
		t.Errorf("it says %q, want %q\n%s", got, want, clip(o.stderr.String()))
	}
}

// TestShellWorks: what a shell does with files, processes and devices.
func TestShellWorks(t *testing.T) {
	works(t, shell(t, `set -e
		mkdir -p a/b c; echo one > a/b/f; mv a/b/f c/g; ln c/g a/h; ln -s c/g l; cat l; rm -r a
		mkfifo p; (echo two > p) & cat p; wait
		cp c/g "$TMPDIR/t"; mv "$TMPDIR/t" "$HOME/t"; cat "$HOME/t"; echo x > /dev/shm/s
		echo gone > /dev/null; head -c 4 /dev/urandom > /dev/null; cat < /dev/stdin; echo three > /dev/stdout
		echo 500 > /proc/self/oom_score_adj
		echo '#!/bin/sh
echo four' > "$TMPDIR/x"; chmod +x "$TMPDIR/x"; "$TMPDIR/x"; : > c/g; [ ! -s c/g ]; echo five | tee d/e f 2>/dev/null | cat
		sh -c 'kill -TERM $$' || echo "ended $?"; sleep 60 & kill %1 2>/dev/null || kill $!; wait || :; echo six`),
		"one\ntwo\none\nthree\nfour\nfive\nended 143\nsix")
}

func TestGitWorks(t *testing.T) {
	skip.Program(t, "git")
	root := temp(t)
	repo, work := filepath.Join(root, "repo"), filepath.Join(root, "work")
	for _, args := range [][]string{
		{"init", "-q", repo},
		{"-C", repo, "-c", "user.name=n", "-c", "user.email=e", "commit", "-q", "--allow-empty", "-m", "first"},
		{"-C", repo, "worktree", "add", "-q", work},
	} {
		cmd := exec.Command("git", args...)
		cmd.Env = append(os.Environ(), "GIT_CONFIG_GLOBAL=/dev/null", "GIT_CONFIG_NOSYSTEM=1")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("git %v: %v\n%s", args, err, out)
		}
	}
	s := shell(t, `echo new > new; git status --porcelain; git log --format=%s; git diff --stat; git grep -c nothing || :`)
	s.Workspace, s.GitDir, s.Git = work, filepath.Join(repo, ".git"), sandbox.GitRead
	works(t, s, "?? new\nfirst")
}

func TestPythonWorks(t *testing.T) {
	works(t, script(t, "python3", "-c", `
import multiprocessing, subprocess, tempfile, threading, os, socket, shutil
def double(x): return 2 * x
ctx = multiprocessing.get_context("fork")
with ctx.Pool(2) as pool: print(pool.map(double, [1, 2]))
q = ctx.Queue(); p = ctx.Process(target=q.put, args=("queued",)); p.start(); print(q.get()); p.join()
a, b = socket.socketpair(); a.sendall(b"pair"); print(b.recv(9).decode())
print(subprocess.run(["echo", "child"], capture_output=True, text=True).stdout.strip())
with tempfile.TemporaryDirectory() as d:
    os.makedirs(d + "/a"); open(d + "/a/f", "w").close(); shutil.move(d + "/a/f", d + "/f")
t = threading.Thread(target=print, args=("thread",)); t.start(); t.join()
try: socket.getaddrinfo("example.invalid", 80)
except socket.gaierror: print("no name")
`), "[2, 4]\nqueued\npair\nchild\nthread\nno name")
}

func TestNodeWorks(t *testing.T) {
	works(t, script(t, "node", "-e", `
const cp = require("child_process"), fs = require("fs"), wt = require("worker_threads"), os = require("os"), dns = require("dns");
console.log(cp.execFileSync("echo", ["child"]).toString().trim());
fs.writeFileSync("m.js", "process.send('forked'); process.disconnect()");
const say = (what) => new Promise((done) => what(done));
(async () => {
  console.log(await say((d) => cp.fork("./m.js").on("message", d)));
  console.log(await say((d) => new wt.Worker("require('worker_threads').parentPort.postMessage('worker')", {eval: true}).on("message", d)));
  console.log(await say((d) => cp.spawn("sh", ["-c", "read x; echo $x"], {stdio: "pipe"}).on("error", d).on("spawn", function () {
    this.stdin.end("piped\n"); this.stdout.on("data", (b) => d(b.toString().trim())) })));
  console.log(await say((d) => dns.lookup("example.invalid", (e) => d(e ? "no name" : "name"))));
  let seen = "interfaces"; try { os.networkInterfaces() } catch (e) { seen = "no interfaces" }
  console.log(os.cpus().length > 0, seen);
})();
`), "child\nforked\nworker\npiped\nno name\ntrue no interfaces")
}

// TestGoWorks runs a program of this test binary, under the Go runtime with
// more threads than a leaf has.
func TestGoWorks(t *testing.T) {
	works(t, hostile(t, "honest"), "40 routines, timer, pipe, child: honest")
}
