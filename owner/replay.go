package owner

import (
	"bufio"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
)

// done is what a task's log holds of one command.
type done struct {
	digest  Digest
	receipt Receipt
}

// state is a task as far as its log was replayed.
type state struct {
	id       TaskID
	task     *Task // nil until the submit frame
	sequence int64
	at       int64 // Unix seconds of the last record; time in a log never runs back
	events   int
	commands map[string]done
	position
}

// position is a place between two frames of a log.
type position struct {
	end  int64             // offset behind the last whole frame
	last [sha256.Size]byte // its hash
}

// start reads the header.
func start(r io.ReaderAt, size int64) (*state, error) {
	id, hash, n, err := readHeader(io.NewSectionReader(r, 0, size))
	if err != nil {
		return nil, err
	}
	return &state{id: id, commands: map[string]done{}, position: position{n, hash}}, nil
}

// follow replays what r holds behind s.end. It stops quietly before a torn
// tail, and reports whether there is one. each may be nil.
func (s *state) follow(r io.ReaderAt, size int64, each func(frame)) (tornTail bool, err error) {
	if size == s.end {
		return false, nil
	}
	br := bufio.NewReaderSize(io.NewSectionReader(r, s.end, size-s.end), int(min(size-s.end, 32<<10)))
	for {
		f, err := readFrame(br, size-s.end, s.last)
		if err == io.EOF {
			return false, nil
		}
		if errors.Is(err, errCutShort) {
			return true, nil
		}
		if err != nil {
			return false, fmt.Errorf("at byte %d: %w", s.end, err)
		}
		if err := s.apply(f); err != nil {
			return false, fmt.Errorf("at byte %d: %w", s.end, err)
		}
		if each != nil {
			each(f)
		}
	}
}

// apply replays one frame: whatever NextCommand or NextEvent would not have
// allowed, or would have answered otherwise, was not written by this package.
func (s *state) apply(f frame) error {
	switch f.kind {
	case frameCmd:
		rec, err := decodeCommandRecord(f.payload)
		if err != nil {
			return err
		}
		c, err := ParseCommand(rec.request)
		if err != nil {
			return corrupt("command: %v", err)
		}
		if c.TaskID != s.id {
			return corrupt("command of another task")
		}
		if _, again := s.commands[c.CommandID]; again {
			return corrupt("command %s stands twice", c.CommandID)
		}
		t, receipt, err := receiptOf(s.task, s.sequence, c, rec.request, rec.at)
		if err != nil {
			return corrupt("command: %v", err)
		}
		if receipt != rec.receipt {
			return corrupt("receipt of command %s is not what the command gives", c.CommandID)
		}
		if err := s.forward(rec.at, receipt.Sequence); err != nil {
			return err
		}
		s.task = &t
		s.commands[c.CommandID] = done{receipt.RequestDigest, receipt}
	case frameEvent:
		e, err := decodeEventRecord(f.payload)
		if err != nil {
			return err
		}
		t, err := NextEvent(s.task, e.Epoch, e.Event, e.At)
		if err != nil {
			return corrupt("event: %v", err)
		}
		if err := s.forward(e.At, e.Sequence); err != nil {
			return err
		}
		s.task = &t
		s.events++
	}
	s.end += f.size
	s.last = f.hash
	return nil
}

func (s *state) forward(at, sequence int64) error {
	if sequence != s.sequence+1 {
		return corrupt("sequence %d after %d", sequence, s.sequence)
	}
	if at < s.at {
		return corrupt("a record is dated before the one ahead of it")
	}
	s.sequence, s.at = sequence, at
	return nil
}

// receiptOf is the transition and the receipt of a command that a log does not
// hold yet; t is nil before the submit, sequence that of the last record.
func receiptOf(t *Task, sequence int64, c Command, request []byte, at int64) (Task, Receipt, error) {
	n, err := NextCommand(t, c, at)
	if err != nil {
		return Task{}, Receipt{}, err
	}
	return n, Receipt{Schema: receiptSchema, CommandID: c.CommandID, TaskID: c.TaskID,
		RequestDigest: DigestOf(request), Sequence: sequence + 1,
		Revision: n.Revision, Status: n.Status, Execution: n.Execution, Checks: n.Checks}, nil
}
