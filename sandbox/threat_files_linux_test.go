package sandbox_test

import (
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"holdfast/sandbox"
)

// What a turn may not read or change of the host's files. Each test names the
// layers without which it fails; TestThreatsNeedTheirLayers holds it to that.

// TestThreatS1S2: secrets outside the view, and the task store, cannot be read
// (view, landlock).
func TestThreatS1S2(t *testing.T) {
	h := newHome(t)
	user := write(t, filepath.Join(temp(t), ".ssh", "id_ed25519"), "sentinel-of-the-user", 0o644)
	s := shell(t, `for f in "$@"; do cat "$f" 2>/dev/null && echo "read $f"; [ -e "$f" ] && echo "seen $f"; done; :`,
		user, h.key, "/etc/shadow", "/etc/machine-id", "/root/.bashrc")
	s.Protected = []string{h.root}
	r, o := run(t, s)
	exited(t, r, o, 0)
	if got := o.stdout.String() + o.stderr.String(); got != "" {
		t.Errorf("the program says:\n%s", got)
	}
}

// TestThreatS3: system files cannot be written (readonly; landlock says the
// same of most, so it is off too where the test must fail).
func TestThreatS3(t *testing.T) {
	hash := func() string {
		var all strings.Builder
		for _, dir := range []string{"/etc", "/usr"} {
			entries, err := os.ReadDir(dir)
			if err != nil {
				t.Fatal(err)
			}
			for _, e := range entries {
				fmt.Fprintln(&all, dir, e.Name(), e.Type())
			}
		}
		return all.String()
	}
	before := hash()
	// A bind that was given to be read stands for the system's own folders: as
	// root the workload owns its files, and nothing but the mount is in its way.
	read := filepath.Dir(write(t, filepath.Join(temp(t), "tools", "compiler"), "original", 0o777))
	s := shell(t, `for d in /usr /etc / /dev /run "$1"; do
			(: > "$d/hostile") 2>/dev/null && echo "made $d/hostile"
		done
		for f in /etc/passwd "$1/compiler"; do (echo evil > "$f") 2>/dev/null && echo "wrote $f"; done; :`, read)
	s.Read = []string{read}
	r, o := run(t, s)
	exited(t, r, o, 0)
	if o.stdout.Len() > 0 {
		t.Errorf("the program says:\n%s", o.stdout.String())
	}
	if b, err := os.ReadFile(read + "/compiler"); err != nil || string(b) != "original" || hash() != before {
		t.Errorf("the host's files changed: %q, %v", b, err)
	}
}

// TestThreatS4S5: neither the common Git directory nor the pointer to it can be
// changed (readonly for the first, gitpointer for the second: landlock cannot
// take a file out of a writable folder).
func TestThreatS4S5(t *testing.T) {
	h := newHome(t)
	var pinned unix.Stat_t
	if err := unix.Stat(h.pointer, &pinned); err != nil {
		t.Fatal(err)
	}
	before, common := snapshot(t, h.root), snapshot(t, h.common)
	s := shell(t, `echo evil > .git; rm -f .git; mv .git moved; echo x > planted; mv planted .git; ln -f planted .git
		mkdir -p "$1/objects" ; echo evil > "$1/config"; echo evil > "$1/hooks/post-checkout"; echo x > "$1/refs"
		rm -f planted; exit 0`, h.common)
	s.Workspace, s.GitDir, s.Git, s.Protected = h.work, h.common, sandbox.GitRead, []string{h.root}
	r, o := run(t, s)
	exited(t, r, o, 0)
	if after := snapshot(t, h.root); after != before {
		t.Errorf("the home changed:\n%s\nwas:\n%s", after, before)
	}
	if snapshot(t, h.common) != common {
		t.Error("the common git directory changed")
	}
	var later unix.Stat_t
	if err := unix.Stat(h.pointer, &later); err != nil || later.Ino != pinned.Ino {
		t.Errorf("the git pointer was replaced: %v", err)
	}
}

// TestThreatS13: the binaries that started the turn cannot be written through
// /proc, at any moment of the start (readonly; for those of init, dumpable, caps
// and landlock).
func TestThreatS13(t *testing.T) {
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	before, err := os.ReadFile(exe)
	if err != nil {
		t.Fatal(err)
	}
	s := hostile(t, "overwrite", "500")
	r, o := run(t, s)
	exited(t, r, o, 0)
	var got map[string]int
	if err := json.Unmarshal(o.stdout.Bytes(), &got); err != nil {
		t.Fatalf("%v: %s", err, clip(o.stdout.String()))
	}
	for what, times := range got {
		switch what {
		case "init EACCES", "init EPERM", "self EROFS", "self EACCES":
		default:
			t.Errorf("%s: %d times", what, times)
		}
	}
	if got["init EACCES"]+got["init EPERM"] < 500 {
		t.Errorf("%v", got)
	}
	after, err := os.ReadFile(exe)
	if err != nil || sha256.Sum256(after) != sha256.Sum256(before) {
		t.Errorf("the host's binary changed: %v", err)
	}
}

// overwrite tries to write its own binary and that of the first process, while
// children of its own begin and end.
func overwrite(args []string) {
	n, _ := strconv.Atoi(args[0])
	got := map[string]int{}
	for range n {
		for name, path := range map[string]string{"init": "/proc/1/exe", "self": "/proc/self/exe"} {
			// Without O_TRUNC the answer is ETXTBSY wherever the file runs.
			fd, err := unix.Open(path, unix.O_WRONLY|unix.O_TRUNC, 0)
			outcome := "opened"
			if errno, ok := err.(syscall.Errno); ok {
				outcome = unix.ErrnoName(errno)
			} else {
				unix.Close(fd)
			}
			got[name+" "+outcome]++
		}
	}
	json.NewEncoder(os.Stdout).Encode(got)
}

