package commands

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"go.etcd.io/bbolt"
	"go.uber.org/goleak"

	"holdfast/internal/diskfault/faulttest"
	"holdfast/internal/leaks"
	"holdfast/nip"
)

func TestMain(m *testing.M) {
	leaks.Main(m, goleak.IgnoreAnyFunction(faulttest.IgnoreLeak))
}

// start is the time at which every test begins.
const start = int64(1_790_000_000)

func device(i int) nip.PubKey {
	return nip.PubKey(strings.Repeat(fmt.Sprintf("%02x", i+1), 32))
}

func sender(i int) Sender {
	return Sender{Device: device(i), Grant: nip.GrantID(fmt.Sprintf("grant-%d", i)), Epoch: 1}
}

func task(i int) nip.TaskID { return nip.TaskID(strings.Repeat(fmt.Sprintf("%02x", 0xa0+i), 32)) }

func id(i int) nip.CommandID {
	sum := sha256.Sum256(fmt.Appendf(nil, "command %d", i))
	return nip.CommandID(hex.EncodeToString(sum[:]))
}

func command(i int, action nip.Action, based int64) nip.Command {
	return nip.Command{ID: id(i), Task: task(0), Action: action, BasedOn: based, Text: fmt.Sprintf("text %d", i), IssuedAt: start}
}

func commandKey(s Sender, c nip.Command) Key {
	return Key{Principal: s.Device, Kind: KindCommand, ID: string(c.ID)}
}

func entryFor(s Sender, c nip.Command) Entry {
	return Entry{Key: commandKey(s, c), Sender: s, Command: c, Task: c.Task}
}

var errCrash = errors.New("the process died here")

// store is bbolt without its syncs, with a switch that kills the process
// before or after a chosen transaction. What was committed stays. With open, it
// is what open returns at every restart.
type store struct {
	db interface {
		Update(fn func(tx *bbolt.Tx) error) error
		View(fn func(tx *bbolt.Tx) error) error
	}
	open func() // sets db anew

	mu      sync.Mutex // guards what follows
	updates int
	dieAt   int // the step, counted over transactions and applies, that dies; 0 never
	after   bool
	steps   int
	dead    bool
}

func newStore(t testing.TB) *store {
	t.Helper()
	db, err := bbolt.Open(filepath.Join(t.TempDir(), "journal.db"), 0o600, &bbolt.Options{
		NoSync: true, NoFreelistSync: true, NoGrowSync: true, FreelistType: bbolt.FreelistMapType,
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() })
	if err := db.Update(Journal{}.Setup); err != nil {
		t.Fatal(err)
	}
	return &store{db: db}
}

// step runs one thing that reaches the disk or the task, or dies around it.
func (s *store) step(fn func() error) error {
	s.mu.Lock()
	if s.dead {
		s.mu.Unlock()
		return errCrash
	}
	s.steps++
	die := s.dieAt != 0 && s.steps == s.dieAt
	if die {
		s.dead = true
	}
	after := s.after
	s.mu.Unlock()
	if die && !after {
		return errCrash
	}
	if err := fn(); err != nil {
		return err
	}
	if die {
		return errCrash
	}
	return nil
}

func (s *store) arm(at int, after bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.dieAt, s.after, s.steps, s.dead = at, after, 0, false
}

func (s *store) Update(ctx context.Context, fn func(tx *bbolt.Tx) error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	return s.step(func() error {
		s.mu.Lock()
		s.updates++
		s.mu.Unlock()
		return s.db.Update(fn)
	})
}

func (s *store) View(fn func(tx *bbolt.Tx) error) error {
	s.mu.Lock()
	dead := s.dead
	s.mu.Unlock()
	if dead {
		return errCrash
	}
	return s.db.View(fn)
}

// fakeTask is a task as the owner keeps it: a state machine with a revision,
// and a ledger by store command ID that makes the same bytes harmless.
type fakeTask struct {
	TaskView
	ledger  map[string]ledgerLine
	effects []string // "<command> <effect>" in the order in which they happened
}

type ledgerLine struct {
	request  []byte
	revision int64
}

type fakeRequest struct {
	ID      string // store command ID: device, command, step
	Command nip.CommandID
	Effect  Effect
	Base    int64
	Text    string
}

// fakeTasks is the Tasks of tests.
type fakeTasks struct {
	store *store

	mu       sync.Mutex // guards everything below
	tasks    map[nip.TaskID]*fakeTask
	viewErr  error
	applyErr error
	refuse   string
	badText  string                  // Compile fails for it
	before   func(*fakeTask, string) // runs before an apply takes effect
	applies  int
}

func newTasks(s *store) *fakeTasks {
	return &fakeTasks{store: s, tasks: make(map[nip.TaskID]*fakeTask)}
}

func (f *fakeTasks) add(id nip.TaskID, v TaskView) *fakeTask {
	t := &fakeTask{TaskView: v, ledger: make(map[string]ledgerLine)}
	f.tasks[id] = t
	return t
}

func (f *fakeTasks) View(_ context.Context, task nip.TaskID) (TaskView, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.viewErr != nil {
		return TaskView{}, f.viewErr
	}
	if t := f.tasks[task]; t != nil {
		return t.TaskView, nil
	}
	return TaskView{Phase: PhaseMissing}, nil
}

