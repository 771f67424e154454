package host

import (
	"context"
	"encoding/json"
	"strings"
	"testing"

	"go.etcd.io/bbolt"

	"holdfast/nip"
)

// enrolled makes an enrollment request and returns what a person and an
// approver know of it.
func (r *rig) enrolled(rights nip.Rights) (enrollmentRecord, string) {
	r.t.Helper()
	rec, code, _, err := r.c.Enroll(context.Background(), rights, paperRelay)
	if err != nil {
		r.t.Fatal(err)
	}
	return rec, code
}

func (r *rig) editEnrollment(id nip.EnrollmentID, change func(rec *enrollmentRecord)) {
	r.t.Helper()
	r.update(func(tx *bbolt.Tx) error {
		var rec enrollmentRecord
		if _, err := getJSON(tx, bucketEnrollments, string(id), &rec); err != nil {
			return err
		}
		change(&rec)
		return putJSON(tx, bucketEnrollments, string(id), rec)
	})
}

// Every rule of approval and denial, in the order of the wire: a row that is
// wrong in two ways hears of the first.
func TestApproval(t *testing.T) {
	r := newRig(t)
	admin := r.pair(adminRights)
	plain := r.pair(nip.StandardRights())
	brief := r.pairFor(1, adminRights, newKey(t))
	now := r.clock.now()
	type change = func(op *nip.EnrollApprove)
	wrong := func(op *nip.EnrollApprove) { op.Code = "0000-0000" }
	for _, row := range []struct {
		name    string
		from    device
		setup   func(rec *enrollmentRecord)
		approve change
		code    nip.Code
		missing nip.Right
		deny    nip.Code // of enroll.deny in the same state
	}{
		{name: "without access_admin", from: plain, code: nip.MissingRight, missing: nip.AccessAdmin, deny: nip.MissingRight},
		{name: "unknown", from: admin, setup: func(rec *enrollmentRecord) { rec.Digest = nip.DigestOf([]byte("another")) }, approve: wrong, code: nip.Forbidden, deny: nip.Forbidden},
		{name: "another relay", from: admin, setup: func(rec *enrollmentRecord) { rec.Relay = "wss://other.example.com/" }, code: nip.Forbidden, deny: nip.Forbidden},
		{name: "closed", from: admin, setup: func(rec *enrollmentRecord) { rec.Tries, rec.Denied, rec.ExpiresAt = 5, true, now }, code: nip.RateLimited, deny: nip.RateLimited},
		{name: "denied", from: admin, setup: func(rec *enrollmentRecord) { rec.Denied, rec.ExpiresAt = true, now }, code: nip.Denied},
		{name: "expired", from: admin, setup: func(rec *enrollmentRecord) { rec.ExpiresAt = now }, approve: wrong, code: nip.Expired, deny: nip.Expired},
		{name: "wrong code", from: admin, approve: func(op *nip.EnrollApprove) { wrong(op); op.Device = r.c.Self() }, code: nip.WrongCode},
		{name: "no code at all", from: admin, approve: func(op *nip.EnrollApprove) { op.Code = "what?" }, code: nip.WrongCode},
		{name: "the host as the device", from: admin, approve: func(op *nip.EnrollApprove) { op.Device, op.Rights = r.c.Self(), nip.PairingRights() }, code: nip.Forbidden},
		{name: "the owner as the device", from: admin, approve: func(op *nip.EnrollApprove) { op.Device = r.c.Owner() }, code: nip.Forbidden},
		{name: "a right that the approver lacks", from: admin, approve: func(op *nip.EnrollApprove) { op.Rights = nip.Rights{nip.Observe, nip.Review} }, code: nip.MissingRight, missing: nip.Review},
		{name: "a right outside the request", from: r.owner, approve: func(op *nip.EnrollApprove) { op.Rights = nip.Rights{nip.Observe, nip.AccessRead} }, code: nip.Forbidden},
		{name: "expiry in the past", from: r.owner, approve: func(op *nip.EnrollApprove) { op.GrantExpiresAt = now }, code: nip.Forbidden},
		{name: "expiry over 30 days", from: r.owner, approve: func(op *nip.EnrollApprove) { op.GrantExpiresAt = now + 30*day + 1 }, code: nip.Forbidden},
		{name: "expiry beyond the approver's", from: brief, approve: func(op *nip.EnrollApprove) { op.GrantExpiresAt = brief.grant.ExpiresAt + 1 }, code: nip.Forbidden},
		{name: "by a device", from: admin},
		{name: "by the owner, typed in its way", from: r.owner, approve: func(op *nip.EnrollApprove) { op.Code = strings.ToLower(strings.ReplaceAll(op.Code, "-", " ")) }},
	} {
		t.Run(row.name, func(t *testing.T) {
			r.t = t
			op := nip.EnrollApprove{Device: newKey(t).Public(), Rights: nip.Rights{nip.Observe, nip.Operate}, GrantExpiresAt: now + day}
			rec, code := r.enrolled(nip.StandardRights())
			op.Enrollment, op.RequestDigest, op.Code = rec.ID, rec.Digest, code
			if row.setup != nil {
				r.editEnrollment(rec.ID, row.setup)
			}
			if row.approve != nil {
				row.approve(&op)
			}
			before := r.rows(bucketGrants)
			p := r.ask(row.from, op)
			r.wantCode(p, row.code)
			if row.code == "" {
				out := p.Outcome.(nip.Granted)
				if out.Authorization.PubKey != string(r.c.Self()) || r.rows(bucketGrants) != before+1 {
					t.Fatal("not one new grant of this host")
				}
				r.wantCode(r.ask(row.from, nip.EnrollDeny{Enrollment: rec.ID, RequestDigest: rec.Digest}), nip.Conflict)
				return
			}
			if p.Refusal.Missing != row.missing || r.rows(bucketGrants) != before {
				t.Fatalf("missing %q", p.Refusal.Missing)
			}
			for range 2 { // a denial may be said again
				r.wantCode(r.ask(row.from, nip.EnrollDeny{Enrollment: rec.ID, RequestDigest: rec.Digest}), row.deny)
			}
		})
		r.t = t
		r.update(func(tx *bbolt.Tx) error { // 32 are kept at most
			if tx.Bucket(bucketEnrollments) == nil {
				return nil
			}
			return tx.DeleteBucket(bucketEnrollments)
		})
	}
}

