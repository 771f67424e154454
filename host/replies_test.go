package host

import (
	"errors"
	"testing"

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
