package host

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"holdfast/nip"
)

// What the relay will not take for strangers, each of which the host offers until
// its request has run out, stands before no device's reply.
func TestStrangersRepliesHoldUpNobody(t *testing.T) {
	r := newRig(t)
	d := r.pair(nip.StandardRights())
	r.serve()
	offered := make(chan struct{}, 64)
	r.paper.refusing(func(ev *nip.Event) error {
		if ev.Tags.FindWithValue("p", string(d.pub())) != nil {
			return nil
		}
		select {
		case offered <- struct{}{}:
		default:
		}
		return errors.New("blocked: not here")
	})
	for range 4 * replySenders {
		r.paper.in <- r.sealed(device{key: newKey(t)}, r.req(device{}, nip.WorkspaceList{}))
	}
	<-offered
	r.wantCode(r.overWire(d, nip.WorkspaceList{}), "")
}

// A reply that the relay never takes rests longer each time and stands before no
// other of the same device: there are more of them than senders.
func TestRefusedRepliesRest(t *testing.T) {
	r := newRig(t)
	d := r.pair(nip.StandardRights())
	r.serve()
	var mu sync.Mutex
	offered, mine := map[string]int{}, map[string]bool{}
	accept := false
	r.paper.refusing(func(ev *nip.Event) error {
		mu.Lock()
		defer mu.Unlock()
		if !mine[ev.ID] || accept {
			return nil
		}
		offered[ev.ID]++
		return errors.New("blocked: not here")
	})
	lane := replyLane{relay: r.paper.Relays()[0].URL}
	for range 2 * replySenders {
		ev := &nip.Event{ID: newID(t)}
		mu.Lock()
		mine[ev.ID] = true
		mu.Unlock()
		r.h.replies.put(lane, replyJob{event: ev, until: r.clock.now() + 60})
	}
	r.until("each was offered", func() bool { mu.Lock(); defer mu.Unlock(); return len(offered) == 2*replySenders })
	mu.Lock()
	accept = true
	mu.Unlock()
	r.wantCode(r.overWire(d, nip.WorkspaceList{}), "")
	r.until("none rests any more", func() bool {
		r.h.replies.mu.Lock()
		defer r.h.replies.mu.Unlock()
		return r.h.replies.resting[lane] == 0
	})
	mu.Lock()
	defer mu.Unlock()
	for id, n := range offered {
		if n > 3 {
			t.Errorf("%s was offered %d times", id, n)
		}
	}
}

func TestReplyRests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &replySender{jobs: map[replyLane]chan replyJob{}, resting: map[replyLane]int{}}
		lane := replyLane{relay: "ws://127.0.0.1:7447/"}
		ctx, stop := context.WithCancel(t.Context())
		count := func() (queued, resting int) {
			s.mu.Lock()
			defer s.mu.Unlock()
			return len(s.jobs[lane]), s.resting[lane]
		}
		j := replyJob{event: &nip.Event{ID: "x"}}
		for _, want := range []time.Duration{1, 2, 4, 8, 8} {
			began := time.Now()
			s.rest(ctx, lane, j)
			time.Sleep(want*time.Second - time.Millisecond)
			synctest.Wait()
			if queued, _ := count(); queued != 0 {
				t.Fatalf("offered again before %d s", want)
			}
			time.Sleep(time.Millisecond)
			synctest.Wait()
			s.mu.Lock()
			jobs := s.jobs[lane]
			s.mu.Unlock()
			j = <-jobs
			if took := time.Since(began); took != want*time.Second {
				t.Fatalf("rested %s, want %d s", took, want)
			}
		}
		for range replyBacklog + 9 {
			s.rest(ctx, lane, j)
		}
		if _, n := count(); n != replyBacklog {
			t.Errorf("%d rest", n)
		}
		stop()
		time.Sleep(time.Minute)
		synctest.Wait()
		if queued, resting := count(); queued != 0 || resting != 0 {
			t.Errorf("after the host stopped %d replies are queued and %d rest", queued, resting)
		}
	})
}