// The same device gets the same grant, another one nothing, also after a restart.
func TestApprovalRepeats(t *testing.T) {
	r := newRig(t)
	r.update(func(tx *bbolt.Tx) error { // a home made before there were enrollments
		if tx.Bucket(bucketEnrollments) != nil {
			t.Error("the bucket is there before its first row")
		}
		return nil
	})
	rec, code := r.enrolled(nip.StandardRights())
	d := device{key: newKey(t)}
	op := nip.EnrollApprove{
		Enrollment: rec.ID, RequestDigest: rec.Digest, Code: code, Device: d.pub(), Rights: nip.StandardRights(), GrantExpiresAt: r.clock.now() + day,
	}
	d.grant = r.granted(d, r.ask(r.owner, op))
	if d.grant.Origin != (nip.Origin{Kind: "approval", ID: string(rec.ID), Issuer: r.c.Owner()}) || d.grant.ExpiresAt != op.GrantExpiresAt {
		t.Fatalf("%+v", d.grant)
	}
	r.wantCode(r.ask(d, nip.WorkspaceList{}), "")
	r.restart()
	r.clock.add(rec.ExpiresAt - r.clock.now()) // an answer may come late
	op.Code = "0000-0000"
	if again := r.granted(d, r.ask(r.owner, op)); again.ID != d.grant.ID {
		t.Fatal("another grant")
	}
	other := op
	other.Device = newKey(t).Public()
	r.wantCode(r.ask(r.owner, other), nip.Conflict)
	if _, err := r.c.Revoke(t.Context(), d.pub(), false); err != nil {
		t.Fatal(err)
	}
	r.wantCode(r.ask(r.owner, op), nip.Revoked)
	r.update(func(tx *bbolt.Tx) error { return tx.Bucket(bucketGrants).Delete([]byte(d.grant.ID)) })
	r.wantCode(r.ask(r.owner, op), nip.Expired)
	r.clock.add(afterExpirySeconds)
	r.update(func(tx *bbolt.Tx) error { return pruneEnrollments(tx, r.clock.now()) })
	r.wantCode(r.ask(r.owner, op), nip.Forbidden)
}

