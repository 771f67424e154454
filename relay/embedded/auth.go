package embedded

import (
	"strings"

	"github.com/nbd-wtf/go-nostr"

	"holdfast/nip"
)

const authWindow = 600 // seconds that an AUTH event may lie away from now

// onAuth takes a NIP-42 answer. A challenge is good once, whatever comes of it;
// the next one is sent with a refusal only, because there are clients that
// answer every challenge they get.
func (c *conn) onAuth(m message) error {
	id := m.id
	if m.event != nil {
		id = m.event.ID
	}
	key, via, err := c.authenticate(m.event)
	c.challenge = ""
	if err == nil && !c.r.reg.login(c, key, c.r.o.Class) {
		c.ok(id, false, string(revokedKey))
		c.last = "this key was revoked"
		return nil
	}
	if err != nil {
		if id == "" {
			c.notice(err.Error())
		} else {
			c.ok(id, false, err.Error())
		}
		if c.auths++; c.auths > maxAuths {
			c.last = "too many failed authentications"
			return nil
		}
		c.issue()
		return nil
	}
	// Another key than before would inherit its subscriptions.
	for name, l := range c.subs {
		if l.key != key {
			c.r.reg.remove(l)
			delete(c.subs, name)
			c.closed(name, "auth-required: authenticated as another key")
		}
	}
	c.via = via
	c.ok(id, true, "")
	return nil
}

// authenticate checks one AUTH event: kind, challenge, relay tag, time, and the
// signature last.
func (c *conn) authenticate(ev *nip.Event) (nip.PubKey, nip.RelayURL, error) {
	if ev == nil || ev.Kind != nostr.KindClientAuthentication {
		return "", "", refusal("invalid: AUTH takes an event of kind 22242")
	}
	challenge, ok := only(ev, "challenge")
	if !ok || c.challenge == "" || challenge != c.challenge {
		return "", "", refusal("invalid: this is not the last challenge of this connection")
	}
	tag, ok := only(ev, "relay")
	via := c.r.named(tag)
	if !ok || via == "" {
		return "", "", refusal("invalid: the relay tag names another relay than " + string(c.r.o.Name))
	}
	if d := int64(ev.CreatedAt) - c.r.o.Now().Unix(); d > authWindow || d < -authWindow {
		return "", "", refusal("invalid: created_at is more than 10 minutes away; set the clock")
	}
	v, err := nip.VerifyEvent(ev)
	if err != nil {
		return "", "", notVerified
	}
	return nip.PubKey(v.Event().PubKey), via, nil
}

// only returns the value of a tag that must be there exactly once.
func only(ev *nip.Event, name string) (value string, ok bool) {
	for _, t := range ev.Tags {
		if len(t) > 0 && t[0] == name {
			if ok || len(t) < 2 {
				return "", false
			}
			value, ok = t[1], true
		}
	}
	return value, ok
}

// named returns our own spelling of a relay tag, "" for another relay's. Byte
// for byte, but for the slash of an empty path, which client libraries drop.
func (r *Relay) named(tag string) nip.RelayURL {
	for _, name := range append([]nip.RelayURL{r.o.Name}, r.o.Also...) {
		if strings.TrimSuffix(tag, "/") == strings.TrimSuffix(string(name), "/") {
			return name
		}
	}
	return ""
}
