package host

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.etcd.io/bbolt"

	"holdfast/nip"
	"holdfast/owner"
	"holdfast/sandbox"
)

const paperRelay nip.RelayURL = "wss://relay.example.com/"

// clock is the time of a test, in whole seconds.
type clock struct{ at atomic.Int64 }

func (c *clock) Now() time.Time    { return time.Unix(c.at.Load(), 0) }
func (c *clock) add(seconds int64) { c.at.Add(seconds) }
func (c *clock) now() int64        { return c.at.Load() }

// paper is a Transport of paper: it keeps what was published and does as told.
type paper struct {
	in chan Inbound

	mu           sync.Mutex // guards what follows
	published    []*nip.Event
	authors      []nip.PubKey
	disconnected []nip.PubKey
	refuse       func(ev *nip.Event) error
}

func newPaper() *paper { return &paper{in: make(chan Inbound, 64)} }

func (p *paper) Inbound() <-chan Inbound { return p.in }
func (p *paper) Relays() []RelayHealth {
	return []RelayHealth{{URL: paperRelay, State: "connected", Authenticated: true}}
}
func (p *paper) Authors(keys []nip.PubKey) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.authors = slices.Clone(keys)
}
func (p *paper) Disconnect(key nip.PubKey) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.disconnected = append(p.disconnected, key)
}
func (p *paper) Publish(_ context.Context, relay nip.RelayURL, ev *nip.Event) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if relay != paperRelay {
		return fmt.Errorf("not on %s", relay)
	}
	if p.refuse != nil {
		if err := p.refuse(ev); err != nil {
			return err
		}
	}
	p.published = append(p.published, ev)
	return nil
}
func (p *paper) refusing(fn func(ev *nip.Event) error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.refuse = fn
}
func (p *paper) all() []*nip.Event {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.published)
}

// rig is a home with a host, a clock and devices.
type rig struct {
	t     testing.TB
	dir   string
	home  string
	repo  string
	clock *clock
	paper *paper
	owner device // has the owner's key
	c     *Core
	h     *Host

	launches atomic.Int64
	launch   func(s *owner.Store, id owner.TaskID, grant owner.Digest) (*owner.Launched, error)
	stop     func() // ends a running host
}

// device is one key with what it was granted.
type device struct {
	key   nip.SecretKey
	grant nip.Grant // zero for the owner and for strangers
}

func (d device) pub() nip.PubKey { return d.key.Public() }

func newKey(t testing.TB) nip.SecretKey {
	t.Helper()
	k, err := nip.GenerateSecretKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return k
}

