package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nbd-wtf/go-nostr"
	"github.com/rs/zerolog"
	"go.etcd.io/bbolt"

	"holdfast/host"
	"holdfast/host/client"
	"holdfast/nip"
	"holdfast/relay"
	"holdfast/relay/relaytest"
)

// TestEnrollmentStories is every way in which a device comes to a grant and
// loses it: the host is a process, each verb of a device is another, and they
// know of each other what goes over the embedded relay.
func TestEnrollmentStories(t *testing.T) {
	for name, run := range map[string]func(*story){
		"invitation": storyInvitation, "delegation": storyDelegation, "enrollment": storyEnrollment,
		"approval by the owner": storyOwner, "revocation": storyRevocation, "renewal": storyRenewal,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, ctx := stage(t)
			st := &story{t: t, tour: s, ctx: ctx, port: freePort(t)}
			st.start()
			run(st)
		})
	}
}

// story is a host process and the profiles of its devices.
type story struct {
	t    *testing.T
	ctx  context.Context
	port string
	*tour
	process *tourProcess
	url     nip.RelayURL
	self    nip.PubKey
}

func (s *story) start() {
	s.t.Helper()
	p, ready := up(s.t, s.tour, s.ctx, "--listen", s.port)
	s.process, s.url, s.self = p, nip.RelayURL(ready["relay"].(string)), nip.PubKey(ready["host"].(string))
}

// restart kills the host, lets change edit its store while nobody has it open,
// and starts it again.
func (s *story) restart(change func(tx *bbolt.Tx) error) {
	s.t.Helper()
	s.process.kill()
	if change != nil {
		db, err := bbolt.Open(filepath.Join(s.home, "host.db"), 0o600, &bbolt.Options{Timeout: 5 * time.Second})
		if err != nil {
			s.t.Fatal(err)
		}
		if err := errors.Join(db.Update(change), db.Close()); err != nil {
			s.t.Fatal(err)
		}
	}
	s.start()
}

// edit changes one JSON record of a bucket.
func edit[T any](tx *bbolt.Tx, bucket, key string, fn func(*T)) error {
	b := tx.Bucket([]byte(bucket))
	var rec T
	if err := json.Unmarshal(b.Get([]byte(key)), &rec); err != nil {
		return err
	}
	fn(&rec)
	raw, err := json.Marshal(rec)
	if err != nil {
		return err
	}
	return b.Put([]byte(key), raw)
}

// can runs a device's verb in a process of its own, and wants its document.
func (s *story) can(device string, args ...string) map[string]any {
	s.t.Helper()
	var doc map[string]any
	if err := s.verb(s.ctx, &doc, append([]string{"device"}, append(args, "--profile", s.profile(device))...)...); err != nil {
		s.t.Fatalf("%s: %v", device, err)
	}
	return doc
}

// cannot wants the signed refusal with that code.
func (s *story) cannot(code nip.Code, device string, args ...string) string {
	s.t.Helper()
	err := s.verb(s.ctx, nil, append([]string{"device"}, append(args, "--profile", s.profile(device))...)...)
	var f *cliFailure
	if !errors.As(err, &f) || f.exit != exitFailed || f.code != string(code) {
		s.t.Fatalf("%s %s: %v, want %s", device, args[0], err, code)
	}
	return f.message
}

func (s *story) invite(args ...string) host.Invited {
	s.t.Helper()
	var inv host.Invited
	if err := s.operator(s.ctx, &inv, append([]string{"invite"}, args...)...); err != nil {
		s.t.Fatal(err)
	}
	return inv
}

// pair makes a device of that name and redeems the code with it.
func (s *story) pair(name, code string) nip.Grant {
	s.t.Helper()
	return s.grant(s.can(name, "pair", code, "--allow-loopback"))
}

func (s *story) grant(doc map[string]any) nip.Grant {
	s.t.Helper()
	raw, err := json.Marshal(doc["grant"])
	if err != nil {
		s.t.Fatal(err)
	}
	g, err := nip.ParseGrant(raw, nip.Profile{Loopback: true})
	if err != nil {
		s.t.Fatal(err)
	}
	return g
}

