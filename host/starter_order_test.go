package host

import (
	"encoding/json"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"holdfast/nip"
	"holdfast/owner"
	"holdfast/owner/gitguard"
	"holdfast/sandbox"
)

// starts records which tasks are launched. leave is the end of a task's owner process.
func (r *rig) starts() (started *[]owner.TaskID, leave func(nip.TaskID)) {
	started = new([]owner.TaskID)
	done := map[owner.TaskID]chan struct{}{}
	r.t.Cleanup(func() { close(r.h.stopped) })
	r.launch = func(_ *owner.Store, id owner.TaskID, _ owner.Digest) (*owner.Launched, error) {
		*started = append(*started, id)
		done[id] = make(chan struct{})
		return &owner.Launched{PID: 1, Done: done[id]}, nil
	}
	return started, func(id nip.TaskID) {
		close(done[owner.TaskID(id)])
		r.until("the owner is reaped", func() bool { return !r.h.starter.launching(owner.TaskID(id)) })
	}
}

// TestHeldMessageTakesItsTurn: a message held while its task ran starts the next turn by itself, within the places
// that there are, behind what others asked for before, and not at all while the policy is off.
func TestHeldMessageTakesItsTurn(t *testing.T) {
	r := newRig(t)
	started, leave := r.starts()
	r.policy(func(p *Policy) { p.MaxRunning = 1 })
	d := r.pair(nip.StandardRights())
	busy := r.create(d, "busy")
	r.sweep()
	end := r.begin(busy)
	r.clock.add(1)
	r.wantCode(r.ask(d, nip.TaskCommand{Command: r.command(busy, nip.Queue, "and then this")}), "")
	r.clock.add(1)
	other := r.create(d, "other")
	r.sweep()
	if len(*started) != 1 {
		t.Fatalf("started %v", *started)
	}
	r.clock.add(1)
	end(owner.Result{})
	leave(busy)
	if err := r.h.deadlines.evaluate(t.Context(), busy); err != nil {
		t.Fatal(err)
	}
	if got := r.task(busy); got.Status != owner.Queued || got.Turn() != 2 || got.EffectivePrompt() != "and then this" {
		t.Fatalf("the held message made no turn: %s, turn %d", got.Status, got.Turn())
	}
	r.index()
	r.sweep()
	r.sweep()
	if len(*started) != 2 || (*started)[1] != owner.TaskID(other) {
		t.Fatalf("started %v, want %s before the second turn of %s", *started, other, busy)
	}
	end = r.begin(other)
	r.sweep()
	end(owner.Result{})
	leave(other)
	r.index()
	r.policy(func(p *Policy) { p.Enabled = false })
	r.sweep()
	if len(*started) != 2 {
		t.Fatal("a held turn started with the policy off")
	}
	r.policy()
	r.sweep()
	if len(*started) != 3 || (*started)[2] != owner.TaskID(busy) {
		t.Fatalf("started %v", *started)
	}
}

// TestNewWordsKeepTheirPlace: a turn that is corrected while it waits is not put behind others.
func TestNewWordsKeepTheirPlace(t *testing.T) {
	r := newRig(t)
	started, _ := r.starts()
	r.policy(func(p *Policy) { p.MaxRunning = 1 })
	d := r.pair(nip.PairingRights())
	first := r.create(d, "first")
	r.sweep()
	end := r.begin(first)
	r.clock.add(1)
	second := r.create(d, "second")
	r.clock.add(1)
	third := r.create(d, "third")
	r.sweep()
	r.clock.add(1)
	r.wantCode(r.ask(d, nip.TaskSteer{Task: second, Revision: r.task(second).Revision, Prompt: "rather this"}), "")
	if r.task(second).UpdatedAt <= r.task(third).UpdatedAt {
		t.Fatal("the correction is not the newest; this test proves nothing")
	}
	end(owner.Result{})
	r.index()
	r.sweep()
	if len(*started) != 2 || (*started)[1] != owner.TaskID(second) {
		t.Fatalf("started %v, want %s before %s", *started, second, third)
	}
}

