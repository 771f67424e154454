package main

import (
	"context"
	"encoding/json"
	"errors"
	"net"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/coder/websocket"
	"github.com/nbd-wtf/go-nostr"
	"github.com/nbd-wtf/go-nostr/nip44"
	"github.com/rs/zerolog"

	"holdfast/host"
	"holdfast/host/client"
	"holdfast/nip"
	"holdfast/owner"
	"holdfast/relay"
	"holdfast/relay/relaytest"
)

// TestHostile is bad input end to end: real host processes, real sockets. The
// stories run all at once, each with a host of its own, because they wait for
// clocks and disks more than for processors, and the runner counts processors.
func TestHostile(t *testing.T) {
	t.Parallel()
	var all sync.WaitGroup
	for _, story := range []struct {
		name string
		run  func(*testing.T)
	}{
		{"relay", hostileRelay}, {"replay", hostileReplay}, {"stores", hostileStores}, {"flood of strangers", floodOfStrangers},
		{"world", hostileWorld}, {"device", hostileDevice}, {"frames", hostileFrames}, {"flood of a device", floodOfDevice}, {"stranger", hostileStranger},
	} {
		all.Go(func() { t.Run(story.name, story.run) })
	}
	all.Wait()
}

// attacked is a real host under attack, with one honest device whose task has
// ended: its commands are decided and answered without a turn.
type attacked struct {
	*tour
	ctx     context.Context
	process *tourProcess
	host    nip.PubKey
	url     nip.RelayURL
	phone   *client.Device
	task    nip.TaskID
	g       *globals
}

// attack starts the host in a new home, pairs the honest device and runs one
// turn of it.
func attack(t *testing.T) *attacked {
	t.Helper()
	s, ctx := stage(t)
	p, ready := up(t, s, ctx, "--listen", freePort(t))
	a := &attacked{
		tour: s, ctx: ctx, process: p, host: nip.PubKey(ready["host"].(string)), url: nip.RelayURL(ready["relay"].(string)),
		g: &globals{home: s.home, log: zerolog.Nop()},
	}
	a.phone = a.device(t, "phone", "")
	a.task = a.finished(t, a.phone, "honest work")
	return a
}

// device pairs a new device over relay ("" is the host's first).
func (a *attacked) device(t *testing.T, name string, relay nip.RelayURL) *client.Device {
	t.Helper()
	d, err := client.Init(a.profile(name), client.Options{Loopback: true, Log: zerolog.Nop()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.Close() })
	inv, err := ask[host.Invited](a.ctx, a.g, "invite", host.InviteArgs{Rights: nip.StandardRights(), Days: 1, Relay: relay})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := d.Pair(a.ctx, inv.Code); err != nil {
		t.Fatal("pair:", err)
	}
	return d
}

// finished makes a task of d and waits for the end of its first turn.
func (a *attacked) finished(t *testing.T, d *client.Device, prompt string) nip.TaskID {
	t.Helper()
	id, err := d.Create(a.ctx, nip.TaskCreate{Title: "a title", Prompt: prompt, Workspace: demoLabel})
	if err != nil {
		t.Fatal("create:", err)
	}
	a.turnEnded(t, id, 1)
	return id
}

func (a *attacked) turnEnded(t *testing.T, id nip.TaskID, turn int) owner.Task {
	t.Helper()
	var last owner.Task
	err := a.until(a.ctx, "the end of a turn", func(s *owner.Store) (bool, error) {
		now, err := s.Get(owner.TaskID(id))
		last = now
		return err == nil && now.Turn() == turn && now.Ended(), err
	})
	if err != nil {
		t.Fatalf("%v: turn %d, %s", err, last.Turn(), last.Status)
	}
	return last
}

// state is what no refused input may change.
type state struct {
	Records uint64
	Entries []host.EntryView
	Tasks   []owner.Task
	Devices []host.DeviceRow
}

