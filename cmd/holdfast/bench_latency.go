package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"github.com/rs/zerolog"

	"holdfast/host/client"
	"holdfast/nip"
)

// commandTasks is over how many tasks a row's commands go: a correction is kept
// in its task, so one task would grow under the measurement.
const commandTasks = 8

// phone pairs a whole device, as people have one, and makes its tasks.
func (h *benchHost) phone(ctx context.Context) (*client.Device, []nip.TaskID, error) {
	d, err := client.Init(filepath.Join(h.dir, "phone"), client.Options{Loopback: true, Log: zerolog.Nop(), Now: h.clock.now})
	if err != nil {
		return nil, nil, err
	}
	_, code, err := h.invite(ctx, nip.StandardRights())
	if err == nil {
		_, err = d.Pair(ctx, code)
	}
	var tasks []nip.TaskID
	for i := 0; i < commandTasks && err == nil; i++ {
		var id nip.TaskID
		id, err = d.Create(ctx, nip.TaskCreate{Title: "a task", Prompt: "nobody runs this", Workspace: benchLabel})
		tasks = append(tasks, id)
	}
	if err != nil {
		return nil, nil, errors.Join(err, d.Close())
	}
	return d, tasks, nil
}

// exchange is one command of the device: from the moment at which its sealed
// request is ready to the verified reply.
func exchange(ctx context.Context, h *benchHost, d *client.Device, task nip.TaskID) (time.Duration, error) {
	op, err := steer(task, h.clock.now().Unix())
	if err != nil {
		return 0, err
	}
	x, err := d.Exchange(ctx, op)
	if err != nil {
		return 0, err
	}
	if _, ok := x.Reply.Outcome.(nip.Dispatched); !ok {
		return 0, fmt.Errorf("a command was answered with %T", x.Reply.Outcome)
	}
	return x.Took, nil
}

// commandLatency takes turns: a command, then its floor, so that both see the
// same machine.
func (b *bench) commandLatency(ctx context.Context) (rows []benchRow, err error) {
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
	disk, err := b.newFloorDisk()
	if err != nil {
		return nil, err
	}
	defer disk.close()
	crypto, err := newFloorCrypto()
	if err != nil {
		return nil, err
	}
	const warm, share = 5, 150 // the host keeps at most 256 replies of one device
	var path, floor samples
	began := time.Now()
	for i := range warm + b.size(500, 25) {
		if i%share == 0 {
			h.clock.forward(2 * time.Minute)
		}
		took, err := exchange(ctx, h, d, tasks[i%len(tasks)])
		if err != nil {
			return nil, err
		}
		at := time.Now()
		if err := errors.Join(crypto.command(), disk.command()); err != nil {
			return nil, err
		}
		if i >= warm {
			path, floor = append(path, took), append(floor, time.Since(at))
		}
		if time.Since(began) > 40*time.Second {
			break
		}
	}
	what := fmt.Sprintf("%d commands, one after the other; floor: median of %d verifications, %d signature, %d opened and %d sealed envelopes, "+
		"%d commits and %d synced appends in a row (its p99: %.3g ms)", len(path), floorVerify, floorSign, floorOpen, floorSeal, floorCommit, floorAppend, floor.ms(0.99))
	return []benchRow{
		{Name: "command-latency-p50", Value: path.ms(0.5), Unit: "ms", Floor: floor.ms(0.5), Aim: "<= 2", Detail: what},
		{Name: "command-latency-p99", Value: path.ms(0.99), Unit: "ms", Floor: floor.ms(0.5), Aim: "<= 4", Detail: what},
	}, nil
}
