package host

import (
	"sync"

	"holdfast/nip"
)

const (
	repeatWindow = 5 // seconds between two answers to exact retries of one request
	answerMemory = 1024
)

// answer is what was sent last for a request event. reply is kept only for
// answers that host.db does not retain, so that a retry gets the same bytes.
type answer struct {
	at    int64
	until int64
	reply *nip.Event
}

// answerBook remembers answers by the event they answered: what another key
// sends under the same request ID is nobody's retry. Members and strangers
// have separate room, so that no flood of strangers makes the host forget what
// it told a device.
type answerBook struct {
	// mu guards both maps.
	mu        sync.Mutex
	members   map[nip.EventID]answer
	strangers map[nip.EventID]answer
}

func newAnswerBook() *answerBook {
	return &answerBook{members: map[nip.EventID]answer{}, strangers: map[nip.EventID]answer{}}
}

func (b *answerBook) get(id nip.EventID) (answer, bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if a, ok := b.members[id]; ok {
		return a, true
	}
	a, ok := b.strangers[id]
	return a, ok
}

// lately reports whether the event had an answer in the last 5 s: duplicates by
// several subscriptions or relays are then dropped, while a retry after that is
// answered again.
func (b *answerBook) lately(id nip.EventID, now int64) bool {
	a, ok := b.get(id)
	return ok && now < a.at+repeatWindow
}

// last is the unretained reply to exactly this event, nil where there is none.
func (b *answerBook) last(id nip.EventID) *nip.Event {
	a, _ := b.get(id)
	return a.reply
}

// note remembers an answer. What has run out goes first; a full memory forgets
// its oldest rather than grows.
func (b *answerBook) note(id nip.EventID, a answer, member bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	m := b.strangers
	if member {
		m = b.members
	}
	if a.reply == nil {
		a.reply = m[id].reply // a repeat keeps its bytes
	}
	if _, known := m[id]; !known && len(m) >= answerMemory {
		evict(m, a.at)
	}
	m[id] = a
}

func evict(m map[nip.EventID]answer, now int64) {
	var oldest nip.EventID
	for id, a := range m {
		if a.until <= now {
			delete(m, id)
			continue
		}
		if oldest == "" || a.at < m[oldest].at {
			oldest = id
		}
	}
	if len(m) >= answerMemory {
		delete(m, oldest)
	}
}
