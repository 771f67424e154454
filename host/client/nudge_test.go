package client

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"holdfast/nip"
)

// nudges are the nudges among what a device published.
func (h *host) nudges(p *paper) []nip.Opened {
	h.t.Helper()
	var list []nip.Opened
	for _, ev := range p.published() {
		v, err := nip.VerifyEvent(ev)
		if err != nil {
			h.t.Fatal(err)
		}
		if o, err := nip.Open(v, h.key); err == nil && o.Schema == nip.SchemaNudge {
			list = append(list, o)
		}
	}
	return list
}

func TestNudge(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, h, p := paired(t)
		d.pace.nudge = 30
		if _, err := d.Call(t.Context(), nip.WorkspaceList{}); err != nil {
			t.Fatal(err)
		}
		if n := h.nudges(p); len(n) != 0 {
			t.Fatalf("%d nudges for a host that answers", len(n))
		}
		p.host = nil
		if _, err := d.Call(t.Context(), nip.WorkspaceList{}); !errors.Is(err, ErrNoAnswer) {
			t.Fatal(err)
		}
		got := h.nudges(p)
		if len(got) != 2 {
			t.Fatalf("%d nudges in a silence of 60 s, want one each 30 s", len(got))
		}
		box, err := nip.DeriveMailbox(h.key, d.PubKey(), nip.StreamNudges)
		if err != nil {
			t.Fatal(err)
		}
		for _, o := range got {
			n, err := nip.ParseNudge(o.Inline)
			if err != nil || o.Mailbox != box || o.Signer != d.PubKey() || n.Device != d.PubKey() || n.Host != h.key.Public() || !n.Current(time.Now().Unix()) {
				t.Errorf("nudge %+v in %s: %v", n, o.Mailbox, err)
			}
		}
		// Another process right after it has nothing to add.
		n := reopen(t, d, p)
		n.pace.nudge = 30
		ctx, cancel := context.WithTimeout(t.Context(), 8*time.Second)
		defer cancel()
		if _, err := n.Call(ctx, nip.WorkspaceList{}); !errors.Is(err, ErrNoAnswer) {
			t.Fatal(err)
		}
		if more := h.nudges(p); len(more) != 2 {
			t.Errorf("%d nudges after another process", len(more))
		}
	})
}

// A redemption has no standing that a host would look at, and a refusal of the
// relay costs the call nothing.
func TestNudgeNotLeft(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, h, p := paired(t)
		d.pace.nudge = 30
		p.host = nil
		if _, err := d.Pair(t.Context(), h.code(h.invitation())); !errors.Is(err, ErrNoAnswer) {
			t.Fatal(err)
		}
		if n := h.nudges(p); len(n) != 0 {
			t.Errorf("%d nudges by a redemption", len(n))
		}
		p.publish = func(n int, ev *nip.Event) (bool, error) {
			if _, request := h.open(ev); request {
				return true, nil
			}
			return false, errors.New("not here")
		}
		if _, err := d.Call(t.Context(), nip.WorkspaceList{}); !errors.Is(err, ErrNoAnswer) {
			t.Errorf("err = %v", err)
		}
	})
}

func TestNudgedSince(t *testing.T) {
	for _, tt := range []struct {
		raw  string
		want bool
	}{{"", false}, {"1000", true}, {"971", true}, {"970", false}, {"1001", false}, {"{", false}} {
		var raw []byte
		if tt.raw != "" {
			raw = []byte(tt.raw)
		}
		if got := nudgedSince(raw, 1000, 30); got != tt.want {
			t.Errorf("%q: %v", tt.raw, got)
		}
	}
}
