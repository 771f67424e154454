package host

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"go.etcd.io/bbolt"

	"holdfast/commands"
	"holdfast/internal/saferead"
	"holdfast/nip"
	"holdfast/owner"
)

func (r *rig) backup(to string) Backup {
	r.t.Helper()
	b, err := r.c.Backup(r.t.Context(), to)
	if err != nil {
		r.t.Fatal(err)
	}
	return b
}

func (r *rig) restore(from string) Restored {
	r.t.Helper()
	r.close()
	out, err := Restore(r.t.Context(), r.home, from, true, Options{Now: r.clock.Now, LockWait: time.Second})
	if err != nil {
		r.t.Fatal(err)
	}
	r.open()
	return out
}

// A host goes on after its backup was made: it decides commands, starts turns,
// takes a new device. With the backup put back nothing of all that happens a
// second time, whatever is sent again and whatever waited.
func TestRestoreRunsNothingTwice(t *testing.T) {
	r := newRig(t)
	t.Cleanup(func() { close(r.h.stopped) })
	r.policy(func(p *Policy) { p.MaxRunning = 8 })
	d := r.pair(nip.PairingRights())
	busy, waiting, owned := r.create(d, "busy"), r.create(d, "waits"), r.create(r.owner, "waits for the owner")
	end := r.begin(busy)
	held, pending := r.command(busy, nip.Queue, "held"), r.command(busy, nip.Queue, "by the owner")
	r.wantCode(r.ask(d, nip.TaskCommand{Command: held}), "")
	r.wantCode(r.ask(r.owner, nip.TaskCommand{Command: pending}), "")
	code := r.invite(nip.PairingRights())
	b := r.backup(filepath.Join(r.dir, "b"))
	if b.Files < 8 || b.Bytes == 0 || b.MadeAt != r.clock.now() {
		t.Errorf("backup %+v", b)
	}
	if st, err := os.Stat(b.Backup); err != nil || st.Mode().Perm() != 0o600 {
		t.Errorf("%v %v", st, err)
	}

	// The life that the backup does not know.
	late := r.command(waiting, nip.Steer, "rather this")
	r.wantCode(r.ask(d, nip.TaskCommand{Command: late}), "")
	create := r.req(r.owner, nip.TaskCreate{Title: "t", Prompt: "p", Workspace: "demo"})
	r.wantCode(r.one(r.owner, r.sealed(r.owner, create)), "")
	thief := device{key: newKey(t)}
	thief.grant = r.granted(thief, r.ask(thief, nip.EnrollRedeem{Invitation: code.ID, Capability: code.Capability}))
	end(owner.Result{})
	if err := r.c.evaluateAll(t.Context()); err != nil {
		t.Fatal(err)
	}
	r.sweep()
	if r.launches.Load() != 4 {
		t.Fatalf("%d launches, want all four tasks'", r.launches.Load())
	}
	r.clock.add(10)

	close(r.h.stopped)
	out := r.restore(b.Backup)
	if out.RestoredAt != r.clock.now() || out.MadeAt != b.MadeAt || out.Files != b.Files || out.Bytes != b.Bytes {
		t.Errorf("restored %+v", out)
	}
	if len(out.Devices) != 1 || out.Devices[0] != (DeviceEpoch{d.pub(), 1}) {
		t.Errorf("devices %+v", out.Devices)
	}
	if len(out.Ended) != 2 {
		t.Errorf("ended %v", out.Ended)
	}
	for _, id := range []nip.TaskID{waiting, owned} {
		if got := r.task(id); got.NotStarted != restoredCause || got.Status != owner.Cancelled {
			t.Errorf("task %s: %s %q", id, got.Status, got.NotStarted)
		}
	}
	if _, err := os.Stat(filepath.Join(out.Kept, "host.db")); err != nil {
		t.Error("the home before was not kept:", err)
	}
	for _, e := range []struct {
		d device
		c nip.Command
	}{{d, held}, {r.owner, pending}} {
		if got := r.entry(e.d.pub(), e.c.ID); got.Outcome != commands.OutcomeExpired {
			t.Errorf("what was held ended as %s", got.Outcome)
		}
	}

	// What is sent again.
	r.wantCode(r.ask(d, nip.TaskCommand{Command: late}), nip.Stale)
	r.wantCode(r.one(r.owner, r.sealed(r.owner, create)), nip.Expired)
	if silence := r.give(r.sealed(device{key: newKey(t)}, r.req(device{}, nip.EnrollRedeem{Invitation: code.ID, Capability: code.Capability}))); len(silence) != 0 {
		t.Error("a code of the backup's day was redeemed")
	}
	r.wantCode(r.ask(thief, nip.DeviceList{}), nip.Forbidden)
	r.clock.add(clockSkew + 1)
	again := r.pair(nip.PairingRights(), d.key)
	if again.grant.Epoch != 1 {
		t.Errorf("paired again under epoch %d", again.grant.Epoch)
	}
	r.wantCode(r.ask(again, nip.TaskCommand{Command: late}), nip.Expired)
	ahead := r.command(busy, nip.Queue, "dated ahead")
	ahead.IssuedAt = out.RestoredAt + commands.CommandFuture
	r.wantCode(r.ask(again, nip.TaskCommand{Command: ahead}), nip.Expired)
	ahead.ID, ahead.IssuedAt = nip.CommandID(newID(t)), ahead.IssuedAt+1
	r.wantCode(r.ask(again, nip.TaskCommand{Command: ahead}), "")
	never := nip.RequestOperation{Request: create.ID, RequestEvent: nip.EventID(newID(t))}
	r.wantCode(r.ask(r.owner, never), nip.Unavailable)

	before := r.launches.Load()
	if err := r.h.wakeUp(t.Context()); err != nil {
		t.Fatal(err)
	}
	if r.h.generation <= restoredStarts {
		t.Errorf("generation %d: devices would not believe it", r.h.generation)
	}
	if err := r.c.db.View(func(tx *bbolt.Tx) error { _, err := r.c.journal.Check(tx); return err }); err != nil {
		t.Error(err)
	}
	r.sweep()
	// The one that was sent after the restore is the busy task's next turn.
	next := r.task(busy)
	if n := r.launches.Load() - before; n > 1 || next.EffectivePrompt() != "dated ahead" && n != 0 {
		t.Errorf("%d launches after the restore", n)
	}
}

