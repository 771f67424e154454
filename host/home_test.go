package host

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
	"time"

	"go.etcd.io/bbolt"
	"golang.org/x/sys/unix"

	"holdfast/commands"
	"holdfast/internal/commit"
	"holdfast/internal/saferead"
	"holdfast/internal/skip"
	"holdfast/nip"
)

// What a home may look like when it is opened, and what is said about it.
func TestHome(t *testing.T) {
	dbOf := func(kind string, version uint32) func(r *rig) {
		return func(r *rig) {
			r.remove("host.db")
			r.remove("workspaces.json")
			db, err := commit.Open(filepath.Join(r.home, "host.db"), commit.Options{Kind: kind, Version: version})
			if err != nil {
				r.t.Fatal(err)
			}
			if err := db.Close(); err != nil {
				r.t.Fatal(err)
			}
		}
	}
	for _, row := range []struct {
		name string
		do   func(r *rig)
		want error
	}{
		{"as it was", func(*rig) {}, nil},
		{"not there", func(r *rig) { r.home += "-none" }, ErrNoHome},
		{"empty", func(r *rig) { r.remove("host.db"); r.remove("workspaces.json") }, ErrNoHome},
		{"its store lost", func(r *rig) { r.remove("host.db") }, commit.ErrCorrupt},
		{"a first start that was cut off", dbOf(dbKind, dbVersion), ErrNoHome},
		{"a link", func(r *rig) {
			if err := os.Symlink(r.home, r.home+"-link"); err != nil {
				r.t.Fatal(err)
			}
			r.home += "-link"
		}, ErrUnsafeHome},
		{"open to others", func(r *rig) { _ = os.Chmod(r.home, 0o750) }, ErrUnsafeHome},
		{"the key open to others", func(r *rig) { _ = os.Chmod(filepath.Join(r.home, "host.key"), 0o644) }, saferead.ErrUnsafe},
		{"a newer store", dbOf(dbKind, dbVersion+1), commit.ErrNewer},
		{"another program's store", dbOf("somebody-else", dbVersion), commit.ErrCorrupt},
		{"a truncated store", func(r *rig) {
			if err := os.Truncate(filepath.Join(r.home, "host.db"), 9000); err != nil {
				r.t.Fatal(err)
			}
		}, commit.ErrCorrupt},
		{"no key", func(r *rig) { r.remove("host.key") }, commit.ErrCorrupt},
		{"another key", func(r *rig) { r.write("host.key", newKey(r.t).Hex()+"\n") }, commit.ErrCorrupt},
		{"no key at all in the file", func(r *rig) { r.write("host.key", "secret\n") }, commit.ErrCorrupt},
	} {
		t.Run(row.name, func(t *testing.T) {
			r := newRig(t)
			r.close()
			row.do(r)
			c, err := OpenCore(r.home, Options{LockWait: 50 * time.Millisecond})
			if c != nil {
				defer c.Close()
			}
			if !errors.Is(err, row.want) {
				t.Fatalf("got %v, want %v", err, row.want)
			}
			if err != nil && strings.Contains(err.Error(), "secret") {
				t.Fatal("the error holds what the key file holds")
			}
		})
	}
}

func (r *rig) remove(name string) {
	r.t.Helper()
	if err := os.Remove(filepath.Join(r.home, name)); err != nil {
		r.t.Fatal(err)
	}
}

func TestHomeOfAnother(t *testing.T) {
	skip.Root(t, "make a folder of another user")
	r := newRig(t)
	r.close()
	if err := os.Chown(r.home, 12345, 12345); err != nil {
		t.Fatal(err)
	}
	if _, err := OpenCore(r.home, Options{}); !errors.Is(err, ErrUnsafeHome) {
		t.Fatalf("got %v", err)
	}
}

// Init again is a no-op for the same owner, refuses another, and goes on where
// a first start was cut off.
func TestInitAgain(t *testing.T) {
	r := newRig(t)
	self := r.c.Self()
	r.close()
	for _, row := range []struct {
		name  string
		owner nip.PubKey
		want  error
	}{{"the same owner", r.owner.pub(), nil}, {"whoever it is", "", nil}, {"another", newKey(t).Public(), ErrOtherOwner}} {
		if err := Init(r.home, row.owner, Options{}); !errors.Is(err, row.want) {
			t.Errorf("%s: %v", row.name, err)
		}
	}
	r.remove("host.db")
	if err := Init(r.home, r.owner.pub(), Options{}); !errors.Is(err, commit.ErrCorrupt) {
		t.Fatalf("a lost store became a new one: %v", err)
	}
	r.remove("workspaces.json")
	db, err := openDB(r.home)
	if err != nil {
		t.Fatal(err)
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	if err := Init(r.home, r.owner.pub(), Options{}); err != nil {
		t.Fatal(err)
	}
	r.open()
	if r.c.Self() != self || r.c.Owner() != r.owner.pub() {
		t.Fatal("another identity")
	}
	if err := Init(filepath.Join(r.dir, "second"), "", Options{}); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"host.key", "owner.key", "host.db"} {
		st, err := os.Stat(filepath.Join(r.dir, "second", name))
		if err != nil || st.Mode().Perm() != 0o600 {
			t.Fatalf("%s: %v %v", name, st, err)
		}
	}
}

func TestTwoHosts(t *testing.T) {
	r := newRig(t)
	start := time.Now()
	if _, err := OpenCore(r.home, Options{LockWait: 100 * time.Millisecond}); !errors.Is(err, ErrBusy) {
		t.Fatalf("got %v", err)
	}
	if took := time.Since(start); took > time.Minute {
		t.Fatalf("took %s", took)
	}
}

