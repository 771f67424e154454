package host

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"holdfast/nip"
	"holdfast/owner"
)

const (
	publishAgain  = 5 * time.Second
	publishSettle = 40 * time.Millisecond // a task that changes often is published once for what it did meanwhile
)

// publisher is the loop around Publish: it gathers changed tasks, at once
// evaluates what waits behind each, publishes each a moment later, once however
// often it changed, and keeps presence fresh. A host that stops within that
// moment publishes when it starts again.
type publisher struct {
	h    *Host
	bell chan struct{}

	// mu guards dirty, welcomes and announced.
	mu        sync.Mutex
	dirty     map[owner.TaskID]bool
	welcomes  []nip.PubKey
	announced bool

	// reacted is the loop's own: the revision of each task that was handled last.
	reacted map[owner.TaskID]int64
}

// mark asks for a task to be looked at.
func (p *publisher) mark(id owner.TaskID) {
	p.mu.Lock()
	p.dirty[id] = true
	p.mu.Unlock()
	ring(p.bell)
}

// welcome asks for the newest tasks to be published to a device that was just
// paired.
func (p *publisher) welcome(device nip.PubKey) {
	p.mu.Lock()
	p.welcomes = append(p.welcomes, device)
	p.mu.Unlock()
	ring(p.bell)
}

// announce asks for presence soon.
func (p *publisher) announce() {
	p.mu.Lock()
	p.announced = true
	p.mu.Unlock()
	ring(p.bell)
}

func (p *publisher) take() (tasks []owner.TaskID, welcomes []nip.PubKey, announce bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for id := range p.dirty {
		tasks = append(tasks, id)
	}
	welcomes, announce = p.welcomes, p.announced
	p.dirty, p.welcomes, p.announced = map[owner.TaskID]bool{}, nil, false
	return tasks, welcomes, announce
}

func (p *publisher) run(ctx context.Context) error {
	beat := time.NewTicker(presenceSeconds * time.Second)
	defer beat.Stop()
	soon := time.NewTimer(time.Hour)
	defer soon.Stop()
	settle := time.NewTimer(time.Hour)
	defer settle.Stop()
	var lastPresence time.Time
	due := map[owner.TaskID]bool{}
	each := func(ids []owner.TaskID, fn func(context.Context, owner.TaskID) error) error {
		for _, id := range ids {
			if err := fn(ctx, id); err != nil && ctx.Err() == nil {
				if fatal(err) {
					return err
				}
				p.h.log.Error().Err(err).Str("task", string(id)).Msg("publication failed; it is tried again soon")
				p.later(ctx, func() { p.mark(id) })
				delete(due, id)
			}
		}
		return nil
	}
	for {
		tasks, welcomes, announce := p.take()
		for _, id := range tasks {
			if len(due) == 0 {
				settle.Reset(publishSettle)
			}
			due[id] = true
		}
		if err := each(tasks, p.react); err != nil {
			return err
		}
		if len(welcomes) > 0 {
			if err := p.h.republish(ctx, welcomes); err != nil && ctx.Err() == nil {
				if fatal(err) {
					return err
				}
				p.h.log.Error().Err(err).Msg("publication to a new device failed; it is tried again soon")
				p.later(ctx, func() {
					for _, d := range welcomes {
						p.welcome(d)
					}
				})
			}
		}
		if announce {
			// At most one presence a second: what comes meanwhile goes into
			// the next one.
			if wait := time.Second - time.Since(lastPresence); wait > 0 {
				soon.Reset(wait)
			} else {
				lastPresence = time.Now()
				if err := p.h.presence(ctx); err != nil && ctx.Err() == nil {
					if fatal(err) {
						return err
					}
					p.h.log.Error().Err(err).Msg("presence failed; the next minute tries again")
				}
				if err := p.h.hints.publish(ctx); err != nil && ctx.Err() == nil {
					if fatal(err) {
						return err
					}
					p.h.log.Error().Err(err).Msg("hints failed; the next minute tries again")
				}
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case <-p.bell:
		case <-settle.C:
			ids := slices.Collect(maps.Keys(due))
			clear(due)
			if err := each(ids, p.one); err != nil {
				return err
			}
		case <-soon.C:
			p.announce()
		case <-beat.C:
			p.announce()
		}
	}
}

// later runs fn after a pause, unless the host stopped meanwhile.
func (p *publisher) later(ctx context.Context, fn func()) {
	time.AfterFunc(publishAgain, func() {
		if ctx.Err() == nil {
			fn()
		}
	})
}

// react evaluates the commands that wait for a task's change, and lets its turn
// start.
func (p *publisher) react(ctx context.Context, id owner.TaskID) error {
	t, err := p.h.store.Get(id)
	if err != nil || p.reacted[id] == t.Revision {
		return err
	}
	p.h.emit(Event{Event: "task", Task: taskLine(&t)})
	if nip.ValidID(string(id)) {
		if err := p.h.deadlines.evaluate(ctx, nip.TaskID(id)); err != nil {
			return err
		}
	}
	if t.Status == owner.Queued || t.Status == owner.Finished || t.Status == owner.Cancelled {
		p.h.starter.look(id)
	}
	p.reacted[id] = t.Revision
	return nil
}

// one publishes a task as it stands.
func (p *publisher) one(ctx context.Context, id owner.TaskID) error {
	if err := p.h.publish(ctx, id); err != nil {
		return err
	}
	return p.h.publishPage(ctx, id)
}
