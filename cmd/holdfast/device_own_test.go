package main

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/nbd-wtf/go-nostr/nip19"
	"github.com/rs/zerolog"

	"holdfast/host"
	"holdfast/host/client"
	"holdfast/host/client/remote"
	"holdfast/host/client/remote/remotetest"
	"holdfast/nip"
	"holdfast/owner"
	"holdfast/relay/relaytest"
)

// ownedHost is a host whose owner's key only a remote signer has, and the
// profile "boss" that was introduced to the signer.
func ownedHost(t *testing.T) (s *tour, ctx context.Context, signer *remotetest.Signer, ready map[string]any) {
	t.Helper()
	s, ctx = stage(t)
	signer = remotetest.New(t)
	npub, err := nip19.EncodePublicKey(string(signer.User.Public()))
	if err != nil {
		t.Fatal(err)
	}
	var made struct{ Host, Owner string }
	if err := s.operator(ctx, &made, "init", "--owner", npub); err != nil {
		t.Fatal(err)
	}
	if made.Owner != string(signer.User.Public()) {
		t.Errorf("owner %s", made.Owner)
	}
	if err := s.stepHome(ctx); err != nil {
		t.Fatal(err)
	}
	s.host, ready = up(t, s, ctx, "--listen", freePort(t))
	if ready["host"] != made.Host {
		t.Errorf("ready %v", ready)
	}
	return s, ctx, signer, ready
}

// boss runs a verb of the owner's profile, a process of its own.
func boss(ctx context.Context, s *tour, stdin string, into any, args ...string) error {
	return s.verbWith(ctx, []byte(stdin), into, append([]string{"device", "--profile", s.profile("boss")}, args...)...)
}

// TestOwnerElsewhere: the owner's secret is on no disk here, and the owner
// invites, commands, admits and revokes all the same.
func TestOwnerElsewhere(t *testing.T) {
	t.Parallel()
	s, ctx, signer, ready := ownedHost(t)
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	var self struct {
		Device    string
		Elsewhere bool
	}
	must(boss(ctx, s, signer.URL()+"\n", &self, "init", "--bunker", "-", "--allow-loopback"))
	if self.Device != string(signer.User.Public()) || !self.Elsewhere {
		t.Errorf("init printed %+v", self)
	}
	if code, msg := exitOf(t, s, ctx, "device", "workspaces", "--profile", s.profile("boss")); code != exitFailed {
		t.Errorf("before own: exit %d, %s", code, msg)
	}
	hostKey, url := ready["host"].(string), ready["relay"].(string)
	var owned struct{ Host, Owner, Relay string }
	must(boss(ctx, s, "", &owned, "own", hostKey, "--relay", url, "--allow-loopback"))
	if owned.Host != hostKey || owned.Owner != self.Device || owned.Relay != url {
		t.Errorf("own printed %+v", owned)
	}
	var inv struct {
		Code   string
		Rights []string
	}
	must(boss(ctx, s, "", &inv, "invite"))
	if len(inv.Rights) != 4 {
		t.Errorf("invited with %v", inv.Rights)
	}
	phone, err := s.pair(ctx, "phone", inv.Code)
	must(err)
	must(s.phone(ctx, nil, "workspaces"))
	var lost struct{ Invitation, Code string }
	must(boss(ctx, s, "", &lost, "invite"))
	must(boss(ctx, s, "", nil, "cancel-invite", lost.Invitation))
	if _, err := s.pair(ctx, "finder", lost.Code); err == nil || !strings.Contains(err.Error(), "revoked") {
		t.Errorf("a code that was taken back: %v", err)
	}

	var made struct{ Task string }
	must(boss(ctx, s, "", &made, "create", "--workspace", tourLabel, "--title", "by the owner", "--prompt", "hello", "--wait", "completed"))
	s.task = made.Task
	must(boss(ctx, s, "", nil, "send", s.task, "hello again"))
	must(s.ended(ctx, 2, owner.Finished))
	must(boss(ctx, s, "", nil, "read", s.task))
	if code, msg := exitOf(t, s, ctx, "device", "watch", "--profile", s.profile("boss")); code != exitFailed || !strings.Contains(msg, "publishes to its devices") {
		t.Errorf("watch: exit %d, %s", code, msg)
	}

	// The owner sees the host's question and admits a device by the code.
	asking, err := s.spawn("enroll", "--json", "--home", s.home)
	must(err)
	t.Cleanup(asking.kill)
	open, _, err := asking.await(ctx, 0, "the code", func(v map[string]any) bool { return v["state"] == "open" })
	must(err)
	var tablet struct{ Device string }
	must(s.verb(ctx, &tablet, "device", "init", "--profile", s.profile("tablet")))
	var list struct{ Enrollments []struct{ Enrollment string } }
	must(boss(ctx, s, "", &list, "enrollments"))
	if len(list.Enrollments) != 1 {
		t.Fatalf("enrollments %+v", list)
	}
	var admitted struct{ Authorization jsonValue }
	must(boss(ctx, s, "", &admitted, "approve", list.Enrollments[0].Enrollment, "--code", open["code"].(string), "--device", tablet.Device))
	must(s.verbWith(ctx, admitted.Authorization, nil, "device", "--profile", s.profile("tablet"), "accept", hostKey, "-", "--allow-loopback"))

	var hosts struct {
		Hosts []struct{ Host, Relay string }
	}
	must(boss(ctx, s, "", &hosts, "hosts"))
	if len(hosts.Hosts) != 1 || hosts.Hosts[0].Host != hostKey {
		t.Errorf("hosts %+v", hosts)
	}
	must(boss(ctx, s, "", nil, "revoke", phone))
	if code, msg := exitOf(t, s, ctx, "device", "workspaces", "--profile", s.profile("phone")); code != exitFailed || !strings.Contains(msg, "revoked") {
		t.Errorf("after the revocation: exit %d, %s", code, msg)
	}
	var devices struct{ Devices []host.DeviceRow }
	must(s.operator(ctx, &devices, "devices", "list"))
	for _, d := range devices.Devices {
		if want := map[bool]string{true: "revoked", false: "active"}[string(d.Device) == phone]; d.State != want {
			t.Errorf("%s is %s", d.Device, d.State)
		}
	}
	ownersSecretIsNowhere(t, s, signer)
}

