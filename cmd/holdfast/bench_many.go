package main

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"

	"holdfast/nip"
)

// benchWork is one device's sealed commands, and where their replies come.
type benchWork struct {
	d       *benchDevice
	list    []benchRequest
	replies []chan nip.Reply
}

// sealAll makes each device's commands ahead of the clock, on all processors:
// what devices do is not the host's work.
func sealAll(list []*benchDevice, each int, at int64) ([]benchWork, error) {
	work := make([]benchWork, len(list))
	var g errgroup.Group
	g.SetLimit(runtime.GOMAXPROCS(0))
	for i, d := range list {
		g.Go(func() error {
			work[i].d = d
			for range each {
				op, err := steer(d.task, at)
				if err != nil {
					return err
				}
				r, err := d.seal(op, at, 60)
				if err != nil {
					return err
				}
				work[i].list = append(work[i].list, r)
				work[i].replies = append(work[i].replies, d.expect(r))
			}
			return nil
		})
	}
	return work, g.Wait()
}

// tally is what the host said.
type tally struct{ accepted, refused, unanswered atomic.Int64 }

func (t *tally) String() string {
	return fmt.Sprintf("%d accepted, %d refused for want of room, %d without a reply", t.accepted.Load(), t.refused.Load(), t.unanswered.Load())
}

func (t *tally) count(r nip.Reply, err error) error {
	switch {
	case errors.Is(err, errNoReply):
		t.unanswered.Add(1)
	case err != nil:
		return err
	case r.Refusal == nil:
		t.accepted.Add(1)
	case r.Refusal.Code == nip.Bounds:
		t.refused.Add(1)
	default:
		return fmt.Errorf("a command was refused: %s", r.Refusal.Code)
	}
	return nil
}

// drive sends everything, each device with window requests on their way at once,
// and returns when every request has its reply or ctx ended.
func drive(ctx context.Context, work []benchWork, window int) (*tally, error) {
	t := &tally{}
	g, ctx := errgroup.WithContext(ctx)
	for _, w := range work {
		var next atomic.Int64
		for range window {
			g.Go(func() error {
				for i := next.Add(1) - 1; int(i) < len(w.list); i = next.Add(1) - 1 {
					var rep nip.Reply
					var err error
					select {
					case rep = <-w.replies[i]: // it was waiting on the relay
					default:
						rep, err = w.d.send(ctx, w.list[i], w.replies[i])
					}
					if ctx.Err() != nil {
						err = errNoReply
					}
					if err := t.count(rep, err); err != nil {
						return err
					}
				}
				return nil
			})
		}
	}
	return t, g.Wait()
}

// cpuTime is what this process has used of all processors.
func cpuTime() time.Duration {
	var u syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &u) != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// commandRate sends rounds that stay below the 1,024 replies that a host retains
