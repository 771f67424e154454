package relay

import (
	"context"
	"errors"
	"fmt"
	"time"

	"holdfast/nip"
)

// signerWait is how long a Keeper may take over one authentication. Relays give
// up on silent connections about then, and a link tries again with its back-off.
const signerWait = 60 * time.Second

// keeper is who authenticates: the key that is kept elsewhere, or Options.Key.
func (o Options) keeper() nip.Keeper {
	if o.Keeper != nil {
		return o.Keeper
	}
	return nip.Keep(o.Key)
}

// signAuth has the key's keeper sign an authentication, within signerWait and
// while the session lives.
func (s *session) signAuth(ev *nip.Event) (*nip.Event, error) {
	ctx, cancel := context.WithTimeout(s.ctx, signerWait)
	defer cancel()
	signed, err := nip.SignBy(ctx, s.c.o.keeper(), ev)
	switch {
	case s.ctx.Err() != nil:
		return nil, context.Cause(s.ctx)
	case errors.Is(err, context.DeadlineExceeded):
		return nil, fmt.Errorf("the signer did not answer for the relay's authentication in %v", signerWait)
	case err != nil:
		return nil, fmt.Errorf("authentication at the relay: %w", err)
	}
	return signed, nil
}
