package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/nbd-wtf/go-nostr"
	"github.com/rs/zerolog"
	"golang.org/x/sync/errgroup"

	"holdfast/nip"
	"holdfast/relay"
)

// benchDevice is a device reduced to the wire: a key, a grant, one link with one
// subscription to all its replies. It keeps nothing on disk, because the rows
// that use many of them measure the host.
type benchDevice struct {
	h     *benchHost
	key   nip.SecretKey
	ring  *nip.Keyring // of key, as a device's profile has it
	grant nip.Grant
	task  nip.TaskID
	link  relay.Link
	read  chan struct{} // closed when the reader ended

	// mu guards waiting.
	mu      sync.Mutex
	waiting map[nip.Mailbox]chan nip.Reply
}

// benchRequest is one sealed request.
type benchRequest struct {
	id    nip.RequestID
	event *nip.Event
}

var errNoReply = errors.New("no reply in time")

// newDevice makes a device and opens its link. local is a link inside the relay's
// process, for more devices than it takes connections.
func (h *benchHost) newDevice(local bool) (*benchDevice, error) {
	key, err := nip.GenerateSecretKey(rand.Reader)
	if err != nil {
		return nil, err
	}
	d := &benchDevice{h: h, key: key, ring: nip.NewKeyring(key, 1)}
	d.open(local, "")
	return d, nil
}

// open connects, from a loopback address of its own where from is one.
func (d *benchDevice) open(local bool, from string) {
	if local {
		d.link = d.h.relay.Local(d.key.Public())
	} else {
		o := relay.Options{URL: d.h.url, Key: d.key, Log: zerolog.Nop(), Now: d.h.clock.now}
		if from != "" {
			o.DialContext = (&net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}}).DialContext
		}
		d.link = relay.Dial(o)
	}
	d.waiting, d.read = map[nip.Mailbox]chan nip.Reply{}, make(chan struct{})
	host := string(d.h.self)
	began := d.h.clock.now()
	sub := d.link.Subscribe("replies", func(time.Time) []nip.Filter {
		return []nip.Filter{{Kinds: []int{nip.KindArtifact}, Authors: []string{host}, Tags: nostr.TagMap{"p": {string(d.key.Public())}}, Since: timestamp(began)}}
	})
	go d.receive(sub)
}

// receive verifies what answers a request of ours; the link has verified the
// signatures.
func (d *benchDevice) receive(sub *relay.Subscription) {
	defer close(d.read)
	for del := range sub.C() {
		box := nip.Mailbox(mailboxOf(del.Event.Event()))
		d.mu.Lock()
		w := d.waiting[box]
		delete(d.waiting, box)
		d.mu.Unlock()
		if w == nil {
			continue // a summary, a presence, or one answer more
		}
		o, err := nip.OpenBy(context.Background(), del.Event, d.ring)
		if err != nil || o.Schema != nip.SchemaReply {
			continue
		}
		if r, err := nip.ParseReply(o.Inline); err == nil && string(r.Request) == string(box) {
			w <- r
		}
	}
}

func mailboxOf(ev *nip.Event) string {
	for _, t := range ev.Tags {
		if len(t) == 2 && t[0] == "h" {
			return t[1]
		}
	}
	return ""
}

func (d *benchDevice) close() {
	if d.link != nil {
		_ = d.link.Close()
		<-d.read
		d.link = nil
	}
}

// seal makes a request that is issued at a host time and lives for life seconds.
func (d *benchDevice) seal(op nip.Operation, at, life int64) (benchRequest, error) {
	id, err := nip.NewID(rand.Reader)
	if err != nil {
		return benchRequest{}, err
	}
	q := nip.Request{ID: nip.RequestID(id), Host: d.h.self, Epoch: -1, Relay: d.h.url, IssuedAt: at, ExpiresAt: at + life, Op: op}
	if d.grant.ID != "" {
		q.Grant, q.Epoch = d.grant.ID, d.grant.Epoch
	}
	a, err := nip.EncodeRequest(q)
	if err != nil {
		return benchRequest{}, err
	}
	ev, err := nip.Seal(d.key, q.Host, nip.Mailbox(id), a, nil)
	return benchRequest{q.ID, ev}, err
}

