package main

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nbd-wtf/go-nostr"
	"github.com/rs/zerolog"
	"github.com/spf13/cobra"

	"holdfast/nip"
	"holdfast/relay"
	"holdfast/relay/embedded"
	"holdfast/relay/relaytest"
)

// standIn is a scripted host on a real relay, for the device verbs alone.
type standIn struct {
	t     *testing.T
	url   nip.RelayURL
	key   nip.SecretKey
	owner nip.SecretKey
	link  relay.Link
	stop  func() // ends it and its relay; calling it again does nothing

	mu     sync.Mutex // guards what follows
	left   int64      // seconds that the next grant has left of its day; 0 is all of them
	grant  nip.Grant  // the last one issued
	asked  []nip.Operation
	answer func(r nip.Request) (nip.Outcome, *nip.Refusal)
}

func newStandIn(t *testing.T) *standIn {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &standIn{t: t, url: nip.RelayURL("ws://" + ln.Addr().String() + "/"), key: testKey(t), owner: testKey(t)}
	r, err := embedded.Open(embedded.Options{Path: filepath.Join(t.TempDir(), "relay.db"), Name: s.url, Log: zerolog.Nop()})
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- r.Serve(ln) }()
	s.link = r.Local(s.key.Public())
	sub := s.link.Subscribe("requests", func(now time.Time) []nip.Filter {
		since := nostr.Timestamp(now.Unix() - 60)
		return []nip.Filter{{Kinds: []int{nip.KindArtifact}, Tags: nostr.TagMap{"p": {string(s.key.Public())}}, Since: &since}}
	})
	done := make(chan struct{})
	go func() {
		defer close(done)
		for del := range sub.C() {
			s.handle(del.Event)
		}
	}()
	s.stop = sync.OnceFunc(func() {
		s.link.Close()
		<-done
		r.Close()
		<-served
	})
	t.Cleanup(s.stop)
	return s
}

func testKey(t *testing.T) nip.SecretKey {
	t.Helper()
	k, err := nip.GenerateSecretKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return k
}

func testID(t *testing.T) string {
	t.Helper()
	id, err := nip.NewID(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return id
}

// set changes what the host answers.
func (s *standIn) set(answer func(r nip.Request) (nip.Outcome, *nip.Refusal)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.asked, s.answer = nil, answer
}

func (s *standIn) operations() []nip.Operation {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]nip.Operation(nil), s.asked...)
}

func (s *standIn) handle(v nip.Verified) {
	o, err := nip.Open(v, s.key)
	if err != nil || o.Schema != nip.SchemaRequest {
		return
	}
	r, err := nip.ParseRequest(o.Inline, nip.Profile{Loopback: true})
	if err != nil {
		s.t.Errorf("device sent a bad request: %v", err)
		return
	}
	now := time.Now().Unix()
	rep := nip.Reply{Request: r.ID, RequestEvent: o.EventID, Host: s.key.Public(), IssuedAt: now, ExpiresAt: r.ExpiresAt}
	s.mu.Lock()
	s.asked = append(s.asked, r.Op)
	answer := s.answer
	s.mu.Unlock()
	if redeem, ok := r.Op.(nip.EnrollRedeem); ok {
		g := nip.Grant{ID: nip.GrantID(testID(s.t)), Origin: nip.Origin{Kind: "invitation", ID: string(redeem.Invitation), Issuer: s.key.Public()},
			Host: s.key.Public(), Owner: s.owner.Public(), Device: o.Signer, Relay: s.url, IssuedAt: now, ExpiresAt: now + 86_400, Rights: nip.PairingRights()}
		s.mu.Lock()
		if s.left != 0 {
			g.IssuedAt, g.ExpiresAt = now+s.left-86_400, now+s.left
		}
		s.grant = g
		s.mu.Unlock()
		a, err := nip.EncodeGrant(g)
		if err != nil {
			s.t.Error(err)
			return
		}
		rep.Outcome = nip.Granted{Authorization: s.seal(o.Signer, nip.Mailbox(g.ID), a)}
	} else if rep.Outcome, rep.Refusal = answer(r); rep.Outcome == nil && rep.Refusal == nil {
		return
	}
	a, err := nip.EncodeReply(rep)
	if err != nil {
		s.t.Errorf("encode reply: %v", err)
		return
	}
	s.publish(s.seal(o.Signer, nip.Mailbox(r.ID), a))
}

