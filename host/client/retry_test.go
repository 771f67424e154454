package client

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rs/zerolog"

	"holdfast/nip"
	"holdfast/relay"
	"holdfast/relay/relaytest"
)

// A relay that is short of something is asked again, more and more rarely, with
// the same bytes; a command outlives the request under its own ID.
func TestPassingRefusals(t *testing.T) {
	for _, words := range []string{"rate-limited: slow down", "error: disk"} {
		t.Run(words, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				d, _, p := paired(t)
				p.publish = func(n int, _ *nip.Event) (bool, error) {
					if n <= 3 {
						return false, relay.NewRefused(paperURL, words)
					}
					return true, nil
				}
				began := time.Now()
				x, err := d.Exchange(t.Context(), nip.WorkspaceList{})
				if err != nil || x.Tries != 4 {
					t.Fatalf("err %v, %d tries", err, x.Tries)
				}
				if took := time.Since(began); took < 7*time.Second || took > 9*time.Second {
					t.Errorf("took %v, want 1 + 2 + 4 s", took)
				}
				for _, ev := range p.published() {
					if ev.ID != x.Event.ID {
						t.Error("a retry was another event")
					}
				}
			})
		})
		t.Run(words+" all along", func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				d, h, p := paired(t)
				d.pace.nudge = 30
				ids := map[string]bool{}
				p.publish = func(_ int, ev *nip.Event) (bool, error) {
					if r, ok := h.open(ev); !ok {
						t.Error("a relay that is short of something was given a nudge")
					} else if op, ok := r.Op.(nip.TaskCommand); ok {
						ids[string(op.Command.ID)] = true
					}
					return false, relay.NewRefused(paperURL, words)
				}
				began := time.Now()
				_, err := d.Call(t.Context(), nip.WorkspaceList{})
				var refused *relay.RefusedError
				if !errors.Is(err, ErrNoAnswer) || !errors.As(err, &refused) || refused.Message != words {
					t.Errorf("err = %v, want no answer, and the relay's words", err)
				}
				if took := time.Since(began); took < 55*time.Second || took > 61*time.Second {
					t.Errorf("gave up after %v, want the request's life", took)
				}
				if n := len(p.published()); n > 8 {
					t.Errorf("asked %d times in 60 s", n)
				}
				ctx, cancel := context.WithTimeout(t.Context(), 130*time.Second)
				defer cancel()
				n := len(p.published())
				c, _, err := d.Command(ctx, command(t, nip.Send, "go"))
				if !errors.Is(err, ErrNoAnswer) || len(ids) != 1 || !ids[string(c.ID)] {
					t.Errorf("err %v, commands %v, want only %s", err, ids, c.ID)
				}
				requests := map[string]bool{}
				for _, ev := range p.published()[n:] {
					requests[ev.ID] = true
				}
				if len(requests) != 3 {
					t.Errorf("%d requests in 130 s, want one each 60 s", len(requests))
				}
				if rows, err := d.Outbox(); err != nil || len(rows) != 1 || !strings.Contains(rows[0].LastError, words) {
					t.Errorf("outbox %+v, %v", rows, err)
				}
			})
		})
	}
}

