package owner

import (
	"context"
	"sync"
	"time"
)

const (
	watchPoll    = time.Second
	maxUnsettled = 4096 // task IDs waiting for a slow receiver; beyond, "look at all"
)

// Watch sends the ID of each task whose log grew or appeared; "" means "look
// at all", which is also the first thing sent, as soon as the watch stands: what
// happens after that is not missed. Changes that come faster than they are received
// are merged. The channel is closed when ctx ends.
//
// The kernel's notices are used where there are any; what they do not cover
// (another system, too many tasks) is answered by "" every second.
func (s *Store) Watch(ctx context.Context) <-chan TaskID {
	out := make(chan TaskID)
	p := &pending{wake: make(chan struct{}, 1)}
	var wg sync.WaitGroup
	wg.Go(func() { s.notice(ctx, "", func(dir string) { p.add(s, dir) }) })
	go func() {
		defer close(out)
		defer wg.Wait()
		for {
			select {
			case <-ctx.Done():
				return
			case <-p.wake:
			}
			for id, ok := p.take(); ok; id, ok = p.take() {
				select {
				case out <- id:
				case <-ctx.Done():
					return
				}
			}
		}
	}()
	return out
}

// pending merges the changes that were not received yet.
type pending struct {
	mu   sync.Mutex // guards ids and all
	ids  map[TaskID]struct{}
	all  bool
	wake chan struct{} // of length 1: there is something to take
}

// add notes a change in a task's folder; "" for all tasks.
func (p *pending) add(s *Store, dir string) {
	id, all := TaskID(""), dir == ""
	if !all {
		var err error
		if id, err = s.nameOf(dir); err != nil {
			// No log yet: its rename is noticed, too. Damage is for the one who looks.
			if all = !refused(err); !all {
				return
			}
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if all || len(p.ids) >= maxUnsettled {
		p.all, p.ids = true, nil
	} else if !p.all {
		if p.ids == nil {
			p.ids = map[TaskID]struct{}{}
		}
		p.ids[id] = struct{}{}
	}
	p.nudge()
}

func (p *pending) nudge() {
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

func (p *pending) take() (TaskID, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.all {
		p.all = false
		return "", true
	}
	for id := range p.ids {
		delete(p.ids, id)
		return id, true
	}
	return "", false
}

// WatchTask signals when this task's log grew, and once when the watch stands. Signals
// that are not received are merged. The channel is closed when ctx ends.
func (s *Store) WatchTask(ctx context.Context, id TaskID) <-chan struct{} {
	out := make(chan struct{}, 1)
	signal := func(string) {
		select {
		case out <- struct{}{}:
		default:
		}
	}
	go func() {
		defer close(out)
		s.notice(ctx, dirName(id), signal)
	}()
	return out
}

// poll is the fallback: changed("") now and every second until ctx ends.
func poll(ctx context.Context, changed func(dir string)) {
	changed("")
	tick := time.NewTicker(watchPoll)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			changed("")
		}
	}
}
