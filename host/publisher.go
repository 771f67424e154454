package host

import (
	"context"
	"sync"
	"time"

	"holdfast/nip"
	"holdfast/owner"
)

// publisher is the loop around Publish: it gathers changed tasks, publishes
// each once however often it changed, evaluates what waits behind it, and keeps
// presence fresh.
type publisher struct {
	h    *Host
	bell chan struct{}

	// mu guards dirty, welcomes and announced.
	mu        sync.Mutex
	dirty     map[owner.TaskID]bool
	welcomes  []nip.PubKey
	announced bool
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

func (p *publisher) take() (tasks []owner.TaskID, welcome, announce bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for id := range p.dirty {
		tasks = append(tasks, id)
	}
	welcome, announce = len(p.welcomes) > 0, p.announced
	p.dirty, p.welcomes, p.announced = map[owner.TaskID]bool{}, nil, false
	return tasks, welcome, announce
}

func (p *publisher) run(ctx context.Context) error {
	beat := time.NewTicker(presenceSeconds * time.Second)
	defer beat.Stop()
	soon := time.NewTimer(time.Hour)
	defer soon.Stop()
	var lastPresence time.Time
	seen := map[owner.TaskID]int64{}
	for {
		tasks, welcome, announce := p.take()
		for _, id := range tasks {
			if err := p.one(ctx, id, seen); err != nil && ctx.Err() == nil {
				if fatal(err) {
					return err
				}
				p.h.log.Error().Err(err).Str("task", string(id)).Msg("publication failed; the next change tries again")
			}
		}
		if welcome {
			if err := p.h.republish(ctx); err != nil && ctx.Err() == nil {
				p.h.log.Error().Err(err).Msg("publication to a new device failed")
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
					p.h.log.Error().Err(err).Msg("presence failed; the next minute tries again")
				}
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case <-p.bell:
		case <-soon.C:
			p.announce()
		case <-beat.C:
			p.announce()
		}
	}
}

// one publishes a task and evaluates the commands that wait for its change.
func (p *publisher) one(ctx context.Context, id owner.TaskID, seen map[owner.TaskID]int64) error {
	t, err := p.h.store.Get(id)
	if err != nil {
		return err
	}
	if seen[id] == t.Revision {
		return nil
	}
	seen[id] = t.Revision
	p.h.emit(Event{Event: "task", Task: taskLine(&t)})
	if nip.ValidID(string(id)) {
		if err := p.h.eval.Evaluate(ctx, nip.TaskID(id)); err != nil {
			return err
		}
	}
	if t.Status == owner.Queued || t.Status == owner.Finished || t.Status == owner.Cancelled {
		p.h.starter.wake()
	}
	return p.h.publish(ctx, id)
}