// state reads it from the living host, which checks its chain on the way.
func (a *attacked) state(t *testing.T) state {
	t.Helper()
	select {
	case <-a.process.ended:
		t.Fatalf("the host ended: %s", a.process.errors.String())
	default:
	}
	var st state
	chain, err := ask[struct {
		OK      bool
		Records uint64
	}](a.ctx, a.g, "journal.check", nil)
	if err != nil || !chain.OK {
		t.Fatalf("journal check: %+v, %v", chain, err)
	}
	st.Records = chain.Records
	list, err := ask[struct{ Entries []host.EntryView }](a.ctx, a.g, "journal.list", host.JournalArgs{})
	if err != nil {
		t.Fatal(err)
	}
	st.Entries = list.Entries
	devices, err := ask[struct{ Devices []host.DeviceRow }](a.ctx, a.g, "devices.list", nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range devices.Devices {
		d.LastSeen = nil // display only, and it is a sign of life of any kind
		st.Devices = append(st.Devices, d)
	}
	s, err := owner.Open(a.home, owner.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	ids, err := s.List()
	if err != nil {
		t.Fatal(err)
	}
	for _, id := range ids {
		task, err := s.Get(id)
		if err != nil {
			t.Fatal(err)
		}
		st.Tasks = append(st.Tasks, task)
	}
	return st
}

// unchanged compares two states and shows the first line that differs.
func unchanged(t *testing.T, before, after state) {
	t.Helper()
	if reflect.DeepEqual(before, after) {
		return
	}
	x, _ := json.MarshalIndent(before, "", " ")
	y, _ := json.MarshalIndent(after, "", " ")
	was, is := strings.Split(string(x), "\n"), strings.Split(string(y), "\n")
	for i := 0; i < len(was) && i < len(is); i++ {
		if was[i] != is[i] {
			t.Errorf("bad input changed what the host keeps, line %d: %s is %s", i, was[i], is[i])
			return
		}
	}
	t.Errorf("bad input changed what the host keeps: %d lines are %d", len(was), len(is))
}

// honest sends a durable command of the honest device and wants its signed
// outcome: an interrupt of a turn that has ended is stale, and journalled.
func (a *attacked) honest(t *testing.T) time.Duration {
	t.Helper()
	began := time.Now()
	ctx, cancel := context.WithTimeout(a.ctx, 2*time.Minute)
	defer cancel()
	_, _, err := a.phone.Command(ctx, nip.Command{Task: a.task, Action: nip.Interrupt, Text: "stop", BasedOn: 1})
	var refused *client.Refused
	if !errors.As(err, &refused) || refused.Code != nip.Stale {
		t.Fatalf("the honest device's command got %v", err)
	}
	return time.Since(began)
}

// foe is a key of the attacker's with a link to the host's relay, and every
// reply that the host signed to it.
type foe struct {
	a     *attacked
	key   nip.SecretKey
	grant nip.Grant // zero for a stranger
	link  relay.Link

	// mu guards got.
	mu  sync.Mutex
	got []answered
}

type answered struct {
	event nip.EventID
	reply nip.Reply
}

// foe opens the key's link. from is a loopback address, "" for any.
func (a *attacked) foe(t *testing.T, key nip.SecretKey, from string) *foe {
	t.Helper()
	o := relay.Options{URL: a.url, Key: key, Log: zerolog.Nop()}
	if from != "" {
		o.DialContext = (&net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}}).DialContext
	}
	f := &foe{a: a, key: key, link: relay.Dial(o)}
	sub := f.link.Subscribe("replies", func(time.Time) []nip.Filter {
		return []nip.Filter{{Kinds: []int{nip.KindArtifact}, Authors: []string{string(a.host)}, Tags: nostr.TagMap{"p": {string(key.Public())}}}}
	})
	done := make(chan struct{})
	go func() {
		defer close(done)
		for d := range sub.C() {
			o, err := nip.Open(d.Event, key)
			if err != nil || o.Schema != nip.SchemaReply {
				continue
			}
			r, err := nip.ParseReply(o.Inline)
			if err != nil {
				t.Errorf("the host signed a reply that does not hold: %v", err)
				continue
			}
			f.mu.Lock()
			f.got = append(f.got, answered{o.EventID, r})
			f.mu.Unlock()
		}
	}()
	t.Cleanup(func() { f.link.Close(); <-done })
	return f
}

