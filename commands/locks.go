package commands

import (
	"context"
	"sync"

	"holdfast/nip"
)

// taskLocks is one lock a task, which exists only while somebody holds it or
// waits for it. The zero value is ready.
type taskLocks struct {
	mu    sync.Mutex // guards held and every count in it
	tasks map[nip.TaskID]*taskLock
}

type taskLock struct {
	users int
	token chan struct{} // holds one value while the lock is free
}

// lock waits for the task's lock or for the end of ctx.
func (l *taskLocks) lock(ctx context.Context, task nip.TaskID) (unlock func(), err error) {
	l.mu.Lock()
	t := l.tasks[task]
	if t == nil {
		if l.tasks == nil {
			l.tasks = make(map[nip.TaskID]*taskLock)
		}
		t = &taskLock{token: make(chan struct{}, 1)}
		t.token <- struct{}{}
		l.tasks[task] = t
	}
	t.users++
	l.mu.Unlock()
	leave := func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		if t.users--; t.users == 0 {
			delete(l.tasks, task)
		}
	}
	select {
	case <-t.token:
		return func() { t.token <- struct{}{}; leave() }, nil
	case <-ctx.Done():
		leave()
		return nil, ctx.Err()
	}
}
