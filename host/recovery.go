package host

import (
	"encoding/binary"
	"encoding/json"

	"go.etcd.io/bbolt"

	"holdfast/nip"
)

var (
	// Both are made by their first row, and empty until then.
	bucketRecovery     = []byte("recovery")      // request ID -> recoveryRow
	bucketRecoveryEnds = []byte("recovery.ends") // end as 8-byte big-endian, request ID -> its signer; empty for an edit
)

// How much is kept for request.operation. Of rows that give way, the oldest do
// when there is no room, and the signer whose row went is told so: see
// dropRecovered. Edits of a queue never give way, because their row is what
// keeps an edit from happening twice; one too many is refused instead.
const (
	recoverySeconds       = 172_800 // after the request's end
	maxRecovery           = 8192
	maxSignerRecovery     = 1024 // one signer's share of them
	maxQueueRecords       = 128
	maxSignerQueueRecords = 64 // one signer's share of them
)

// recoverable are the operations whose result is kept beyond the request's
// minute (NIP-HOST, pruning), with the right that each needs.
var recoverable = map[string]nip.Right{
	nip.TaskCreate{}.Kind():    nip.TaskCreate{}.Right(),
	nip.TaskSteer{}.Kind():     nip.TaskSteer{}.Right(),
	nip.TaskCancel{}.Kind():    nip.TaskCancel{}.Right(),
	nip.TaskCommandAt{}.Kind(): nip.TaskCommandAt{}.Right(),
	nip.TaskQueueAt{}.Kind():   nip.TaskQueueAt{}.Right(),
}

// recoveryRow is what request.operation knows of one request. It is made in the
// commit that makes its effect certain, and gets its result in the commit that
// records the outcome: between the two the request is undecided.
type recoveryRow struct {
	Signer       nip.PubKey      `json:"signer"`
	RequestEvent nip.EventID     `json:"request_event"`
	Kind         string          `json:"kind"`
	Grant        nip.GrantID     `json:"grant,omitempty"` // empty: the owner's key
	Epoch        int64           `json:"epoch"`
	ExpiresAt    int64           `json:"expires_at"`        // of the request
	Command      nip.CommandID   `json:"command,omitempty"` // of task.command.at_revision: where its end is looked up
	Action       nip.Digest      `json:"action,omitempty"`  // of a queue edit: the exact operation
	Edit         bool            `json:"edit,omitempty"`    // a queue edit that was carried out: never gives way
	Result       json.RawMessage `json:"result,omitempty"`
}

func (r *recoveryRow) ends() int64 { return r.ExpiresAt + recoverySeconds }

func (r *recoveryRow) answers(signer nip.PubKey, event nip.EventID) bool {
	return r.Signer == signer && r.RequestEvent == event
}

// recovers reports whether the request's result is kept for request.operation.
func recovers(req *nip.Request) bool {
	if at, ok := req.Op.(nip.TaskQueueAt); ok && at.Edit.Action == "list" {
		return false
	}
	_, ok := recoverable[req.Kind]
	return ok
}

// remember makes the request's row, without a result yet. One that is there
// stays as it is. Call it in the commit that makes the effect certain, after the
// sender's standing was checked there.
func (c *Core) remember(tx *bbolt.Tx, k *call, with func(*recoveryRow)) error {
	if b := tx.Bucket(bucketRecovery); !recovers(&k.req) || b != nil && b.Get([]byte(k.req.ID)) != nil {
		return nil
	}
	row := recoveryRow{
		Signer: k.opened.Signer, RequestEvent: k.opened.EventID, Kind: k.req.Kind,
		Grant: k.who.sender.Grant, Epoch: k.who.sender.Epoch, ExpiresAt: k.req.ExpiresAt,
	}
	if with != nil {
		with(&row)
	}
	whose := row.Signer
	if row.Edit {
		whose = ""
	} else if err := makeRoom(tx, row.Signer); err != nil {
		return err
	}
	if err := countRecovered(tx, &row, 1); err != nil {
		return err
	}
	ends, err := tx.CreateBucketIfNotExists(bucketRecoveryEnds)
	if err != nil {
		return err
	}
	if err := ends.Put(endKey(row.ends(), k.req.ID), []byte(whose)); err != nil {
		return err
	}
	return putJSON(tx, bucketRecovery, string(k.req.ID), row)
}

// recordResult puts what became of a request into its row. The first result
// stands. Without a row nothing is kept: it gave way, or its device was revoked.
func recordResult(tx *bbolt.Tx, id nip.RequestID, r nip.Reply) error {
	var row recoveryRow
	found, err := getJSON(tx, bucketRecovery, string(id), &row)
	if err != nil || !found || row.Result != nil {
		return err
	}
	if row.Result, err = nip.EncodeResult(nip.Result{Outcome: r.Outcome, Refusal: r.Refusal}); err != nil {
		return err
	}
	return putJSON(tx, bucketRecovery, string(id), row)
}

// keepResult is both at once, for a request whose outcome is known. A sender
// who lost its standing meanwhile gets no new row: its rows went with it.
func (c *Core) keepResult(tx *bbolt.Tx, k *call, r nip.Reply) error {
	if !recovers(&k.req) {
		return nil
	}
	code, err := c.standing(tx, k.who.sender, "", c.now())
	if err != nil {
		return err
	}
	if code == "" {
		if err := c.remember(tx, k, nil); err != nil {
			return err
		}
	}
	return recordResult(tx, k.req.ID, r)
}

// takenRequest reports whether the request's ID belongs to another event for as
// long as that one's result is kept.
func takenRequest(tx *bbolt.Tx, k *call, now int64) (bool, error) {
	var row recoveryRow
	found, err := getJSON(tx, bucketRecovery, string(k.req.ID), &row)
	return found && now < row.ends() && !row.answers(k.opened.Signer, k.opened.EventID), err
}

