package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"holdfast/host"
	"holdfast/host/client"
	"holdfast/internal/atomicfile"
	"holdfast/nip"
	"holdfast/owner"
	"holdfast/sandbox"
)

// crashRig is the product as processes of the test binary, one device on top
// of package client, and what a test may look at beside them: the task store
// and /proc. One goroutine uses it.
type crashRig struct {
	*tour
	t      *testing.T
	ctx    context.Context
	store  *owner.Store
	dev    *client.Device
	self   nip.PubKey // the device
	relay  string     // of a relay elsewhere; "" is the host's own
	marker string     // an argument of every turn's shell, so that /proc shows whose it is
}

// newCrashRig makes a home whose policy runs the demonstration script, serves
// it, and pairs a device. At the end nothing of it may be alive.
func newCrashRig(t *testing.T) *crashRig {
	t.Helper()
	s, ctx := stage(t)
	r := &crashRig{tour: s, t: t, ctx: ctx}
	r.build()
	return r
}

// build makes what newCrashRig promises, in the home that is set.
func (r *crashRig) build() {
	r.t.Helper()
	t, s, ctx := r.t, r.tour, r.ctx
	r.marker = "marker-" + testID(t)[:16]
	r.listen = freePort(t)
	r.must(makeDemoRepository(ctx, s.repo))
	r.must(host.Init(s.home, "", s.g.coreOptions()))
	_, err := host.AddWorkspace(s.home, tourLabel, s.repo)
	r.must(err)
	r.policy(true)
	r.store, err = owner.Open(s.home, owner.Options{})
	r.must(err)
	t.Cleanup(r.tearDown)
	r.start()
	r.dev, err = client.Init(s.profile("phone"), client.Options{Loopback: true})
	r.must(err)
	grant, err := r.dev.Pair(ctx, r.code)
	r.must(err)
	r.self = grant.Device
}

func (r *crashRig) must(err error) {
	r.t.Helper()
	if err != nil {
		r.t.Fatal(err)
	}
}

// policy writes the policy file as the operator's verb does with no host
// running; a host reads it at each sweep.
func (r *crashRig) policy(on bool) {
	r.t.Helper()
	raw, err := demoPolicy(tourLabel)
	r.must(err)
	var p host.Policy
	r.must(json.Unmarshal(raw, &p))
	p.Enabled, p.MaxRunning = on, 3
	p.Rules[0].Arguments = append(p.Rules[0].Arguments, r.marker)
	script := &p.Rules[0].Arguments[1]
	*script = strings.Replace(*script, "case \"$prompt\" in\n", "case \"$prompt\" in\n"+heldScript, 1)
	raw, err = host.EncodePolicy(p)
	r.must(err)
	r.must(atomicfile.Write(filepath.Join(r.home, "policy.json"), append(raw, '\n')))
}

// heldPrompt keeps its turn running until release says otherwise.
const (
	heldPrompt = "held until told"
	heldScript = `"` + heldPrompt + `") until [ -e released ]; do sleep 0.1; done; reply='released' ask=null ;;` + "\n"
)

// release lets a turn with heldPrompt end by itself.
func (r *crashRig) release(t owner.Task) {
	r.t.Helper()
	r.must(os.WriteFile(filepath.Join(t.Worktree.Path, "released"), nil, 0o600))
}

// launch starts a host and does not wait for it.
func (r *crashRig) launch() {
	r.t.Helper()
	args := []string{"up", "--json", "--home", r.home, "--listen", r.listen}
	if r.relay != "" {
		args = []string{"serve", "--json", "--home", r.home, "--no-relay", "--relay", r.relay}
	}
	p, err := r.spawn(args...)
	r.must(err)
	r.host = p
}

// start starts a host and waits until it serves.
func (r *crashRig) start() {
	r.t.Helper()
	r.launch()
	_, _, err := r.host.await(r.ctx, 0, "the host to serve", isEvent("ready"))
	r.must(err)
	if r.relay != "" {
		var inv host.Invited
		r.must(r.operator(r.ctx, &inv, "invite"))
		r.code = inv.Code
		return
	}
	code, _, err := r.host.await(r.ctx, 0, "a pairing code", isEvent("invitation"))
	r.must(err)
	r.code, _ = code["code"].(string)
}

// restart is kill -9 of the host and a new one.
func (r *crashRig) restart() { r.t.Helper(); r.host.kill(); r.start() }

// reopen is a device process that dies and starts again: nothing is flushed,
// what it knows afterwards is what its files say.
func (r *crashRig) reopen() {
	r.t.Helper()
	r.dev.Close()
	var err error
	r.dev, err = client.Open(r.profile("phone"), client.Options{Loopback: true})
	r.must(err)
}

// resend sends the device's outbox until the host has answered all of it: one
// try waits 12 s for an answer, and a busy machine may take longer.
func (r *crashRig) resend(d *client.Device) {
	r.t.Helper()
	r.eventually("the outbox to be answered", func() bool {
		err := d.Resend(r.ctx)
		if err != nil && !errors.Is(err, client.ErrNoAnswer) {
			r.t.Fatal(err)
		}
		return err == nil
	})
}

