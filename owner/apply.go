package owner

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"holdfast/internal/atomicfile"
	"holdfast/internal/saferead"
)

// Apply is the second half of hop 7: one exact task command enters the task's
// log, and its receipt comes out. Before it stands commands/evaluate.go, which
// saved these bytes first and sends the same ones again after a crash; after
// it owner/execute.go, whose process sees the log grow.
//
// The same command ID with the same bytes returns the first receipt, after a
// sync: what is visible need not be durable. With other bytes, or for another
// task, it is command_conflict. A refused command reserves nothing. *Error is
// a definite refusal and ErrReopen an outcome that is not known; after any
// other error nothing was applied, or the same bytes find out.
func (s *Store) Apply(ctx context.Context, request []byte) (Receipt, error) {
	if err := s.usable(ctx); err != nil {
		return Receipt{}, err
	}
	c, err := ParseCommand(request)
	if err != nil {
		return Receipt{}, err
	}
	have, reserved, err := s.identity(ctx, c.CommandID)
	if err != nil {
		return Receipt{}, err
	}
	if reserved && have.task != c.TaskID {
		return Receipt{}, refuse("command_conflict", "command %s belongs to another task", c.CommandID)
	}
	if reserved {
		// A retry, most likely; a reservation alone is what a crash left.
		r, found, err := s.retried(c, request)
		if found || err != nil {
			return r, err
		}
	}
	l, err := s.lockFor(ctx, c)
	if err != nil {
		return Receipt{}, err
	}
	defer l.Unlock()
	return l.apply(ctx, c, request)
}

// retried answers a command that the task's log holds already.
func (s *Store) retried(c Command, request []byte) (r Receipt, found bool, err error) {
	err = s.read(c.TaskID, func(st *state) error {
		var d done
		if d, found = st.commands[c.CommandID]; found {
			r, err = d.again(request)
		}
		return err
	})
	var refusal *Error
	if errors.As(err, &refusal) && refusal.Code == "not_found" {
		return Receipt{}, false, nil
	}
	if err != nil || !found {
		return Receipt{}, found, err
	}
	return r, true, s.barrier(c.TaskID)
}

func (d done) again(request []byte) (Receipt, error) {
	if d.digest != DigestOf(request) {
		return Receipt{}, refuse("command_conflict", "command %s was applied with other bytes", d.receipt.CommandID)
	}
	return d.receipt, nil
}

// barrier makes durable what is visible of a task: its log and the names of
// the log and of the folder. Another process may have written the frame and
// died before its own sync.
func (s *Store) barrier(id TaskID) error {
	d, err := s.taskDir(id)
	if err != nil {
		return err
	}
	defer d.Close()
	f, err := s.openLog(d, os.O_RDWR)
	if err != nil {
		return err
	}
	defer f.Close()
	return s.unknown(errors.Join(f.Sync(), s.fs.SyncDir(d), s.fs.SyncDir(s.tasks)))
}

// lockFor locks the command's task, making the folder of a new one.
func (s *Store) lockFor(ctx context.Context, c Command) (*Locked, error) {
	l, err := s.Lock(ctx, c.TaskID)
	var refusal *Error
	if c.Action.Submit == nil || !errors.As(err, &refusal) || refusal.Code != "not_found" {
		return l, err
	}
	// The folder and both lock files come before the log. Without a log they
	// are nothing: no reader shows them, and the next submit uses them.
	if err := s.fs.Mkdir(s.tasks, dirName(c.TaskID)); err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, err
	}
	d, err := s.tasks.OpenDir(dirName(c.TaskID))
	if err != nil {
		return nil, classify(err)
	}
	for _, name := range []string{lockName, ownerLockName} {
		f, err := s.fs.Open(d, name, os.O_RDWR|os.O_CREATE)
		if err != nil {
			d.Close()
			return nil, classify(err)
		}
		f.Close()
	}
	return s.lockIn(ctx, d, c.TaskID)
}

// Locked is the task's write lock, held over several steps. It belongs to one
// goroutine.
type Locked struct {
	s    *Store
	id   TaskID
	d    *saferead.Dir
	lock *os.File
	f    atomicfile.File // nil where the log does not exist yet
	e    *entry
	task *Task // never written to
}

