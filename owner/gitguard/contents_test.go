package gitguard

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestContents(t *testing.T) {
	mark := filepath.Join(canonicalDir(t), "mark")
	r := repository(t, map[string]string{
		"a": "text\n", "copy": "text\n", "empty": "", "sub/b c": "\x00binary", "large": strings.Repeat("x", 100),
		".gitattributes": "* filter=evil diff=evil text eol=crlf\n",
	})
	config, err := os.ReadFile(r.GitDir + "/config")
	if err != nil {
		t.Fatal(err)
	}
	write(t, r.GitDir+"/config", string(config)+"[core]\n\tfsmonitor = touch "+mark+"\n[filter \"evil\"]\n\tsmudge = touch "+mark+"\n[diff \"evil\"]\n\ttextconv = touch "+mark+"\n", 0o644)
	head, err := r.Head(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	// The working tree is not asked: it may be anything, or gone.
	if err := os.Remove(r.Top + "/a"); err != nil {
		t.Fatal(err)
	}
	paths := []string{"a", "copy", "empty", "sub/b c", "large", "sub", "never", "two\nlines", "../a", "/a", "", "a"}
	for _, row := range []struct {
		name        string
		file, total int64
		want        []string
	}{
		{"room for all", 1000, 1000, []string{"a", "copy", "empty", "sub/b c", "large"}},
		{"a long file", 99, 1000, []string{"a", "copy", "empty", "sub/b c"}},
		{"little room; the same bytes count once", 99, 5, []string{"a", "copy", "empty"}},
		{"no room", 0, 0, []string{"empty"}},
	} {
		t.Run(row.name, func(t *testing.T) {
			got, err := Repo{CommonDir: r.CommonDir}.Contents(context.Background(), head, paths, row.file, row.total)
			if err != nil || len(got) != len(row.want) {
				t.Fatalf("%q, %v", got, err)
			}
			for _, p := range row.want {
				if want := git(t, r.Top, "cat-file", "-p", head+":"+p); strings.TrimSpace(string(got[p])) != want {
					t.Errorf("%s is %q, want %q", p, got[p], want)
				}
			}
		})
	}
	if _, err := r.Contents(context.Background(), "--batch", paths, 1, 1); err == nil {
		t.Error("an option passed for a commit")
	}
	if _, err := os.Lstat(mark); err == nil {
		t.Fatal("git ran a program of the repository's")
	}
}

func TestPatchInBothHashes(t *testing.T) {
	before := []File{{"bin", "100644", []byte("\x00a")}, {"link", "120000", []byte("old")}, {`a "b" \c`, "100644", []byte("x\n")}}
	after := []File{{"bin", "100755", []byte("\x00b")}, {"link", "120000", []byte("new")}, {`a "b" \c`, "100644", []byte("y\n")}, {".gitattributes", "100644", []byte("* -diff\n")}}
	for _, id := range []string{strings.Repeat("0", 40), strings.Repeat("0", 64), ""} {
		p, err := Patch(context.Background(), id, before, after)
		if err != nil {
			t.Fatal(err)
		}
		for _, want := range []string{"GIT binary patch", "new mode 100755", "120000\n", "-x\n+y\n", "+* -diff\n"} {
			if !strings.Contains(string(p), want) {
				t.Errorf("no %q in\n%s", want, p)
			}
		}
	}
	if p, err := Patch(context.Background(), "", before, before); err != nil || len(p) != 0 {
		t.Errorf("the same twice: %q, %v", p, err)
	}
}
