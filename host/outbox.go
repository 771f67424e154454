package host

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"

	"go.etcd.io/bbolt"

	"holdfast/nip"
)

const (
	publishTimeout  = 15 * time.Second
	outboxRetry     = 5 * time.Second
	outboxBackoff   = 3 // doublings of the rest after failures in a row: 40 s at most
	outboxSenders   = 4
	outboxBatchRows = 256
)

// outboxRow is one event that must reach a relay. A newer row of the same
// device, stream and subject replaces it: only the newest matters.
type outboxRow struct {
	Device  nip.PubKey   `json:"device"`
	Stream  string       `json:"stream"`
	Subject string       `json:"subject,omitempty"`
	Relay   nip.RelayURL `json:"relay"`
	Until   int64        `json:"until"` // Unix seconds; later nobody keeps or reads the event
	Event   *nip.Event   `json:"event"`
	Copy    bool         `json:"copy,omitempty"`    // for a relay beside the device's own
	Reached bool         `json:"reached,omitempty"` // another relay took these bytes

	raw []byte // the row as it was claimed: the very same bytes need no decoding
}

func (r outboxRow) key() string {
	k := string(r.Device) + "/" + r.Stream + "/" + r.Subject
	if r.Copy {
		k += "/" + string(r.Relay)
	}
	return k
}

// liveDevices is who may be sent anything, as of this transaction. What was
// sealed before it for a device that has lost its standing since must not go
// out: a revocation or an expiry wins over a publication under way.
func (c *Core) liveDevices(tx *bbolt.Tx) (map[nip.PubKey]bool, error) {
	recs, err := c.activeGrants(tx, c.now())
	live := make(map[nip.PubKey]bool, len(recs))
	for _, r := range recs {
		live[r.Grant.Device] = true
	}
	return live, err
}

// putLive commits the rows of devices that still have standing, and wakes the
// senders.
func (h *Host) putLive(ctx context.Context, rows []outboxRow) error {
	err := h.db.Update(ctx, func(tx *bbolt.Tx) error {
		live, err := h.liveDevices(tx)
		for _, r := range rows {
			if err == nil && live[r.Device] {
				err = h.putEverywhere(tx, r)
			}
		}
		return err
	})
	if err == nil {
		h.outbox.wake()
	}
	return err
}

func putOutbox(tx *bbolt.Tx, r outboxRow) error { return putJSON(tx, bucketOutbox, r.key(), r) }

// dropOutbox forgets what was meant for a device that lost its standing.
func dropOutbox(tx *bbolt.Tx, device nip.PubKey) error {
	for _, bucket := range [][]byte{bucketOutbox, bucketPublished, bucketPages, bucketStates} {
		if err := dropDevice(tx, bucket, device); err != nil {
			return err
		}
	}
	return nil
}

// dropDevice deletes the rows of a bucket whose keys begin with the device.
func dropDevice(tx *bbolt.Tx, bucket []byte, device nip.PubKey) error {
	b := tx.Bucket(bucket)
	if b == nil {
		return nil
	}
	prefix := string(device) + "/"
	var keys [][]byte
	c := b.Cursor()
	for k, _ := c.Seek([]byte(prefix)); k != nil && len(k) > len(prefix) && string(k[:len(prefix)]) == prefix; k, _ = c.Next() {
		keys = append(keys, append([]byte(nil), k...))
	}
	for _, k := range keys {
		if err := b.Delete(k); err != nil {
			return err
		}
	}
	return nil
}

// removeSent deletes the row unless a newer event took its place meanwhile.
func removeSent(tx *bbolt.Tx, r outboxRow) error {
	if waits, err := r.waits(tx); err != nil || !waits {
		return err
	}
	if err := tx.Bucket(bucketOutbox).Delete([]byte(r.key())); err != nil {
		return err
	}
	return noteReached(tx, r)
}