// Nothing overtakes the create of its task: the host knows no task before it.
func TestCreateGoesFirst(t *testing.T) {
	silence := func(t *testing.T) (*Device, *createHost, *paper, nip.TaskID, *[]string) {
		d, h, p := paired(t)
		c := &createHost{tasks: map[string]bool{}, mute: true}
		var order []string
		h.op = func(r nip.Request) (nip.Outcome, *nip.Refusal) {
			switch op := r.Op.(type) {
			case nip.TaskCreate:
				order = append(order, "create")
			case nip.TaskCommand:
				order = append(order, op.Command.Text)
				if !c.tasks[string(op.Command.Task)] {
					return nil, &nip.Refusal{Code: nip.Forbidden}
				}
				return dispatched(r), nil
			}
			return c.op(r)
		}
		p.publish = func(int, *nip.Event) (bool, error) { return false, relay.ErrUnconfirmed }
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
		defer cancel()
		id, err := d.Create(ctx, wish)
		if !errors.Is(err, ErrNoAnswer) {
			t.Fatal(err)
		}
		p.publish = nil
		return d, c, p, id, &order
	}
	give := func(t *testing.T, d *Device, id nip.TaskID, action nip.Action, text string) error {
		c := command(t, action, text)
		c.Task = id
		ctx, cancel := context.WithTimeout(t.Context(), 300*time.Second)
		defer cancel()
		_, _, err := d.Command(ctx, c)
		return err
	}
	for _, action := range []nip.Action{nip.Queue, nip.Interrupt} {
		t.Run(string(action)+" after the create", func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				d, c, p, id, order := silence(t)
				c.mute = false
				if err := give(t, reopen(t, d, p), id, action, "word"); err != nil {
					t.Fatal(err)
				}
				if want := []string{"create", "word"}; !slices.Equal(*order, want) {
					t.Errorf("order %q, want %q", *order, want)
				}
				if rows, _ := d.Outbox(); len(rows) != 0 {
					t.Errorf("outbox %+v", rows)
				}
			})
		})
	}
	t.Run("made without an answer", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			d, c, _, id, order := silence(t)
			c.make = true
			if err := give(t, d, id, nip.Queue, "word"); err != nil {
				t.Fatal(err)
			}
			if n := len(*order); (*order)[n-1] != "word" || slices.Index(*order, "word") != n-1 {
				t.Errorf("order %q", *order)
			}
		})
	})
	t.Run("signed away", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			d, c, _, id, order := silence(t)
			time.Sleep(130 * time.Second)
			err := give(t, d, id, nip.Queue, "word")
			if !errors.Is(err, ErrNoAnswer) || !errors.Is(err, errNotMade) || slices.Contains(*order, "word") {
				t.Errorf("err %v, order %q", err, *order)
			}
			if rows, _ := d.Outbox(); len(rows) != 2 || rows[0].State != "unknown" || rows[1].State != "waiting" {
				t.Errorf("outbox %+v", rows)
			}
			// The outbox then makes the task anew, and the host says no to the words
			// for the one that never was: nothing waits for ever.
			c.mute = false
			if err := d.Resend(t.Context()); err != nil {
				t.Fatal(err)
			}
			if rows, _ := d.Outbox(); len(rows) != 0 || len(c.tasks) != 1 {
				t.Errorf("outbox %+v, tasks %v", rows, c.tasks)
			}
			list, err := d.Commands(id)
			if err != nil || len(list) != 1 || list[0].State != "refused" || list[0].Reason != nip.Forbidden {
				t.Errorf("commands %+v, %v", list, err)
			}
		})
	})
	t.Run("silence holds both", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			d, _, p, id, order := silence(t)
			p.host = nil
			if err := give(t, d, id, nip.Queue, "word"); !errors.Is(err, ErrNoAnswer) || slices.Contains(*order, "word") {
				t.Errorf("err %v, order %q", err, *order)
			}
		})
	})
}

// waiting is a link that has failed once and waits before it dials again.
type waitingLink struct {
	*paperLink
	health relay.Health
}

func (l waitingLink) Health() relay.Health { return l.health }

// A call does not wait for a connection's next turn: a person waits for it. That
// holds for an owner, who has no grant, as for a device.
func TestCallDialsAtOnce(t *testing.T) {
	for name, profile := range map[string]func(t *testing.T) (*Device, *paper){
		"device":                func(t *testing.T) (*Device, *paper) { d, _, p := paired(t); return d, p },
		"owner":                 func(t *testing.T) (*Device, *paper) { d, _, p, _ := owning(t, false); return d, p },
		"owner with a key afar": func(t *testing.T) (*Device, *paper) { d, _, p, _ := owning(t, true); return d, p },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				d, p := profile(t)
				dials := 0
				back := time.Now().Add(20 * time.Second) // the relay is away until then
				d.dial = func(o relay.Options) relay.Link {
					dials++
					l := p.dial(o).(*paperLink)
					if time.Now().After(back) {
						return l
					}
					silent := (&paper{publish: func(int, *nip.Event) (bool, error) { return false, relay.ErrUnconfirmed }}).dial(o).(*paperLink)
					return waitingLink{silent, relay.Health{URL: o.URL, State: relay.StateConnecting, LastError: "relay not reached"}}
				}
				d.link = nil
				began := time.Now()
				if _, err := d.Call(t.Context(), nip.WorkspaceList{}); err != nil {
					t.Fatal(err)
				}
				if took := time.Since(began); took > 26*time.Second {
					t.Errorf("answered %v after the relay was back", took-20*time.Second)
				}
				if dials > 4 {
					t.Errorf("dialled %d times in 24 s", dials)
				}
				// The next call goes over the open connection.
				n := dials
				if _, err := d.Call(t.Context(), nip.WorkspaceList{}); err != nil || dials != n {
					t.Errorf("err %v, %d more dials", err, dials-n)
				}
			})
		})
	}
}