func (s *standIn) seal(to nip.PubKey, box nip.Mailbox, a nip.Artifact) *nip.Event {
	ev, err := nip.Seal(s.key, to, box, a, nil)
	if err != nil {
		s.t.Error(err)
	}
	return ev
}

func (s *standIn) publish(ev *nip.Event) {
	ctx, cancel := context.WithTimeout(context.Background(), relaytest.Patience)
	defer cancel()
	// A request may come when the test is over, and its host is gone.
	if err := s.link.Publish(ctx, ev); err != nil && !errors.Is(err, relay.ErrClosed) {
		s.t.Errorf("publish: %v", err)
	}
}

// show publishes a summary to a device.
func (s *standIn) show(to nip.PubKey, sum nip.Summary) {
	sum.Host = s.key.Public()
	box, err := nip.DeriveMailbox(s.key, to, nip.StreamSummaries)
	if err != nil {
		s.t.Fatal(err)
	}
	a, err := nip.EncodeSummary(sum)
	if err != nil {
		s.t.Fatal(err)
	}
	s.publish(s.seal(to, box, a))
}

func (s *standIn) code() string {
	s.t.Helper()
	now := time.Now().Unix()
	code, err := nip.EncodeInvitation(nip.Invitation{Host: s.key.Public(), ID: nip.InvitationID(testID(s.t)), Capability: testID(s.t),
		IssuedAt: now, ExpiresAt: now + 300, Relay: s.url}, nip.Profile{Loopback: true})
	if err != nil {
		s.t.Fatal(err)
	}
	return code
}

// syncBuffer is a buffer that a verb writes while the test reads.
type syncBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (s *syncBuffer) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

func (s *syncBuffer) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}

func (s *syncBuffer) reset() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.b.Reset()
}

// verb runs one device verb in process.
type verb struct {
	dir   string
	stdin string
	ctx   context.Context
	out   syncBuffer
	err   syncBuffer
}

// run returns the exit code.
func (v *verb) run(t *testing.T, args ...string) int {
	t.Helper()
	v.out.reset()
	v.err.reset()
	g := &globals{stdin: strings.NewReader(v.stdin), stdout: &v.out, stderr: &v.err, log: zerolog.Nop()}
	root := &cobra.Command{Use: "holdfast", SilenceUsage: true, SilenceErrors: true}
	root.PersistentFlags().BoolVar(&g.json, "json", false, "")
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return usage("%s", err) })
	root.AddCommand(deviceCommand(g))
	wrapUsage(root)
	root.SetArgs(append([]string{"device", "--profile", v.dir}, args...))
	ctx := v.ctx
	if ctx == nil {
		ctx = t.Context()
	}
	if err := root.ExecuteContext(ctx); err != nil {
		return g.report(err)
	}
	return exitOK
}

// ok runs a verb with --json and returns its one document.
func (v *verb) ok(t *testing.T, args ...string) map[string]any {
	t.Helper()
	if code := v.run(t, append(args, "--json")...); code != exitOK {
		t.Fatalf("%q: exit %d, %s", args, code, v.err.String())
	}
	return document(t, v.out.String())
}

func document(t *testing.T, s string) map[string]any {
	t.Helper()
	if strings.Count(s, "\n") != 1 || !strings.HasSuffix(s, "\n") {
		t.Fatalf("not one line: %q", s)
	}
	var m map[string]any
	if err := json.Unmarshal([]byte(s), &m); err != nil {
		t.Fatalf("not one document: %q", s)
	}
	return m
}

// fails runs a verb with --json and wants an exit code and an error code.
func (v *verb) fails(t *testing.T, exit int, code string, args ...string) map[string]any {
	t.Helper()
	if got := v.run(t, append(args, "--json")...); got != exit {
		t.Fatalf("%q: exit %d, want %d (%s)", args, got, exit, v.err.String())
	}
	lines := strings.Split(strings.TrimSpace(v.err.String()), "\n")
	m := document(t, lines[len(lines)-1]+"\n")
	e, _ := m["error"].(map[string]any)
	if e["code"] != code {
		t.Fatalf("%q: error %v, want code %q", args, e, code)
	}
	return e
}

// atHost is a paired device and its host.
func atHost(t *testing.T) (*verb, *standIn, nip.PubKey) {
	t.Helper()
	s := newStandIn(t)
	v := &verb{dir: filepath.Join(t.TempDir(), "profile")}
	doc := v.ok(t, "pair", s.code(), "--allow-loopback")
	grant := doc["grant"].(map[string]any)
	return v, s, nip.PubKey(grant["device"].(string))
}