// row is a grant as the operator sees it.
func (s *story) row(id nip.GrantID) host.DeviceRow {
	s.t.Helper()
	var list struct{ Devices []host.DeviceRow }
	if err := s.operator(s.ctx, &list, "devices", "list"); err != nil {
		s.t.Fatal(err)
	}
	for _, d := range list.Devices {
		if d.Grant == id {
			return d
		}
	}
	s.t.Fatalf("the access book has no grant %s", id)
	return host.DeviceRow{}
}

func has(rights nip.Rights, want string) bool { return joinRights(rights) == want }

// One code is one device: it gets the same grant however often it asks and
// whoever died meanwhile, another gets nothing, and so does a code that ran
// out, was cancelled, or was asked for more than 32 times.
func storyInvitation(s *story) {
	inv, late := s.invite(), s.invite()
	first := s.pair("phone", inv.Code)
	if first.Epoch != 0 || first.Host != s.self || !has(first.Rights, joinRights(nip.StandardRights())) {
		s.t.Fatalf("grant %+v", first)
	}
	s.restart(func(tx *bbolt.Tx) error {
		return edit(tx, "invitations", string(late.Invitation), func(rec *map[string]any) { (*rec)["expires_at"] = time.Now().Unix() - 1 })
	})
	s.can("phone", "workspaces")
	// The device died before it kept the grant: all it has is its key.
	if err := os.RemoveAll(filepath.Join(s.profile("phone"), "hosts")); err != nil {
		s.t.Fatal(err)
	}
	if again := s.pair("phone", inv.Code); again.ID != first.ID || again.ExpiresAt != first.ExpiresAt {
		s.t.Errorf("the retry after both restarts got %+v, not %+v", again, first)
	}
	s.cannot(nip.Forbidden, "thief", "pair", inv.Code, "--allow-loopback")
	s.cannot(nip.Expired, "slow", "pair", late.Code, "--allow-loopback")

	// Any administrator may cancel what was not redeemed.
	s.pair("admin", s.invite("--rights", "pairing").Code)
	gone := s.invite()
	cancel := func(inv host.Invited) []string {
		return []string{"call", "--op", fmt.Sprintf(`{"kind":"invite.cancel","invitation":%q}`, inv.Invitation)}
	}
	s.can("admin", cancel(gone)...)
	s.can("admin", cancel(gone)...)
	s.cannot(nip.Revoked, "slow", "pair", gone.Code, "--allow-loopback")
	s.cannot(nip.Conflict, "admin", cancel(inv)...)
	s.can("phone", "workspaces")

	// Two replies went out; thirty more are the end of it.
	d, err := client.Init(s.profile("phone"), client.Options{Loopback: true, AnyHost: true, Log: zerolog.Nop()})
	if err != nil {
		s.t.Fatal(err)
	}
	defer d.Close()
	for n := 3; n <= 33; n++ {
		g, err := d.Pair(s.ctx, inv.Code)
		var refused *client.Refused
		switch {
		case n <= 32 && (err != nil || g.ID != first.ID):
			s.t.Fatalf("reply %d: %v", n, err)
		case n == 33 && (!errors.As(err, &refused) || refused.Code != nip.RateLimited):
			s.t.Fatalf("reply %d: %v", n, err)
		}
	}
	if _, err := d.Call(s.ctx, nip.WorkspaceList{}); err != nil {
		s.t.Errorf("the grant itself: %v", err)
	}

	// All that left its mark in the relay's store, which the living host reads.
	var checked struct {
		Stores []struct {
			Path, Detail string
			OK           bool
		}
	}
	s.must(s.operator(s.ctx, &checked, "check"))
	if !slices.ContainsFunc(checked.Stores, func(r struct {
		Path, Detail string
		OK           bool
	}) bool {
		return r.Path == "relay/relay.db" && strings.Contains(r.Detail, "indexes hold")
	}) {
		s.t.Errorf("check says %+v", checked.Stores)
	}
}

