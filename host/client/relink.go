package client

import "holdfast/relay"

// relink gives up a link that waits before it dials again, and dials at once: a
// person waits for the call, and the wait may be a minute where the relay is
// back already. A link that is dialling for the first time is left to it.
func (d *Device) relink() {
	d.mu.Lock()
	old := d.link
	if d.closed || d.access == nil || old == nil {
		d.mu.Unlock()
		return
	}
	if h := old.Health(); h.State != relay.StateConnecting || h.LastError == "" {
		d.mu.Unlock()
		return
	}
	g := d.access.grant
	d.link = d.connect(g.Relay, g.Host)
	d.mu.Unlock()
	if err := old.Close(); err != nil {
		d.o.Log.Debug().Err(err).Msg("waiting connection not closed")
	}
}

// follow turns an exchange to the link that took the place of its own; false
// where there is none, or it belongs to another standing. Of requests without a
// grant an owner's have that link, and a redemption has one of its own.
func (d *Device) follow(p *peer) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed || d.access == nil || d.access.owner != (p.grant == "") || d.link == nil || d.link == p.link ||
		d.access.grant.Host != p.host || d.access.grant.Relay != p.relay {
		return false
	}
	p.link = d.link
	return true
}