// of one device for a minute; the clock is put forward between them.
func (b *bench) commandRate(ctx context.Context) (rows []benchRow, err error) {
	h, err := b.newHost(ctx, false)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, h.close()) }()
	list, err := h.pairMany(ctx, b.size(64, 8), false)
	defer func() { closeDevices(list) }()
	if err != nil {
		return nil, err
	}
	const window = 4
	most, rounds := b.size(15, 6), b.size(4, 1)
	each := min(most, 6) // until it is known how busy the machine is
	var done float64     // rounds
	var took, cpu time.Duration
	var floor, floorCPU float64
	var sum tally
	start := time.Now()
	for i := range rounds + 1 {
		f, fcpu, err := floorRate(time.Duration(b.size(1000, 300)) * time.Millisecond)
		if err != nil {
			return nil, err
		}
		work, err := sealAll(list, each, h.clock.now().Unix())
		if err != nil {
			return nil, err
		}
		round, cancel := context.WithTimeout(ctx, 50*time.Second) // the requests live a minute
		began, used := time.Now(), cpuTime()
		t, err := drive(round, work, window)
		lasted := time.Since(began)
		used = cpuTime() - used
		cancel()
		if err != nil {
			return nil, err
		}
		h.clock.forward(2 * time.Minute)
		if i == 0 {
			// The first one warms up. The others are to take less than half a
			// minute each, or requests would run out.
			rate := float64(t.accepted.Load()) / lasted.Seconds()
			each = min(most, max(2, int(25*rate)/len(list)))
			continue
		}
		took, floor = took+lasted, floor+f
		cpu, floorCPU = cpu+used, floorCPU+fcpu
		sum.accepted.Add(t.accepted.Load())
		sum.refused.Add(t.refused.Load())
		sum.unanswered.Add(t.unanswered.Load())
		if done++; time.Since(start) > 40*time.Second {
			break
		}
	}
	if sum.unanswered.Load() > sum.accepted.Load() {
		return nil, fmt.Errorf("%w: the machine is too busy: %s in a minute", errNotHere, &sum)
	}
	accepted := float64(max(sum.accepted.Load(), 1))
	what := fmt.Sprintf("%d devices, %d requests on their way for each, %.0f rounds of %d commands: %s; floor: the cryptography of these commands",
		len(list), window, done, each*len(list), &sum)
	return []benchRow{
		{Name: "commands-per-second-64", Value: accepted / took.Seconds(), Unit: "/s", Floor: floor / done, Aim: ">= 0.7",
			Detail: fmt.Sprintf("%s on %d processors", what, runtime.GOMAXPROCS(0))},
		{Name: "command-cpu-64", Value: millis(cpu) / accepted, Unit: "ms", Floor: floorCPU / done,
			Detail: what + "; processor time of a command, its device's part included"},
	}, nil
}

// backlog lets commands wait on a relay while no host runs. The relay shows a
// new subscription its newest 500 only, so the devices publish again what has no
// answer, a few at a time, as devices do.
func (b *bench) backlog(ctx context.Context) (rows []benchRow, err error) {
	h, err := b.newHost(ctx, true)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, h.close()) }()
	list, err := h.pairMany(ctx, b.size(100, 10), true)
	defer func() { closeDevices(list) }()
	if err != nil {
		return nil, err
	}
	if err := h.stop(); err != nil {
		return nil, err
	}
	each := b.size(100, 10)
	floor, _, err := floorRate(time.Duration(b.size(2000, 300)) * time.Millisecond)
	if err != nil {
		return nil, err
	}
	// As far ahead as a host believes a device's clock: the requests must live
	// while they are made and while they wait.
	work, err := sealAll(list, each, h.clock.now().Unix()+50)
	if err != nil {
		return nil, err
	}
	var g errgroup.Group
	for _, w := range work {
		g.Go(func() error {
			for _, r := range w.list {
				if err := w.d.link.Publish(ctx, r.event); err != nil {
					return err
				}
			}
			return nil
		})
	}
	if err := g.Wait(); err != nil {
		return nil, fmt.Errorf("publish the backlog: %w", err)
	}
	n := each * len(list)
	b.say("%d commands wait", n)
	const window = 8
	limit, cancel := context.WithTimeout(ctx, 60*time.Second)
	defer cancel()
	began := time.Now()
	if err := h.start(ctx); err != nil {
		return nil, err
	}
	t, err := drive(limit, work, window)
	took := time.Since(began)
	if err != nil {
		return nil, err
	}
	if t.unanswered.Load() > 0 {
		return nil, fmt.Errorf("%w: not over after a minute, when the requests run out: %s", errNotHere, t)
	}
	return []benchRow{{
		Name: "backlog-10000-100", Value: took.Seconds(), Unit: "s", Floor: float64(n) / floor,
		Detail: fmt.Sprintf("%d commands of %d devices: %s; floor: the cryptography of as many commands on %d processors", n, len(list), t, runtime.GOMAXPROCS(0)),
	}}, nil
}
