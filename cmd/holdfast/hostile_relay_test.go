package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"holdfast/host"
	"holdfast/host/client"
	"holdfast/nip"
	"holdfast/owner"
	"holdfast/relay"
)

func one(m message) []string { return []string{m.raw} }

// everyFourth drops each connection's every fourth message. A try of a device
// is three messages each way: every third would be the same one of each try,
// and nothing could ever get through.
func everyFourth(s *script) func(*leg, message) []string {
	return func(l *leg, m message) []string {
		leg := fmt.Sprintf("%p", l)
		if s.times(leg, 0); s.counts[leg]%4 == 0 {
			return nil
		}
		return one(m)
	}
}

// lies are the hostile relay's scripts. Each is made new for its row.
var lies = []struct {
	name   string
	hangUp bool // the script begins with new connections
	make   func() *script
}{
	{"honest", false, func() *script { return &script{} }},
	{"drops every fourth message to a client", false, func() *script {
		s := &script{}
		s.down = everyFourth(s)
		return s
	}},
	{"drops every fourth message of a client", false, func() *script {
		s := &script{}
		s.up = everyFourth(s)
		return s
	}},
	{"everything twice", true, func() *script {
		twice := func(_ *leg, m message) []string {
			if m.label == "AUTH" {
				return one(m)
			}
			return []string{m.raw, m.raw}
		}
		return &script{up: twice, down: twice}
	}},
	{"old requests again and again", false, func() *script {
		s := &script{}
		s.down = func(_ *leg, m message) []string {
			if m.label != "EVENT" {
				return one(m)
			}
			s.kept = append(s.kept, m.raw)
			return append([]string{}, s.kept...)
		}
		return s
	}},
	{"neighbours change places", false, func() *script {
		s := &script{}
		s.down = func(l *leg, m message) []string {
			if held, ok := l.once.LoadAndDelete("held"); ok {
				return []string{m.raw, held.(string)}
			}
			if m.label == "EVENT" {
				l.once.Store("held", m.raw)
				return nil
			}
			return one(m)
		}
		return s
	}},
	{"a second late", false, func() *script {
		late := func(_ *leg, m message) []string { return []string{"wait 1s", m.raw} }
		return &script{up: late, down: late}
	}},
	{"malformed messages between", false, func() *script {
		return &script{down: func(_ *leg, m message) []string {
			return []string{"", "[", `["EVENT"]`, `["OK",1,2,3]`, `["EVENT","known",{}]`, `{"a":1}`, "\xff", strings.Repeat("[", 5000), m.raw, `["NOTICE",7]`}
		}}
	}},
	{"OK true, and the event is lost", false, func() *script {
		s := &script{}
		s.up = func(l *leg, m message) []string {
			if m.label == "EVENT" && s.times("EVENT "+m.event.PubKey, 1) {
				l.say(`["OK","` + m.event.ID + `",true,""]`)
				return nil
			}
			return one(m)
		}
		return s
	}},
	{"OK false, and the event is passed on", false, func() *script {
		s := &script{}
		s.down = func(_ *leg, m message) []string {
			if m.label == "OK" && s.times("OK", 3) {
				return []string{`["OK","` + m.id + `",false,"error: not stored"]`}
			}
			return one(m)
		}
		return s
	}},
	{"OK of another event", false, func() *script {
		s := &script{}
		s.down = func(_ *leg, m message) []string {
			if m.label == "OK" && s.times("OK", 2) {
				return []string{strings.Replace(m.raw, m.id, strings.Repeat("1f", 32), 1)}
			}
			return one(m)
		}
		return s
	}},
	{"events under another id, of another author, changed", false, func() *script {
		return &script{down: func(_ *leg, m message) []string {
			if m.label != "EVENT" {
				return one(m)
			}
			return []string{
				strings.Replace(m.raw, m.event.ID, strings.Repeat("1f", 32), 1),
				strings.Replace(m.raw, m.event.PubKey, strings.Repeat("1f", 32), 1),
				strings.Replace(m.raw, m.event.Content[:40], strings.Repeat("A", 40), 1),
				strings.Replace(m.raw, m.event.Sig, strings.Repeat("0", 128), 1),
				m.raw,
			}
		}}
	}},
	{"events under another subscription", false, func() *script {
		return &script{down: func(_ *leg, m message) []string {
			if m.label == "EVENT" {
				return []string{strings.Replace(m.raw, `"EVENT","`+m.sub+`"`, `"EVENT","other"`, 1), m.raw}
			}
			return one(m)
		}}
	}},
	{"hangs up after each of the first events", false, func() *script {
		s := &script{}
		s.up = func(l *leg, m message) []string {
			if m.label == "EVENT" && s.times("EVENT "+m.event.PubKey, 2) {
				l.cut()
				return nil
			}
			return one(m)
		}
		return s
	}},
	{"passes the event on and hangs up before the OK", false, func() *script {
		s := &script{}
		s.down = func(l *leg, m message) []string {
			if m.label == "OK" && s.times("OK", 3) {
				l.cut()
				return nil
			}
			return one(m)
		}
		return s
	}},
	{"half open for some seconds", false, func() *script {
		var began time.Time
		s := &script{}
		dead := func(_ *leg, m message) []string {
			if began.IsZero() {
				began = time.Now()
			}
			if time.Since(began) < 4*time.Second {
				return nil
			}
			return one(m)
		}
		s.up, s.down = dead, dead
		return s
	}},
	{"OK false, a word of NIP-01 after the other", false, func() *script {
		words := []string{"pow", "blocked", "invalid", "mute", "unsupported", "too large"}
		s := &script{}
		s.up = func(l *leg, m message) []string {
			if m.label == "EVENT" && s.times("EVENT "+m.event.PubKey, len(words)) {
				l.say(`["OK","` + m.event.ID + `",false,"` + words[s.counts["EVENT "+m.event.PubKey]-1] + `: not now"]`)
				return nil
			}
			return one(m)
		}
		return s
	}},
	{"refuses two dials in three", true, func() *script {
		s := &script{}
		s.dial = func() bool { s.times("dial", 1<<30); return s.counts["dial"]%3 == 0 }
		return s
	}},
	{"swallows the first subscriptions", true, func() *script {
		s := &script{}
		s.up = func(l *leg, m message) []string {
			if m.label == "REQ" && s.times("REQ "+m.sub, 1) {
				return nil
			}
			return one(m)
		}
		return s
	}},
}

