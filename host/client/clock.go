package client

// clock maps this device's time to the host's. The host's rules for issued_at
// are its own; a device with a wrong clock writes the host's time instead of
// asking for wider rules.
type clock struct {
	Known  bool  `json:"known"`
	Offset int64 `json:"offset"` // local minus host, seconds: the smallest seen, so the one with the least travel in it
	// Suspect is turned at each silence while the offset is large: when the
	// local clock was corrected, the old offset itself is why nobody answers.
	Suspect bool `json:"suspect"`
}

// tolerated is what a host accepts ahead of its own time, in seconds.
const tolerated = 60

// host is the host's time at local time now.
func (c clock) host(now int64) int64 {
	if !c.Known || c.Suspect {
		return now
	}
	return now - c.Offset
}

// sample takes one signed time that was seen at local. A stored event may be
// old, so it only proves how far the host's clock had come at least.
func (c *clock) sample(local, host int64, live bool) {
	o := local - host
	if !live && o > 0 {
		return
	}
	if !c.Known || o < c.Offset {
		*c = clock{Known: true, Offset: o}
	}
}

// answered takes the time that a reply was sealed, between sent and got. Unlike
// a publication it bounds the offset from both sides, so it also disproves an
// offset learnt before the local clock was corrected.
func (c *clock) answered(sent, got, sealed int64, live bool) {
	if c.Known && c.Offset < sent-sealed-1 {
		*c = clock{}
	}
	c.sample(got, sealed, live)
	c.Suspect = false
}

// silent notes that a request got no answer.
func (c *clock) silent() {
	if c.Known && (c.Offset > tolerated/2 || c.Offset < -tolerated/2) {
		c.Suspect = !c.Suspect
	}
}