// TestThreatS14S15S40: no descriptor of the host comes in, none leads out, and
// nobody can speak in init's place (files; for the pipes of init, dumpable, caps
// and landlock).
func TestThreatS14S15S40(t *testing.T) {
	secret := write(t, filepath.Join(temp(t), "secret"), "x", 0o600)
	for range 50 {
		fd, err := syscall.Open(secret, syscall.O_RDWR, 0) // no O_CLOEXEC, as a careless library would
		if err != nil {
			t.Fatal(err)
		}
		defer syscall.Close(fd)
	}
	s := hostile(t, "escape")
	s.ReplyLimit = 1024
	r, o := run(t, s)
	exited(t, r, o, 3)
	want := "descriptors 0 1 2\ndirectory " + s.Workspace + "\n"
	if o.stdout.String() != want {
		t.Errorf("the program says:\n%swant:\n%s", o.stdout.String(), want)
	}
	if len(r.Report.Files) != 3 || r.Reply != nil || r.ReplyErr != "" {
		t.Errorf("report %v, reply %q, %q", r.Report.Files, r.Reply, r.ReplyErr)
	}
}

// escape looks for a way out through descriptors, then forges a report.
func escape([]string) {
	fmt.Print("descriptors ")
	listDescriptors(nil)
	dir, err := os.Getwd()
	if err != nil || unix.Access("/host.key", unix.F_OK) == nil {
		dir = fmt.Sprint(err)
	}
	fmt.Println("directory", dir)
	forge(nil)
}

// TestThreatS16: the environment is exactly what was declared (the environment
// is built from nothing; there is no layer to switch off).
func TestThreatS16(t *testing.T) { TestEnvironmentIsWhatWasDeclared(t) }

// TestThreatS17: a variable that makes programs load or run something is refused
// before anything starts.
func TestThreatS17(t *testing.T) {
	for _, v := range []string{"LD_PRELOAD=/x", "NODE_OPTIONS=-r x", "GIT_DIR=/x", "GIT_SSH_COMMAND=x", "BASH_ENV=/x", "ENV=/x"} {
		s := shell(t, "echo ran")
		s.Environment = []string{v}
		if p, err := sandbox.Start(s); err == nil {
			p.Stop()
			p.Wait()
			t.Errorf("%s was accepted", v)
		}
	}
}

// TestThreatS57: a program that was replaced after it was looked at is not run
// (each source is pinned by device and inode, and held, so that no other file
// gets its number).
func TestThreatS57(t *testing.T) {
	second := func(t *testing.T, path string) string { return write(t, path, "#!/bin/sh\necho second\n", 0o755) }
	for name, row := range map[string]struct {
		read    bool // the program is in a folder that the view shows, rather than shown by itself
		replace func(t *testing.T, program string)
	}{
		"renamed over": {false, func(t *testing.T, program string) {
			if err := os.Rename(second(t, program+"-other"), program); err != nil {
				t.Fatal(err)
			}
		}},
		"another with its number": {true, func(t *testing.T, program string) {
			was := inode(t, program)
			if err := os.Remove(program); err != nil {
				t.Fatal(err)
			}
			for i := range 256 { // many filesystems give a number out again at once
				other := second(t, fmt.Sprint(program, i))
				if inode(t, other) == was || i == 255 {
					if err := os.Rename(other, program); err != nil {
						t.Fatal(err)
					}
					return
				}
			}
		}},
	} {
		t.Run(name, func(t *testing.T) {
			s := shell(t, "")
			s.Program, s.Arguments = write(t, filepath.Join(temp(t), "tool"), "#!/bin/sh\necho first\n", 0o755), nil
			if row.read {
				s.Read = []string{filepath.Dir(s.Program)}
			}
			p := start(t, s)
			row.replace(t, s.Program)
			if err := p.Release(); err != nil {
				t.Fatal(err)
			}
			r, o := finish(t, p)
			if strings.Contains(o.stdout.String(), "second") {
				t.Errorf("the replacement ran: ending %d", r.Ending)
			}
		})
	}
}

// TestHeldFiles: what the caller looked at and holds open is what is run and
// shown, or nothing is.
func TestHeldFiles(t *testing.T) {
	s := shell(t, "")
	s.Program, s.Arguments = write(t, filepath.Join(temp(t), "tool"), "#!/bin/sh\nls\n", 0o755), nil
	for name, path := range map[string]string{"program": s.Program, "workspace": s.Workspace} {
		t.Run(name, func(t *testing.T) {
			s := s
			f, err := os.Open(path)
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			if name == "program" {
				s.ProgramFile = f
			} else {
				s.WorkspaceFile = f
			}
			r, o := run(t, s)
			exited(t, r, o, 0)
			if err := os.Rename(path, path+"-aside"); err != nil {
				t.Fatal(err)
			}
			defer func() {
				if err := errors.Join(os.RemoveAll(path), os.Rename(path+"-aside", path)); err != nil {
					t.Fatal(err)
				}
			}()
			if name == "program" {
				write(t, path, "#!/bin/sh\nls\n", 0o755)
			} else if err := os.Mkdir(path, 0o755); err != nil {
				t.Fatal(err)
			}
			p, err := sandbox.Start(s)
			if !errors.Is(err, sandbox.ErrSpec) {
				t.Errorf("another in its place was taken: %v", err)
			}
			if err == nil {
				p.Stop()
				p.Wait()
			}
		})
	}
}

func inode(t *testing.T, path string) uint64 {
	t.Helper()
	var st unix.Stat_t
	if err := unix.Lstat(path, &st); err != nil {
		t.Fatal(err)
	}
	return st.Ino
}
