package holdfast_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"holdfast/owner"
)

func read(t *testing.T, file string) string {
	t.Helper()
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// each parses the Go files of a folder, tests apart, and visits every node.
func each(t *testing.T, folder string, fn func(n ast.Node)) {
	t.Helper()
	files, err := filepath.Glob(folder + "/*.go")
	if err != nil || len(files) == 0 {
		t.Fatalf("%s has no Go files: %v", folder, err)
	}
	for _, file := range files {
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		f, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(f, func(n ast.Node) bool { fn(n); return true })
	}
}

func literal(e ast.Expr) string {
	l, ok := e.(*ast.BasicLit)
	if !ok || l.Kind != token.STRING {
		return ""
	}
	s, _ := strconv.Unquote(l.Value)
	return s
}

// TestDiskBuckets: every bucket and fixed key that a package names as a
// variable of bytes stands in docs/disk.md.
func TestDiskBuckets(t *testing.T) {
	doc := read(t, "docs/disk.md")
	for _, folder := range []string{"host", "commands", "relay/embedded", "host/client", "internal/commit"} {
		found := 0
		each(t, folder, func(n ast.Node) {
			spec, ok := n.(*ast.ValueSpec)
			if !ok {
				return
			}
			for _, v := range spec.Values {
				call, ok := v.(*ast.CallExpr)
				if !ok || len(call.Args) != 1 {
					continue
				}
				if _, ok := call.Fun.(*ast.ArrayType); !ok {
					continue
				}
				if name := literal(call.Args[0]); name != "" {
					found++
					if !strings.Contains(doc, "`"+name) {
						t.Errorf("docs/disk.md does not name %q of package %s", name, folder)
					}
				}
			}
		})
		if found == 0 {
			t.Errorf("package %s names no bucket: this test looks for the wrong thing", folder)
		}
	}
}

// TestDiskEvents: every member of an owner event, at every depth, stands in
// docs/disk.md.
func TestDiskEvents(t *testing.T) {
	doc := read(t, "docs/disk.md")
	var members func(ty reflect.Type)
	members = func(ty reflect.Type) {
		if ty.Kind() == reflect.Pointer {
			ty = ty.Elem()
		}
		if ty.Kind() != reflect.Struct {
			return
		}
		for f := range ty.Fields() {
			name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
			if name == "" || !strings.Contains(doc, "`"+name+"`") {
				t.Errorf("docs/disk.md does not name member %q of %s", name, ty)
			}
			members(f.Type)
		}
	}
	members(reflect.TypeFor[owner.Event]())
}

// TestDiskVerbs: the operator socket's verbs stand in docs/disk.md.
func TestDiskVerbs(t *testing.T) {
	doc := read(t, "docs/disk.md")
	verbs := regexp.MustCompile(`(?m)^\t"([a-z.]+)":\s+verb`).FindAllStringSubmatch(read(t, "host/operator.go"), -1)
	if len(verbs) == 0 {
		t.Error("host/operator.go has no verbs: this test looks for the wrong thing")
	}
	for _, v := range verbs {
		if !strings.Contains(doc, "`"+v[1]+"`") {
			t.Errorf("docs/disk.md does not name the verb %s", v[1])
		}
	}
}

var pages = []string{"README.md", "CONTRIBUTING.md", "CHANGELOG.md", "docs/data-path.md", "docs/dependencies.md", "docs/disk.md", "docs/performance.md", "docs/terms.md", "docs/threat-model.md"}

// TestLinks: what a page links to inside the repository is there.
func TestLinks(t *testing.T) {
	link := regexp.MustCompile(`\]\(([^)#\s]+)`)
	for _, page := range pages {
		for _, m := range link.FindAllStringSubmatch(read(t, page), -1) {
			if strings.Contains(m[1], "://") {
				continue
			}
			if _, err := os.Stat(filepath.Join(filepath.Dir(page), m[1])); err != nil {
				t.Errorf("%s links to %s: %v", page, m[1], err)
			}
		}
	}
}

// groups are the verbs that have verbs of their own.
var groups = map[string]bool{"device": true, "devices": true, "invitations": true, "journal": true, "policy": true, "relay": true, "secret": true, "task": true, "workspace": true}

// TestCommandWords: a `holdfast VERB` of a page is a verb of the command line:
// a Use of a cobra command, or the first words of a helper that makes one.
func TestCommandWords(t *testing.T) {
	known := map[string]bool{}
	use := func(s string) {
		word, _, _ := strings.Cut(s, " ")
		known[word] = true
	}
	each(t, "cmd/holdfast", func(n ast.Node) {
		switch n := n.(type) {
		case *ast.KeyValueExpr:
			if k, ok := n.Key.(*ast.Ident); ok && k.Name == "Use" {
				use(literal(n.Value))
			}
		case *ast.CallExpr: // helper(..., "stop ID", "Stop whatever its turn is", ...)
			for i := 1; i < len(n.Args); i++ {
				if short := literal(n.Args[i]); short != "" && short[0] >= 'A' && short[0] <= 'Z' {
					use(literal(n.Args[i-1]))
				}
			}
		}
	})
	words := regexp.MustCompile(`holdfast ([a-z][a-z-]*)(?: ([a-z][a-z-]*))?`)
	code := regexp.MustCompile("(?m)^    .*$|`[^`\n]+`")
	checked := 0
	for _, page := range pages {
		for _, line := range code.FindAllString(read(t, page), -1) {
			for _, m := range words.FindAllStringSubmatch(line, -1) {
				checked++
				if !known[m[1]] || groups[m[1]] && m[2] != "" && !known[m[2]] {
					t.Errorf("%s: there is no %q", page, m[0])
				}
			}
		}
	}
	if checked < 10 {
		t.Errorf("only %d commands were found: this test looks for the wrong thing", checked)
	}
}

func TestChangelog(t *testing.T) {
	if !strings.Contains(read(t, "CHANGELOG.md"), "\n## Unreleased\n") {
		t.Error("CHANGELOG.md has no Unreleased section")
	}
}

// TestNothingOutside: no file names a path of somebody's own machine.
func TestNothingOutside(t *testing.T) {
	foreign := regexp.MustCompile(`(?:^|[\s"'(` + "`" + `])(?:/work/|/Users/|\.\./shared/|shared/(?:spec|design)/)`)
	err := filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.Name() == ".git" { // a folder, or a linked worktree's pointer
			if d.IsDir() {
				return filepath.SkipDir
			}
			return nil
		}
		if d.IsDir() {
			return nil
		}
		info, err := d.Info()
		if err != nil || !info.Mode().IsRegular() || info.Size() > 1<<20 || path == "docs_test.go" {
			return err // a program that somebody built here names where it was built
		}
		if m := foreign.FindString(read(t, path)); m != "" {
			t.Errorf("%s names %q, a path outside the repository", path, strings.TrimSpace(m))
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}
