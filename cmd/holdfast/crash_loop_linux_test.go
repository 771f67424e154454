package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"holdfast/host"
	"holdfast/host/client"
	"holdfast/nip"
	"holdfast/owner"
)

// TestCrashLoop lets one device command several tasks without pause while the
// host, the owners and the device itself are killed at random moments, then
// holds everything that was said against everything that happened.
//
// HOLDFAST_LONG=1 loops for ten minutes; HOLDFAST_SEED repeats a seed, as far
// as real processes repeat.
func TestCrashLoop(t *testing.T) {
	if os.Getenv("HOLDFAST_LONG") == "" {
		t.Parallel()
		crashLoop(t, 18)
		return
	}
	for began := time.Now(); time.Since(began) < 10*time.Minute && !t.Failed(); {
		t.Run("long", func(t *testing.T) { crashLoop(t, 30) })
	}
}

func crashLoop(t *testing.T, kills int) {
	seed := rand.Uint64()
	if s, err := strconv.ParseUint(os.Getenv("HOLDFAST_SEED"), 10, 64); err == nil {
		seed = s
	}
	t.Logf("HOLDFAST_SEED=%d", seed)
	dice := rand.New(rand.NewPCG(seed, 1))
	r := newCrashRig(t)
	w := &crashStream{crashRig: r, dice: rand.New(rand.NewPCG(seed, 2)), commands: map[nip.CommandID]*crashMinted{}}
	for range 3 {
		w.create()
	}
	ctx, stop := context.WithCancel(r.ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		w.run(ctx)
	}()
	// A fatal ends this goroutine: the stream must be over before the rig is.
	t.Cleanup(func() { stop(); <-done })
	owners := 0
	for range kills {
		crashPause(ctx, time.Duration(60+dice.IntN(1200))*time.Millisecond)
		if dice.IntN(3) == 0 {
			owners += r.killOwners(dice)
		}
		select {
		case <-r.host.ended:
			t.Errorf("a host left by itself: %s", r.host.errors.String())
		default:
		}
		r.host.kill()
		r.launch()
	}
	stop()
	<-done
	r.host.kill()
	r.start()
	w.settle()
	t.Logf("%d kills of the host, %d of owners, %d commands and %d creates minted, %d deaths of the device",
		kills, owners, len(w.commands), len(w.creates), w.deaths)
	w.verify()
}