func endKey(ends int64, id nip.RequestID) []byte {
	return append(binary.BigEndian.AppendUint64(nil, uint64(ends)), id...)
}

// The counts of rows in the bucket meta, so that no cap costs a walk.
func recoveryCounts(row *recoveryRow) (all, own string) {
	if row.Edit {
		return "queue.edits", "queue.edits/" + string(row.Signer)
	}
	return "recovery", "recovery/" + string(row.Signer)
}

func countRecovered(tx *bbolt.Tx, row *recoveryRow, step int64) error {
	all, own := recoveryCounts(row)
	for _, key := range []string{all, own} {
		n := getCount(tx, bucketMeta, key) + step
		if n <= 0 {
			if err := tx.Bucket(bucketMeta).Delete([]byte(key)); err != nil {
				return err
			}
			continue
		}
		if err := putCount(tx, bucketMeta, key, n); err != nil {
			return err
		}
	}
	return nil
}

// queueRecordsFull reports whether another queue edit of the signer would be one
// too many, after those whose time is over left.
func queueRecordsFull(tx *bbolt.Tx, signer nip.PubKey, now int64) (bool, error) {
	all, own := recoveryCounts(&recoveryRow{Signer: signer, Edit: true})
	full := func() bool {
		return getCount(tx, bucketMeta, all) >= maxQueueRecords || getCount(tx, bucketMeta, own) >= maxSignerQueueRecords
	}
	if !full() {
		return false, nil
	}
	err := pruneRecovery(tx, now)
	return full(), err
}

// makeRoom lets the oldest rows go until one more of the signer fits: its own
// where it has some, so that nobody who asks without end costs another device
// its rows before its own.
func makeRoom(tx *bbolt.Tx, signer nip.PubKey) error {
	all, own := recoveryCounts(&recoveryRow{Signer: signer})
	for {
		mine := getCount(tx, bucketMeta, own)
		if mine < maxSignerRecovery && getCount(tx, bucketMeta, all) < maxRecovery {
			return nil
		}
		from := signer
		if mine == 0 {
			from = ""
		}
		id := oldestRecovered(tx, from)
		if id == "" {
			return nil // the counts say more than there is; nothing to let go
		}
		if err := dropRecovered(tx, id, true); err != nil {
			return err
		}
	}
}

// oldestRecovered is the row that ends first of those that may give way: of one
// signer, or "" for all.
func oldestRecovered(tx *bbolt.Tx, signer nip.PubKey) nip.RequestID {
	b := tx.Bucket(bucketRecoveryEnds)
	if b == nil {
		return ""
	}
	c := b.Cursor()
	for k, whose := c.First(); k != nil; k, whose = c.Next() {
		if len(k) > 8 && len(whose) > 0 && (signer == "" || string(whose) == string(signer)) {
			return nip.RequestID(k[8:])
		}
	}
	return ""
}

// dropRecovered removes a row. early is before its time: then the host may not
// say of an unknown request of this signer that it never was, until the dropped
// row's time is over, and meta keeps that moment.
func dropRecovered(tx *bbolt.Tx, id nip.RequestID, early bool) error {
	var row recoveryRow
	found, err := getJSON(tx, bucketRecovery, string(id), &row)
	if err != nil || !found {
		return err
	}
	if early {
		if key := forgottenOf(row.Signer); row.ends() > getCount(tx, bucketMeta, key) {
			if err := putCount(tx, bucketMeta, key, row.ends()); err != nil {
				return err
			}
		}
	}
	if err := countRecovered(tx, &row, -1); err != nil {
		return err
	}
	if err := tx.Bucket(bucketRecoveryEnds).Delete(endKey(row.ends(), id)); err != nil {
		return err
	}
	return tx.Bucket(bucketRecovery).Delete([]byte(id))
}

const forgottenPrefix = "recovery.forgot/"

func forgottenOf(signer nip.PubKey) string { return forgottenPrefix + string(signer) }

// dropRecovery removes every row of a device, in the commit that revokes it.
func dropRecovery(tx *bbolt.Tx, device nip.PubKey) error {
	var gone []nip.RequestID
	if err := eachJSON(tx, bucketRecovery, func(key string, row recoveryRow) error {
		if row.Signer == device {
			gone = append(gone, nip.RequestID(key))
		}
		return nil
	}); err != nil {
		return err
	}
	for _, id := range gone {
		if err := dropRecovered(tx, id, true); err != nil {
			return err
		}
	}
	return nil
}

// pruneRecovery removes the rows whose time is over, and the moments that tell
// of rows that went before theirs.
func pruneRecovery(tx *bbolt.Tx, now int64) error {
	var gone []nip.RequestID
	if b := tx.Bucket(bucketRecoveryEnds); b != nil {
		c := b.Cursor()
		for k, _ := c.First(); len(k) > 8 && int64(binary.BigEndian.Uint64(k)) <= now; k, _ = c.Next() {
			gone = append(gone, nip.RequestID(k[8:]))
		}
	}
	for _, id := range gone {
		if err := dropRecovered(tx, id, false); err != nil {
			return err
		}
	}
	var over []string
	c := tx.Bucket(bucketMeta).Cursor()
	for k, _ := c.Seek([]byte(forgottenPrefix)); len(k) > len(forgottenPrefix) && string(k[:len(forgottenPrefix)]) == forgottenPrefix; k, _ = c.Next() {
		if getCount(tx, bucketMeta, string(k)) <= now {
			over = append(over, string(k))
		}
	}
	for _, key := range over {
		if err := tx.Bucket(bucketMeta).Delete([]byte(key)); err != nil {
			return err
		}
	}
	return nil
}
