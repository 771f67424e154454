package client

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"holdfast/internal/commit"
	"holdfast/nip"
	"holdfast/relay"
)

// A command is on disk before its first byte leaves, and leaves the disk with
// the host's signature only.
func TestCommandIsDurableFirst(t *testing.T) {
	d, h, p := paired(t)
	var before []OutboxRow
	h.op = func(r nip.Request) (nip.Outcome, *nip.Refusal) { return dispatched(r), nil }
	p.publish = func(int, *nip.Event) (bool, error) {
		rows, err := d.Outbox()
		if err != nil {
			t.Error(err)
		}
		before = rows
		return true, nil
	}
	c, out, err := d.Command(t.Context(), command(t, nip.Send, "go on"))
	if err != nil {
		t.Fatal(err)
	}
	if len(before) != 1 || before[0].ID != string(c.ID) || before[0].Kind != "command" || before[0].Action != nip.Send {
		t.Errorf("outbox at the first send: %+v", before)
	}
	if out.(nip.Dispatched).Reference != string(c.Task) {
		t.Errorf("outcome %+v", out)
	}
	if rows, err := d.Outbox(); err != nil || len(rows) != 0 {
		t.Errorf("outbox after: %+v, %v", rows, err)
	}
}

// Every signed refusal is the end of a command.
func TestRefusalIsFinal(t *testing.T) {
	d, h, _ := paired(t)
	for _, code := range []nip.Code{nip.Stale, nip.Conflict, nip.Expired, nip.Revoked, nip.Forbidden, nip.Bounds, nip.Unavailable, nip.Unsupported} {
		h.op = func(nip.Request) (nip.Outcome, *nip.Refusal) { return nil, &nip.Refusal{Code: code} }
		_, _, err := d.Command(t.Context(), command(t, nip.Answer, "yes"))
		var refused *Refused
		if !errors.As(err, &refused) || refused.Code != code {
			t.Errorf("%s: err = %v", code, err)
		}
		if rows, _ := d.Outbox(); len(rows) != 0 {
			t.Errorf("%s: still waits: %+v", code, rows)
		}
	}
}

// Silence and relay trouble keep a command; each try is a new request with the
// same command.
func TestSilenceKeepsCommand(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, h, p := paired(t)
		var commands []nip.CommandID
		requests := map[nip.RequestID]bool{}
		h.op = func(r nip.Request) (nip.Outcome, *nip.Refusal) {
			commands = append(commands, r.Op.(nip.TaskCommand).Command.ID)
			requests[r.ID] = true
			if len(requests) < 3 {
				return nil, nil
			}
			return dispatched(r), nil
		}
		ctx, cancel := context.WithTimeout(t.Context(), 90*time.Second)
		defer cancel()
		c, _, err := d.Command(ctx, command(t, nip.Queue, "later"))
		if !errors.Is(err, ErrNoAnswer) || len(requests) != 2 {
			t.Fatalf("err %v after %d requests, want silence after 2", err, len(requests))
		}
		rows, err := d.Outbox()
		if err != nil || len(rows) != 1 || rows[0].State != "waiting" || rows[0].Tries != 2 || rows[0].LastError == "" {
			t.Fatalf("outbox: %+v, %v", rows, err)
		}
		p.publish = func(int, *nip.Event) (bool, error) { return false, relay.NewRefused(paperURL, "blocked: no") }
		var refused *relay.RefusedError
		if err := d.Resend(t.Context()); !errors.As(err, &refused) {
			t.Errorf("resend: %v, want the relay's no", err)
		}
		if rows, _ := d.Outbox(); len(rows) != 1 {
			t.Error("a relay's no ended a command")
		}
		p.publish = nil
		if err := reopen(t, d, p).Resend(t.Context()); err != nil {
			t.Fatal(err)
		}
		if slices.ContainsFunc(commands, func(x nip.CommandID) bool { return x != c.ID }) || len(requests) != 3 {
			t.Errorf("commands %v in %d requests, want always %s", commands, len(requests), c.ID)
		}
		if rows, _ := d.Outbox(); len(rows) != 0 {
			t.Errorf("outbox after the receipt: %+v", rows)
		}
	})
}

// The same ID with the same words is the same command, with others a conflict.
func TestSameCommandAgain(t *testing.T) {
	d, _, p := paired(t)
	p.publish = func(int, *nip.Event) (bool, error) { return false, relay.NewRefused(paperURL, "blocked: no") }
	c := command(t, nip.Send, "once")
	c.ID, c.IssuedAt = nip.CommandID(newID(t)), time.Now().Unix()
	for range 2 {
		d.Command(t.Context(), c)
	}
	if rows, err := d.Outbox(); err != nil || len(rows) != 1 {
		t.Errorf("outbox: %+v, %v", rows, err)
	}
	c.Text = "twice"
	if _, _, err := d.Command(t.Context(), c); !errors.Is(err, ErrConflict) {
		t.Errorf("err = %v", err)
	}
	if ok, err := d.Drop(string(c.ID)); !ok || err != nil {
		t.Errorf("drop: %v, %v", ok, err)
	}
	if ok, err := d.Drop(string(c.ID)); ok || err != nil {
		t.Errorf("drop again: %v, %v", ok, err)
	}
}

