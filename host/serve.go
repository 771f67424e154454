package host

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"go.etcd.io/bbolt"
	"golang.org/x/sync/errgroup"

	"holdfast/internal/commit"
	"holdfast/nip"
	"holdfast/owner"
)

const janitorEvery = 30 * time.Second

// Event is one line of what serve and up print.
type Event struct {
	Event   string     `json:"event"`
	Command *EntryView `json:"command,omitempty"`
	Task    *TaskLine  `json:"task,omitempty"`
	Device  nip.PubKey `json:"device,omitempty"`
}

// Host is a Core that serves.
type Host struct {
	*Core
	transport  Transport
	generation int64
	started    time.Time
	onEvent    func(Event)

	index     *taskIndex
	outbox    *outboxSender
	starter   *starter
	deadlines *deadlines
	publisher *publisher
	pruner    *pruner
	replies   *replySender
	answers   *answerBook
	teller    *teller
	hints     *hintBook
	nudges    *nudgeBook
	crew      sync.WaitGroup // goroutines beside the loops: owners' reapers
	stopped   chan struct{}  // closed when Run ends

	// members is the owner and the active devices, replaced whole.
	members atomic.Pointer[map[string]bool]
	// renewing keeps two renewals of the subscriptions from crossing.
	renewing sync.Mutex

	// uploading is held by whoever writes or removes a file of uploads: a piece
	// lies in its file before its row counts it, and must not be tidied away.
	uploading sync.Mutex

	diskBook diskBook

	// mu guards inFlight and policyFault.
	mu          sync.Mutex
	inFlight    map[nip.RequestID]bool
	policyFault string
}

// NewHost joins a Core to its transport. onEvent is called from many
// goroutines and must not block; nil is fine.
func NewHost(c *Core, t Transport, onEvent func(Event)) *Host {
	if onEvent == nil {
		onEvent = func(Event) {}
	}
	h := &Host{
		Core: c, transport: t, onEvent: onEvent, started: c.opts.Now(),
		index: newTaskIndex(), answers: newAnswerBook(), inFlight: map[nip.RequestID]bool{}, stopped: make(chan struct{}),
	}
	h.members.Store(&map[string]bool{string(c.owner): true})
	h.replies = &replySender{h: h, jobs: map[replyLane]chan replyJob{}, resting: map[replyLane]int{}}
	h.outbox = &outboxSender{h: h, bell: make(chan struct{}, 1), retry: outboxRetry, relays: map[nip.RelayURL]*relayOutbox{}}
	h.starter = &starter{h: h, bell: make(chan struct{}, 1), live: map[owner.TaskID]*owner.Launched{}, taken: map[owner.TaskID]taken{}, changed: map[owner.TaskID]bool{}, seen: map[owner.TaskID]seenTask{}}
	h.deadlines = &deadlines{h: h, bell: make(chan struct{}, 1), dirty: map[nip.TaskID]bool{}, retry: map[nip.TaskID]int64{}, worn: map[nip.TaskID]time.Duration{}}
	h.pruner = &pruner{h: h, at: map[string][]byte{}}
	h.publisher = &publisher{h: h, bell: make(chan struct{}, 1), dirty: map[owner.TaskID]bool{}, reacted: map[owner.TaskID]int64{}}
	h.teller = &teller{h: h, bell: make(chan struct{}, 1), settle: statesSettle, pause: statesPause}
	h.hints = &hintBook{h: h, sent: map[nip.PubKey]sentHints{}}
	h.nudges = &nudgeBook{h: h, heeded: map[nip.EventID]bool{}, last: map[nip.PubKey]int64{}}
	c.serving = h
	return h
}

// Run serves until ctx ends or a store fails. Turns go on either way. It runs
// once.
//
// The order at start is what makes a restart safe: effects that a stop cut off
// are finished with their exact bytes, dead runs are settled, every task with
// undecided entries is evaluated once, and only then are requests taken and
// turns started.
func (h *Host) Run(ctx context.Context) error {
	defer close(h.stopped)
	if err := h.wakeUp(ctx); err != nil {
		return fmt.Errorf("start: %w", err)
	}
	g, ctx := errgroup.WithContext(ctx)
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	g.Go(func() error {
		select {
		case <-ctx.Done():
			return nil
		case <-h.db.Poisoned():
			return h.db.View(func(*bbolt.Tx) error { return nil }) // ErrPoisoned with its cause
		}
	})
	for _, loop := range []func(context.Context) error{
		h.receiveAll, h.watchTasks, h.outbox.run, h.starter.run, h.deadlines.run, h.publisher.run, h.teller.run, h.watchExpiry, h.janitor, h.tidyWorktrees, h.nudges.run,
	} {
		g.Go(func() error { return loop(ctx) })
	}
	h.replies.run(func(lane replyLane, jobs <-chan replyJob) {
		for range lane.senders() {
			h.background(func() { h.sendReplies(ctx, lane, jobs) })
		}
	})
	if err := h.resendReplies(); err != nil {
		stop()
		return errors.Join(err, g.Wait())
	}
	h.accessChanged()
	h.outbox.wake()
	return g.Wait()
}

func (h *Host) wakeUp(ctx context.Context) error {
	var err error
	if h.generation, err = h.startGeneration(ctx); err != nil {
		return err
	}
	if err := h.finishAdmitted(ctx); err != nil {
		return err
	}
	if err := h.readAll(ctx); err != nil {
		return err
	}
	var tasks, leased []nip.TaskID
	if err := h.db.View(func(tx *bbolt.Tx) (err error) {
		if leased, err = h.journal.LeasedTasks(tx); err == nil {
			tasks, err = h.journal.Tasks(tx)
		}
		return err
	}); err != nil {
		return err
	}
	for _, t := range leased {
		h.eval.Leased(t)
		h.deadlines.afterLease(t)
	}
	for _, t := range tasks {
		if err := h.deadlines.evaluate(ctx, t); err != nil {
			return err
		}
	}
	if err := h.teller.retell(ctx); err != nil {
		return err
	}
	return h.republish(ctx, nil)
}

