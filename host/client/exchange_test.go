package client

import (
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"holdfast/nip"
	"holdfast/relay"
)

// A call is answered, and what went over the wire agrees with itself.
func TestExchange(t *testing.T) {
	d, h, p := paired(t)
	x, err := d.Exchange(t.Context(), nip.WorkspaceList{})
	if err != nil {
		t.Fatal(err)
	}
	if x.Tries != 1 || x.ReplyEvent.PubKey != string(h.key.Public()) || x.Reply.Request != x.Request.ID {
		t.Errorf("exchange = %+v", x)
	}
	if life := x.Request.ExpiresAt - x.Request.IssuedAt; life != 60 {
		t.Errorf("request lives %d s, want 60", life)
	}
	if x.Request.Grant != h.grant.ID || x.Request.Epoch != h.grant.Epoch || x.Request.Relay != h.grant.Relay {
		t.Errorf("request names another standing: %+v", x.Request)
	}
	if n := len(p.published()); n != 1 {
		t.Errorf("published %d events, want 1", n)
	}
}

// What is not exactly the host's reply to this event is no answer, however well
// it is signed.
func TestRepliesNotBelieved(t *testing.T) {
	type forge func(t *testing.T, h *host, r nip.Request, ev *nip.Event) []*nip.Event
	ok := nip.Workspaces{Workspaces: []nip.Label{"demo"}}
	frame := func(change func(rep *nip.Reply)) forge {
		return func(t *testing.T, h *host, r nip.Request, ev *nip.Event) []*nip.Event {
			rep := h.reply(r, ev)
			rep.Outcome = ok
			change(&rep)
			a, err := nip.EncodeReply(rep)
			if err != nil {
				t.Fatal(err)
			}
			return []*nip.Event{seal(t, h.key, nip.PubKey(ev.PubKey), nip.Mailbox(r.ID), a)}
		}
	}
	tests := []struct {
		name  string
		forge forge
		why   string
	}{
		{"signed by another key", func(t *testing.T, h *host, r nip.Request, ev *nip.Event) []*nip.Event {
			rep := h.reply(r, ev)
			rep.Outcome = ok
			a, _ := nip.EncodeReply(rep)
			return []*nip.Event{seal(t, newKey(t), nip.PubKey(ev.PubKey), nip.Mailbox(r.ID), a)}
		}, "silent"},
		{"in another mailbox", func(t *testing.T, h *host, r nip.Request, ev *nip.Event) []*nip.Event {
			rep := h.reply(r, ev)
			rep.Outcome = ok
			a, _ := nip.EncodeReply(rep)
			return []*nip.Event{seal(t, h.key, nip.PubKey(ev.PubKey), nip.Mailbox(newID(t)), a)}
		}, "silent"},
		{"not a reply", func(t *testing.T, h *host, r nip.Request, ev *nip.Event) []*nip.Event {
			g := h.newGrant(nip.PubKey(ev.PubKey), nip.InvitationID(newID(t)))
			a, _ := nip.EncodeGrant(g)
			return []*nip.Event{seal(t, h.key, nip.PubKey(ev.PubKey), nip.Mailbox(r.ID), a)}
		}, "not a reply"},
		{"to another request", frame(func(rep *nip.Reply) { rep.Request = nip.RequestID(strings.Repeat("0a", 32)) }), "another request"},
		{"to another event", frame(func(rep *nip.Reply) { rep.RequestEvent = nip.EventID(strings.Repeat("0a", 32)) }), "another event"},
		{"naming another host", frame(func(rep *nip.Reply) { rep.Host = "79be667ef9dcbbac55a06295ce870b07029bfcdb2dce28d959f2815b16f81798" }), "another host"},
		{"ending later than the request", frame(func(rep *nip.Reply) { rep.ExpiresAt++ }), "other times"},
		{"older than the request", frame(func(rep *nip.Reply) { rep.IssuedAt -= 61 }), "older"},
		{"outcome of another operation", frame(func(rep *nip.Reply) { rep.Outcome = nip.Devices{} }), "does not answer"},
		{"unknown outcome", func(t *testing.T, h *host, r nip.Request, ev *nip.Event) []*nip.Event {
			rep := h.reply(r, ev)
			rep.Outcome = ok
			a, _ := nip.EncodeReply(rep)
			a.Inline = []byte(strings.Replace(string(a.Inline), `"kind":"workspaces"`, `"kind":"workspacez"`, 1))
			return []*nip.Event{seal(t, h.key, nip.PubKey(ev.PubKey), nip.Mailbox(r.ID), a)}
		}, ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				d, h, p := paired(t)
				p.host = func(ev *nip.Event) []*nip.Event {
					r, _ := h.open(ev)
					return tt.forge(t, h, r, ev)
				}
				_, err := d.Call(t.Context(), nip.WorkspaceList{})
				if !errors.Is(err, ErrNoAnswer) || !strings.Contains(err.Error(), tt.why) {
					t.Errorf("err = %v, want no answer because %q", err, tt.why)
				}
			})
		})
	}
}

