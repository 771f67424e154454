package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"holdfast/host"
	"holdfast/host/client"
	"holdfast/internal/diskfault"
	"holdfast/nip"
	"holdfast/owner"
	"holdfast/sandbox"
)

// faultPath is the whole product in one process whose disk fails: a host as cmd
// joins it, its embedded relay on a loopback socket, devices of package client,
// and a task store of its own in the place of execution owners. Host, relay,
// devices and owners write below one watched folder.
//
// After the failure everything is closed, as by kill -9 of all of it, and opened
// again over what is left; each step is then tried again as a person, a device's
// outbox and an owner would. One goroutine uses it.
type faultPath struct {
	t     *testing.T
	disk  *diskfault.Disk
	dir   string
	clock *benchClock
	g     *globals
	o     serveOptions

	parts *parts
	alive context.Context // ends with the host
	end   context.CancelFunc
	over  chan error // how the host ended

	store   *owner.Store
	owned   *owner.Ownership // of the turn that runs: owners outlive a host
	devices map[string]*client.Device

	minted  []*faultCommand
	created []nip.TaskID
	revoked map[string]bool // devices
	pruned  bool            // the journal, or it is about to be

	// standing is what is known for sure: paired devices, and revoked ones.
	standing map[nip.PubKey]bool
}

// faultCommand is a command, who gave it under which name, and what was signed
// to it.
type faultCommand struct {
	name, by string
	command  nip.Command
	told     *string // the code of the first answer, "" for a receipt
}

func newFaultPath(t *testing.T, disk *diskfault.Disk, dir, listen string) *faultPath {
	f := &faultPath{t: t, disk: disk, dir: dir, clock: &benchClock{}, alive: context.Background(), devices: map[string]*client.Device{}, revoked: map[string]bool{}, standing: map[nip.PubKey]bool{}}
	f.g = &globals{home: filepath.Join(dir, "home"), log: zerolog.Nop(), now: f.clock.now}
	f.o.listen = listen
	return f
}

func (f *faultPath) must(err error) {
	f.t.Helper()
	if err != nil {
		f.t.Fatal(err)
	}
}

func (f *faultPath) profile(name string) string { return filepath.Join(f.dir, name) }

func (f *faultPath) options() client.Options {
	return client.Options{Loopback: true, Now: f.clock.now, Log: zerolog.Nop()}
}

// open starts the host and opens what is beside it.
func (f *faultPath) open() error {
	p, err := f.g.build(context.Background(), f.o, nil)
	if err != nil {
		return fmt.Errorf("start the host: %w", err)
	}
	f.parts = p
	f.alive, f.end = context.WithCancel(context.Background())
	f.over = make(chan error, 1)
	ready := make(chan struct{})
	alive, end, over := f.alive, f.end, f.over
	go func() {
		err := p.run(alive, func() error { close(ready); return nil })
		end()
		over <- err
	}()
	select {
	case <-ready:
	case <-alive.Done():
		return errors.New("the host ended as it started")
	}
	if f.store, err = owner.Open(f.g.home, owner.Options{Now: f.clock.now}); err != nil {
		return err
	}
	for name := range f.devices {
		if f.devices[name], err = client.Open(f.profile(name), f.options()); err != nil {
			return fmt.Errorf("open device %s: %w", name, err)
		}
	}
	return nil
}

// shut closes everything; what it says does not matter where a disk is dead.
func (f *faultPath) shut() error {
	var errs []error
	for _, d := range f.devices {
		if d != nil {
			errs = append(errs, d.Close())
		}
	}
	if f.store != nil {
		errs = append(errs, f.store.Close())
		f.store = nil
	}
	if f.parts != nil {
		f.end()
		if err := <-f.over; err != nil && !errors.Is(err, context.Canceled) {
			errs = append(errs, err)
		}
		f.parts.host.Wait(5 * time.Second)
		errs = append(errs, f.parts.close())
		f.parts = nil
	}
	return errors.Join(errs...)
}

// restart is the end of every process and a new one of each. The failure may
// come while they start.
func (f *faultPath) restart() {
	f.t.Helper()
	for try := 0; ; try++ {
		f.shut()
		f.must(f.disk.Revive())
		f.receipts()
		err := f.open()
		if err == nil {
			err = f.resend()
		}
		if err == nil {
			return
		}
		if call, _ := f.disk.Struck(); call == "" || try == 3 {
			f.t.Fatalf("restart: %v (failed: %q)", err, call)
		}
	}
}

