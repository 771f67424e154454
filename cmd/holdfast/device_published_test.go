package main

import (
	"context"
	"strings"
	"testing"
	"time"

	"holdfast/nip"
	"holdfast/relay/relaytest"
)

// publishPage, publishStates and publishHints put what a host publishes on the
// stand-in's relay.
func (s *standIn) publishPage(to nip.PubKey, revision, at int64) {
	page := onePage(nip.ReadQuery{Workspace: "beta", Task: taskA}, revision, nip.PhaseCompleted).Task
	a, err := nip.EncodeTaskPage(nip.PublishedPage{Host: s.key.Public(), IssuedAt: at, ExpiresAt: at + 604_800, Page: page})
	s.put(to, nip.StreamPages, a, err)
}

func (s *standIn) publishStates(to nip.PubKey, revision, at int64, rows ...nip.CommandState) {
	a, err := nip.EncodeStates(nip.CommandStates{Host: s.key.Public(), IssuedAt: at, ExpiresAt: at + 604_800, Task: taskA, Revision: revision, Commands: rows})
	s.put(to, nip.StreamCommands, a, err)
}

func (s *standIn) publishHints(to nip.PubKey, at int64) {
	a, err := nip.EncodeHints(nip.Hints{Host: s.key.Public(), Generation: 1, IssuedAt: at, ExpiresAt: at + 7200,
		Hints: []nip.Hint{{Class: "relay", Transport: "nostr", Address: string(s.url), Status: "reachable", ObservedAt: at}}})
	s.put(to, nip.StreamHints, a, err)
}

func (s *standIn) put(to nip.PubKey, stream nip.Stream, a nip.Artifact, err error) {
	s.t.Helper()
	if err != nil {
		s.t.Fatal(err)
	}
	box, err := nip.DeriveMailbox(s.key, to, stream)
	if err != nil {
		s.t.Fatal(err)
	}
	s.publish(s.seal(to, box, a))
}

// unanswered runs a read of a silent host with a second of patience, and with
// more where the machine did not find the relay's page within it.
func (v *verb) unanswered(t *testing.T, args ...string) int {
	t.Helper()
	for limit := time.Second; ; limit *= 2 {
		if code := v.run(t, append(args, "--timeout", limit.String())...); code != exitUnreachable || limit > refreshWait {
			return code
		}
	}
}

func silent(nip.Request) (nip.Outcome, *nip.Refusal) { return nil, nil }

// With the host off, a read shows the last published page and says plainly that
// it is that; without one, that nobody answers. A signed no is an answer.
func TestDeviceReadPublished(t *testing.T) {
	t.Parallel()
	v, s, self := atHost(t)
	s.set(silent)
	now := time.Now().Unix()
	v.fails(t, exitUnreachable, "no_answer", "read", taskA, "--timeout", "1s")
	v.fails(t, exitFailed, "absent", "read", taskA, "--offline")
	s.publishPage(self, 4, now-60)
	if code := v.unanswered(t, "read", taskA, "--json"); code != exitOK {
		t.Fatalf("exit %d, %s", code, v.err.String())
	}
	doc := document(t, v.out.String())
	about := doc["published"].(map[string]any)
	if doc["task"].(map[string]any)["title"] != "a title" || about["issued_at"] != float64(now-60) || about["newest_revision"] != nil {
		t.Errorf("document %v", doc)
	}
	if code := v.unanswered(t, "read", taskA); code != exitOK ||
		!strings.HasPrefix(v.out.String(), "the host does not answer; this is the last page that it published, of "+clockTime(now-60)) ||
		!strings.Contains(v.out.String(), "agent: hello") {
		t.Errorf("exit %d, %q", code, v.out.String())
	}
	// The task moved on since: the summary says so.
	s.show(self, nip.Summary{Task: taskA, Sequence: 6, Phase: nip.PhaseRunning, Headline: "Task running", Attention: "none", UpdatedAt: now})
	asked := len(s.operations())
	if code := v.run(t, "read", taskA, "--offline"); code != exitOK || !strings.HasPrefix(v.out.String(), "the last page that the host published, of ") ||
		!strings.Contains(v.out.String(), "moved on since, to revision 6: Task running") {
		t.Errorf("exit %d, %q", code, v.out.String())
	}
	if n := len(s.operations()); n != asked {
		t.Errorf("--offline asked the host %d times", n-asked)
	}
	if doc := v.ok(t, "read", taskA, "--offline", "--workspace", "beta"); doc["published"].(map[string]any)["newest_revision"] != 6.0 {
		t.Errorf("document %v", doc)
	}
	v.fails(t, exitFailed, "absent", "read", taskA, "--offline", "--workspace", "alpha")
	v.fails(t, exitUsage, "usage", "read", taskA, "--offline", "--cursor", "{}")

	s.set(func(nip.Request) (nip.Outcome, *nip.Refusal) { return nil, &nip.Refusal{Code: nip.Revoked} })
	v.fails(t, exitFailed, "revoked", "read", taskA)
	s.set(readable(nip.PhaseCompleted))
	if doc := v.ok(t, "read", taskA); doc["published"] != nil || doc["task"] == nil {
		t.Errorf("the host's answer: %v", doc)
	}
}

