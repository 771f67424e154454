package main

import (
	"encoding/json"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"holdfast/nip"
)

func TestDeviceInvite(t *testing.T) {
	t.Parallel()
	v, s, _ := atHost(t)
	s.set(func(nip.Request) (nip.Outcome, *nip.Refusal) {
		now := time.Now().Unix()
		inv := nip.Invitation{Host: s.key.Public(), ID: nip.InvitationID(testID(t)), Capability: testID(t),
			IssuedAt: now, ExpiresAt: now + 300, Relay: s.url}
		code, err := nip.EncodeInvitation(inv, nip.Profile{Loopback: true})
		if err != nil {
			t.Error(err)
		}
		return nip.Invited{Invitation: inv.ID, Code: code, ExpiresAt: inv.ExpiresAt}, nil
	})
	doc := v.ok(t, "invite")
	if !strings.HasPrefix(doc["code"].(string), "coder-host:") {
		t.Errorf("document %v", doc)
	}
	op := s.operations()[0].(nip.InviteCreate)
	if len(op.Rights) != 4 || op.GrantExpiresAt != s.grant.ExpiresAt {
		t.Errorf("asked for %+v; the device's own grant ends at %d", op, s.grant.ExpiresAt)
	}
	if code := v.run(t, "invite", "--rights", "observe,access_admin", "--days", "2"); code != exitOK || !strings.Contains(v.out.String(), "coder-host:") {
		t.Errorf("exit %d, %q", code, v.out.String())
	}
	op = s.operations()[1].(nip.InviteCreate)
	if len(op.Rights) != 2 || op.Rights[1] != nip.AccessAdmin || op.GrantExpiresAt < time.Now().Unix()+86_400 {
		t.Errorf("asked for %+v", op)
	}
	v.fails(t, exitUsage, "usage", "invite", "--days", "31")
	v.fails(t, exitUsage, "usage", "invite", "--rights", "operate,observe")
	s.set(func(nip.Request) (nip.Outcome, *nip.Refusal) {
		return nil, &nip.Refusal{Code: nip.MissingRight, Missing: nip.AccessAdmin}
	})
	v.fails(t, exitFailed, "missing_right", "invite")
}

// An administrator takes a code back; what is no ID never reaches the host, and a
// refusal is a failure that names its code.
func TestDeviceCancelInvite(t *testing.T) {
	t.Parallel()
	v, s, _ := atHost(t)
	id := testID(t)
	s.set(func(r nip.Request) (nip.Outcome, *nip.Refusal) {
		if op, ok := r.Op.(nip.InviteCancel); !ok || string(op.Invitation) != id {
			return nil, &nip.Refusal{Code: nip.Forbidden}
		}
		return nip.CancelledInvitation{Invitation: nip.InvitationID(id)}, nil
	})
	if doc := v.ok(t, "cancel-invite", id); doc["cancelled"] != id {
		t.Errorf("document %v", doc)
	}
	if code := v.run(t, "cancel-invite", id); code != exitOK || !strings.Contains(v.out.String(), "cancelled "+id) {
		t.Errorf("exit %d, %q", code, v.out.String())
	}
	v.fails(t, exitFailed, "forbidden", "cancel-invite", testID(t))
	asked := len(s.operations())
	v.fails(t, exitUsage, "usage", "cancel-invite", "abc")
	v.fails(t, exitUsage, "usage", "cancel-invite")
	if got := len(s.operations()); got != asked {
		t.Errorf("the host was asked %d times for what is no ID", got-asked)
	}
}

// The administrator reads the host's request, approves or denies exactly it,
// and the admitted device takes the grant that was passed on.
func TestDeviceEnrollment(t *testing.T) {
	t.Parallel()
	v, s, self := atHost(t)
	if list := v.ok(t, "enrollments")["enrollments"].([]any); len(list) != 0 {
		t.Errorf("before: %v", list)
	}
	now := time.Now().Unix()
	e := nip.Enrollment{ID: nip.EnrollmentID(testID(t)), Host: s.key.Public(), Owner: s.owner.Public(), Relay: s.url,
		Rights: nip.Rights{nip.Observe, nip.Operate}, IssuedAt: now, ExpiresAt: now + 300}
	a, err := nip.EncodeEnrollment(e)
	if err != nil {
		t.Fatal(err)
	}
	s.publish(s.seal(self, nip.Mailbox(e.ID), a))
	other := &verb{dir: filepath.Join(t.TempDir(), "other")}
	device := other.ok(t, "init")["device"].(string)
	s.set(func(r nip.Request) (nip.Outcome, *nip.Refusal) {
		switch op := r.Op.(type) {
		case nip.EnrollDeny:
			return nip.DeniedEnrollment{}, nil
		case nip.EnrollApprove:
			if op.Code != "7K3MQ9TX" {
				return nil, &nip.Refusal{Code: nip.WrongCode}
			}
			g := nip.Grant{ID: nip.GrantID(testID(t)), Origin: nip.Origin{Kind: "approval", ID: string(op.Enrollment), Issuer: self},
				Host: s.key.Public(), Owner: s.owner.Public(), Device: op.Device, Relay: s.url,
				IssuedAt: now, ExpiresAt: op.GrantExpiresAt, Rights: op.Rights}
			a, err := nip.EncodeGrant(g)
			if err != nil {
				t.Error(err)
				return nil, nil
			}
			return nip.Granted{Authorization: s.seal(op.Device, nip.Mailbox(g.ID), a)}, nil
		}
		return nip.Workspaces{}, nil
	})
	list := v.ok(t, "enrollments")["enrollments"].([]any)
	if len(list) != 1 || list[0].(map[string]any)["enrollment"] != string(e.ID) {
		t.Fatalf("enrollments %v", list)
	}
	short := string(e.ID)[:12]
	v.fails(t, exitUsage, "usage", "approve", short, "--code", "7K3M-Q9TX")
	v.fails(t, exitUsage, "wrong_code", "approve", short, "--code", "7K3M", "--device", device)
	v.fails(t, exitFailed, "absent", "approve", "ffff", "--code", "7K3M-Q9TX", "--device", device)
	v.fails(t, exitFailed, "wrong_code", "approve", short, "--code", "7K3M-Q9TY", "--device", device)
	doc := v.ok(t, "approve", short, "--code", "7k3m q9tx", "--device", device)
	ops := s.operations()
	if op := ops[len(ops)-1].(nip.EnrollApprove); op.RequestDigest != nip.DigestOf(a.Inline) || string(op.Device) != device || len(op.Rights) != 2 {
		t.Errorf("approved %+v", op)
	}
	grant, err := json.Marshal(doc["authorization"])
	if err != nil {
		t.Fatal(err)
	}
	other.fails(t, exitFailed, "failed", "accept", device, string(grant), "--allow-loopback")
	other.fails(t, exitUsage, "forbidden", "accept", string(e.Host), string(grant))
	other.stdin = string(grant)
	if g := other.ok(t, "accept", string(e.Host), "-", "--allow-loopback")["grant"].(map[string]any); g["device"] != device {
		t.Errorf("accepted %v", g)
	}
	other.ok(t, "workspaces")
	if doc := v.ok(t, "deny", short); doc["outcome"].(map[string]any)["kind"] != "denied" {
		t.Errorf("document %v", doc)
	}
}
