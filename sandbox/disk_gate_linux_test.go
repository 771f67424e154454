package sandbox_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"holdfast/sandbox"
)

// TestDiskIsMeasuredBeforeTheGate: what the program writes and closes before init
// has read that the gate is open counts too.
func TestDiskIsMeasuredBeforeTheGate(t *testing.T) {
	s := shell(t, "mkdir d; for i in 1 2 3 4 5 6; do head -c 8000000 /dev/zero >d/$i; done; sync; chmod 0 d; echo made; sleep 60")
	s.Write, s.DiskBytes, s.DiskFiles, s.Wall = true, 16<<20, 1000, 20*time.Second
	closed := filepath.Join(s.Workspace, "d")
	t.Cleanup(func() { os.Chmod(closed, 0o700) }) // or an ordinary user cannot remove it
	p, err := sandbox.Start(s)
	if err != nil {
		t.Fatal(err)
	}
	init := p.Identity().PID
	if err := unix.Kill(init, unix.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	if err := p.Release(); err != nil {
		t.Fatal(err)
	}
	for c := range p.Chunks() {
		if strings.Contains(string(c.Bytes), "made") {
			unix.Kill(init, unix.SIGCONT)
		}
	}
	if r := p.Wait(); r.Ending != sandbox.EndingDisk {
		t.Errorf("%v %s", r.Ending, r.Fault)
	}
}
