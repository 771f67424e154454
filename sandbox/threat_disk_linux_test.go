package sandbox_test

import (
	"fmt"
	"os"
	"os/signal"
	"strconv"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"holdfast/sandbox"
)

// fillFiles fills the workspace in one form, at most n of it, and sleeps.
func fillFiles(args []string) {
	form := args[0]
	n, _ := strconv.Atoi(args[1])
	block := make([]byte, 1<<20)
	for i := range block {
		block[i] = byte(i * 7) // not to be compressed away, nor to be a hole
	}
	check := func(err error) {
		if err != nil {
			fmt.Println("refused:", form, err)
			os.Exit(9)
		}
	}
	create := func(name string) int {
		fd, err := unix.Open(name, unix.O_CREAT|unix.O_RDWR, 0o600)
		check(err)
		return fd
	}
	signal.Ignore(syscall.SIGXFSZ)
	switch form {
	case "files":
		for i := range n {
			fd := create(fmt.Sprint("n", i))
			_, err := unix.Write(fd, block)
			check(err)
			unix.Close(fd)
		}
	case "names":
		for i := range n {
			if i%1000 == 0 {
				check(os.MkdirAll(fmt.Sprint("many/", i/1000), 0o700))
			}
			unix.Close(create(fmt.Sprintf("many/%d/%d", i/1000, i)))
		}
	case "links":
		unix.Close(create("file"))
		for i := range n {
			check(os.Link("file", fmt.Sprint("n", i)))
		}
	case "sparse":
		for i := range n {
			fd := create(fmt.Sprint("n", i))
			check(unix.Ftruncate(fd, 1<<20))
			unix.Close(fd)
		}
	case "one file":
		fd := create("file")
		for range n {
			_, err := unix.Write(fd, block)
			check(err)
		}
	case "deep":
		check(os.MkdirAll("d", 0o700))
		for range 30 { // beyond what one path can name
			name := fmt.Sprintf("%0200d", 0)
			check(os.Mkdir(name, 0o700))
			check(os.Chdir(name))
		}
		fallthrough
	case "unlinked":
		for range n {
			fd := create("gone")
			_, err := unix.Write(fd, block)
			check(err)
			check(os.Remove("gone"))
		}
	case "mapped":
		for range n {
			fd := create("gone")
			_, err := unix.Write(fd, block)
			check(err)
			_, err = unix.Mmap(fd, 0, len(block), unix.PROT_READ, unix.MAP_SHARED)
			check(err)
			unix.Close(fd)
			check(os.Remove("gone"))
		}
	case "closed folder":
		check(os.Mkdir("closed", 0o700))
		dir, err := unix.Open("closed", unix.O_PATH, 0)
		check(err)
		check(os.Chdir("closed"))
		check(unix.Fchmodat(unix.AT_FDCWD, fmt.Sprint("/proc/self/fd/", dir), 0o300, 0)) // names can be made, not listed
		for i := range n {
			fd := create(fmt.Sprint("n", i))
			_, err := unix.Write(fd, block)
			check(err)
			unix.Close(fd)
		}
	case "secretive":
		check(unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0))
		for range n {
			fd := create("gone")
			_, err := unix.Write(fd, block)
			check(err)
			check(os.Remove("gone"))
		}
	}
	fmt.Println("filled")
	time.Sleep(20 * time.Second) // many times the meter's interval
}

// S31: the workspace is filled, by many files, names, links, holes, and by files that have no name or stand where
// nobody may look. The layer is disk.
func TestThreatS31(t *testing.T) {
	for _, r := range []struct {
		form string
		n    int
		room bool // only the room that the disk lost tells: other tests must not give any back meanwhile
	}{{"closed folder", 512, true}, {"secretive", 512, true}, {form: "files", n: 60}, {form: "names", n: 3000}, {form: "links", n: 3000},
		{form: "sparse", n: 60}, {form: "deep", n: 120}, {form: "unlinked", n: 60}, {form: "mapped", n: 60}} {
		t.Run(r.form, func(t *testing.T) {
			if !r.room {
				t.Parallel()
			}
			s := hostile(t, "fill", r.form, strconv.Itoa(r.n))
			// What was there does not count.
			sow(t, s.Workspace, 200)
			must(t, os.Truncate(write(t, s.Workspace+"/large", "", 0o644), 50<<20))
			s.DiskBytes, s.DiskFiles, s.Wall = 32<<20, 2000, min(longest(), time.Minute)
			t.Cleanup(func() { os.Chmod(s.Workspace+"/closed", 0o700) }) // or the test's folder cannot be removed
			res, o := run(t, s)
			if res.Ending != sandbox.EndingDisk || res.ExitCode != nil || res.Signal != "" {
				t.Fatalf("ending %d, exit %v, fault %q: %s%s", res.Ending, res.ExitCode, res.Fault, o.stdout.String(), clip(o.stderr.String()))
			}
		})
	}
}

// S32: one huge file, sparse or not, ends at the size limit of a file. The layer is rlimits.
func TestThreatS32(t *testing.T) {
	s := hostile(t, "fill", "one file", "100")
	s.DiskBytes, s.DiskFiles = 32<<20, 2000
	r, o := run(t, s)
	if r.Ending != sandbox.EndingDisk {
		exited(t, r, o, 9)
	}
	info, err := os.Stat(s.Workspace + "/file")
	must(t, err)
	if info.Size() > 32<<20 || r.Report.Rlimits["fsize"] != 32<<20 {
		t.Errorf("%d bytes, limits %v", info.Size(), r.Report.Rlimits)
	}
	s = shell(t, `dd if=/dev/zero of=big bs=1 count=1 seek=1T 2>&1; exit 3`)
	r, o = run(t, s)
	exited(t, r, o, 3)
	if info, err := os.Stat(s.Workspace + "/big"); err == nil && info.Size() > 4<<30 {
		t.Errorf("%d bytes", info.Size())
	}
}

// What a turn may do goes on: rewriting, removing, and links inside count as what they are.
func TestDiskLimitLetsGrowthBe(t *testing.T) {
	s := shell(t, `i=0; while [ $i -lt 12 ]; do head -c 9M /dev/zero > file; ln -f file link; cp file other; rm other; i=$((i+1)); sleep 0.2; done`)
	sow(t, s.Workspace, 200)
	s.DiskBytes, s.DiskFiles = 32<<20, 100
	r, o := run(t, s)
	exited(t, r, o, 0)
}
