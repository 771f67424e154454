package client

import (
	"fmt"

	"holdfast/nip"
	"holdfast/relay"
)

// shown is what one Watch has delivered, or its consumer could read before it
// began: the last word about each subject. The store says what is newest over
// all processes of a profile; one that met a publication second still shows it.
type shown map[string]string

// maxShown bounds the memory of one Watch. Forgetting costs a repeated update.
const maxShown = 16_384

// first reports whether word is not the last one about subject, and notes it.
func (s shown) first(subject, word string) bool {
	if s == nil {
		return true
	}
	if was, ok := s[subject]; ok && was == word {
		return false
	}
	if len(s) >= maxShown {
		clear(s)
	}
	s[subject] = word
	return true
}

func (s shown) summary(sum nip.Summary) bool {
	return s.first("summary/"+string(sum.Task), fmt.Sprint(sum.Sequence))
}

func (s shown) page(task string, revision, issued int64) bool {
	return s.first("page/"+task, fmt.Sprint(revision, issued))
}

func (s shown) command(id nip.CommandID, r sentRow) bool {
	word := r.State + string(r.Reason)
	if r.Position != nil {
		word += fmt.Sprint(" at ", *r.Position)
	}
	if r.Revision != nil {
		word += fmt.Sprint(" with ", *r.Revision)
	}
	return s.first("command/"+string(id), word)
}

// read fills in what the store holds already.
func (s shown) read(st *store, host nip.PubKey) error {
	if err := st.eachPage(host, func(task string, p keptPage) { s.page(task, p.revision, p.issued) }); err != nil {
		return err
	}
	return st.sent(host, func(id nip.CommandID, r sentRow) { s.command(id, r) })
}

// take verifies a batch of deliveries, keeps them, one transaction for each
// stream, and returns what is news: the rest was old, repeated or not believed.
func (m mailboxes) take(batch []relay.Delivery, seen shown) []Update {
	var news []Update
	var sums []nip.Summary
	var rest []publication
	for _, del := range batch {
		if !m.derived(del) {
			if g, ok := m.d.renew(del.Event); ok {
				news = append(news, Update{Grant: &g})
			}
			continue
		}
		p, err := m.open(del)
		switch {
		case err != nil:
			m.disbelieve(del, err)
		case p.Summary != nil:
			sums = append(sums, *p.Summary)
		case p.Presence == nil:
			rest = append(rest, p)
		case m.takePresence(*p.Presence, p.live):
			news = append(news, p.Update)
		}
	}
	news = append(news, m.takeSummaries(sums, seen)...)
	// After the presences: they tell what time it is for the host.
	var pages, states []publication
	for _, p := range rest {
		now := m.d.hostNow()
		switch {
		case p.issued > now+tolerated || p.expires <= now:
			m.d.o.Log.Debug().Int64("issued_at", p.issued).Msg("publication is over, or of the future")
		case p.Hints != nil:
			if m.takeHints(p) {
				news = append(news, p.Update)
			}
		case p.states != nil:
			states = append(states, p)
		default:
			pages = append(pages, p)
		}
	}
	news = append(news, m.takePages(pages, seen)...)
	return append(news, m.takeStates(states, seen)...)
}

func (m mailboxes) disbelieve(del relay.Delivery, err error) {
	m.d.o.Log.Debug().Str("event", del.Event.Event().ID).Err(err).Msg("publication not believed")
}

func (m mailboxes) takeSummaries(sums []nip.Summary, seen shown) []Update {
	if len(sums) == 0 {
		return nil
	}
	verdicts, err := m.d.store.keepSummaries(sums)
	if err != nil {
		// Shown all the same: a busy store must not hide what the host says.
		m.d.o.Log.Warn().Err(err).Msg("summaries not kept")
	}
	var news []Update
	for i := range sums {
		switch {
		case err != nil, verdicts[i] == newer, verdicts[i] == again:
			if seen.summary(sums[i]) {
				news = append(news, Update{Summary: &sums[i]})
			}
		case verdicts[i] == clash:
			m.d.o.Log.Warn().Str("task", string(sums[i].Task)).Int64("seq", sums[i].Sequence).
				Msg("the host signed two different summaries of one revision; the first is kept")
		}
	}
	return news
}

// takePresence keeps a newer presence. One that lay on the relay for more than
// 180 s raises the floor and is not shown: it says nothing about now. That it
// may be ahead of this clock is no fault of it, it corrects the clock.
func (m mailboxes) takePresence(p nip.Presence, live bool) bool {
	newer, err := m.d.store.raiseFloor(p)
	if err != nil {
		m.d.o.Log.Warn().Err(err).Msg("presence not kept")
		return false
	}
	if !newer {
		return false
	}
	now := m.d.now()
	m.d.learn(func(c *clock) { c.sample(now, p.ObservedAt, live) })
	return m.fresh(p.ObservedAt)
}

// fresh reports whether a presence of that time says something about now.
func (m mailboxes) fresh(observed int64) bool { return m.d.hostNow()-observed <= presenceFresh }

func (m mailboxes) takeHints(p publication) bool {
	news, err := m.d.store.keepHints(p)
	if err != nil {
		m.d.o.Log.Warn().Err(err).Msg("hints not kept")
		return false
	}
	return news
}

// takePages shows nothing that could not be kept: without the store nobody
// knows whether a page goes back.
func (m mailboxes) takePages(pubs []publication, seen shown) []Update {
	if len(pubs) == 0 {
		return nil
	}
	verdicts, err := m.d.store.keepPages(m.host, pubs)
	if err != nil {
		m.d.o.Log.Warn().Err(err).Msg("pages not kept")
		return nil
	}
	var news []Update
	for i, p := range pubs {
		scope := p.Page.Page.Scope
		if verdicts[i] != stale && seen.page(scope.Task, scope.Revision, p.issued) {
			news = append(news, p.Update)
		}
	}
	return news
}

// takeStates returns the commands that stand elsewhere than they did.
func (m mailboxes) takeStates(pubs []publication, seen shown) []Update {
	if len(pubs) == 0 {
		return nil
	}
	taken, err := m.d.store.keepStates(m.host, pubs)
	if err != nil {
		m.d.o.Log.Warn().Err(err).Msg("command states not kept")
		return nil
	}
	var news []Update
	for _, list := range taken {
		var u Update
		for _, s := range list {
			if seen.command(s.id, s.row) {
				u.Commands = append(u.Commands, s.row.status(s.id))
			}
		}
		if u.Commands != nil {
			news = append(news, u)
		}
	}
	return news
}

// inHostTime is the host's time at a time of this clock.
func (d *Device) inHostTime(local int64) int64 {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.clock.host(local)
}
