package holdfast_test

import (
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestAcceptance: each test that these documents name is there.
func TestAcceptance(t *testing.T) {
	for _, doc := range []string{"docs/acceptance.md", "docs/threat-model.md"} {
		t.Run(doc, func(t *testing.T) { namedTests(t, doc) })
	}
}

func namedTests(t *testing.T, doc string) {
	named := regexp.MustCompile("`([a-z/]+): (Test[A-Za-z0-9]+)`").FindAllStringSubmatch(read(t, doc), -1)
	if len(named) < 20 {
		t.Fatalf("%s names %d tests", doc, len(named))
	}
	have := map[string]string{} // package -> its tests
	for _, n := range named {
		if have[n[1]] != "" {
			continue
		}
		files, err := filepath.Glob(n[1] + "/*_test.go")
		if err != nil {
			t.Fatal(err)
		}
		var all strings.Builder
		for _, f := range files {
			all.WriteString(read(t, f))
		}
		have[n[1]] = all.String()
	}
	for _, n := range named {
		if !strings.Contains(have[n[1]], "\nfunc "+n[2]+"(t *testing.T)") {
			t.Errorf("%s has no %s", n[1], n[2])
		}
	}
}