// expect registers for the reply to a request.
func (d *benchDevice) expect(r benchRequest) chan nip.Reply {
	w := make(chan nip.Reply, 1)
	d.mu.Lock()
	d.waiting[nip.Mailbox(r.id)] = w
	d.mu.Unlock()
	return w
}

// again is when an unanswered request is published once more: longer than the
// 5 s in which host and relay take a repetition for a copy.
const again = 6 * time.Second

// send publishes a request and waits at w for its reply. Every repetition is the
// same bytes.
func (d *benchDevice) send(ctx context.Context, r benchRequest, w <-chan nip.Reply) (nip.Reply, error) {
	for {
		if err := d.link.Publish(ctx, r.event); err != nil {
			return nip.Reply{}, fmt.Errorf("publish: %w", err)
		}
		t := time.NewTimer(again)
		select {
		case rep := <-w:
			t.Stop()
			return rep, nil
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
			return nip.Reply{}, errNoReply
		}
	}
}

// call makes one request and wants an outcome.
func (d *benchDevice) call(ctx context.Context, op nip.Operation) (nip.Outcome, nip.RequestID, error) {
	ctx, cancel := context.WithTimeout(ctx, 55*time.Second)
	defer cancel()
	r, err := d.seal(op, d.h.clock.now().Unix(), 60)
	if err != nil {
		return nil, "", err
	}
	rep, err := d.send(ctx, r, d.expect(r))
	if err == nil && rep.Refusal != nil {
		err = fmt.Errorf("%s was refused: %s", op.Kind(), rep.Refusal.Code)
	}
	return rep.Outcome, r.id, err
}

// pair redeems an invitation and makes the device's task.
func (d *benchDevice) pair(ctx context.Context, local bool) error {
	inv, _, err := d.h.invite(ctx, nip.Rights{nip.Operate})
	if err != nil {
		return err
	}
	out, _, err := d.call(ctx, nip.EnrollRedeem{Invitation: inv.ID, Capability: inv.Capability})
	if err != nil {
		return err
	}
	granted, ok := out.(nip.Granted)
	if !ok {
		return errors.New("the host's reply to a redemption holds no grant")
	}
	v, err := nip.VerifyEvent(granted.Authorization)
	if err != nil {
		return err
	}
	o, err := nip.Open(v, d.key)
	if err != nil {
		return err
	}
	if d.grant, err = nip.ParseGrant(o.Inline, nip.Profile{Loopback: true}); err != nil {
		return err
	}
	// A new connection: the relay remembers what the key was when it logged in.
	d.close()
	d.open(local, "")
	_, id, err := d.call(ctx, nip.TaskCreate{Title: "a task", Prompt: "nobody runs this", Workspace: benchLabel})
	d.task = nip.TaskID(id)
	return err
}

// pairMany pairs n devices, in batches of what the access book and the relay
// allow strangers in five minutes.
func (h *benchHost) pairMany(ctx context.Context, n int, local bool) (list []*benchDevice, err error) {
	const batch, beside = 50, 4
	for len(list) < n {
		var g errgroup.Group
		g.SetLimit(beside)
		for range min(batch, n-len(list)) {
			d, err := h.newDevice(local)
			if err != nil {
				return list, err
			}
			list = append(list, d)
			g.Go(func() error { return d.pair(ctx, local) })
		}
		if err := g.Wait(); err != nil {
			return list, fmt.Errorf("pair %d devices: %w", n, err)
		}
		h.clock.forward(7 * time.Minute)
	}
	return list, nil
}

func closeDevices(list []*benchDevice) {
	for _, d := range list {
		d.close()
	}
}

// steer is the command that the rows send: new instructions for a task that has
// not started. It goes the whole path: journalled, decided, applied to the
// task's log, its outcome recorded, its reply retained.
func steer(task nip.TaskID, at int64) (nip.Operation, error) {
	id, err := nip.NewID(rand.Reader)
	return nip.TaskCommand{Command: nip.Command{
		ID: nip.CommandID(id), Task: task, Action: nip.Steer, BasedOn: 1, IssuedAt: at,
		Text: "Rather look at the second file first, and say what you found before you change anything.",
	}}, err
}
