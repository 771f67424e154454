package host

import (
	"context"
	"sync"
	"time"

	"go.etcd.io/bbolt"

	"holdfast/nip"
)

const (
	replySenders = 4   // of one relay
	replyBacklog = 256 // replies waiting for one relay
	replyRelays  = 32  // relays that may have a backlog
	replyAgain   = time.Second
)

// replyJob is one sealed reply on its way out, until the request expires.
type replyJob struct {
	event  *nip.Event
	until  int64
	sealed nip.Verified // event, where this process sealed it; else zero
}

// replySender moves replies to their relays, each relay by itself.
type replySender struct {
	h *Host

	// mu guards jobs and start.
	mu    sync.Mutex
	jobs  map[nip.RelayURL]chan replyJob
	start func(relay nip.RelayURL, jobs <-chan replyJob) // nil until the host runs: what comes earlier waits
}

// put queues a reply and never waits. One that finds no room is fetched by the
// device's exact retry, because it is retained.
func (s *replySender) put(relay nip.RelayURL, j replyJob) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	jobs := s.jobs[relay]
	if jobs == nil {
		if len(s.jobs) >= replyRelays {
			return false
		}
		jobs = make(chan replyJob, replyBacklog)
		s.jobs[relay] = jobs
		if s.start != nil {
			s.start(relay, jobs)
		}
	}
	select {
	case jobs <- j:
		return true
	default:
		s.h.log.Warn().Str("event", j.event.ID).Msg("reply backlog is full; the device's retry will fetch it")
		return false
	}
}

// run gives every backlog its senders, those to come as well.
func (s *replySender) run(start func(relay nip.RelayURL, jobs <-chan replyJob)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.start = start
	for relay, jobs := range s.jobs {
		start(relay, jobs)
	}
}

// sendReplies is one sender: a reply is offered until a relay takes it or its
// request has run out.
func (h *Host) sendReplies(ctx context.Context, relay nip.RelayURL, jobs <-chan replyJob) {
	for {
		select {
		case <-ctx.Done():
			return
		case j := <-jobs:
			for ctx.Err() == nil {
				left := time.Duration(j.until-h.now()) * time.Second
				if left <= 0 || h.deliverSealed(ctx, relay, j.event, j.sealed, min(left, publishTimeout)) {
					break
				}
				select {
				case <-ctx.Done():
				case <-time.After(replyAgain):
				}
			}
		}
	}
}

// sendReply hands a committed reply to the senders.
func (h *Host) sendReply(k *call, ev *nip.Event) {
	if ev != nil {
		h.queueReply(k, ev, nil)
	}
}

// queueReply remembers the answer and queues it. unretained is the reply again
// where host.db does not keep it.
func (h *Host) queueReply(k *call, ev, unretained *nip.Event) {
	h.answers.note(k.opened.EventID, answer{at: h.now(), until: k.req.ExpiresAt, reply: unretained}, h.isMember(string(k.opened.Signer)))
	j := replyJob{event: ev, until: k.req.ExpiresAt}
	if k.sealed.Event() == ev { // and no retained one
		j.sealed = k.sealed
	}
	h.replies.put(k.in.Relay, j)
}

// resendReplies hands every retained reply that is still fresh to the senders:
// whether it left before the last stop is not known, and a relay answers a
// duplicate with OK.
func (h *Host) resendReplies() error {
	return h.db.View(func(tx *bbolt.Tx) error {
		now := h.now()
		return eachJSON(tx, bucketReplies, func(_ string, r retainedReply) error {
			if r.ExpiresAt > now && h.replies.put(r.Relay, replyJob{event: r.Reply, until: r.ExpiresAt}) {
				h.answers.note(r.RequestEvent, answer{at: now, until: r.ExpiresAt}, true)
			}
			return nil
		})
	})
}