// Five wrong codes close a request for good; an exact retry counts once.
func TestWrongCodes(t *testing.T) {
	r := newRig(t)
	rec, code := r.enrolled(nip.StandardRights())
	op := nip.EnrollApprove{
		Enrollment: rec.ID, RequestDigest: rec.Digest, Code: "0000-0000", Device: newKey(t).Public(),
		Rights: nip.StandardRights(), GrantExpiresAt: r.clock.now() + day,
	}
	first := r.sealed(r.owner, r.req(r.owner, op))
	r.wantCode(r.one(r.owner, first), nip.WrongCode)
	r.clock.add(6)
	r.wantCode(r.one(r.owner, first), nip.WrongCode)
	for range maxEnrollmentTries - 1 {
		r.restart()
		r.wantCode(r.ask(r.owner, op), nip.WrongCode)
	}
	op.Code = code
	r.wantCode(r.ask(r.owner, op), nip.RateLimited)
	r.wantCode(r.ask(r.owner, nip.EnrollDeny{Enrollment: rec.ID, RequestDigest: rec.Digest}), nip.RateLimited)
}

// A grant that an approval names is not evicted while the request is kept.
func TestApprovedGrantStays(t *testing.T) {
	r := newRig(t)
	rec, code := r.enrolled(nip.StandardRights())
	d := device{key: newKey(t)}
	op := nip.EnrollApprove{
		Enrollment: rec.ID, RequestDigest: rec.Digest, Code: code, Device: d.pub(), Rights: nip.StandardRights(), GrantExpiresAt: r.clock.now() + day,
	}
	d.grant = r.granted(d, r.ask(r.owner, op))
	r.editGrant(d, func(rec *grantRecord) { rec.RevokedAt = 1 }) // dead longest of all
	r.fillGrants(1000)
	r.pair(nip.StandardRights())
	r.wantCode(r.ask(r.owner, op), nip.Revoked)
}