// A device with access_admin gives on what it holds and no more, no longer than
// itself, and nothing once it was revoked.
func storyDelegation(s *story) {
	admin := s.pair("admin", s.invite("--rights", "observe,operate,access_admin", "--days", "1").Code)
	if e := s.cannot(nip.MissingRight, "admin", "invite", "--rights", "observe,review"); !strings.Contains(e, "review") {
		s.t.Errorf("message %q", e)
	}
	s.cannot(nip.Forbidden, "admin", "invite", "--rights", "observe", "--days", "2")
	code := s.can("admin", "invite", "--rights", "observe,operate")["code"].(string)
	unused := s.can("admin", "invite", "--rights", "observe")["code"].(string)
	guest := s.pair("guest", code)
	if guest.Origin.Issuer != admin.Device || !has(guest.Rights, "observe,operate") || guest.ExpiresAt > admin.ExpiresAt {
		s.t.Errorf("guest's grant %+v, the administrator's %+v", guest, admin)
	}
	s.can("guest", "workspaces")
	s.cannot(nip.MissingRight, "guest", "invite", "--rights", "observe")
	s.cannot(nip.MissingRight, "guest", "revoke", string(admin.Device))
	if err := s.operator(s.ctx, nil, "devices", "revoke", string(admin.Device)); err != nil {
		s.t.Fatal(err)
	}
	s.cannot(nip.Revoked, "late", "pair", unused, "--allow-loopback")
	s.can("guest", "workspaces") // redeemed before, so a standing of its own
}

// enroll starts the verb on the host's machine and returns its first line.
func (s *story) enroll(rights string) (*tourProcess, map[string]any) {
	s.t.Helper()
	p, err := s.spawn("enroll", "--json", "--rights", rights, "--home", s.home)
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(p.kill)
	return p, s.line(p, "open")
}

func (s *story) line(p *tourProcess, state string) map[string]any {
	s.t.Helper()
	line, _, err := p.await(s.ctx, 0, state, func(v map[string]any) bool { return v["state"] == state })
	if err != nil {
		s.t.Fatal(err)
	}
	return line
}

func (s *story) exit(p *tourProcess, want int) {
	s.t.Helper()
	select {
	case <-p.ended:
	case <-s.ctx.Done():
		s.t.Fatal("enroll does not end")
	}
	if code := p.cmd.ProcessState.ExitCode(); code != want {
		s.t.Errorf("enroll: exit %d, want %d: %s", code, want, lastLine(p.errors.String()))
	}
}

// approval is enroll.approve of an open request, raw.
func approval(open map[string]any, code string, device nip.PubKey, until int64, change ...string) []string {
	op := fmt.Sprintf(`{"kind":"enroll.approve","enrollment":%q,"request_digest":%q,"code":%q,"device":%q,"rights":["observe","operate"],"grant_expires_at":%d}`,
		open["enrollment"], open["digest"], code, device, until)
	return []string{"call", "--op", strings.NewReplacer(change...).Replace(op)}
}

// A host without anybody at a camera shows a short code; an administrator's
// device elsewhere reads the request from the relay, and says yes or no.
func storyEnrollment(s *story) {
	admin := s.pair("admin", s.invite("--rights", "pairing").Code)
	device := nip.PubKey(s.can("server", "init")["device"].(string))
	until := time.Now().Unix() + 86_400

	p, open := s.enroll("observe,operate")
	id, code := open["enrollment"].(string), open["code"].(string)
	if open["copies"] != 2.0 { // the owner's and the administrator's
		s.t.Errorf("opened %v", open)
	}
	list := s.can("admin", "enrollments")["enrollments"].([]any)
	if len(list) != 1 || list[0].(map[string]any)["request_digest"] != open["digest"] || strings.Contains(fmt.Sprint(list), code) {
		s.t.Fatalf("the administrator sees %v of %v", list, open)
	}
	s.cannot(nip.WrongCode, "admin", approval(open, "0000-0000", device, until)...)
	s.line(p, "wrong_code")
	s.cannot(nip.Forbidden, "admin", approval(open, code, device, until, open["digest"].(string), "sha256:"+strings.Repeat("0", 64))...)
	s.cannot(nip.Forbidden, "admin", approval(open, code, device, until, `"operate"`, `"operate","terminal"`)...) // more than was asked for
	doc := s.can("admin", "approve", id, "--code", code, "--device", string(device))
	s.line(p, "approved")
	s.exit(p, exitOK)
	raw, err := json.Marshal(doc["authorization"])
	if err != nil {
		s.t.Fatal(err)
	}
	g := s.grant(s.can("server", "accept", string(s.self), string(raw), "--allow-loopback"))
	if g.Origin.Kind != "approval" || g.Origin.Issuer != admin.Device || !has(g.Rights, "observe,operate") {
		s.t.Errorf("grant %+v", g)
	}
	s.can("server", "workspaces")
	s.cannot(nip.Conflict, "admin", "deny", id)

	p, open = s.enroll("standard")
	s.can("admin", "deny", open["enrollment"].(string))
	s.line(p, "denied")
	s.exit(p, exitFailed)
	s.cannot(nip.Denied, "admin", approval(open, open["code"].(string), device, until)...)

	p, open = s.enroll("standard")
	for range 5 {
		s.cannot(nip.WrongCode, "admin", approval(open, "0000-0000", device, until)...)
	}
	s.line(p, "closed")
	s.exit(p, exitFailed)
	s.cannot(nip.RateLimited, "admin", approval(open, open["code"].(string), device, until)...)
	s.can("server", "workspaces")
}