func TestDevicePair(t *testing.T) {
	t.Parallel()
	s := newStandIn(t)
	v := &verb{dir: filepath.Join(t.TempDir(), "profile")}
	v.fails(t, exitFailed, "no_key", "workspaces")
	first := v.ok(t, "init")
	if again := v.ok(t, "init"); again["device"] != first["device"] {
		t.Error("init made another key")
	}
	v.fails(t, exitFailed, "not_paired", "workspaces")
	v.fails(t, exitUsage, "malformed", "pair", "nonsense")
	if e := v.fails(t, exitUsage, "forbidden", "pair", s.code()); !strings.Contains(e["hint"].(string), "--allow-loopback") {
		t.Errorf("hint %q", e["hint"])
	}
	v.stdin = s.code() + "\n"
	doc := v.ok(t, "pair", "-", "--allow-loopback")
	grant := doc["grant"].(map[string]any)
	if grant["device"] != first["device"] || grant["host"] != string(s.key.Public()) {
		t.Errorf("grant %v", grant)
	}
	if code := v.run(t, "pair", s.code(), "--allow-loopback"); code != exitOK || !strings.Contains(v.out.String(), "paired with host") {
		t.Errorf("exit %d, %q", code, v.out.String())
	}
}

const taskA = "abababababababababababababababababababababababababababababababab"

func TestDeviceCommands(t *testing.T) {
	t.Parallel()
	v, s, self := atHost(t)
	s.show(self, nip.Summary{Task: taskA, Sequence: 7, Phase: nip.PhaseRunning, Headline: "Task running", Attention: "none", UpdatedAt: time.Now().Unix()})
	s.set(func(r nip.Request) (nip.Outcome, *nip.Refusal) {
		if op, ok := r.Op.(nip.TaskCommand); ok {
			return nip.Dispatched{Operation: "task.command", Reference: string(op.Command.Task)}, nil
		}
		return nil, &nip.Refusal{Code: nip.Forbidden}
	})
	id := testID(t)
	doc := v.ok(t, "steer", taskA, "turn left", "--emulate", "--command", id)
	if doc["command"] != id || doc["action"] != "steer" || doc["based_on"] != 7.0 {
		t.Errorf("document %v", doc)
	}
	c := s.operations()[0].(nip.TaskCommand).Command
	if string(c.ID) != id || c.BasedOn != 7 || c.Text != "turn left" || !c.Emulate || c.Action != nip.Steer {
		t.Errorf("command %+v", c)
	}
	v.stdin = "from a file\n"
	v.ok(t, "queue", taskA, "-", "--based-on", "3")
	v.stdin = ""
	v.ok(t, "interrupt", taskA)
	ops := s.operations()
	if c := ops[1].(nip.TaskCommand).Command; c.Text != "from a file" || c.BasedOn != 3 || c.Action != nip.Queue {
		t.Errorf("command %+v", c)
	}
	if c := ops[2].(nip.TaskCommand).Command; c.Action != nip.Interrupt || c.Text == "" {
		t.Errorf("command %+v", c)
	}
	if code := v.run(t, "send", taskA, "go"); code != exitOK || !strings.Contains(v.out.String(), "send taken") {
		t.Errorf("exit %d, %q", code, v.out.String())
	}

	s.set(func(nip.Request) (nip.Outcome, *nip.Refusal) { return nil, &nip.Refusal{Code: nip.Stale} })
	v.fails(t, exitFailed, "stale", "answer", taskA, "yes")
	if rows := v.ok(t, "outbox")["outbox"].([]any); len(rows) != 0 {
		t.Errorf("a refused command waits: %v", rows)
	}
	v.fails(t, exitUsage, "usage", "send", "abc", "go")
	v.fails(t, exitUsage, "usage", "send", taskA, "go", "--command", "xyz")
	v.fails(t, exitUsage, "bounds", "send", taskA, "   ", "--based-on", "1")
	v.fails(t, exitUsage, "usage", "send", taskA)
}

