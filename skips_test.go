package holdfast_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// forTests are the packages that nothing but tests imports, and each other.
var forTests = []string{"internal/skip", "internal/diskfault", "internal/diskfault/faulttest"}

// TestSkips: a test skips through internal/skip, which turns a skip that the
// machine does not bear out into a failure of .ci/run, and nothing but tests
// imports that, nor makes a disk fail.
func TestSkips(t *testing.T) {
	err := filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && d.Name() == ".git" || filepath.ToSlash(path) == "internal/skip" {
			return filepath.SkipDir
		}
		if d.IsDir() || !strings.HasSuffix(path, ".go") {
			return nil
		}
		files := token.NewFileSet()
		f, err := parser.ParseFile(files, path, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		if !strings.HasSuffix(path, "_test.go") {
			for _, spec := range f.Imports {
				target := strings.TrimPrefix(strings.Trim(spec.Path.Value, `"`), module)
				if slices.Contains(forTests, target) && !slices.Contains(forTests, filepath.ToSlash(filepath.Dir(path))) {
					t.Errorf("%s imports %s, which is for tests", path, target)
				}
			}
			return nil
		}
		rapid := slices.ContainsFunc(f.Imports, func(s *ast.ImportSpec) bool { return s.Path.Value == `"pgregory.net/rapid"` })
		ast.Inspect(f, func(n ast.Node) bool {
			s, ok := n.(*ast.SelectorExpr)
			if !ok || s.Sel.Name != "Skip" && s.Sel.Name != "Skipf" && s.Sel.Name != "SkipNow" {
				return true
			}
			// A state machine of rapid skips a draw that makes no sense, not a test.
			if of, _ := s.X.(*ast.Ident); !rapid || of == nil || of.Name == "t" {
				t.Errorf("%s skips by itself; internal/skip has the causes", files.Position(s.Pos()))
			}
			return true
		})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}
