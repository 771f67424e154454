package embedded

import (
	"context"
	"sync"
)

const (
	maxQueued      = 1024    // frames that wait for a slow reader
	maxQueuedBytes = 4 << 20 // their bytes
)

// queue is the bounded line of frames before one connection's writer. Live
// events never wait for room: a full queue drops the connection. A replay
// waits until half of it is free, so that it cannot crowd live events out.
type queue struct {
	mu     sync.Mutex // guards frames and bytes
	frames [][]byte
	bytes  int
	wake   chan struct{} // one place: there is a frame
	room   chan struct{} // one place: something left
}

func newQueue() *queue {
	return &queue{wake: make(chan struct{}, 1), room: make(chan struct{}, 1)}
}

// push appends a frame without waiting; false when the queue is full.
func (q *queue) push(frame []byte) bool { return q.add(frame, maxQueued, maxQueuedBytes) }

func (q *queue) add(frame []byte, frames, bytes int) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.frames) >= frames || len(q.frames) > 0 && q.bytes+len(frame) > bytes {
		return false
	}
	q.frames = append(q.frames, frame)
	q.bytes += len(frame)
	nudge(q.wake)
	return true
}

// pushWait appends a frame when the queue is less than half full. Only one
// goroutine may wait at a time.
func (q *queue) pushWait(ctx context.Context, frame []byte) error {
	for !q.add(frame, maxQueued/2, maxQueuedBytes/2) {
		select {
		case <-q.room:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

// pop waits for the first frame.
func (q *queue) pop(ctx context.Context) ([]byte, error) {
	for {
		q.mu.Lock()
		if len(q.frames) > 0 {
			f := q.frames[0]
			q.frames[0] = nil
			q.frames = q.frames[1:]
			q.bytes -= len(f)
			q.mu.Unlock()
			nudge(q.room)
			return f, nil
		}
		q.mu.Unlock()
		select {
		case <-q.wake:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

func nudge(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