// A stored reply that the device meets after the request's end says nothing new.
func TestReplyExpired(t *testing.T) {
	d, h, _ := paired(t)
	p, err := d.peer()
	if err != nil {
		t.Fatal(err)
	}
	r, err := d.prepare(t.Context(), p, nip.WorkspaceList{})
	if err != nil {
		t.Fatal(err)
	}
	rep := h.reply(r.req, r.event)
	rep.Outcome = nip.Workspaces{}
	v, err := nip.VerifyEvent(h.sealReply(rep, r.event.PubKey))
	if err != nil {
		t.Fatal(err)
	}
	// By the host's clock, of which pairing in real time taught the device what
	// it could.
	if _, err := d.verify(t.Context(), v, p, r, r.req.ExpiresAt-1); err != nil {
		t.Fatalf("in time: %v", err)
	}
	if _, err := d.verify(t.Context(), v, p, r, r.req.ExpiresAt); err == nil || !strings.Contains(err.Error(), "expired") {
		t.Errorf("after its end: %v", err)
	}
}

// Two replies: the same twice is one, different ones are a conflict, and reads
// may be answered anew.
func TestTwoReplies(t *testing.T) {
	refusal := func(c nip.Code) *nip.Refusal { return &nip.Refusal{Code: c} }
	tests := []struct {
		name string
		two  func(h *host, r nip.Request, ev *nip.Event) []*nip.Event
		want error
	}{
		{"the same event", func(h *host, r nip.Request, ev *nip.Event) []*nip.Event {
			rep := h.reply(r, ev)
			rep.Outcome = nip.Workspaces{}
			e := h.sealReply(rep, ev.PubKey)
			return []*nip.Event{e, e}
		}, nil},
		{"the same words sealed twice", func(h *host, r nip.Request, ev *nip.Event) []*nip.Event {
			rep := h.reply(r, ev)
			rep.Outcome = nip.Workspaces{}
			return []*nip.Event{h.sealReply(rep, ev.PubKey), h.sealReply(rep, ev.PubKey)}
		}, nil},
		{"outcome and refusal", func(h *host, r nip.Request, ev *nip.Event) []*nip.Event {
			a, b := h.reply(r, ev), h.reply(r, ev)
			a.Outcome, b.Refusal = nip.Workspaces{}, refusal(nip.Forbidden)
			return []*nip.Event{h.sealReply(a, ev.PubKey), h.sealReply(b, ev.PubKey)}
		}, ErrConflict},
		{"two outcomes", func(h *host, r nip.Request, ev *nip.Event) []*nip.Event {
			a, b := h.reply(r, ev), h.reply(r, ev)
			a.Outcome, b.Outcome = nip.Workspaces{}, nip.Workspaces{Workspaces: []nip.Label{"x"}}
			return []*nip.Event{h.sealReply(a, ev.PubKey), h.sealReply(b, ev.PubKey)}
		}, ErrConflict},
	}
	for _, tt := range tests {
		for _, stored := range []bool{false, true} {
			name := tt.name + "/live"
			if stored {
				name = tt.name + "/stored"
			}
			t.Run(name, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					d, h, p := paired(t)
					p.deaf = stored
					p.host = func(ev *nip.Event) []*nip.Event {
						r, _ := h.open(ev)
						return tt.two(h, r, ev)
					}
					_, err := d.Call(t.Context(), nip.WorkspaceList{})
					if !errors.Is(err, tt.want) {
						t.Errorf("err = %v, want %v", err, tt.want)
					}
				})
			})
		}
	}
}

