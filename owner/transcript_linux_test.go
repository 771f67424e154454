package owner

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"holdfast/internal/atomicfile"
)

func init() {
	// Runs in namespaces of its own, on a small tmpfs: args are an empty folder.
	testChildren["test-small-disk"] = func(args []string) int {
		fail := func(err error) int { os.Stderr.WriteString(err.Error() + "\n"); return 1 }
		if err := syscall.Mount("small", args[0], "tmpfs", 0, "size=128k,mode=0700"); err != nil {
			return fail(err)
		}
		filler := filepath.Join(args[0], "filler")
		waits := 0
		tr, err := newTranscript(context.Background(), args[0], 1, session{ID: "t-1"}, atomicfile.OS, time.Now, counted(func(n int) {
			waits = n
			os.Remove(filler)
		}))
		if err != nil {
			return fail(err)
		}
		os.WriteFile(filler, make([]byte, 100<<10), 0o600)
		for range 20 {
			if err := tr.step(context.Background(), traceStep{source: "agent", message: strings.Repeat("x", 4000)}); err != nil {
				return fail(err)
			}
		}
		digest, err := tr.seal(context.Background())
		if err != nil {
			return fail(err)
		}
		b, err := os.ReadFile(filepath.Join(args[0], TraceName(1)))
		if err != nil || DigestOf(b) != digest || waits == 0 {
			return fail(errors.Join(err, errors.New("the transcript is not what was sealed, or the disk never was full")))
		}
		return 0
	}
}

// The kernel's own full disk, where a line goes in half.
func TestTranscriptOnASmallDisk(t *testing.T) {
	cmd := exec.Command("/proc/self/exe", "test-small-disk", privateDir(t))
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:  syscall.CLONE_NEWUSER | syscall.CLONE_NEWNS,
		UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Geteuid(), Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getegid(), Size: 1}},
	}
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
}
