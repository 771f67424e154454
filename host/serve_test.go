package host

import (
	"fmt"
	"os"
	"slices"
	"testing"

	"golang.org/x/sync/errgroup"

	"holdfast/nip"
	"holdfast/owner"
)

// One signer's requests are answered in their order and in bounded number; a
// flood of one device or of strangers delays nobody else.
func TestLanes(t *testing.T) {
	r := newRig(t)
	noisy, quiet := r.pair(nip.PairingRights()), r.pair(nip.PairingRights())
	var g errgroup.Group
	l := newLanes(r.h, &g)
	for range workers { // no worker is free yet
		l.members <- struct{}{}
	}
	for range strangerWorkers {
		l.others <- struct{}{}
	}
	var order []string
	taken := 0
	for range signerBacklog + 30 {
		in := r.sealed(noisy, r.req(noisy, nip.WorkspaceList{}))
		if l.put(t.Context(), in) {
			taken++
			order = append(order, in.Event.Event().ID)
		}
	}
	if taken != signerBacklog {
		t.Fatalf("%d of one signer taken", taken)
	}
	strangers := 0
	for range strangerBacklog + 30 {
		d := device{key: newKey(t)}
		if l.put(t.Context(), r.sealed(d, r.req(d, nip.WorkspaceList{}))) {
			strangers++
		}
	}
	if strangers != strangerBacklog {
		t.Fatalf("%d strangers taken", strangers)
	}
	if !l.put(t.Context(), r.sealed(quiet, r.req(quiet, nip.WorkspaceList{}))) {
		t.Fatal("no room for a member that sent nothing yet")
	}
	for range workers {
		<-l.members
	}
	for range strangerWorkers {
		<-l.others
	}
	if err := g.Wait(); err != nil {
		t.Fatal(err)
	}
	var answered []string
	heard := false
	for _, ev := range r.queued() {
		switch ev.Tags.Find("p")[1] {
		case string(noisy.pub()):
			answered = append(answered, string(r.read(noisy, ev).RequestEvent))
		case string(quiet.pub()):
			heard = true
		}
	}
	if !heard || !slices.Equal(answered, order) {
		t.Fatalf("quiet heard: %v; %d of %d answered in order", heard, len(answered), len(order))
	}
	if len(l.queues) != 0 || l.waiting != 0 {
		t.Fatalf("%d queues, %d waiting are left", len(l.queues), l.waiting)
	}
}

// A bug that an event reaches costs that event, not the host.
func TestPanicIsContained(t *testing.T) {
	r := newRig(t)
	d := r.pair(nip.PairingRights())
	in := r.sealed(d, r.req(d, nip.WorkspaceList{}))
	book := r.h.answers
	r.h.answers = nil
	if err := r.h.receiveSafely(t.Context(), in); err != nil {
		t.Fatal(err)
	}
	r.h.answers = book
	r.wantCode(r.one(d, in), "") // its claim on the request was given up
}

// A full memory of answers forgets the oldest first, and strangers' only for
// strangers.
func TestAnswerMemory(t *testing.T) {
	b := newAnswerBook()
	id := func(i int) nip.EventID { return nip.EventID(fmt.Sprint(i)) }
	for i := range answerMemory + 1 {
		b.note(id(i), answer{at: int64(100 + i), until: 1 << 40}, true)
	}
	for i := range 3 * answerMemory {
		b.note(id(-1-i), answer{at: 5000, until: 1 << 40}, false)
	}
	if _, ok := b.get(id(0)); ok {
		t.Error("the oldest stayed")
	}
	if _, ok := b.get(id(1)); !ok {
		t.Error("a newer one left")
	}
	if len(b.members) != answerMemory || len(b.strangers) != answerMemory {
		t.Errorf("%d and %d remembered", len(b.members), len(b.strangers))
	}
	b.note(id(9999), answer{at: 1 << 41, until: 1 << 42}, true) // all others have run out
	if len(b.members) != 1 {
		t.Errorf("%d remembered", len(b.members))
	}
}

// An evaluation that fails is tried again after a pause, not at once and not
// never.
func TestEvaluationPauses(t *testing.T) {
	r := newRig(t)
	d := r.pair(nip.PairingRights())
	task := r.create(d, "p")
	r.wantCode(r.ask(d, nip.TaskCommand{Command: r.command(task, nip.Queue, "later")}), "")
	log := r.c.store.TaskDir(owner.TaskID(task)) + "/log"
	raw, err := os.ReadFile(log)
	if err != nil {
		t.Fatal(err)
	}
	bad := slices.Clone(raw)
	bad[len(bad)/2] ^= 0xff
	if err := os.WriteFile(log, bad, 0o600); err != nil {
		t.Fatal(err)
	}
	r.restart()
	dl := r.h.deadlines
	if err := dl.evaluate(t.Context(), nip.TaskID(task)); err != nil {
		t.Fatal(err)
	}
	if err := dl.refresh(); err != nil {
		t.Fatal(err)
	}
	if got := dl.ripe(r.clock.now() + evaluateAgain - 1); len(got) != 0 {
		t.Fatal("at once")
	}
	if got := dl.ripe(r.clock.now() + evaluateAgain); len(got) != 1 {
		t.Fatal("never")
	}
	if err := os.WriteFile(log, raw, 0o600); err != nil {
		t.Fatal(err)
	}
	r.restart()
	if err := r.h.deadlines.evaluate(t.Context(), nip.TaskID(task)); err != nil || len(r.h.deadlines.retry) != 0 {
		t.Fatal(err)
	}
}
