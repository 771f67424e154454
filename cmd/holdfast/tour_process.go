package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// selfProgram is this very program, also after its file was replaced.
func selfProgram() (string, error) {
	const self = "/proc/self/exe"
	if _, err := os.Stat(self); err == nil {
		return self, nil
	}
	exe, err := os.Executable()
	if err != nil {
		return "", fmt.Errorf("find this program: %w", err)
	}
	return exe, nil
}

// tourProcess is a child that prints JSON lines: the host, or a watching
// device.
type tourProcess struct {
	cmd    *exec.Cmd
	errors bytes.Buffer
	ended  chan struct{}

	// mu guards lines and grew.
	mu    sync.Mutex
	lines []map[string]any
	grew  chan struct{} // closed and replaced at each line
}

// spawn starts a verb that stays.
func (t *tour) spawn(args ...string) (*tourProcess, error) {
	p := &tourProcess{cmd: exec.Command(t.exe, args...), ended: make(chan struct{}), grew: make(chan struct{})}
	p.cmd.Env = t.environment()
	p.cmd.Stderr = &p.errors
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		return nil, fmt.Errorf("start holdfast %s: %w", args[0], err)
	}
	if err := p.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start holdfast %s: %w", args[0], err)
	}
	go func() {
		in := bufio.NewScanner(out)
		in.Buffer(nil, 1<<20)
		for in.Scan() {
			var v map[string]any
			if json.Unmarshal(in.Bytes(), &v) == nil {
				p.mu.Lock()
				p.lines = append(p.lines, v)
				close(p.grew)
				p.grew = make(chan struct{})
				p.mu.Unlock()
			}
		}
		_ = p.cmd.Wait()
		close(p.ended)
	}()
	return p, nil
}

func (t *tour) environment() []string {
	return []string{"PATH=" + os.Getenv("PATH"), "HOME=" + t.dir, "HOLDFAST_LOG=info"}
}

// await returns the first line, from index from on, that match accepts, and
// the index behind it.
func (p *tourProcess) await(ctx context.Context, from int, what string, match func(map[string]any) bool) (map[string]any, int, error) {
	for {
		// Whether it ended is asked before its lines are looked at: the last ones
		// of a process are there before its end is.
		over := false
		select {
		case <-p.ended:
			over = true
		default:
		}
		p.mu.Lock()
		for i := from; i < len(p.lines); i++ {
			if match(p.lines[i]) {
				line := p.lines[i]
				p.mu.Unlock()
				return line, i + 1, nil
			}
		}
		grew := p.grew
		p.mu.Unlock()
		if over {
			return nil, 0, fmt.Errorf("waited for %s, but the process ended: %s", what, lastLine(p.errors.String()))
		}
		select {
		case <-grew:
		case <-p.ended:
		case <-ctx.Done():
			return nil, 0, fmt.Errorf("waited for %s", what)
		}
	}
}

// kill is kill -9, and waits until the process is gone.
func (p *tourProcess) kill() {
	_ = p.cmd.Process.Kill()
	<-p.ended
}

// end asks politely and waits.
func (p *tourProcess) end() {
	_ = p.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-p.ended:
	case <-time.After(10 * time.Second):
		p.kill()
	}
}

// freeLoopback is a free loopback address below the ports that the kernel gives
// to outgoing connections: it stays free while the host that owns it is dead,
// and no other process is handed it meanwhile.
func freeLoopback() (string, error) {
	for range 200 {
		addr := net.JoinHostPort("127.0.0.1", strconv.Itoa(20_000+rand.IntN(12_000)))
		if ln, err := net.Listen("tcp", addr); err == nil {
			return addr, ln.Close()
		}
	}
	return "", errors.New("no free loopback port")
}

// cliFailure is a verb that ended with an error document.
type cliFailure struct {
	verb    string
	exit    int
	code    string
	message string
}

func (e *cliFailure) Error() string {
	return fmt.Sprintf("holdfast %s: exit %d, %s: %s", e.verb, e.exit, e.code, e.message)
}

// verb runs one verb to its end and decodes its JSON document.
func (t *tour) verb(ctx context.Context, into any, args ...string) error {
	return t.verbWith(ctx, nil, into, args...)
}

// verbWith is verb with something on its standard input.
func (t *tour) verbWith(ctx context.Context, stdin []byte, into any, args ...string) error {
	c := exec.CommandContext(ctx, t.exe, append([]string{"--json"}, args...)...)
	c.Env = t.environment()
	var out, errs bytes.Buffer
	c.Stdin, c.Stdout, c.Stderr = bytes.NewReader(stdin), &out, &errs
	if err := c.Run(); err != nil {
		var exit *exec.ExitError
		if !errors.As(err, &exit) {
			return fmt.Errorf("run holdfast %s: %w", args[0], err)
		}
		f := &cliFailure{verb: strings.Join(args[:min(2, len(args))], " "), exit: exit.ExitCode(), message: lastLine(errs.String())}
		var doc struct {
			Error struct{ Code, Message string } `json:"error"`
		}
		if json.Unmarshal([]byte(lastLine(errs.String())), &doc) == nil && doc.Error.Code != "" {
			f.code, f.message = doc.Error.Code, doc.Error.Message
		}
		return f
	}
	if into == nil {
		return nil
	}
	if err := json.Unmarshal(out.Bytes(), into); err != nil {
		return fmt.Errorf("holdfast %s printed no document: %w", args[0], err)
	}
	return nil
}

func lastLine(s string) string {
	lines := strings.Split(strings.TrimSpace(s), "\n")
	return lines[len(lines)-1]
}

// operator runs a verb of the person at the machine.
func (t *tour) operator(ctx context.Context, into any, args ...string) error {
	return t.verb(ctx, into, append(args, "--home", t.home)...)
}

// phone runs a verb of the device that works: a process of its own with its
// own key, which knows the relay and nothing else of this machine.
func (t *tour) phone(ctx context.Context, into any, args ...string) error {
	return t.verb(ctx, into, append([]string{"device"}, append(args, "--profile", t.profile("phone"))...)...)
}

func (t *tour) profile(name string) string { return filepath.Join(t.dir, name) }
