package host

import (
	"context"
	"crypto/subtle"
	"errors"

	"go.etcd.io/bbolt"

	"holdfast/nip"
)

const (
	enrollmentSeconds  = 300
	maxEnrollCopies    = 16
	maxEnrollmentTries = 5
)

// enrollmentRecord is one request of this host to be given a device (NIP-HOST,
// enrollment): what was sealed to its administrators, by its digest, and what
// became of it. Of the code only a digest is kept.
type enrollmentRecord struct {
	ID         nip.EnrollmentID `json:"id"`
	Digest     nip.Digest       `json:"digest"` // of the request's canonical body
	CodeDigest nip.Digest       `json:"code_digest"`
	Relay      nip.RelayURL     `json:"relay"`
	Rights     nip.Rights       `json:"rights"` // the most that may be granted
	IssuedAt   int64            `json:"issued_at"`
	ExpiresAt  int64            `json:"expires_at"`
	Tries      int              `json:"tries,omitempty"` // wrong codes
	Denied     bool             `json:"denied,omitempty"`
	Device     nip.PubKey       `json:"device,omitempty"` // with Grant, once approved
	Grant      nip.GrantID      `json:"grant,omitempty"`
}

// enrollment finds the request that an operation names, "" where everything that
// comes before its state holds.
func (h *Host) enrollment(tx *bbolt.Tx, k *call, id nip.EnrollmentID, digest nip.Digest) (enrollmentRecord, nip.Code, error) {
	var rec enrollmentRecord
	found, err := getJSON(tx, bucketEnrollments, string(id), &rec)
	switch {
	case err != nil:
		return rec, "", err
	case !found, rec.Relay != k.req.Relay, rec.Digest != digest:
		return rec, nip.Forbidden, nil
	case rec.Tries >= maxEnrollmentTries:
		return rec, nip.RateLimited, nil
	}
	return rec, "", nil
}

// approve is enroll.approve: an administrator admits a device and proves, by the
// code that this host shows, that a person stands before it. The grant, the
// record's bond to the device and the retained reply are one commit; so is a
// wrong code with its count, so that no retry of the same request counts twice.
func (h *Host) approve(ctx context.Context, k *call, op nip.EnrollApprove) error {
	issued := false
	what := "approve enrollment " + string(op.Enrollment) + " for " + string(op.Device) + ": " + rightsNote(op.Rights)
	err := h.answerRetained(ctx, k, nip.Reply{}, func(tx *bbolt.Tx, now int64) (nip.Reply, error) {
		issued = false
		rec, code, err := h.enrollment(tx, k, op.Enrollment, op.RequestDigest)
		if err != nil {
			return nip.Reply{}, err
		}
		refusal := func(code nip.Code) *nip.Refusal { return &nip.Refusal{Code: code} }
		var grant grantRecord
		var no *nip.Refusal
		switch {
		case code != "":
			no = refusal(code)
		case rec.Denied:
			no = refusal(nip.Denied)
		case rec.Grant != "":
			grant, code, err = h.approved(tx, &rec, op.Device, now)
			if code != "" {
				no = refusal(code)
			}
		case now >= rec.ExpiresAt:
			no = refusal(nip.Expired)
		case !codeMatches(rec, op.Code):
			rec.Tries++
			no, err = refusal(nip.WrongCode), putJSON(tx, bucketEnrollments, string(rec.ID), rec)
		default:
			if no = h.approvalRefusal(k, &rec, op, now); no != nil {
				break
			}
			grant, code, err = h.replaceGrant(tx, nip.Grant{
				Origin: nip.Origin{Kind: "approval", ID: string(rec.ID), Issuer: k.who.sender.Device},
				Device: op.Device, Relay: rec.Relay, ExpiresAt: op.GrantExpiresAt, Rights: op.Rights,
			}, now)
			if code != "" {
				no = refusal(code)
			}
			if err == nil && no == nil {
				issued = true
				rec.Device, rec.Grant = op.Device, grant.Grant.ID
				err = putJSON(tx, bucketEnrollments, string(rec.ID), rec)
			}
		}
		if err != nil {
			return nip.Reply{}, err
		}
		if no != nil {
			return h.refuseAccess(tx, k, what, no, now)
		}
		if err := h.note(tx, k, "", what, nil, 0, now); err != nil {
			return nip.Reply{}, err
		}
		return nip.Reply{Outcome: nip.Granted{Authorization: grant.Envelope}}, nil
	})
	if err != nil || !issued {
		return err
	}
	h.log.Info().Str("device", string(op.Device)).Msg("device paired by approval")
	h.accessChanged()
	h.emit(Event{Event: "paired", Device: op.Device})
	h.publisher.welcome(op.Device)
	// What the device had sent under an earlier grant has lost its standing.
	return h.evaluateAll(ctx)
}