// What a host keeps no reply of may be answered twice, and the newer answer is
// the truer; an edit of a queue is not among it.
func TestRepeatable(t *testing.T) {
	digest := nip.DigestOf(nil)
	task := nip.TaskID(newID(t))
	queue := func(revision int64) nip.Outcome {
		return nip.QueueAtRevision{Queue: nip.QueueState{Task: task, Revision: revision}, Revision: revision, QueueDigest: digest}
	}
	progress := func(n int64) nip.Outcome { return nip.ArtifactProgress{Digest: digest, Received: n} }
	request, event := nip.RequestID(newID(t)), nip.EventID(newID(t))
	record := func(res *nip.Result) nip.Outcome {
		return nip.RecordedOperation{Request: request, RequestEvent: event, Result: res}
	}
	edit := nip.TaskQueueAt{Task: task, Revision: 1, Edit: nip.QueueEdit{Action: "lease"}, QueueDigest: &digest}
	list := nip.TaskQueueAt{Task: task, Revision: 1, Edit: nip.QueueEdit{Action: "list"}}
	other := nip.QueueAtRevision{Queue: nip.QueueState{Task: task, Revision: 1}, Revision: 1, QueueDigest: nip.DigestOf([]byte("x"))}
	for _, tt := range []struct {
		name       string
		op         nip.Operation
		old, newer nip.Outcome
		want       error
	}{
		{"a recovery", nip.RequestOperation{Request: request, RequestEvent: event}, record(nil), record(&nip.Result{Refusal: &nip.Refusal{Code: nip.Stale}}), nil},
		{"a piece", nip.ArtifactPut{Digest: digest, MediaType: "image/png", Size: 9, Data: []byte{1}}, progress(1), progress(2), nil},
		{"a listing", list, queue(1), other, nil},
		{"an edit", edit, queue(1), queue(2), ErrConflict},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				d, h, p := paired(t)
				p.host = func(ev *nip.Event) []*nip.Event {
					r, _ := h.open(ev)
					first, second := h.reply(r, ev), h.reply(r, ev)
					first.Outcome, second.Outcome = tt.old, tt.newer
					first.IssuedAt--
					return []*nip.Event{h.sealReply(second, ev.PubKey), h.sealReply(first, ev.PubKey)}
				}
				p.deaf = true // both lie there when the device reads
				out, err := d.Call(t.Context(), tt.op)
				if !errors.Is(err, tt.want) {
					t.Fatalf("err = %v, want %v", err, tt.want)
				}
				if err == nil && !sameResult(nip.Reply{Outcome: out}, nip.Reply{Outcome: tt.newer}) {
					t.Errorf("believed %+v", out)
				}
			})
		})
	}
}

// A relay's OK is no answer. The reply that it kept back is found by the read
// of the next try, and the request is not published again for it.
func TestSilenceThenStoredReply(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, _, p := paired(t)
		p.deaf = true
		x, err := d.Exchange(t.Context(), nip.WorkspaceList{})
		if err != nil {
			t.Fatal(err)
		}
		if x.Tries != 2 || len(p.published()) != 1 {
			t.Errorf("%d tries, %d publications; want 2 and 1", x.Tries, len(p.published()))
		}
	})
}

