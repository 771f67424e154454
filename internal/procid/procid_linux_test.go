package procid_test

import (
	"errors"
	"io"
	"os"
	"os/exec"
	"testing"
	"time"

	"holdfast/internal/procid"
)

// TestMain lets the test binary stand in for a child that waits for its input
// to end.
func TestMain(m *testing.M) {
	if os.Getenv("PROCID_TEST_CHILD") != "" {
		io.Copy(io.Discard, os.Stdin)
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func child(t *testing.T) (*exec.Cmd, io.WriteCloser) {
	t.Helper()
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = []string{"PROCID_TEST_CHILD=1"}
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	return cmd, in
}

func TestSelfIsAlive(t *testing.T) {
	id, err := procid.Self()
	if err != nil {
		t.Fatal(err)
	}
	if id.PID != os.Getpid() || id.StartTime == 0 || id.BootID == "" {
		t.Fatalf("self %+v", id)
	}
	if alive, err := procid.Alive(id); err != nil || !alive {
		t.Errorf("alive %v, %v", alive, err)
	}
	for name, other := range map[string]procid.ID{
		"another boot":  {PID: id.PID, StartTime: id.StartTime, BootID: "00000000-0000-0000-0000-000000000000"},
		"recycled pid":  {PID: id.PID, StartTime: id.StartTime + 1, BootID: id.BootID},
		"no such pid":   {PID: 1 << 30, StartTime: 1, BootID: id.BootID},
		"negative pid":  {PID: -1, StartTime: 1, BootID: id.BootID},
		"zero identity": {},
	} {
		if alive, err := procid.Alive(other); err != nil || alive {
			t.Errorf("%s: alive %v, %v", name, alive, err)
		}
	}
}

func TestEndedChildIsNotAlive(t *testing.T) {
	cmd, in := child(t)
	id, err := procid.Of(cmd.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	if alive, err := procid.Alive(id); err != nil || !alive {
		t.Fatalf("running child: alive %v, %v", alive, err)
	}
	in.Close()
	// Nobody has waited yet, so what is seen at last is a zombie.
	for deadline := time.Now().Add(time.Minute); ; {
		alive, err := procid.Alive(id)
		if err != nil {
			t.Fatal(err)
		}
		if !alive {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("the zombie counts as alive")
		}
	}
	if _, err := procid.Of(id.PID); err != nil {
		t.Errorf("a zombie still has an identity: %v", err)
	}
	cmd.Wait()
	if _, err := procid.Of(id.PID); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("after wait: %v", err)
	}
	if alive, err := procid.Alive(id); err != nil || alive {
		t.Errorf("after wait: alive %v, %v", alive, err)
	}
}