// The words of NIP-01 for a CLOSED and for an OK false. Those that a client
// treats alike share a row.
func init() {
	for _, prefix := range []string{"duplicate", "rate-limited", "auth-required", "restricted", "error", ""} {
		words := prefix + ": not now"
		if prefix == "" {
			words = "no"
		}
		lies = append(lies, struct {
			name   string
			hangUp bool
			make   func() *script
		}{"CLOSED and OK false, " + words, true, func() *script {
			s := &script{}
			s.up = func(l *leg, m message) []string {
				switch {
				case m.label == "REQ" && s.times("REQ "+m.sub, 1):
					l.say(`["CLOSED","` + m.sub + `","` + words + `"]`)
					return nil
				case m.label == "EVENT" && prefix != "duplicate" && s.times("EVENT "+m.event.PubKey, 1):
					l.say(`["OK","` + m.event.ID + `",false,"` + words + `"]`)
					return nil
				}
				return one(m)
			}
			return s
		}})
	}
}

// hostileRelay is one honest host on many lying relays, with one honest
// device on each. Whatever the relay does, a command gets a signed outcome
// when the device tries again as its library does, and happens once.
func hostileRelay(t *testing.T) {
	s, ctx := stage(t)
	if err := s.stepHome(ctx); err != nil {
		t.Fatal(err)
	}
	if err := makeDemoRepository(ctx, filepath.Join(s.dir, "quiet")); err != nil {
		t.Fatal(err)
	}
	args := []string{"serve", "--json", "--home", s.home, "--no-relay"}
	var relays []*liar
	for range lies {
		l := newLiar(t)
		relays = append(relays, l)
		args = append(args, "--relay", string(l.name))
	}
	// No policy speaks of this label: its tasks wait, and a steer replaces their
	// instructions, which the task's own log counts. Only some rows run turns.
	if err := s.operator(ctx, nil, "workspace", "add", "quiet", filepath.Join(s.dir, "quiet")); err != nil {
		t.Fatal(err)
	}
	p, err := s.spawn(args...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.kill)
	if _, _, err := p.await(ctx, 0, "the host", isEvent("ready")); err != nil {
		t.Fatal(err)
	}
	a := &attacked{tour: s, ctx: ctx, process: p, g: &globals{home: s.home, log: zerolog.Nop()}}
	devices := make([]*client.Device, len(lies))
	for i := range lies {
		devices[i] = a.device(t, fmt.Sprintf("phone-%d", i), relays[i].name)
	}
	// All at once: they wait for clocks, not for processors, which is what the
	// runner's own limit counts.
	var rows sync.WaitGroup
	for i, row := range lies {
		rows.Go(func() {
			t.Run(row.name, func(t *testing.T) { a.throughLies(t, devices[i], relays[i], i) })
		})
	}
	rows.Wait()
	a.state(t)
	var st host.Status
	if st, err = ask[host.Status](ctx, a.g, "status", nil); err != nil || st.Journal.Undecided != 0 {
		t.Errorf("status %+v, %v", st, err)
	}
}

