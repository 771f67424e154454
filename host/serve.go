package host

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"go.etcd.io/bbolt"
	"golang.org/x/sync/errgroup"

	"holdfast/internal/commit"
	"holdfast/nip"
	"holdfast/owner"
)

const (
	lanes        = 16 // requests handled at once; one signer is always in one lane
	laneBacklog  = 64 // waiting requests a lane; more are dropped, a device retries
	repeatWindow = 5  // seconds between two answers to exact retries of one request
	answerMemory = 1024
	janitorEvery = 30 * time.Second
)

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

	outbox    *outboxSender
	starter   *starter
	deadlines *deadlines
	publisher *publisher
	replies   chan replyJob
	crew      sync.WaitGroup // goroutines beside the loops: owners' reapers

	// mu guards inFlight, answers and policyFault.
	mu          sync.Mutex
	inFlight    map[nip.RequestID]bool
	answers     map[nip.RequestID]answer
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
		replies:  make(chan replyJob, replyBacklog),
		inFlight: map[nip.RequestID]bool{}, answers: map[nip.RequestID]answer{},
	}
	h.outbox = &outboxSender{h: h, bell: make(chan struct{}, 1)}
	h.starter = &starter{h: h, bell: make(chan struct{}, 1), open: map[owner.TaskID]bool{}, live: map[owner.TaskID]*owner.Launched{}}
	h.deadlines = &deadlines{h: h, bell: make(chan struct{}, 1), dirty: map[nip.TaskID]bool{}}
	h.publisher = &publisher{h: h, bell: make(chan struct{}, 1), dirty: map[owner.TaskID]bool{}}
	c.serving = h
	return h
}

// Run serves until ctx ends or a store fails. Turns go on either way.
//
// The order at start is what makes a restart safe: effects that a stop cut off
// are finished with their exact bytes, dead runs are settled, every task with
// undecided entries is evaluated once, and only then are requests taken and
// turns started.
func (h *Host) Run(ctx context.Context) error {
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
			return commit.ErrPoisoned
		}
	})
	g.Go(func() error { return h.receiveAll(ctx) })
	g.Go(func() error { return h.watchTasks(ctx) })
	g.Go(func() error { return h.outbox.run(ctx) })
	g.Go(func() error { return h.starter.run(ctx) })
	g.Go(func() error { return h.deadlines.run(ctx) })
	g.Go(func() error { return h.publisher.run(ctx) })
	g.Go(func() error { return h.janitor(ctx) })
	for range replySenders {
		g.Go(func() error { h.sendReplies(ctx); return nil })
	}
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
	ids, err := h.store.List()
	if err != nil {
		return err
	}
	for _, id := range ids {
		t, err := h.settled(ctx, id)
		if err != nil {
			h.log.Error().Err(err).Str("task", string(id)).Msg("task cannot be read")
			continue
		}
		h.starter.note(&t)
	}
	var tasks []nip.TaskID
	if err := h.db.View(func(tx *bbolt.Tx) (err error) {
		tasks, err = h.journal.Tasks(tx)
		return err
	}); err != nil {
		return err
	}
	for _, t := range tasks {
		if err := h.eval.Evaluate(ctx, t); err != nil {
			return err
		}
		h.deadlines.poke(t)
	}
	return h.republish(ctx)
}

// receiveAll hands events to lanes. One signer's requests stay in one lane and
// in order; a busy or hostile signer fills its own lane and no other's.
func (h *Host) receiveAll(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	var lane [lanes]chan Inbound
	for i := range lane {
		lane[i] = make(chan Inbound, laneBacklog)
		g.Go(func() error {
			for {
				select {
				case <-ctx.Done():
					return nil
				case in := <-lane[i]:
					if err := h.receive(ctx, in); err != nil && ctx.Err() == nil {
						if fatal(err) {
							return err
						}
						h.log.Error().Err(err).Str("event", in.Event.Event().ID).Msg("request failed; the device's retry will be tried again")
					}
				}
			}
		})
	}
	g.Go(func() error {
		for {
			select {
			case <-ctx.Done():
				return nil
			case in, ok := <-h.transport.Inbound():
				if !ok {
					return errors.New("transport ended")
				}
				select {
				case lane[laneOf(in.Event.Event().PubKey)] <- in:
				default:
					h.log.Warn().Str("event", in.Event.Event().ID).Msg("too many requests of one signer; dropped, a retry is welcome")
				}
			}
		}
	})
	return g.Wait()
}

func laneOf(pubkey string) int {
	n := 0
	for _, b := range []byte(pubkey) {
		n = (n*31 + int(b)) & 0xffff
	}
	return n % lanes
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

// answer is what was sent last for a request. Reply is kept only for answers
// that host.db does not retain, so that a retry gets the same bytes.
type answer struct {
	at    int64
	until int64
	event nip.EventID
	reply *nip.Event
}

// answeredLately reports whether the request had an answer in the last 5 s:
// duplicates by several subscriptions or relays are then dropped, while a
// retry after that is answered again.
func (h *Host) answeredLately(id nip.RequestID, now int64) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	a, ok := h.answers[id]
	return ok && now < a.at+repeatWindow
}

// lastAnswer returns the unretained reply to exactly this event, if it is
// still remembered.
func (h *Host) lastAnswer(k *call) *nip.Event {
	h.mu.Lock()
	defer h.mu.Unlock()
	if a, ok := h.answers[k.req.ID]; ok && a.event == k.opened.EventID {
		return a.reply
	}
	return nil
}

// noteAnswer remembers an answer, boundedly: what has run out goes first, and
// a full memory forgets rather than grows.
func (h *Host) noteAnswer(k *call, reply *nip.Event, now int64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.answers) >= answerMemory {
		for id, a := range h.answers {
			if a.until <= now {
				delete(h.answers, id)
			}
		}
	}
	if len(h.answers) >= answerMemory {
		clear(h.answers)
	}
	h.answers[k.req.ID] = answer{at: now, until: k.req.ExpiresAt, event: k.opened.EventID, reply: reply}
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

// accessChanged renews the subscriptions and tells the devices that the host is there.
func (h *Host) accessChanged() {
	keys := []nip.PubKey{h.owner}
	err := h.db.View(func(tx *bbolt.Tx) error {
		recs, err := h.activeGrants(tx, h.now())
		for _, r := range recs {
			keys = append(keys, r.Grant.Device)
		}
		return err
	})
	if err != nil {
		h.log.Error().Err(err).Msg("access book cannot be read")
		return
	}
	h.transport.Authors(keys)
	h.publisher.announce()
}

// watchTasks turns growth of task logs into publication, evaluation of held
// messages and starts.
func (h *Host) watchTasks(ctx context.Context) error {
	for id := range h.store.Watch(ctx) {
		if id != "" {
			h.taskChanged(id)
			continue
		}
		for _, id := range h.starter.candidates() {
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
		}
		return
	}
	h.starter.note(&t)
	h.publisher.mark(id)
}

// janitor prunes what ran out.
func (h *Host) janitor(ctx context.Context) error {
	tick := time.NewTicker(janitorEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		err := h.db.Update(ctx, func(tx *bbolt.Tx) error {
			now := h.now()
			if err := dropReplies(tx, func(r retainedReply) bool { return r.ExpiresAt <= now }); err != nil {
				return err
			}
			if err := pruneInvitations(tx, now); err != nil {
				return err
			}
			_, err := h.journal.Prune(tx, now, 256)
			return err
		})
		if err != nil && ctx.Err() == nil {
			if fatal(err) {
				return err
			}
			h.log.Error().Err(err).Msg("pruning failed; the next round tries again")
		}
	}
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
