package client

import (
	"bytes"
	"path/filepath"
	"testing"

	"github.com/nbd-wtf/go-nostr"

	"holdfast/nip"
)

// FuzzAccess: whatever access.json holds, it opens only as the grant that the
// host signed, and then re-encodes to the same canonical bytes.
func FuzzAccess(f *testing.F) {
	p := &paper{}
	h := newHost(f, paperURL)
	p.host = h.serve
	d := opened(f, filepath.Join(f.TempDir(), "profile"), p)
	if _, err := d.Pair(f.Context(), h.code(h.invitation())); err != nil {
		f.Fatal(err)
	}
	good, err := d.access.encode()
	if err != nil {
		f.Fatal(err)
	}
	grant := d.access.grant
	f.Add(good)
	f.Add(good[:len(good)-1])
	f.Add([]byte(`{"v":"openagents.host-access.v1","requires":[],"grant":{},"authorization":{}}`))
	f.Add([]byte(`null`))
	f.Fuzz(func(t *testing.T, raw []byte) {
		a, err := parseAccess(raw, d.key, nip.Profile{})
		if err != nil {
			return
		}
		if a.grant.ID != grant.ID || a.grant.ExpiresAt != grant.ExpiresAt || len(a.grant.Rights) != len(grant.Rights) {
			t.Fatalf("opened as another grant: %+v", a.grant)
		}
		again, err := a.encode()
		if err != nil || !bytes.Equal(again, good) {
			t.Fatalf("re-encodes to %s (%v)", again, err)
		}
	})
}

// FuzzRow: a decoded row re-encodes to a row that decodes to the same.
func FuzzRow(f *testing.F) {
	ev := &nostr.Event{Kind: nip.KindArtifact, CreatedAt: 1, Tags: nostr.Tags{}, Content: "x"}
	key := newKey(f)
	if err := key.Sign(ev); err != nil {
		f.Fatal(err)
	}
	c := command(nil, nip.Send, "go")
	c.ID = nip.CommandID(newID(f))
	for _, r := range []row{
		{Host: key.Public(), Op: nip.TaskCommand{Command: c}, State: stateWaiting, Tries: 3, LastError: "silence"},
		{Host: key.Public(), Op: wish, State: stateUnknown, Request: nip.RequestID(newID(f)), Event: ev, Expires: 60},
	} {
		raw, err := r.encode()
		if err != nil {
			f.Fatal(err)
		}
		f.Add(raw[4:])
	}
	f.Add([]byte(`{}`))
	f.Fuzz(func(t *testing.T, body []byte) {
		r, err := decodeRow(7, withSum(body))
		if err != nil {
			return
		}
		raw, err := r.encode()
		if err != nil {
			t.Fatalf("does not encode: %v", err)
		}
		again, err := decodeRow(7, raw)
		if err != nil {
			t.Fatalf("does not decode again: %v", err)
		}
		if raw2, err := again.encode(); err != nil || !bytes.Equal(raw, raw2) {
			t.Fatalf("encoding is not stable: %s, %s (%v)", raw, raw2, err)
		}
	})
}

// Every damaged byte and every truncation of a row is noticed.
func TestRowDamage(t *testing.T) {
	c := command(t, nip.Send, "go")
	c.ID = nip.CommandID(newID(t))
	raw, err := row{Host: newKey(t).Public(), Op: nip.TaskCommand{Command: c}, State: stateWaiting}.encode()
	if err != nil {
		t.Fatal(err)
	}
	for i := range raw {
		if _, err := decodeRow(1, raw[:i]); err == nil {
			t.Fatalf("cut at %d decodes", i)
		}
		bad := bytes.Clone(raw)
		bad[i] ^= 0x20
		if _, err := decodeRow(1, bad); err == nil {
			t.Fatalf("byte %d changed decodes", i)
		}
	}
}

// FuzzKeptPage: whatever stands in the store is a page that encodes to the same
// bytes, or damaged.
func FuzzKeptPage(f *testing.F) {
	h := newHost(f, paperURL)
	a, err := nip.EncodeTaskPage(h.page(taskA, 4, 100))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(keptPage{revision: 4, issued: 100, body: a.Inline}.encode()[4:])
	f.Add(keptPage{revision: 5, issued: 100, body: a.Inline}.encode()[4:])
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, rest []byte) {
		raw := withSum(rest)
		p, err := decodeKeptPage(raw)
		if err != nil {
			return
		}
		if again := p.encode(); !bytes.Equal(again, raw) {
			t.Fatal("encoding is not stable")
		}
		if page, err := p.open(); err == nil && (page.Page.Scope.Revision != p.revision || page.IssuedAt != p.issued) {
			t.Fatal("opened as another page than its header says")
		}
	})
}

// FuzzSent: a decoded row of a remembered command re-encodes to a row that
// decodes to the same, and has a state.
func FuzzSent(f *testing.F) {
	n, rev := 3, int64(9)
	for _, r := range []sentRow{
		{}, {Task: "t", Action: nip.Queue, IssuedAt: 5, Reply: replyTaken, RepliedAt: 7},
		{Task: "t", State: "held", Position: &n, Of: 4, StatedAt: 9}, {State: "applied", Revision: &rev}, {State: "rejected", Reason: nip.Conflict},
	} {
		raw, err := r.encode()
		if err != nil {
			f.Fatal(err)
		}
		f.Add(raw[4:])
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		r, err := decodeSent(withSum(body))
		if err != nil {
			return
		}
		if r.status("x").State == "" {
			t.Fatal("no state")
		}
		raw, err := r.encode()
		if err != nil {
			t.Fatal(err)
		}
		if len(raw) > maxSentRow {
			return // escapes made it longer than what is ever written
		}
		again, err := decodeSent(raw)
		if err != nil {
			t.Fatalf("does not decode again: %v", err)
		}
		if raw2, err := again.encode(); err != nil || !bytes.Equal(raw, raw2) {
			t.Fatalf("encoding is not stable: %s, %s (%v)", raw, raw2, err)
		}
	})
}

// Every damaged byte and every truncation of what is remembered is noticed.
func TestKeptDamage(t *testing.T) {
	h := newHost(t, paperURL)
	a, err := nip.EncodeTaskPage(h.page(taskA, 4, 100))
	if err != nil {
		t.Fatal(err)
	}
	sent, err := sentRow{Task: nip.TaskID(taskA), Action: nip.Queue, State: "removed"}.encode()
	if err != nil {
		t.Fatal(err)
	}
	for name, row := range map[string]struct {
		raw    []byte
		decode func(raw []byte) error
	}{
		"page": {keptPage{revision: 4, issued: 100, body: a.Inline}.encode(), func(raw []byte) error { _, err := decodeKeptPage(raw); return err }},
		"sent": {sent, func(raw []byte) error { _, err := decodeSent(raw); return err }},
	} {
		if err := row.decode(row.raw); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		for i := range row.raw {
			if row.decode(row.raw[:i]) == nil {
				t.Fatalf("%s: cut at %d decodes", name, i)
			}
			bad := bytes.Clone(row.raw)
			bad[i] ^= 0x20
			if row.decode(bad) == nil {
				t.Fatalf("%s: byte %d changed decodes", name, i)
			}
		}
	}
	// A header that says something else than its body is damage too.
	if _, err := (keptPage{revision: 9, issued: 100, body: a.Inline}).open(); err == nil {
		t.Error("a page opens under another revision")
	}
}