// Silence keeps the command; a later send uses the same ID.
func TestDeviceOutbox(t *testing.T) {
	t.Parallel()
	v, s, _ := atHost(t)
	s.set(func(nip.Request) (nip.Outcome, *nip.Refusal) { return nil, nil })
	e := v.fails(t, exitUnreachable, "no_answer", "send", taskA, "go", "--based-on", "1", "--timeout", "1s")
	rows := v.ok(t, "outbox")["outbox"].([]any)
	if len(rows) != 1 {
		t.Fatalf("outbox %v", rows)
	}
	row := rows[0].(map[string]any)
	if !strings.Contains(e["hint"].(string), row["id"].(string)) || row["action"] != "send" || row["state"] != "waiting" {
		t.Errorf("hint %q, row %v", e["hint"], row)
	}
	if code := v.run(t, "outbox"); code != exitOK || !strings.Contains(v.out.String(), row["id"].(string)) {
		t.Errorf("exit %d, %q", code, v.out.String())
	}
	s.set(func(r nip.Request) (nip.Outcome, *nip.Refusal) {
		return nip.Dispatched{Operation: "task.command", Reference: taskA}, nil
	})
	if left := v.ok(t, "outbox", "--send")["outbox"].([]any); len(left) != 0 {
		t.Errorf("left %v", left)
	}
	if c := s.operations()[0].(nip.TaskCommand).Command; string(c.ID) != row["id"] {
		t.Errorf("sent %s, want %v", c.ID, row["id"])
	}
	v.fails(t, exitFailed, "absent", "outbox", "--drop", testID(t))
}

func onePage(q nip.ReadQuery, revision int64, phase nip.Phase) nip.TaskPage {
	body := []byte("exact bytes")
	return nip.TaskPage{Task: nip.Page{
		Scope: nip.Scope{Workspace: q.Workspace, Task: q.Task, Revision: revision, IntentDigest: nip.DigestOf(nil)},
		Title: "a title", Prompt: "a prompt", Phase: phase, Execution: "completed", Verification: "not_run", Integration: "none",
		Termination: "exited", Delivery: "none", Cleanup: "done", CostStatus: "unknown",
		Evidence: nip.Evidence{State: "complete", Original: &nip.OriginalRef{Source: "trace:1", Digest: nip.DigestOf(body), Bytes: int64(len(body)), MediaType: "application/jsonl"},
			TotalSteps: 1, Steps: []nip.Step{{Kind: "original", Index: 0, Step: []byte(`{"message":"hello\u001b[31m","source":"agent"}`)}}},
	}}
}

// readable answers reads for one task in one of two workspaces.
func readable(phase nip.Phase) func(r nip.Request) (nip.Outcome, *nip.Refusal) {
	return func(r nip.Request) (nip.Outcome, *nip.Refusal) {
		switch op := r.Op.(type) {
		case nip.WorkspaceList:
			return nip.Workspaces{Workspaces: []nip.Label{"alpha", "beta"}}, nil
		case nip.TaskList:
			l := nip.TaskListing{Workspace: op.Query.Workspace, SnapshotDigest: nip.DigestOf(nil)}
			if op.Query.Workspace == "beta" {
				l.Rows = []nip.TaskRow{{Task: taskA, Revision: 4, Title: "a title", Phase: phase}}
			}
			return nip.Tasks{Tasks: l}, nil
		case nip.TaskRead:
			if op.Query.Workspace != "beta" {
				return nil, &nip.Refusal{Code: nip.Forbidden}
			}
			return onePage(op.Query, 4, phase), nil
		case nip.TaskOriginal:
			return nip.Original{Original: nip.Chunk{Scope: op.Query.Scope, Original: op.Query.Original, Data: []byte("exact bytes")}}, nil
		case nip.TaskCreate:
			return nip.Dispatched{Operation: "task.create", Reference: string(r.ID)}, nil
		case nip.TaskArchive:
			return nip.Dispatched{Operation: "task.archive", Reference: string(op.Task)}, nil
		case nip.TaskQueue:
			text := "later"
			return nip.QueueState{Task: op.Task, Revision: 4, Items: []nip.QueueItem{{Command: taskA, Device: r.Host, Text: &text}}}, nil
		case nip.DeviceList:
			return nil, &nip.Refusal{Code: nip.MissingRight, Missing: nip.AccessRead}
		}
		return nil, &nip.Refusal{Code: nip.Unsupported}
	}
}