// Lock takes the write lock of an existing task, polling until ctx ends:
// *Error store_busy then, not_found without the task. While it is held no
// command and no event of any process enters the task's log.
func (s *Store) Lock(ctx context.Context, id TaskID) (*Locked, error) {
	if err := s.usable(ctx); err != nil {
		return nil, err
	}
	d, err := s.taskDir(id)
	if err != nil {
		return nil, err
	}
	l, err := s.lockIn(ctx, d, id)
	if err == nil && l.f == nil {
		l.Unlock()
		return nil, refuse("not_found", "there is no such task")
	}
	return l, err
}

// lockIn locks in d, which it takes over, and reads what is there.
func (s *Store) lockIn(ctx context.Context, d *saferead.Dir, id TaskID) (*Locked, error) {
	lock, err := s.flock(ctx, d, lockName, exclusive)
	if err != nil {
		defer d.Close()
		// A submit that died before it made the lock file has made no task.
		if f, missing := s.openLog(d, os.O_RDONLY); refused(missing) {
			return nil, missing
		} else if missing == nil {
			f.Close()
		}
		return nil, err
	}
	l := &Locked{s: s, id: id, d: d, lock: lock, e: s.entryOf(dirName(id))}
	l.f, err = s.openLog(d, os.O_RDWR)
	if refused(err) {
		return l, nil // a submit is about to make it
	}
	if err == nil {
		_, err = l.current("")
	}
	if err != nil {
		l.Unlock()
		return nil, err
	}
	return l, nil
}

// facts is what the next record of a log goes by.
type facts struct {
	position
	task     *Task
	sequence int64
	at       int64
	events   int
	commands int
	done     *done // of the command that was asked about
}

func (st *state) facts(command string) facts {
	f := facts{st.position, st.task, st.sequence, st.at, st.events, len(st.commands), nil}
	if d, again := st.commands[command]; again {
		f.done = &d
	}
	return f
}

// current replays the log to its end, where it stays while the task is locked.
// command is whose receipt is asked for, or "".
func (l *Locked) current(command string) (facts, error) {
	l.e.mu.Lock()
	defer l.e.mu.Unlock()
	if err := l.e.refresh(l.d, l.f, l.id); err != nil {
		return facts{}, describe(l.d, err)
	}
	l.task = l.e.st.task
	return l.e.st.facts(command), nil
}

// Task is the task as of the lock or the last Append.
func (l *Locked) Task() Task { return l.task.clone() }

// Unlock gives the lock up. It may be called twice.
func (l *Locked) Unlock() {
	if l.f != nil {
		l.f.Close()
	}
	l.d.Close()
	l.lock.Close()
}

func (l *Locked) apply(ctx context.Context, c Command, request []byte) (Receipt, error) {
	var have facts
	if l.f != nil {
		var err error
		if have, err = l.current(c.CommandID); err != nil {
			return Receipt{}, err
		}
		if have.done != nil {
			r, err := have.done.again(request)
			if err != nil {
				return Receipt{}, err
			}
			return r, l.s.barrier(l.id)
		}
	}
	if have.commands >= maxCommands || have.end > l.s.fullLog {
		return Receipt{}, refuse("limit_exceeded", "the task has taken all the commands it can (%d, and %d MiB of log); make a new task", maxCommands, l.s.fullLog>>20)
	}
	at := max(l.s.now().Unix(), have.at)
	_, receipt, err := receiptOf(have.task, have.sequence, c, request, at)
	if err != nil {
		return Receipt{}, err
	}
	if err := l.s.reserve(ctx, identity{c.CommandID, c.TaskID, sha256.Sum256(request)}); err != nil {
		return Receipt{}, err
	}
	if err := l.write(have.position, frameCmd, commandRecord{at, receipt, request}.encode()); err != nil {
		return Receipt{}, err
	}
	return receipt, nil
}