// TestHandStartedTakesNoPlace: max_running is about what the policy starts.
func TestHandStartedTakesNoPlace(t *testing.T) {
	for _, row := range []struct {
		name   string
		policy owner.Digest
		want   int
	}{{"by hand", "", 1}, {"by the policy", owner.DigestOf([]byte("p")), 0}} {
		t.Run(row.name, func(t *testing.T) {
			r := newRig(t)
			started, _ := r.starts()
			d := r.pair(nip.PairingRights())
			running := owner.TaskID(r.create(d, "running"))
			task := r.task(nip.TaskID(running))
			raw, err := owner.EncodeGrant(owner.Grant{Schema: "holdfast.execution-grant.v1", TaskID: running, IntentDigest: task.IntentDigest, ExpectedRevision: 1,
				Program: "/bin/sh", Arguments: []string{}, WallSeconds: 60, StreamBytes: 1024, MemoryBytes: 64 << 20, Adapter: owner.PromptCommand,
				Network: json.RawMessage(`"none"`), Read: []string{}, Environment: []string{}, Git: "read", PolicyDigest: row.policy})
			if err != nil {
				t.Fatal(err)
			}
			grant, err := r.c.store.PutBlob(raw)
			if err != nil {
				t.Fatal(err)
			}
			own, err := r.c.store.Own(t.Context(), running, 0)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(own.Release)
			r.append(running, owner.Event{Admitted: &owner.Admission{
				GrantDigest: grant, Adapter: owner.PromptCommand, Workspace: "/w", Program: "/bin/sh", ProgramDigest: owner.DigestOf(nil),
				Network: json.RawMessage(`"none"`), Prompt: owner.DigestOf([]byte(task.EffectivePrompt())), ReadRevision: 1,
				TraceFile: owner.TraceName(1), Owner: sandbox.Identity{PID: os.Getpid(), BootID: "b"}, At: 1}})
			r.create(d, "waits")
			r.policy(func(p *Policy) { p.MaxRunning = 1 })
			r.sweep()
			if len(*started) != row.want {
				t.Fatalf("started %v, want %d", *started, row.want)
			}
		})
	}
}

// TestCausesFitAPhone: every cause that an owner or the host can end a turn with is shown whole, and nothing of it
// looks like a path or an address.
func TestCausesFitAPhone(t *testing.T) {
	causes := []string{"its owner ended before the turn was admitted", "the policy's rule does not fit this task"}
	for _, err := range []error{gitguard.ErrNotTop, gitguard.ErrUnsafe, gitguard.ErrNoCommit, gitguard.ErrFilter, gitguard.ErrNoGit} {
		causes = append(causes, err.Error())
	}
	for _, code := range []nip.Code{nip.Revoked, nip.Expired, nip.Stale, nip.MissingRight, nip.Forbidden} {
		causes = append(causes, lostStanding(code))
	}
	fixed := len(causes)
	files, err := filepath.Glob("../owner/*.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		f, err := parser.ParseFile(token.NewFileSet(), file, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(f, func(n ast.Node) bool {
			lit, ok := n.(*ast.CompositeLit)
			if !ok || len(lit.Elts) < 2 {
				return true
			}
			if id, ok := lit.Type.(*ast.Ident); !ok || id.Name != "cannot" {
				return true
			}
			if text, ok := lit.Elts[1].(*ast.BasicLit); ok {
				cause, err := strconv.Unquote(text.Value)
				if err != nil {
					t.Fatal(err)
				}
				causes = append(causes, cause)
			}
			return true
		})
	}
	if len(causes) < fixed+15 {
		t.Fatalf("only %d causes were found: this test looks for the wrong thing", len(causes)-fixed)
	}
	for _, c := range causes {
		said := "Couldn't start: " + c
		if got := string(nip.Headline(said, "")); got != said || strings.ContainsAny(c, "\n/") {
			t.Errorf("%q is shown as %q", said, got)
		}
	}
}
