package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/rs/zerolog"

	"holdfast/host"
	"holdfast/host/client"
	"holdfast/nip"
)

// newTour is this program as child processes, in a new home.
func (b *bench) newTour() (*tour, error) {
	b.homes++
	dir := filepath.Join(b.dir, fmt.Sprint(b.homes))
	if err := os.Mkdir(dir, 0o700); err != nil {
		return nil, err
	}
	exe, err := selfProgram()
	if err != nil {
		return nil, err
	}
	t := &tour{g: b.g, exe: exe, dir: dir, home: filepath.Join(dir, "home")}
	t.listen, err = freeLoopback()
	return t, err
}

// ready starts the host and waits until it serves.
func (t *tour) ready(ctx context.Context) (*tourProcess, map[string]any, error) {
	p, err := t.spawn("serve", "--json", "--home", t.home, "--listen", t.listen)
	if err != nil {
		return nil, nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, 60*time.Second)
	defer cancel()
	line, _, err := p.await(ctx, 0, "the host to serve", isEvent("ready"))
	if err != nil {
		p.kill()
	}
	return p, line, err
}

// startUp starts a host that was there before, and the same program for its
// version, by turns.
func (b *bench) startUp(ctx context.Context) ([]benchRow, error) {
	t, err := b.newTour()
	if err != nil {
		return nil, err
	}
	if err := t.operator(ctx, nil, "init"); err != nil {
		return nil, err
	}
	var up, floor samples
	for i := range 1 + b.size(15, 3) {
		began := time.Now()
		if err := t.verb(ctx, nil, "version"); err != nil {
			return nil, err
		}
		v := time.Since(began)
		began = time.Now()
		p, _, err := t.ready(ctx)
		if err != nil {
			return nil, err
		}
		took := time.Since(began)
		p.end()
		if i > 0 {
			up, floor = append(up, took), append(floor, v)
		}
	}
	return []benchRow{{
		Name: "start-up", Value: up.ms(0.5), Unit: "ms", Floor: floor.ms(0.5),
		Detail: fmt.Sprintf("median of %d starts of a home with its relay, from the start of the process to its ready line; floor: the same program printing its version", len(up)),
	}}, nil
}

// idle looks at a host that has one device connected and nothing to do.
func (b *bench) idle(ctx context.Context) (_ []benchRow, err error) {
	if _, err := usageOf(os.Getpid()); err != nil {
		return nil, fmt.Errorf("%w: %w", errNotHere, err)
	}
	t, err := b.newTour()
	if err != nil {
		return nil, err
	}
	if err := t.operator(ctx, nil, "init"); err != nil {
		return nil, err
	}
	p, _, err := t.ready(ctx)
	if err != nil {
		return nil, err
	}
	defer p.end()
	d, err := t.connected(ctx)
	if err != nil {
		return nil, err
	}
	defer d.Close()
	sleeper := exec.Command(t.exe, "bench", "--idle-process")
	sleeper.Env = t.environment()
	in, err := sleeper.StdinPipe()
	if err == nil {
		err = sleeper.Start()
	}
	if err != nil {
		return nil, fmt.Errorf("start an idle process: %w", err)
	}
	defer func() { err = errors.Join(err, in.Close(), sleeper.Wait()) }()

	window := time.Duration(b.size(30, 3)) * time.Second
	if err := wait(ctx, time.Duration(b.size(5, 1))*time.Second); err != nil { // what the start left behind
		return nil, err
	}
	host0, err0 := usageOf(p.cmd.Process.Pid)
	idle0, err1 := usageOf(sleeper.Process.Pid)
	began := time.Now()
	if err := errors.Join(err0, err1, wait(ctx, window)); err != nil {
		return nil, err
	}
	host1, err0 := usageOf(p.cmd.Process.Pid)
	idle1, err1 := usageOf(sleeper.Process.Pid)
	if err := errors.Join(err0, err1); err != nil {
		return nil, err
	}
	minutes := time.Since(began).Minutes()
	what := fmt.Sprintf("over %.0f s, one device connected and no work; floor: a process of the same program that waits for the end of its input", window.Seconds())
	return []benchRow{
		{Name: "idle-cpu", Value: used(host0, host1) / minutes, Unit: "s/min", Floor: used(idle0, idle1) / minutes, Detail: "processor seconds a minute " + what},
		{Name: "idle-memory", Value: float64(host1.resident), Unit: "bytes", Floor: float64(idle1.resident), Detail: "resident bytes " + what},
	}, nil
}

// connected pairs a device of this process and leaves its connection open.
func (t *tour) connected(ctx context.Context) (*client.Device, error) {
	var inv host.Invited
	if err := t.operator(ctx, &inv, "invite"); err != nil {
		return nil, err
	}
	d, err := client.Init(t.profile("phone"), client.Options{Loopback: true, Log: zerolog.Nop()})
	if err != nil {
		return nil, err
	}
	if _, err = d.Pair(ctx, inv.Code); err == nil {
		_, err = d.Call(ctx, nip.WorkspaceList{})
	}
	if err != nil {
		return nil, errors.Join(err, d.Close())
	}
	return d, nil
}

func wait(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// processUsage is what a process has used and holds.
type processUsage struct {
	cpu      time.Duration
	resident int64 // bytes
}

// used is the processor time between two looks, in seconds. A process that sleeps
// may use nothing; a microsecond stands for it, so that there is a ratio.
func used(before, after processUsage) float64 {
	return max(after.cpu-before.cpu, time.Microsecond).Seconds()
}

// usageOf reads a process's use from /proc: the scheduler's own count of each
// thread, which is finer than the clock ticks of its stat.
func usageOf(pid int) (processUsage, error) {
	var u processUsage
	threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/schedstat", pid))
	if err != nil || len(threads) == 0 {
		return u, errors.New("this system does not show what a process uses (/proc/PID/task/TID/schedstat)")
	}
	for _, path := range threads {
		raw, err := os.ReadFile(path)
		if errors.Is(err, os.ErrNotExist) {
			continue // it ended
		}
		if err != nil {
			return u, err
		}
		first, _, _ := strings.Cut(string(raw), " ")
		ns, err := strconv.ParseInt(first, 10, 64)
		if err != nil {
			return u, fmt.Errorf("%s: %w", path, err)
		}
		u.cpu += time.Duration(ns)
	}
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", pid))
	if err != nil {
		return u, err
	}
	f := strings.Fields(string(raw))
	if len(f) < 2 {
		return u, fmt.Errorf("/proc/%d/statm cannot be read", pid)
	}
	pages, err := strconv.ParseInt(f[1], 10, 64)
	u.resident = pages * int64(os.Getpagesize())
	return u, err
}
