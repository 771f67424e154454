package owner

import (
	"context"
	"errors"
	"fmt"
	"syscall"
	"time"
)

// How long evidence waits for room on a full disk, and between tries.
const (
	roomWait = 600 * time.Second
	roomStep = 2 * time.Second
)

// patience retries a write that failed for want of room: every 2 s, for 600 s. While it waits its caller does
// nothing else, so a turn on a full disk makes no further effect.
type patience struct {
	// sleep waits d or until ctx ends; tests put their own clock here.
	sleep func(ctx context.Context, d time.Duration) error
}

// do calls write until it succeeds, fails for another reason, or the wait is over. write must leave nothing behind
// when it fails. The last error is wrapped.
func (p patience) do(ctx context.Context, write func() error) error {
	for waited := time.Duration(0); ; waited += roomStep {
		err := write()
		if !diskFull(err) {
			return err
		}
		if waited >= roomWait {
			return fmt.Errorf("%w: %w", errStillFull, err)
		}
		if stop := p.sleep(ctx, roomStep); stop != nil {
			return fmt.Errorf("%w: %w", stop, err)
		}
	}
}

// errStillFull ends a wait for room.
var errStillFull = errors.New("the disk is full; free some room and try again")

// diskFull reports whether err means that room may come back, and that nothing was written. A sync that failed for
// want of room is not that: its outcome is not known.
func diskFull(err error) bool {
	return (errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT)) && !errors.Is(err, ErrReopen) && !errors.Is(err, errTornLine)
}

// sleepFor is the sleep of real owners.
func sleepFor(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