// waits reports whether the row's event still has its place in the outbox.
func (r outboxRow) waits(tx *bbolt.Tx) (bool, error) {
	if len(r.raw) > 0 && bytes.Equal(tx.Bucket(bucketOutbox).Get([]byte(r.key())), r.raw) {
		return true, nil
	}
	var now outboxRow
	found, err := getJSON(tx, bucketOutbox, r.key(), &now)
	return found && now.Event.ID == r.Event.ID, err
}

// outboxSender empties the durable outbox: a row leaves only on a relay's OK,
// or when its time has passed. Each relay is served by itself, so that one that
// is away holds up no other.
type outboxSender struct {
	h     *Host
	bell  chan struct{}
	retry time.Duration // rest after a relay failed

	// mu guards relays.
	mu     sync.Mutex
	relays map[nip.RelayURL]*relayOutbox
}

// relayOutbox is where one relay stands.
type relayOutbox struct {
	busy   bool
	after  string    // the key behind which the next batch starts, so that rows that fail stand before no other
	rest   time.Time // no batch before this, after one that failed
	failed int       // batches since the last that did not
}

func (o *outboxSender) wake() { ring(o.bell) }

// ring nudges a loop without waiting for it.
func ring(bell chan struct{}) {
	select {
	case bell <- struct{}{}:
	default:
	}
}

func (o *outboxSender) run(ctx context.Context) error {
	retry := time.NewTicker(o.retry)
	defer retry.Stop()
	failed := make(chan error, 1)
	var busy sync.WaitGroup
	defer busy.Wait()
	for {
		relays, err := o.waiting()
		if err != nil {
			return err
		}
		for relay := range relays {
			batch, err := o.claim(relay)
			if err != nil {
				return err
			}
			if len(batch) == 0 {
				continue
			}
			busy.Add(1)
			go func() {
				defer busy.Done()
				if err := o.send(ctx, relay, batch); err != nil && ctx.Err() == nil {
					select {
					case failed <- err:
					default:
					}
				}
			}()
		}
		select {
		case <-ctx.Done():
			return nil
		case err := <-failed:
			return err
		case <-o.bell:
		case <-retry.C:
		}
	}
}

// waiting lists the relays that rows wait for.
func (o *outboxSender) waiting() (map[nip.RelayURL]bool, error) {
	relays := map[nip.RelayURL]bool{}
	err := o.h.db.View(func(tx *bbolt.Tx) error {
		return tx.Bucket(bucketOutbox).ForEach(func(_, raw []byte) error {
			relay, err := relayOfRow(raw)
			relays[relay] = true
			return err
		})
	})
	return relays, err
}

// relayOfRow reads a row as far as its relay, which stands before the event: there
// may be very many rows, and they are looked through at every wake.
func relayOfRow(raw []byte) (nip.RelayURL, error) {
	d := json.NewDecoder(bytes.NewReader(raw))
	bad := func(err error) (nip.RelayURL, error) {
		return "", fmt.Errorf("host.db outbox row: %w", err)
	}
	if t, err := d.Token(); err != nil || t != json.Delim('{') {
		return bad(errors.Join(err, errors.New("it is no object")))
	}
	for d.More() {
		name, err := d.Token()
		if err != nil {
			return bad(err)
		}
		if name != "relay" {
			var skipped json.RawMessage
			if err := d.Decode(&skipped); err != nil {
				return bad(err)
			}
			continue
		}
		var relay nip.RelayURL
		if err := d.Decode(&relay); err != nil {
			return bad(err)
		}
		return relay, nil
	}
	return bad(errors.New("it names no relay"))
}