// approved is the grant of a request that was approved before: the same device
// gets the same one, as long as it stands.
func (c *Core) approved(tx *bbolt.Tx, rec *enrollmentRecord, device nip.PubKey, now int64) (grantRecord, nip.Code, error) {
	var g grantRecord
	if rec.Device != device {
		return g, nip.Conflict, nil
	}
	found, err := getJSON(tx, bucketGrants, string(rec.Grant), &g)
	switch {
	case err != nil:
		return g, "", err
	case found && (g.RevokedAt != 0 || g.Grant.Epoch != epochOf(tx, device)):
		return g, nip.Revoked, nil
	case !found || now >= g.Grant.ExpiresAt: // the book forgets only what has run out
		return g, nip.Expired, nil
	}
	return g, "", nil
}

// approvalRefusal says why a request with the right code is not granted so.
func (h *Host) approvalRefusal(k *call, rec *enrollmentRecord, op nip.EnrollApprove, now int64) *nip.Refusal {
	if op.Device == h.self || op.Device == h.owner {
		return &nip.Refusal{Code: nip.Forbidden}
	}
	for _, r := range op.Rights {
		if !k.who.rights.Has(r) {
			return &nip.Refusal{Code: nip.MissingRight, Missing: r}
		}
	}
	late := op.GrantExpiresAt > now+maxGrantSeconds || k.who.expiry != 0 && op.GrantExpiresAt > k.who.expiry
	if !op.Rights.Within(rec.Rights) || op.GrantExpiresAt <= now || late {
		return &nip.Refusal{Code: nip.Forbidden}
	}
	return nil
}

// codeMatches compares digests in constant time. What is no code at all is a
// wrong code.
func codeMatches(rec enrollmentRecord, typed string) bool {
	d, err := nip.EnrollmentCodeDigest(rec.ID, typed)
	return err == nil && subtle.ConstantTimeCompare([]byte(d), []byte(rec.CodeDigest)) == 1
}

// deny is enroll.deny. A repeat is fine; what was approved is revoked, not denied.
func (h *Host) deny(ctx context.Context, k *call, op nip.EnrollDeny) error {
	what := "deny enrollment " + string(op.Enrollment)
	return h.answerRetained(ctx, k, nip.Reply{}, func(tx *bbolt.Tx, now int64) (nip.Reply, error) {
		rec, code, err := h.enrollment(tx, k, op.Enrollment, op.RequestDigest)
		switch {
		case err != nil:
			return nip.Reply{}, err
		case code != "" || rec.Denied:
		case rec.Grant != "":
			code = nip.Conflict
		case now >= rec.ExpiresAt:
			code = nip.Expired
		}
		if code != "" {
			return h.refuseAccess(tx, k, what, &nip.Refusal{Code: code}, now)
		}
		rec.Denied = true
		if err := putJSON(tx, bucketEnrollments, string(rec.ID), rec); err != nil {
			return nip.Reply{}, err
		}
		if err := h.note(tx, k, "", what, nil, 0, now); err != nil {
			return nip.Reply{}, err
		}
		return nip.Reply{Outcome: nip.DeniedEnrollment{}}, nil
	})
}

// pruneEnrollments drops requests a minute after their time, whatever became of
// them.
func pruneEnrollments(tx *bbolt.Tx, now int64) error {
	var gone []string
	err := eachJSON(tx, bucketEnrollments, func(key string, rec enrollmentRecord) error {
		if now >= rec.ExpiresAt+afterExpirySeconds {
			gone = append(gone, key)
		}
		return nil
	})
	for _, key := range gone {
		if err == nil {
			err = tx.Bucket(bucketEnrollments).Delete([]byte(key))
		}
	}
	return err
}

var errEnrollmentsFull = errors.New("32 enrollment requests are open; wait five minutes for the first to run out")
