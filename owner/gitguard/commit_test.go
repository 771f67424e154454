package gitguard

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// edit is an Edit of text, nil where a side has nothing; exec and link say how.
func edit(like, path string, before, after []byte, modes ...string) Edit {
	entry := func(b []byte, mode string) Entry {
		if b == nil {
			return Entry{}
		}
		return Entry{mode, ObjectID(like, b)}
	}
	if len(modes) == 0 {
		modes = []string{"100644", "100644"}
	}
	return Edit{path, entry(before, modes[0]), entry(after, modes[1])}
}

// made writes the blobs and the commit.
func made(t *testing.T, r Repo, c Commit, blobs ...string) (string, error) {
	t.Helper()
	if err := r.WriteBlobs(t.Context(), len(blobs), func(i int) ([]byte, string, error) {
		return []byte(blobs[i]), ObjectID(c.Base, []byte(blobs[i])), nil
	}); err != nil {
		t.Fatal(err)
	}
	return r.Commit(t.Context(), c)
}

func TestCommit(t *testing.T) {
	at := time.Unix(1_700_000_000, 0)
	for _, format := range []string{"sha1", "sha256"} {
		t.Run(format, func(t *testing.T) {
			r := repositoryOf(t, format, map[string]string{"a": "a\n", "gone": "gone\n", "d/f": "f\n", "x": "#!/bin/sh\n", ".gitattributes": "* filter=evil diff=evil text eol=crlf ident\n"})
			head, err := r.Head(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			marker := plant(t, r)
			text := "a\r\n$Id$\r\n"
			c := Commit{Base: head, At: at, Message: "title\n\n# no comment is stripped\n", Edits: []Edit{
				edit(head, "a", []byte("a\n"), []byte(text)), edit(head, "gone", []byte("gone\n"), nil),
				edit(head, "d/f", []byte("f\n"), nil), edit(head, "d", nil, []byte("now a file"), "", "100755"),
				edit(head, "x", []byte("#!/bin/sh\n"), []byte("#!/bin/sh\n"), "100644", "100755"),
				edit(head, `new "one" \ñ`, nil, []byte("a"), "", "120000"), edit(head, "-dash/:(glob)*", nil, []byte("")),
			}}
			index := read(t, filepath.Join(r.GitDir, "index"))
			commit, err := made(t, r, c, text, "now a file", "a", "")
			if err != nil {
				t.Fatal(err)
			}
			again, err := r.Commit(t.Context(), c)
			if err != nil || again != commit {
				t.Fatalf("the same twice: %s, %s, %v", commit, again, err)
			}
			if own, err := r.IsCommit(t.Context(), commit, c); err != nil || !own {
				t.Fatalf("its own is not known: %v", err)
			}
			other := c
			other.Message = "other\n"
			if own, err := r.IsCommit(t.Context(), commit, other); err != nil || own {
				t.Fatalf("another one's counts: %v", err)
			}
			other = c
			other.Edits = c.Edits[1:]
			if own, err := r.IsCommit(t.Context(), commit, other); err != nil || own {
				t.Fatalf("another tree counts: %v", err)
			}
			if named, err := r.CreateBranch(t.Context(), "new/branch", commit, head, at); err != nil || named != Created {
				t.Fatalf("%d, %v", named, err)
			}
			for _, row := range []struct {
				name, branch string
				base         string
				want         Named
			}{
				{"a name that is there", "new/branch", head, NameTaken}, {"below one", "new/branch/x", head, NameTaken},
				{"a folder of one", "new", head, NameTaken}, {"HEAD is another", "other", commit, HeadMoved},
			} {
				if named, err := r.CreateBranch(t.Context(), row.branch, commit, row.base, at); err != nil || named != row.want {
					t.Errorf("%s: %d, %v", row.name, named, err)
				}
			}
			if have, err := r.Branch(t.Context(), "new/branch"); err != nil || have != commit {
				t.Fatalf("%s, %v", have, err)
			}
			if read(t, filepath.Join(r.GitDir, "index")) != index || read(t, filepath.Join(r.Top, "a")) != "a\n" {
				t.Error("the index or the working tree changed")
			}
			if b, err := os.ReadFile(marker); err == nil {
				t.Fatalf("a planted program ran: %s", b)
			}
			if got := git(t, r.Top, "cat-file", "-p", commit+":a"); got != strings.TrimSpace(text) {
				t.Errorf("%q", got)
			}
			if got := git(t, r.Top, "fsck", "--strict", "--no-dangling"); strings.Contains(got, "error") {
				t.Error(got)
			}
		})
	}
}

// TestCommitRefuses: a base that is not what the edits were made from, and paths that git does not take.
func TestCommitRefuses(t *testing.T) {
	r := repository(t, map[string]string{"a": "a\n", "d/f": "f\n"})
	head, err := r.Head(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, row := range []struct {
		name string
		edit Edit
	}{
		{"other text before", edit(head, "a", []byte("b\n"), []byte("new"))},
		{"not there before", edit(head, "b", []byte("b\n"), nil)},
		{"there before", edit(head, "a", nil, []byte("new"))},
		{"another mode before", edit(head, "a", []byte("a\n"), []byte("new"), "100755", "100755")},
		{"a folder's place, its files forgotten", edit(head, "d", nil, []byte("new"))},
		{"below a file", edit(head, "a/b", nil, []byte("new"))},
		{"in .git", edit(head, ".git/config", nil, []byte("new"))},
		{"above", edit(head, "../x", nil, []byte("new"))},
		{"an object that is not there", edit(head, "b", nil, []byte("never written"))},
	} {
		if c, err := made(t, r, Commit{Base: head, Edits: []Edit{row.edit}, Message: "m\n"}, "new"); err == nil {
			t.Errorf("%s: %s", row.name, c)
		}
	}
	if got := git(t, r.Top, "for-each-ref", "--format=%(refname)"); strings.Count(got, "\n") != 0 {
		t.Errorf("refs: %s", got)
	}
}

// TestBranchName: whatever we take, git takes; and what git reads as something else we do not.
func TestBranchName(t *testing.T) {
	for name, want := range map[string]bool{
		"a": true, "holdfast/fix-1": true, "ünïcode": true, "a.b": true, "a@b": true, "x/-y": true,
		"": false, "-a": false, "HEAD": false, "@": false, "refs/heads/a": false, "a..b": false, "a b": false, "a\tb": false, "a\x00b": false,
		".a": false, "a/.b": false, "a.lock": false, "a.lock/b": false, "a/": false, "/a": false, "a//b": false, "a.": false, "a@{1}": false,
		"a~1": false, "a^": false, "a:b": false, "a?": false, "a*": false, "a[b": false, `a\b`: false, "a\u202eb": false, "a\xffb": false,
		strings.Repeat("a", 200): true, strings.Repeat("a", 201): false, strings.Repeat("a", 40): false, "\u00a0": false,
	} {
		if got := BranchName(name); got != want {
			t.Errorf("%q: %v", name, got)
		}
		if want && exec.Command("git", "check-ref-format", "refs/heads/"+name).Run() != nil {
			t.Errorf("git does not take %q", name)
		}
	}
}

func FuzzBranchName(f *testing.F) {
	for _, s := range []string{"a", "a/b.c", "a@{", "é"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if BranchName(s) && exec.Command("git", "check-ref-format", "refs/heads/"+s).Run() != nil {
			t.Fatalf("git does not take %q", s)
		}
	})
}

func TestWriteBlobsInBatches(t *testing.T) {
	r := repository(t, map[string]string{"a": "a\n"})
	blob := func(i int) []byte { return []byte(strings.Repeat(fmt.Sprint(i), 6<<20)) }
	err := r.WriteBlobs(t.Context(), 7, func(i int) ([]byte, string, error) {
		return blob(i), ObjectID(strings.Repeat("0", 40), blob(i)), nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for i := range 7 {
		git(t, r.Top, "cat-file", "-e", ObjectID(strings.Repeat("0", 40), blob(i)))
	}
	if err := r.WriteBlobs(t.Context(), 1, func(int) ([]byte, string, error) { return []byte("x"), "other", nil }); err == nil {
		t.Error("another ID than git's passed")
	}
}

func read(t *testing.T, path string) string {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}