func TestDeviceReads(t *testing.T) {
	t.Parallel()
	v, s, _ := atHost(t)
	s.set(readable(nip.PhaseCompleted))
	if got := v.ok(t, "workspaces")["workspaces"].([]any); len(got) != 2 {
		t.Errorf("workspaces %v", got)
	}
	rows := v.ok(t, "tasks")["tasks"].([]any)
	if len(rows) != 1 || rows[0].(map[string]any)["workspace"] != "beta" {
		t.Errorf("tasks %v", rows)
	}
	page := v.ok(t, "read", taskA)["task"].(map[string]any)
	if page["title"] != "a title" {
		t.Errorf("page %v", page)
	}
	if code := v.run(t, "read", taskA, "--workspace", "beta"); code != exitOK ||
		!strings.Contains(v.out.String(), "agent: hello") || strings.ContainsRune(v.out.String(), 0x1b) {
		t.Errorf("exit %d, %q", code, v.out.String())
	}
	if doc := v.ok(t, "original", taskA); doc["data"] != "ZXhhY3QgYnl0ZXM=" || doc["source"] != "trace:1" {
		t.Errorf("original %v", doc)
	}
	out := filepath.Join(t.TempDir(), "bytes")
	v.ok(t, "original", taskA, "--source", "trace:1", "--output", out)
	if b, err := os.ReadFile(out); err != nil || string(b) != "exact bytes" {
		t.Errorf("%q, %v", b, err)
	}
	v.fails(t, exitUsage, "usage", "original", taskA, "--source", "artifact:x")
	e := v.fails(t, exitFailed, "missing_right", "devices")
	if !strings.Contains(e["message"].(string), "access_read") {
		t.Errorf("message %q", e["message"])
	}
	v.ok(t, "archive", taskA)
	v.fails(t, exitFailed, "unsupported", "revoke", string(s.key.Public()))
	v.fails(t, exitUsage, "usage", "read", taskA, "--limit", "65")
	v.fails(t, exitUsage, "usage", "read", taskA, "--cursor", "{}")
}

func TestDeviceHeld(t *testing.T) {
	t.Parallel()
	v, s, _ := atHost(t)
	s.set(readable(nip.PhaseRunning))
	other := testID(t)
	for _, tt := range []struct {
		args []string
		want nip.QueueEdit
	}{
		{[]string{"list"}, nip.QueueEdit{Action: "list"}},
		{[]string{"lease"}, nip.QueueEdit{Action: "lease"}},
		{[]string{"release"}, nip.QueueEdit{Action: "release"}},
		{[]string{"edit", taskA, "new words"}, nip.QueueEdit{Action: "edit", Command: taskA, Text: "new words"}},
		{[]string{"remove", taskA}, nip.QueueEdit{Action: "remove", Command: taskA}},
		{[]string{"send-now", taskA}, nip.QueueEdit{Action: "send_now", Command: taskA}},
		{[]string{"reorder", taskA, other}, nip.QueueEdit{Action: "reorder", Commands: []nip.CommandID{taskA, nip.CommandID(other)}}},
	} {
		if _, ok := v.ok(t, append([]string{"held", taskA}, tt.args...)...)["queue"]; !ok {
			t.Errorf("%q printed no queue", tt.args)
		}
		ops := s.operations()
		got := ops[len(ops)-1].(nip.TaskQueue).Edit
		if got.Action != tt.want.Action || got.Command != tt.want.Command || got.Text != tt.want.Text || len(got.Commands) != len(tt.want.Commands) {
			t.Errorf("%q sent %+v", tt.args, got)
		}
	}
	if code := v.run(t, "held", taskA, "list"); code != exitOK || !strings.Contains(v.out.String(), "later") {
		t.Errorf("exit %d, %q", code, v.out.String())
	}
	for _, bad := range [][]string{{"grow"}, {"edit", taskA}, {"remove", "abc"}, {"reorder"}, {"list", "x"}} {
		v.fails(t, exitUsage, "usage", append([]string{"held", taskA}, bad...)...)
	}
}

