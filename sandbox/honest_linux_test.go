package sandbox_test

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"sync"
	"sync/atomic"
	"time"
)

// honest does what an ordinary Go program does: routines on many threads,
// timers, pipes through the poller, child processes.
func honest(args []string) {
	if len(args) > 0 {
		fmt.Print("honest")
		return
	}
	runtime.GOMAXPROCS(8)
	var sum atomic.Int64
	var all sync.WaitGroup
	for range 40 {
		all.Go(func() {
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			runtime.Gosched()
			sum.Add(1)
		})
	}
	all.Wait()
	timer := "no timer"
	select {
	case <-time.After(10 * time.Millisecond):
		timer = "timer"
	case <-time.After(time.Minute):
	}
	r, w, err := os.Pipe()
	if err != nil {
		panic(err)
	}
	go func() {
		fmt.Fprint(w, "pipe")
		w.Close()
	}()
	piped, err := io.ReadAll(r)
	if err != nil {
		panic(err)
	}
	exe, err := os.Executable()
	if err != nil {
		panic(err)
	}
	child, err := exec.Command(exe, hostileArg, "honest", "child").Output()
	fmt.Printf("%d routines, %s, %s, child: %s", sum.Load(), timer, piped, child)
	if err != nil {
		fmt.Print(err)
	}
}
