package host

import (
	"encoding/binary"
	"encoding/json"
	"fmt"

	"go.etcd.io/bbolt"

	"holdfast/commands"
	"holdfast/nip"
)

// The buckets of host.db that this package owns; the journal has its own.
var (
	bucketMeta        = []byte("meta")        // host, owner, generation, relay
	bucketGrants      = []byte("grants")      // grant ID -> grantRecord
	bucketInvitations = []byte("invitations") // invitation ID -> invitationRecord
	bucketEpochs      = []byte("epochs")      // device -> 8-byte big-endian epoch
	bucketReplies     = []byte("replies")     // request ID -> retainedReply
	bucketAdmitted    = []byte("admitted")    // request ID -> admittedEffect, until its outcome is recorded
	bucketTurns       = []byte("turns")       // task, turn start -> turnOrigin
	bucketSeen        = []byte("last_seen")   // device -> 8-byte big-endian Unix seconds
	bucketOutbox      = []byte("outbox")      // device, stream, subject -> outboxRow
	bucketPublished   = []byte("published")   // device, task -> publishedSummary
	bucketLaunches    = []byte("launches")    // task, revision -> 8-byte count of owners started

	// Younger than the homes that may lack them: made by their first row, and
	// empty until then.
	bucketEnrollments = []byte("enrollments") // enrollment ID -> enrollmentRecord
	bucketPages       = []byte("pages")       // device, task -> 8-byte revision of the page published last
	bucketActs        = []byte("acts")        // act ID -> act, until its outcome is recorded
	bucketStates      = []byte("states")      // device, task -> toldStates
)

var hostBuckets = [][]byte{
	bucketMeta, bucketGrants, bucketInvitations, bucketEpochs, bucketReplies, bucketAdmitted,
	bucketTurns, bucketSeen, bucketOutbox, bucketPublished, bucketLaunches,
}

// The caps of the access book (NIP-HOST, numbers).
const (
	maxGrants          = 128
	maxInvitations     = 64
	maxEnrollments     = 32
	maxEpochs          = 1024
	maxRedeemReplies   = 32
	maxGrantSeconds    = 2_592_000
	invitationSeconds  = 300
	clockSkew          = 60
	afterExpirySeconds = 60 // how long a dead grant or invitation stays readable
)

// grantRecord is one issued grant as the book keeps it.
type grantRecord struct {
	Grant     nip.Grant  `json:"grant"`
	Envelope  *nip.Event `json:"envelope"`
	RevokedAt int64      `json:"revoked_at,omitempty"`
}

// grantTerms is a grantRecord as read for what it allows: its envelope, which is
// most of its bytes and is asked for once in its life, is passed over.
type grantTerms struct {
	Grant     nip.Grant `json:"grant"`
	RevokedAt int64     `json:"revoked_at"`
}

// invitationRecord keeps the digest of the capability, never the capability.
type invitationRecord struct {
	ID               nip.InvitationID `json:"id"`
	CapabilityDigest nip.Digest       `json:"capability_digest"`
	Relay            nip.RelayURL     `json:"relay"`
	IssuedAt         int64            `json:"issued_at"`
	ExpiresAt        int64            `json:"expires_at"`
	Rights           nip.Rights       `json:"rights"`
	GrantExpiresAt   int64            `json:"grant_expires_at"`
	Issuer           nip.PubKey       `json:"issuer"`
	IssuerGrant      nip.GrantID      `json:"issuer_grant,omitempty"` // of a device that delegates
	Cancelled        bool             `json:"cancelled,omitempty"`
	Grant            nip.GrantID      `json:"grant,omitempty"`
	Replies          int              `json:"replies,omitempty"`
}

// retainedReply answers an exact retry with the same bytes.
type retainedReply struct {
	Signer       nip.PubKey   `json:"signer"`
	RequestEvent nip.EventID  `json:"request_event"`
	Kind         string       `json:"kind"`
	Relay        nip.RelayURL `json:"relay"`
	ExpiresAt    int64        `json:"expires_at"`
	Reply        *nip.Event   `json:"reply"`
}

// getJSON decodes the row at key into v and reports whether there was one.
// A row that does not decode is damage, never absence. A bucket that is not
// there is empty: the old ones were checked at opening, the young ones come
// with their first row.
func getJSON(tx *bbolt.Tx, bucket []byte, key string, v any) (bool, error) {
	b := tx.Bucket(bucket)
	if b == nil {
		return false, nil
	}
	raw := b.Get([]byte(key))
	if raw == nil {
		return false, nil
	}
	if err := json.Unmarshal(raw, v); err != nil {
		return false, fmt.Errorf("host.db %s row: %w", bucket, err)
	}
	return true, nil
}