// rowLimit is what one row may take. The slowest needs some 20 s of waiting on
// an idle machine; the rest is for one that has much else to do. A row that is
// never answered fails at any limit.
const rowLimit = 4 * time.Minute

// runsTurns are the rows whose command starts a turn: the prompts in the
// worktree are counted too.
var runsTurns = map[string]bool{"everything twice": true, "old requests again and again": true, "OK true, and the event is lost": true}

func (a *attacked) throughLies(t *testing.T, d *client.Device, l *liar, row int) {
	turns, label := runsTurns[lies[row].name], nip.Label("quiet")
	if turns {
		label = tourLabel
	}
	id, err := d.Create(a.ctx, nip.TaskCreate{Title: "a title", Prompt: "one", Workspace: label})
	if err != nil {
		t.Fatal("create:", err)
	}
	c := nip.Command{ID: nip.CommandID(testID(t)), Task: id, Action: nip.Steer, BasedOn: 1, Text: "two", IssuedAt: time.Now().Unix()}
	if turns {
		a.turnEnded(t, id, 1)
		c.Action = nip.Send
	}
	l.lie(lies[row].make())
	if lies[row].hangUp {
		l.hangUp()
	}
	ctx, cancel := context.WithTimeout(a.ctx, rowLimit)
	defer cancel()
	began := time.Now()
	var tries []string
	for {
		_, out, err := d.Command(ctx, c)
		if err == nil {
			if got, ok := out.(nip.Dispatched); !ok || got.Reference != string(id) {
				t.Errorf("outcome %+v", out)
			}
			break
		}
		tries = append(tries, err.Error())
		var refused *relay.RefusedError
		if !errors.Is(err, client.ErrNoAnswer) && !errors.As(err, &refused) || ctx.Err() != nil {
			t.Fatalf("no signed outcome: %q", tries)
		}
	}
	t.Logf("%s, %d more tries", time.Since(began).Round(time.Millisecond), len(tries))
	// The same command once more, now that the relay is honest: its first outcome.
	l.lie(nil)
	if _, _, err := d.Command(a.ctx, c); err != nil {
		t.Errorf("the replay on an honest relay: %v", err)
	}
	a.once(t, id, c, turns)
}

// once counts the effects of a command.
func (a *attacked) once(t *testing.T, id nip.TaskID, c nip.Command, turns bool) {
	t.Helper()
	if turns {
		task := a.turnEnded(t, id, 2)
		raw, err := os.ReadFile(filepath.Join(task.Worktree.Path, "notes.txt"))
		if err != nil || string(raw) != "one\ntwo\n" {
			t.Errorf("the turns wrote %q, %v", raw, err)
		}
	} else {
		s, err := owner.Open(a.home, owner.Options{})
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		if task, err := s.Get(owner.TaskID(id)); err != nil || task.Revision != 2 || len(task.Corrections) != 1 || task.EffectivePrompt() != "two" {
			t.Errorf("the task has revision %d, %d corrections, %v", task.Revision, len(task.Corrections), err)
		}
	}
	list, err := ask[struct{ Entries []host.EntryView }](a.ctx, a.g, "journal.list", host.JournalArgs{Task: id})
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for _, e := range list.Entries {
		if e.Command == string(c.ID) {
			n++
			if e.Outcome != "applied" {
				t.Errorf("the command's entry %+v", e)
			}
		}
	}
	if n != 1 {
		t.Errorf("%d entries of one command", n)
	}
}