// receipts looks into what a failure left before anything is sent again: relays
// and outboxes would bring most of what a host had lost. What was answered is in
// the journal, a device that was paired is one, and one that was revoked is none.
func (f *faultPath) receipts() {
	f.t.Helper()
	if call, _ := f.disk.Struck(); call == "" {
		return
	}
	core, err := host.OpenCore(f.g.home, f.g.coreOptions())
	if err != nil {
		f.t.Fatalf("after the failure: %v", err)
	}
	defer func() { f.must(core.Close()) }()
	entries := map[string]bool{}
	list, err := operated[entryList](core, "journal.list")
	f.must(err)
	for _, e := range list.Entries {
		entries[e.Command] = true
	}
	for _, m := range f.minted {
		if m.told != nil && !f.pruned && !entries[string(m.command.ID)] {
			f.t.Errorf("%s %q was answered %q, and is in no journal", m.command.Action, m.name, *m.told)
		}
	}
	for _, id := range f.created {
		if !f.pruned && !entries[string(id)] {
			f.t.Errorf("the create of %s was answered, and is in no journal", id)
		}
	}
	devices, err := operated[struct{ Devices []host.DeviceRow }](core, "devices.list")
	f.must(err)
	active := map[nip.PubKey]bool{}
	for _, d := range devices.Devices {
		active[d.Device] = d.State == "active"
	}
	for key, want := range f.standing {
		if active[key] != want {
			f.t.Errorf("device %s: active %v", key, active[key])
		}
	}
}

type entryList struct{ Entries []host.EntryView }

// operated runs a verb on a core, as its socket does.
func operated[T any](core *host.Core, verb string) (out T, err error) {
	err = core.Operate(context.Background(), verb, nil, func(v any) error {
		raw, err := json.Marshal(v)
		if err != nil {
			return err
		}
		return json.Unmarshal(raw, &out)
	})
	return out, err
}

// resend is the outboxes' own way.
func (f *faultPath) resend() error {
	ctx, cancel := f.patience()
	defer cancel()
	for name, d := range f.devices {
		if err := d.Resend(ctx); err != nil && !errors.Is(err, client.ErrNotPaired) {
			return fmt.Errorf("outbox of %s: %w", name, err)
		}
	}
	return nil
}

// patience bounds one step. Nothing comes from a host that is gone, nor over a
// dead disk; one that lives on after a failure is given a few seconds.
func (f *faultPath) patience() (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithTimeout(f.alive, 2*time.Minute)
	before, _ := f.disk.Struck()
	go func() {
		tick := time.NewTicker(5 * time.Millisecond)
		defer tick.Stop()
		var since time.Time
		for {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
			call, dead := f.disk.Struck()
			if call != before && since.IsZero() {
				since = time.Now()
			}
			if dead || !since.IsZero() && time.Since(since) > 2*time.Second {
				cancel()
			}
		}
	}()
	return ctx, cancel
}

// try carries a step out, and again after a restart where the disk failed in it.
func (f *faultPath) try(what string, fn func(ctx context.Context) error) {
	f.t.Helper()
	for try := 0; ; try++ {
		began := time.Now()
		ctx, cancel := f.patience()
		err := fn(ctx)
		cancel()
		if err == nil {
			return
		}
		if took := time.Since(began); took > 3*time.Second {
			call, _ := f.disk.Struck()
			f.t.Logf("%s: %v (failed: %q) after %v", what, err, call, took)
		}
		if call, _ := f.disk.Struck(); call == "" || try == 3 {
			f.t.Fatalf("%s: %v (failed: %q)", what, err, call)
		}
		f.restart()
	}
}

// until waits for a condition of the task.
func (f *faultPath) until(what string, id nip.TaskID, ok func(t owner.Task) bool) {
	f.t.Helper()
	f.try(what, func(ctx context.Context) error {
		_, err := f.comes(ctx, id, ok)
		return err
	})
}

