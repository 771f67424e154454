package host

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"go.etcd.io/bbolt"

	"holdfast/commands"
	"holdfast/nip"
)

// EnrollArgs of "enroll".
type EnrollArgs struct {
	Rights nip.Rights   `json:"rights"`
	Relay  nip.RelayURL `json:"relay"` // "" is the primary relay of the serving host
}

// Enrolling is one line of "enroll": first "open" with the code, which is for
// the eyes of the person at the machine only, then "wrong_code" as often as that
// happens, and last how the request ended.
type Enrolling struct {
	State      string           `json:"state"` // open, wrong_code; approved, denied, closed, expired
	Enrollment nip.EnrollmentID `json:"enrollment"`
	Digest     nip.Digest       `json:"digest"`
	Code       string           `json:"code,omitempty"`   // with open
	Copies     int              `json:"copies,omitempty"` // with open: to whom the request was sealed
	Relay      nip.RelayURL     `json:"relay"`
	ExpiresAt  int64            `json:"expires_at"`
	Tries      int              `json:"tries"`
	Device     nip.PubKey       `json:"device,omitempty"` // with approved
	Grant      nip.GrantID      `json:"grant,omitempty"`  // with approved
}

// verbEnroll asks the owner and the administrators for a device, and streams
// what becomes of it. A caller that hangs up leaves the request open for what is
// left of its five minutes.
func verbEnroll(ctx context.Context, c *Core, raw json.RawMessage, emit func(any) error) error {
	var a EnrollArgs
	if err := arguments(raw, &a); err != nil {
		return err
	}
	if c.serving == nil {
		return errors.New("no host serves this home, so nobody could be asked; start holdfast up or holdfast serve first")
	}
	if a.Relay == "" {
		relay, err := c.primaryRelay()
		if err != nil {
			return err
		}
		a.Relay = relay
	}
	rec, code, copies, err := c.Enroll(ctx, a.Rights, a.Relay)
	if err != nil {
		return err
	}
	first := rec.line("open")
	first.Code, first.Copies = code, copies
	if err := emit(first); err != nil {
		return err
	}
	return c.followEnrollment(ctx, rec, emit)
}

func (r enrollmentRecord) line(state string) Enrolling {
	return Enrolling{
		State: state, Enrollment: r.ID, Digest: r.Digest, Relay: r.Relay,
		ExpiresAt: r.ExpiresAt, Tries: r.Tries, Device: r.Device, Grant: r.Grant,
	}
}

const enrollmentLook = 200 * time.Millisecond

func (c *Core) followEnrollment(ctx context.Context, rec enrollmentRecord, emit func(any) error) error {
	tick := time.NewTicker(enrollmentLook)
	defer tick.Stop()
	tries := 0
	for {
		found := false
		if err := c.db.View(func(tx *bbolt.Tx) (err error) {
			found, err = getJSON(tx, bucketEnrollments, string(rec.ID), &rec)
			return err
		}); err != nil {
			return err
		}
		if rec.Tries > tries {
			tries = rec.Tries
			if err := emit(rec.line("wrong_code")); err != nil {
				return err
			}
		}
		switch {
		case rec.Grant != "":
			return emit(rec.line("approved"))
		case rec.Denied:
			return emit(rec.line("denied"))
		case rec.Tries >= maxEnrollmentTries:
			return emit(rec.line("closed"))
		case !found || c.now() >= rec.ExpiresAt:
			return emit(rec.line("expired"))
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

// Enroll makes an enrollment request for at most these rights and puts a sealed
// copy into the outbox for the owner and for each administrator on that relay,
// 16 in all. It returns the short code, which stands nowhere else. The record
// and the copies are one commit.
func (c *Core) Enroll(ctx context.Context, rights nip.Rights, relay nip.RelayURL) (rec enrollmentRecord, code string, copies int, err error) {
	id, err := nip.NewID(rand.Reader)
	if err != nil {
		return rec, "", 0, err
	}
	if code, err = nip.NewEnrollmentCode(rand.Reader); err != nil {
		return rec, "", 0, err
	}
	now := c.now()
	a, err := nip.EncodeEnrollment(nip.Enrollment{
		ID: nip.EnrollmentID(id), Host: c.self, Owner: c.owner, Relay: relay, Rights: rights,
		IssuedAt: now, ExpiresAt: now + enrollmentSeconds,
	})
	if err != nil {
		return rec, "", 0, fmt.Errorf("%w: %s", ErrUsage, err)
	}
	rec = enrollmentRecord{
		ID: nip.EnrollmentID(id), Digest: nip.DigestOf(a.Inline), Relay: relay, Rights: rights,
		IssuedAt: now, ExpiresAt: now + enrollmentSeconds,
	}
	if rec.CodeDigest, err = nip.EnrollmentCodeDigest(rec.ID, code); err != nil {
		return rec, "", 0, err
	}
	to, err := c.administrators(relay, now)
	if err != nil {
		return rec, "", 0, err
	}
	var rows []outboxRow
	for _, key := range to {
		ev, err := nip.Seal(c.key, key, nip.Mailbox(id), a, nil)
		if err != nil {
			return rec, "", 0, fmt.Errorf("seal enrollment request: %w", err)
		}
		rows = append(rows, outboxRow{Device: key, Stream: "enrollment", Subject: id, Relay: relay, Until: rec.ExpiresAt, Event: ev})
	}
	err = c.db.Update(ctx, func(tx *bbolt.Tx) error {
		if err := pruneEnrollments(tx, now); err != nil {
			return err
		}
		if holds(tx, bucketEnrollments, maxEnrollments) {
			return errEnrollmentsFull
		}
		for _, r := range rows {
			if err := putOutbox(tx, r); err != nil {
				return err
			}
		}
		key := commands.Key{Principal: c.self, Kind: "enroll.request", ID: id}
		if err := c.journal.Note(tx, key, c.localSender(), "", "enrollment request by the person at the machine: "+rightsNote(rights), commands.OutcomeApplied, "", 0, now); err != nil {
			return err
		}
		return putJSON(tx, bucketEnrollments, id, rec)
	})
	if h := c.serving; h != nil && err == nil {
		h.outbox.wake()
	}
	return rec, code, len(rows), err
}

// administrators lists who can approve on the relay: the owner, then the
// devices with access_admin whose grant names it, at most 16 in all.
func (c *Core) administrators(relay nip.RelayURL, now int64) ([]nip.PubKey, error) {
	to := []nip.PubKey{c.owner}
	err := c.db.View(func(tx *bbolt.Tx) error {
		recs, err := c.activeGrants(tx, now)
		for _, r := range recs {
			if len(to) < maxEnrollCopies && r.Grant.Relay == relay && r.Grant.Rights.Has(nip.AccessAdmin) {
				to = append(to, r.Grant.Device)
			}
		}
		return err
	})
	return to, err
}
