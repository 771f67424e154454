package sandbox

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// Probe finds out what this machine can enforce, by starting a sandbox and
// trying forbidden acts in it. Callers keep the answer for the life of the
// process.
func Probe() Capability {
	checks, gaps, err := probe()
	if err != nil {
		return Capability{
			Checks: []Check{{Name: "start a sandbox", Detail: err.Error(), Fix: "this backend was never run on a Mac; report what it says"}},
			Gaps:   []string{"nothing can be enforced, so no turn is started"},
		}
	}
	c := Capability{Mechanism: "darwin-seatbelt", Checks: checks, Gaps: gaps}
	for _, check := range checks {
		if !check.OK {
			c.Mechanism = ""
		}
	}
	return c
}

func probe() ([]Check, []string, error) {
	work, err := os.MkdirTemp("", "holdfast-probe-")
	if err != nil {
		return nil, nil, err
	}
	defer os.RemoveAll(work)
	if work, err = filepath.EvalSymlinks(work); err != nil {
		return nil, nil, err
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, nil, err
	}
	defer listener.Close()
	spec := Spec{Program: "/bin/sh", Workspace: work, Write: true, Wall: 10 * time.Second, StreamBytes: 64 << 10,
		MemoryBytes: 512 << 20}.withDefaults()
	p, err := launchPlan(spec, listener.Addr().String())
	if err != nil {
		return nil, nil, err
	}
	if err := p.Release(); err != nil {
		p.Stop()
		p.Wait()
		return nil, nil, err
	}
	var answer []byte
	for c := range p.Chunks() {
		if c.Stream == Stdout {
			answer = append(answer, c.Bytes...)
		}
	}
	r := p.Wait()
	var checks []Check
	if err := json.Unmarshal(answer, &checks); err != nil || len(checks) == 0 {
		return nil, nil, fmt.Errorf("the probe gave no answer: ending %d, fault %q", r.Ending, r.Fault)
	}
	_, err = os.Stat(filepath.Join(work, "written"))
	return append(checks,
		check("the workspace can be written", err == nil, "the probe's file is not there"),
		check("nothing that was found outlives a turn", r.Cleanup.Confirmed, fmt.Sprintf("left %d", r.Cleanup.Left))), r.Report.Gaps, nil
}

// probeMain tries, inside, what no program may be able to do.
func probeMain(p gatePlan) {
	refused := func(name string, err error) Check {
		return check(name, errors.Is(err, unix.EPERM), fmt.Sprintf("the attempt gave: %v", err))
	}
	_, secret := os.ReadFile(string(p.Sentinel))
	beside := os.WriteFile(filepath.Join(filepath.Dir(string(p.Dir)), ".holdfast-probe"), nil, 0o600)
	conn, dial := net.DialTimeout("tcp", p.Address, time.Second)
	if conn != nil {
		conn.Close()
	}
	_, keys := os.ReadDir("/Library/Keychains")
	checks := []Check{
		refused("files outside the workspace cannot be read", secret),
		refused("files outside the workspace cannot be written", beside),
		refused("the host's network cannot be reached", dial),
		refused("keychains cannot be read", keys),
		refused("processes outside cannot be signalled", unix.Kill(os.Getppid(), 0)),
	}
	os.WriteFile("written", nil, 0o600)
	b, err := json.Marshal(checks)
	if err != nil {
		os.Exit(1)
	}
	(rawFile(1)).Write(b)
	os.Exit(0)
}

// check keeps the detail and the advice only where the check failed.
func check(name string, ok bool, detail string) Check {
	if ok {
		return Check{Name: name, OK: true}
	}
	return Check{Name: name, Detail: detail, Fix: "sandbox-exec must apply profiles as macOS documents them; no turn runs without"}
}