func putJSON(tx *bbolt.Tx, bucket []byte, key string, v any) error {
	raw, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("encode host.db %s row: %w", bucket, err)
	}
	b, err := tx.CreateBucketIfNotExists(bucket)
	if err != nil {
		return fmt.Errorf("host.db %s: %w", bucket, err)
	}
	return b.Put([]byte(key), raw)
}

// eachJSON decodes every row of a bucket in key order.
func eachJSON[T any](tx *bbolt.Tx, bucket []byte, fn func(key string, v T) error) error {
	b := tx.Bucket(bucket)
	if b == nil {
		return nil
	}
	return b.ForEach(func(k, raw []byte) error {
		var v T
		if err := json.Unmarshal(raw, &v); err != nil {
			return fmt.Errorf("host.db %s row: %w", bucket, err)
		}
		return fn(string(k), v)
	})
}

// holds reports whether a bucket has at least n rows. It reads keys up to n and
// is for buckets whose cap is small.
func holds(tx *bbolt.Tx, bucket []byte, n int) bool {
	b := tx.Bucket(bucket)
	if b == nil {
		return false
	}
	c := b.Cursor()
	for k, _ := c.First(); k != nil; k, _ = c.Next() {
		if n--; n == 0 {
			return true
		}
	}
	return false
}

func getCount(tx *bbolt.Tx, bucket []byte, key string) int64 {
	b := tx.Bucket(bucket)
	if b == nil {
		return 0
	}
	raw := b.Get([]byte(key))
	if len(raw) != 8 {
		return 0
	}
	return int64(binary.BigEndian.Uint64(raw))
}

func putCount(tx *bbolt.Tx, bucket []byte, key string, n int64) error {
	b, err := tx.CreateBucketIfNotExists(bucket)
	if err != nil {
		return fmt.Errorf("host.db %s: %w", bucket, err)
	}
	return b.Put([]byte(key), binary.BigEndian.AppendUint64(nil, uint64(n)))
}

// epochOf is the device's current epoch; every device starts at 0.
func epochOf(tx *bbolt.Tx, device nip.PubKey) int64 {
	return getCount(tx, bucketEpochs, string(device))
}

// standing says why a sender may not act now, "" when it may (NIP-HOST,
// admission of a principal). It is the one check that admission, evaluation
// of held commands and every start of a turn share.
func (c *Core) standing(tx *bbolt.Tx, s commands.Sender, right nip.Right, now int64) (nip.Code, error) {
	if s.Grant == "" {
		if s.Device != c.owner {
			return nip.Forbidden, nil
		}
		return "", nil
	}
	rec, ok, err := c.grant(tx, s.Grant)
	switch {
	case err != nil:
		return "", err
	case !ok, rec.Grant.Device != s.Device:
		return nip.Forbidden, nil
	case rec.RevokedAt != 0:
		return nip.Revoked, nil
	case now >= rec.Grant.ExpiresAt:
		return nip.Expired, nil
	case s.Epoch != rec.Grant.Epoch, rec.Grant.Epoch != epochOf(tx, s.Device):
		return nip.Stale, nil
	case right != "" && !rec.Grant.Rights.Has(right):
		return nip.MissingRight, nil
	}
	return "", nil
}

// activeGrants lists the live grants, one a device: the newest, where an older
// one that was renewed has not ended yet. The records have no envelope.
func (c *Core) activeGrants(tx *bbolt.Tx, now int64) ([]grantRecord, error) {
	var out []grantRecord
	at := map[nip.PubKey]int{}
	err := tx.Bucket(bucketGrants).ForEach(func(key, raw []byte) error {
		terms, err := c.grants.terms(key, raw)
		if err != nil {
			return err
		}
		rec := grantRecord{Grant: terms.Grant, RevokedAt: terms.RevokedAt}
		if !rec.live(tx, now) {
			return nil
		}
		i, known := at[rec.Grant.Device]
		switch {
		case !known:
			at[rec.Grant.Device] = len(out)
			out = append(out, rec)
		case newerGrant(rec.Grant, out[i].Grant):
			out[i] = rec
		}
		return nil
	})
	return out, err
}

func newerGrant(a, b nip.Grant) bool {
	if a.IssuedAt != b.IssuedAt {
		return a.IssuedAt > b.IssuedAt
	}
	return a.ExpiresAt > b.ExpiresAt
}

func (r grantRecord) live(tx *bbolt.Tx, now int64) bool {
	return r.RevokedAt == 0 && now < r.Grant.ExpiresAt && r.Grant.Epoch == epochOf(tx, r.Grant.Device)
}