// ownersSecretIsNowhere looks through everything that the test left on disk.
func ownersSecretIsNowhere(t *testing.T, s *tour, signer *remotetest.Signer) {
	t.Helper()
	err := filepath.WalkDir(s.dir, func(path string, e os.DirEntry, err error) error {
		if err != nil || !e.Type().IsRegular() {
			return err
		}
		raw, err := os.ReadFile(path)
		if strings.Contains(string(raw), signer.User.Hex()) || e.Name() == "owner.key" {
			t.Errorf("%s holds the owner's secret", path)
		}
		if strings.Contains(string(raw), "only%20once") {
			if st, err := e.Info(); err != nil || e.Name() != "bunker.json" || st.Mode().Perm() != 0o600 {
				t.Errorf("%s holds the secret of the bunker's address (%v)", path, err)
			}
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
}

// jsonValue is a member that is passed on as it stands.
type jsonValue []byte

func (v *jsonValue) UnmarshalJSON(b []byte) error { *v = append((*v)[:0], b...); return nil }

// TestSignerSaysNo: whatever the signer does wrong is an error that says so, and
// the host hears nothing of it.
func TestSignerSaysNo(t *testing.T) {
	t.Parallel()
	s, ctx, signer, ready := ownedHost(t)
	if err := boss(ctx, s, signer.URL(), nil, "init", "--bunker", "-", "--allow-loopback"); err != nil {
		t.Fatal(err)
	}
	if err := boss(ctx, s, "", nil, "own", ready["host"].(string), "--relay", ready["relay"].(string), "--allow-loopback"); err != nil {
		t.Fatal(err)
	}
	var before, after struct{ Journal struct{ Entries int } }
	if err := s.operator(ctx, &before, "status"); err != nil {
		t.Fatal(err)
	}
	type answers = func(r remotetest.Request, honest remotetest.Response) []remotetest.Response
	refuse := func(when func(r remotetest.Request) bool) answers {
		return func(r remotetest.Request, honest remotetest.Response) []remotetest.Response {
			if when(r) {
				return []remotetest.Response{{ID: r.ID, Error: "not today"}}
			}
			return []remotetest.Response{honest}
		}
	}
	forge := func(change func(ev *nip.Event) nip.SecretKey) answers {
		return func(r remotetest.Request, honest remotetest.Response) []remotetest.Response {
			var ev nip.Event
			if r.Method != "sign_event" || !isArtifact(r) || json.Unmarshal([]byte(r.Params[0]), &ev) != nil {
				return []remotetest.Response{honest}
			}
			key := change(&ev)
			if err := key.Sign(&ev); err != nil {
				t.Error(err)
			}
			return []remotetest.Response{{ID: r.ID, Result: string(nip.EncodeEvent(&ev))}}
		}
	}
	for _, tt := range []struct {
		name, code, words string
		exit              int
		answer            answers
	}{
		{"refuses to encrypt", "signer_refused", "not today", exitFailed, refuse(func(r remotetest.Request) bool { return r.Method == "nip44_encrypt" })},
		{"refuses to sign", "signer_refused", "not today", exitFailed, refuse(func(r remotetest.Request) bool { return r.Method == "sign_event" && isArtifact(r) })},
		{"refuses the relay", "signer_refused", "not today", exitFailed, refuse(func(r remotetest.Request) bool { return r.Method == "sign_event" && !isArtifact(r) })},
		{"hangs", "signer_silent", "encrypt", exitUnreachable, func(r remotetest.Request, honest remotetest.Response) []remotetest.Response {
			if r.Method == "nip44_encrypt" {
				return nil
			}
			return []remotetest.Response{honest}
		}},
		{"signs with another key", "signer", "another key", exitFailed, forge(func(*nip.Event) nip.SecretKey { return signer.Key })},
		{"alters the event", "signer", "another event", exitFailed, forge(func(ev *nip.Event) nip.SecretKey { ev.CreatedAt++; return signer.User })},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var asked atomic.Bool
			signer.Set(func(r remotetest.Request, honest remotetest.Response) []remotetest.Response {
				if r.Method == "nip44_encrypt" {
					asked.Store(true)
				}
				return tt.answer(r, honest)
			})
			defer signer.Set(nil)
			for _, args := range [][]string{{"send", taskA, "words", "--based-on", "1"}, {"create", "--workspace", tourLabel, "--title", "t", "--prompt", "p"}} {
				// Only silence takes all of its time; a machine that did not come
				// to ask the signer within it gets more.
				limit := time.Minute
				if tt.exit == exitUnreachable {
					limit = 3 * time.Second
				}
				asked.Store(false)
				err := boss(ctx, s, "", nil, append(args, "--timeout", limit.String())...)
				for ; !asked.Load() && tt.exit == exitUnreachable && limit < time.Minute; limit *= 2 {
					err = boss(ctx, s, "", nil, append(args, "--timeout", (2*limit).String())...)
				}
				f, ok := err.(*cliFailure)
				if !ok || f.exit != tt.exit || f.code != tt.code || !strings.Contains(f.message, tt.words) || strings.Contains(f.message, "only once") {
					t.Errorf("%s: %v", args[0], err)
				}
			}
			var box struct{ Outbox []map[string]any }
			if err := boss(ctx, s, "", &box, "outbox"); err != nil || len(box.Outbox) != 0 {
				t.Errorf("outbox %v, %v", box, err)
			}
		})
	}
	if err := s.operator(ctx, &after, "status"); err != nil || after != before {
		t.Errorf("the host heard something: %+v, then %+v, %v", before, after, err)
	}
}

// weary is a signer that agrees until it is told not to.
type weary struct {
	nip.Keeper
	asked atomic.Int32
	no    atomic.Bool
}

func (w *weary) Encrypt(ctx context.Context, peer nip.PubKey, text string) (string, error) {
	w.asked.Add(1)
	if w.no.Load() {
		return "", &remote.RefusedError{Method: "nip44_encrypt", Words: "enough"}
	}
	return w.Keeper.Encrypt(ctx, peer, text)
}

// TestWaitEndsWithTheSigner: whoever waits for a task does not ask a signer again
// and again that has said no.
func TestWaitEndsWithTheSigner(t *testing.T) {
	t.Parallel()
	s := newStandIn(t)
	s.set(readable(nip.PhaseRunning))
	w := &weary{Keeper: nip.Keep(s.owner)}
	d, err := client.Init(filepath.Join(t.TempDir(), "boss"), client.Options{Log: zerolog.Nop(), Keeper: w, Loopback: true})
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	ctx, cancel := context.WithTimeout(t.Context(), relaytest.Patience)
	defer cancel()
	if err := d.Own(ctx, s.key.Public(), s.url); err != nil {
		t.Fatal(err)
	}
	// Nor does the wait outlive its time, although nothing is published to an owner.
	short, stop := context.WithTimeout(ctx, time.Second)
	defer stop()
	ended := make(chan error, 1)
	go func() {
		_, err := waitPhase(short, d, taskA, "beta", nip.PhaseCompleted, 20*time.Millisecond)
		ended <- err
	}()
	select {
	case err := <-ended:
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("the wait ended with %v", err)
		}
	case <-ctx.Done():
		t.Fatal("the wait goes on without its context")
	}
	w.no.Store(true)
	before := w.asked.Load()
	_, err = waitPhase(ctx, d, taskA, "demo", nip.PhaseCompleted, 20*time.Millisecond)
	var refused *remote.RefusedError
	if !errors.As(err, &refused) || ctx.Err() != nil || w.asked.Load() != before+1 {
		t.Errorf("%v, asked %d times more", err, w.asked.Load()-before)
	}
}

