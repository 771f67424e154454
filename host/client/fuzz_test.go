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
