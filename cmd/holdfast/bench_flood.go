package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"holdfast/host/client"
	"holdfast/nip"
)

// strangerFlood measures one paired device alone and then among strangers, who
// publish well-formed requests from many addresses as fast as the sockets take
// them. They are sealed before, and share the processors with the host.
func (b *bench) strangerFlood(ctx context.Context) (rows []benchRow, err error) {
	h, err := b.newHost(ctx, false)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, h.close()) }()
	d, tasks, err := h.phone(ctx)
	if err != nil {
		return nil, err
	}
	defer d.Close()
	n := b.size(200, 20) // the host keeps at most 256 replies of one device
	if _, err := exchanges(ctx, h, d, tasks, 5); err != nil {
		return nil, err
	}
	h.clock.forward(2 * time.Minute)
	quiet, err := exchanges(ctx, h, d, tasks, n)
	if err != nil {
		return nil, err
	}
	h.clock.forward(2 * time.Minute)
	f, err := h.newFlood(b.size(48, 8), b.size(64, 16))
	if err != nil {
		return nil, err
	}
	f.start(ctx)
	loud, err := exchanges(ctx, h, d, tasks, n)
	offered, seconds := f.end()
	if err != nil {
		return nil, fmt.Errorf("in the flood: %w", err)
	}
	return []benchRow{{
		Name: "stranger-flood", Value: loud.ms(0.99), Unit: "ms", Floor: quiet.ms(0.99),
		Detail: fmt.Sprintf("p99 of %d commands of one device while %d strangers offered %.0f events a second; floor: p99 of %d without them (medians %.3g and %.3g ms)",
			len(loud), len(f.foes), float64(offered)/seconds, len(quiet), loud.ms(0.5), quiet.ms(0.5)),
	}}, nil
}

// exchanges are up to n commands one after the other, and fewer where they take
// more than 20 s.
func exchanges(ctx context.Context, h *benchHost, d *client.Device, tasks []nip.TaskID, n int) (samples, error) {
	var out samples
	for began := time.Now(); len(out) < n && time.Since(began) < 20*time.Second; {
		took, err := exchange(ctx, h, d, tasks[len(out)%len(tasks)])
		if err != nil {
			return nil, err
		}
		out = append(out, took)
	}
	return out, nil
}

// flood is many strangers, each with a connection from an address of its own,
// because a relay counts what it takes from strangers by address.
type flood struct {
	foes    []*benchDevice
	events  [][]*nip.Event
	offered atomic.Int64
	began   time.Time
	cancel  context.CancelFunc
	all     sync.WaitGroup
}

func (h *benchHost) newFlood(foes, each int) (*flood, error) {
	f := &flood{}
	for i := range foes {
		key, err := nip.GenerateSecretKey(rand.Reader)
		if err != nil {
			return nil, err
		}
		d := &benchDevice{h: h, key: key, ring: nip.NewKeyring(key, 1)}
		var list []*nip.Event
		for range each {
			// As far ahead as a host believes: they must live while they are made.
			r, err := d.seal(nip.WorkspaceList{}, h.clock.now().Unix()+50, 60)
			if err != nil {
				return nil, err
			}
			list = append(list, r.event)
		}
		d.open(false, fmt.Sprintf("127.0.%d.%d", 2+i/200, 1+i%200))
		f.foes, f.events = append(f.foes, d), append(f.events, list)
	}
	return f, nil
}

// start lets every stranger offer its events round and round, several at once.
func (f *flood) start(ctx context.Context) {
	ctx, f.cancel = context.WithCancel(ctx)
	f.began = time.Now()
	for i, d := range f.foes {
		var next atomic.Int64
		for range 4 {
			f.all.Go(func() {
				for ctx.Err() == nil {
					n := int(next.Add(1)-1) % len(f.events[i])
					_ = d.link.Publish(ctx, f.events[i][n]) // refused or not, it was offered
					f.offered.Add(1)
				}
			})
		}
	}
}

func (f *flood) end() (offered int64, seconds float64) {
	seconds = time.Since(f.began).Seconds()
	f.cancel()
	f.all.Wait()
	closeDevices(f.foes)
	return f.offered.Load(), seconds
}