// isArtifact tells a request to the host from an authentication at a relay.
func isArtifact(r remotetest.Request) bool { return strings.Contains(r.Params[0], `"kind":3188`) }

// TestDeviceInitKeys: whose key a profile has, and that a secret is taken from
// no argument.
func TestDeviceInitKeys(t *testing.T) {
	t.Parallel()
	signer := remotetest.New(t)
	v := &verb{dir: filepath.Join(t.TempDir(), "profile")}
	for _, args := range [][]string{{"--bunker", signer.URL()}, {"--key", signer.User.Hex()}, {"--key", "-", "--bunker", "-"}, {"--bunker", "-"}} {
		if e := v.fails(t, exitUsage, "usage", append([]string{"init"}, args...)...); strings.Contains(e["message"].(string)+e["hint"].(string), "only") {
			t.Errorf("%v", e)
		}
	}
	v.stdin = signer.URL()
	signer.Secret = "another"
	if e := v.fails(t, exitFailed, "signer_refused", "init", "--bunker", "-", "--allow-loopback"); strings.Contains(e["message"].(string), "only") {
		t.Errorf("%v", e)
	}
	signer.Secret = "only once"
	asked := false
	signer.Set(func(r remotetest.Request, honest remotetest.Response) []remotetest.Response {
		if asked {
			return []remotetest.Response{honest}
		}
		asked = true
		return []remotetest.Response{{ID: r.ID, Result: "auth_url", Error: "https://signer.example.com/ok"}, honest}
	})
	if doc := v.ok(t, "init", "--bunker", "-", "--allow-loopback"); doc["device"] != string(signer.User.Public()) || doc["elsewhere"] != true {
		t.Errorf("document %v", doc)
	}
	if !strings.Contains(v.err.String(), "https://signer.example.com/ok") {
		t.Errorf("stderr %q", v.err.String())
	}
	// Again is the same profile, and it is paired with no host.
	if doc := v.ok(t, "init"); doc["device"] != string(signer.User.Public()) {
		t.Errorf("document %v", doc)
	}
	st, err := os.Stat(filepath.Join(v.dir, "bunker.json"))
	if err != nil || st.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", st, err)
	}
	v.fails(t, exitFailed, "owner", "pair", newStandIn(t).code(), "--allow-loopback")
	v.fails(t, exitFailed, "failed", "init", "--bunker", "-", "--allow-loopback")
	damaged := &verb{dir: filepath.Join(t.TempDir(), "damaged")}
	damaged.ok(t, "init")
	if err := os.Rename(filepath.Join(damaged.dir, "device.key"), filepath.Join(damaged.dir, "bunker.json")); err != nil {
		t.Fatal(err)
	}
	damaged.fails(t, exitCorrupt, "damaged", "workspaces")
}

