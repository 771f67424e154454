package sandbox

import (
	"os"
	"runtime"
	"strconv"

	"golang.org/x/sys/unix"
)

// boundIPC bounds what the IPC namespace of a turn may hold: segments to half
// of the memory limit, queues and semaphores to what the kernel once had as its
// defaults. Only the host's root may write these numbers, for the namespace's
// own root is nobody; as an ordinary user, and where it fails, the meter alone
// holds. It reports whether everything was written.
func boundIPC(pid int, memory int64) bool {
	if memory == 0 || os.Geteuid() != 0 || !on(layerShared) {
		return false
	}
	done := make(chan bool)
	go func() {
		// The thread ends with the goroutine: it must never serve another.
		runtime.LockOSThread()
		if unix.Gettid() == unix.Getpid() {
			// The first thread is the process in /proc, and outlives its goroutine.
			// While this one holds it, another goroutine has another thread.
			bounded := boundIPC(pid, memory)
			runtime.UnlockOSThread()
			done <- bounded
			return
		}
		done <- writeIPC(pid, memory) == nil
	}()
	return <-done
}

func writeIPC(pid int, memory int64) error {
	ns, err := os.Open(procDir(pid) + "/ns/ipc")
	if err != nil {
		return err
	}
	defer ns.Close()
	if err := unix.Setns(int(ns.Fd()), unix.CLONE_NEWIPC); err != nil {
		return err
	}
	half := memory / 2
	for _, bound := range []struct{ name, value string }{
		{"shmall", strconv.FormatInt(half/int64(os.Getpagesize()), 10)},
		{"shmmax", strconv.FormatInt(half, 10)},
		{"shmmni", "512"},
		{"msgmni", "128"},
		{"sem", "250 32000 100 128"},
	} {
		if err := writeKernel("/proc/sys/kernel/"+bound.name, bound.value); err != nil {
			return err
		}
	}
	return nil
}