// claim takes the relay's next batch, none while one is under way or while the
// relay rests from a failure.
func (o *outboxSender) claim(relay nip.RelayURL) ([]outboxRow, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	st := o.relays[relay]
	if st == nil {
		st = &relayOutbox{}
		o.relays[relay] = st
	}
	if st.busy || time.Now().Before(st.rest) {
		return nil, nil
	}
	var rows []outboxRow
	err := o.h.db.View(func(tx *bbolt.Tx) error {
		c := tx.Bucket(bucketOutbox).Cursor()
		take := func(k, raw []byte) error {
			var r outboxRow
			if err := json.Unmarshal(raw, &r); err != nil {
				return fmt.Errorf("host.db outbox row: %w", err)
			}
			if r.Relay == relay {
				r.raw = bytes.Clone(raw)
				rows = append(rows, r)
			}
			return nil
		}
		for k, raw := c.Seek([]byte(st.after + "\x00")); k != nil && len(rows) < outboxBatchRows; k, raw = c.Next() {
			if err := take(k, raw); err != nil {
				return err
			}
		}
		for k, raw := c.First(); k != nil && string(k) <= st.after && len(rows) < outboxBatchRows; k, raw = c.Next() {
			if err := take(k, raw); err != nil {
				return err
			}
		}
		return nil
	})
	st.busy = len(rows) > 0
	return rows, err
}

// send publishes a batch with a few senders and commits what was accepted at
// once. After the first failure the rest of the batch waits: the relay is away
// or unwilling, and asking on would only take longer.
func (o *outboxSender) send(ctx context.Context, relay nip.RelayURL, rows []outboxRow) error {
	var mu sync.Mutex // guards next, sent, failed
	next, failed := 0, false
	var done []outboxRow
	take := func() (outboxRow, bool) {
		mu.Lock()
		defer mu.Unlock()
		if failed || next == len(rows) || ctx.Err() != nil {
			return outboxRow{}, false
		}
		next++
		return rows[next-1], true
	}
	now := o.h.now()
	var senders sync.WaitGroup
	for range min(outboxSenders, len(rows)) {
		senders.Add(1)
		go func() {
			defer senders.Done()
			for {
				r, ok := take()
				if !ok {
					return
				}
				current, err := o.current(r)
				ok = err == nil && (!current || r.Until <= now || o.h.deliver(ctx, relay, r.Event, publishTimeout))
				mu.Lock()
				if ok {
					done = append(done, r)
				} else {
					failed = true
				}
				mu.Unlock()
			}
		}()
	}
	senders.Wait()
	var err error
	if len(done) > 0 {
		// A crash before this commit sends the same bytes again, which a relay
		// answers with OK; after it the rows are gone.
		err = o.h.db.Update(context.WithoutCancel(ctx), func(tx *bbolt.Tx) error {
			for _, r := range done {
				if err := removeSent(tx, r); err != nil {
					return err
				}
			}
			return nil
		})
	}
	o.mu.Lock()
	st := o.relays[relay]
	st.busy = false
	st.after = rows[max(next-1, 0)].key()
	if failed {
		rest := o.retry << min(st.failed, outboxBackoff)
		st.rest = time.Now().Add(rest - o.retry/10) // just short of a tick
		st.failed++
	} else {
		st.failed = 0
	}
	o.mu.Unlock()
	if !failed {
		o.wake() // what came meanwhile, or stands behind a full batch
	}
	return err
}

// current reports whether the row still waits. Since the batch was claimed a
// newer event may have taken its place, or its device may have lost its
// standing: then it must not leave.
func (o *outboxSender) current(r outboxRow) (waits bool, err error) {
	err = o.h.db.View(func(tx *bbolt.Tx) (err error) {
		waits, err = r.waits(tx)
		return err
	})
	return waits, err
}

// deliver publishes one event and reports whether the relay took it.
func (h *Host) deliver(ctx context.Context, relay nip.RelayURL, ev *nip.Event, wait time.Duration) bool {
	return h.deliverSealed(ctx, relay, ev, nip.Verified{}, wait)
}

// deliverSealed is deliver; v is ev where this process sealed it, else zero.
func (h *Host) deliverSealed(ctx context.Context, relay nip.RelayURL, ev *nip.Event, v nip.Verified, wait time.Duration) bool {
	ctx, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	var err error
	if t, ok := h.transport.(SealedTransport); ok && v.Event() != nil {
		err = t.PublishSealed(ctx, relay, v)
	} else {
		err = h.transport.Publish(ctx, relay, ev)
	}
	if err == nil {
		return true
	}
	h.log.Debug().Err(err).Str("hop", "publish").Str("event", ev.ID).Msg("not accepted yet")
	return false
}
