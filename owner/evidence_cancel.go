package owner

import (
	"context"

	"holdfast/sandbox"
)

// watcher stops a running program when its task says so or its owner is told to leave. It is a goroutine of its own,
// so that a transcript that waits for room on a full disk does not keep a cancel waiting too.
type watcher struct {
	end   context.CancelFunc
	asked chan bool // one value: whether it stopped the program
}

// watchCancel starts a watcher, which lives until stop.
func (e *execution) watchCancel(ctx context.Context, p *sandbox.Process) *watcher {
	life, end := context.WithCancel(context.WithoutCancel(ctx))
	w := &watcher{end: end, asked: make(chan bool, 1)}
	go func() {
		grew := e.store.WatchTask(life, e.id)
		for {
			// Looked at before the first wait: a cancel may have come between the dispatch and the watch.
			if e.unwanted() {
				p.Stop()
				w.asked <- true
				return
			}
			select {
			case <-grew:
				if life.Err() != nil {
					w.asked <- false
					return
				}
			case <-ctx.Done():
				p.Stop()
				w.asked <- true
				return
			case <-life.Done():
				w.asked <- false
				return
			}
		}
	}()
	return w
}

// unwanted reports whether the log asks for the end of this run, or gave it to somebody else. A log that cannot be
// read says nothing: the result will meet the same fault and report it.
func (e *execution) unwanted() bool {
	t, err := e.store.Get(e.id)
	if err != nil {
		return false
	}
	return t.Status == CancelRequested || t.Run == nil || t.Run.Epoch != e.epoch
}

// stop ends the watcher and reports whether it had stopped the program.
func (w *watcher) stop() bool {
	w.end()
	return <-w.asked
}
