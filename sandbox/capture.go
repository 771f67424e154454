package sandbox

import "sync"

// chunkBytes is the most that one Chunk carries.
const chunkBytes = 32 << 10

// stream is the pending output of one stream: a queue of chunks in which only
// the last may grow. Bytes come in at the speed of the program and go out at
// the speed of the consumer; what does not fit becomes a Gap.
type stream struct {
	pending  []Chunk
	held     int   // bytes in pending
	room     int   // the most that held may be
	offset   int64 // bytes produced so far
	accepted int64 // bytes that were or will be delivered
	limit    int64 // bound of accepted, 0 is none
}

// add takes what was read. It reports whether the delivery limit is reached.
// b is copied.
func (s *stream) add(which Stream, b []byte) (full bool) {
	keep := min(len(b), s.room-s.held)
	if s.limit > 0 {
		keep = int(min(int64(keep), s.limit-s.accepted))
	}
	for rest := b[:keep]; len(rest) > 0; {
		last := s.last()
		if last == nil || len(last.Gaps) > 0 || len(last.Bytes) >= chunkBytes {
			s.pending = append(s.pending, Chunk{Stream: which, Offset: s.offset})
			last = s.last()
		}
		n := min(len(rest), chunkBytes-len(last.Bytes))
		last.Bytes = append(last.Bytes, rest[:n]...)
		rest = rest[n:]
		s.offset += int64(n)
	}
	s.held += keep
	s.accepted += int64(keep)
	if drop := int64(len(b) - keep); drop > 0 {
		s.drop(which, drop)
	}
	return s.limit > 0 && s.accepted >= s.limit
}

// drop counts bytes that will never be delivered. Contiguous drops merge, so a
// flood costs one Gap.
func (s *stream) drop(which Stream, n int64) {
	last := s.last()
	if last == nil {
		s.pending = append(s.pending, Chunk{Stream: which, Offset: s.offset})
		last = s.last()
	}
	if g := len(last.Gaps); g > 0 {
		last.Gaps[g-1].Bytes += n
	} else {
		last.Gaps = append(last.Gaps, Gap{Offset: s.offset, Bytes: n})
	}
	s.offset += n
}

func (s *stream) last() *Chunk {
	if len(s.pending) == 0 {
		return nil
	}
	return &s.pending[len(s.pending)-1]
}

// take gives the oldest chunk away.
func (s *stream) take() (Chunk, bool) {
	if len(s.pending) == 0 {
		return Chunk{}, false
	}
	c := s.pending[0]
	s.pending = s.pending[1:]
	s.held -= len(c.Bytes)
	return c, true
}

// capture joins both streams and hands them to one consumer.
type capture struct {
	mu      sync.Mutex // guards streams, ended and the turn of take
	streams [2]stream
	ended   bool
	second  bool // whether take begins with standard error

	more chan struct{} // capacity 1: something changed
	out  chan Chunk
	once sync.Once
}

func newCapture(room int, limit int64) *capture {
	c := &capture{more: make(chan struct{}, 1), out: make(chan Chunk)}
	c.streams[0] = stream{room: room, limit: limit}
	c.streams[1] = stream{room: room}
	return c
}

// add never blocks: whoever reads the pipe must go on reading.
func (c *capture) add(which Stream, b []byte) (full bool) {
	c.mu.Lock()
	full = c.streams[which-Stdout].add(which, b)
	c.mu.Unlock()
	c.wake()
	return full
}

// end says that nothing more comes.
func (c *capture) end() {
	c.mu.Lock()
	c.ended = true
	c.mu.Unlock()
	c.wake()
}

// produced returns the bytes that each stream carried in all.
func (c *capture) produced() (stdout, stderr int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.streams[0].offset, c.streams[1].offset
}

func (c *capture) wake() {
	select {
	case c.more <- struct{}{}:
	default:
	}
}

// chunks starts the one goroutine that delivers. It lives until everything was
// taken, so a consumer that stops early keeps it, and the pending bytes, alive.
func (c *capture) chunks() <-chan Chunk {
	c.once.Do(func() {
		go func() {
			defer close(c.out)
			for {
				chunk, ok, ended := c.take()
				switch {
				case ok:
					c.out <- chunk
				case ended:
					return
				default:
					<-c.more
				}
			}
		}()
	})
	return c.out
}

// take alternates between the streams so that a flood on one does not starve
// the other.
func (c *capture) take() (chunk Chunk, ok, ended bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	first := &c.streams[0]
	other := &c.streams[1]
	if c.second {
		first, other = other, first
	}
	c.second = !c.second
	if chunk, ok = first.take(); !ok {
		chunk, ok = other.take()
	}
	return chunk, ok, c.ended
}