func newID(t testing.TB) string {
	t.Helper()
	id, err := nip.NewID(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return id
}

// memDir is a folder in memory where there is one.
func memDir(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("/dev/shm", "holdfast-host-")
	if err != nil {
		dir = t.TempDir()
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	dir, err = filepath.EvalSymlinks(dir)
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

// newRig makes a home with the workspace "demo" and opens it. The folder of the
// workspace is no repository: whoever runs turns makes it one.
func newRig(t testing.TB) *rig {
	t.Helper()
	return newRigIn(t, memDir(t))
}

func newRigIn(t testing.TB, dir string) *rig {
	t.Helper()
	r := &rig{t: t, dir: dir, home: filepath.Join(dir, "home"), repo: filepath.Join(dir, "project"), clock: &clock{}, owner: device{key: newKey(t)}}
	r.clock.at.Store(time.Now().Unix())
	if err := os.Mkdir(r.repo, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := Init(r.home, r.owner.pub(), Options{Now: r.clock.Now}); err != nil {
		t.Fatal(err)
	}
	if _, err := AddWorkspace(r.home, "demo", r.repo); err != nil {
		t.Fatal(err)
	}
	r.open()
	t.Cleanup(r.close)
	return r
}

func (r *rig) open() {
	r.t.Helper()
	launch := func(s *owner.Store, id owner.TaskID, grant owner.Digest) (*owner.Launched, error) {
		r.launches.Add(1)
		if r.launch != nil {
			return r.launch(s, id, grant)
		}
		return &owner.Launched{PID: 1, Done: make(chan struct{})}, nil
	}
	c, err := OpenCore(r.home, Options{Now: r.clock.Now, Launch: launch, LockWait: time.Second, Version: "test"})
	if err != nil {
		r.t.Fatal(err)
	}
	r.paper = newPaper()
	r.c, r.h = c, NewHost(c, r.paper, nil)
	r.h.outbox.retry = 20 * time.Millisecond
	r.h.teller.settle, r.h.teller.pause = time.Millisecond, time.Millisecond
}

func (r *rig) close() {
	if r.stop != nil {
		r.stop()
	}
	if r.c != nil {
		r.h.Wait(30 * time.Second)
		if err := r.c.Close(); err != nil {
			r.t.Error(err)
		}
		r.c = nil
	}
}

// restart closes everything and opens it again, as after a stop. What was not
// on disk is gone.
func (r *rig) restart() {
	r.t.Helper()
	r.close()
	r.open()
}

// serve runs the host until the test ends or r.stop.
func (r *rig) serve() {
	r.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := r.run(ctx)
	r.stop = func() {
		cancel()
		if err := <-done; err != nil && !errors.Is(err, context.Canceled) {
			r.t.Errorf("host ended: %v", err)
		}
		r.stop = nil
	}
}

// run runs the host and waits until its start is over: the last thing that it
// does then is to say whose requests it takes. What was said before, as at a
// pairing, is forgotten.
func (r *rig) run(ctx context.Context) <-chan error {
	r.t.Helper()
	r.paper.Authors(nil)
	ended := make(chan error, 1)
	h := r.h
	go func() { ended <- h.Run(ctx) }()
	r.until("the host serves", func() bool {
		r.paper.mu.Lock()
		defer r.paper.mu.Unlock()
		return r.paper.authors != nil
	})
	return ended
}

// until waits for a condition with a deadline.
func (r *rig) until(what string, ok func() bool) {
	r.t.Helper()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	limit := time.After(time.Minute)
	for !ok() {
		select {
		case <-tick.C:
		case <-limit:
			r.t.Fatalf("gave up waiting: %s", what)
		}
	}
}

// req is a fresh request of d.
func (r *rig) req(d device, op nip.Operation) nip.Request {
	q := nip.Request{
		ID: nip.RequestID(newID(r.t)), Host: r.c.Self(), Grant: d.grant.ID, Epoch: d.grant.Epoch, Relay: paperRelay,
		IssuedAt: r.clock.now(), ExpiresAt: r.clock.now() + 60, Op: op,
	}
	if d.grant.ID == "" {
		q.Epoch = -1
	}
	return q
}

// sealed is the event that carries a request; change may spoil its body first.
func (r *rig) sealed(d device, q nip.Request, change ...func(string) string) Inbound {
	r.t.Helper()
	a, err := nip.EncodeRequest(q)
	if err != nil {
		r.t.Fatal(err)
	}
	for _, c := range change {
		a.Inline = []byte(c(string(a.Inline)))
	}
	return r.inbound(d, nip.Mailbox(q.ID), a)
}

func (r *rig) inbound(d device, box nip.Mailbox, a nip.Artifact) Inbound {
	r.t.Helper()
	ev, err := nip.Seal(d.key, r.c.Self(), box, a, nil)
	if err != nil {
		r.t.Fatal(err)
	}
	v, err := nip.VerifyEvent(ev)
	if err != nil {
		r.t.Fatal(err)
	}
	return Inbound{Event: v, Relay: paperRelay}
}

// give hands one event to the host and returns what it queued in answer.
func (r *rig) give(in Inbound) []*nip.Event {
	r.t.Helper()
	if err := r.h.receive(context.Background(), in); err != nil {
		r.t.Fatalf("receive: %v", err)
	}
	return r.queued()
}

func (r *rig) queued() []*nip.Event {
	r.h.replies.mu.Lock()
	defer r.h.replies.mu.Unlock()
	var out []*nip.Event
	for _, jobs := range r.h.replies.jobs {
		for len(jobs) > 0 {
			out = append(out, (<-jobs).event)
		}
	}
	return out
}

// read opens a reply as d does.
func (r *rig) read(d device, ev *nip.Event) nip.Reply {
	r.t.Helper()
	v, err := nip.VerifyEvent(ev)
	if err != nil {
		r.t.Fatal(err)
	}
	o, err := nip.Open(v, d.key)
	if err != nil {
		r.t.Fatal(err)
	}
	if o.Signer != r.c.Self() {
		r.t.Fatalf("reply signed by %s", o.Signer)
	}
	p, err := nip.ParseReply(o.Inline)
	if err != nil {
		r.t.Fatal(err)
	}
	if string(o.Mailbox) != string(p.Request) {
		r.t.Fatal("the reply's mailbox is not its request")
	}
	return p
}

// ask sends an operation and returns its reply; silence fails the test.
func (r *rig) ask(d device, op nip.Operation) nip.Reply {
	r.t.Helper()
	return r.one(d, r.sealed(d, r.req(d, op)))
}

func (r *rig) one(d device, in Inbound) nip.Reply {
	r.t.Helper()
	out := r.give(in)
	if len(out) != 1 {
		r.t.Fatalf("%d replies, want 1", len(out))
	}
	p := r.read(d, out[0])
	if p.RequestEvent != nip.EventID(in.Event.Event().ID) {
		r.t.Fatal("the reply answers another event")
	}
	return p
}

// code is the refusal's code, "" for an outcome.
func code(p nip.Reply) nip.Code {
	if p.Refusal == nil {
		return ""
	}
	return p.Refusal.Code
}

func (r *rig) wantCode(p nip.Reply, want nip.Code) {
	r.t.Helper()
	if code(p) != want {
		r.t.Fatalf("code %q, want %q", code(p), want)
	}
}

// invite makes an invitation and returns its record as the code has it.
func (r *rig) invite(rights nip.Rights) nip.Invitation {
	r.t.Helper()
	inv, _, err := r.c.NewInvitation(context.Background(), rights, 30, paperRelay)
	if err != nil {
		r.t.Fatal(err)
	}
	return inv
}

// pair redeems a new invitation with a new key, or with the key given.
func (r *rig) pair(rights nip.Rights, keys ...nip.SecretKey) device {
	r.t.Helper()
	d := device{}
	if len(keys) > 0 {
		d.key = keys[0]
	} else {
		d.key = newKey(r.t)
	}
	inv := r.invite(rights)
	p := r.ask(d, nip.EnrollRedeem{Invitation: inv.ID, Capability: inv.Capability})
	d.grant = r.granted(d, p)
	r.h.accessChanged()
	return d
}

func (r *rig) granted(d device, p nip.Reply) nip.Grant {
	r.t.Helper()
	g, ok := p.Outcome.(nip.Granted)
	if !ok {
		r.t.Fatalf("not granted: %+v", p.Refusal)
	}
	v, err := nip.VerifyEvent(g.Authorization)
	if err != nil {
		r.t.Fatal(err)
	}
	o, err := nip.Open(v, d.key)
	if err != nil {
		r.t.Fatal(err)
	}
	grant, err := nip.ParseGrant(o.Inline, nip.Profile{})
	if err != nil {
		r.t.Fatal(err)
	}
	return grant
}

// create makes a task by a device and returns its ID.
func (r *rig) create(d device, prompt string) nip.TaskID {
	r.t.Helper()
	p := r.ask(d, nip.TaskCreate{Title: "a task", Prompt: prompt, Workspace: "demo"})
	o, ok := p.Outcome.(nip.Dispatched)
	if !ok {
		r.t.Fatalf("not created: %+v", p.Refusal)
	}
	return nip.TaskID(o.Reference)
}

// command is a durable command as d would mint it now.
func (r *rig) command(task nip.TaskID, action nip.Action, text string) nip.Command {
	return nip.Command{
		ID: nip.CommandID(newID(r.t)), Task: task, Action: action, BasedOn: r.task(task).Revision, Text: text, IssuedAt: r.clock.now(),
	}
}

func (r *rig) task(id nip.TaskID) owner.Task {
	r.t.Helper()
	t, err := r.c.store.Get(owner.TaskID(id))
	if err != nil {
		r.t.Fatal(err)
	}
	return t
}

// begin admits the task's turn as a living owner would; end finishes it.
func (r *rig) begin(id nip.TaskID) (end func(result owner.Result)) {
	r.t.Helper()
	tid := owner.TaskID(id)
	own, err := r.c.store.Own(context.Background(), tid, time.Minute) // a serving host looks at the lock now and then
	if err != nil {
		r.t.Fatal(err)
	}
	t := r.task(id)
	r.append(tid, owner.Event{Admitted: &owner.Admission{
		GrantDigest: owner.DigestOf(nil), Adapter: t.Intent.Configuration.Adapter, Workspace: "/w", Program: "/bin/sh",
		ProgramDigest: owner.DigestOf(nil), Network: json.RawMessage(`"none"`), Prompt: owner.DigestOf([]byte(t.EffectivePrompt())),
		ReadRevision: t.Revision, TraceFile: owner.TraceName(t.Turn()), Owner: sandbox.Identity{PID: os.Getpid(), BootID: "b"}, At: 1,
	}})
	store := r.c.store
	released := false
	r.t.Cleanup(func() {
		if !released {
			own.Release()
		}
	})
	return func(result owner.Result) {
		r.t.Helper()
		if result.Ending == "" {
			zero := 0
			result.Ending, result.ExitCode = "exit 0", &zero
		}
		result.GroupClear, result.TraceDigest, result.CostStatus = true, owner.DigestOf(nil), "unknown"
		if _, err := store.Append(context.Background(), tid, 1, owner.Event{Result: &result}); err != nil {
			r.t.Fatal(err)
		}
		released = true
		own.Release()
	}
}

func (r *rig) append(id owner.TaskID, ev owner.Event) {
	r.t.Helper()
	if _, err := r.c.store.Append(context.Background(), id, 1, ev); err != nil {
		r.t.Fatal(err)
	}
}

// dump is the whole of host.db, to compare before and after.
func (r *rig) dump() string {
	r.t.Helper()
	r.h.crew.Wait() // "last seen" is written beside the request
	var b strings.Builder
	var walk func(prefix string, bk *bbolt.Bucket) error
	walk = func(prefix string, bk *bbolt.Bucket) error {
		return bk.ForEach(func(k, v []byte) error {
			if v == nil {
				return walk(prefix+fmt.Sprintf("%q/", k), bk.Bucket(k))
			}
			fmt.Fprintf(&b, "%s%q=%q\n", prefix, k, v)
			return nil
		})
	}
	if err := r.c.db.View(func(tx *bbolt.Tx) error {
		return tx.ForEach(func(name []byte, bk *bbolt.Bucket) error { return walk(string(name)+"/", bk) })
	}); err != nil {
		r.t.Fatal(err)
	}
	return b.String()
}

func (r *rig) rows(bucket []byte) int {
	r.t.Helper()
	n := 0
	if err := r.c.db.View(func(tx *bbolt.Tx) error {
		return tx.Bucket(bucket).ForEach(func(_, _ []byte) error { n++; return nil })
	}); err != nil {
		r.t.Fatal(err)
	}
	return n
}

// policy writes a policy with one rule for "demo", changed as asked.
func (r *rig) policy(change ...func(*Policy)) {
	r.t.Helper()
	sh, err := filepath.EvalSymlinks("/bin/sh")
	if err != nil {
		r.t.Fatal(err)
	}
	p := Policy{V: PolicyVersion, Enabled: true, MaxRunning: 2, Rules: []Rule{{
		Workspaces: []nip.Label{"demo"}, Adapter: owner.PromptCommand, Program: sh, Arguments: []string{"-c", "cat"},
		Write: true, WallSeconds: 60, StreamBytes: 64 << 10, MemoryBytes: 1 << 30,
	}}}
	for _, c := range change {
		c(&p)
	}
	if err := writePolicy(r.home, p); err != nil {
		r.t.Fatal(err)
	}
}

// git makes the workspace a repository with one commit.
func (r *rig) git() {
	r.t.Helper()
	for _, args := range [][]string{{"init", "-q"}, {"commit", "-q", "--allow-empty", "-m", "first"}} {
		cmd := exec.Command("git", args...)
		cmd.Dir = r.repo
		cmd.Env = []string{"PATH=/usr/bin:/bin", "HOME=/nonexistent", "GIT_CONFIG_NOSYSTEM=1",
			"GIT_AUTHOR_NAME=t", "GIT_AUTHOR_EMAIL=t@example.org", "GIT_COMMITTER_NAME=t", "GIT_COMMITTER_EMAIL=t@example.org"}
		if out, err := cmd.CombinedOutput(); err != nil {
			r.t.Fatalf("git %v: %v\n%s", args, err, out)
		}
	}
}

func mustRaw(t testing.TB, v any) json.RawMessage {
	t.Helper()
	raw, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return raw
}