// Retries carry the same signed bytes, and end with the request.
func TestRetriesAreTheSameBytes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, _, p := paired(t)
		p.host = nil
		began := time.Now()
		_, err := d.Call(t.Context(), nip.WorkspaceList{})
		if !errors.Is(err, ErrNoAnswer) || !strings.Contains(err.Error(), "host is silent") {
			t.Fatalf("err = %v", err)
		}
		if took := time.Since(began); took < 55*time.Second || took > 61*time.Second {
			t.Errorf("gave up after %v, want the request's 60 s", took)
		}
		sent := p.published()
		if len(sent) < 10 || len(sent) > 16 {
			t.Errorf("%d publications in 60 s, want one each 4 s", len(sent))
		}
		for _, ev := range sent {
			if ev.ID != sent[0].ID || ev.Sig != sent[0].Sig {
				t.Fatal("a retry was another event")
			}
		}
	})
}

// A dropped connection before the OK is tried again; a relay's own no is not.
func TestPublishErrors(t *testing.T) {
	t.Run("drop before OK, request lost", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			d, _, p := paired(t)
			p.publish = func(n int, _ *nip.Event) (bool, error) {
				if n == 1 {
					return false, relay.ErrUnconfirmed
				}
				return true, nil
			}
			x, err := d.Exchange(t.Context(), nip.WorkspaceList{})
			if err != nil || x.Tries != 2 || len(p.published()) != 2 {
				t.Errorf("err %v, %d tries, %d publications", err, x.Tries, len(p.published()))
			}
		})
	})
	t.Run("drop before OK, request taken and answered", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			d, _, p := paired(t)
			p.deaf = true
			p.publish = func(int, *nip.Event) (bool, error) { return true, relay.ErrUnconfirmed }
			x, err := d.Exchange(t.Context(), nip.WorkspaceList{})
			if err != nil || x.Tries != 2 || len(p.published()) != 1 {
				t.Errorf("err %v, %d tries, %d publications; the read must find the reply", err, x.Tries, len(p.published()))
			}
		})
	})
	for _, words := range []string{"blocked: not here", "restricted: members only", "invalid: kind", "error: event too large", "no prefix"} {
		t.Run("OK false "+words, func(t *testing.T) {
			d, _, p := paired(t)
			p.publish = func(int, *nip.Event) (bool, error) {
				return false, relay.NewRefused(paperURL, words)
			}
			_, err := d.Call(t.Context(), nip.WorkspaceList{})
			var refused *relay.RefusedError
			if !errors.As(err, &refused) || refused.Message == "" || !strings.Contains(words, refused.Message) {
				t.Errorf("err = %v, want the relay's words %q", err, words)
			}
			if errors.Is(err, ErrNoAnswer) {
				t.Error("a relay's no is not a silence of the host")
			}
		})
	}
}

// A signed refusal is a typed error with its code.
func TestRefused(t *testing.T) {
	d, h, _ := paired(t)
	h.op = func(nip.Request) (nip.Outcome, *nip.Refusal) {
		return nil, &nip.Refusal{Code: nip.MissingRight, Missing: nip.AccessRead}
	}
	_, err := d.Call(t.Context(), nip.DeviceList{})
	var refused *Refused
	if !errors.As(err, &refused) || refused.Code != nip.MissingRight || refused.Missing != nip.AccessRead || refused.Op != "device.list" {
		t.Fatalf("err = %v", err)
	}
	h.op = func(nip.Request) (nip.Outcome, *nip.Refusal) { return nil, &nip.Refusal{Code: nip.Revoked} }
	if _, err = d.Call(t.Context(), nip.DeviceList{}); !errors.As(err, &refused) || refused.Code != nip.Revoked {
		t.Errorf("revoked grant: %v", err)
	}
}

// A relay that floods the mailbox of a reply is left.
func TestFlood(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, h, p := paired(t)
		p.host = func(ev *nip.Event) []*nip.Event {
			r, _ := h.open(ev)
			rep := h.reply(r, ev)
			rep.Outcome, rep.RequestEvent = nip.Workspaces{}, nip.EventID(strings.Repeat("0a", 32))
			for range maxCandidates + 1 {
				p.put(h.sealReply(rep, ev.PubKey), true)
			}
			return nil
		}
		if _, err := d.Call(t.Context(), nip.WorkspaceList{}); !errors.Is(err, ErrNoAnswer) || !strings.Contains(err.Error(), "floods") {
			t.Errorf("err = %v", err)
		}
	})
}