func (f *fakeTasks) Compile(e Entry, effect Effect, view TaskView) ([]byte, error) {
	if f.badText != "" && e.Text == f.badText {
		return nil, errors.New("no bytes for it")
	}
	step := "apply"
	if effect == EffectCancel && e.Command.Action != nip.Interrupt {
		step = "stop"
	}
	return json.Marshal(fakeRequest{
		ID: fmt.Sprintf("%s/%s/%s", e.Key.Principal, e.Key.ID, step), Command: e.Command.ID,
		Effect: effect, Base: view.Revision, Text: e.Text,
	})
}

func (f *fakeTasks) Apply(_ context.Context, task nip.TaskID, request []byte) (Applied, error) {
	var out Applied
	err := f.store.step(func() error {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.applies++
		if f.applyErr != nil {
			return f.applyErr
		}
		var r fakeRequest
		if err := json.Unmarshal(request, &r); err != nil {
			return err
		}
		t := f.tasks[task]
		if t == nil {
			out = Applied{Refused: "not_found"}
			return nil
		}
		if f.before != nil {
			f.before(t, r.ID)
		}
		if f.refuse != "" {
			out = Applied{Refused: f.refuse}
			return nil
		}
		out = t.apply(r, request)
		return nil
	})
	return out, err
}

func (t *fakeTask) apply(r fakeRequest, request []byte) Applied {
	if line, ok := t.ledger[r.ID]; ok {
		if !bytes.Equal(line.request, request) {
			return Applied{Refused: "command_conflict"}
		}
		return Applied{Revision: line.revision}
	}
	if r.Base != t.Revision {
		return Applied{Refused: "revision_mismatch"}
	}
	switch {
	case r.Effect == EffectCancel && t.Phase == PhaseNotStarted:
		t.Phase = PhaseEnded
	case r.Effect == EffectCancel && t.Phase == PhaseRunning:
		t.Phase = PhaseStopping
	case r.Effect == EffectContinue && t.Phase == PhaseEnded:
		t.Phase, t.Question = PhaseNotStarted, false
	case r.Effect == EffectCorrect && t.Phase == PhaseNotStarted:
	case r.Effect == EffectDeliver && t.Phase == PhaseRunning:
	default:
		return Applied{Refused: "invalid_transition"}
	}
	t.Revision++
	t.ledger[r.ID] = ledgerLine{append([]byte(nil), request...), t.Revision}
	t.effects = append(t.effects, fmt.Sprintf("%s %s", r.Command, r.Effect))
	return Applied{Revision: t.Revision}
}

// begin and finish are what the execution owner does to a task.
func (t *fakeTask) begin() {
	if t.Phase == PhaseNotStarted {
		t.Revision++
		t.Phase, t.TurnStart = PhaseRunning, t.Revision
	}
}

func (t *fakeTask) finish(question bool) {
	if t.Phase == PhaseRunning || t.Phase == PhaseStopping {
		t.Revision++
		t.Phase, t.Question = PhaseEnded, question
	}
}

// rig is a whole evaluator over a store and tasks.
type rig struct {
	*Evaluator
	t       testing.TB
	store   *store
	tasks   *fakeTasks
	mu      sync.Mutex // guards clock and revoked
	clock   int64
	revoked map[Sender]bool
}

func newRig(t testing.TB) *rig { return newRigOver(t, newStore(t)) }

func newRigOver(t testing.TB, s *store) *rig {
	r := &rig{t: t, store: s, clock: start, revoked: make(map[Sender]bool)}
	r.tasks = newTasks(r.store)
	r.restart()
	return r
}

// restart is a new process over the same disk and tasks.
func (r *rig) restart() {
	r.store.arm(0, false)
	if r.store.open != nil {
		r.store.open()
	}
	r.Evaluator = &Evaluator{
		DB: r.store, Tasks: r.tasks,
		Standing: func(_ *bbolt.Tx, s Sender, _ int64) bool {
			r.mu.Lock()
			defer r.mu.Unlock()
			return !r.revoked[s]
		},
		Now: func() time.Time {
			r.mu.Lock()
			defer r.mu.Unlock()
			return time.Unix(r.clock, 0)
		},
	}
}

func (r *rig) advance(seconds int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.clock += seconds
}

func (r *rig) view(fn func(tx *bbolt.Tx) error) {
	r.t.Helper()
	if err := r.store.db.View(fn); err != nil {
		r.t.Fatal(err)
	}
}

func (r *rig) update(fn func(tx *bbolt.Tx) error) {
	r.t.Helper()
	if err := r.store.db.Update(fn); err != nil {
		r.t.Fatal(err)
	}
}

func (r *rig) entry(s Sender, c nip.Command) Entry {
	r.t.Helper()
	var e Entry
	r.view(func(tx *bbolt.Tx) error {
		got, known, err := r.Journal.Get(tx, commandKey(s, c))
		if err == nil && !known {
			err = errors.New("no such entry")
		}
		e = got
		return err
	})
	return e
}

func (r *rig) check() {
	r.t.Helper()
	r.view(func(tx *bbolt.Tx) error { _, err := r.Journal.Check(tx); return err })
}

// submit sends c and expects no error.
func (r *rig) submit(s Sender, c nip.Command) Entry {
	r.t.Helper()
	e, err := r.Submit(context.Background(), s, c, Hooks{})
	if err != nil {
		r.t.Fatalf("submit %s: %v", c.Action, err)
	}
	return e
}

func (r *rig) evaluate() {
	r.t.Helper()
	if err := r.Evaluate(context.Background(), task(0)); err != nil {
		r.t.Fatal(err)
	}
}

func short(e Entry) string {
	s := word(e)
	if e.Priority {
		s += " priority"
	}
	if e.Reason != "" {
		s += " " + string(e.Reason)
	}
	return s
}