// receiveAll hands what the relays deliver to the lanes.
func (h *Host) receiveAll(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	l := newLanes(h, g)
	g.Go(func() error {
		for {
			select {
			case <-ctx.Done():
				return nil
			case in, ok := <-h.transport.Inbound():
				if !ok {
					return errors.New("transport ended")
				}
				if !l.put(ctx, in) {
					h.log.Warn().Str("event", in.Event.Event().ID).Msg("too many requests at once; dropped, a retry is welcome")
				}
			}
		}
	})
	return g.Wait()
}

// fatal reports whether the host must stop: a store that failed can only be
// trusted again after it was reopened.
func fatal(err error) bool {
	for _, e := range []error{commit.ErrPoisoned, commit.ErrCorrupt, commit.ErrClosed, owner.ErrReopen} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

// begin claims a request, so that two deliveries of one event are one call.
func (h *Host) begin(id nip.RequestID) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.inFlight[id] {
		return false
	}
	h.inFlight[id] = true
	return true
}

func (h *Host) end(id nip.RequestID) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.inFlight, id)
}

// noteSeen keeps when a device was last heard, to the minute, lazily: it is
// display only.
func (h *Host) noteSeen(device nip.PubKey, now int64) {
	var last int64
	if err := h.db.View(func(tx *bbolt.Tx) error {
		last = getCount(tx, bucketSeen, string(device))
		return nil
	}); err != nil || now < last+60 || device == h.owner {
		return
	}
	h.background(func() {
		err := h.db.Update(context.Background(), func(tx *bbolt.Tx) error {
			return putCount(tx, bucketSeen, string(device), now-now%60)
		})
		if err != nil {
			h.log.Debug().Err(err).Msg("last seen was not kept")
		}
	})
}

// background runs fn in a goroutine that Close waits for.
func (h *Host) background(fn func()) {
	h.crew.Add(1)
	go func() {
		defer h.crew.Done()
		fn()
	}()
}

func (h *Host) emit(e Event) { h.onEvent(e) }

// watchTasks turns growth of task logs into publication, evaluation of held
// messages and starts.
func (h *Host) watchTasks(ctx context.Context) error {
	for id := range h.store.Watch(ctx) {
		if id != "" {
			h.taskChanged(id)
			continue
		}
		// Where the kernel's notices do not reach this comes every second. The logs of no others grow.
		live, err := h.store.Live()
		if err != nil {
			h.log.Error().Err(err).Msg("tasks cannot be listed")
			live = h.index.open()
		}
		for _, id := range live {
			h.taskChanged(id)
		}
	}
	return nil
}

// taskChanged looks at a task that may have changed.
func (h *Host) taskChanged(id owner.TaskID) {
	t, err := h.store.Get(id)
	if err != nil {
		var refused *owner.Error
		if !errors.As(err, &refused) {
			h.log.Error().Err(err).Str("task", string(id)).Msg("task cannot be read")
			h.index.cannotRead(id)
		}
		return
	}
	h.index.note(&t)
	h.starter.note(id)
	h.publisher.mark(id)
}

// janitor tidies up now and then.
func (h *Host) janitor(ctx context.Context) error {
	tick := time.NewTicker(janitorEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		if err := h.Tidy(ctx); err != nil && ctx.Err() == nil {
			if fatal(err) {
				return err
			}
			h.log.Error().Err(err).Msg("pruning failed; the next round tries again")
		}
	}
}

// Tidy is one round of what a serving host does every 30 s: it prunes what ran
// out, and finishes what an error had cut off. What a round did not reach is
// left to the next one.
func (h *Host) Tidy(ctx context.Context) error {
	err := h.db.Update(ctx, func(tx *bbolt.Tx) error {
		now := h.now()
		if err := pruneReplies(tx, now, maxReplies); err != nil {
			return err
		}
		if err := pruneRecovery(tx, now); err != nil {
			return err
		}
		if err := pruneInvitations(tx, now); err != nil {
			return err
		}
		if err := pruneEnrollments(tx, now); err != nil {
			return err
		}
		return pruneGrants(tx, now)
	})
	for _, step := range []func(context.Context) error{h.pruneJournal, h.finishAdmitted, h.settleCallers, h.tidyUploads, h.pruner.run, h.putAway} {
		if err == nil {
			err = step(ctx)
		}
	}
	return err
}

const (
	pruneStep = 256 // transitions of one commit, so that no command waits long behind it
	pruneMost = 400 // commits of one round: more than any host writes meanwhile
)

// pruneJournal drops what is past its retention, a little at a time.
func (h *Host) pruneJournal(ctx context.Context) error {
	for range pruneMost {
		dropped := 0
		if err := h.db.Update(ctx, func(tx *bbolt.Tx) (err error) {
			dropped, err = h.journal.Prune(tx, h.now(), pruneStep)
			return err
		}); err != nil || dropped < pruneStep {
			return err
		}
	}
	return nil
}

// Wait returns when the reapers of owners and other side work ended; call it
// after Run and before the Core closes.
func (h *Host) Wait(limit time.Duration) {
	done := make(chan struct{})
	go func() { h.crew.Wait(); close(done) }()
	select {
	case <-done:
	case <-time.After(limit):
	}
}
