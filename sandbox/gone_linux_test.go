package sandbox_test

import (
	"bufio"
	"encoding/json"
	"os/exec"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"holdfast/sandbox"
)

// A group is gone when its init is dead, whether or not whoever inherits the
// zombie ever reaps it: here this process inherits it and does not.
func TestGoneBeforeItIsReaped(t *testing.T) {
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		t.Fatal(err)
	}
	defer unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)
	mark := marker(t)
	cmd := exec.Command("/proc/self/exe", superviseArg, temp(t), mark)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(out).ReadBytes('\n')
	if err != nil {
		t.Fatal(err)
	}
	var id sandbox.Identity
	if err := json.Unmarshal(line, &id); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the program runs", 30*time.Second, func() bool { return len(alive(t, mark)) > 1 })
	cmd.Process.Signal(syscall.SIGKILL)
	cmd.Wait()
	eventually(t, "the group is called gone", 30*time.Second, func() bool {
		gone, err := sandbox.Gone(id)
		return err == nil && gone
	})
	var status syscall.WaitStatus
	if pid, err := syscall.Wait4(id.PID, &status, 0, nil); err != nil || pid != id.PID {
		t.Errorf("init was no zombie of this process: %d, %v", pid, err)
	}
}