// stopping waits until the task's turn was asked to stop. A failure can put that
// off beyond the receipt, and a turn that ends by itself meanwhile was not
// stopped by anybody.
func (f *faultPath) stopping(id nip.TaskID) {
	f.t.Helper()
	f.until("the stop", id, func(t owner.Task) bool { return t.Status == owner.CancelRequested })
}

func (f *faultPath) comes(ctx context.Context, id nip.TaskID, ok func(t owner.Task) bool) (owner.Task, error) {
	poll := time.NewTicker(2 * time.Millisecond)
	defer poll.Stop()
	for {
		t, err := f.store.Get(owner.TaskID(id))
		if err != nil || ok(t) {
			return t, err
		}
		select {
		case <-poll.C:
		case <-ctx.Done():
			return t, fmt.Errorf("the task is %s, turn %d, %q", t.Status, t.Turn(), t.EffectivePrompt())
		}
	}
}

func (f *faultPath) get(id nip.TaskID) (t owner.Task) {
	f.t.Helper()
	f.try("read a task", func(context.Context) (err error) {
		t, err = f.store.Get(owner.TaskID(id))
		return err
	})
	return t
}

// create makes a task; its prompt tells it from others.
func (f *faultPath) create(by, prompt string) (id nip.TaskID) {
	f.t.Helper()
	f.try("create "+prompt, func(ctx context.Context) error {
		if id = f.taskOf(prompt); id != "" {
			return nil // by the outbox, meanwhile
		}
		rows, err := f.devices[by].Outbox()
		if err != nil || len(rows) > 0 {
			return errors.Join(err, fmt.Errorf("%d rows still wait in the outbox of %s", len(rows), by))
		}
		id, err = f.devices[by].Create(ctx, nip.TaskCreate{Title: "of " + prompt, Prompt: prompt, Workspace: benchLabel})
		return err
	})
	f.created = append(f.created, id)
	return id
}

func (f *faultPath) taskOf(prompt string) nip.TaskID {
	f.t.Helper()
	ids, err := f.store.List()
	f.must(err)
	for _, id := range ids {
		t, err := f.store.Get(id)
		f.must(err)
		if t.Intent.Prompt == prompt {
			return nip.TaskID(id)
		}
	}
	return ""
}

// give sends a command and waits for the signed answer.
func (f *faultPath) give(by, name string, c nip.Command) nip.CommandID {
	f.t.Helper()
	c.ID, c.IssuedAt, c.BasedOn = nip.CommandID(testID(f.t)), f.clock.now().Unix(), f.get(c.Task).Revision
	m := &faultCommand{name: name, by: by, command: c}
	f.minted = append(f.minted, m)
	f.try(string(c.Action)+" "+name, func(ctx context.Context) error {
		_, _, err := f.devices[by].Command(ctx, c)
		code := codeOf(err)
		if strings.HasPrefix(code, "error") {
			return err
		}
		m.told = &code
		return nil
	})
	return c.ID
}

// edit changes the queue under a lease that it takes, and gives back.
func (f *faultPath) edit(by string, task nip.TaskID, edits ...nip.QueueEdit) {
	f.t.Helper()
	edits = append(append([]nip.QueueEdit{{Action: "lease"}}, edits...), nip.QueueEdit{Action: "release"})
	for _, e := range edits {
		f.try("queue: "+e.Action, func(ctx context.Context) error {
			_, err := f.devices[by].Call(ctx, nip.TaskQueue{Task: task, Edit: e})
			return err
		})
	}
}

// begin admits the task's turn, as its owner does.
func (f *faultPath) begin(id nip.TaskID, prompt string) {
	f.t.Helper()
	f.try("begin "+prompt, func(ctx context.Context) error {
		// Within one try: what was seen of a log may be lost with the power.
		t, err := f.comes(ctx, id, func(t owner.Task) bool { return t.EffectivePrompt() == prompt })
		if err != nil || t.Run != nil {
			return err
		}
		if f.owned == nil {
			if f.owned, err = f.store.Own(ctx, t.ID, time.Minute); err != nil {
				return err
			}
		}
		grant, err := f.store.PutBlob([]byte("a grant of " + prompt))
		if err != nil {
			return err
		}
		_, err = f.store.Append(ctx, t.ID, 1, owner.Event{Admitted: &owner.Admission{
			GrantDigest: grant, Adapter: t.Intent.Configuration.Adapter, Workspace: "/w", Program: "/bin/sh", ProgramDigest: owner.DigestOf(nil),
			Network: json.RawMessage(`"none"`), Prompt: owner.DigestOf([]byte(t.EffectivePrompt())), ReadRevision: t.Revision,
			TraceFile: owner.TraceName(t.Turn()), Owner: sandbox.Identity{PID: os.Getpid(), BootID: "b"}, At: f.clock.now().Unix(),
		}})
		return err
	})
}