// Tasks are made, commanded and end while the copy is taken: what the copied
// journal says was applied is in the copied logs.
func TestBackupOfALivingHost(t *testing.T) {
	r := newRig(t)
	d := r.pair(nip.PairingRights())
	if _, err := r.c.store.PutBlob(make([]byte, 12<<20)); err != nil { // copying takes a while
		t.Fatal(err)
	}
	r.serve()
	ctx, stop := context.WithCancel(t.Context())
	var busy sync.WaitGroup
	busy.Go(func() {
		for ctx.Err() == nil {
			task := nip.TaskID(r.overWire(d, nip.TaskCreate{Title: "t", Prompt: "p", Workspace: "demo"}).Outcome.(nip.Dispatched).Reference)
			r.overWire(d, nip.TaskCommand{Command: r.command(task, nip.Steer, "rather this")})
			r.overWire(d, nip.TaskCommand{Command: r.command(task, nip.Interrupt, "enough")})
			r.overWire(d, nip.TaskCommand{Command: r.command(task, nip.Queue, "again")})
		}
	})
	r.until("a task is there", func() bool { ids, err := r.c.store.List(); return err == nil && len(ids) > 0 })
	var made []Backup
	for range 3 {
		made = append(made, r.backup(r.dir))
		r.clock.add(1) // another name
	}
	stop()
	busy.Wait()
	r.close()
	for _, b := range made {
		home := filepath.Join(t.TempDir(), "home")
		out, err := Restore(t.Context(), home, b.Backup, false, Options{Now: r.clock.Now})
		if err != nil || out.Kept != "" {
			t.Fatalf("%+v %v", out, err)
		}
		c, err := OpenCore(home, Options{Now: r.clock.Now})
		if err != nil {
			t.Fatal(err)
		}
		if err := c.store.Check(func(path string, ok bool, detail string) {
			if !ok {
				t.Errorf("%s: %s", path, detail)
			}
		}); err != nil {
			t.Error(err)
		}
		var rows []commands.Entry
		if err := c.db.View(func(tx *bbolt.Tx) (err error) {
			rows, _, err = c.journal.Page(tx, commands.Filter{Limit: 100_000})
			return err
		}); err != nil {
			t.Error(err)
		}
		for _, e := range rows {
			if e.Task == "" || e.Outcome != commands.OutcomeApplied {
				continue
			}
			task, err := c.store.Get(owner.TaskID(e.Task))
			if err != nil || task.Revision < e.Revision {
				t.Errorf("entry %d was applied at %d, the task is at %d: %v", e.Seq, e.Revision, task.Revision, err)
			}
		}
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	}
}