func TestDeviceCreate(t *testing.T) {
	t.Parallel()
	v, s, self := atHost(t)
	s.set(readable(nip.PhaseQueued))
	doc := v.ok(t, "create", "--workspace", "beta", "--title", "t", "--prompt", "p")
	if !nip.ValidID(doc["task"].(string)) {
		t.Errorf("document %v", doc)
	}
	v.fails(t, exitUsage, "usage", "create", "--workspace", "beta", "--title", "t")
	v.fails(t, exitUsage, "usage", "create", "--workspace", "beta", "--title", "t", "--prompt", "p", "--wait", "done")

	// The wait ends with the summary of the phase, or of another end.
	for _, tt := range []struct {
		last nip.Phase
		exit int
	}{{nip.PhaseCompleted, exitOK}, {nip.PhaseCancelled, exitFailed}} {
		s.set(func(r nip.Request) (nip.Outcome, *nip.Refusal) {
			if _, ok := r.Op.(nip.TaskCreate); ok {
				now := time.Now().Unix()
				words := map[nip.Phase][2]string{nip.PhaseCompleted: {"Task finished", "completed"}, nip.PhaseCancelled: {"Task cancelled", "none"}}[tt.last]
				s.show(self, nip.Summary{Task: nip.TaskID(r.ID), Sequence: 1, Phase: nip.PhaseQueued, Headline: "Task queued", Attention: "none", UpdatedAt: now})
				s.show(self, nip.Summary{Task: nip.TaskID(r.ID), Sequence: 2, Phase: tt.last, Headline: words[0], Attention: words[1], UpdatedAt: now})
			}
			return readable(nip.PhaseQueued)(r)
		})
		code := v.run(t, "create", "--workspace", "beta", "--title", "t", "--prompt", "p", "--wait", "completed", "--timeout", "120s", "--json")
		doc := document(t, v.out.String())
		if code != tt.exit || doc["phase"] != string(tt.last) || doc["revision"] != 2.0 {
			t.Errorf("exit %d, %v, %s", code, doc, v.err.String())
		}
	}
}

func TestDeviceCall(t *testing.T) {
	t.Parallel()
	v, s, _ := atHost(t)
	s.set(readable(nip.PhaseQueued))
	doc := v.ok(t, "call", "--op", `{"kind":"workspace.list"}`)
	if doc["status"] != "ok" || doc["outcome"].(map[string]any)["kind"] != "workspaces" {
		t.Errorf("document %v", doc)
	}
	v.fails(t, exitFailed, "missing_right", "call", "--op", `{"kind":"device.list"}`)
	if doc := document(t, v.out.String()); doc["status"] != "refused" || doc["code"] != "missing_right" || doc["missing"] != "access_read" {
		t.Errorf("the refusal's own reply: %v", doc)
	}
	v.fails(t, exitFailed, "unsupported", "call", "--op", `{"kind":"terminal.open","cols":80,"rows":24}`)
	v.fails(t, exitUsage, "malformed", "call", "--op", `{"kind":"host.shutdown"}`)
	v.fails(t, exitUsage, "malformed", "call", "--op", `{`)
}

func TestDeviceWatch(t *testing.T) {
	t.Parallel()
	v, s, self := atHost(t)
	s.set(readable(nip.PhaseRunning))
	ctx, cancel := context.WithCancel(t.Context())
	v.ctx = ctx
	exit := make(chan int)
	go func() { exit <- v.run(t, "watch", taskA, "--json") }()
	s.show(self, nip.Summary{Task: nip.TaskID(testID(t)), Sequence: 1, Phase: nip.PhaseQueued, Headline: "Task queued", Attention: "none", UpdatedAt: time.Now().Unix()})
	s.show(self, nip.Summary{Task: taskA, Sequence: 4, Phase: nip.PhaseRunning, Headline: "Task running", Attention: "none", UpdatedAt: time.Now().Unix()})
	relaytest.Eventually(t, "a page", func() bool { return strings.Contains(v.out.String(), `"event":"page"`) })
	cancel()
	if code := <-exit; code != exitOK {
		t.Errorf("exit %d: %s", code, v.err.String())
	}
	lines := strings.Split(strings.TrimSpace(v.out.String()), "\n")
	if len(lines) != 2 || !strings.Contains(lines[0], `"event":"summary"`) {
		t.Errorf("lines %q", lines)
	}
}

// The profile's own troubles have their exit codes.
func TestDeviceProfileErrors(t *testing.T) {
	t.Parallel()
	v, s, _ := atHost(t)
	path := filepath.Join(v.dir, "hosts", string(s.key.Public())+".json")
	good, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, bytes.Replace(good, []byte(`"epoch":0`), []byte(`"epoch":9`), 1), 0o600); err != nil {
		t.Fatal(err)
	}
	v.fails(t, exitCorrupt, "damaged", "workspaces")
	if err := os.WriteFile(path, bytes.Replace(good, []byte("host-access.v1"), []byte("host-access.v2"), 1), 0o600); err != nil {
		t.Fatal(err)
	}
	v.fails(t, exitCorrupt, "newer", "workspaces")
}

func TestDeviceUnreachable(t *testing.T) {
	t.Parallel()
	v, s, _ := atHost(t)
	s.set(func(nip.Request) (nip.Outcome, *nip.Refusal) { return nil, nil })
	v.fails(t, exitUnreachable, "no_answer", "workspaces", "--timeout", "300ms")
}
