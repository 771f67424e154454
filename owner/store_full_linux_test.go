package owner

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"holdfast/internal/skip"
)

func init() { testChildren["store-full-disk"] = childFullDisk }

// childFullDisk runs in a user and mount namespace of its own: it mounts a
// tiny file system at args[0], and fills it with a store.
func childFullDisk(args []string) int {
	fail := func(format string, a ...any) int {
		fmt.Printf(format+"\n", a...)
		return 1
	}
	// Private first: as root the new namespace still shares its mounts with the old one.
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		fmt.Println("no private mounts:", err)
		return 77
	}
	if err := unix.Mount("tmpfs", args[0], "tmpfs", 0, "size=400k,mode=700"); err != nil {
		fmt.Println("no mount:", err)
		return 77
	}
	home := filepath.Join(args[0], "home")
	s, err := Open(home, Options{Now: fixedClock, Create: true})
	if err != nil {
		return fail("open: %v", err)
	}
	defer s.Close()
	ctx := context.Background()
	apply := func(c Command) (Receipt, error) {
		b, err := EncodeCommand(c)
		if err != nil {
			return Receipt{}, err
		}
		return s.Apply(ctx, b)
	}
	if _, err := apply(submitOf(deviceTask, "c0")); err != nil {
		return fail("submit: %v", err)
	}
	room := filepath.Join(args[0], "room")
	if err := os.WriteFile(room, make([]byte, 100<<10), 0o600); err != nil {
		return fail("room: %v", err)
	}
	revision := int64(1)
	var last Receipt
	for {
		c := correctOf(deviceTask, fmt.Sprint("c", revision), revision)
		c.Action.Correct.Prompt = strings.Repeat("x", 20<<10)
		r, err := apply(c)
		if err != nil {
			if !errors.Is(err, syscall.ENOSPC) || errors.Is(err, ErrReopen) || refused(err) {
				return fail("on the full disk: %v", err)
			}
			break
		}
		last, revision = r, r.Revision
	}
	// To the last byte, so that a short command does not fit either.
	ballast := filepath.Join(args[0], "ballast")
	f, err := os.Create(ballast)
	if err != nil {
		return fail("ballast: %v", err)
	}
	for b := make([]byte, 4096); err == nil; {
		_, err = f.Write(b)
	}
	f.Close()
	for range 20 {
		_, err := apply(submitOf("another", "n1"))
		if !errors.Is(err, syscall.ENOSPC) {
			return fail("submit on the full disk: %v", err)
		}
	}
	if _, err := s.PutBlob(make([]byte, 9000)); !errors.Is(err, syscall.ENOSPC) {
		return fail("blob on the full disk: %v", err)
	}
	// Nothing is lost, the same store goes on when there is room, and refused IDs are free.
	if task, err := s.Get(deviceTask); err != nil || task.Revision != revision {
		return fail("revision %d, not %d: %v", task.Revision, revision, err)
	}
	if err := errors.Join(os.Remove(ballast), os.Remove(room)); err != nil {
		return fail("ballast: %v", err)
	}
	if _, err := apply(cancelOf(deviceTask, "after", revision)); err != nil {
		return fail("with room again: %v", err)
	}
	if _, err := apply(submitOf("another", "n1")); err != nil {
		return fail("submit with room again: %v", err)
	}
	if err := s.Check(func(path string, ok bool, detail string) {
		if !ok {
			fmt.Println("check:", path, detail)
		}
	}); err != nil {
		return fail("check: %v", err)
	}
	fmt.Println("filled at revision", last.Revision)
	return 0
}

func TestFullDisk(t *testing.T) {
	cmd := exec.Command(os.Args[0], "store-full-disk", t.TempDir())
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNS}
	if os.Geteuid() != 0 {
		cmd.SysProcAttr.Cloneflags |= syscall.CLONE_NEWUSER
		cmd.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: 1}}
		cmd.SysProcAttr.GidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getgid(), Size: 1}}
	}
	out, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	switch {
	case err == nil:
		t.Logf("%s", out)
	case !errors.As(err, &exit):
		skip.Mounts(t, "no namespace of its own here: "+err.Error())
	case exit.ExitCode() == 77:
		skip.Mounts(t, "no mount in a namespace here: "+string(out))
	default:
		t.Fatalf("%v: %s", err, out)
	}
}