// finish ends the turn that runs.
func (f *faultPath) finish(id nip.TaskID, r owner.Result) {
	f.t.Helper()
	now := f.get(id)
	turn, zero := now.Turn(), 0
	if r.Ending == "" {
		r.Ending, r.ExitCode = "exit 0", &zero
	} else if r.Ending == owner.EndingAskedQuestion {
		r.ExitCode = &zero
	}
	r.GroupClear, r.TraceDigest, r.CostStatus = true, owner.DigestOf(nil), "unknown"
	f.try(fmt.Sprintf("finish turn %d", turn), func(ctx context.Context) error {
		t, err := f.store.Get(owner.TaskID(id))
		if err != nil || t.Turn() != turn || t.Run == nil || t.Run.Result != nil {
			return err
		}
		_, err = f.store.Append(ctx, t.ID, 1, owner.Event{Result: &r})
		return err
	})
	f.owned.Release()
	f.owned = nil
}

// pair makes a device and redeems an invitation of the person at the machine.
func (f *faultPath) pair(name string) {
	f.t.Helper()
	code := ""
	f.try("pair "+name, func(ctx context.Context) (err error) {
		if f.devices[name] == nil {
			d, err := client.Init(f.profile(name), f.options())
			if err != nil {
				return err
			}
			f.devices[name] = d
		}
		if code == "" {
			_, c, err := f.parts.core.NewInvitation(ctx, nip.PairingRights(), 30, f.parts.links.Relays()[0].URL)
			if err != nil {
				return err
			}
			code = c
		}
		_, err = f.devices[name].Pair(ctx, code)
		return err
	})
	f.standing[f.devices[name].PubKey()] = true
}

func (f *faultPath) revoke(name string) {
	f.t.Helper()
	key := f.devices[name].PubKey()
	delete(f.standing, key)
	f.try("revoke "+name, func(ctx context.Context) error {
		_, err := f.parts.core.Revoke(ctx, key, false)
		return err
	})
	f.standing[key], f.revoked[name] = false, true
}

func (f *faultPath) entries() []host.EntryView {
	f.t.Helper()
	list, err := operated[entryList](f.parts.core, "journal.list")
	f.must(err)
	return list.Entries
}

// decided waits until no entry of the journal is undecided.
func (f *faultPath) decided() {
	f.t.Helper()
	f.try("every entry to be decided", func(ctx context.Context) error {
		poll := time.NewTicker(2 * time.Millisecond)
		defer poll.Stop()
		for {
			list, err := operated[entryList](f.parts.core, "journal.list")
			if err != nil {
				return err
			}
			if !slices.ContainsFunc(list.Entries, func(e host.EntryView) bool { return e.State != "done" }) {
				return nil
			}
			select {
			case <-poll.C:
			case <-ctx.Done():
				return ctx.Err()
			}
		}
	})
}

// checked is the operator's two checks.
func (f *faultPath) checked() {
	f.t.Helper()
	_, err := operated[struct{}](f.parts.core, "journal.check")
	f.must(err)
	all, err := operated[struct {
		Stores []struct {
			Path, Detail string
			OK           bool
		}
	}](f.parts.core, "check")
	f.must(err)
	for _, s := range all.Stores {
		if !s.OK {
			f.t.Errorf("check: %s: %s", s.Path, s.Detail)
		}
	}
}

// copyTree copies a home that nobody has open.
func copyTree(from, to string) error {
	return filepath.WalkDir(from, func(path string, d os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(from, path)
		if err != nil {
			return err
		}
		switch at := filepath.Join(to, rel); {
		case d.IsDir():
			return os.Mkdir(at, 0o700)
		case d.Type().IsRegular():
			b, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			return os.WriteFile(at, b, 0o600)
		}
		return nil // the operator's socket
	})
}