// pairedFoe is a paired device that turned bad.
func (a *attacked) pairedFoe(t *testing.T, name string) *foe {
	t.Helper()
	d := a.device(t, name, "")
	raw, err := os.ReadFile(filepath.Join(a.profile(name), "device.key"))
	if err != nil {
		t.Fatal(err)
	}
	key, err := nip.ParseSecretKey(strings.TrimSpace(string(raw)))
	if err != nil {
		t.Fatal(err)
	}
	f := a.foe(t, key, "")
	f.grant, _ = d.Grant()
	return f
}

func (f *foe) count() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.got)
}

// replies are the host's replies to the request event, from index from on.
func (f *foe) replies(to *nip.Event) (out []answered) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, g := range f.got {
		if string(g.reply.RequestEvent) == to.ID {
			out = append(out, g)
		}
	}
	return out
}

// publish offers an event and returns the relay's word.
func (f *foe) publish(ev *nip.Event) error {
	ctx, cancel := context.WithTimeout(f.a.ctx, relaytest.Patience)
	defer cancel()
	return f.link.Publish(ctx, ev)
}

// asks publishes an event and waits for the host's signed reply.
func (f *foe) asks(t *testing.T, ev *nip.Event) nip.Reply {
	t.Helper()
	if err := f.publish(ev); err != nil {
		t.Fatal("publish:", err)
	}
	relaytest.Eventually(t, "a reply", func() bool { return len(f.replies(ev)) > 0 })
	return f.replies(ev)[0].reply
}

// settle returns when the host has handled everything that this key sent
// before: it takes a signer's requests in order.
func (f *foe) settle(t *testing.T) {
	t.Helper()
	r := f.asks(t, f.event(t, `{"kind":"workspace.list"}`, nil))
	if f.grant.ID == "" {
		if r.Refusal == nil || r.Refusal.Code != nip.Forbidden {
			t.Fatalf("a stranger was told %+v", r)
		}
	} else if _, ok := r.Outcome.(nip.Workspaces); !ok {
		t.Fatalf("a good request got %+v", r)
	}
}

// draft is a request on its way into an event: every layer can be spoilt.
type draft struct {
	body     map[string]any
	signer   nip.SecretKey
	to       nip.PubKey
	sealTo   nip.PubKey // whom the content is for, when not to
	schema   string
	inline   func(string) string // the canonical body, before digest and size are taken
	digestOf func(string) string // what the digest is taken of, when not the inline
	envelope func(string) string // the whole plaintext
	content  func(string) string
	mailbox  string
	created  int64
	tags     func(nostr.Tags) nostr.Tags
	after    func(*nip.Event) // the signed event
}