// The owner approves with its own key: it reads its own copy of the request and
// asks without a grant.
func storyOwner(s *story) {
	raw, err := os.ReadFile(filepath.Join(s.home, "owner.key"))
	if err != nil {
		s.t.Fatal(err)
	}
	owner, err := nip.ParseSecretKey(strings.TrimSpace(string(raw)))
	if err != nil {
		s.t.Fatal(err)
	}
	device := nip.PubKey(s.can("server", "init")["device"].(string))
	p, open := s.enroll("standard")

	link := relay.Dial(relay.Options{URL: s.url, Key: owner, Log: zerolog.Nop()})
	defer link.Close()
	sub := link.Subscribe("owner", func(time.Time) []nip.Filter {
		return []nip.Filter{{Kinds: []int{nip.KindArtifact}, Authors: []string{string(s.self)}, Tags: nostr.TagMap{"p": {string(owner.Public())}}}}
	})
	next := func(schema string) nip.Opened {
		s.t.Helper()
		for {
			select {
			case d := <-sub.C():
				if o, err := nip.Open(d.Event, owner); err == nil && o.Schema == schema {
					return o
				}
			case <-s.ctx.Done():
				s.t.Fatalf("no %s came", schema)
			}
		}
	}
	copied := next(nip.SchemaEnrollment)
	e, err := nip.ParseEnrollment(copied.Inline, nip.Profile{Loopback: true})
	if err != nil || string(e.ID) != open["enrollment"] || string(nip.DigestOf(copied.Inline)) != open["digest"] {
		s.t.Fatalf("the owner's copy %+v, %v", e, err)
	}
	now := time.Now().Unix()
	q := nip.Request{ID: nip.RequestID(testID(s.t)), Host: s.self, Epoch: -1, Relay: s.url, IssuedAt: now, ExpiresAt: now + 60,
		Op: nip.EnrollApprove{Enrollment: e.ID, RequestDigest: nip.DigestOf(copied.Inline), Code: open["code"].(string), Device: device,
			Rights: nip.Rights{nip.Observe, nip.Operate}, GrantExpiresAt: now + 86_400}}
	a, err := nip.EncodeRequest(q)
	if err != nil {
		s.t.Fatal(err)
	}
	ev, err := nip.Seal(owner, s.self, nip.Mailbox(q.ID), a, nil)
	if err != nil {
		s.t.Fatal(err)
	}
	if err := link.Publish(s.ctx, ev); err != nil {
		s.t.Fatal(err)
	}
	reply, err := nip.ParseReply(next(nip.SchemaReply).Inline)
	granted, ok := reply.Outcome.(nip.Granted)
	if err != nil || !ok {
		s.t.Fatalf("refused %+v, %v", reply.Refusal, err)
	}
	s.line(p, "approved")
	g := s.grant(s.can("server", "accept", string(s.self), string(nip.EncodeEvent(granted.Authorization)), "--allow-loopback"))
	if g.Origin.Issuer != owner.Public() || g.Device != device {
		s.t.Errorf("grant %+v", g)
	}
	s.can("server", "workspaces")
}