// A transition changed on disk is found by journal check and by check.
func TestJournalTampered(t *testing.T) {
	r := newRig(t)
	r.pair(nip.PairingRights())
	check := func() error {
		return r.c.Operate(t.Context(), "journal.check", nil, func(any) error { return nil })
	}
	if err := check(); err != nil {
		t.Fatal(err)
	}
	r.update(func(tx *bbolt.Tx) error {
		b := tx.Bucket([]byte("journal.history"))
		k, v := b.Cursor().First()
		changed := append([]byte(nil), v...)
		changed[len(changed)-1] ^= 1
		return b.Put(k, changed)
	})
	if err := check(); !errors.Is(err, commands.ErrChain) {
		t.Fatalf("got %v", err)
	}
	var said string
	if err := r.c.Operate(t.Context(), "check", nil, func(v any) error { said = fmt.Sprint(v); return nil }); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(said, commands.ErrChain.Error()) {
		t.Fatalf("check says %s", said)
	}
}

const fullDiskVar = "HOLDFAST_TEST_FULL_DISK"

// A full disk: a command that could not be committed gets no receipt, the host
// stops and says why, and with room again each command is there exactly once.
// The disk is a small tmpfs in a namespace of a child.
func TestFullDisk(t *testing.T) {
	if dir := os.Getenv(fullDiskVar); dir != "" {
		onFullDisk(t, dir)
		return
	}
	cmd := exec.Command("/proc/self/exe", "-test.run=^TestFullDisk$", "-test.v")
	cmd.Env = append(os.Environ(), fullDiskVar+"="+memDir(t))
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNS}
	if os.Geteuid() != 0 {
		cmd.SysProcAttr.Cloneflags |= syscall.CLONE_NEWUSER
		cmd.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Geteuid(), Size: 1}}
		cmd.SysProcAttr.GidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getegid(), Size: 1}}
	}
	out, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	switch {
	case err != nil && !errors.As(err, &exit):
		skip.Mounts(t, "no namespace for a small disk: "+err.Error())
	case strings.Contains(string(out), "SKIP"):
		skip.Mounts(t, "no small disk: "+string(out))
	case err != nil || !strings.Contains(string(out), "PASS"):
		t.Fatalf("%v\n%s", err, out)
	}
}

func onFullDisk(t *testing.T, dir string) {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		skip.Mounts(t, "mounts cannot be made private: "+err.Error())
	}
	if err := unix.Mount("holdfast-test", dir, "tmpfs", 0, "size=3m,mode=700"); err != nil {
		skip.Mounts(t, "a tmpfs cannot be mounted: "+err.Error())
	}
	defer unix.Unmount(dir, unix.MNT_DETACH)
	r := newRigIn(t, dir)
	d := r.pair(nip.PairingRights())
	task := r.create(d, "p")
	r.begin(task)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ran := r.run(ctx)

	filler := filepath.Join(dir, "filler")
	f, err := os.Create(filler)
	if err != nil {
		t.Fatal(err)
	}
	for {
		if _, err = f.Write(make([]byte, 4096)); err != nil {
			break
		}
	}
	f.Close()
	if !errors.Is(err, unix.ENOSPC) {
		t.Fatal(err)
	}

	// Commands until the host gives up. Each reply is a receipt.
	sent := map[nip.CommandID]Inbound{}
	receipts := map[nip.CommandID]bool{}
	var stopped error
	for i := 0; stopped == nil; i++ {
		if i > 200 {
			t.Fatal("the disk never got full")
		}
		cmd := nip.Command{ID: nip.CommandID(newID(t)), Task: task, Action: nip.Queue, BasedOn: 2, Text: strings.Repeat("x", 12_000), IssuedAt: r.clock.now()}
		in := r.sealed(d, r.req(d, nip.TaskCommand{Command: cmd}))
		sent[cmd.ID] = in
		r.paper.in <- in
		r.until("a receipt or the end", func() bool {
			select {
			case stopped = <-ran:
				return true
			default:
			}
			for _, ev := range r.paper.all() {
				if tag := ev.Tags.Find("h"); tag[1] == string(in.Event.Event().Tags.Find("h")[1]) {
					receipts[cmd.ID] = code(r.read(d, ev)) == ""
					return true
				}
			}
			return false
		})
	}
	if !errors.Is(stopped, commit.ErrPoisoned) {
		t.Fatalf("the host ended with: %v", stopped)
	}
	if len(receipts) == len(sent) {
		t.Fatal("a command that was not committed has a receipt")
	}
	cancel()
	r.h.Wait(30 * time.Second)
	_ = r.c.Close()
	if err := os.Remove(filler); err != nil {
		t.Fatal(err)
	}
	r.open()
	r.h.accessChanged()
	for id := range receipts {
		if e := r.entry(d.pub(), id); e.State != commands.StateHeld {
			t.Fatalf("a command with a receipt is %s", e.State)
		}
	}
	for id, in := range sent { // the device's outbox sends what has no receipt, and may send all
		r.wantCode(r.one(d, in), "")
		if e := r.entry(d.pub(), id); e.State != commands.StateHeld {
			t.Fatalf("%s", e.State)
		}
	}
	if err := r.c.db.View(func(tx *bbolt.Tx) error {
		_, n, err := r.c.journal.Held(tx, task, 1)
		if n != len(sent) {
			t.Errorf("%d held, %d sent", n, len(sent))
		}
		if err == nil {
			_, err = r.c.journal.Check(tx)
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	r.close()
}
