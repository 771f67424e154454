package host

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"holdfast/internal/runnable"
	"holdfast/internal/saferead"
	"holdfast/internal/skip"
	"holdfast/nip"
	"holdfast/owner"
	"holdfast/sandbox"
)

func (r *rig) sweep() {
	r.t.Helper()
	if err := r.h.starter.sweep(r.t.Context()); err != nil {
		r.t.Fatal(err)
	}
}

// What the policy as it stands starts. Launch is a record of calls here; a
// launched turn that nobody admitted keeps its place.
func TestPolicyStarts(t *testing.T) {
	two := func(p *Policy) { // the first rule that names the label wins
		second := p.Rules[0]
		second.Arguments = []string{"second"}
		p.Rules = append(p.Rules, second)
	}
	for _, row := range []struct {
		name     string
		prepare  func(r *rig)
		tasks    int
		launches int64
	}{
		{"no policy", func(*rig) {}, 1, 0},
		{"off", func(r *rig) { r.policy(func(p *Policy) { p.Enabled = false }) }, 1, 0},
		{"unreadable", func(r *rig) { r.write("policy.json", "{") }, 1, 0},
		{"a newer policy", func(r *rig) { r.policy(func(p *Policy) { p.V = "holdfast.policy.v2" }) }, 1, 0},
		{"no rule for the label", func(r *rig) { r.policy(func(p *Policy) { p.Rules[0].Workspaces = []nip.Label{"other"} }) }, 1, 0},
		{"on", func(r *rig) { r.policy() }, 1, 1},
		{"two at once", func(r *rig) { r.policy() }, 3, 2},
		{"one at once", func(r *rig) { r.policy(func(p *Policy) { p.MaxRunning = 1 }) }, 3, 1},
		{"the first rule", func(r *rig) { r.policy(two) }, 1, 1},
		{"the label is gone", func(r *rig) {
			r.policy()
			if err := RemoveWorkspace(r.home, "demo"); err != nil {
				r.t.Fatal(err)
			}
		}, 1, 0},
		{"another adapter than the task's", func(r *rig) { r.policy(func(p *Policy) { p.Rules[0].Adapter = owner.BoundedCommand }) }, 1, 0},
	} {
		t.Run(row.name, func(t *testing.T) {
			r := newRig(t)
			d := r.pair(nip.PairingRights())
			var grants []owner.Grant
			r.launch = func(s *owner.Store, id owner.TaskID, digest owner.Digest) (*owner.Launched, error) {
				raw, err := s.GetBlob(digest, 64<<10)
				if err != nil {
					t.Fatal(err)
				}
				g, err := owner.ParseGrant(raw)
				if err != nil {
					t.Fatal(err)
				}
				grants = append(grants, g)
				return &owner.Launched{PID: 1, Done: make(chan struct{})}, nil
			}
			t.Cleanup(func() { close(r.h.stopped) })
			for range row.tasks {
				r.create(d, "p")
			}
			row.prepare(r)
			r.sweep()
			r.sweep() // changes nothing
			if got := r.launches.Load(); got != row.launches {
				t.Fatalf("%d launches, want %d", got, row.launches)
			}
			for _, g := range grants {
				if g.Arguments[0] != "-c" || g.ExpectedRevision != 1 || g.PolicyDigest == "" || string(g.Network) != `"none"` {
					t.Errorf("grant %+v", g)
				}
			}
		})
	}
}

func (r *rig) write(name, text string) {
	r.t.Helper()
	if err := os.WriteFile(filepath.Join(r.home, name), []byte(text), 0o600); err != nil {
		r.t.Fatal(err)
	}
}

