package host

import (
	"context"
	"sync"
	"time"

	"go.etcd.io/bbolt"

	"holdfast/nip"
)

const (
	replySenders = 4           // of one relay for members; strangers have one
	replyBacklog = 256         // replies waiting in one lane
	replyLanes   = 64          // lanes that there may be
	replyAgain   = time.Second // before a reply that its relay did not take is offered again; it doubles
	replyRests   = 3           // doublings: 8 s at most
)

// replyJob is one sealed reply on its way out, until the request expires.
type replyJob struct {
	event  *nip.Event
	until  int64
	sealed nip.Verified // event, where this process sealed it; else zero
	failed int          // how often the relay did not take it
}

// replyLane is the replies of one relay to members, or to everybody else. A relay
// need not take what goes to strangers, and each such reply is offered for a
// minute: that must not stand before a member's.
type replyLane struct {
	relay    nip.RelayURL
	stranger bool
}

func (l replyLane) senders() int {
	if l.stranger {
		return 1
	}
	return replySenders
}

// replySender moves replies to their relays, each lane by itself.
type replySender struct {
	h *Host

	// mu guards jobs, resting and start.
	mu      sync.Mutex
	jobs    map[replyLane]chan replyJob
	resting map[replyLane]int                          // replies that wait to be offered again
	start   func(lane replyLane, jobs <-chan replyJob) // nil until the host runs: what comes earlier waits
}

// put queues a reply and never waits. One that finds no room is fetched by the
// device's exact retry, because it is retained.
func (s *replySender) put(lane replyLane, j replyJob) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	jobs := s.jobs[lane]
	if jobs == nil {
		if len(s.jobs) >= replyLanes {
			return false
		}
		jobs = make(chan replyJob, replyBacklog)
		s.jobs[lane] = jobs
		if s.start != nil {
			s.start(lane, jobs)
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
func (s *replySender) run(start func(lane replyLane, jobs <-chan replyJob)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.start = start
	for lane, jobs := range s.jobs {
		start(lane, jobs)
	}
}

// sendReplies is one sender: a reply is offered until a relay takes it or its
// request has run out. One that a relay did not take rests, each time longer, and
// lets the others pass: the relay may be away, or may never take this one.
func (h *Host) sendReplies(ctx context.Context, lane replyLane, jobs <-chan replyJob) {
	for {
		select {
		case <-ctx.Done():
			return
		case j := <-jobs:
			left := time.Duration(j.until-h.now()) * time.Second
			if left > 0 && !h.deliverSealed(ctx, lane.relay, j.event, j.sealed, min(left, publishTimeout)) {
				h.replies.rest(ctx, lane, j)
			}
		}
	}
}

// rest queues the reply again later. Where very many rest, it is left to the
// device's exact retry, as where a backlog is full.
func (s *replySender) rest(ctx context.Context, lane replyLane, j replyJob) {
	wait := replyAgain << min(j.failed, replyRests)
	j.failed++
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.resting[lane] >= replyBacklog {
		return
	}
	s.resting[lane]++
	time.AfterFunc(wait, func() {
		s.mu.Lock()
		s.resting[lane]--
		s.mu.Unlock()
		if ctx.Err() == nil {
			s.put(lane, j)
		}
	})
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
	member := h.isMember(string(k.opened.Signer))
	h.answers.note(k.opened.EventID, answer{at: h.now(), until: k.req.ExpiresAt, reply: unretained}, member)
	j := replyJob{event: ev, until: k.req.ExpiresAt}
	if k.sealed.Event() == ev { // and no retained one
		j.sealed = k.sealed
	}
	h.replies.put(replyLane{k.in.Relay, !member}, j)
}

// resendReplies hands every retained reply that is still fresh, of which none is a
// stranger's, to the senders:
// whether it left before the last stop is not known, and a relay answers a
// duplicate with OK.
func (h *Host) resendReplies() error {
	return h.db.View(func(tx *bbolt.Tx) error {
		now := h.now()
		return eachJSON(tx, bucketReplies, func(_ string, r retainedReply) error {
			if r.ExpiresAt > now && h.replies.put(replyLane{relay: r.Relay}, replyJob{event: r.Reply, until: r.ExpiresAt}) {
				h.answers.note(r.RequestEvent, answer{at: now, until: r.ExpiresAt}, true)
			}
			return nil
		})
	})
}