// Append adds one owner event at the run's epoch (see NextEvent) and returns
// the task after it; durable when it returns. *Error on an illegal transition.
func (l *Locked) Append(epoch Epoch, ev Event) (Task, error) {
	if l.s.poisoned.Load() {
		return Task{}, ErrReopen
	}
	have, err := l.current("")
	if err != nil {
		return Task{}, err
	}
	odd := ev.Archived != nil || ev.Restored || ev.Worktree != nil || ev.NotStarted != nil || ev.Applied != nil || ev.WorktreeGone
	if odd && have.events >= maxOddEvents {
		return Task{}, refuse("limit_exceeded", "the task has taken all the events it can; make a new task")
	}
	at := max(l.s.now().Unix(), have.at)
	if _, err := NextEvent(have.task, epoch, ev, at); err != nil {
		return Task{}, err
	}
	payload := mustJSON(eventRecord{Sequence: have.sequence + 1, Epoch: epoch, Event: ev, At: at})
	// What a reader will find is judged, not what was meant.
	if rec, err := decodeEventRecord(payload); err != nil || len(payload) > maxFrame {
		return Task{}, refuse("limit_exceeded", "the event cannot be written (%d bytes)", len(payload))
	} else if _, err := NextEvent(have.task, epoch, rec.Event, at); err != nil {
		return Task{}, err
	}
	if err := l.write(have.position, frameEvent, payload); err != nil {
		return Task{}, err
	}
	return l.task.clone(), nil
}

// Append is Lock, Append, Unlock.
func (s *Store) Append(ctx context.Context, id TaskID, epoch Epoch, ev Event) (Task, error) {
	l, err := s.Lock(ctx, id)
	if err != nil {
		return Task{}, err
	}
	defer l.Unlock()
	return l.Append(epoch, ev)
}

// write adds one frame at the end of the log and replays it.
func (l *Locked) write(end position, kind byte, payload []byte) error {
	if err := l.stir(); err != nil {
		return err
	}
	if l.f == nil {
		if err := l.create(kind, payload); err != nil {
			return fmt.Errorf("make the log of task %s: %w", l.id, err)
		}
		_, err := l.current("")
		return err
	}
	l.e.mu.Lock()
	named := l.e.named
	l.e.mu.Unlock()
	if !named {
		// Whoever made the log may have died before its name was durable.
		if err := l.s.fs.SyncDir(l.d); err != nil {
			return err
		}
	}
	b := appendFrame(nil, kind, end.last, payload)
	// The sync in here is the commit point: a crash before it leaves
	// nothing or a torn frame, which no reader shows and the next writer
	// cuts off; a crash after it leaves the frame.
	if err := l.s.appendDurable(l.f, end.end, b); err != nil {
		return fmt.Errorf("append to the log of task %s: %w", l.id, err)
	}
	if err := l.advance(end, frame{kind: kind, payload: payload, hash: sha256.Sum256(b), size: int64(len(b))}); err != nil {
		return err
	}
	l.checkpoint()
	return nil
}

func (l *Locked) advance(end position, fr frame) error {
	l.e.mu.Lock()
	defer l.e.mu.Unlock()
	l.e.named = true
	if err := l.e.advance(l.d, l.f, l.id, end, fr); err != nil {
		return describe(l.d, err)
	}
	l.task = l.e.st.task
	return nil
}

// create makes the log with its first frame. The folder's own name is synced
// first, so that nobody can add to a task whose folder may vanish. The rename
// of the log shows the task, and the sync of the folder commits it: a crash
// before leaves no task, and the same command makes it again.
func (l *Locked) create(kind byte, payload []byte) error {
	if err := l.s.fs.SyncDir(l.s.tasks); err != nil {
		return err
	}
	b := appendHeader(nil, l.id)
	b = appendFrame(b, kind, sha256.Sum256(b), payload)
	err := atomicfile.WriteIn(l.s.fs, l.d, logName, b)
	if errors.Is(err, atomicfile.ErrUnknown) {
		return l.s.unknown(err)
	}
	if err != nil {
		return err
	}
	l.e.mu.Lock()
	l.e.named = true
	l.e.mu.Unlock()
	l.f, err = l.s.openLog(l.d, os.O_RDWR)
	return err
}