// Turns without anybody's word behind them stay where they are, and a policy
// edited between two turns holds from the next start on.
func TestInertAndEdited(t *testing.T) {
	r := newRig(t)
	t.Cleanup(func() { close(r.h.stopped) })
	r.policy(func(p *Policy) { p.MaxRunning = 1 })
	raw, err := owner.EncodeCommand(owner.Command{CommandID: "c", TaskID: "by-hand", Action: owner.Action{Submit: &owner.Intent{
		Title: "t", Prompt: "p", Workspace: owner.Workspace{Path: r.repo}, Configuration: owner.Configuration{Adapter: owner.PromptCommand}}}})
	if err != nil {
		t.Fatal(err)
	}
	if err := r.c.Operate(t.Context(), "task.apply", mustRaw(t, TaskArgs{Request: raw, Verb: "submit"}), func(any) error { return nil }); err != nil {
		t.Fatal(err)
	}
	r.sweep()
	if r.launches.Load() != 0 {
		t.Fatal("an inert turn was started")
	}
	d := r.pair(nip.PairingRights())
	a, b := r.create(d, "a"), r.create(d, "b")
	var started []owner.TaskID
	r.launch = func(_ *owner.Store, id owner.TaskID, _ owner.Digest) (*owner.Launched, error) {
		started = append(started, id)
		return &owner.Launched{PID: 1, Done: make(chan struct{})}, nil
	}
	r.sweep()
	if len(started) != 1 {
		t.Fatalf("started %v", started)
	}
	first, second := a, b
	if started[0] == owner.TaskID(b) {
		first, second = b, a
	}
	end := r.begin(first)
	r.policy(func(p *Policy) { p.Enabled = false })
	r.sweep()
	if got := r.task(first); got.Status != owner.Running {
		t.Fatalf("the edit reached a running turn: %s", got.Status)
	}
	end(owner.Result{})
	r.sweep()
	if len(started) != 1 {
		t.Fatal("started with the policy off")
	}
	r.policy()
	r.sweep()
	if len(started) != 2 || started[1] != owner.TaskID(second) {
		t.Fatalf("started %v", started)
	}
}

// An owner that ends before admission is tried twice, then the turn says so. A
// launch that fails outright counts as one.
func TestOwnerNeverAdmits(t *testing.T) {
	for _, row := range []struct {
		name   string
		launch func(*owner.Store, owner.TaskID, owner.Digest) (*owner.Launched, error)
	}{
		{"killed", func(*owner.Store, owner.TaskID, owner.Digest) (*owner.Launched, error) {
			done := make(chan struct{})
			close(done)
			return &owner.Launched{PID: 1, Done: done}, nil
		}},
		{"cannot be started", func(*owner.Store, owner.TaskID, owner.Digest) (*owner.Launched, error) {
			return nil, errors.New("no processes left")
		}},
	} {
		t.Run(row.name, func(t *testing.T) {
			r := newRig(t)
			r.policy()
			r.launch = row.launch
			d := r.pair(nip.PairingRights())
			task := r.create(d, "p")
			r.sweep()
			r.h.crew.Wait()
			r.restart() // the count is on disk
			r.h.accessChanged()
			for range 3 {
				r.index()
				r.sweep()
				r.h.crew.Wait()
			}
			if got := r.launches.Load(); got != 2 {
				t.Fatalf("%d launches", got)
			}
			if got := r.task(task); got.NotStarted == "" || got.Status != owner.Cancelled {
				t.Fatalf("%s %q", got.Status, got.NotStarted)
			}
		})
	}
}

// index fills the index as the start of a host does.
func (r *rig) index() {
	r.t.Helper()
	ids, err := r.c.store.List()
	if err != nil {
		r.t.Fatal(err)
	}
	for _, id := range ids {
		r.h.taskChanged(id)
	}
}

