package sandbox_test

import (
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"holdfast/sandbox"
)

// limitPrograms are the hostile programs of the tests of limits.
var limitPrograms = map[string]func([]string){
	"memory": holdMemory, "fill": fillFiles, "zombies": zombies, "orphans": orphans,
}

// holdMemory takes MiB of memory in one form, and sleeps. Where the form is
// refused it says so and ends with 9.
func holdMemory(args []string) {
	form := args[0]
	mib, _ := strconv.Atoi(args[1])
	size := mib << 20
	refused := func(err error) {
		if err != nil {
			fmt.Println("refused:", form, err)
			os.Exit(9)
		}
	}
	fill := func(b []byte) {
		for i := 0; i < len(b); i += 4096 {
			b[i] = 1
		}
	}
	write := func(fd int) {
		block := make([]byte, 1<<20)
		for range mib {
			_, err := unix.Write(fd, block)
			refused(err)
		}
	}
	switch form {
	case "shared map":
		b, err := unix.Mmap(-1, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_ANON)
		refused(err)
		fill(b)
	case "mapped memfd":
		fd, err := unix.MemfdCreate("SYSV00000000", 0)
		refused(err)
		refused(unix.Ftruncate(fd, int64(size)))
		b, err := unix.Mmap(fd, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
		refused(err)
		fill(b)
	case "memfd":
		fd, err := unix.MemfdCreate("x", 0)
		refused(err)
		write(fd)
	case "detached segment", "many segments":
		n := 1
		if form == "many segments" {
			n = 64
		}
		for range n {
			id, err := unix.SysvShmGet(unix.IPC_PRIVATE, size/n, unix.IPC_CREAT|0o600)
			refused(err)
			b, err := unix.SysvShmAttach(id, 0, 0)
			refused(err)
			fill(b)
			refused(unix.SysvShmDetach(b))
		}
	case "files in /tmp", "files in home", "files in /dev/shm":
		dir := map[string]string{"files in /tmp": "/tmp", "files in home": os.Getenv("HOME"), "files in /dev/shm": "/dev/shm"}[form]
		for i := range mib {
			fd, err := unix.Open(fmt.Sprint(dir, "/", i), unix.O_CREAT|unix.O_WRONLY, 0o600)
			if err == unix.ENOSPC {
				fmt.Println("no room")
				os.Exit(10)
			}
			refused(err)
			block := make([]byte, 1<<20)
			if _, err := unix.Write(fd, block); err == unix.ENOSPC {
				fmt.Println("no room")
				os.Exit(10)
			}
			unix.Unlink(fmt.Sprint(dir, "/", i)) // held open, it has no name
		}
	case "semaphores":
		for range mib << 20 / 64 / 32000 {
			_, _, no := unix.Syscall(unix.SYS_SEMGET, unix.IPC_PRIVATE, 32000, unix.IPC_CREAT|0o600)
			if no != 0 {
				refused(no)
			}
		}
	case "page tables":
		// One byte read of each 2 MiB costs a page of tables, and none of data.
		const span = 2 << 20
		n := mib << 20 / 4096
		at, _, no := unix.Syscall6(unix.SYS_MMAP, 0, uintptr(n*span), unix.PROT_READ, unix.MAP_PRIVATE|unix.MAP_ANON|unix.MAP_NORESERVE, ^uintptr(0), 0)
		if no != 0 {
			refused(no)
		}
		unix.Syscall(unix.SYS_MADVISE, at, uintptr(n*span), unix.MADV_NOHUGEPAGE)
		for i := range n {
			peek(at + uintptr(i*span))
		}
	case "first thread gone":
		b, err := unix.Mmap(-1, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
		refused(err)
		go func() {
			runtime.LockOSThread()
			if unix.Gettid() == unix.Getpid() {
				select {} // not this one
			}
			for {
				if s, err := os.ReadFile("/proc/self/stat"); err == nil && strings.Contains(string(s), ") Z ") {
					break
				}
				runtime.Gosched()
			}
			fill(b)
			select {}
		}()
		leaveFirstThread()
	}
	fmt.Println("held")
	time.Sleep(5 * time.Second) // many times the meter's interval
}

// sink keeps what peek reads from being left out.
var sink byte

//go:nocheckptr
func peek(at uintptr) { sink = *(*byte)(*(*unsafe.Pointer)(unsafe.Pointer(&at))) }

// leaveFirstThread ends the thread that the process began with, and no other.
func leaveFirstThread() {
	done := make(chan bool)
	for {
		go func() {
			runtime.LockOSThread()
			first := unix.Gettid() == unix.Getpid()
			done <- first
			if first {
				unix.RawSyscall(unix.SYS_EXIT, 0, 0, 0)
			}
			// Still locked, so the thread ends with it: the next one is another,
			// until only the first is left to take.
		}()
		if <-done {
			select {}
		}
	}
}

// S28: memory that is shared, or that no process maps. The layer is memory (the meter, or the memory cgroup) with
// shared (sizes, bounds of IPC); memory files are refused by seccomp, for nothing counts one that no process maps.
func TestThreatS28(t *testing.T) {
	for _, form := range []string{"shared map", "mapped memfd", "memfd", "detached segment", "many segments", "files in /tmp",
		"files in home", "semaphores", "page tables", "first thread gone"} {
		t.Run(form, func(t *testing.T) {
			t.Parallel()
			mib := 256 * raced
			if form == "page tables" {
				mib = 140 * raced
			}
			s := hostile(t, "memory", form, strconv.Itoa(mib))
			s.MemoryBytes, s.Wall = raced*128<<20, min(longest(), time.Minute)
			r, o := run(t, s)
			said := o.stdout.String()
			refused := r.ExitCode != nil && *r.ExitCode == 9 && strings.HasPrefix(said, "refused: "+form)
			full := r.ExitCode != nil && *r.ExitCode == 10 && strings.HasPrefix(form, "files")
			if r.Ending != sandbox.EndingMemory && !refused && !full {
				t.Fatalf("ending %d, exit %v, fault %q: %s%s", r.Ending, r.ExitCode, r.Fault, said, clip(o.stderr.String()))
			}
			t.Logf("ending %d: %s", r.Ending, strings.TrimSpace(o.stdout.String()))
		})
	}
}

// S30: the private directories are full at their size, and the program is told.
func TestThreatS30(t *testing.T) {
	for _, form := range []string{"files in /tmp", "files in home", "files in /dev/shm"} {
		t.Run(form, func(t *testing.T) {
			t.Parallel()
			s := hostile(t, "memory", form, "1000")
			s.MemoryBytes = 384 << 20
			r, o := run(t, s)
			exited(t, r, o, 10)
		})
	}
}

// What is far from the limit is not taken for more: a file in memory that is mapped counts once, and so does a parent
// that is between vfork and execve.
func TestMemoryIsNotCountedTwice(t *testing.T) {
	s := shell(t, `i=0; while [ $i -lt 40 ]; do /bin/true; i=$((i+1)); done; dd if=/dev/zero of=/tmp/x bs=1M count=60 2>/dev/null; cat /tmp/x | wc -c`)
	s.MemoryBytes = 128 << 20
	r, o := run(t, s)
	exited(t, r, o, 0)
}
