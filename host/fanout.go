package host

import (
	"bytes"
	"encoding/json"
	"fmt"

	"go.etcd.io/bbolt"

	"holdfast/nip"
)

// copiesMost bounds what waits of one device for one relay beside its own: as
// many summaries as a start would publish again, and presence and hints, of which
// there is one each.
const copiesMost = republishedTasks

// spreads reports whether events of a stream go to every served relay (NIP-HOST,
// relay behaviour). Everything else goes where its device listens, and nowhere
// else.
func spreads(stream string) bool {
	return stream == "presence" || stream == "hints" || stream == "summary"
}

// putEverywhere puts a row into the outbox and, where its stream spreads, a copy
// for each other relay served: the same sealed bytes. Each copy leaves on its own
// relay's OK, so that a relay which is away delays none of the others.
func (h *Host) putEverywhere(tx *bbolt.Tx, r outboxRow) error {
	if err := putOutbox(tx, r); err != nil || !spreads(r.Stream) {
		return err
	}
	for _, other := range h.transport.Relays() {
		if other.has(r.Relay) {
			continue
		}
		c := r
		c.Relay, c.Copy = other.URL, true
		if err := putOutbox(tx, c); err != nil {
			return err
		}
		if err := trimCopies(tx, c); err != nil {
			return err
		}
	}
	return nil
}

// eachCopy calls fn with the copies of r's device and stream that wait for r's
// relay.
func eachCopy(tx *bbolt.Tx, r outboxRow, fn func(key, raw []byte)) {
	prefix, suffix := []byte(string(r.Device)+"/"+r.Stream+"/"), []byte("/"+string(r.Relay))
	c := tx.Bucket(bucketOutbox).Cursor()
	for k, raw := c.Seek(prefix); bytes.HasPrefix(k, prefix); k, raw = c.Next() {
		if bytes.HasSuffix(k, suffix) {
			fn(k, raw)
		}
	}
}

// trimCopies takes the copies that would be kept shortest out until there are
// copiesMost: the relay is away, and what it missed of older tasks is in
// task.list.
func trimCopies(tx *bbolt.Tx, r outboxRow) error {
	for {
		var oldest []byte
		var until int64
		n := 0
		var fault error
		eachCopy(tx, r, func(k, raw []byte) {
			n++
			var row struct {
				Until int64 `json:"until"`
			}
			if err := json.Unmarshal(raw, &row); err != nil {
				fault = fmt.Errorf("host.db outbox row: %w", err)
			}
			if string(k) != r.key() && (oldest == nil || row.Until < until) {
				oldest, until = bytes.Clone(k), row.Until
			}
		})
		if fault != nil || n <= copiesMost {
			return fault
		}
		if err := tx.Bucket(bucketOutbox).Delete(oldest); err != nil {
			return err
		}
	}
}

// dropForeignCopies forgets copies for relays that are served no more; whoever
// listens there hears nothing of this host anyway.
func (h *Host) dropForeignCopies(tx *bbolt.Tx) error {
	var gone [][]byte
	err := eachJSON(tx, bucketOutbox, func(k string, r struct {
		Relay nip.RelayURL `json:"relay"`
		Copy  bool         `json:"copy"`
	}) error {
		if r.Copy && !h.on(r.Relay) {
			gone = append(gone, []byte(k))
		}
		return nil
	})
	for _, k := range gone {
		if err == nil {
			err = tx.Bucket(bucketOutbox).Delete(k)
		}
	}
	return err
}

// noteReached marks what is left of a publication that one relay took: it counts
// as out, and the rest goes on by itself.
func noteReached(tx *bbolt.Tx, r outboxRow) error {
	if !spreads(r.Stream) {
		return nil
	}
	home := r
	home.Copy = false
	keys := [][]byte{[]byte(home.key())}
	c, prefix := tx.Bucket(bucketOutbox).Cursor(), []byte(home.key()+"/")
	for k, _ := c.Seek(prefix); bytes.HasPrefix(k, prefix); k, _ = c.Next() {
		keys = append(keys, bytes.Clone(k))
	}
	for _, k := range keys {
		var left outboxRow
		found, err := getJSON(tx, bucketOutbox, string(k), &left)
		if err != nil {
			return err
		}
		if !found || left.Reached || left.Event.ID != r.Event.ID {
			continue
		}
		left.Reached = true
		if err := putOutbox(tx, left); err != nil {
			return err
		}
	}
	return nil
}

// outboxWaits counts what waits: publications that no relay took yet, and the
// events for each relay.
func outboxWaits(tx *bbolt.Tx) (waiting int, of map[nip.RelayURL]int, err error) {
	of = map[nip.RelayURL]int{}
	seen := map[string]bool{}
	err = eachJSON(tx, bucketOutbox, func(_ string, r struct {
		Device  nip.PubKey   `json:"device"`
		Stream  string       `json:"stream"`
		Subject string       `json:"subject"`
		Relay   nip.RelayURL `json:"relay"`
		Reached bool         `json:"reached"`
	}) error {
		of[r.Relay]++
		if key := (outboxRow{Device: r.Device, Stream: r.Stream, Subject: r.Subject}).key(); !r.Reached && !seen[key] {
			seen[key] = true
			waiting++
		}
		return nil
	})
	return waiting, of, err
}
