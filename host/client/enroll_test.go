package client

import (
	"errors"
	"path/filepath"
	"strings"
	"testing"

	"holdfast/nip"
)

// enrollment is what an honest host asks its administrators.
func (h *host) enrollment() nip.Enrollment {
	now := h.now().Unix()
	return nip.Enrollment{ID: nip.EnrollmentID(newID(h.t)), Host: h.key.Public(), Owner: h.owner.Public(), Relay: h.url,
		Rights: nip.StandardRights(), IssuedAt: now, ExpiresAt: now + 300}
}

func (h *host) sealEnrollment(key nip.SecretKey, e nip.Enrollment, to nip.PubKey) *nip.Event {
	h.t.Helper()
	a, err := nip.EncodeEnrollment(e)
	if err != nil {
		h.t.Fatal(err)
	}
	return seal(h.t, key, to, nip.Mailbox(e.ID), a)
}

func TestEnrollments(t *testing.T) {
	d, h, p := paired(t)
	stranger := newKey(t)
	first, second := h.enrollment(), h.enrollment()
	second.IssuedAt++
	second.ExpiresAt++
	expired, foreign, unowned := h.enrollment(), h.enrollment(), h.enrollment()
	expired.IssuedAt, expired.ExpiresAt = expired.IssuedAt-400, expired.ExpiresAt-400
	foreign.Host = stranger.Public()
	unowned.Owner = stranger.Public()
	a, err := nip.EncodeEnrollment(h.enrollment())
	if err != nil {
		t.Fatal(err)
	}
	p.add(
		h.sealEnrollment(h.key, first, d.PubKey()),
		h.sealEnrollment(h.key, second, d.PubKey()),
		h.sealEnrollment(h.key, second, d.PubKey()), // a second copy
		h.sealEnrollment(h.key, expired, d.PubKey()),
		h.sealEnrollment(h.key, foreign, d.PubKey()),
		h.sealEnrollment(h.key, unowned, d.PubKey()),
		h.sealEnrollment(h.key, h.enrollment(), stranger.Public()),
		h.sealEnrollment(stranger, h.enrollment(), d.PubKey()),
		seal(t, h.key, d.PubKey(), nip.Mailbox(newID(t)), a),
		h.sealPresence(d.PubKey(), 1, h.now().Unix()),
	)
	list, err := d.Enrollments(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if len(list) != 2 || list[0].ID != second.ID || list[1].ID != first.ID {
		t.Fatalf("enrollments = %+v", list)
	}
	if a, _ := nip.EncodeEnrollment(first); list[1].Digest != nip.DigestOf(a.Inline) {
		t.Errorf("digest %s", list[1].Digest)
	}
}

// A code that says something else than the reply, or leads elsewhere, is no
// answer to an invitation.
func TestInviteAnswers(t *testing.T) {
	d, h, _ := paired(t)
	for _, tt := range []struct {
		name   string
		code   func(inv *nip.Invitation) // what the code says beside the reply
		stated func(out *nip.Invited)
		ok     bool
	}{
		{"the host's own", nil, nil, true},
		{"another host's", func(inv *nip.Invitation) { inv.Host = newKey(t).Public() }, nil, false},
		{"another relay", func(inv *nip.Invitation) { inv.Relay = "wss://relay.example.org/" }, nil, false},
		{"another ID", func(inv *nip.Invitation) { inv.ID = nip.InvitationID(newID(t)) }, nil, false},
		{"longer than stated", func(inv *nip.Invitation) { inv.IssuedAt++; inv.ExpiresAt++ }, nil, false},
		{"stated longer than it is", nil, func(out *nip.Invited) { out.ExpiresAt++ }, false},
		{"stated as another", nil, func(out *nip.Invited) { out.Invitation = nip.InvitationID(newID(t)) }, false},
	} {
		inv := h.invitation()
		out := nip.Invited{Invitation: inv.ID, ExpiresAt: inv.ExpiresAt}
		if tt.code != nil {
			tt.code(&inv)
		}
		out.Code = h.code(inv)
		if tt.stated != nil {
			tt.stated(&out)
		}
		p, err := d.peer()
		if err != nil {
			t.Fatal(err)
		}
		r, err := d.prepare(t.Context(), p, nip.InviteCreate{Rights: nip.StandardRights(), GrantExpiresAt: h.now().Unix() + 600})
		if err != nil {
			t.Fatal(err)
		}
		if err := checkOutcome(out, p, r); (err == nil) != tt.ok {
			t.Errorf("%s: %v", tt.name, err)
		}
	}
}

// A forwarded grant is taken from the host that the person named, when it is
// this device's and comes from an approval.
func TestAccept(t *testing.T) {
	p := &paper{}
	h := newHost(t, paperURL)
	for _, tt := range []struct {
		name string
		make func(g *nip.Grant)
		host nip.PubKey
		why  string
	}{
		{"honest", func(*nip.Grant) {}, h.key.Public(), ""},
		{"another host meant", func(*nip.Grant) {}, newKey(t).Public(), "another host"},
		{"from an invitation", func(g *nip.Grant) { g.Origin.Kind = "invitation" }, h.key.Public(), "no approval"},
		{"expired", func(g *nip.Grant) { g.IssuedAt, g.ExpiresAt = g.IssuedAt-900, g.ExpiresAt-86_500 }, h.key.Public(), "expired"},
		{"for another device", func(g *nip.Grant) { g.Device = newKey(t).Public() }, h.key.Public(), "forbidden"},
		{"plain relay", func(g *nip.Grant) { g.Relay = "ws://127.0.0.1:7447/" }, h.key.Public(), "relay"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			d := opened(t, filepath.Join(t.TempDir(), "profile"), p)
			g := h.newGrant(d.PubKey(), nip.InvitationID(newID(t)))
			g.Origin.Kind = "approval"
			tt.make(&g)
			got, err := d.Accept(h.sealGrant(g), tt.host)
			if tt.why == "" {
				if err != nil || got.ID != g.ID {
					t.Fatal(err)
				}
				holds(t, d, p, g.ID)
				old := g
				old.ID, old.IssuedAt = nip.GrantID(newID(t)), g.IssuedAt-10
				if _, err := d.Accept(h.sealGrant(old), tt.host); err == nil || !strings.Contains(err.Error(), "newer") {
					t.Errorf("an older grant: %v", err)
				}
				return
			}
			if err == nil || !strings.Contains(err.Error(), tt.why) {
				t.Errorf("err = %v, want %q", err, tt.why)
			}
			if _, err := d.Call(t.Context(), nip.WorkspaceList{}); !errors.Is(err, ErrNotPaired) {
				t.Errorf("a call afterwards: %v", err)
			}
		})
	}
}
