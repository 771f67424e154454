package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"holdfast/host"
	"holdfast/owner"
)

// TestServeOnAnotherRelay drives a task over a relay that is a process of its
// own: the host's websocket client is on the path instead of the embedded one.
func TestServeOnAnotherRelay(t *testing.T) {
	t.Parallel()
	s, ctx := stage(t)
	addr := freePort(t)
	relay, err := s.spawn("relay", "serve", "--json", "--home", filepath.Join(s.dir, "relay-home"), "--listen", addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(relay.kill)
	ready, _, err := relay.await(ctx, 0, "the relay", isEvent("ready"))
	if err != nil {
		t.Fatal(err)
	}
	url := ready["relay"].(string)
	if err := s.stepHome(ctx); err != nil {
		t.Fatal(err)
	}
	if s.host, err = s.spawn("serve", "--json", "--home", s.home, "--no-relay", "--relay", url); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.host.kill)
	if _, _, err := s.host.await(ctx, 0, "the host", isEvent("ready")); err != nil {
		t.Fatal(err)
	}
	var inv host.Invited
	if err := s.operator(ctx, &inv, "invite"); err != nil {
		t.Fatal(err)
	}
	if string(inv.Relay) != url {
		t.Errorf("invited to %s, not to %s", inv.Relay, url)
	}
	if s.device, err = s.pair(ctx, "phone", inv.Code); err != nil {
		t.Fatal(err)
	}
	if s.task, err = s.create(ctx, "over another relay", "hello"); err != nil {
		t.Fatal(err)
	}
	if err := s.ended(ctx, 1, owner.Finished); err != nil {
		t.Fatal(err)
	}
	// The relay goes away and comes back under the same name; the host's link
	// finds it again, and a command gets through.
	relay.end()
	if relay, err = s.spawn("relay", "serve", "--json", "--home", filepath.Join(s.dir, "relay-home"), "--listen", addr); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(relay.kill)
	if _, err := s.command(ctx, "send", s.task, "hello again", "--timeout", "60s"); err != nil {
		t.Fatal(err)
	}
	if err := s.ended(ctx, 2, owner.Finished); err != nil {
		t.Fatal(err)
	}
}

// TestBoundedCommand is the local operator's road: an exact task command, a
// public execution grant, a turn in the foreground and one detached.
func TestBoundedCommand(t *testing.T) {
	t.Parallel()
	s, ctx := stage(t)
	if err := s.stepHome(ctx); err != nil {
		t.Fatal(err)
	}
	shell, err := filepath.EvalSymlinks("/bin/sh")
	if err != nil {
		t.Fatal(err)
	}
	write := func(name string, v any) string {
		raw, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		path := filepath.Join(s.dir, name)
		if err := os.WriteFile(path, raw, 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	for _, row := range []struct{ id, verb string }{{"by-hand-1", "execute"}, {"by-hand-2", "start"}} {
		t.Run(row.verb, func(t *testing.T) {
			submit := write("submit.json", map[string]any{
				"schema": "openagents.coder.task-command.v1", "command_id": "submit-" + row.id, "task_id": row.id, "expected_revision": nil,
				"action": map[string]any{"type": "submit", "intent": map[string]any{
					"title": "by hand", "prompt": "say what is here", "workspace": map[string]any{"path": s.repo},
					"configuration": map[string]any{"adapter": "bounded-command", "model": nil},
				}},
			})
			var first, again owner.Receipt
			if err := s.operator(ctx, &first, "task", "submit", "--file", submit); err != nil {
				t.Fatal(err)
			}
			if err := s.operator(ctx, &again, "task", "submit", "--file", submit); err != nil || again != first {
				t.Errorf("an exact retry returned %+v, %v", again, err)
			}
			if code, _ := exitOf(t, s, ctx, "task", "cancel", "--file", submit, "--home", s.home); code != exitUsage {
				t.Errorf("the verb took another document: exit %d", code)
			}
			var task owner.Task
			if err := s.operator(ctx, &task, "task", "show", row.id); err != nil {
				t.Fatal(err)
			}
			grant := write("grant.json", map[string]any{
				"schema": "openagents.coder.task-execution-grant.v1", "task_id": row.id, "intent_digest": task.IntentDigest,
				"expected_revision": task.Revision, "program": shell, "arguments": []string{"-c", "cat README.md; echo done >&2; exit 3"},
				"write_workspace": false, "wall_seconds": 60, "stream_bytes": 65536, "memory_bytes": 268435456,
			})
			s.task = row.id
			if err := s.operator(ctx, nil, "task", row.verb, "--grant", grant); err != nil {
				t.Fatal(err)
			}
			if err := s.ended(ctx, 1, owner.Finished); err != nil {
				t.Fatal(err)
			}
			var view struct {
				Task     owner.Task
				Evidence string
				Steps    []struct {
					Source, Message string
				}
			}
			if err := s.operator(ctx, &view, "task", "view", row.id); err != nil {
				t.Fatal(err)
			}
			r := view.Task.Run.Result
			if view.Evidence != "sealed" || view.Task.Execution != owner.ExecFailed || r.Ending != "exit 3" || !r.GroupClear {
				t.Errorf("evidence %s, execution %s, result %+v", view.Evidence, view.Task.Execution, r)
			}
			var said strings.Builder
			for _, st := range view.Steps {
				said.WriteString(st.Message)
			}
			if !strings.Contains(said.String(), "A workspace to try Holdfast in") || !strings.Contains(said.String(), "done") {
				t.Errorf("the transcript says %q", said.String())
			}
			// The same grant a second time starts nothing.
			if code, msg := exitOf(t, s, ctx, "task", "execute", "--grant", grant, "--home", s.home); code == 0 {
				t.Errorf("the same grant ran twice: %s", msg)
			}
		})
	}
}
