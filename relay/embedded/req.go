package embedded

import (
	"slices"

	"holdfast/nip"
	"holdfast/relay"
)

// onReq opens or replaces a subscription: listener first, then the stored
// events, then EOSE, so that what is committed meanwhile reaches the client by
// one of the two ways, and by one only.
func (c *conn) onReq(m message) error {
	if old := c.subs[m.sub]; old != nil {
		c.r.reg.remove(old)
		delete(c.subs, m.sub)
	}
	filters, err := c.filters(m)
	if err != nil {
		c.closed(m.sub, err.Error())
		return nil
	}
	l := &listener{key: c.key, filters: filters, drop: c.kill}
	head := slices.Concat([]byte(`["EVENT",`), encodeText(m.sub), []byte{','})
	frame := func(json []byte) []byte { return slices.Concat(head, json, []byte{']'}) }
	l.take = func(e *live) {
		if !c.out.push(frame(e.json)) {
			c.kill("too slow: the queue of messages is full")
		}
	}
	c.subs[m.sub] = l
	c.r.reg.add(l)
	c.r.reg.setReplaying(c, true)
	defer c.r.reg.setReplaying(c, false)

	now := c.r.o.Now()
	hits, err := c.r.store.find(c.key, filters, now)
	if err != nil {
		c.r.o.Log.Error().Err(err).Msg("relay store not readable")
		c.r.reg.remove(l)
		delete(c.subs, m.sub)
		c.closed(m.sub, "error: the relay's store cannot be read")
		return nil
	}
	for _, h := range hits {
		rec, err := c.r.stored(c.key, h.id)
		if err != nil || rec == nil || !c.r.reg.sending(l, h.id) {
			continue // it left between the look-up and now
		}
		if c.out.pushWait(c.ctx, frame(rec.json)) != nil {
			return nil
		}
	}
	if c.out.pushWait(c.ctx, relay.EncodeFrame("EOSE", m.sub)) != nil {
		return nil
	}
	for {
		late := c.r.reg.settle(l)
		if late == nil {
			return nil
		}
		for _, e := range late {
			if c.out.pushWait(c.ctx, frame(e.json)) != nil {
				return nil
			}
		}
	}
}

// filters checks who asks, how much, and what.
func (c *conn) filters(m message) ([]nip.Filter, error) {
	switch {
	case c.key == "":
		return nil, authRequired
	case c.r.o.Class(c.key) == Revoked:
		return nil, revokedKey
	case len(m.filters) == 0:
		return nil, badFilter
	case len(m.filters) > maxFilters:
		return nil, refusal("invalid: at most 10 filters a subscription")
	case len(c.subs) >= maxSubs:
		return nil, refusal("rate-limited: at most 20 subscriptions a connection")
	}
	var out []nip.Filter
	for _, v := range m.filters {
		f, err := parseFilter(v)
		if err != nil {
			return nil, err
		}
		out = append(out, f)
	}
	return out, nil
}