// Commands of a task arrive in the order they were given; an interrupt does not wait.
func TestOrder(t *testing.T) {
	d, h, p := paired(t)
	var got []string
	h.op = func(r nip.Request) (nip.Outcome, *nip.Refusal) {
		got = append(got, r.Op.(nip.TaskCommand).Command.Text)
		return dispatched(r), nil
	}
	p.publish = func(int, *nip.Event) (bool, error) { return false, relay.NewRefused(paperURL, "blocked: no") }
	d.Command(t.Context(), command(t, nip.Queue, "first"))
	d.Command(t.Context(), command(t, nip.Queue, "second"))
	p.publish = nil
	if _, _, err := d.Command(t.Context(), command(t, nip.Interrupt, "stop")); err != nil {
		t.Fatal(err)
	}
	if _, _, err := d.Command(t.Context(), command(t, nip.Queue, "third")); err != nil {
		t.Fatal(err)
	}
	if want := []string{"stop", "first", "second", "third"}; !slices.Equal(got, want) {
		t.Errorf("arrived %q, want %q", got, want)
	}
}

// Rows of a former host are never sent to the next one.
func TestForeignRows(t *testing.T) {
	d, _, p := paired(t)
	p.publish = func(int, *nip.Event) (bool, error) { return false, relay.NewRefused(paperURL, "blocked: no") }
	d.Command(t.Context(), command(t, nip.Send, "for the first host"))
	p.publish = nil
	other := newHost(t, paperURL)
	p.host = other.serve
	if _, err := d.Pair(t.Context(), other.code(other.invitation())); err != nil {
		t.Fatal(err)
	}
	n := len(other.seen)
	if err := d.Resend(t.Context()); err != nil {
		t.Fatal(err)
	}
	if len(other.seen) != n {
		t.Error("the second host got a command of the first")
	}
	if rows, _ := d.Outbox(); len(rows) != 1 || !rows[0].Foreign {
		t.Errorf("outbox: %+v", rows)
	}
}

// A profile in use elsewhere is ErrBusy after a bounded wait.
func TestBusy(t *testing.T) {
	d, _, p := paired(t)
	db, err := commit.Open(d.store.path, commit.Options{Kind: "holdfast-device", Version: 1})
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	began := time.Now()
	if _, _, err := d.Command(t.Context(), command(t, nip.Send, "x")); !errors.Is(err, ErrBusy) {
		t.Errorf("err = %v", err)
	}
	if took := time.Since(began); took > 20*time.Second {
		t.Errorf("waited %v", took)
	}
	if len(p.published()) != 0 {
		t.Error("sent what is not on disk")
	}
}

// create answers creates and reads by a table of what the host knows.
type createHost struct {
	tasks   map[string]bool
	creates []nip.RequestID
	mute    bool      // takes creates and says nothing
	make    bool      // what a muted create does
	read    *nip.Code // the refusal of reads; nil answers truthfully
}

func (c *createHost) op(r nip.Request) (nip.Outcome, *nip.Refusal) {
	switch op := r.Op.(type) {
	case nip.TaskCreate:
		c.creates = append(c.creates, r.ID)
		if !c.mute || c.make {
			c.tasks[string(r.ID)] = true
		}
		if c.mute {
			return nil, nil
		}
		return dispatched(r), nil
	case nip.TaskRead:
		if c.read != nil {
			if *c.read == "" {
				return nil, nil
			}
			return nil, &nip.Refusal{Code: *c.read}
		}
		if !c.tasks[op.Query.Task] {
			return nil, &nip.Refusal{Code: nip.Forbidden}
		}
		return pageOf(op.Query), nil
	}
	return nil, &nip.Refusal{Code: nip.Unsupported}
}

func pageOf(q nip.ReadQuery) nip.TaskPage {
	return nip.TaskPage{Task: nip.Page{
		Scope: nip.Scope{Workspace: q.Workspace, Task: q.Task, Revision: 1, IntentDigest: nip.DigestOf(nil)},
		Title: "t", Prompt: "p", Phase: nip.PhaseQueued, Execution: "none", Verification: "none", Integration: "none",
		Termination: "none", Delivery: "none", Cleanup: "none", CostStatus: "unknown", Evidence: nip.Evidence{State: "none"},
	}}
}

var wish = nip.TaskCreate{Title: "t", Prompt: "p", Workspace: "demo"}