// With real owner processes: a turn that runs to its end, a program that is
// missing, and a workspace that vanished between the order and the start.
func TestRealTurns(t *testing.T) {
	dir, err := filepath.EvalSymlinks(t.TempDir()) // the sandbox makes /dev itself, so nothing below it can be a workspace
	if err != nil {
		t.Fatal(err)
	}
	r := newRigIn(t, dir)
	r.git()
	r.launch = owner.Launch
	prog := filepath.Join(r.dir, "program")
	if err := runnable.Write(prog, []byte("#!/bin/sh\ncat\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	gone := filepath.Join(r.dir, "gone")
	if err := os.Mkdir(gone, 0o755); err != nil {
		t.Fatal(err)
	}
	if _, err := AddWorkspace(r.home, "gone", gone); err != nil {
		t.Fatal(err)
	}
	r.policy(func(p *Policy) {
		p.MaxRunning = 4
		other := p.Rules[0]
		other.Workspaces = []nip.Label{"gone"}
		p.Rules = append(p.Rules, other)
	})
	d := r.pair(nip.PairingRights())
	r.serve()
	task := nip.TaskID(r.overWire(d, nip.TaskCreate{Title: "t", Prompt: "said by the prompt", Workspace: "demo"}).Outcome.(nip.Dispatched).Reference)
	r.until("the turn ends", func() bool { t := r.task(task); return t.Ended() })
	done := r.task(task)
	if able := sandbox.Probe(); able.Mechanism == "" {
		skip.Mounts(t, "no turn can be confined on this machine: "+fmt.Sprint(able.Gaps))
	}
	if done.Run == nil {
		t.Fatalf("not started: %s", done.NotStarted)
	}
	if done.Run.Result.Ending == "" || done.Execution != owner.ExecFinished {
		v, _ := r.c.store.View(done.ID, 20, 8<<10, nil)
		for _, s := range v.Steps {
			t.Logf("%s", s.JSON)
		}
		t.Fatalf("%s %s", done.Execution, done.Run.Result.Ending)
	}
	if err := os.RemoveAll(gone); err != nil {
		t.Fatal(err)
	}
	vanished := nip.TaskID(r.overWire(d, nip.TaskCreate{Title: "t", Prompt: "p", Workspace: "gone"}).Outcome.(nip.Dispatched).Reference)
	r.until("the vanished workspace is named", func() bool { return r.task(vanished).NotStarted != "" })
	r.policy(func(p *Policy) { p.Rules[0].Program = filepath.Join(r.dir, "missing") })
	missing := nip.TaskID(r.overWire(d, nip.TaskCreate{Title: "t", Prompt: "p", Workspace: "demo"}).Outcome.(nip.Dispatched).Reference)
	r.until("the missing program is named", func() bool { return r.task(missing).NotStarted != "" })
	for _, id := range []nip.TaskID{vanished, missing} {
		got := r.task(id)
		phase, headline, _ := got.Summary()
		if phase != "cancelled" || len(headline) < len("Couldn't start: x") || headline[:15] != "Couldn't start:" {
			t.Errorf("%s %q", phase, headline)
		}
	}
	r.until("owners leave", func() bool {
		for _, id := range []nip.TaskID{task, vanished, missing} {
			if alive, err := r.c.store.OwnerAlive(owner.TaskID(id)); err != nil || alive || r.h.starter.launching(owner.TaskID(id)) {
				return false
			}
		}
		return true
	})
}

// The closed policy document.
func TestPolicyDocument(t *testing.T) {
	dir := memDir(t)
	real := filepath.Join(dir, "program")
	if err := os.WriteFile(real, []byte("#!/bin/sh\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	link := filepath.Join(dir, "link")
	if err := os.Symlink(real, link); err != nil {
		t.Fatal(err)
	}
	rule := func(change string) string {
		base := map[string]string{"workspaces": `["demo"]`, "adapter": `"prompt-command"`, "program": `"` + link + `"`,
			"arguments": `[]`, "write": "true", "wall_seconds": "60", "stream_bytes": "65536", "memory_bytes": "134217728"}
		out := "{"
		for _, k := range []string{"workspaces", "adapter", "program", "arguments", "write", "wall_seconds", "stream_bytes", "memory_bytes"} {
			out += `"` + k + `":` + base[k] + ","
		}
		if change == "" {
			return out[:len(out)-1] + "}"
		}
		return out + change + "}"
	}
	// set replaces one member of the rule.
	set := func(member, value string) string {
		r := rule("")
		i := indexAfter(r, `"`+member+`":`)
		j := i
		for depth := 0; ; j++ {
			if r[j] == '[' {
				depth++
			}
			if r[j] == ']' {
				depth--
			}
			if depth == 0 && (r[j] == ',' || r[j] == '}') {
				break
			}
		}
		return r[:i] + value + r[j:]
	}
	doc := func(rules string) string {
		return `{"v":"holdfast.policy.v1","enabled":true,"max_running":2,"rules":[` + rules + `]}`
	}
	known := func(l nip.Label) bool { return l == "demo" }
	for _, row := range []struct {
		name string
		doc  string
		ok   bool
	}{
		{"plain", doc(rule("")), true},
		{"everything", doc(rule(`"network":"host","read":["` + dir + `"],"environment":["TOKEN_1"],"git":"hidden","degraded":true`)), true},
		{"an allow list", doc(rule(`"network":{"allow":["api.example.com:443","10.1.2.3:80"]}`)), true},
		{"an allow list with loopback", doc(rule(`"network":{"allow":["127.0.0.1:80"]}`)), false},
		{"an allow list with a wildcard", doc(rule(`"network":{"allow":["*.example.com:443"]}`)), false},
		{"not JSON", `{`, false},
		{"another version", `{"v":"holdfast.policy.v2","enabled":true,"max_running":2,"rules":[` + rule("") + `]}`, false},
		{"unknown member", `{"v":"holdfast.policy.v1","enabled":true,"max_running":2,"engines":[],"rules":[` + rule("") + `]}`, false},
		{"unknown member of a rule", doc(rule(`"engine":"codex"`)), false},
		{"a member in other case", doc(rule(`"Network":"host"`)), false},
		{"a member twice", doc(rule(`"write":false`)), false},
		{"text behind it", doc(rule("")) + "x", false},
		{"no rules", doc(""), false},
		{"max_running 0", `{"v":"holdfast.policy.v1","enabled":true,"max_running":0,"rules":[` + rule("") + `]}`, false},
		{"max_running 9", `{"v":"holdfast.policy.v1","enabled":true,"max_running":9,"rules":[` + rule("") + `]}`, false},
		{"keep_worktrees_days 366", `{"v":"holdfast.policy.v1","enabled":true,"max_running":1,"keep_worktrees_days":366,"rules":[` + rule("") + `]}`, false},
		{"a label nobody knows", doc(set("workspaces", `["elsewhere"]`)), false},
		{"no labels", doc(set("workspaces", `[]`)), false},
		{"another adapter", doc(set("adapter", `"repository"`)), false},
		{"a relative program", doc(set("program", `"sh"`)), false},
		{"a missing program", doc(set("program", `"`+dir+`/none"`)), false},
		{"a missing path to read", doc(rule(`"read":["` + dir + `/none"]`)), false},
		{"wall 0", doc(set("wall_seconds", "0")), false},
		{"wall of a day", doc(set("wall_seconds", "86400")), true},
		{"wall over a day", doc(set("wall_seconds", "86401")), false},
		{"wall over an hour for bounded-command", doc(`{"workspaces":["demo"],"adapter":"bounded-command","program":"` + real + `","arguments":[],"write":false,"wall_seconds":3601,"stream_bytes":65536,"memory_bytes":134217728}`), false},
		{"stream too small", doc(set("stream_bytes", "1023")), false},
		{"stream too large", doc(set("stream_bytes", "1048577")), false},
		{"memory too small", doc(set("memory_bytes", "67108863")), false},
		{"memory too large", doc(set("memory_bytes", "8589934593")), false},
		{"a number with a fraction", doc(set("wall_seconds", "1.5")), false},
		{"a NUL in an argument", doc(set("arguments", `["a\u0000b"]`)), false},
		{"no variable name", doc(rule(`"environment":["A-B"]`)), false},
		{"another network", doc(rule(`"network":"lan"`)), false},
		{"another git", doc(rule(`"git":"write"`)), false},
	} {
		t.Run(row.name, func(t *testing.T) {
			p, err := ParsePolicy([]byte(row.doc), known)
			if (err == nil) != row.ok {
				t.Fatalf("error %v", err)
			}
			if err != nil && !errors.Is(err, ErrUsage) {
				t.Errorf("not a usage error: %v", err)
			}
			if err == nil && p.Rules[0].Program != real {
				t.Errorf("program %s: the link was not resolved", p.Rules[0].Program)
			}
		})
	}
}

func indexAfter(s, what string) int {
	for i := 0; i+len(what) <= len(s); i++ {
		if s[i:i+len(what)] == what {
			return i + len(what)
		}
	}
	return -1
}

// Labels and their roots.
func TestWorkspaces(t *testing.T) {
	r := newRig(t)
	file := filepath.Join(r.dir, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, row := range []struct {
		name  string
		label nip.Label
		path  string
		ok    bool
	}{
		{"again", "demo", r.repo, true},
		{"a second label", "two", r.repo, true},
		{"the same label elsewhere", "demo", r.dir, false},
		{"a file", "f", file, false},
		{"nothing there", "n", filepath.Join(r.dir, "none"), false},
		{"the home", "h", r.home, false},
		{"inside the home", "h", filepath.Join(r.home, "tasks"), false},
		{"around the home", "h", r.dir, false},
		{"a slash", "a/b", r.repo, false},
		{"dots", "..", r.repo, false},
		{"a control character", "a\nb", r.repo, false},
		{"no UTF-8", "a\xff", r.repo, false},
		{"empty", "", r.repo, false},
	} {
		t.Run(row.name, func(t *testing.T) {
			if _, err := AddWorkspace(r.home, row.label, row.path); (err == nil) != row.ok {
				t.Fatalf("error %v", err)
			}
		})
	}
	for _, bad := range []string{
		`{`, `{"v":"holdfast.workspaces.v2","workspaces":[]}`, `{"v":"holdfast.workspaces.v1","workspaces":[],"x":1}`,
		`{"v":"holdfast.workspaces.v1","workspaces":[{"label":"a","path":"/x"},{"label":"a","path":"/y"}]}`,
		`{"v":"holdfast.workspaces.v1","workspaces":[{"label":"a/b","path":"/x"}]}`,
		`{"v":"holdfast.workspaces.v1","workspaces":[{"label":"a","path":"x"}]}`,
	} {
		r.write("workspaces.json", bad)
		if _, err := loadWorkspaces(r.home); err == nil {
			t.Errorf("read %s", bad)
		}
	}
	if err := os.Remove(filepath.Join(r.home, "workspaces.json")); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(file, filepath.Join(r.home, "workspaces.json")); err != nil {
		t.Fatal(err)
	}
	if _, err := loadWorkspaces(r.home); !errors.Is(err, saferead.ErrUnsafe) {
		t.Errorf("a link was followed: %v", err)
	}
}

func FuzzPolicy(f *testing.F) {
	f.Add([]byte(`{"v":"holdfast.policy.v1","enabled":true,"max_running":2,"rules":[{"workspaces":["demo"],"adapter":"prompt-command","program":"/bin/sh","arguments":["-c"],"write":true,"network":{"allow":["a:1"]},"wall_seconds":60,"stream_bytes":65536,"memory_bytes":134217728}]}`))
	f.Fuzz(func(t *testing.T, raw []byte) {
		p, err := decodePolicy(raw)
		if err != nil {
			return
		}
		out, err := EncodePolicy(p)
		if err != nil {
			t.Fatal(err)
		}
		again, err := decodePolicy(out)
		if err != nil {
			t.Fatalf("what was written cannot be read: %v\n%s", err, out)
		}
		if twice, err := EncodePolicy(again); err != nil || string(twice) != string(out) {
			t.Fatalf("not stable:\n%s\n%s", out, twice)
		}
	})
}

func FuzzWorkspaces(f *testing.F) {
	dir := memDir(f)
	f.Add([]byte(`{"v":"holdfast.workspaces.v1","workspaces":[{"label":"a","path":"/x"}]}`))
	f.Fuzz(func(t *testing.T, raw []byte) {
		if err := os.WriteFile(filepath.Join(dir, "workspaces.json"), raw, 0o600); err != nil {
			t.Fatal(err)
		}
		ws, err := loadWorkspaces(dir)
		if err != nil {
			return
		}
		if _, err := nip.EncodeOutcome(nip.Workspaces{Workspaces: ws.labels()}); err != nil && len(ws.Workspaces) > 0 {
			t.Fatalf("what was read cannot be told: %v", err)
		}
	})
}