// The relay away too: what the profile read before is still there.
func TestDeviceOfflineWithoutRelay(t *testing.T) {
	t.Parallel()
	v, s, self := atHost(t)
	s.set(func(r nip.Request) (nip.Outcome, *nip.Refusal) {
		return nip.Dispatched{Operation: "task.command", Reference: taskA}, nil
	})
	command := v.ok(t, "queue", taskA, "later", "--based-on", "1")["command"].(string)
	zero := 0
	s.publishPage(self, 4, time.Now().Unix())
	s.publishStates(self, 4, time.Now().Unix(), nip.CommandState{Command: nip.CommandID(command), State: "held", Position: &zero})
	v.ok(t, "read", taskA, "--offline")
	s.stop()
	if code := v.run(t, "read", taskA, "--offline", "--timeout", "1s"); code != exitOK || !strings.Contains(v.err.String(), "relay could not be read") {
		t.Errorf("exit %d, %q", code, v.err.String())
	}
	for _, args := range [][]string{{"commands", "--timeout", "1s"}, {"commands", taskA, "--offline"}} {
		doc := v.ok(t, args...)
		row := doc["commands"].([]any)[0].(map[string]any)
		if row["state"] != "held" || row["command"] != command || doc["relay_read"] != false {
			t.Errorf("%q: %v", args, doc)
		}
	}
}

// Where each command stands, from the outbox to what the host published.
func TestDeviceCommandStates(t *testing.T) {
	t.Parallel()
	v, s, self := atHost(t)
	if doc := v.ok(t, "commands"); len(doc["commands"].([]any)) != 0 || doc["relay_read"] != true {
		t.Errorf("document %v", doc)
	}
	if code := v.run(t, "commands"); code != exitOK || v.out.String() != "no commands\n" {
		t.Errorf("exit %d, %q", code, v.out.String())
	}
	s.set(silent)
	id := testID(t)
	v.fails(t, exitUnreachable, "no_answer", "queue", taskA, "later", "--based-on", "1", "--timeout", "1s", "--command", id)
	now := time.Now().Unix()
	two, five := 2, int64(5)
	zero := 0
	for i, tt := range []struct {
		row   *nip.CommandState
		state string
		words string
	}{
		{nil, "waiting", "waiting to be sent, 1 tries"},
		{&nip.CommandState{State: "received"}, "received", "received, without a reply yet"},
		{&nip.CommandState{State: "held", Position: &two}, "held", "held, 2 ahead of it"},
		{&nip.CommandState{State: "held", Position: &zero}, "held", "held, the next to run"},
		{&nip.CommandState{State: "dispatching"}, "dispatching", "dispatching"},
		{&nip.CommandState{State: "applied", Revision: &five}, "applied", "applied at revision 5"},
		{&nip.CommandState{State: "rejected", Reason: nip.Conflict}, "refused", "refused: conflict"},
		{&nip.CommandState{State: "expired"}, "expired", "expired"},
		{&nip.CommandState{State: "superseded"}, "superseded", "superseded"},
		{&nip.CommandState{State: "removed"}, "removed", "removed"},
	} {
		if tt.row != nil {
			tt.row.Command = nip.CommandID(id)
			s.publishStates(self, int64(i), now+int64(i), *tt.row)
		}
		row := v.ok(t, "commands", taskA)["commands"].([]any)[0].(map[string]any)
		if row["state"] != tt.state || row["command"] != id || row["action"] != "queue" || row["in_outbox"] != true {
			t.Errorf("%s: %v", tt.state, row)
		}
		if code := v.run(t, "commands"); code != exitOK || !strings.Contains(v.out.String(), tt.words) {
			t.Errorf("%s: exit %d, %q", tt.state, code, v.out.String())
		}
	}
	// The outbox keeps it until the host's reply, and says what is known.
	rows := v.ok(t, "outbox")["outbox"].([]any)
	if row := rows[0].(map[string]any); row["published"] != "removed" || row["state"] != "waiting" {
		t.Errorf("outbox %v", rows)
	}
	if code := v.run(t, "outbox"); code != exitOK || !strings.Contains(v.out.String(), "the host published of it: removed") {
		t.Errorf("exit %d, %q", code, v.out.String())
	}
	v.ok(t, "outbox", "--drop", id)
	other := testID(t)
	v.fails(t, exitUnreachable, "no_answer", "queue", taskA, "x", "--based-on", "1", "--timeout", "1s", "--command", other)
	v.ok(t, "outbox", "--drop", other)
	for _, r := range v.ok(t, "commands")["commands"].([]any) {
		row := r.(map[string]any)
		want := map[string]string{id: "removed", other: "unknown"}[row["command"].(string)]
		if row["state"] != want || row["in_outbox"] != false {
			t.Errorf("after it was dropped: %v", row)
		}
	}
	v.fails(t, exitUsage, "usage", "commands", "abc")
}