// TestDeviceOwn: the owner with a copy of the key, and those who are not it.
func TestDeviceOwn(t *testing.T) {
	t.Parallel()
	s := newStandIn(t)
	s.set(func(r nip.Request) (nip.Outcome, *nip.Refusal) {
		if r.Grant != "" || r.Epoch != -1 {
			t.Errorf("an owner named a grant: %+v", r)
		}
		return nip.Workspaces{Workspaces: []nip.Label{"demo"}}, nil
	})
	file := filepath.Join(t.TempDir(), "owner.key")
	if err := os.WriteFile(file, []byte(s.owner.Hex()+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	v := &verb{dir: filepath.Join(t.TempDir(), "boss")}
	hostKey, url := string(s.key.Public()), string(s.url)
	v.fails(t, exitFailed, "no_key", "own", hostKey, "--relay", url)
	open := filepath.Join(filepath.Dir(file), "open.key")
	if err := os.WriteFile(open, []byte(s.owner.Hex()), 0o644); err != nil {
		t.Fatal(err)
	}
	v.fails(t, exitUsage, "usage", "init", "--key", open)
	if doc := v.ok(t, "init", "--key", file); doc["device"] != string(s.owner.Public()) || doc["elsewhere"] != false {
		t.Errorf("document %v", doc)
	}
	v.fails(t, exitUsage, "usage", "own", hostKey)
	v.fails(t, exitUsage, "usage", "own", hostKey[:8], "--relay", url)
	v.fails(t, exitUsage, "forbidden", "own", hostKey, "--relay", url)
	if code := v.run(t, "own", hostKey, "--relay", url, "--allow-loopback"); code != exitOK || !strings.Contains(v.out.String(), "owner of host "+hostKey) {
		t.Errorf("exit %d, %q, %q", code, v.out.String(), v.err.String())
	}
	v.ok(t, "workspaces")
	if code := v.run(t, "hosts"); code != exitOK || !strings.Contains(v.out.String(), hostKey+"  "+url+"  owner") {
		t.Errorf("exit %d, %q", code, v.out.String())
	}
	s.set(func(r nip.Request) (nip.Outcome, *nip.Refusal) {
		op, ok := r.Op.(nip.InviteCreate)
		if !ok || len(op.Rights) != 4 || op.GrantExpiresAt < time.Now().Unix()+29*86_400 {
			t.Errorf("asked for %+v", r.Op)
		}
		return nil, &nip.Refusal{Code: nip.Unavailable}
	})
	v.fails(t, exitFailed, "unavailable", "invite")
	s.set(func(r nip.Request) (nip.Outcome, *nip.Refusal) {
		if op, ok := r.Op.(nip.TaskCommand); ok {
			return nip.Dispatched{Operation: op.Kind(), Reference: string(op.Command.Task)}, nil
		}
		return readable(nip.PhaseRunning)(r)
	})
	// Nothing is published to an owner: the revision is that of the page.
	if doc := v.ok(t, "steer", taskA, "left", "--emulate"); doc["based_on"] != 4.0 {
		t.Errorf("document %v", doc)
	}
	if list, ok := v.ok(t, "commands")["commands"].([]any); !ok || len(list) != 1 || list[0].(map[string]any)["state"] != "received" {
		t.Errorf("commands %v", list)
	}
	list := v.ok(t, "commands")["commands"].([]any)
	position := 1
	a, err := nip.EncodeStates(nip.CommandStates{Host: s.key.Public(), IssuedAt: time.Now().Unix(), ExpiresAt: time.Now().Unix() + 604_800, Task: taskA, Revision: 4,
		Commands: []nip.CommandState{{Command: nip.CommandID(list[0].(map[string]any)["command"].(string)), State: "held", Position: &position}}})
	if err != nil {
		t.Fatal(err)
	}
	box, err := nip.DeriveMailbox(s.key, s.owner.Public(), nip.StreamCommands)
	if err != nil {
		t.Fatal(err)
	}
	s.publish(s.seal(s.owner.Public(), box, a))
	if list := v.ok(t, "commands")["commands"].([]any); len(list) != 1 || list[0].(map[string]any)["state"] != "held" {
		t.Errorf("published to the owner: %v", list)
	}
	if code := v.run(t, "watch"); code != exitFailed || !strings.Contains(v.err.String(), "publishes to its devices") {
		t.Errorf("exit %d, %q", code, v.err.String())
	}
	other := &verb{dir: filepath.Join(t.TempDir(), "other")}
	other.ok(t, "init")
	s.set(func(nip.Request) (nip.Outcome, *nip.Refusal) { return nil, &nip.Refusal{Code: nip.Forbidden} })
	if e := other.fails(t, exitFailed, "forbidden", "own", hostKey, "--relay", url, "--allow-loopback"); !strings.Contains(e["hint"].(string), "not the host's owner") {
		t.Errorf("%v", e)
	}
	other.fails(t, exitFailed, "not_paired", "workspaces")
}