// From the revocation on, the device is refused and its connections are gone; a
// new code pairs it again at the next epoch, and the old grant stays dead.
func storyRevocation(s *story) {
	old := s.pair("phone", s.invite().Code)
	task := s.can("phone", "create", "--workspace", string(demoLabel), "--title", "t", "--prompt", "hello", "--wait", "completed")["task"].(string)
	raw, err := os.ReadFile(filepath.Join(s.profile("phone"), "device.key"))
	if err != nil {
		s.t.Fatal(err)
	}
	key, err := nip.ParseSecretKey(strings.TrimSpace(string(raw)))
	if err != nil {
		s.t.Fatal(err)
	}
	ws := (&attacked{tour: s.tour, ctx: s.ctx, url: s.url}).raw(s.t, &key)
	var rev struct{ Epoch int64 }
	if err := s.operator(s.ctx, &rev, "devices", "revoke", string(old.Device)); err != nil || rev.Epoch != 1 {
		s.t.Fatalf("epoch %d, %v", rev.Epoch, err)
	}
	for ctx, stop := context.WithTimeout(s.ctx, 30*time.Second); ; {
		if _, _, err := ws.Read(ctx); err != nil {
			if ctx.Err() != nil {
				s.t.Error("the revoked device's connection stays open")
			}
			stop()
			break
		}
	}
	s.cannot(nip.Revoked, "phone", "send", task, "more")
	s.cannot(nip.Revoked, "phone", "workspaces")
	if r := s.row(old.ID); r.State != "revoked" {
		s.t.Errorf("row %+v", r)
	}

	kept := filepath.Join(s.profile("phone"), "hosts", string(s.self)+".json")
	dead, err := os.ReadFile(kept)
	if err != nil {
		s.t.Fatal(err)
	}
	again := s.pair("phone", s.invite().Code)
	if again.Epoch != 1 || again.ID == old.ID || again.Device != old.Device {
		s.t.Errorf("grant %+v after %+v", again, old)
	}
	s.can("phone", "send", task, "more")
	s.can("phone", "workspaces")
	// The profile as it was before does not come back to life.
	s.must(os.WriteFile(kept, dead, 0o600))
	s.cannot(nip.Revoked, "phone", "workspaces")
}

func (s *story) must(err error) {
	s.t.Helper()
	if err != nil {
		s.t.Fatal(err)
	}
}

// With a quarter of its life left, a grant is renewed over the relay by the
// device's next request, and the device goes on with the new one. The grant is
// made old on both sides: by the host's own signature, and in its store.
func storyRenewal(s *story) {
	g := s.pair("phone", s.invite().Code)
	now := time.Now().Unix()
	g.IssuedAt, g.ExpiresAt = now-24*86_400, now+6*86_400
	g.Origin.Kind = "approval" // which is what a device takes without a code
	raw, err := os.ReadFile(filepath.Join(s.home, "host.key"))
	s.must(err)
	key, err := nip.ParseSecretKey(strings.TrimSpace(string(raw)))
	s.must(err)
	a, err := nip.EncodeGrant(g)
	s.must(err)
	ev, err := nip.Seal(key, g.Device, nip.Mailbox(g.ID), a, nil)
	s.must(err)
	s.restart(func(tx *bbolt.Tx) error {
		type record struct {
			Grant     nip.Grant  `json:"grant"`
			Envelope  *nip.Event `json:"envelope"`
			RevokedAt int64      `json:"revoked_at,omitempty"`
		}
		return edit(tx, "grants", string(g.ID), func(r *record) { r.Grant, r.Envelope = g, ev })
	})
	s.must(os.RemoveAll(filepath.Join(s.profile("phone"), "hosts")))
	s.can("phone", "accept", string(s.self), string(nip.EncodeEvent(ev)), "--allow-loopback")
	s.can("phone", "workspaces") // the occasion
	var next nip.Grant
	relaytest.Eventually(s.t, "a renewed grant", func() bool {
		s.can("phone", "workspaces")
		d, err := client.Open(s.profile("phone"), client.Options{Loopback: true, Log: zerolog.Nop()})
		s.must(err)
		defer d.Close()
		next, _ = d.Grant()
		return next.ID != g.ID
	})
	if next.ExpiresAt-next.IssuedAt != 30*86_400 || next.IssuedAt < now || next.Epoch != g.Epoch || !has(next.Rights, joinRights(g.Rights)) || next.Origin != g.Origin {
		s.t.Errorf("renewed %+v, from %+v", next, g)
	}
	if r := s.row(next.ID); r.State != "active" {
		s.t.Errorf("row %+v", r)
	}
	if r := s.row(g.ID); r.State != "active" { // valid to its own end
		s.t.Errorf("the earlier row %+v", r)
	}
	s.restart(nil)
	s.can("phone", "workspaces")
	s.can("phone", "create", "--workspace", string(demoLabel), "--title", "t", "--prompt", "hello", "--wait", "completed")
}