// event makes a request event as a device would, and spoils what spoil says.
func (f *foe) event(t *testing.T, op string, spoil func(*draft)) *nip.Event {
	t.Helper()
	now := time.Now().Unix()
	d := &draft{signer: f.key, to: f.a.host, schema: nip.SchemaRequest, body: map[string]any{
		"v": nip.SchemaRequest, "requires": []string{}, "request": testID(t), "host": f.a.host, "grant": f.grant.ID, "epoch": f.grant.Epoch,
		"relay": f.a.url, "issued_at": now, "expires_at": now + 60, "op": json.RawMessage(op),
	}}
	if f.grant.ID == "" {
		d.body["grant"] = testID(t)
	}
	if spoil != nil {
		spoil(d)
	}
	raw, err := json.Marshal(d.body)
	if err != nil {
		t.Fatal(err)
	}
	inline := string(raw)
	if canonical, err := nip.Canonical(raw); err == nil {
		inline = string(canonical)
	}
	if d.inline != nil {
		inline = d.inline(inline)
	}
	digest := inline
	if d.digestOf != nil {
		digest = d.digestOf(inline)
	}
	issued, _ := d.body["issued_at"].(int64)
	retain, _ := d.body["expires_at"].(int64)
	head, err := json.Marshal(map[string]any{"digest": nip.DigestOf([]byte(digest)), "media_type": "application/json", "schema": d.schema, "size": len(digest)})
	if err != nil {
		t.Fatal(err)
	}
	times, _ := json.Marshal([]int64{issued, retain})
	both := strings.Split(strings.Trim(string(times), "[]"), ",")
	plain := `{"artifact":` + string(head) + `,"inline":` + inline + `,"issued_at":` + both[0] + `,"requires":[],"retain_until":` + both[1] +
		`,"v":"openagents.artifact-envelope.v1"}`
	if d.envelope != nil {
		plain = d.envelope(plain)
	}
	if d.sealTo == "" {
		d.sealTo = d.to
	}
	content := sealed(t, d.signer, d.sealTo, plain)
	if d.content != nil {
		content = d.content(content)
	}
	if d.mailbox == "" {
		d.mailbox, _ = d.body["request"].(string)
	}
	if d.created == 0 {
		d.created = issued
	}
	ev := &nip.Event{CreatedAt: nostr.Timestamp(d.created), Kind: nip.KindArtifact, Content: content,
		Tags: nostr.Tags{{"p", string(d.to)}, {"h", d.mailbox}, {"t", "oa:artifact:v1"}}}
	if d.tags != nil {
		ev.Tags = d.tags(ev.Tags)
	}
	if err := d.signer.Sign(ev); err != nil {
		t.Fatal(err)
	}
	if d.after != nil {
		d.after(ev)
	}
	return ev
}

// sealed is NIP-44 by another hand than the product's.
func sealed(t *testing.T, from nip.SecretKey, to nip.PubKey, plain string) string {
	t.Helper()
	key, err := nip44.GenerateConversationKey(string(to), from.Hex())
	if err != nil {
		t.Fatal(err)
	}
	out, err := nip44.Encrypt(plain, key)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// raw is a websocket of the attacker's to the relay, authenticated as key
// unless key is nil.
func (a *attacked) raw(t *testing.T, key *nip.SecretKey) *websocket.Conn {
	t.Helper()
	ws, _, err := websocket.Dial(a.ctx, string(a.url), nil)
	if err != nil {
		t.Fatal(err)
	}
	ws.SetReadLimit(4 << 20)
	t.Cleanup(func() { ws.CloseNow() })
	if key == nil {
		return ws
	}
	_, b, err := ws.Read(a.ctx)
	var hello []string
	if err != nil || json.Unmarshal(b, &hello) != nil || len(hello) != 2 || hello[0] != "AUTH" {
		t.Fatalf("no challenge: %q, %v", b, err)
	}
	ev := &nip.Event{Kind: nostr.KindClientAuthentication, CreatedAt: nostr.Now(), Tags: nostr.Tags{{"relay", string(a.url)}, {"challenge", hello[1]}}}
	if err := key.Sign(ev); err != nil {
		t.Fatal(err)
	}
	if err := ws.Write(a.ctx, websocket.MessageText, relay.EncodeFrame("AUTH", nip.EncodeEvent(ev))); err != nil {
		t.Fatal(err)
	}
	if _, b, err = ws.Read(a.ctx); err != nil || !strings.HasPrefix(string(b), `["OK"`) || !strings.Contains(string(b), "true") {
		t.Fatalf("authentication: %q, %v", b, err)
	}
	return ws
}