// What does not fit leaves everything as it was, and nothing beside it.
func TestRestoreRefuses(t *testing.T) {
	r := newRig(t)
	d := r.pair(nip.PairingRights())
	task := r.create(d, "p")
	good := r.backup(filepath.Join(r.dir, "good")).Backup
	whole, err := os.ReadFile(good)
	if err != nil {
		t.Fatal(err)
	}
	bad := func(name string, raw []byte) string {
		p := filepath.Join(r.dir, name)
		if err := os.WriteFile(p, raw, 0o600); err != nil {
			t.Fatal(err)
		}
		return p
	}
	try := func(name, from string, replace bool, is error, says string) {
		t.Helper()
		_, err := Restore(t.Context(), r.home, from, replace, Options{Now: r.clock.Now, LockWait: 50 * time.Millisecond})
		if !errors.Is(err, is) || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v", name, err)
		}
		left, err := filepath.Glob(filepath.Join(r.dir, ".home.restore-*"))
		if err != nil || len(left) != 0 {
			t.Errorf("%s left %v", name, left)
		}
	}
	try("a host runs", good, true, ErrBusy, "host.lock")
	end := r.begin(task)
	core := r.c
	r.c.lock.release()
	try("a turn runs", good, true, ErrBusy, "still runs")
	end(owner.Result{})
	before := r.dump()
	try("no clear word", good, false, ErrUsage, "--replace")
	try("no file", filepath.Join(r.dir, "none"), true, ErrUsage, "none")
	for _, at := range []int{0, 100, 512, 5000, len(whole) / 2, len(whole) - 4000, len(whole) - 1024 - 512} {
		try("cut short", bad("cut", whole[:at]), true, ErrBackup, "")
	}
	for at := 600; at < len(whole)-1024; at += len(whole) / 23 {
		raw := bytes.Clone(whole)
		flip := at + bytes.IndexFunc(raw[at:], func(r rune) bool { return r != 0 }) // the zeros between members are nobody's
		raw[flip] ^= 1
		if _, err := Restore(t.Context(), r.home, bad("bit", raw), true, Options{Now: r.clock.Now, LockWait: time.Second}); err == nil {
			t.Fatalf("a changed byte at %d was taken", flip)
		}
	}
	for _, row := range []struct {
		name string
		kind byte
	}{
		{"../evil", tar.TypeReg}, {"/etc/evil", tar.TypeReg}, {"tasks/../../evil", tar.TypeReg}, {"host.lock", tar.TypeReg},
		{"policy.json", tar.TypeSymlink}, {"policy.json", tar.TypeLink}, {"tasks", tar.TypeDir}, {"host.db", tar.TypeReg},
	} {
		try(row.name, bad("names", with(t, whole, row.name, row.kind)), true, ErrBackup, "")
	}
	try("words behind its end", bad("behind", append(bytes.TrimRight(bytes.Clone(whole), "\x00"), whole...)), true, ErrBackup, "")
	if r.c = core; r.dump() != before {
		t.Error("the home was changed")
	}
}

