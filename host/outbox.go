package host

import (
	"context"
	"encoding/json"
	"time"

	"go.etcd.io/bbolt"

	"holdfast/nip"
)

const (
	publishTimeout  = 15 * time.Second
	outboxRetry     = 5 * time.Second
	outboxSenders   = 4
	replySenders    = 16
	replyBacklog    = 256
	outboxBatchRows = 256
)

// outboxSender empties the durable outbox: a row leaves only on a relay's OK.
// One goroutine owns it; wake only nudges.
type outboxSender struct {
	h    *Host
	bell chan struct{}
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
	retry := time.NewTicker(outboxRetry)
	defer retry.Stop()
	for {
		rows, err := o.pending()
		if err != nil {
			return err
		}
		if len(rows) > 0 {
			if err := o.send(ctx, rows); err != nil {
				return err
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case <-o.bell:
		case <-retry.C:
		}
	}
}

func (o *outboxSender) pending() ([]outboxRow, error) {
	var rows []outboxRow
	err := o.h.db.View(func(tx *bbolt.Tx) error {
		c := tx.Bucket(bucketOutbox).Cursor()
		for k, raw := c.First(); k != nil && len(rows) < outboxBatchRows; k, raw = c.Next() {
			var r outboxRow
			if err := json.Unmarshal(raw, &r); err != nil {
				return err
			}
			rows = append(rows, r)
		}
		return nil
	})
	return rows, err
}

// send publishes rows with a few senders and commits what was accepted at once.
func (o *outboxSender) send(ctx context.Context, rows []outboxRow) error {
	work, done := make(chan outboxRow), make(chan *outboxRow, len(rows))
	for range min(outboxSenders, len(rows)) {
		go func() {
			for r := range work {
				if o.h.deliver(ctx, r.Relay, r.Event, publishTimeout) {
					done <- &r
				} else {
					done <- nil
				}
			}
		}()
	}
	go func() {
		defer close(work)
		for _, r := range rows {
			work <- r
		}
	}()
	var sent []outboxRow
	for range rows {
		if r := <-done; r != nil {
			sent = append(sent, *r)
		}
	}
	if len(sent) == 0 || ctx.Err() != nil {
		return nil
	}
	if len(sent) == outboxBatchRows {
		o.wake() // more rows wait behind a full batch
	}
	return o.h.db.Update(ctx, func(tx *bbolt.Tx) error {
		for _, r := range sent {
			if err := removeSent(tx, r); err != nil {
				return err
			}
		}
		return nil
	})
}

// deliver publishes one event and reports whether it is done with: accepted,
// or refused for good so that repeating it could only annoy.
func (h *Host) deliver(ctx context.Context, relay nip.RelayURL, ev *nip.Event, wait time.Duration) bool {
	ctx, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	err := h.transport.Publish(ctx, relay, ev)
	if err == nil {
		return true
	}
	h.log.Debug().Err(err).Str("hop", "publish").Str("event", ev.ID).Msg("not accepted yet")
	return false
}

// replyJob is one sealed reply on its way out, until the request expires.
type replyJob struct {
	relay nip.RelayURL
	event *nip.Event
	until int64
}

// sendReply hands a committed reply to the senders. It never waits: a reply
// that finds no room is fetched by the device's exact retry, because it is
// retained.
func (h *Host) sendReply(k *call, ev *nip.Event) {
	if ev == nil {
		return
	}
	h.noteAnswer(k, nil, h.now())
	h.queueReply(k.in.Relay, ev, k.req.ExpiresAt)
}

func (h *Host) queueReply(relay nip.RelayURL, ev *nip.Event, until int64) {
	select {
	case h.replies <- replyJob{relay, ev, until}:
	default:
		h.log.Warn().Str("event", ev.ID).Msg("reply backlog is full; the device's retry will fetch it")
	}
}

func (h *Host) sendReplies(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case j := <-h.replies:
			for ctx.Err() == nil {
				left := time.Duration(j.until-h.now()) * time.Second
				if left <= 0 || h.deliver(ctx, j.relay, j.event, min(left, publishTimeout)) {
					break
				}
				select {
				case <-ctx.Done():
				case <-time.After(time.Second):
				}
			}
		}
	}
}

// resendReplies hands every retained reply that is still fresh to the senders:
// whether it left before the last stop is not known, and a relay answers a
// duplicate with OK.
func (h *Host) resendReplies() error {
	return h.db.View(func(tx *bbolt.Tx) error {
		now := h.now()
		return eachJSON(tx, bucketReplies, func(_ string, r retainedReply) error {
			if r.ExpiresAt > now {
				h.queueReply(r.Relay, r.Reply, r.ExpiresAt)
			}
			return nil
		})
	})
}