// The device writes the host's time, whichever way its own clock is wrong, once
// it has seen a signed time; and finds back when its clock is set right.
func TestWrongClock(t *testing.T) {
	for _, tt := range []struct {
		name   string
		ahead  time.Duration
		learnt func(d *Device, h *host)
	}{
		{"50 s behind, learnt from a reply", -50 * time.Second, nil},
		{"20 s ahead, learnt from a reply", 20 * time.Second, nil},
		{"an hour behind, learnt from a presence", -time.Hour, func(d *Device, h *host) { seePresence(d, h, false) }},
		{"an hour ahead, learnt from a live presence", time.Hour, func(d *Device, h *host) { seePresence(d, h, true) }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				d, h, _ := paired(t)
				d.o.Now = func() time.Time { return time.Now().Add(tt.ahead) }
				d.clock = clock{}
				if tt.learnt != nil {
					tt.learnt(d, h)
				} else if _, err := d.Call(t.Context(), nip.WorkspaceList{}); err != nil {
					t.Fatal(err)
				}
				x, err := d.Exchange(t.Context(), nip.WorkspaceList{})
				if err != nil {
					t.Fatal(err)
				}
				if off := x.Request.IssuedAt - time.Now().Unix(); off < -2 || off > 2 {
					t.Errorf("issued_at is %d s off the host's time", off)
				}
				if got := d.ClockOffset() - tt.ahead; got < -2*time.Second || got > 2*time.Second {
					t.Errorf("reports %v, want %v", d.ClockOffset(), tt.ahead)
				}
				// Corrected: at most one request is lost to the old offset.
				d.o.Now = time.Now
				if _, err = d.Call(t.Context(), nip.WorkspaceList{}); err != nil {
					_, err = d.Call(t.Context(), nip.WorkspaceList{})
				}
				if err != nil {
					t.Errorf("after the clock was corrected: %v", err)
				}
				if x, err := d.Exchange(t.Context(), nip.WorkspaceList{}); err != nil || x.Tries != 1 {
					t.Errorf("the old offset came back: %v, %d tries", err, x.Tries)
				}
			})
		})
	}
}

func seePresence(d *Device, h *host, live bool) {
	m, err := d.mailboxes()
	if err != nil {
		h.t.Fatal(err)
	}
	m.takePresence(nip.Presence{Host: h.key.Public(), Owner: h.owner.Public(), Generation: 1, ObservedAt: h.now().Unix()}, live)
}

// A grant that has ended makes no request, and a request never outlives it.
func TestGrantEnds(t *testing.T) {
	d, h, p := paired(t)
	// The host's clock, as pairing in real time taught it to the device.
	at := func(host int64) func() time.Time {
		return func() time.Time { return time.Unix(host, 0).Add(d.ClockOffset()) }
	}
	d.o.Now = at(h.grant.ExpiresAt - 10)
	pr, err := d.peer()
	if err != nil {
		t.Fatal(err)
	}
	r, err := d.prepare(t.Context(), pr, nip.WorkspaceList{})
	if err != nil || r.req.ExpiresAt != h.grant.ExpiresAt {
		t.Errorf("near the end: %v, expires %d", err, r.req.ExpiresAt)
	}
	d.o.Now = at(h.grant.ExpiresAt)
	if _, err := d.Call(t.Context(), nip.WorkspaceList{}); !errors.Is(err, ErrGrantExpired) {
		t.Errorf("err = %v", err)
	}
	if len(p.published()) != 0 {
		t.Error("an expired grant sent something")
	}
}

func TestNotPaired(t *testing.T) {
	d := opened(t, t.TempDir()+"/p", &paper{})
	if _, err := d.Call(t.Context(), nip.WorkspaceList{}); !errors.Is(err, ErrNotPaired) {
		t.Errorf("err = %v", err)
	}
}
