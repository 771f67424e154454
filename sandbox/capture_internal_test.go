package sandbox

import (
	"bytes"
	"testing"

	"pgregory.net/rapid"
)

// TestStreamAccounts feeds and takes at random. Whatever happens, what is
// delivered and what is counted as lost are the input, in order.
func TestStreamAccounts(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		room := rapid.IntRange(1, 100_000).Draw(t, "room")
		limit := rapid.Int64Range(0, 200_000).Draw(t, "limit")
		s := stream{room: room, limit: limit}
		var sent []byte
		var at, delivered int64
		check := func(c Chunk) {
			if c.Offset != at || len(c.Bytes) > chunkBytes || len(c.Gaps) > 1 {
				t.Fatalf("chunk at %d with %d bytes and %d gaps, want offset %d", c.Offset, len(c.Bytes), len(c.Gaps), at)
			}
			if !bytes.Equal(c.Bytes, sent[at:at+int64(len(c.Bytes))]) {
				t.Fatal("other bytes")
			}
			at += int64(len(c.Bytes))
			delivered += int64(len(c.Bytes))
			for _, g := range c.Gaps {
				if g.Offset != at || g.Bytes <= 0 {
					t.Fatalf("gap %+v, want offset %d", g, at)
				}
				at += g.Bytes
			}
		}
		for range rapid.IntRange(1, 40).Draw(t, "steps") {
			if rapid.Bool().Draw(t, "take") {
				if c, ok := s.take(); ok {
					check(c)
				}
				continue
			}
			b := make([]byte, rapid.IntRange(0, 50_000).Draw(t, "bytes"))
			for i := range b {
				b[i] = byte(len(sent) + i)
			}
			sent = append(sent, b...)
			full := s.add(Stdout, b)
			if full != (limit > 0 && s.accepted >= limit) {
				t.Fatal("the limit is not reported")
			}
			if s.held > room {
				t.Fatalf("%d bytes pending, room for %d", s.held, room)
			}
		}
		for c, ok := s.take(); ok; c, ok = s.take() {
			check(c)
		}
		if at != int64(len(sent)) || s.offset != at || s.held != 0 {
			t.Fatalf("accounted %d of %d, %d held", at, len(sent), s.held)
		}
		if limit > 0 && delivered > limit {
			t.Fatalf("delivered %d, limit %d", delivered, limit)
		}
	})
}

func TestFloodCostsOneGap(t *testing.T) {
	s := stream{room: 1024}
	for range 10_000 {
		s.add(Stderr, make([]byte, 4096))
	}
	if len(s.pending) != 1 || len(s.pending[0].Gaps) != 1 {
		t.Fatalf("%d chunks pending", len(s.pending))
	}
	if c, _ := s.take(); len(c.Bytes) != 1024 || c.Gaps[0] != (Gap{Offset: 1024, Bytes: 10_000*4096 - 1024}) {
		t.Errorf("%d bytes, gaps %v", len(c.Bytes), c.Gaps)
	}
}

func TestChunksAlternate(t *testing.T) {
	c := newCapture(1<<20, 0)
	for range 4 {
		c.add(Stdout, make([]byte, chunkBytes))
	}
	c.add(Stderr, []byte("x"))
	c.end()
	place := 0
	for chunk := range c.chunks() {
		if chunk.Stream == Stderr {
			break
		}
		place++
	}
	if place > 1 {
		t.Errorf("standard error came after %d chunks", place)
	}
	for range c.chunks() {
	}
}
