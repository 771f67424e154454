package owner

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"holdfast/owner/snapshot"
)

// reading adds what is to be frozen to the requirements that a grant has by now.
func reading(targets []string, knowledge ...Knowledge) func(*Grant) {
	return func(g *Grant) {
		r := *g.Requirements
		r.InstructionTargets = append([]string{}, targets...)
		r.Knowledge = append([]Knowledge{}, knowledge...)
		g.Requirements = &r
	}
}

// pinned is the pin of a document as it stands in someEntry.
func pinned(path, doc string) Knowledge {
	return Knowledge{ID: "git.recovery", Version: 3, Digest: DigestOf([]byte(doc)), Path: path, Sources: []string{"reference", "another-source"}}
}

// tree writes files below a folder, and returns a snapshot of it.
func tree(t testing.TB, root string, files map[string]string) *snapshot.Tree {
	t.Helper()
	for name, text := range files {
		path := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		writeFile(t, path, []byte(text))
	}
	s, err := snapshot.Take(context.Background(), root, snapshot.Options{Exclude: excluded, At: time.Now()})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func canonicalDir(t testing.TB) string {
	t.Helper()
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

// The instructions of a target are those of every folder on the way to it, the outermost first; what is not there is
// passed over, and a file has none of its own.
func TestInstructions(t *testing.T) {
	const many = 300
	files := map[string]string{
		"AGENTS.md": "root", "a/AGENTS.md": "a", "a/b/AGENTS.md": "a/b", "a/b/c/file": "x", "a/b/c/AGENTS.md": "a/b/c",
		"b/AGENTS.md": "b", "b/deep/er/file": "x", "b-file": "x", "empty/AGENTS.md": "", "other/AGENTS.md": "never asked for",
		"AGENTS.md.d/AGENTS.md": "of a folder with such a name",
	}
	for i := range many {
		files[fmt.Sprintf("many/%03d/AGENTS.md", i)] = ""
	}
	root := canonicalDir(t)
	source := tree(t, root, files)
	for _, row := range []struct {
		name    string
		targets []string
		want    []string
	}{
		{"no target", nil, []string{"AGENTS.md"}},
		{"a folder", []string{"a/b"}, []string{"AGENTS.md", "a/AGENTS.md", "a/b/AGENTS.md"}},
		{"a file", []string{"a/b/c/file"}, []string{"AGENTS.md", "a/AGENTS.md", "a/b/AGENTS.md", "a/b/c/AGENTS.md"}},
		{"a file of the root", []string{"b-file"}, []string{"AGENTS.md"}},
		{"folders without", []string{"b/deep/er"}, []string{"AGENTS.md", "b/AGENTS.md"}},
		{"what is not there yet", []string{"a/new/file", "new"}, []string{"AGENTS.md", "a/AGENTS.md"}},
		{"an empty one", []string{"empty"}, []string{"AGENTS.md", "empty/AGENTS.md"}},
		{"the file itself", []string{"b/AGENTS.md"}, []string{"AGENTS.md", "b/AGENTS.md"}},
		{"a folder with such a name", []string{"AGENTS.md.d"}, []string{"AGENTS.md", "AGENTS.md.d/AGENTS.md"}},
		{"several, by depth and then by path", []string{"b/deep", "a/b/c", "a"},
			[]string{"AGENTS.md", "a/AGENTS.md", "b/AGENTS.md", "a/b/AGENTS.md", "a/b/c/AGENTS.md"}},
	} {
		t.Run(row.name, func(t *testing.T) {
			f, err := freezeContext(&Requirements{InstructionTargets: row.targets}, root, source)
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for i, in := range f.doc.Instructions {
				got = append(got, in.Path)
				if text := files[in.Path]; string(f.texts[i]) != text || in.Bytes != int64(len(text)) || in.Digest != DigestOf([]byte(text)) ||
					filepath.Join(in.Scope, "AGENTS.md") != in.Path {
					t.Errorf("%+v: %q", in, f.texts[i])
				}
			}
			if !slices.Equal(got, row.want) {
				t.Errorf("%v, want %v", got, row.want)
			}
		})
	}
	var all []string
	for i := range many {
		all = append(all, fmt.Sprintf("many/%03d", i))
	}
	if f, err := freezeContext(&Requirements{InstructionTargets: all[:maxInstructions-1]}, root, source); err != nil || len(f.doc.Instructions) != maxInstructions {
		t.Errorf("%v", err)
	}
	var no *cannot
	if _, err := freezeContext(&Requirements{InstructionTargets: all[:maxInstructions]}, root, source); !errors.As(err, &no) || no.code != "limit_exceeded" {
		t.Errorf("%v", err)
	}
}

// Each way in which a workspace does not have what is to be frozen, or has something else.
func TestFreezeRefusals(t *testing.T) {
	big := func(n int) string { return strings.Repeat("x", n) }
	entryOf := func(n int) string { return someEntry + big(n-len(someEntry)) }
	numbered := func(i, n int) (Knowledge, string) {
		doc := strings.Replace(entryOf(n), "git.recovery", fmt.Sprintf("git.recover%d", i), 1)
		k := pinned(fmt.Sprintf("docs/%d.md", i), doc)
		k.ID = fmt.Sprintf("git.recover%d", i)
		return k, doc
	}
	link := func(t *testing.T, old, new string) {
		t.Helper()
		if err := os.Symlink(old, new); err != nil {
			t.Fatal(err)
		}
	}
	type setting struct {
		root string
		r    *Requirements
		file func(name, text string)
	}
	for _, row := range []struct {
		name, code, cause string
		make              func(t *testing.T, s setting) (after func())
	}{
		{"as it is", "", "", func(*testing.T, setting) func() { return nil }},
		{"an AGENTS.md of 64 KiB", "", "", func(_ *testing.T, s setting) func() { s.file("AGENTS.md", big(64<<10)); return nil }},
		{"one that is longer", "limit_exceeded", "an AGENTS.md is too long", func(_ *testing.T, s setting) func() {
			s.file("AGENTS.md", big(64<<10+1))
			return nil
		}},
		{"256 KiB of them", "", "", func(_ *testing.T, s setting) func() {
			for _, folder := range []string{"", "src/", "src/a/", "src/a/b/"} {
				s.file(folder+"AGENTS.md", big(64<<10))
			}
			s.r.InstructionTargets = []string{"src/a/b"}
			return nil
		}},
		{"a byte more of them", "limit_exceeded", "an AGENTS.md is too long", func(_ *testing.T, s setting) func() {
			for _, folder := range []string{"", "src/", "src/a/", "src/a/b/"} {
				s.file(folder+"AGENTS.md", big(64<<10))
			}
			s.file("src/a/b/c/AGENTS.md", "x")
			s.r.InstructionTargets = []string{"src/a/b/c"}
			return nil
		}},
		{"one that is no UTF-8", "invalid_command", "an AGENTS.md is not UTF-8", func(_ *testing.T, s setting) func() {
			s.file("src/AGENTS.md", "\xff")
			return nil
		}},
		{"one that is a link", "unsafe_path", "an AGENTS.md is a link", func(t *testing.T, s setting) func() {
			link(t, "../file", filepath.Join(s.root, "src/AGENTS.md"))
			return nil
		}},
		{"one that is a folder", "unsafe_path", "an AGENTS.md is a link, or no file", func(_ *testing.T, s setting) func() {
			s.file("src/AGENTS.md/file", "x")
			return nil
		}},
		{"one with a second name", "unsafe_path", "an AGENTS.md has a second name", func(t *testing.T, s setting) func() {
			if err := os.Link(filepath.Join(s.root, "file"), filepath.Join(s.root, "src/AGENTS.md")); err != nil {
				t.Fatal(err)
			}
			return nil
		}},
		{"one that changes while it is read", "unsafe_path", "an AGENTS.md changed", func(_ *testing.T, s setting) func() {
			return func() { s.file("AGENTS.md", "toor") }
		}},
		{"one whose folder becomes a link", "unsafe_path", "an AGENTS.md changed", func(t *testing.T, s setting) func() {
			s.file("src/AGENTS.md", "src")
			return func() {
				if err := os.Rename(filepath.Join(s.root, "src"), filepath.Join(s.root, "crs")); err != nil {
					t.Fatal(err)
				}
				link(t, "crs", filepath.Join(s.root, "src"))
			}
		}},
		{"a target over a link", "unsafe_path", "an instruction target leads over a link", func(t *testing.T, s setting) func() {
			link(t, "src", filepath.Join(s.root, "link"))
			s.r.InstructionTargets = []string{"link/a"}
			return nil
		}},
		{"a target that is a link", "unsafe_path", "an instruction target leads over a link", func(t *testing.T, s setting) func() {
			link(t, "src", filepath.Join(s.root, "link"))
			s.r.InstructionTargets = []string{"link"}
			return nil
		}},
		{"a target below a file", "unsafe_path", "no folder", func(_ *testing.T, s setting) func() {
			s.r.InstructionTargets = []string{"file/a"}
			return nil
		}},
		{"knowledge of 64 KiB", "", "", func(_ *testing.T, s setting) func() {
			s.file("docs/k.md", entryOf(64<<10))
			s.r.Knowledge = []Knowledge{pinned("docs/k.md", entryOf(64<<10))}
			return nil
		}},
		{"longer knowledge", "limit_exceeded", "the knowledge git.recovery is too long", func(_ *testing.T, s setting) func() {
			s.file("docs/k.md", entryOf(64<<10+1))
			s.r.Knowledge = []Knowledge{pinned("docs/k.md", entryOf(64<<10+1))}
			return nil
		}},
		{"256 KiB of knowledge", "", "", func(_ *testing.T, s setting) func() {
			s.r.Knowledge = nil
			for i := range 4 {
				k, doc := numbered(i, 64<<10)
				s.file(k.Path, doc)
				s.r.Knowledge = append(s.r.Knowledge, k)
			}
			return nil
		}},
		{"more knowledge", "limit_exceeded", "the knowledge git.recover4 is too long", func(_ *testing.T, s setting) func() {
			s.r.Knowledge = nil
			for i := range 5 {
				k, doc := numbered(i, 64<<10)
				s.file(k.Path, doc)
				s.r.Knowledge = append(s.r.Knowledge, k)
			}
			return nil
		}},
		{"knowledge that is missing", "unsafe_path", "the knowledge git.recovery is not in the workspace", func(_ *testing.T, s setting) func() {
			s.r.Knowledge[0].Path = "docs/other.md"
			return nil
		}},
		{"knowledge over a link", "unsafe_path", "is not in the workspace, or only over a link", func(t *testing.T, s setting) func() {
			link(t, "docs", filepath.Join(s.root, "link"))
			s.r.Knowledge[0].Path = "link/k.md"
			return nil
		}},
		{"knowledge that is a link", "unsafe_path", "the knowledge git.recovery is a link", func(t *testing.T, s setting) func() {
			link(t, "k.md", filepath.Join(s.root, "docs/l.md"))
			s.r.Knowledge[0].Path = "docs/l.md"
			return nil
		}},
		{"knowledge with a second name", "unsafe_path", "has a second name", func(t *testing.T, s setting) func() {
			if err := os.Link(filepath.Join(s.root, "docs/k.md"), filepath.Join(s.root, "other")); err != nil {
				t.Fatal(err)
			}
			return nil
		}},
		{"knowledge that is a folder", "unsafe_path", "is a link, or no file", func(_ *testing.T, s setting) func() {
			s.r.Knowledge[0].Path = "docs"
			return nil
		}},
		{"other bytes", "invalid_command", "is not the one that was pinned", func(_ *testing.T, s setting) func() {
			s.file("docs/k.md", someEntry+"\n")
			return nil
		}},
		{"knowledge that changes while it is read", "unsafe_path", "changed while it was read", func(_ *testing.T, s setting) func() {
			return func() { s.file("docs/k.md", strings.Replace(someEntry, "Body", "Ydob", 1)) }
		}},
		{"no entry", "invalid_command", "is no knowledge entry", func(_ *testing.T, s setting) func() {
			s.file("docs/k.md", "text")
			s.r.Knowledge = []Knowledge{pinned("docs/k.md", "text")}
			return nil
		}},
		{"another version", "invalid_command", "another ID or version", func(_ *testing.T, s setting) func() {
			s.r.Knowledge[0].Version = 4
			return nil
		}},
		{"other sources", "invalid_command", "other sources", func(_ *testing.T, s setting) func() {
			s.r.Knowledge[0].Sources = []string{"reference"}
			return nil
		}},
		{"withdrawn", "invalid_command", "was withdrawn", func(_ *testing.T, s setting) func() {
			doc := strings.Replace(someEntry, "candidate", "withdrawn", 1)
			s.file("docs/k.md", doc)
			s.r.Knowledge = []Knowledge{pinned("docs/k.md", doc)}
			return nil
		}},
	} {
		t.Run(row.name, func(t *testing.T) {
			root := canonicalDir(t)
			tree(t, root, map[string]string{"AGENTS.md": "root", "src/a/file": "x", "file": "x", "docs/k.md": someEntry})
			r := &Requirements{InstructionTargets: []string{"src/a"}, Knowledge: []Knowledge{pinned("docs/k.md", someEntry)}}
			after := row.make(t, setting{root, r, func(name, text string) { tree(t, root, map[string]string{name: text}) }})
			source := tree(t, root, nil)
			if after != nil {
				after()
			}
			f, err := freezeContext(r, root, source)
			if row.code == "" {
				if err != nil || len(f.doc.Knowledge) != len(r.Knowledge) || len(f.texts) != len(f.doc.Knowledge)+len(f.doc.Instructions) {
					t.Fatalf("%+v, %v", f, err)
				}
				return
			}
			var no *cannot
			if !errors.As(err, &no) || no.code != row.code || !strings.Contains(no.cause, row.cause) {
				t.Fatalf("%v", err)
			}
			// A phone is shown the cause: one line, and no path. The operator is told which.
			if !line(no.cause, maxArchive) || strings.Contains(no.cause, "/") || no.detail == nil {
				t.Errorf("cause %q, detail %v", no.cause, no.detail)
			}
		})
	}
}

// frozenTurn runs a turn with instructions and knowledge that it then removes.
func frozenTurn(t *testing.T) (w *workbench, task Task) {
	t.Helper()
	w = newWorkbench(t)
	tree(t, w.repo, map[string]string{"AGENTS.md": "be kind\n", "src/AGENTS.md": "be brief\n", "docs/k.md": someEntry})
	w.git("add", "-A")
	w.git("commit", "-q", "-m", "with instructions")
	require := w.requiring(w.suite("suite", `emit passed "$1"`))
	w.submit("t", PromptCommand)
	task = w.execute("t", w.grant("t", "rm -r AGENTS.md src docs; echo changed > file", require,
		reading([]string{"src/new", "docs"}, pinned("docs/k.md", someEntry))), nil)
	wantEnding(t, task, Finished, ExecFinished, "exit 0")
	return w, task
}

// What was frozen is bound to the admission, shows in the transcript and in the report, and is read by a store whose
// workspace is gone.
func TestFrozenContext(t *testing.T) {
	w, task := frozenTurn(t)
	var step1 struct {
		Context      Digest `json:"context_digest"`
		Instructions int    `json:"instructions"`
		Knowledge    int    `json:"knowledge"`
	}
	step(t, w.trace("t", 1), "admitted").extra(t, &step1)
	name := task.Run.Admission.Context
	if step1.Context != name || !name.valid() || step1.Instructions != 2 || step1.Knowledge != 1 {
		t.Fatalf("%+v, admitted with %q", step1, name)
	}
	task = w.check()
	if task.Checks != ChecksPassed || task.Run.Report.Context != name {
		t.Fatalf("checks %s, %+v", task.Checks, task.Run.Report)
	}
	for _, gone := range []string{w.repo, task.Worktree.Path} {
		if err := os.RemoveAll(gone); err != nil {
			t.Fatal(err)
		}
	}
	s := openStore(t, w.home, false)
	c, digest, err := s.FrozenContext("t", 0)
	if err != nil || digest != name || DigestOf(mustJSON(c)) != name {
		t.Fatalf("%+v, %s, %v", c, digest, err)
	}
	a := task.Run.Admission
	if c.Turn != 1 || c.TaskID != "t" || c.Revision != a.ReadRevision || c.Prompt != DigestOf([]byte("the prompt of t")) || c.Source != a.SourceSnapshot ||
		len(c.Checks.Suites) != 1 || c.Lineage.TaskSources[0] != "issue-5" || c.Knowledge[0].ID != "git.recovery" {
		t.Fatalf("%+v", c)
	}
	for path, want := range map[string]string{"AGENTS.md": "be kind\n", "src/AGENTS.md": "be brief\n", "docs/k.md": someEntry} {
		if b, err := s.ContextText("t", 1, path); err != nil || string(b) != want {
			t.Errorf("%s: %q, %v", path, b, err)
		}
	}
	_, err = s.ContextText("t", 1, "file")
	wantCode(t, err, "not_found")
	_, _, err = s.FrozenContext("t", 2)
	wantCode(t, err, "not_found")
	_, _, err = s.FrozenContext("another", 1)
	wantCode(t, err, "not_found")
	wantSound(t, s)

	// The next turn has a context of its own, or none.
	w.nextTurn("t", "again")
	task, err = execute(context.Background(), w.s, "t", w.grant("t", "true"), testParts(nil))
	if err == nil || task.Run != nil {
		t.Fatalf("a turn without its worktree: %v", err)
	}
}

// A turn without requirements freezes nothing; one with them has the instructions of the root, if there are any.
func TestFrozenContextOfLittle(t *testing.T) {
	w := newWorkbench(t)
	w.submit("t", PromptCommand)
	task := w.execute("t", w.grant("t", "true"), nil)
	if task.Run.Admission.Context != "" {
		t.Fatalf("%+v", task.Run.Admission)
	}
	_, _, err := w.s.FrozenContext("t", 1)
	wantCode(t, err, "not_found")
	w.nextTurn("t", "again")
	task = w.execute("t", w.grant("t", "true", w.requiring(w.suite("suite", `emit passed "$1"`))), nil)
	c, _, err := w.s.FrozenContext("t", 0)
	if err != nil || c.Turn != 2 || len(c.Instructions)+len(c.Knowledge) != 0 || task.Run.Admission.Context == "" {
		t.Fatalf("%+v, %v", c, err)
	}
	wantSound(t, w.s)
}

// A refusal ends the turn before it began, and instructions that change after the admission keep it from running;
// what was frozen then is what was seen.
func TestFrozenContextRefusedAndDrifted(t *testing.T) {
	setting := func(t *testing.T) (*workbench, []byte) {
		w := newWorkbench(t)
		tree(t, w.repo, map[string]string{"AGENTS.md": "be kind\n"})
		w.submit("t", BoundedCommand)
		require := w.requiring(w.suite("suite", `emit passed "$1"`))
		return w, w.grant("t", "echo ran", require, reading([]string{"src"}), func(g *Grant) { g.Write = false })
	}
	t.Run("refused", func(t *testing.T) {
		w, grant := setting(t)
		if err := os.Link(filepath.Join(w.repo, "AGENTS.md"), filepath.Join(w.dir, "outside")); err != nil {
			t.Fatal(err)
		}
		task, err := execute(context.Background(), w.s, "t", grant, testParts(nil))
		if err == nil || task.Run != nil || task.Status != Cancelled || task.NotStarted != "an AGENTS.md has a second name, and could be changed by it" {
			t.Fatalf("%v, %+v", err, task)
		}
	})
	t.Run("drifted", func(t *testing.T) {
		w, grant := setting(t)
		task, err := execute(context.Background(), w.s, "t", grant, testParts(func(point string) {
			if point == "admitted" {
				tree(t, w.repo, map[string]string{"AGENTS.md": "be quick\n"})
			}
		}))
		if err != nil {
			t.Fatal(err)
		}
		wantEnding(t, task, Finished, ExecFailed, EndingRefusedBefore)
		w.wantSealed(task)
		if b, err := w.s.ContextText("t", 1, "AGENTS.md"); err != nil || string(b) != "be kind\n" {
			t.Fatalf("%q, %v", b, err)
		}
		wantSound(t, w.s)
	})
}

// What holds the evidence together names each kind of damage: a manifest or a text that is gone or changed, one of
// another turn, one that the grant did not ask for.
func TestDamagedContext(t *testing.T) {
	w, task := frozenTurn(t)
	name := task.Run.Admission.Context
	c, _, err := w.s.FrozenContext("t", 1)
	if err != nil {
		t.Fatal(err)
	}
	all := []Digest{name}
	for _, p := range c.parts() {
		all = append(all, p.digest)
	}
	for i, d := range all {
		path := w.blobPath(d)
		was := readFile(t, path)
		for _, now := range [][]byte{nil, []byte("damaged"), was[:len(was)-1]} {
			if err := os.Remove(path); err != nil {
				t.Fatal(err)
			}
			if now != nil {
				writeFile(t, path, now)
			}
			if _, _, err := w.s.FrozenContext("t", 1); !errors.Is(err, ErrCorrupt) {
				t.Errorf("blob %d: %v", i, err)
			}
			found := false
			if err := w.s.Check(func(p string, ok bool, detail string) {
				found = found || !ok && p == w.blobPath(name) && strings.Contains(detail, "frozen context of task t")
			}); !errors.Is(err, ErrCorrupt) || !found {
				t.Errorf("blob %d: check says %v, named %v", i, err, found)
			}
			writeFile(t, path, was)
		}
	}
	// A sweep that cannot read the manifest does not know what is in use; the checks come to nothing.
	was := readFile(t, w.blobPath(name))
	writeFile(t, w.blobPath(name), []byte("{}"))
	if err := w.s.SweepBlobs(context.Background(), time.Now(), true, func(Swept) {}); !errors.Is(err, ErrCorrupt) {
		t.Errorf("sweep: %v", err)
	}
	// The report is recorded all the same, and the damage is the detail beside it.
	task, err = runChecks(context.Background(), w.s, "t", testParts(nil))
	if report := task.Run.Report; !errors.Is(err, ErrCorrupt) || task.Checks != ChecksUnavailable || report.Evidence != nil || report.Context != name ||
		report.Reason != "the frozen context of the turn cannot be read whole; run holdfast check" {
		t.Errorf("%v: %s, %+v", err, task.Checks, report)
	}
	if worked, err := w.s.LetWorktreeGo(context.Background(), "t", 1<<41, true); !errors.Is(err, ErrCorrupt) {
		t.Errorf("the worktree would go: %+v, %v", worked, err)
	}
	writeFile(t, w.blobPath(name), was)
	if task := w.check(); task.Checks != ChecksPassed || task.Run.Report.Attempt != 2 {
		t.Errorf("%s, %+v", task.Checks, task.Run.Report)
	}
	wantSound(t, w.s)

	// Of a manifest that some other program wrote, under its own digest, what does not follow is refused.
	grant, err := w.s.GetBlob(task.Run.Admission.GrantDigest, MaxCommand)
	if err != nil {
		t.Fatal(err)
	}
	for _, row := range []struct {
		name   string
		change func(c *FrozenContext, r *Run)
	}{
		{"as it is", func(*FrozenContext, *Run) {}},
		{"another schema", func(c *FrozenContext, _ *Run) { c.V = "holdfast.frozen-context.v2" }},
		{"another task", func(c *FrozenContext, _ *Run) { c.TaskID = "u" }},
		{"another turn", func(c *FrozenContext, _ *Run) { c.Turn = 2 }},
		{"another revision", func(c *FrozenContext, _ *Run) { c.Revision++ }},
		{"another prompt", func(c *FrozenContext, _ *Run) { c.Prompt = aDigest }},
		{"another source", func(c *FrozenContext, _ *Run) { c.Source = aDigest }},
		{"other suites", func(c *FrozenContext, _ *Run) { c.Checks.Suites[0].ProgramDigest = aDigest }},
		{"another lineage", func(c *FrozenContext, _ *Run) { c.Lineage.TaskSources = []string{"issue-6"} }},
		{"the order of instructions", func(c *FrozenContext, _ *Run) { slices.Reverse(c.Instructions) }},
		{"an instruction twice", func(c *FrozenContext, _ *Run) { c.Instructions[1] = c.Instructions[0] }},
		{"another scope", func(c *FrozenContext, _ *Run) { c.Instructions[1].Scope = "" }},
		{"another file", func(c *FrozenContext, _ *Run) { c.Instructions[1].Path = "src/agents.md" }},
		{"a path that climbs", func(c *FrozenContext, _ *Run) {
			c.Instructions[1].Path, c.Instructions[1].Scope = "../AGENTS.md", ".."
		}},
		{"instructions of no target", func(c *FrozenContext, _ *Run) {
			c.Instructions[1].Path, c.Instructions[1].Scope = "srcs/AGENTS.md", "srcs"
		}},
		{"another length", func(c *FrozenContext, _ *Run) { c.Instructions[0].Bytes++ }},
		{"too long", func(c *FrozenContext, _ *Run) { c.Instructions[0].Bytes = maxInstruction + 1 }},
		{"another text", func(c *FrozenContext, _ *Run) {
			c.Instructions[0].Digest, c.Instructions[0].Bytes = c.Knowledge[0].Digest, c.Knowledge[0].Bytes-1
		}},
		{"no knowledge", func(c *FrozenContext, _ *Run) { c.Knowledge = c.Knowledge[:0] }},
		{"knowledge at another path", func(c *FrozenContext, _ *Run) { c.Knowledge[0].Path = "docs/l.md" }},
		{"knowledge of another length", func(c *FrozenContext, _ *Run) { c.Knowledge[0].Bytes-- }},
		{"an admission without checks", func(_ *FrozenContext, r *Run) { r.Admission.Checks = nil }},
		{"another grant", func(_ *FrozenContext, r *Run) { r.Admission.GrantDigest = mustPut(t, w.s, w.grant("t", "true")) }},
	} {
		t.Run(row.name, func(t *testing.T) {
			var changed FrozenContext
			if err := closed(mustJSON(c), &changed); err != nil {
				t.Fatal(err)
			}
			r := *task.Run
			row.change(&changed, &r)
			r.Admission.Context = mustPut(t, w.s, mustJSON(changed))
			if _, err := w.s.contextWhole("t", &r); (err == nil) != (row.name == "as it is") || err != nil && !errors.Is(err, ErrCorrupt) {
				t.Fatalf("%v", err)
			}
		})
	}
	// Manifest and grant agree with each other, and the document is another one than both say.
	r, changed := *task.Run, c
	g, err := ParseGrant(grant)
	if err != nil || !c.of(g.Requirements) || c.of(nil) {
		t.Fatalf("%v", err)
	}
	g.Requirements.Knowledge[0].Version = 4
	changed.Checks.Requirements = DigestOf(mustJSON(g.Requirements))
	changed.Knowledge = []FrozenKnowledge{{g.Requirements.Knowledge[0], c.Knowledge[0].Bytes}}
	if grant, err = EncodeGrant(g); err != nil {
		t.Fatal(err)
	}
	r.Admission.Checks, r.Admission.GrantDigest = &changed.Checks, mustPut(t, w.s, grant)
	r.Admission.Context = mustPut(t, w.s, mustJSON(changed))
	if _, err := w.s.contextWhole("t", &r); !errors.Is(err, ErrCorrupt) || !strings.Contains(err.Error(), "another ID or version") {
		t.Errorf("%v", err)
	}
	// A later version may have put in more.
	r = *task.Run
	r.Admission.Context = mustPut(t, w.s, []byte(strings.Replace(string(mustJSON(c)), `"turn":1`, `"turn":1,"tools":[]`, 1)))
	if _, err := w.s.contextWhole("t", &r); !errors.Is(err, ErrNewer) {
		t.Errorf("%v", err)
	}
}

func mustPut(t testing.TB, s *Store, b []byte) Digest {
	t.Helper()
	d, err := s.PutBlob(b)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// A log leads to a context by its digest, and only where there are checks.
func TestAdmittedContext(t *testing.T) {
	task := Task{ID: "t", Revision: 1, Status: Queued, Intent: Intent{Prompt: "p", Configuration: Configuration{Adapter: BoundedCommand}}}
	checks := &CheckPlan{Requirements: aDigest, Seconds: 1, Suites: []Suite{{Check: "c", Manifest: "/m", ManifestDigest: aDigest,
		Program: "/p", ProgramDigest: aDigest, Seconds: 1, OutputBytes: 1}}}
	for _, row := range []struct {
		name, code string
		change     func(a *Admission)
	}{
		{"a context", "", func(*Admission) {}},
		{"none, of an earlier version", "", func(a *Admission) { a.Context = "" }},
		{"no digest", "invalid_command", func(a *Admission) { a.Context = "x" }},
		{"no checks", "invalid_command", func(a *Admission) { a.Checks = nil }},
		{"no snapshot", "invalid_command", func(a *Admission) { a.SourceSnapshot = "" }},
	} {
		t.Run(row.name, func(t *testing.T) {
			a := admission(&task)
			a.SourceSnapshot, a.Checks, a.Context = aDigest, checks, aDigest
			row.change(a)
			_, err := NextEvent(&task, 1, Event{Admitted: a}, 1)
			wantCode(t, err, row.code)
		})
	}
}

// What a log leads to stays when blobs are swept, and goes with nothing.
func TestSweepKeepsContexts(t *testing.T) {
	w := newWorkbench(t)
	tree(t, w.repo, map[string]string{"AGENTS.md": "be kind\n", "docs/k.md": someEntry})
	w.submit("t", BoundedCommand)
	require := w.requiring(w.suite("suite", `emit passed "$1"`))
	// It changes nothing, so that no manifest of changes names these files as well.
	w.execute("t", w.grant("t", "true", require, reading([]string{"docs"}, pinned("docs/k.md", someEntry)), func(g *Grant) { g.Write = false }), nil)
	unnamed := mustPut(t, w.s, []byte("unnamed"))
	swept := w.sweepBlobs(time.Now().Add(time.Hour), false)
	if len(swept) != 1 || swept[0] != strings.TrimPrefix(string(unnamed), "sha256:") {
		t.Fatalf("%v", swept)
	}
	if _, _, err := w.s.FrozenContext("t", 1); err != nil {
		t.Fatal(err)
	}
	wantSound(t, w.s)
}

func FuzzFrozenContext(f *testing.F) {
	plan := &CheckPlan{Requirements: aDigest, Seconds: 1, Suites: []Suite{}}
	r := &Run{Turn: 1, Admission: Admission{ReadRevision: 1, Prompt: aDigest, SourceSnapshot: aDigest, Checks: plan}}
	c := FrozenContext{V: ContextSchema, TaskID: "t", Turn: 1, Revision: 1, Prompt: aDigest, Source: aDigest, Checks: *plan,
		Instructions: []Instruction{{"AGENTS.md", "", 1, aDigest}, {"a/AGENTS.md", "a", 1, aDigest}},
		Knowledge:    []FrozenKnowledge{{pinned("k.md", someEntry), 7}}}
	f.Add(mustJSON(c))
	f.Add([]byte(`{"v":"holdfast.frozen-context.v1","knowledge":[{"id":"a","bytes":1}]}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		var c FrozenContext
		if closed(b, &c) != nil || !c.valid("t", r) {
			return
		}
		for _, p := range c.parts() {
			if !inTree(p.path) || !p.digest.valid() || p.bytes < 0 || p.bytes > maxKnowledgeFile {
				t.Fatalf("%+v", p)
			}
		}
		var again FrozenContext
		if err := json.Unmarshal(mustJSON(c), &again); err != nil || !again.valid("t", r) {
			t.Fatalf("not stable: %v, %s", err, mustJSON(c))
		}
	})
}