// within bounds one wait.
func (r *crashRig) within(d time.Duration) (context.Context, context.CancelFunc) {
	return context.WithTimeout(r.ctx, d)
}

// eventually waits for a condition of the store or the device.
func (r *crashRig) eventually(what string, done func() bool) {
	r.t.Helper()
	ctx, cancel := r.within(2 * time.Minute)
	defer cancel()
	poll := time.NewTicker(10 * time.Millisecond)
	defer poll.Stop()
	for !done() {
		select {
		case <-poll.C:
		case <-ctx.Done():
			r.t.Fatalf("waited for %s\n%s", what, r.tasksText())
		}
	}
}

func (r *crashRig) tasksText() string {
	var b strings.Builder
	for _, t := range r.tasks() {
		fmt.Fprintf(&b, "task %s revision %d %s/%s turn %d", short(string(t.ID)), t.Revision, t.Status, t.Execution, t.Turn())
		if t.Run != nil && t.Run.Result != nil {
			fmt.Fprintf(&b, " %s", t.Run.Result.Ending)
		}
		if t.NotStarted != "" {
			fmt.Fprintf(&b, ": %s", t.NotStarted)
		}
		b.WriteByte('\n')
	}
	return b.String()
}

func (r *crashRig) get(id nip.TaskID) owner.Task {
	r.t.Helper()
	t, err := r.store.Get(owner.TaskID(id))
	r.must(err)
	return t
}

func (r *crashRig) tasks() []owner.Task {
	r.t.Helper()
	ids, err := r.store.List()
	r.must(err)
	list := make([]owner.Task, 0, len(ids))
	for _, id := range ids {
		list = append(list, r.get(nip.TaskID(id)))
	}
	return list
}

// make creates a task on the device and waits for the signed answer.
func (r *crashRig) make(prompt string) nip.TaskID {
	r.t.Helper()
	id, err := r.dev.Create(r.ctx, nip.TaskCreate{Title: "of " + prompt, Prompt: prompt, Workspace: tourLabel})
	r.must(err)
	return id
}

// give sends one command and returns it as it was minted.
func (r *crashRig) give(task nip.TaskID, action nip.Action, text string) (nip.Command, error) {
	r.t.Helper()
	c, _, err := r.dev.Command(r.ctx, nip.Command{Task: task, Action: action, BasedOn: r.get(task).Revision, Text: text})
	return c, err
}

func (r *crashRig) mustGive(task nip.TaskID, action nip.Action, text string) nip.Command {
	r.t.Helper()
	c, err := r.give(task, action, text)
	r.must(err)
	return c
}

// runs waits until the turn's program has written its prompt down, and returns
// the task.
func (r *crashRig) runs(id nip.TaskID, turn int) owner.Task {
	r.t.Helper()
	r.eventually(fmt.Sprintf("turn %d to run", turn), func() bool {
		t := r.get(id)
		if t.Turn() != turn || t.Run == nil || t.Run.Process == nil {
			return false
		}
		notes := r.notesOf(id)
		return len(notes) > 0 && notes[len(notes)-1] == t.EffectivePrompt()
	})
	return r.get(id)
}

// ends waits until that turn is over and returns the run.
func (r *crashRig) ends(id nip.TaskID, turn int) owner.Run {
	r.t.Helper()
	var run owner.Run
	r.eventually(fmt.Sprintf("turn %d to end", turn), func() bool {
		for _, u := range runsOf(r.get(id)) {
			if u.Turn == turn && u.Result != nil {
				run = u
				return true
			}
		}
		return false
	})
	return run
}

// runsOf are all turns that were admitted.
func runsOf(t owner.Task) []owner.Run {
	all := append([]owner.Run(nil), t.Earlier...)
	if t.Run != nil {
		all = append(all, *t.Run)
	}
	return all
}

// notesOf are the prompts that the task's turns wrote into the worktree.
func (r *crashRig) notesOf(id nip.TaskID) []string {
	r.t.Helper()
	t := r.get(id)
	if t.Worktree == nil {
		return nil
	}
	raw, err := os.ReadFile(filepath.Join(t.Worktree.Path, "notes.txt"))
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	r.must(err)
	return strings.Split(strings.TrimSuffix(string(raw), "\n"), "\n")
}

func (r *crashRig) wantNotes(id nip.TaskID, want ...string) {
	r.t.Helper()
	if got := r.notesOf(id); strings.Join(got, "|") != strings.Join(want, "|") {
		r.t.Errorf("the turns wrote %q, not %q\n%s", got, want, r.tasksText())
		for _, u := range runsOf(r.get(id)) {
			r.t.Logf("turn %d: %+v\n%s", u.Turn, u.Result, r.traceOf(id, u.Turn))
		}
	}
}

// traceOf is the end of a turn's transcript as it lies on the disk.
func (r *crashRig) traceOf(id nip.TaskID, turn int) string {
	names, _ := filepath.Glob(filepath.Join(r.home, "tasks", "*", owner.TraceName(turn)))
	for _, name := range names {
		if b, err := os.ReadFile(name); err == nil && strings.Contains(string(b), string(id)) {
			return lastLines(string(b), 4)
		}
	}
	return "no transcript"
}

