package sandbox_test

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"holdfast/internal/skip"
	"holdfast/sandbox"
)

// What leads out of a workspace before the turn, and the refusal that names it: S21 a socket, S49 a device, S54 a hard
// link, S61 a nested mount, and a pipe. The layer is scan.
func TestThreatS21S49S54S61(t *testing.T) {
	long := strings.Repeat("d", 200)
	for _, r := range []struct {
		name   string
		plant  func(t *testing.T, work, outside string) // outside is another folder of the same filesystem
		write  string                                   // what the refusal says; "" where there is none
		read   string
		change func(s *sandbox.Spec)
	}{
		{name: "nothing", plant: func(t *testing.T, work, _ string) { write(t, work+"/a/b/c", "x", 0o644) }},
		{name: "socket", plant: func(t *testing.T, work, _ string) { serve(t, work+"/deep/down/socket") },
			write: `"deep/down/socket" in the workspace is a socket`, read: `"deep/down/socket" in the workspace is a socket`},
		{name: "pipe", plant: func(t *testing.T, work, _ string) { must(t, unix.Mkfifo(work+"/pipe", 0o666)) },
			write: `"pipe" in the workspace is a pipe`, read: `"pipe" in the workspace is a pipe`},
		{name: "device", plant: func(t *testing.T, work, _ string) {
			skip.Root(t, "make a device")
			must(t, unix.Mknod(work+"/sda", unix.S_IFBLK|0o666, int(unix.Mkdev(254, 0))))
		}, write: `"sda" in the workspace is a device`},
		{name: "hard link to a file outside", plant: func(t *testing.T, work, outside string) {
			must(t, os.Link(write(t, outside+"/secret", "x", 0o644), work+"/innocent"))
		}, write: `"innocent" in the workspace is one of 2 names of its file, and only 1 are in the workspace`},
		{name: "two names inside, one outside", plant: func(t *testing.T, work, outside string) {
			secret := write(t, outside+"/secret", "x", 0o644)
			must(t, os.Link(secret, work+"/one"))
			must(t, os.Mkdir(work+"/sub", 0o755))
			must(t, os.Link(secret, work+"/sub/two"))
		}, write: `names of its file, and only 2 are in the workspace`},
		{name: "all names inside", plant: func(t *testing.T, work, _ string) {
			one := write(t, work+"/one", "x", 0o644)
			must(t, os.Mkdir(work+"/sub", 0o755))
			must(t, os.Link(one, work+"/sub/two"))
			must(t, os.Link(one, work+"/three"))
		}},
		{name: "symbolic links lead nowhere", plant: func(t *testing.T, work, outside string) {
			serve(t, outside+"/socket")
			must(t, os.Symlink(outside, work+"/folder"))
			must(t, os.Symlink(outside+"/socket", work+"/link"))
			must(t, os.Symlink(".", work+"/loop"))
		}},
		{name: "mount", plant: func(t *testing.T, work, outside string) {
			skip.Root(t, "mount")
			must(t, os.MkdirAll(work+"/a/mnt", 0o755))
			must(t, unix.Mount(outside, work+"/a/mnt", "", unix.MS_BIND, ""))
			t.Cleanup(func() { unix.Unmount(work+"/a/mnt", unix.MNT_DETACH) })
		}, write: `"a/mnt" in the workspace is another filesystem`, read: `"a/mnt" in the workspace is another filesystem`},
		{name: "mount of a file", plant: func(t *testing.T, work, outside string) {
			skip.Root(t, "mount")
			at := write(t, work+"/file", "", 0o644)
			must(t, unix.Mount(write(t, outside+"/secret", "x", 0o644), at, "", unix.MS_BIND, ""))
			t.Cleanup(func() { unix.Unmount(at, unix.MNT_DETACH) })
		}, write: `"file" in the workspace is another filesystem`, read: `"file" in the workspace is another filesystem`},
		{name: "odd names", plant: func(t *testing.T, work, _ string) {
			must(t, unix.Mkfifo(work+"/-rf\n\xff\x1b[2J", 0o666))
		}, write: `"-rf\n\xff\x1b[2J" in the workspace is a pipe`, read: `"-rf\n\xff\x1b[2J" in the workspace is a pipe`},
		{name: "too deep", plant: func(t *testing.T, work, _ string) { must(t, os.MkdirAll(work+strings.Repeat("/d", 300), 0o755)) },
			write: "more than 256 folders deep", read: "more than 256 folders deep"},
		{name: "deeper than a path", plant: func(t *testing.T, work, _ string) { dig(t, work, long, 30) },
			write: "cannot be looked", read: "cannot be looked"},
		{name: "hidden git directory", plant: func(t *testing.T, work, outside string) {
			must(t, os.Link(write(t, outside+"/object", "x", 0o644), filepath.Join(filepath.Dir(write(t, work+"/.git/objects/a", "x", 0o644)), "shared")))
			serve(t, work+"/.git/socket")
		}, change: func(s *sandbox.Spec) { s.GitDir = s.Workspace + "/.git" }},
		{name: "closed folder", plant: func(t *testing.T, work, _ string) {
			if os.Geteuid() == 0 {
				return // closed to nobody
			}
			must(t, os.Mkdir(work+"/closed", 0o000))
			t.Cleanup(func() { os.Chmod(work+"/closed", 0o755) })
		}, write: map[bool]string{false: `"closed" in the workspace cannot be looked into`}[os.Geteuid() == 0]},
	} {
		t.Run(r.name, func(t *testing.T) {
			t.Parallel()
			both := temp(t)
			work, outside := both+"/work", both+"/outside"
			must(t, errors.Join(os.Mkdir(work, 0o755), os.Mkdir(outside, 0o755)))
			r.plant(t, work, outside)
			for mode, want := range map[string]string{"write": r.write, "read": r.read} {
				s := shell(t, `exit 0`)
				s.Workspace, s.Write = work, mode == "write"
				if r.change != nil {
					r.change(&s)
				}
				p, err := sandbox.Start(s)
				if err == nil {
					p.Stop()
					rest(p)
					p.Wait()
				}
				if want == "" && err != nil || want != "" && (!errors.Is(err, sandbox.ErrSpec) || !strings.Contains(err.Error(), want)) {
					t.Errorf("%s: %v, want %q", mode, err, want)
				}
			}
		})
	}
}

