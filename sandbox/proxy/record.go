package proxy

import (
	"encoding/json"
	"slices"
	"strings"
	"sync"
)

// maxRows is how many different targets with their verdicts a record names.
const maxRows = 256

// Row is what became of all attempts at one target that ended alike.
type Row struct {
	Target  string  `json:"target"` // host:port as a list spells it; "" where none could be read
	Verdict Verdict `json:"verdict"`
	Count   int64   `json:"count"`
	Up      int64   `json:"up"`   // bytes that the program sent
	Down    int64   `json:"down"` // bytes that it got
}

// Record is what a turn reached and tried to reach. Its JSON form goes into the
// evidence as it stands.
type Record struct {
	Rows []Row `json:"attempts"` // what the list holds first
	More int64 `json:"more"`     // attempts that no row counts
	Up   int64 `json:"up"`       // bytes of all connections
	Down int64 `json:"down"`
}

// Fit is r with the last rows left out, as many as it takes for the JSON form
// to have at most limit bytes. Their attempts are counted in More.
func (r Record) Fit(limit int) Record {
	r.Rows = slices.Clone(r.Rows)
	for len(r.Rows) > 0 {
		b, err := json.Marshal(r)
		if err == nil && len(b) <= limit {
			break
		}
		last := len(r.Rows) - 1
		r.More += r.Rows[last].Count
		r.Rows = r.Rows[:last]
	}
	return r
}

// rowKey names a row.
type rowKey struct {
	target  string
	verdict Verdict
}

// tally counts. What the list holds always has a row: such targets are as few
// as the list, and an attempt that fills the record with other names must not
// hide them.
type tally struct {
	mu    sync.Mutex // guards all below
	rows  map[rowKey]*Row
	other int // rows of what the list does not hold
	more  int64
	up    int64
	down  int64
}

// attempt counts one, and returns the key to count its bytes by.
func (t *tally) attempt(target string, v Verdict) rowKey {
	t.mu.Lock()
	defer t.mu.Unlock()
	k := rowKey{target, v}
	r := t.rows[k]
	if r == nil {
		if !listed(v) {
			if t.other == maxRows {
				t.more++
				return k
			}
			t.other++
		}
		if t.rows == nil {
			t.rows = map[rowKey]*Row{}
		}
		r = &Row{Target: target, Verdict: v}
		t.rows[k] = r
	}
	r.Count++
	return k
}

// listed reports whether a verdict is about a target that the list holds.
func listed(v Verdict) bool {
	return v == Allowed || v == ForbiddenAddress || v == Unresolved || v == Unreachable
}

func (t *tally) bytes(k rowKey, up, down int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if r := t.rows[k]; r != nil {
		r.Up += up
		r.Down += down
	}
	t.up += up
	t.down += down
}

func (t *tally) record() Record {
	t.mu.Lock()
	defer t.mu.Unlock()
	out := Record{Rows: make([]Row, 0, len(t.rows)), More: t.more, Up: t.up, Down: t.down}
	for _, r := range t.rows {
		out.Rows = append(out.Rows, *r)
	}
	slices.SortFunc(out.Rows, func(a, b Row) int {
		if la, lb := listed(a.Verdict), listed(b.Verdict); la != lb {
			if la {
				return -1
			}
			return 1
		}
		if c := strings.Compare(a.Target, b.Target); c != 0 {
			return c
		}
		return int(a.Verdict) - int(b.Verdict)
	})
	return out
}
