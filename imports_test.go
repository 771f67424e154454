// Package holdfast_test holds the tree's own rules as tests: who may import
// whom, and that the documents speak of files that are there.
package holdfast_test

import (
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// row is one line of the import table. A folder's sub-folders fall under its
// row unless they have one of their own.
type row struct {
	folder string
	may    []string // folders of ours, with what is below them
	why    string
}

// importTable is the architecture as a failing build. Any package may import
// internal/...; tests may import what they need to set real parts up.
var importTable = []row{
	{"nip", nil, "the wire must be readable without knowing anything else"},
	{"relay", []string{"nip"}, "moves events; knows nothing of tasks or access"},
	{"sandbox", nil, "confines any program; knows nothing of tasks"},
	{"commands", []string{"nip"}, "sees a task through an interface of its own, so that decisions stay pure"},
	{"queue", []string{"nip", "commands"}, "rules over the journal's entries, in the journal's transaction"},
	{"owner/gitguard", nil, "runs git and nothing else"},
	{"owner/snapshot", nil, "looks at a folder and knows of no task"},
	{"owner", []string{"nip", "sandbox", "owner"}, "the only code that executes; nip for identifiers"},
	{"host/client", []string{"nip", "relay"}, "outsiders import it: it must not drag the host along"},
	{"host", []string{"nip", "commands", "queue", "owner"}, "declares the transport and the probe it needs; cmd joins them to relay and sandbox"},
	{"cmd/holdfast", []string{"nip", "relay", "sandbox", "commands", "queue", "owner", "host"}, "wiring"},
	{"internal", nil, "things with two callers; nothing of ours"},
}

// onlyBy names packages that only the given folders may import.
var onlyBy = []row{
	{"host", []string{"cmd/holdfast"}, "only cmd builds a host"},
}

const module = "holdfast/"

func TestImports(t *testing.T) {
	seen := map[string]bool{}
	walkGo(t, func(file string) {
		if strings.HasSuffix(file, "_test.go") {
			return
		}
		dir := filepath.ToSlash(filepath.Dir(file))
		r, ok := rowOf(dir)
		if !ok {
			t.Errorf("%s: the import table has no row for it", file)
			return
		}
		seen[r.folder] = true
		f, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.ImportsOnly)
		if err != nil {
			t.Fatal(err)
		}
		for _, spec := range f.Imports {
			path, err := strconv.Unquote(spec.Path.Value)
			if err != nil || !strings.HasPrefix(path, module) {
				continue
			}
			target := strings.TrimPrefix(path, module)
			if !allowed(r, dir, target) {
				t.Errorf("%s imports %s: %s may import %v (%s)", file, target, r.folder, r.may, r.why)
			}
		}
	})
	for _, r := range importTable {
		if !seen[r.folder] {
			t.Errorf("the import table names %s, which has no Go files", r.folder)
		}
	}
}

func allowed(r row, dir, target string) bool {
	if target == "internal" || below(target, "internal") || below(target, r.folder) && below(dir, r.folder) {
		return true
	}
	for _, o := range onlyBy {
		if target == o.folder && !below(dir, o.may[0]) {
			return false
		}
	}
	for _, m := range r.may {
		if below(target, m) {
			return true
		}
	}
	return false
}

func below(path, root string) bool { return path == root || strings.HasPrefix(path, root+"/") }

// rowOf is the longest row that covers the folder.
func rowOf(dir string) (row, bool) {
	var best row
	for _, r := range importTable {
		if below(dir, r.folder) && len(r.folder) > len(best.folder) {
			best = r
		}
	}
	return best, best.folder != ""
}

func walkGo(t *testing.T, fn func(file string)) {
	t.Helper()
	err := filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && (d.Name() == ".git" || d.Name() == "testdata" || d.Name() == "interop") {
			return filepath.SkipDir
		}
		if !d.IsDir() && strings.HasSuffix(path, ".go") && filepath.Dir(path) != "." {
			fn(path)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// hops is the data path, a file each.
var hops = []struct{ file string }{
	{"relay/receive.go"},
	{"nip/envelope.go"},
	{"nip/request.go"},
	{"host/admit.go"},
	{"commands/journal.go"},
	{"commands/decide.go"},
	{"commands/evaluate.go"},
	{"owner/apply.go"},
	{"owner/execute.go"},
	{"sandbox/start.go"},
	{"owner/evidence.go"},
	{"host/publish.go"},
	{"relay/send.go"},
}

// TestDataPath holds docs/data-path.md against the tree: each hop's file is
// there, names its neighbours, and stands in the document in order.
func TestDataPath(t *testing.T) {
	doc, err := os.ReadFile("docs/data-path.md")
	if err != nil {
		t.Fatal(err)
	}
	text, from := string(doc), 0
	for i, h := range hops {
		src, err := os.ReadFile(h.file)
		if err != nil {
			t.Errorf("hop %s: %v", h.file, err)
			continue
		}
		at := strings.Index(text[from:], "`"+h.file+"`")
		if at < 0 {
			t.Errorf("docs/data-path.md does not name %s in its place", h.file)
		} else {
			from += at
		}
		for _, n := range []int{i - 1, i + 1} {
			if n < 0 || n == len(hops) {
				continue
			}
			name := hops[n].file
			if filepath.Dir(name) == filepath.Dir(h.file) {
				name = filepath.Base(name) // its own folder goes without saying
			}
			if !strings.Contains(string(src), name) {
				t.Errorf("%s does not name its neighbour %s", h.file, hops[n].file)
			}
		}
	}
}

// TestDependencies: each direct dependency has a line that says why.
func TestDependencies(t *testing.T) {
	mod, err := os.ReadFile("go.mod")
	if err != nil {
		t.Fatal(err)
	}
	doc, err := os.ReadFile("docs/dependencies.md")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(mod)) {
		f := strings.Fields(line)
		if len(f) != 2 || !strings.Contains(f[0], ".") || !strings.HasPrefix(f[1], "v") {
			continue // an indirect one, or no requirement
		}
		if !strings.Contains(string(doc), "`"+f[0]+"`") {
			t.Errorf("docs/dependencies.md has no line for %s", f[0])
		}
	}
}