func crashPause(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

// killOwners kills the owner, or the first process of the sandbox, of one turn
// that runs.
func (r *crashRig) killOwners(dice *rand.Rand) int {
	s, err := owner.Open(r.home, owner.Options{})
	r.must(err)
	defer s.Close()
	ids, err := s.List()
	r.must(err)
	dice.Shuffle(len(ids), func(i, j int) { ids[i], ids[j] = ids[j], ids[i] })
	for _, id := range ids {
		t, err := s.Get(id)
		r.must(err)
		if t.Run == nil || t.Run.Result != nil {
			continue
		}
		victim := t.Run.Admission.Owner
		if t.Run.Process != nil && dice.IntN(4) == 0 {
			victim = *t.Run.Process
		}
		if r.signal(victim, syscall.SIGKILL) {
			return 1
		}
	}
	return 0
}

// crashMinted is one command that the device gave, and what it was told of it.
type crashMinted struct {
	command nip.Command
	asked   bool   // a signed answer was seen here
	told    string // then: "" for taken, else the code
	lost    bool   // its process died before anybody saw whether it was kept
}

// crashStream is the device's side. One goroutine at a time owns it.
type crashStream struct {
	*crashRig
	dice     *rand.Rand
	commands map[nip.CommandID]*crashMinted
	order    []nip.CommandID // as they were given
	creates  []string        // prompts, each unique
	known    []nip.TaskID    // tasks that the device knows of
	serial   int
	deaths   int
}

// words are unique, so that notes.txt says which command ran.
func (w *crashStream) words(kind string) string {
	w.serial++
	return strings.TrimSpace(fmt.Sprintf("%s m%d.", kind, w.serial))
}

func (w *crashStream) run(ctx context.Context) {
	for ctx.Err() == nil {
		if w.dice.IntN(12) == 0 {
			w.deaths++
			w.reopen()
		}
		switch n := w.dice.IntN(20); {
		case n == 0:
			w.spawned(ctx)
		case n < 4:
			w.resend(ctx)
		case n < 6:
			w.edit(ctx)
		case n == 6 && len(w.creates) < 5:
			w.create()
		default:
			w.command(ctx)
		}
		crashPause(ctx, time.Duration(w.dice.IntN(120))*time.Millisecond)
	}
}

// patience is how long the device waits for a host that may be dead; now and
// then it is killed after a moment instead.
func (w *crashStream) patience(ctx context.Context) (context.Context, context.CancelFunc) {
	d := 800 * time.Millisecond
	if w.dice.IntN(6) == 0 {
		d = time.Duration(1+w.dice.IntN(150)) * time.Millisecond
	}
	return context.WithTimeout(ctx, d)
}

func (w *crashStream) create() {
	prompt := w.words("")
	w.creates = append(w.creates, prompt)
	ctx, cancel := w.patience(w.ctx)
	defer cancel()
	id, err := w.dev.Create(ctx, nip.TaskCreate{Title: "title " + prompt, Prompt: prompt, Workspace: tourLabel})
	if id == "" || err != nil && !errors.Is(err, client.ErrNoAnswer) {
		w.t.Errorf("create %q: %v", prompt, err)
	}
	w.known = append(w.known, id)
}

// mint draws a command for a task.
func (w *crashStream) mint() nip.Command {
	c := nip.Command{ID: nip.CommandID(testID(w.t)), Task: w.known[w.dice.IntN(len(w.known))], IssuedAt: time.Now().Unix()}
	if s, ok, err := w.dev.Known(c.Task); err == nil && ok {
		c.BasedOn = s.Sequence
	}
	kind := []string{"", "", "wait 1", "wait 2", "wait 3", "ask"}[w.dice.IntN(6)]
	switch n := w.dice.IntN(20); {
	case n < 8:
		c.Action, c.Text = nip.Queue, w.words(kind)
	case n < 12:
		c.Action, c.Text = nip.Send, w.words(kind)
	case n < 15:
		c.Action, c.Text, c.Emulate = nip.Steer, w.words(kind), true
	case n < 17:
		c.Action, c.Text = nip.Answer, w.words("")
	default:
		c.Action, c.Text = nip.Interrupt, w.words("stop")
	}
	return c
}

func (w *crashStream) command(ctx context.Context) {
	ctx, cancel := w.patience(ctx)
	defer cancel()
	if w.dev.Refresh(ctx) != nil {
		w.reopen() // and gives its command in view of what it knew before
	}
	c := w.mint()
	m := &crashMinted{command: c}
	w.commands[c.ID], w.order = m, append(w.order, c.ID)
	w.ask(ctx, m)
}

// ask gives a command, for the first time or again, and keeps a signed answer.
func (w *crashStream) ask(ctx context.Context, m *crashMinted) {
	_, _, err := w.dev.Command(ctx, m.command)
	var refused *client.Refused
	if err != nil && !errors.As(err, &refused) {
		w.reopen() // it waits in the outbox; a new process does not wait for the old one's next dial
		return
	}
	w.hear(m, codeOf(err))
}

// hear holds an answer against the earlier ones. A command that was taken may
// be refused later, when its turn comes; a refusal is final.
func (w *crashStream) hear(m *crashMinted, told string) {
	if m.asked && m.told != "" && told != m.told {
		w.t.Errorf("%s %q: first refused as %s, then %q", m.command.Action, m.command.Text, m.told, told)
	}
	m.asked, m.told = true, told
}

// resend is the outbox's own way, or a person's who says the same again.
func (w *crashStream) resend(ctx context.Context) {
	ctx, cancel := w.patience(ctx)
	defer cancel()
	if len(w.order) > 0 && w.dice.IntN(2) == 0 {
		w.ask(ctx, w.commands[w.order[w.dice.IntN(len(w.order))]])
		return
	}
	if w.dev.Resend(ctx) != nil {
		w.reopen()
	}
}

// edit changes or removes a held message under the lease.
func (w *crashStream) edit(ctx context.Context) {
	ctx, cancel := w.patience(ctx)
	defer cancel()
	task := w.known[w.dice.IntN(len(w.known))]
	call := func(e nip.QueueEdit) (nip.QueueState, bool) {
		out, err := w.dev.Call(ctx, nip.TaskQueue{Task: task, Edit: e})
		q, ok := out.(nip.QueueState)
		return q, err == nil && ok
	}
	q, ok := call(nip.QueueEdit{Action: "lease"})
	if ok && len(q.Items) > 0 {
		c := q.Items[w.dice.IntN(len(q.Items))].Command
		if w.dice.IntN(2) == 0 {
			call(nip.QueueEdit{Action: "remove", Command: c})
		} else {
			call(nip.QueueEdit{Action: "edit", Command: c, Text: w.words("edited")})
		}
	}
	call(nip.QueueEdit{Action: "release"})
}

// spawned gives a command by a device process that is killed on the way.
func (w *crashStream) spawned(ctx context.Context) {
	c := w.mint()
	c.Action, c.Text, c.Emulate, c.IssuedAt = nip.Queue, w.words(""), false, 0 // the process dates it
	p, err := w.spawn("device", "queue", string(c.Task), c.Text, "--command", string(c.ID), "--based-on", strconv.FormatInt(c.BasedOn, 10), "--profile", w.profile("phone"))
	if err != nil {
		w.t.Error(err)
		return
	}
	crashPause(ctx, time.Duration(40+w.dice.IntN(300))*time.Millisecond)
	p.kill()
	w.deaths++
	rows, err := w.dev.Outbox()
	if err != nil {
		w.t.Error(err)
	}
	m := &crashMinted{command: c, lost: true}
	for _, row := range rows {
		m.lost = m.lost && row.ID != string(c.ID)
	}
	w.commands[c.ID] = m // its place among the others is not known here
}

// settle lets everything come to rest with a host that stays.
func (w *crashStream) settle() {
	w.reopen()
	w.eventually("the outbox to empty", func() bool {
		ctx, cancel := w.within(30 * time.Second)
		defer cancel()
		err := w.dev.Resend(ctx)
		rows, oerr := w.dev.Outbox()
		w.must(oerr)
		return err == nil && len(rows) == 0
	})
	for _, t := range w.tasks() {
		_, err := w.dev.Call(w.ctx, nip.TaskQueue{Task: nip.TaskID(t.ID), Edit: nip.QueueEdit{Action: "release"}})
		if code := codeOf(err); strings.HasPrefix(code, "error") {
			w.t.Errorf("release: %s", code)
		}
	}
	until := time.Now().Add(4 * time.Minute)
	poll := time.NewTicker(50 * time.Millisecond)
	defer poll.Stop()
	for !w.atRest() {
		if <-poll.C; time.Now().After(until) {
			w.t.Fatalf("nothing comes to rest:\n%s", w.tasksText())
		}
	}
	w.nothingLeft()
}

// atRest reports whether no turn runs or waits and no command is undecided.
func (w *crashStream) atRest() bool {
	for _, t := range w.tasks() {
		if t.Status != owner.Finished && t.Status != owner.Cancelled {
			return false
		}
	}
	var st host.Status
	w.must(w.operator(w.ctx, &st, "status"))
	return st.Journal.Undecided == 0
}

// verify holds what was said against what happened.
func (w *crashStream) verify() {
	entries := map[string]host.EntryView{}
	lines := map[nip.TaskID][]host.EntryView{} // by task, in arrival order
	for _, e := range w.entries() {
		if e.Device == w.self {
			entries[e.Command] = e
			lines[e.Task] = append(lines[e.Task], e)
		}
	}
	w.everyCommand(entries)
	prompts := map[string]int{}
	for _, t := range w.tasks() {
		prompts[t.Intent.Prompt]++
		w.everyTurn(t, lines[nip.TaskID(t.ID)])
		if e := entries[string(t.ID)]; e.Kind != "task.create" || e.Outcome != "applied" {
			w.t.Errorf("task %s has no applied create: %+v", t.ID, e)
		}
		w.shows(nip.TaskID(t.ID))
	}
	for _, p := range w.creates {
		if prompts[p] != 1 {
			w.t.Errorf("create %q made %d tasks", p, prompts[p])
		}
	}
	// The same journal again, by a host that starts once more: a replay of
	// every command changes nothing and is answered as it was decided.
	w.restart()
	for id, m := range w.commands {
		if e, ok := entries[string(id)]; ok {
			c := m.command
			c.IssuedAt = e.IssuedAt
			_, err := w.dev.Call(w.ctx, nip.TaskCommand{Command: c})
			if got, want := codeOf(err), wireCode(e); got != want {
				w.t.Errorf("%s %q: replayed %q, the journal says %q", e.Action, e.Text, got, want)
			}
		}
	}
	for _, e := range w.entries() {
		if was, ok := entries[e.Command]; e.Device == w.self && (!ok || fmt.Sprint(was) != fmt.Sprint(e)) {
			w.t.Errorf("replays changed the journal: %+v, then %+v", was, e)
		}
	}
	w.host.end()
	w.checked()
}

// wireCode is what a decided entry answers.
func wireCode(e host.EntryView) string {
	switch e.Outcome {
	case "applied", "removed":
		return ""
	case "expired":
		return string(nip.Expired)
	case "superseded":
		return string(nip.Stale)
	}
	return string(e.Reason)
}

func (w *crashStream) everyCommand(entries map[string]host.EntryView) {
	tally := map[string]int{}
	for id, m := range w.commands {
		e, ok := entries[string(id)]
		switch {
		case !ok && m.lost:
			continue
		case !ok:
			w.t.Errorf("%s %q is in no journal", m.command.Action, m.command.Text)
			continue
		case e.State != "done":
			w.t.Errorf("%s %q is still %s", e.Action, e.Text, e.State)
		case m.asked && m.told != "" && m.told != wireCode(e):
			w.t.Errorf("%s %q: the device was told %s, the journal says %s %s", e.Action, e.Text, m.told, e.Outcome, e.Reason)
		}
		if m.command.IssuedAt != 0 && e.IssuedAt != m.command.IssuedAt || e.BasedOn != m.command.BasedOn || e.Task != m.command.Task || e.Action != m.command.Action || !e.Edited && e.Text != m.command.Text {
			w.t.Errorf("the journal has %+v for %+v", e, m.command)
		}
		tally[string(e.Action)+" "+e.Outcome]++
	}
	raw, _ := json.Marshal(tally)
	w.t.Logf("%s", raw)
	for id, e := range entries {
		if e.Kind == "command" && w.commands[nip.CommandID(id)] == nil {
			w.t.Errorf("nobody gave command %s", id)
		}
	}
	// The host takes a task's commands in the order in which they were given,
	// but for interrupts, which overtake.
	last := map[nip.TaskID]uint64{}
	for _, id := range w.order {
		if e := entries[string(id)]; e.Action != nip.Interrupt && e.Seq != 0 {
			if e.Seq < last[e.Task] {
				w.t.Errorf("%s %q overtook an earlier command", e.Action, e.Text)
			}
			last[e.Task] = e.Seq
		}
	}
}

// everyTurn: each applied message is one turn, or the instructions of one;
// each turn was asked for once; what ran to its end wrote its prompt once, and
// nothing was written twice or out of order.
func (w *crashStream) everyTurn(t owner.Task, line []host.EntryView) {
	asked := map[int64]string{} // revision -> words
	var queued int64
	for _, e := range line {
		if e.Kind != "command" || e.Outcome != "applied" || e.Action == nip.Interrupt {
			continue
		}
		if _, twice := asked[e.Revision]; twice {
			w.t.Errorf("two commands claim revision %d", e.Revision)
		}
		asked[e.Revision] = e.Text
		if e.Action == nip.Queue {
			if e.Revision < queued {
				w.t.Errorf("queued %q ran before one that arrived earlier", e.Text)
			}
			queued = e.Revision
		}
	}
	got := map[int64]string{}
	for _, f := range t.FollowUps {
		got[f.Revision] = f.Prompt
	}
	for _, c := range t.Corrections {
		got[c.Revision] = c.Prompt
	}
	for rev, text := range asked {
		if got[rev] != text {
			w.t.Errorf("applied %q at revision %d, and the task has %q there", text, rev, got[rev])
		}
	}
	if len(got) != len(asked) {
		w.t.Errorf("task %s has %d further instructions for %d applied messages", short(string(t.ID)), len(got), len(asked))
	}
	w.everyNote(t)
}

func (w *crashStream) everyNote(t owner.Task) {
	notes := w.notesOf(nip.TaskID(t.ID))
	at := 0
	for _, u := range runsOf(t) {
		if u.Result == nil || !u.Result.GroupClear {
			w.t.Errorf("turn %d ended without proof: %+v", u.Turn, u.Result)
			continue
		}
		prompt := w.promptOf(t, u)
		i := slices.Index(notes[min(at, len(notes)):], prompt)
		if i < 0 && (strings.HasPrefix(u.Result.Ending, "exit") || u.Result.Ending == owner.EndingAskedQuestion) {
			w.t.Errorf("turn %d ended with %s and did not write %q in its place: %q", u.Turn, u.Result.Ending, prompt, notes)
		}
		if i >= 0 {
			at += i + 1
		}
	}
	seen := map[string]bool{}
	for _, n := range notes {
		if seen[n] {
			w.t.Errorf("%q ran twice", n)
		}
		seen[n] = true
	}
}

// promptOf is what the turn was started with: the newest instruction at the
// revision that its context read.
func (w *crashStream) promptOf(t owner.Task, u owner.Run) string {
	prompt, at := t.Intent.Prompt, int64(0)
	take := func(rev int64, p string) {
		if rev <= u.Admission.ReadRevision && rev > at {
			prompt, at = p, rev
		}
	}
	for _, f := range t.FollowUps {
		take(f.Revision, f.Prompt)
	}
	for _, c := range t.Corrections {
		take(c.Revision, c.Prompt)
	}
	if owner.DigestOf([]byte(prompt)) != u.Admission.Prompt {
		w.t.Errorf("turn %d was not admitted with %q", u.Turn, prompt)
	}
	return prompt
}
