package client

import (
	"crypto/rand"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"holdfast/nip"
	"holdfast/relay"
)

const paperURL nip.RelayURL = "wss://relay.example.com/"

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

// host is a scripted host: it opens requests and seals whatever the test wants
// in answer.
type host struct {
	t     testing.TB
	key   nip.SecretKey
	owner nip.SecretKey
	url   nip.RelayURL
	now   func() time.Time // the host's own clock
	grant nip.Grant
	seen  []nip.Request // requests that op answered
	// op answers one operation: an outcome, a refusal, or neither for silence.
	op func(r nip.Request) (nip.Outcome, *nip.Refusal)
	// pairs keeps redemptions from op.
	pairs bool
}

func newHost(t testing.TB, url nip.RelayURL) *host {
	return &host{t: t, key: newKey(t), owner: newKey(t), url: url, now: time.Now}
}

func (h *host) invitation() nip.Invitation {
	now := h.now().Unix()
	return nip.Invitation{Host: h.key.Public(), ID: nip.InvitationID(newID(h.t)), Capability: newID(h.t),
		IssuedAt: now, ExpiresAt: now + 300, Relay: h.url}
}

func (h *host) code(inv nip.Invitation) string {
	h.t.Helper()
	s, err := nip.EncodeInvitation(inv, nip.Profile{Loopback: true})
	if err != nil {
		h.t.Fatal(err)
	}
	return s
}

// newGrant is the grant that an honest host issues.
func (h *host) newGrant(dev nip.PubKey, inv nip.InvitationID) nip.Grant {
	now := h.now().Unix()
	return nip.Grant{ID: nip.GrantID(newID(h.t)), Origin: nip.Origin{Kind: "invitation", ID: string(inv), Issuer: h.key.Public()},
		Host: h.key.Public(), Owner: h.owner.Public(), Device: dev, Relay: h.url, IssuedAt: now, ExpiresAt: now + 86_400,
		Rights: nip.PairingRights()}
}

func (h *host) sealGrant(g nip.Grant) *nip.Event {
	h.t.Helper()
	a, err := nip.EncodeGrant(g)
	if err != nil {
		h.t.Fatal(err)
	}
	return seal(h.t, h.key, g.Device, nip.Mailbox(g.ID), a)
}

func seal(t testing.TB, key nip.SecretKey, to nip.PubKey, box nip.Mailbox, a nip.Artifact) *nip.Event {
	t.Helper()
	ev, err := nip.Seal(key, to, box, a, nil)
	if err != nil {
		t.Fatal(err)
	}
	return ev
}

// open decodes a request event to this host.
func (h *host) open(ev *nip.Event) (nip.Request, bool) {
	h.t.Helper()
	v, err := nip.VerifyEvent(ev)
	if err != nil {
		h.t.Fatal(err)
	}
	o, err := nip.Open(v, h.key)
	if err != nil || o.Recipient != h.key.Public() || o.Schema == nip.SchemaNudge {
		return nip.Request{}, false
	}
	r, err := nip.ParseRequest(o.Inline, nip.Profile{Loopback: true})
	if err != nil {
		h.t.Fatalf("device sent a request that does not parse: %v", err)
	}
	return r, true
}

// reply is the honest frame of an answer.
func (h *host) reply(r nip.Request, ev *nip.Event) nip.Reply {
	return nip.Reply{Request: r.ID, RequestEvent: nip.EventID(ev.ID), Host: h.key.Public(),
		IssuedAt: h.now().Unix(), ExpiresAt: r.ExpiresAt}
}

func (h *host) sealReply(rep nip.Reply, to string) *nip.Event {
	h.t.Helper()
	a, err := nip.EncodeReply(rep)
	if err != nil {
		h.t.Fatal(err)
	}
	return seal(h.t, h.key, nip.PubKey(to), nip.Mailbox(rep.Request), a)
}

// serve is a host hook of paper: fresh requests in, replies out.
func (h *host) serve(ev *nip.Event) []*nip.Event {
	r, ok := h.open(ev)
	if !ok {
		return nil
	}
	now := h.now().Unix()
	if r.IssuedAt > now+60 || r.ExpiresAt <= now {
		return nil
	}
	h.seen = append(h.seen, r)
	rep := h.reply(r, ev)
	if redeem, ok := r.Op.(nip.EnrollRedeem); ok && (h.op == nil || h.pairs) {
		h.grant = h.newGrant(nip.PubKey(ev.PubKey), redeem.Invitation)
		rep.Outcome = nip.Granted{Authorization: h.sealGrant(h.grant)}
	} else {
		rep.Outcome, rep.Refusal = h.op(r)
		if rep.Outcome == nil && rep.Refusal == nil {
			return nil
		}
	}
	return []*nip.Event{h.sealReply(rep, ev.PubKey)}
}

// recordPath is the access record of a host, inside the profile.
func recordPath(host nip.PubKey) string {
	return filepath.Join(hostsFolder, string(host)+recordSuffix)
}

// opened is a device on a paper relay that is not paired yet.
func opened(t testing.TB, dir string, p *paper) *Device {
	t.Helper()
	d, err := Init(dir, Options{Log: zerolog.Nop()})
	if err != nil {
		t.Fatal(err)
	}
	d.dial = p.dial
	d.pace.nudge = 0 // tests count publications; those of nudges ask for them
	t.Cleanup(func() { d.Close() })
	return d
}

// paired is a device, its host and the paper relay between them.
func paired(t testing.TB) (*Device, *host, *paper) {
	t.Helper()
	p := &paper{}
	h := newHost(t, paperURL)
	p.host = h.serve
	d := opened(t, filepath.Join(t.TempDir(), "profile"), p)
	if _, err := d.Pair(t.Context(), h.code(h.invitation())); err != nil {
		t.Fatal(err)
	}
	h.op = func(nip.Request) (nip.Outcome, *nip.Refusal) {
		return nip.Workspaces{Workspaces: []nip.Label{"demo"}}, nil
	}
	p.mu.Lock()
	p.taken, p.stored, h.seen = nil, nil, nil
	p.mu.Unlock()
	return d, h, p
}

// reopen opens the profile again, as after a crash of the first process.
func reopen(t testing.TB, d *Device, p *paper) *Device {
	t.Helper()
	n, err := Open(d.dir, Options{Log: zerolog.Nop(), Now: d.o.Now})
	if err != nil {
		t.Fatal(err)
	}
	n.dial, n.pace.nudge = p.dial, 0
	t.Cleanup(func() { n.Close() })
	return n
}

func command(t testing.TB, action nip.Action, text string) nip.Command {
	return nip.Command{Task: nip.TaskID(strings.Repeat("ab", 32)), Action: action, BasedOn: 1, Text: text}
}

// dispatched is what an honest host signs for a command or a create.
func dispatched(r nip.Request) nip.Outcome {
	switch op := r.Op.(type) {
	case nip.TaskCommand:
		return nip.Dispatched{Operation: op.Kind(), Reference: string(op.Command.Task)}
	case nip.TaskCreate:
		return nip.Dispatched{Operation: op.Kind(), Reference: string(r.ID)}
	}
	return nil
}

var _ relay.Link = (*paperLink)(nil)
