package gitguard

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"holdfast/internal/leaks"
	"holdfast/internal/runnable"
)

func TestMain(m *testing.M) { leaks.Main(m) }

// canonicalDir is a temporary folder by its real name.
func canonicalDir(t *testing.T) string {
	t.Helper()
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

// git runs plain git, as a user would, for building what the tests need.
func git(t *testing.T, dir string, args ...string) string {
	t.Helper()
	cmd := exec.Command("git", args...)
	cmd.Dir = dir
	cmd.Env = []string{"PATH=/usr/bin:/bin", "HOME=/nonexistent", "GIT_CONFIG_NOSYSTEM=1",
		"GIT_AUTHOR_NAME=t", "GIT_AUTHOR_EMAIL=t@example.org", "GIT_COMMITTER_NAME=t", "GIT_COMMITTER_EMAIL=t@example.org"}
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("git %v: %v\n%s", args, err, out)
	}
	return strings.TrimSpace(string(out))
}

func write(t *testing.T, path, text string, mode os.FileMode) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), mode); err != nil {
		t.Fatal(err)
	}
}

// repository makes a repository with one commit of the given files.
func repository(t *testing.T, files map[string]string) Repo {
	t.Helper()
	return repositoryOf(t, "sha1", files)
}

func repositoryOf(t *testing.T, format string, files map[string]string) Repo {
	t.Helper()
	dir := filepath.Join(canonicalDir(t), "repo")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	git(t, dir, "init", "-q", "--object-format="+format)
	for name, text := range files {
		write(t, filepath.Join(dir, name), text, 0o644)
	}
	git(t, dir, "add", "-A")
	git(t, dir, "commit", "-q", "--allow-empty", "-m", "first")
	r, err := Find(dir)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func TestFind(t *testing.T) {
	r := repository(t, map[string]string{"sub/a": "a"})
	linked := filepath.Join(filepath.Dir(r.Top), "linked")
	git(t, r.Top, "worktree", "add", "-q", "--detach", linked)
	plain := canonicalDir(t)
	litter := canonicalDir(t)
	if err := os.Mkdir(filepath.Join(litter, ".git"), 0o755); err != nil {
		t.Fatal(err)
	}
	link := canonicalDir(t)
	if err := os.Symlink(r.GitDir, filepath.Join(link, ".git")); err != nil {
		t.Fatal(err)
	}
	borrowed := canonicalDir(t)
	write(t, filepath.Join(borrowed, ".git"), "gitdir: "+r.GitDir+"/worktrees/linked\n", 0o644)
	garbage := canonicalDir(t)
	write(t, filepath.Join(garbage, ".git"), "not a pointer", 0o644)
	dangling := canonicalDir(t)
	write(t, filepath.Join(dangling, ".git"), "gitdir: /nonexistent/x\n", 0o644)

	for _, row := range []struct {
		name, path string
		want       Repo
		err        error
	}{
		{"top of a checkout", r.Top, Repo{r.Top, r.Top + "/.git", r.Top + "/.git"}, nil},
		{"linked worktree", linked, Repo{linked, r.Top + "/.git/worktrees/linked", r.Top + "/.git"}, nil},
		{"below the top", filepath.Join(r.Top, "sub"), Repo{}, ErrNotTop},
		{"no repository", plain, Repo{}, ErrNotRepository},
		{"empty .git folder", litter, Repo{}, ErrNotRepository},
		{".git is a link", link, Repo{}, ErrUnsafe},
		{"another tree's pointer", borrowed, Repo{}, ErrUnsafe},
		{"pointer of garbage", garbage, Repo{}, ErrUnsafe},
		{"pointer to nothing", dangling, Repo{}, ErrUnsafe},
	} {
		t.Run(row.name, func(t *testing.T) {
			got, err := Find(row.path)
			if !errors.Is(err, row.err) || got != row.want {
				t.Fatalf("Find = %+v, %v; want %+v, %v", got, err, row.want, row.err)
			}
		})
	}
}

func TestHead(t *testing.T) {
	r := repository(t, map[string]string{"a": "a"})
	want := git(t, r.Top, "rev-parse", "HEAD")
	if got, err := r.Head(t.Context()); err != nil || got != want {
		t.Fatalf("Head = %q, %v; want %q", got, err, want)
	}
	empty := filepath.Join(canonicalDir(t), "empty")
	if err := os.Mkdir(empty, 0o755); err != nil {
		t.Fatal(err)
	}
	git(t, empty, "init", "-q")
	e, err := Find(empty)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := e.Head(t.Context()); !errors.Is(err, ErrNoCommit) {
		t.Fatalf("Head without a commit: %v", err)
	}
	if err := os.RemoveAll(filepath.Join(r.GitDir, "refs")); err != nil {
		t.Fatal(err)
	}
	if _, err := r.Head(t.Context()); err == nil || errors.Is(err, ErrNoCommit) {
		t.Fatalf("Head of a damaged repository: %v", err)
	}
}

func TestWorktree(t *testing.T) {
	r := repository(t, map[string]string{"a": "committed", "dir/b": "b"})
	write(t, filepath.Join(r.Top, "a"), "uncommitted", 0o644)
	head, err := r.Head(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(canonicalDir(t), "repo")
	tree, err := r.AddWorktree(t.Context(), path, head)
	if err != nil {
		t.Fatal(err)
	}
	if tree.CommonDir != r.CommonDir || !tree.Linked() {
		t.Fatalf("worktree %+v of %+v", tree, r)
	}
	for name, want := range map[string]string{"a": "committed", "dir/b": "b"} {
		if b, err := os.ReadFile(filepath.Join(path, name)); err != nil || string(b) != want {
			t.Fatalf("%s = %q, %v", name, b, err)
		}
	}
	if got, err := tree.Head(t.Context()); err != nil || got != head {
		t.Fatalf("Head of the worktree = %q, %v", got, err)
	}
	if s := git(t, path, "status", "--porcelain"); s != "" {
		t.Fatalf("status of a fresh worktree: %q", s)
	}
	if s := git(t, r.Top, "worktree", "list", "--porcelain"); !strings.Contains(s, "locked") {
		t.Fatalf("not locked:\n%s", s)
	}
	if _, err := r.AddWorktree(t.Context(), path, head); err == nil {
		t.Fatal("a second worktree at the same path")
	}
}

// A crash may leave the entry, the folder, or both; each is cleared, and no neighbour with it.
func TestRemoveWorktreeHalfMade(t *testing.T) {
	for _, row := range []struct {
		name  string
		spoil func(t *testing.T, r Repo, path string)
	}{
		{"whole", func(*testing.T, Repo, string) {}},
		{"folder gone", func(t *testing.T, _ Repo, path string) { removeAll(t, path) }},
		{"entry gone", func(t *testing.T, r Repo, path string) { removeAll(t, filepath.Join(r.CommonDir, "worktrees", "mine")) }},
		{"both gone", func(t *testing.T, r Repo, path string) {
			removeAll(t, path)
			removeAll(t, filepath.Join(r.CommonDir, "worktrees", "mine"))
		}},
		{"pointer gone", func(t *testing.T, r Repo, path string) { removeAll(t, filepath.Join(path, ".git")) }},
	} {
		t.Run(row.name, func(t *testing.T) {
			r := repository(t, map[string]string{"a": "a"})
			head, err := r.Head(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			base := canonicalDir(t)
			path, other := filepath.Join(base, "mine"), filepath.Join(base, "other")
			for _, p := range []string{path, other} {
				if _, err := r.AddWorktree(t.Context(), p, head); err != nil {
					t.Fatal(err)
				}
			}
			removeAll(t, other) // a neighbour whose folder is missing must keep its entry
			row.spoil(t, r, path)
			if err := r.RemoveWorktree(path); err != nil {
				t.Fatal(err)
			}
			if _, err := os.Lstat(filepath.Join(r.CommonDir, "worktrees", "other")); err != nil {
				t.Fatalf("the neighbour's entry: %v", err)
			}
			if _, err := r.AddWorktree(t.Context(), path, head); err != nil {
				t.Fatalf("made anew: %v", err)
			}
		})
	}
}

func removeAll(t *testing.T, path string) {
	t.Helper()
	if err := os.RemoveAll(path); err != nil {
		t.Fatal(err)
	}
}

// plant puts a program that leaves a marker wherever a repository can name one.
func plant(t *testing.T, r Repo) (marker string) {
	t.Helper()
	dir := canonicalDir(t)
	marker = filepath.Join(dir, "marker")
	program := filepath.Join(dir, "program")
	script := []byte("#!/bin/sh\necho \"$0 $@\" >> " + marker + "\ncat\n")
	if err := runnable.Write(program, script, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, hook := range []string{"post-checkout", "reference-transaction", "post-index-change", "pre-commit", "post-commit"} {
		if err := runnable.Write(filepath.Join(r.CommonDir, "hooks", hook), script, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	config := filepath.Join(r.CommonDir, "config")
	f, err := os.OpenFile(config, os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	fmt.Fprintf(f, "[core]\n\tfsmonitor = %[1]s\n\tpager = %[1]s\n\teditor = %[1]s\n\tsshCommand = %[1]s\n\tattributesFile = %[2]s\n"+
		"[filter \"evil\"]\n\tsmudge = %[1]s\n\tclean = %[1]s\n\trequired = true\n[filter \"evil2\"]\n\tprocess = %[1]s\n[pager]\n\tls-files = %[1]s\n",
		program, filepath.Join(dir, "attributes"))
	write(t, filepath.Join(dir, "attributes"), "* filter=evil\n", 0o644)
	return marker
}

func TestNothingPlantedRuns(t *testing.T) {
	r := repository(t, map[string]string{"a": "a"})
	head := git(t, r.Top, "rev-parse", "HEAD")
	marker := plant(t, r)
	if _, err := r.Head(t.Context()); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(canonicalDir(t), "tree")
	tree, err := r.AddWorktree(t.Context(), path, head)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tree.Head(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := r.RemoveWorktree(path); err != nil {
		t.Fatal(err)
	}
	if b, err := os.ReadFile(marker); err == nil {
		t.Fatalf("a planted program ran: %s", b)
	}
	// The plant works: plain git, as the user would run it, does run the programs.
	git(t, r.Top, "worktree", "add", "-q", "--detach", path)
	if _, err := os.Stat(marker); err != nil {
		t.Fatal("the planted programs never run at all; this test proves nothing")
	}
}

func TestFiltersAreRefused(t *testing.T) {
	for _, row := range []struct {
		name, attributes, info string
		refused                bool
	}{
		{"none", "*.txt text\n", "", false},
		{"git lfs", "*.bin filter=lfs diff=lfs merge=lfs -text\n", "", true},
		{"a configured filter", "*.bin filter=evil\n", "", true},
		{"in info/attributes", "", "*.bin filter=evil\n", true},
		{"unset", "*.bin -filter\n", "", false},
		{"matches no file", "*.iso filter=lfs\n", "", false},
		{"by a macro", "[attr]big filter=evil\n*.bin big\n", "", true},
	} {
		t.Run(row.name, func(t *testing.T) {
			r := repository(t, map[string]string{".gitattributes": row.attributes, "x.bin": "x", "sub/y.txt": "y"})
			head := git(t, r.Top, "rev-parse", "HEAD")
			marker := plant(t, r)
			if row.info != "" {
				write(t, filepath.Join(r.CommonDir, "info", "attributes"), row.info, 0o644)
			}
			path := filepath.Join(canonicalDir(t), "tree")
			_, err := r.AddWorktree(t.Context(), path, head)
			if errors.Is(err, ErrFilter) != row.refused || (err != nil) != row.refused {
				t.Fatalf("AddWorktree: %v", err)
			}
			if _, err := os.Stat(marker); err == nil {
				t.Fatal("a filter ran")
			}
			if _, err := os.Lstat(path); row.refused && err == nil {
				t.Fatal("the refused worktree was left behind")
			}
		})
	}
}

// A partial clone fetches missing objects through whatever its configuration names as a remote.
func TestNoLazyFetch(t *testing.T) {
	r := repository(t, map[string]string{"a": "some text that gets lost"})
	head := git(t, r.Top, "rev-parse", "HEAD")
	blob := git(t, r.Top, "rev-parse", "HEAD:a")
	marker := filepath.Join(canonicalDir(t), "marker")
	git(t, r.Top, "config", "core.repositoryFormatVersion", "1")
	git(t, r.Top, "config", "extensions.partialClone", "origin")
	git(t, r.Top, "config", "remote.origin.url", "ext::sh -c touch% "+marker)
	git(t, r.Top, "config", "remote.origin.promisor", "true")
	git(t, r.Top, "config", "protocol.ext.allow", "always")
	if err := os.Remove(filepath.Join(r.GitDir, "objects", blob[:2], blob[2:])); err != nil {
		t.Fatal(err)
	}
	if _, err := r.AddWorktree(t.Context(), filepath.Join(canonicalDir(t), "tree"), head); err == nil {
		t.Fatal("a tree with a missing object was checked out")
	}
	if _, err := os.Stat(marker); err == nil {
		t.Fatal("git fetched through a planted remote")
	}
}

func TestBounds(t *testing.T) {
	r := repository(t, map[string]string{"a": strings.Repeat("0123456789abcdef", 8<<10)})
	_, err := run(t.Context(), call{repo: r, time: callTime, args: []string{"cat-file", "blob", "HEAD:a"}})
	if !errors.Is(err, ErrOutput) {
		t.Fatalf("128 KiB of output: %v", err)
	}
	// HEAD as a pipe that nobody writes keeps git waiting for ever.
	pipe := filepath.Join(r.GitDir, "HEAD")
	removeAll(t, pipe)
	if out, err := exec.Command("mkfifo", pipe).CombinedOutput(); err != nil {
		t.Fatalf("mkfifo: %v %s", err, out)
	}
	started := time.Now()
	_, err = run(t.Context(), call{repo: r, time: 300 * time.Millisecond, args: []string{"rev-parse", "HEAD"}})
	if !errors.Is(err, context.DeadlineExceeded) || time.Since(started) > time.Minute {
		t.Fatalf("a stuck git: %v after %v", err, time.Since(started))
	}
}

func TestBinary(t *testing.T) {
	dir := canonicalDir(t)
	loose := filepath.Join(dir, "git")
	write(t, loose, "#!/bin/sh\n", 0o755)
	if err := os.Chmod(loose, 0o777); err != nil {
		t.Fatal(err)
	}
	if got, err := binary([]string{loose, filepath.Join(dir, "missing")}); !errors.Is(err, ErrNoGit) {
		t.Fatalf("binary = %q, %v", got, err)
	}
	if got, err := binary([]string{loose, "/usr/bin/git"}); err != nil || got != "/usr/bin/git" {
		t.Fatalf("binary = %q, %v", got, err)
	}
}
