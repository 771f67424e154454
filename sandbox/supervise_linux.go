package sandbox

import (
	"encoding/json"
	"errors"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// killMargin is how long after the grace init may take to say how it went.
const killMargin = time.Second

// supervise starts the goroutines of a turn at its gate. One of them, run, owns
// everything that changes until the result is set.
func supervise(t *turn, id Identity) *Process {
	p := &Process{
		id: id, turn: t, out: newCapture(t.spec.StreamBytes, t.spec.OutputLimit),
		release: make(chan chan error), stop: make(chan struct{}), done: make(chan struct{}),
	}
	full := make(chan struct{}, 1)
	drained := make(chan struct{}, 2)
	for which, f := range map[Stream]*os.File{Stdout: t.pipes.stdout, Stderr: t.pipes.stderr} {
		go func() {
			drain(p.out, which, f, full)
			drained <- struct{}{}
		}()
	}
	s := &supervision{Process: p, full: full, drained: drained}
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
	asked    time.Time // when the stop was asked for
	spoken   time.Time // when init said how it went
	ended    *ended
	alone    chan bool // whether init was, when it said how it went
	fault    string
	reply    []byte
}

// run is the supervisor's loop.
func (s *supervision) run() {
	var wall, kill, hopeless <-chan time.Time
	stop, frames := s.stop, s.turn.frames
	end := func(why Ending) {
		if s.reason != EndingNone || s.ended != nil {
			return
		}
		s.reason, s.asked = why, time.Now()
		grace := s.turn.spec.Grace + killMargin
		if _, err := s.turn.pipes.control.Write([]byte{controlStop}); err != nil {
			grace = 0
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
			// Init is silent: its end takes the namespace with it. After this
			// only the kernel can delay the end. Without a namespace init is the
			// only hold on the rest, and goes on with it.
			if s.turn.scratch == "" || s.ended != nil {
				s.turn.proc.Kill()
			}
			hopeless = time.After(waitLimit)
		case f, ok := <-frames:
			if ok {
				s.take(f)
			} else {
				frames = nil
			}
			// Init ends after its last word; without a report pipe it is
			// ending or broken.
			if !ok || f.kind == frameDone {
				kill = time.After(killMargin)
			}
		case <-s.turn.exited:
			s.finish(frames, true)
			return
		case <-hopeless:
			s.finish(nil, false)
			return
		}
	}
}

// open releases the gate.
func (s *supervision) open() error {
	switch {
	case s.reason != EndingNone || s.ended != nil:
		return errEnded
	case !s.released.IsZero():
		return errReleased
	}
	// Init is told first, so that a stop, which it is told too, never finds it
	// holding a program that runs for one behind its gate.
	for _, to := range []*os.File{s.turn.pipes.control, s.turn.gate} {
		if _, err := to.Write([]byte{controlRelease}); err != nil {
			return errors.Join(errEnded, err)
		}
	}
	s.released = time.Now()
	return nil
}

// take keeps what init says.
func (s *supervision) take(f frame) {
	switch f.kind {
	case frameFault:
		s.fault = string(f.payload)
	case frameReply:
		if len(f.payload) <= s.turn.spec.ReplyLimit {
			s.reply = f.payload
		}
	case frameDone:
		var e ended
		if err := json.Unmarshal(f.payload, &e); err != nil {
			s.fault = "the report of the sandbox's first process cannot be read"
			return
		}
		s.ended, s.spoken = &e, time.Now()
		if s.turn.scratch == "" {
			// Init has no child left. That it is alone in its namespace now, and
			// waited for later, proves as much as an empty one afterwards, and is
			// found out while it ends.
			s.alone = make(chan bool, 1)
			go func() {
				inUse, err := namespaceInUse(s.id, s.id.PID)
				s.alone <- err == nil && !inUse
			}()
		}
	default:
		s.fault = "the sandbox's first process failed"
		var why failure
		if json.Unmarshal(f.payload, &why) == nil {
			s.fault = why.Text
		}
	}
}

// finish makes the result. reaped says that init was waited for: every process
// of its namespace was gone before the kernel let that happen.
func (s *supervision) finish(frames <-chan frame, reaped bool) {
	over := time.Now()
	if reaped && frames != nil {
		for f := range frames { // the pipe has no writer left
			s.take(f)
		}
	}
	for _, f := range []*os.File{s.turn.pipes.stdout, s.turn.pipes.stderr} {
		// Everything was written; whoever got hold of a copy of the pipe
		// outside the sandbox must not delay the end.
		f.SetReadDeadline(time.Now())
	}
	<-s.drained
	<-s.drained
	s.out.end()
	s.turn.close()
	r := Result{Report: s.turn.report, Reply: s.reply, Fault: s.fault, Egress: s.turn.egress.end()}
	r.Stdout, r.Stderr = s.out.produced()
	if !s.released.IsZero() {
		r.Elapsed = over.Sub(s.released)
	}
	s.conclude(&r)
	if s.turn.group.exceeded() && r.Ending != EndingStop && r.Ending != EndingTimeout && r.Ending != EndingOutput {
		r.Ending, r.ExitCode, r.Signal = EndingMemory, nil, ""
	}
	empty := s.turn.group.end()
	switch {
	case s.turn.scratch != "":
		// Init says its last word only when nothing that descends from it is left.
		r.Cleanup.Confirmed = reaped && s.ended != nil && empty
		os.RemoveAll(s.turn.scratch)
	case reaped:
		r.Cleanup.Confirmed = s.gone() && empty
	}
	r.Cleanup.Took += time.Since(over)
	s.result = r
	close(s.done)
}

// gone reports whether nothing is left of the namespace of an init that was
// waited for.
func (s *supervision) gone() bool {
	if s.alone != nil && <-s.alone {
		return true
	}
	inUse, err := namespaceInUse(s.id, 0)
	return err == nil && !inUse
}

// conclude joins what init said with what this side asked for. Without a
// report the ending is only known where this side caused it.
func (s *supervision) conclude(r *Result) {
	e := s.ended
	if e == nil {
		r.Ending = s.reason
		if r.Ending == EndingNone {
			r.Ending = EndingLost
		}
		if !s.asked.IsZero() {
			r.Cleanup.Took = time.Since(s.asked)
		}
		return
	}
	r.ReplyErr = e.ReplyErr
	r.Cleanup.Left, r.Cleanup.Reaped = e.Left, e.Reaped
	r.Cleanup.Took = time.Duration(e.TookNS) + time.Since(s.spoken)
	switch {
	case e.Stopped && s.reason != EndingNone:
		r.Ending = s.reason
	case e.Memory:
		r.Ending = EndingMemory
	case e.Disk:
		r.Ending = EndingDisk
	case r.Fault != "":
		r.Ending = EndingNone
	case s.released.IsZero():
		r.Ending, r.Fault = EndingLost, "the program's process ended before it was released"
	case e.Signal != 0:
		r.Ending, r.Signal = EndingSignal, unix.SignalName(unix.Signal(e.Signal))
	default:
		code := e.Exit
		r.Ending, r.ExitCode = EndingExit, &code
	}
}