// Watch prints pages, command states and hints as they come.
func TestDeviceWatchPublished(t *testing.T) {
	t.Parallel()
	v, s, self := atHost(t)
	s.set(func(nip.Request) (nip.Outcome, *nip.Refusal) {
		return nip.Dispatched{Operation: "task.command", Reference: taskA}, nil
	})
	command := nip.CommandID(v.ok(t, "queue", taskA, "later", "--based-on", "1")["command"].(string))
	for round, args := range [][]string{{"watch", "--json"}, {"watch", taskA, "--json"}, {"watch", taskA}} {
		// Each record is issued later than the one before, as a host's are: of
		// two of the same second either may be the newest.
		now, revision, zero := time.Now().Unix()-100+int64(10*round), int64(10*(round+1)), 0
		ctx, cancel := context.WithCancel(t.Context())
		v.ctx = ctx
		exit := make(chan int)
		v.out.reset() // what an earlier round showed is not this one's
		go func() { exit <- v.run(t, args...) }()
		s.publishPage(self, revision, now)
		s.publishStates(self, revision, now, nip.CommandState{Command: command, State: "held", Position: &zero})
		shown := func(want ...string) {
			t.Helper()
			relaytest.Eventually(t, strings.Join(args, " "), func() bool {
				for _, w := range want {
					if !strings.Contains(v.out.String(), w) {
						return false
					}
				}
				return true
			})
		}
		// The second record comes when the first was seen: one that is on the
		// relay with a newer one says nothing.
		words := len(args) == 2 && args[1] == taskA
		if words {
			shown("the host published a page", "agent: hello", "queue "+string(command), "held")
		} else {
			shown(`"event":"page"`, `"event":"command"`, `"state":"held"`)
		}
		s.publishStates(self, revision+1, now+1, nip.CommandState{Command: command, State: "removed"})
		s.publishHints(self, now)
		shown("removed")
		cancel()
		if code := <-exit; code != exitOK {
			t.Errorf("exit %d: %s", code, v.err.String())
		}
		v.ctx = nil
	}
	docs := v.ok(t, "hosts")["hosts"].([]any)[0].(map[string]any)
	if hints := docs["hints"].([]any); len(hints) != 1 || hints[0].(map[string]any)["address"] != string(s.url) {
		t.Errorf("hosts %v", docs)
	}
	if code := v.run(t, "hosts"); code != exitOK || !strings.Contains(v.out.String(), "may be reached by relay "+string(s.url)) {
		t.Errorf("exit %d, %q", code, v.out.String())
	}
}