// The copies: the owner's first, then those who can approve on this relay, the
// same body to each, 16 in all, and the code in none.
func TestEnrollmentCopies(t *testing.T) {
	r := newRig(t)
	admin, plain, elsewhere := r.pair(adminRights), r.pair(nip.StandardRights()), r.pair(adminRights)
	r.editGrant(elsewhere, func(rec *grantRecord) { rec.Grant.Relay = "wss://other.example.com/" })
	rec, code := r.enrolled(nip.StandardRights())
	to := map[nip.PubKey]bool{}
	for _, d := range []device{r.owner, admin, plain, elsewhere} {
		var row outboxRow
		found := false
		r.update(func(tx *bbolt.Tx) (err error) {
			found, err = getJSON(tx, bucketOutbox, string(d.pub())+"/enrollment/"+string(rec.ID), &row)
			return err
		})
		if !found {
			continue
		}
		to[d.pub()] = true
		v, err := nip.VerifyEvent(row.Event)
		if err != nil {
			t.Fatal(err)
		}
		o, err := nip.Open(v, d.key)
		if err != nil {
			t.Fatal(err)
		}
		e, err := nip.ParseEnrollment(o.Inline, nip.Profile{})
		if err != nil {
			t.Fatal(err)
		}
		if o.Digest != rec.Digest || string(o.Mailbox) != string(rec.ID) || e.Owner != r.c.Owner() || row.Until != rec.ExpiresAt {
			t.Fatalf("%+v", e)
		}
		if strings.Contains(string(o.Inline), code) {
			t.Fatal("the code travels")
		}
	}
	if len(to) != 2 || !to[r.owner.pub()] || !to[admin.pub()] {
		t.Fatalf("sealed to %v", to)
	}
	if strings.Contains(r.dump(), code) || strings.Contains(r.dump(), strings.ReplaceAll(code, "-", "")) {
		t.Fatal("host.db holds the code")
	}
	for range 20 {
		r.clock.add(10)
		r.pair(adminRights)
	}
	if _, _, copies, err := r.c.Enroll(t.Context(), nip.StandardRights(), paperRelay); err != nil || copies != maxEnrollCopies {
		t.Fatal(copies, err)
	}
	for r.rows(bucketEnrollments) < maxEnrollments {
		r.enrolled(nip.StandardRights())
	}
	if _, _, _, err := r.c.Enroll(t.Context(), nip.StandardRights(), paperRelay); err == nil {
		t.Fatal("a 33rd request")
	}
	for _, bad := range []struct {
		rights nip.Rights
		relay  nip.RelayURL
	}{{nil, paperRelay}, {nip.Rights{nip.Operate, nip.Observe}, paperRelay}, {nip.StandardRights(), "http://x/"}} {
		if _, _, _, err := r.c.Enroll(t.Context(), bad.rights, bad.relay); ErrorCode(err) != "usage" {
			t.Fatal(err)
		}
	}
}

// The operator's verb streams the whole story.
func TestEnrollVerb(t *testing.T) {
	for _, row := range []struct {
		name string
		act  func(r *rig, e Enrolling)
		want []string
	}{
		{"approved after a wrong code", func(r *rig, e Enrolling) {
			op := nip.EnrollApprove{Enrollment: e.Enrollment, RequestDigest: e.Digest, Code: "0000-0000", Device: newKey(r.t).Public(),
				Rights: nip.Rights{nip.Observe}, GrantExpiresAt: r.clock.now() + day}
			r.wantCode(r.ask(r.owner, op), nip.WrongCode)
			op.Code = e.Code
			r.wantCode(r.ask(r.owner, op), "")
		}, []string{"open", "wrong_code", "approved"}},
		{"denied", func(r *rig, e Enrolling) {
			r.wantCode(r.ask(r.owner, nip.EnrollDeny{Enrollment: e.Enrollment, RequestDigest: e.Digest}), "")
		}, []string{"open", "denied"}},
		{"expired", func(r *rig, e Enrolling) { r.clock.add(enrollmentSeconds) }, []string{"open", "expired"}},
	} {
		t.Run(row.name, func(t *testing.T) {
			r := newRig(t)
			var states []string
			err := r.c.Operate(t.Context(), "enroll", json.RawMessage(`{"rights":["observe"]}`), func(v any) error {
				e := v.(Enrolling)
				states = append(states, e.State)
				if e.State == "open" {
					if e.Copies != 1 || e.Code == "" || e.Relay != paperRelay {
						t.Errorf("%+v", e)
					}
					row.act(r, e)
				}
				return nil
			})
			if err != nil {
				t.Fatal(err)
			}
			if got, want := strings.Join(states, " "), strings.Join(row.want, " "); got != want {
				t.Fatalf("%s, want %s", got, want)
			}
		})
	}
	r := newRig(t)
	r.c.serving = nil
	if err := r.c.Operate(t.Context(), "enroll", json.RawMessage(`{"rights":["observe"]}`), func(any) error { return nil }); err == nil {
		t.Fatal("asked by nobody")
	}
}
