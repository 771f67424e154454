package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"holdfast/nip"
)

// Two hosts in one profile: a verb needs to be told which, and then talks to
// that one alone.
func TestDeviceHosts(t *testing.T) {
	t.Parallel()
	v, a, _ := atHost(t)
	b := newStandIn(t)
	answer := func(label nip.Label) func(nip.Request) (nip.Outcome, *nip.Refusal) {
		return func(nip.Request) (nip.Outcome, *nip.Refusal) {
			return nip.Workspaces{Workspaces: []nip.Label{label}}, nil
		}
	}
	a.set(answer("at-a"))
	b.set(answer("at-b"))
	if got := v.ok(t, "workspaces")["workspaces"].([]any); got[0] != "at-a" {
		t.Errorf("the only host: %v", got)
	}
	v.ok(t, "pair", b.code(), "--allow-loopback")
	if e := v.fails(t, exitUsage, "which_host", "workspaces"); !strings.Contains(e["hint"].(string), "device hosts") {
		t.Errorf("hint %q", e["hint"])
	}
	for label, s := range map[string]*standIn{"at-a": a, "at-b": b} {
		if got := v.ok(t, "workspaces", "--host", string(s.key.Public())[:20])["workspaces"].([]any); got[0] != label {
			t.Errorf("at %s: %v", label, got)
		}
	}
	v.fails(t, exitFailed, "not_paired", "workspaces", "--host", "zz")
	hosts := v.ok(t, "hosts")["hosts"].([]any)
	if len(hosts) != 2 || hosts[0].(map[string]any)["error"] != nil || hosts[0].(map[string]any)["expires_at"].(float64) == 0 {
		t.Errorf("hosts %v", hosts)
	}
	v.ok(t, "outbox")

	// A damaged record is shown as that, and pairing anew mends it.
	if err := os.WriteFile(filepath.Join(v.dir, "hosts", string(a.key.Public())+".json"), []byte("{}"), 0o600); err != nil {
		t.Fatal(err)
	}
	v.fails(t, exitCorrupt, "damaged", "workspaces", "--host", string(a.key.Public()))
	if code := v.run(t, "hosts"); code != exitOK || !strings.Contains(v.out.String(), "damaged") || !strings.Contains(v.out.String(), "until ") {
		t.Errorf("exit %d, %q", code, v.out.String())
	}
	v.ok(t, "pair", a.code(), "--allow-loopback")
	v.ok(t, "workspaces", "--host", string(a.key.Public()))

	v.fails(t, exitUsage, "usage", "hosts", "--forget", "abc")
	if left := v.ok(t, "hosts", "--forget", string(a.key.Public()))["hosts"].([]any); len(left) != 1 {
		t.Errorf("left %v", left)
	}
	v.fails(t, exitFailed, "absent", "hosts", "--forget", string(a.key.Public()))
	v.ok(t, "workspaces")
}

// A verb that meets a renewed grant says so, and from then on the new end shows.
func TestDeviceRenewal(t *testing.T) {
	t.Parallel()
	s := newStandIn(t)
	s.left = 3600
	v := &verb{dir: filepath.Join(t.TempDir(), "profile")}
	v.ok(t, "pair", s.code(), "--allow-loopback")
	end := func() float64 {
		return v.ok(t, "hosts")["hosts"].([]any)[0].(map[string]any)["expires_at"].(float64)
	}
	if end() != float64(s.grant.ExpiresAt) {
		t.Fatalf("before: until %v, want %d", end(), s.grant.ExpiresAt)
	}
	renewed := s.grant
	renewed.ID, renewed.IssuedAt = nip.GrantID(testID(t)), time.Now().Unix()
	renewed.ExpiresAt = renewed.IssuedAt + 86_400
	a, err := nip.EncodeGrant(renewed)
	if err != nil {
		t.Fatal(err)
	}
	s.publish(s.seal(renewed.Device, nip.Mailbox(renewed.ID), a))
	s.set(func(nip.Request) (nip.Outcome, *nip.Refusal) { return nip.Workspaces{}, nil })
	if code := v.run(t, "workspaces"); code != exitOK || !strings.Contains(v.err.String(), "renewed") {
		t.Errorf("exit %d, %q", code, v.err.String())
	}
	if end() != float64(renewed.ExpiresAt) {
		t.Errorf("after: until %v, want %d", end(), renewed.ExpiresAt)
	}
}
