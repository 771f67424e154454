package sandbox_test

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"holdfast/internal/skip"
	"holdfast/sandbox"
)

func TestWorkspaceRights(t *testing.T) {
	for name, write := range map[string]bool{"writable": true, "read-only": false} {
		t.Run(name, func(t *testing.T) {
			s := shell(t, `touch made 2>/dev/null && echo yes || echo no; ls`)
			s.Write = write
			writeFile := filepath.Join(s.Workspace, "there")
			if err := os.WriteFile(writeFile, []byte("x"), 0o644); err != nil {
				t.Fatal(err)
			}
			r, o := run(t, s)
			exited(t, r, o, 0)
			want := map[bool]string{true: "yes\nmade\nthere\n", false: "no\nthere\n"}[write]
			if o.stdout.String() != want {
				t.Errorf("inside: %q", o.stdout.String())
			}
			st, err := os.Stat(filepath.Join(s.Workspace, "made"))
			if !write {
				if !errors.Is(err, os.ErrNotExist) {
					t.Errorf("on the disk: %v", err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			// As root the file is root's, though the workload was somebody else.
			if owner := st.Sys().(*syscall.Stat_t); int(owner.Uid) != os.Geteuid() || int(owner.Gid) != os.Getegid() {
				t.Errorf("owned by %d:%d", owner.Uid, owner.Gid)
			}
		})
	}
}

// TestWorkloadIsNobodyOfTheHost looks at the program's process from outside.
func TestWorkloadIsNobodyOfTheHost(t *testing.T) {
	want := strconv.Itoa(os.Geteuid())
	s := shell(t, `echo up; sleep 300`)
	s.Slot = 7
	if os.Geteuid() == 0 {
		want = "200007"
	}
	p := start(t, s)
	p.Release()
	await(t, p, "up", 1)
	seen := 0
	for _, dir := range members(t, p.Identity().PIDNS) {
		b, err := os.ReadFile(dir + "/status")
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		seen++
		for _, line := range lines(string(b)) {
			if f := strings.Fields(line); len(f) == 5 && f[0] == "Uid:" && strings.Join(f[1:], " ") != strings.Repeat(want+" ", 3)+want {
				t.Errorf("a process has %s", line)
			}
		}
	}
	if seen < 2 {
		t.Errorf("%d processes seen", seen)
	}
}

func TestReadPathsAndPrograms(t *testing.T) {
	dir := temp(t)
	secret := write(t, filepath.Join(dir, "beside"), "beside", 0o644)
	file := write(t, filepath.Join(dir, "given", "file"), "given", 0o600)
	program := write(t, filepath.Join(dir, "bin", "tool"), "#!/bin/sh\n"+
		`cat "$1"; echo x 2>/dev/null > "$1" || echo read-only; cat "$2" 2>/dev/null || echo hidden; ls "$3"`, 0o700)
	s := shell(t, "")
	s.Program, s.Arguments = program, []string{file, secret, filepath.Dir(program)}
	s.Read = []string{filepath.Dir(file), filepath.Dir(file), s.Workspace}
	r, o := run(t, s)
	exited(t, r, o, 0)
	if got := o.stdout.String(); got != "givenread-only\nhidden\ntool\n" {
		t.Errorf("%q", got)
	}
}

func TestNoMountPointAppearsOnTheDisk(t *testing.T) {
	dir := temp(t)
	s := shell(t, `ls -A; ls -A ..`)
	s.Workspace = filepath.Join(dir, "deep", "work")
	write(t, filepath.Join(s.Workspace, ".git"), "gitdir: /x\n", 0o644)
	inner := filepath.Dir(write(t, filepath.Join(s.Workspace, "inner", "file"), "x", 0o644))
	s.Read, s.ReplyLimit, s.History = []string{inner}, 100, []byte("x")
	before := snapshot(t, dir)
	r, o := run(t, s)
	exited(t, r, o, 0)
	if after := snapshot(t, dir); after != before {
		t.Errorf("the disk changed:\n%s", after)
	}
	if o.stdout.String() != ".git\ninner\nwork\n" {
		t.Errorf("inside: %q", o.stdout.String())
	}
}

func TestHiddenGitDirectoryInsideTheWorkspace(t *testing.T) {
	s := shell(t, `ls -A .git; echo x > .git/x || echo refused`)
	s.GitDir = filepath.Join(s.Workspace, ".git")
	write(t, filepath.Join(s.GitDir, "config"), "secret", 0o644)
	r, o := run(t, s)
	exited(t, r, o, 0)
	if o.stdout.String() != "refused\n" {
		t.Errorf("inside: %q", o.stdout.String())
	}
}

func TestHistory(t *testing.T) {
	s := shell(t, `cat "$HOLDFAST_HISTORY"; echo x > "$HOLDFAST_HISTORY" || echo refused; rm -f "$HOLDFAST_HISTORY" || echo kept`)
	s.History = []byte(strings.Repeat("{\"prompt\":\"earlier\"}\n", 4000))
	r, o := run(t, s)
	exited(t, r, o, 0)
	if want := string(s.History) + "refused\nkept\n"; o.stdout.String() != want {
		t.Errorf("%d bytes, want %d", o.stdout.Len(), len(want))
	}
}

func TestReplyFile(t *testing.T) {
	for name, row := range map[string]struct{ script, reply, refused string }{
		"absent":     {`:`, "", ""},
		"good":       {`echo '{"reply":"hi"}' > "$HOLDFAST_REPLY"`, "{\"reply\":\"hi\"}\n", ""},
		"renamed":    {`cd /run/holdfast; echo a > t; mv t reply.json`, "a\n", ""},
		"empty":      {`: > "$HOLDFAST_REPLY"`, "", ""},
		"after exit": {`(sleep 300; echo late > "$HOLDFAST_REPLY") & echo soon > "$HOLDFAST_REPLY"`, "soon\n", ""},
		"largest":    {`head -c 1000 /dev/zero > "$HOLDFAST_REPLY"`, strings.Repeat("\x00", 1000), ""},
		"too big":    {`head -c 1001 /dev/zero > "$HOLDFAST_REPLY"`, "", "at most 1000"},
		"sparse":     {`truncate -s 1T "$HOLDFAST_REPLY" || truncate -s 1G "$HOLDFAST_REPLY"`, "", "at most 1000"},
		"symlink":    {`ln -s /etc/passwd "$HOLDFAST_REPLY"`, "", "cannot be opened"},
		"fifo":       {`mkfifo "$HOLDFAST_REPLY"`, "", "regular file"},
		"directory":  {`mkdir "$HOLDFAST_REPLY"`, "", "regular file"},
		"hard link":  {`echo x > "$HOLDFAST_REPLY"; ln "$HOLDFAST_REPLY" /run/holdfast/b`, "", "one link"},
		"unreadable": {`echo x > "$HOLDFAST_REPLY"; chmod 0 "$HOLDFAST_REPLY"`, "", "cannot be opened"},
		"fill":       {`head -c 2M /dev/zero > "$HOLDFAST_REPLY"; :`, "", "at most 1000"},
	} {
		t.Run(name, func(t *testing.T) {
			s := shell(t, row.script)
			s.ReplyLimit = 1000
			r, o := run(t, s)
			exited(t, r, o, 0)
			if string(r.Reply) != row.reply || (r.ReplyErr != "") != (row.refused != "") || !strings.Contains(r.ReplyErr, row.refused) {
				t.Errorf("reply %q, refused %q", clip(string(r.Reply)), r.ReplyErr)
			}
			if (name == "absent") != (r.Reply == nil) && row.refused == "" {
				t.Errorf("reply is nil: %v", r.Reply == nil)
			}
		})
	}
}

func TestMovedOrMissingIsRefused(t *testing.T) {
	dir := temp(t)
	work := filepath.Dir(write(t, filepath.Join(dir, "work", "x"), "x", 0o644))
	plain := write(t, filepath.Join(dir, "plain"), "x", 0o644)
	link := func(name, to string) string {
		path := filepath.Join(dir, name)
		if err := os.Symlink(to, path); err != nil {
			t.Fatal(err)
		}
		return path
	}
	fifo := filepath.Join(dir, "fifo")
	if err := unix.Mkfifo(fifo, 0o777); err != nil {
		t.Fatal(err)
	}
	protected := filepath.Dir(write(t, filepath.Join(dir, "home", "key"), "x", 0o600))
	shortcut := link("shortcut", work)
	for name, change := range map[string]func(*sandbox.Spec){
		"program missing":        func(s *sandbox.Spec) { s.Program = filepath.Join(dir, "none") },
		"program is a link":      func(s *sandbox.Spec) { s.Program = link("program", canonical(t, "/bin/sh")) },
		"program is a directory": func(s *sandbox.Spec) { s.Program = work },
		"program not executable": func(s *sandbox.Spec) { s.Program = plain },
		"program is a fifo":      func(s *sandbox.Spec) { s.Program = fifo },
		"workspace missing":      func(s *sandbox.Spec) { s.Workspace = filepath.Join(dir, "gone") },
		"workspace is a link":    func(s *sandbox.Spec) { s.Workspace = shortcut },
		"workspace behind link":  func(s *sandbox.Spec) { s.Workspace = link("up", dir) + "/work" },
		"workspace is a file":    func(s *sandbox.Spec) { s.Workspace = plain },
		"read missing":           func(s *sandbox.Spec) { s.Read = []string{filepath.Join(dir, "none")} },
		"read is a link":         func(s *sandbox.Spec) { s.Read = []string{shortcut} },
		"read is a fifo":         func(s *sandbox.Spec) { s.Read = []string{fifo} },
		"git directory missing":  func(s *sandbox.Spec) { s.Git, s.GitDir = sandbox.GitRead, filepath.Join(dir, "none") },
		"read is protected":      func(s *sandbox.Spec) { s.Read = []string{protected} },
		"read holds protected":   func(s *sandbox.Spec) { s.Read = []string{dir} },
		"read in protected":      func(s *sandbox.Spec) { s.Read = []string{protected + "/key"} },
		"program in protected":   func(s *sandbox.Spec) { s.Program = protected + "/key" },
		"workspace holds it":     func(s *sandbox.Spec) { s.Workspace = dir },
		"git pointer is a link": func(s *sandbox.Spec) {
			s.Workspace = filepath.Join(dir, "linked")
			os.Mkdir(s.Workspace, 0o755)
			link("linked/.git", protected)
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := shell(t, `:`)
			s.Workspace, s.Protected = work, []string{protected}
			change(&s)
			p, err := sandbox.Start(s)
			if err == nil {
				p.Stop()
				p.Wait()
			}
			if !errors.Is(err, sandbox.ErrSpec) {
				t.Errorf("start gave %v", err)
			}
		})
	}
}

func TestProgramThatCannotBeExecuted(t *testing.T) {
	for name, content := range map[string]string{
		"interpreter outside the view": "#!/opt/nowhere/interpreter\n",
		"no known format":              "\x00\x01\x02 not a program",
	} {
		t.Run(name, func(t *testing.T) {
			s := shell(t, "")
			s.Program, s.Arguments = write(t, filepath.Join(s.Workspace, "tool"), content, 0o755), []string{"secret prompt"}
			r, _ := run(t, s)
			if r.Ending != sandbox.EndingNone || r.ExitCode != nil || !strings.Contains(r.Fault, "execute") {
				t.Errorf("ending %d, fault %q", r.Ending, r.Fault)
			}
			if strings.Contains(r.Fault, "prompt") {
				t.Error("the fault carries an argument")
			}
		})
	}
}

func TestGit(t *testing.T) {
	if _, err := exec.LookPath("git"); err != nil {
		skip.Missing(t, "git is not installed")
	}
	dir := temp(t)
	repo, work := filepath.Join(dir, "repo"), filepath.Join(dir, "tree")
	write(t, filepath.Join(repo, "file"), "one\n", 0o644)
	for _, args := range [][]string{
		{"init", "-q"}, {"add", "-A"}, {"commit", "-q", "-m", "first"}, {"worktree", "add", "-q", "--detach", work},
	} {
		cmd := exec.Command("git", append([]string{"-C", repo, "-c", "user.name=n", "-c", "user.email=e@example.org"}, args...)...)
		cmd.Env = append(os.Environ(), "GIT_CONFIG_GLOBAL=/dev/null", "GIT_CONFIG_NOSYSTEM=1", "HOME="+dir)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("git %v: %v\n%s", args, err, out)
		}
	}
	before := snapshot(t, filepath.Join(repo, ".git"))
	for name, row := range map[string]struct {
		git  sandbox.GitAccess
		want string
	}{
		"read":   {sandbox.GitRead, "status ok\nlog ok\nadd refused\ncommit refused\nconfig refused\n"},
		"hidden": {sandbox.GitHidden, "status refused\nlog refused\nadd refused\ncommit refused\nconfig refused\n"},
	} {
		t.Run(name, func(t *testing.T) {
			s := shell(t, `echo two > file
				try() { name=$1; shift; "$@" >/dev/null 2>&1 && echo $name ok || echo $name refused; }
				try status git status; try log git log -1; try add git add -A
				try commit git -c user.name=n -c user.email=e commit -q -am x; try config git config core.fsmonitor evil`)
			s.Workspace, s.GitDir, s.Git = work, filepath.Join(repo, ".git"), row.git
			r, o := run(t, s)
			exited(t, r, o, 0)
			if o.stdout.String() != row.want {
				t.Errorf("%s", o.stdout.String())
			}
		})
	}
	if after := snapshot(t, filepath.Join(repo, ".git")); after != before {
		t.Error("the repository changed")
	}
}
