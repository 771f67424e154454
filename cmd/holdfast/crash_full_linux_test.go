package main

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"holdfast/internal/skip"
	"holdfast/nip"
	"holdfast/relay/relaytest"
)

// diskVariable names the folder for the small disk, in the child that has
// namespaces of its own.
const diskVariable = "HOLDFAST_TEST_DISK"

// TestFullDisk fills the disk that holds the home. Nothing is acknowledged that
// is not on it, the host says what is wrong and leaves, and with room again
// every command is decided, once.
func TestFullDisk(t *testing.T) {
	if dir := os.Getenv(diskVariable); dir != "" {
		if err := smallDisk(dir); err != nil {
			skip.Mounts(t, "no small disk: "+err.Error())
		}
		for name, row := range map[string]struct{ home, relay string }{
			"home": {home: "a"}, "home and its relay": {home: "b", relay: "b"}, "relay": {relay: "c"},
		} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				fullDisk(t, dir, row.home, row.relay)
			})
		}
		return
	}
	t.Parallel()
	c := exec.Command("/proc/self/exe", "-test.run=^TestFullDisk$", "-test.v")
	c.Env = append(os.Environ(), diskVariable+"="+t.TempDir())
	c.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNS}
	if os.Geteuid() != 0 {
		c.SysProcAttr.Cloneflags |= syscall.CLONE_NEWUSER
		c.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Geteuid(), Size: 1}}
		c.SysProcAttr.GidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getegid(), Size: 1}}
	}
	out, err := c.CombinedOutput()
	var exit *exec.ExitError
	switch {
	case err != nil && !errors.As(err, &exit):
		skip.Mounts(t, "this machine gives no mount namespace: "+err.Error())
	case err != nil:
		t.Errorf("%v\n%s", err, out)
	case strings.Contains(string(out), "no small disk"):
		skip.Mounts(t, lastLine(string(out[strings.Index(string(out), "no small disk"):])))
	}
	t.Logf("%s", out)
}

// smallDisk mounts three of them below dir.
func smallDisk(dir string) error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return err
	}
	for _, name := range []string{"a", "b", "c"} {
		path := filepath.Join(dir, name)
		if err := os.Mkdir(path, 0o700); err != nil {
			return err
		}
		if err := unix.Mount("tmpfs", path, "tmpfs", 0, "size=4m,mode=700"); err != nil {
			return err
		}
	}
	return nil
}

// fill leaves not a byte of room on the disk.
func fill(t *testing.T, path string) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for size := 64 << 10; size > 0; size /= 2 {
		for err = nil; err == nil; {
			_, err = f.Write(make([]byte, size))
		}
		if !errors.Is(err, syscall.ENOSPC) {
			t.Fatal(err)
		}
	}
}

// fullDisk runs a host whose home, relay or both lie on the named small disk.
func fullDisk(t *testing.T, dir, home, relayDisk string) {
	s, ctx := stage(t)
	r := &crashRig{tour: s, t: t, ctx: ctx}
	full := filepath.Join(dir, home+relayDisk)
	if home != "" {
		full = filepath.Join(dir, home)
		s.home = filepath.Join(full, "home")
	}
	startRelay := func() *tourProcess { return nil }
	if home != relayDisk {
		addr, relayHome := freePort(t), filepath.Join(s.dir, "relay-home")
		if relayDisk != "" {
			relayHome = filepath.Join(full, "relay-home")
		}
		startRelay = func() *tourProcess {
			p, err := s.spawn("relay", "serve", "--json", "--home", relayHome, "--listen", addr)
			r.must(err)
			t.Cleanup(p.kill)
			ready, _, err := p.await(ctx, 0, "the relay", isEvent("ready"))
			r.must(err)
			r.relay = ready["relay"].(string)
			return p
		}
	}
	relay := startRelay()
	r.build()
	r.policy(false) // the turn is not what is asked about here
	id := r.make("one")
	room := filepath.Join(full, "room")
	fill(t, room)
	suffers := r.host
	if home == "" {
		suffers = relay
	}
	left := func() bool {
		select {
		case <-suffers.ended:
			return true
		default:
			return false
		}
	}
	// A command that was not answered in time says nothing on a slow machine:
	// what had no room has left.
	var taken, waits []nip.Command
	for until := time.Now().Add(2 * time.Minute); !left() && len(taken) < 60; {
		bounded, cancel := r.within(3 * time.Second)
		c, _, err := r.dev.Command(bounded, nip.Command{Task: id, Action: nip.Queue, BasedOn: 1, Text: strings.Repeat("word ", 200)})
		cancel()
		switch {
		case err == nil:
			taken = append(taken, c)
		case !strings.HasPrefix(codeOf(err), "error: "):
			t.Fatalf("on a full disk the host signed %v", err)
		default:
			waits = append(waits, c)
			if time.Now().After(until) {
				t.Fatal("it goes on, and takes nothing")
			}
		}
	}
	if len(waits) == 0 {
		t.Fatalf("%d commands fitted on a full disk", len(taken))
	}
	select {
	case <-suffers.ended:
	case <-time.After(relaytest.Patience):
		t.Fatal("it goes on, and takes nothing")
	}
	code, said := suffers.cmd.ProcessState.ExitCode(), lastLine(suffers.errors.String())
	if code != exitFailed || !strings.Contains(said, "no space left") || !strings.Contains(said, `"disk_full"`) {
		t.Errorf("exit %d: %s", code, said)
	}
	if home != "" {
		// Still full: a start finds room inside its files, or says what is wrong.
		r.launch()
		if _, _, err := r.host.await(ctx, 0, "a start on a full disk", isEvent("ready")); err != nil && !strings.Contains(err.Error(), "disk_full") {
			t.Error(err)
		}
	}
	r.host.kill()
	r.must(os.Remove(room))
	if home == "" {
		startRelay()
	}
	r.start()
	r.reopen()
	r.resend(r.dev)
	for _, c := range append(taken, waits...) {
		if e := r.entryOf(string(c.ID)); e.State != "held" || e.Text != c.Text {
			t.Errorf("command is %s %s %s", e.State, e.Outcome, e.Reason)
		}
	}
	r.checked()
}