func TestCreate(t *testing.T) {
	start := func(t *testing.T) (*Device, *createHost, *paper) {
		d, h, p := paired(t)
		c := &createHost{tasks: map[string]bool{}}
		h.op = c.op
		return d, c, p
	}
	t.Run("answered", func(t *testing.T) {
		d, c, _ := start(t)
		id, err := d.Create(t.Context(), wish)
		if err != nil || len(c.creates) != 1 || string(id) != string(c.creates[0]) {
			t.Fatalf("%s, %v", id, err)
		}
		if rows, _ := d.Outbox(); len(rows) != 0 {
			t.Errorf("outbox: %+v", rows)
		}
	})
	t.Run("made without an answer is found by the read", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			d, c, _ := start(t)
			c.mute, c.make = true, true
			id, err := d.Create(t.Context(), wish)
			if err != nil || len(c.creates) != 1 || string(id) != string(c.creates[0]) {
				t.Fatalf("%s, %v, creates %v", id, err, c.creates)
			}
			if rows, _ := d.Outbox(); len(rows) != 0 {
				t.Errorf("outbox: %+v", rows)
			}
		})
	})
	t.Run("absent is minted anew only when signed late enough", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			d, c, p := start(t)
			c.mute = true
			id, err := d.Create(t.Context(), wish)
			if !errors.Is(err, ErrNoAnswer) || id == "" {
				t.Fatalf("%s, %v", id, err)
			}
			c.mute = false
			if err := d.Resend(t.Context()); !errors.Is(err, ErrNoAnswer) {
				t.Errorf("too early: %v", err)
			}
			if len(c.creates) != 1 {
				t.Fatal("resent under a new ID while the first could still be under way")
			}
			rows, _ := d.Outbox()
			if len(rows) != 1 || rows[0].State != "unknown" || rows[0].ID != string(id) {
				t.Fatalf("outbox: %+v", rows)
			}
			time.Sleep(61 * time.Second)
			if err := reopen(t, d, p).Resend(t.Context()); err != nil {
				t.Fatal(err)
			}
			if len(c.creates) != 2 || len(c.tasks) != 1 {
				t.Errorf("creates %v, tasks %v", c.creates, c.tasks)
			}
			if rows, _ := d.Outbox(); len(rows) != 0 {
				t.Errorf("outbox: %+v", rows)
			}
		})
	})
	for _, read := range []nip.Code{"", nip.MissingRight, nip.Unavailable} {
		t.Run("never anew when the read says "+string(read), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				d, c, _ := start(t)
				c.mute, c.read = true, &read
				if read == nip.MissingRight {
					read = nip.Unavailable // a refusal without an argument will do
				}
				d.Create(t.Context(), wish)
				time.Sleep(200 * time.Second)
				d.Resend(t.Context())
				if len(c.creates) != 1 {
					t.Errorf("creates %v", c.creates)
				}
				if rows, _ := d.Outbox(); len(rows) != 1 || rows[0].State != "unknown" {
					t.Errorf("outbox: %+v", rows)
				}
			})
		})
	}
	t.Run("a restart inside the request's life sends the same bytes", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			d, c, p := start(t)
			p.publish = func(n int, _ *nip.Event) (bool, error) { return n > 1, nil }
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
			defer cancel()
			id, err := d.Create(ctx, wish)
			if !errors.Is(err, ErrNoAnswer) {
				t.Fatal(err)
			}
			if err := reopen(t, d, p).Resend(t.Context()); err != nil {
				t.Fatal(err)
			}
			sent := p.published()
			if len(c.creates) != 1 || string(c.creates[0]) != string(id) || sent[0].ID != sent[1].ID {
				t.Errorf("creates %v of %s", c.creates, id)
			}
		})
	})
	t.Run("two processes replace it once", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			d, c, p := start(t)
			c.mute = true
			d.Create(t.Context(), wish)
			c.mute = false
			time.Sleep(61 * time.Second)
			rows, err := d.store.rows()
			if err != nil || len(rows) != 1 {
				t.Fatal(rows, err)
			}
			other := reopen(t, d, p)
			pr, _ := d.peer()
			c.mute = true
			if _, err := other.replaceCreate(t.Context(), pr, rows[0]); !errors.Is(err, ErrNoAnswer) {
				t.Fatal(err)
			}
			c.mute = false
			if _, err := d.replaceCreate(t.Context(), pr, rows[0]); !errors.Is(err, errGone) {
				t.Errorf("the second, while the first waits: %v", err)
			}
			time.Sleep(61 * time.Second)
			if err := other.Resend(t.Context()); err != nil {
				t.Fatal(err)
			}
			if _, err := d.replaceCreate(t.Context(), pr, rows[0]); !errors.Is(err, errGone) {
				t.Errorf("the second, when the first is done: %v", err)
			}
			if len(c.tasks) != 1 {
				t.Errorf("tasks %v", c.tasks)
			}
		})
	})
}