// Whoever waits for a call is let go when its context ends, whatever it waits
// for, and nothing runs on.
func TestCancelled(t *testing.T) {
	for _, tt := range []struct {
		name string
		call func(ctx context.Context, d *Device) error
	}{
		{"call", func(ctx context.Context, d *Device) error { _, err := d.Call(ctx, nip.WorkspaceList{}); return err }},
		{"command", func(ctx context.Context, d *Device) error {
			_, _, err := d.Command(ctx, command(t, nip.Queue, "x"))
			return err
		}},
		{"create", func(ctx context.Context, d *Device) error { _, err := d.Create(ctx, wish); return err }},
		{"resend", func(ctx context.Context, d *Device) error { return d.Resend(ctx) }},
		{"refresh", func(ctx context.Context, d *Device) error { return d.Refresh(ctx) }},
		{"pages", func(ctx context.Context, d *Device) error { return d.RefreshPages(ctx) }},
		{"enrollments", func(ctx context.Context, d *Device) error { _, err := d.Enrollments(ctx); return err }},
		{"pair", func(ctx context.Context, d *Device) error {
			h := newHost(t, paperURL)
			_, err := d.Pair(ctx, h.code(h.invitation()))
			return err
		}},
		{"watch", func(ctx context.Context, d *Device) error {
			updates, err := d.Watch(ctx)
			if err != nil {
				return err
			}
			for range updates {
			}
			return ctx.Err()
		}},
	} {
		for _, relayThere := range []bool{true, false} {
			name := tt.name + "/silent host"
			if !relayThere {
				name = tt.name + "/no relay"
			}
			t.Run(name, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					d, _, p := paired(t)
					p.host = nil
					if tt.name == "resend" {
						ctx, cancel := context.WithTimeout(t.Context(), time.Second)
						d.Command(ctx, command(t, nip.Queue, "x"))
						cancel()
					}
					if !relayThere {
						d.dial = func(o relay.Options) relay.Link { return noRelay{p.dial(o).(*paperLink)} }
						d.link = nil
					}
					ctx, cancel := context.WithCancel(t.Context())
					time.AfterFunc(5*time.Second, cancel)
					began := time.Now()
					err := tt.call(ctx, d)
					// Over a relay that is there, a read of the store ends by itself.
					reads := tt.name == "refresh" || tt.name == "pages" || tt.name == "enrollments"
					if took := time.Since(began); took > 6*time.Second || err == nil && !(reads && relayThere) {
						t.Errorf("err %v after %v", err, took)
					}
				})
			})
		}
	}
}

// noRelay is a link that never connects.
type noRelay struct{ *paperLink }

func (l noRelay) Health() relay.Health {
	return relay.Health{URL: l.o.URL, State: relay.StateConnecting}
}

func (l noRelay) Publish(ctx context.Context, _ *nip.Event) error {
	<-ctx.Done()
	return ctx.Err()
}

func (l noRelay) Subscribe(id string, _ func(now time.Time) []nip.Filter) *relay.Subscription {
	l.p.mu.Lock()
	defer l.p.mu.Unlock()
	sub, feed := relay.NewSubscription(func() {}, func() {})
	l.subs[id] = &paperSub{feed: feed} // matches nothing; ends with the link
	return sub
}

