package commit

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"runtime/debug"
	"strings"

	"go.etcd.io/bbolt"
	berrors "go.etcd.io/bbolt/errors"
)

// groupLimit bounds the closures of one transaction, so that the first of them
// is not kept waiting by the rest.
const groupLimit = 256

// request is one closure on its way through the committer.
type request struct {
	ctx  context.Context
	fn   func(tx *bbolt.Tx) error
	done chan struct{}
	err  error
	// panicked holds what fn panicked with; Update panics with it again, on
	// the caller's goroutine.
	panicked *callerPanic
}

// callerPanic is a closure's panic and where it happened.
type callerPanic struct {
	value any
	stack []byte
}

func (p *callerPanic) Error() string {
	return fmt.Sprintf("%v\n\nin a transaction's closure:\n%s", p.value, p.stack)
}

// Unwrap is the value itself where it was an error.
func (p *callerPanic) Unwrap() error {
	err, _ := p.value.(error)
	return err
}

// Update runs fn in a read-write transaction and returns nil only after its
// fsync. A context that ends before the committer takes the request means that
// fn never ran; afterwards Update waits for the outcome whatever ctx says.
func (d *DB) Update(ctx context.Context, fn func(tx *bbolt.Tx) error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if err := d.refusal(); err != nil {
		return err
	}
	r := &request{ctx: ctx, fn: fn, done: make(chan struct{})}
	select {
	case d.requests <- r:
	case <-ctx.Done():
		return ctx.Err()
	case <-d.closing:
		return ErrClosed
	}
	<-r.done
	if r.panicked != nil {
		panic(r.panicked)
	}
	return r.err
}

// View runs fn in a read-only transaction. What it read is on disk by the time
// it returns nil. fn must not call Update.
func (d *DB) View(fn func(tx *bbolt.Tx) error) error {
	if err := d.refusal(); err != nil {
		return err
	}
	var id int64
	err := guard(func() error {
		return d.bolt.View(func(tx *bbolt.Tx) error {
			id = int64(tx.ID())
			return fn(tx)
		})
	})
	if id > d.durable.Load() {
		// fn saw a commit whose sync still runs. A crash now could take it
		// back, so its outcome is awaited before anybody acts on it.
		d.inflight.RLock()
		//lint:ignore SA2001 the lock is the wait
		d.inflight.RUnlock()
		if err := d.refusal(); errors.Is(err, ErrPoisoned) {
			return err
		}
	}
	if errors.Is(err, berrors.ErrDatabaseNotOpen) {
		return ErrClosed
	}
	return err
}

// refusal says why the store takes no more work.
func (d *DB) refusal() error {
	select {
	case <-d.poisoned:
		return fmt.Errorf("%w: %w", ErrPoisoned, *d.cause.Load())
	default:
	}
	select {
	case <-d.closing:
		return ErrClosed
	default:
		return nil
	}
}

// run is the committer: the only goroutine that ever begins a read-write
// transaction.
func (d *DB) run() {
	defer close(d.done)
	for {
		select {
		case <-d.closing:
			return
		case r := <-d.requests:
			d.commit(d.gather(r))
		}
	}
}

// gather adds whatever waits right now to first; it never waits itself.
func (d *DB) gather(first *request) []*request {
	group := []*request{first}
	for len(group) < groupLimit {
		select {
		case r := <-d.requests:
			group = append(group, r)
		default:
			return group
		}
	}
	return group
}

// commit settles every request of the group. A closure that fails is set
// aside, the rest is run again without it, and those set aside run last, each
// alone, so that nobody's error came from a neighbour's half-done work.
func (d *DB) commit(group []*request) {
	var aside []*request
	for len(group) > 0 {
		failed := d.try(group)
		if failed < 0 {
			break
		}
		if len(group) == 1 {
			settle(group[0])
			break
		}
		aside = append(aside, group[failed])
		group = append(group[:failed:failed], group[failed+1:]...)
	}
	for _, r := range aside {
		r.err, r.panicked = nil, nil
		if d.try([]*request{r}) >= 0 {
			settle(r)
		}
	}
}

func settle(r *request) { close(r.done) }

// try runs the group in one transaction. It returns the index of a closure
// that failed, with nothing committed and nobody settled; or -1, with every
// request settled.
func (d *DB) try(group []*request) int {
	if err := d.refusal(); errors.Is(err, ErrPoisoned) {
		return settleAll(group, err)
	}
	d.inflight.Lock()
	defer d.inflight.Unlock()
	failed, ran, id := -1, false, int64(0)
	err := guard(func() error {
		return d.bolt.Update(func(tx *bbolt.Tx) error {
			id = int64(tx.ID())
			for i, r := range group {
				if err := r.run(tx); err != nil {
					failed = i
					return err
				}
			}
			ran = true
			return nil
		})
	})
	switch {
	case err == nil:
		d.durable.Store(id)
		return settleAll(group, nil)
	case failed >= 0 && !errors.Is(group[failed].err, errDamaged):
		return failed
	case !ran && failed < 0 && !errors.Is(err, ErrCorrupt):
		return settleAll(group, err) // the transaction did not even begin
	}
	// A crash before this point and this error mean the same: the commit may
	// have landed or not. Only reopening tells.
	d.poison(err)
	return settleAll(group, fmt.Errorf("%w: %w", ErrPoisoned, err))
}

func settleAll(group []*request, err error) int {
	for _, r := range group {
		r.err = err
		settle(r)
	}
	return -1
}

func (d *DB) poison(cause error) {
	d.cause.Store(&cause)
	close(d.poisoned)
}

// errDamaged marks a closure that met a damaged page.
var errDamaged = errors.New("a page cannot be read")

// run calls the closure once. Its error, its panic and a context that ended
// before it began are all reported as a failure of this request alone.
func (r *request) run(tx *bbolt.Tx) (err error) {
	if r.err = r.ctx.Err(); r.err != nil {
		return r.err
	}
	defer func() {
		if v := recover(); v != nil {
			if damaged(v) {
				r.err = fmt.Errorf("%w: %w: %v", ErrCorrupt, errDamaged, v)
			} else {
				r.panicked = &callerPanic{value: v, stack: debug.Stack()}
				r.err = errors.New("closure panicked")
			}
			err = r.err
		}
	}()
	r.err = r.fn(tx)
	return r.err
}

// guard turns a panic of bbolt, which is how it reports a damaged file, and a
// memory fault in its mapping into ErrCorrupt. Other panics pass.
func guard(fn func() error) (err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if v := recover(); v != nil {
			if !damaged(v) {
				panic(v)
			}
			err = fmt.Errorf("%w: %v", ErrCorrupt, v)
		}
	}()
	return fn()
}

// damaged says whether a recovered panic came from bbolt or its mapping. Call
// it in the deferred function that recovered, while the stack still stands.
func damaged(v any) bool {
	if _, ok := v.(interface{ Addr() uintptr }); ok {
		return true // a fault on a mapped page
	}
	pcs := make([]uintptr, 64)
	frames := runtime.CallersFrames(pcs[:runtime.Callers(2, pcs)])
	below := false
	for {
		f, more := frames.Next()
		if f.Function == "runtime.gopanic" {
			below = true
		} else if below && !strings.HasPrefix(f.Function, "runtime.") {
			return strings.HasPrefix(f.Function, "go.etcd.io/bbolt")
		}
		if !more {
			return false
		}
	}
}