// serve is a program outside that a socket leads to; it must never be reached.
func serve(t *testing.T, path string) {
	t.Helper()
	must(t, os.MkdirAll(filepath.Dir(path), 0o755))
	fd, err := unix.Open(filepath.Dir(path), unix.O_PATH|unix.O_DIRECTORY, 0) // a socket's address is short
	must(t, err)
	defer unix.Close(fd)
	l, err := net.Listen("unix", fmt.Sprintf("/proc/self/fd/%d/%s", fd, filepath.Base(path)))
	must(t, err)
	l.(*net.UnixListener).SetUnlinkOnClose(false)
	go func() {
		if c, err := l.Accept(); err == nil {
			c.Close()
			t.Error("the program outside was reached")
		}
	}()
	t.Cleanup(func() { l.Close() })
}

// dig makes folders inside each other beyond what one path can name.
func dig(t *testing.T, work, name string, n int) {
	t.Helper()
	fd, err := unix.Open(work, unix.O_PATH|unix.O_DIRECTORY, 0)
	for i := 0; i < n && err == nil; i++ {
		var next int
		if err = unix.Mkdirat(fd, name, 0o755); err == nil {
			next, err = unix.Openat(fd, name, unix.O_PATH|unix.O_DIRECTORY, 0)
		}
		unix.Close(fd)
		fd = next
	}
	must(t, err)
	unix.Close(fd)
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// A large tree is looked at quickly. HOLDFAST_SCAN_FILES=100000 gives the figure of the documentation.
func TestScanOfManyFiles(t *testing.T) {
	files := many(t, "HOLDFAST_SCAN_FILES", 5000)
	s := shell(t, `exit 0`)
	sow(t, s.Workspace, files)
	for range 3 {
		began := time.Now()
		p, err := sandbox.Start(s)
		took := time.Since(began)
		must(t, err)
		p.Stop()
		rest(p)
		p.Wait()
		t.Logf("%d files: started in %s", files, took)
	}
}