// with is the backup with one more member before its end.
func with(t *testing.T, whole []byte, name string, kind byte) []byte {
	t.Helper()
	var out bytes.Buffer
	tw := tar.NewWriter(&out)
	for tr := tar.NewReader(bytes.NewReader(whole)); ; {
		h, err := tr.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		if h.Name == backupSum {
			if err := tw.WriteHeader(&tar.Header{Typeflag: kind, Name: name, Linkname: "host.key", Mode: 0o600}); err != nil {
				t.Fatal(err)
			}
		}
		if err := tw.WriteHeader(h); err != nil {
			t.Fatal(err)
		}
		if _, err := io.Copy(tw, tr); err != nil {
			t.Fatal(err)
		}
	}
	if err := tw.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

func TestBackupPlace(t *testing.T) {
	r := newRig(t)
	for _, to := range []string{"relative", filepath.Join(r.home, "b"), filepath.Join(r.home, "tasks", "b"), filepath.Join(r.dir, "none", "b"), r.home} {
		if _, err := r.c.Backup(t.Context(), to); !errors.Is(err, ErrUsage) {
			t.Errorf("%s: %v", to, err)
		}
	}
	b := r.backup(r.dir)
	if filepath.Dir(b.Backup) != r.dir || !strings.HasSuffix(b.Backup, ".backup") {
		t.Errorf("in a folder it is %s", b.Backup)
	}
	if _, err := r.c.Backup(t.Context(), b.Backup); !errors.Is(err, ErrUsage) {
		t.Errorf("over another: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := r.c.Backup(ctx, filepath.Join(r.dir, "never")); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
	left, err := filepath.Glob(filepath.Join(r.dir, "*never*"))
	if err != nil || len(left) != 0 {
		t.Errorf("left %v", left)
	}
}

// FuzzUnpack: whatever the bytes, nothing is written outside of the folder and
// what is taken has a whole backup's end.
func FuzzUnpack(f *testing.F) {
	r := newRig(f)
	b, err := r.c.Backup(context.Background(), filepath.Join(r.dir, "b"))
	if err != nil {
		f.Fatal(err)
	}
	whole, err := os.ReadFile(b.Backup)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(whole)
	f.Add(whole[:2048])
	// A small one: of a whole database a fuzzer changes nothing but the database.
	var small bytes.Buffer
	w := &backupWriter{ctx: context.Background(), tw: tar.NewWriter(&small), sum: sha256.New()}
	if err := errors.Join(w.note(backupHead, backupHeader{V: backupVersion}), w.note("host.db", "a database"),
		w.note("tasks/"+strings.Repeat("ab", 32)+"/log", "a log"), w.note("blobs/sha256/ab/"+strings.Repeat("ab", 32), "a blob"), w.end(), w.tw.Close()); err != nil {
		f.Fatal(err)
	}
	f.Add(small.Bytes())
	f.Fuzz(func(t *testing.T, raw []byte) {
		dir := memDir(t)
		if err := os.Mkdir(filepath.Join(dir, "into"), 0o700); err != nil {
			t.Fatal(err)
		}
		d, err := saferead.OpenDir(filepath.Join(dir, "into"))
		if err != nil {
			t.Fatal(err)
		}
		defer d.Close()
		head, end, err := unpack(bytes.NewReader(raw), d)
		if err == nil && (head.V != backupVersion || end.V != backupVersion) {
			t.Errorf("taken: %+v %+v", head, end)
		}
		if list, err := os.ReadDir(dir); err != nil || len(list) != 1 {
			t.Errorf("outside: %v %v", list, err)
		}
	})
}