// What waited when the process ended is sent by the next one that watches: when
// the host shows itself again, and when it had shown itself just before.
func TestResendAfterRestart(t *testing.T) {
	for _, tt := range []struct {
		name string
		end  func(t *testing.T, d *Device, h *host, p *paper) // how the first process ended
		wake bool                                             // by a new presence
		want int
	}{
		{"after a silence", func(t *testing.T, d *Device, h *host, p *paper) { failed(t, d) }, true, 1},
		{"killed before it noted a try", func(t *testing.T, d *Device, h *host, p *paper) {
			unsent(t, d)
			time.Sleep(61 * time.Second)
		}, true, 1},
		{"killed between a presence and the resend", func(t *testing.T, d *Device, h *host, p *paper) {
			failed(t, d)
			time.Sleep(time.Second)
			seePresence(d, h, true)
		}, false, 1},
		{"the presence was before the silence", func(t *testing.T, d *Device, h *host, p *paper) {
			seePresence(d, h, true)
			time.Sleep(2 * time.Second)
			failed(t, d)
		}, false, 0},
		{"under way in another process", func(t *testing.T, d *Device, h *host, p *paper) { unsent(t, d) }, true, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				d, h, p := paired(t)
				p.host = nil
				tt.end(t, d, h, p)
				d.Close()
				var got []nip.CommandID
				h.op = func(r nip.Request) (nip.Outcome, *nip.Refusal) {
					got = append(got, r.Op.(nip.TaskCommand).Command.ID)
					return dispatched(r), nil
				}
				p.mu.Lock()
				p.host = h.serve
				p.mu.Unlock()
				n := reopen(t, d, p)
				rows, err := n.Outbox()
				if err != nil || len(rows) != 1 {
					t.Fatalf("outbox %+v, %v", rows, err)
				}
				ctx, cancel := context.WithCancel(t.Context())
				updates, err := n.Watch(ctx)
				if err != nil {
					t.Fatal(err)
				}
				go func() {
					for range updates {
					}
				}()
				synctest.Wait()
				if tt.wake {
					if len(got) != 0 {
						t.Error("sent before the host showed itself")
					}
					time.Sleep(time.Second)
					p.add(h.sealPresence(n.PubKey(), 2, time.Now().Unix()))
				}
				time.Sleep(5 * time.Second)
				cancel()
				synctest.Wait()
				if len(got) != tt.want || len(got) == 1 && string(got[0]) != rows[0].ID {
					t.Errorf("sent %v, want %d times %s", got, tt.want, rows[0].ID)
				}
			})
		})
	}
}

// failed gives a command to a silent host.
func failed(t *testing.T, d *Device) {
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
	defer cancel()
	if _, _, err := d.Command(ctx, command(t, nip.Send, "go")); !errors.Is(err, ErrNoAnswer) {
		t.Fatal(err)
	}
}

// unsent leaves a command as a process does that was killed at its first byte.
func unsent(t *testing.T, d *Device) {
	c := command(t, nip.Send, "go")
	c.ID, c.IssuedAt = nip.CommandID(newID(t)), time.Now().Unix()
	g, _ := d.Grant()
	if _, err := d.store.addRow(row{Host: g.Host, Op: nip.TaskCommand{Command: c}, Since: d.now(), State: stateWaiting}); err != nil {
		t.Fatal(err)
	}
}

// A real connection: a call that begins while the link waits for its next turn
// is not held up by it.
func TestRelinkOverSockets(t *testing.T) {
	d, h, _ := paired(t)
	url := realRelay(t)
	h.url = url
	broken := true
	d.dial = func(o relay.Options) relay.Link {
		o.URL = url
		if broken {
			o.URL = "ws://127.0.0.1:1/"
		}
		return relay.Dial(o)
	}
	d.link = nil
	link := relay.Dial(relay.Options{URL: "ws://127.0.0.1:1/", Key: d.key, Log: zerolog.Nop(), Now: time.Now})
	d.link = link
	relaytest.Eventually(t, "the dead link has failed", func() bool { return link.Health().LastError != "" })
	broken = false
	if _, err := d.peer(); err != nil {
		t.Fatal(err)
	}
	if d.link == link || link.Health().State != relay.StateClosed {
		t.Error("the call waits for the old link's turn")
	}
}