// entries is the journal as the operator's verb prints it, in arrival order.
func (r *crashRig) entries() []host.EntryView {
	r.t.Helper()
	var out struct{ Entries []host.EntryView }
	r.must(r.operator(r.ctx, &out, "journal", "list"))
	return out.Entries
}

// entryOf is the device's entry with this command or request ID.
func (r *crashRig) entryOf(id string) host.EntryView {
	r.t.Helper()
	var e host.EntryView
	r.must(r.operator(r.ctx, &e, "journal", "show", string(r.self), id))
	return e
}

func (r *crashRig) wantEntry(c nip.Command, outcome string, reason nip.Code) {
	r.t.Helper()
	if e := r.entryOf(string(c.ID)); e.State != "done" || e.Outcome != outcome || e.Reason != reason {
		r.t.Errorf("%s %q: journal says %s %s %s, not %s %s", c.Action, c.Text, e.State, e.Outcome, e.Reason, outcome, reason)
	}
}

// signal sends sig to a process that the task's log names, if it is still the
// one that the log means.
func (r *crashRig) signal(id sandbox.Identity, sig syscall.Signal) bool {
	r.t.Helper()
	if startTime(id.PID) != id.StartTime {
		return false
	}
	return syscall.Kill(id.PID, sig) == nil
}

// startTime is field 22 of a process's stat; 0 when it is gone.
func startTime(pid int) uint64 {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0
	}
	f := strings.Fields(string(b[strings.LastIndexByte(string(b), ')')+1:]))
	if len(f) < 20 || f[0] == "Z" {
		return 0
	}
	n, _ := strconv.ParseUint(f[19], 10, 64)
	return n
}

// survivors are the processes of any turn: a shell with the marker, a member
// of a recorded PID namespace, or an owner process of this home.
func (r *crashRig) survivors() []string {
	spaces := map[string]bool{}
	for _, t := range r.tasks() {
		for _, u := range runsOf(t) {
			if u.Process != nil && u.Process.PIDNS != 0 {
				spaces[fmt.Sprintf("pid:[%d]", u.Process.PIDNS)] = true
			}
		}
	}
	dirs, err := filepath.Glob("/proc/[0-9]*")
	r.must(err)
	var left []string
	for _, dir := range dirs {
		raw, err := os.ReadFile(dir + "/cmdline")
		if err != nil || len(raw) == 0 {
			continue // gone, or a zombie that somebody will reap
		}
		ns, _ := os.Readlink(dir + "/ns/pid")
		words := strings.Split(strings.TrimSuffix(string(raw), "\x00"), "\x00")
		mine := spaces[ns]
		for i, w := range words {
			mine = mine || w == r.marker || w == owner.OwnerArg && i == 1 && strings.Contains(string(raw), r.home)
		}
		if mine {
			left = append(left, fmt.Sprintf("%s %.80q", dir, words))
		}
	}
	return left
}

// nothingLeft waits until no process of any turn is alive.
func (r *crashRig) nothingLeft() {
	r.t.Helper()
	r.eventually("every process of a turn to be gone", func() bool { return len(r.survivors()) == 0 })
}

// shows waits until the device has the host's signed summary of the task as it
// stands, and returns its phase.
func (r *crashRig) shows(id nip.TaskID) nip.Phase {
	r.t.Helper()
	var phase nip.Phase
	r.eventually("the device to see the task as it stands", func() bool {
		ctx, cancel := r.within(30 * time.Second)
		defer cancel()
		if r.dev.Refresh(ctx) != nil {
			return false
		}
		s, ok, err := r.dev.Known(id)
		r.must(err)
		phase = s.Phase
		return ok && s.Sequence == r.get(id).Revision
	})
	return phase
}

// checked runs the operator's two checks.
func (r *crashRig) checked() {
	r.t.Helper()
	r.must(r.operator(r.ctx, nil, "journal", "check"))
	var all struct {
		Stores []struct {
			Path, Detail string
			OK           bool
		}
	}
	r.must(r.operator(r.ctx, &all, "check"))
	for _, s := range all.Stores {
		if !s.OK {
			r.t.Errorf("check: %s: %s", s.Path, s.Detail)
		}
	}
}

// tearDown ends what a failed test left running.
func (r *crashRig) tearDown() {
	r.ctx = context.Background()
	if r.dev != nil {
		r.dev.Close()
	}
	if r.host != nil {
		r.host.kill()
	}
	ctx, cancel := r.within(30 * time.Second)
	defer cancel()
	if err := owner.StopOwners(ctx, r.store, "the test ended"); err != nil {
		r.t.Error(err)
	}
	r.store.Close()
	if r.t.Failed() && r.host != nil {
		r.t.Logf("the last host said:\n%s", lastLines(r.host.errors.String(), 40))
	}
}

func lastLines(s string, n int) string {
	lines := strings.Split(strings.TrimSpace(s), "\n")
	return strings.Join(lines[max(0, len(lines)-n):], "\n")
}
