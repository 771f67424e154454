package client

import (
	"context"
	"crypto/rand"
	"fmt"
	"time"

	"github.com/nbd-wtf/go-nostr"

	"holdfast/nip"
	"holdfast/relay"
)

// heldLink is a link that authenticates with a key that is held elsewhere.
type heldLink struct {
	relay.Link
	failed chan error // one place: why the signer did not authenticate
}

// authenticator tells its link that the signer said no, or something else than
// it was asked: the next connection would only ask again.
type authenticator struct {
	nip.Keeper
	failed chan error
}

func (a authenticator) Sign(ctx context.Context, ev *nip.Event) error {
	signed, err := nip.SignBy(ctx, a.Keeper, ev)
	if err == nil {
		*ev = *signed
		return nil
	}
	if ctx.Err() == nil {
		select {
		case a.failed <- err:
		default:
		}
	}
	return err
}

// connectElsewhere dials with the key's keeper. Connections live longer than
// others because a person may be asked for each.
func (d *Device) connectElsewhere(o relay.Options) relay.Link {
	failed := make(chan error, 1)
	o.Keeper, o.Life = authenticator{d.hold, failed}, elsewhereLife
	return &heldLink{Link: d.dial(o), failed: failed}
}

// ready waits until a link that asks a signer is open, so that a request is
// minted only when it can be sent at once. It returns at once for other links.
func (d *Device) ready(ctx context.Context, link relay.Link) error {
	l, held := link.(*heldLink)
	if !held {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, signerLife)
	defer cancel()
	box, err := nip.NewID(rand.Reader)
	if err != nil {
		return err
	}
	// Nothing lies in this mailbox; the end of what is stored there is the sign
	// that the relay listens to this key.
	sub := l.Subscribe("ready-"+box[:16], func(time.Time) []nip.Filter {
		return []nip.Filter{{Kinds: []int{nip.KindArtifact}, Limit: 1, Tags: nostr.TagMap{"p": {string(d.pub)}, "h": {box}}}}
	})
	defer sub.Close()
	for {
		select {
		case <-sub.EOSE():
			return nil
		case _, ok := <-sub.C():
			if !ok {
				return relay.ErrClosed
			}
		case err := <-l.failed:
			d.unlink(l)
			return fmt.Errorf("nothing was sent, relay %s wants to know the key: %w", l.URL(), err)
		case <-ctx.Done():
			return noAnswer(l.Health(), nil)
		}
	}
}

// unlink ends a link whose next connection would trouble the signer again.
func (d *Device) unlink(l *heldLink) {
	d.mu.Lock()
	if d.link == relay.Link(l) {
		d.link = nil
	}
	d.mu.Unlock()
	if err := l.Close(); err != nil {
		d.o.Log.Debug().Err(err).Msg("relay link not closed cleanly")
	}
}
