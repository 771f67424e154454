package sandbox

import (
	"errors"
	"fmt"
	"io"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// sweepLimit is how long after the end survivors are looked for and killed.
// Beyond it the cleanup is not confirmed.
const sweepLimit = 5 * time.Second

// supervise starts the goroutines of a turn at its gate. One of them, run, owns
// everything that changes until the result is set.
func supervise(t *turn) *Process {
	p := &Process{
		id: t.id, turn: t, out: newCapture(t.spec.StreamBytes, t.spec.OutputLimit),
		release: make(chan chan error), stop: make(chan struct{}), done: make(chan struct{}),
	}
	s := &supervision{Process: p, full: make(chan struct{}, 1), drained: make(chan struct{}, 2)}
	for which, f := range map[Stream]*os.File{Stdout: t.stdout, Stderr: t.stderr} {
		go func() {
			drain(p.out, which, f, s.full)
			s.drained <- struct{}{}
		}()
	}
	go s.run()
	return p
}

// supervision is the state of one turn between its gate and its result.
type supervision struct {
	*Process
	full    chan struct{}
	drained chan struct{}

	reason   Ending    // why a stop was asked for, EndingNone if it was not
	released time.Time // zero: the gate is closed
	fault    string
}

// run is the supervisor's loop.
func (s *supervision) run() {
	var wall, kill <-chan time.Time
	stop, frames := s.stop, s.turn.frames
	end := func(why Ending) {
		if s.reason != EndingNone {
			return
		}
		s.reason = why
		grace := s.turn.spec.Grace
		if s.released.IsZero() {
			grace = 0
		} else {
			unix.Kill(-s.id.PID, unix.SIGTERM)
			unix.Kill(-s.id.PID, unix.SIGCONT) // a stopped process must see it too
		}
		kill = time.After(grace)
	}
	for {
		select {
		case answer := <-s.release:
			err := s.open()
			if err == nil {
				wall = time.After(s.turn.spec.Wall)
			}
			answer <- err
		case <-stop:
			stop = nil
			end(EndingStop)
		case <-s.full:
			end(EndingOutput)
		case <-wall:
			end(EndingTimeout)
		case <-kill:
			unix.Kill(-s.id.PID, unix.SIGKILL)
		case f, ok := <-frames:
			if !ok {
				frames = nil
			} else if f.kind == frameFault {
				s.fault = string(f.payload)
			}
		case state := <-s.turn.exited:
			s.finish(state, frames)
			return
		}
	}
}

// open releases the gate.
func (s *supervision) open() error {
	switch {
	case s.reason != EndingNone:
		return errEnded
	case !s.released.IsZero():
		return errReleased
	}
	if _, err := s.turn.control.Write([]byte{'R'}); err != nil {
		return errors.Join(errEnded, err)
	}
	s.released = time.Now()
	return nil
}

// finish kills what the main process left, and makes the result. Without a
// namespace there is no proof: what counts is that two looks found nothing.
func (s *supervision) finish(state *os.ProcessState, frames <-chan frame) {
	over := time.Now()
	r := Result{Report: s.turn.report}
	r.Cleanup.Left, r.Cleanup.Confirmed = sweep(s.id, sweepLimit)
	r.Cleanup.Reaped = 1
	for _, f := range []*os.File{s.turn.said, s.turn.stdout, s.turn.stderr} {
		// Whoever holds a copy of a pipe must not delay the end.
		f.SetReadDeadline(time.Now())
	}
	if frames != nil {
		for f := range frames {
			if f.kind == frameFault {
				s.fault = string(f.payload)
			}
		}
	}
	<-s.drained
	<-s.drained
	s.out.end()
	r.Stdout, r.Stderr = s.out.produced()
	r.Fault = s.fault
	if !s.released.IsZero() {
		r.Elapsed = over.Sub(s.released)
	}
	s.conclude(&r, state)
	if limit := s.turn.spec.ReplyLimit; limit > 0 && r.Cleanup.Confirmed {
		reply, err := readReply(s.turn.replyPath(), limit)
		r.Reply = reply
		if err != nil {
			r.ReplyErr = err.Error()
		}
	}
	s.turn.close()
	r.Cleanup.Took = time.Since(over)
	s.result = r
	close(s.done)
}

// conclude says how the turn ended.
func (s *supervision) conclude(r *Result, state *os.ProcessState) {
	var status syscall.WaitStatus
	if state != nil {
		status, _ = state.Sys().(syscall.WaitStatus)
	}
	switch {
	case s.reason != EndingNone:
		r.Ending = s.reason
	case s.fault != "":
		r.Ending = EndingNone
	case state == nil:
		r.Ending = EndingLost
	case s.released.IsZero():
		r.Ending, r.Fault = EndingLost, "the program's process ended before it was released"
	case status.Signaled():
		r.Ending, r.Signal = EndingSignal, unix.SignalName(status.Signal())
	default:
		code := status.ExitStatus()
		r.Ending, r.ExitCode = EndingExit, &code
	}
}

// readReply reads the reply file, which the workload made as it liked. It
// returns nil where there is none. Only the last part of the path is the
// workload's to choose: the directory above was made here and was not a link.
func readReply(path string, limit int) ([]byte, error) {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_NOFOLLOW_ANY|unix.O_CLOEXEC, 0)
	if errors.Is(err, unix.ENOENT) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("reply file cannot be opened: %w", err)
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return nil, fmt.Errorf("reply file: %w", err)
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG || st.Nlink != 1 {
		return nil, errors.New("reply file: not a regular file with one link")
	}
	if st.Size > int64(limit) {
		return nil, fmt.Errorf("reply file has %d bytes, at most %d", st.Size, limit)
	}
	b := make([]byte, st.Size)
	if _, err := io.ReadFull(rawFile(fd), b); err != nil {
		return nil, fmt.Errorf("reply file: %w", err)
	}
	return b, nil
}
