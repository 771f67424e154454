package owner

import (
	"context"
	"strings"
	"unicode/utf8"

	"holdfast/sandbox"
)

// maxPiece is the most output that one step holds: with every byte escaped and kept raw besides, its line stays
// within maxTraceLine.
const maxPiece = 64 << 10

// output turns captured chunks into transcript steps. It keeps a character that a chunk cuts in two until its rest
// comes, so that text stays text, and bounds standard error, which has no limit of its own.
type output struct {
	room       int64     // bytes of standard error that may still be kept
	out, err   stream    // by stream
	dropped    outputGap // of standard error beyond room, written as one gap at the end
	incomplete bool      // something was dropped
}

// stream is what was held back of one stream.
type stream struct {
	name string
	held []byte // at most 3 bytes
	at   int64  // offset of held
}

func newOutput(streamBytes int64) *output {
	return &output{room: streamBytes, out: stream{name: "stdout"}, err: stream{name: "stderr"}}
}

// outputExtra is what a step says about its piece of output.
type outputExtra struct {
	Stream string      `json:"stream"`
	Offset int64       `json:"offset"`
	Bytes  int         `json:"bytes"`
	Gaps   []outputGap `json:"gaps"`          // after the bytes
	Raw    []byte      `json:"raw,omitempty"` // base64 of the bytes, where the message is not exactly them
}

// outputGap is output that was dropped.
type outputGap struct {
	Offset int64 `json:"offset"`
	Bytes  int64 `json:"bytes"`
}

// add records one chunk.
func (o *output) add(ctx context.Context, tr *transcript, c sandbox.Chunk) error {
	s := &o.out
	if c.Stream == sandbox.Stderr {
		s = &o.err
		o.bound(&c)
	}
	var gaps []outputGap
	for _, g := range c.Gaps {
		gaps = append(gaps, outputGap(g))
		o.incomplete = true
	}
	if len(s.held) == 0 {
		s.at = c.Offset
	}
	data := append(s.held, c.Bytes...)
	cut := 0
	if len(gaps) == 0 {
		cut = unfinished(data) // before a gap the rest never comes
	}
	whole := data[:len(data)-cut]
	err := s.write(ctx, tr, whole, gaps)
	s.held = append([]byte(nil), data[len(whole):]...)
	return err
}

// bound moves what standard error has no room for out of the chunk.
func (o *output) bound(c *sandbox.Chunk) {
	keep := min(int64(len(c.Bytes)), o.room)
	o.room -= keep
	over := int64(len(c.Bytes)) - keep
	for _, g := range c.Gaps {
		over += g.Bytes
	}
	if over == 0 || o.room > 0 {
		return
	}
	if o.dropped.Bytes == 0 {
		o.dropped.Offset = c.Offset + keep
	}
	o.dropped.Bytes += over
	c.Bytes, c.Gaps = c.Bytes[:keep], nil
}

// flush records what was still held back when the streams ended.
func (o *output) flush(ctx context.Context, tr *transcript) error {
	if err := o.out.write(ctx, tr, o.out.held, nil); err != nil {
		return err
	}
	var gaps []outputGap
	if o.dropped.Bytes > 0 {
		o.incomplete = true
		gaps = []outputGap{o.dropped}
		if len(o.err.held) == 0 {
			o.err.at = o.dropped.Offset
		}
	}
	return o.err.write(ctx, tr, o.err.held, gaps)
}

// write makes steps of data, which starts at s.at, and of the gaps behind it.
func (s *stream) write(ctx context.Context, tr *transcript, data []byte, gaps []outputGap) error {
	for len(data) > 0 || len(gaps) > 0 {
		piece := data[:min(len(data), maxPiece)]
		if len(piece) < len(data) {
			piece = piece[:len(piece)-unfinished(piece)]
		}
		data = data[len(piece):]
		extra := outputExtra{Stream: s.name, Offset: s.at, Bytes: len(piece), Gaps: []outputGap{}}
		if len(data) == 0 && len(gaps) > 0 {
			extra.Gaps, gaps = gaps, nil
		}
		message := string(piece)
		if !utf8.ValidString(message) {
			message, extra.Raw = strings.ToValidUTF8(message, "\uFFFD"), piece
		}
		if err := tr.step(ctx, traceStep{source: "agent", message: message, extra: extra}); err != nil {
			return err
		}
		s.at += int64(len(piece))
	}
	return nil
}

// unfinished is the length of the character at the end of b that more bytes could complete, 0 to 3.
func unfinished(b []byte) int {
	for n := 1; n < utf8.UTFMax && n <= len(b); n++ {
		if tail := b[len(b)-n:]; utf8.RuneStart(tail[0]) {
			if utf8.FullRune(tail) {
				return 0
			}
			return n
		}
	}
	return 0
}
