package gitguard

import (
	"bytes"
	"context"
	"crypto/sha1"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"hash"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Entry is what a tree has at a path; the zero Entry is nothing.
type Entry struct {
	Mode string // 100644, 100755, or 120000 for a link
	ID   string // of the blob
}

// Edit is one path at which a commit differs from its parent.
type Edit struct {
	Path          string
	Before, After Entry // not the same
}

// Commit is a commit as its caller wants it. Two equal ones have the same ID, so that a caller who does not know
// whether an earlier try came through can recognise its own.
type Commit struct {
	Base    string // the parent, a full ID
	Edits   []Edit // one for a path
	Message string // ends with a newline
	At      time.Time
}

// Author of every commit that is made here: no configuration is asked who the person is.
const author = "Holdfast <holdfast@localhost>"

// Bounds of what git says about a commit.
const (
	maxCommitText = 64 << 10
	maxRawDiff    = 32 << 20
	maxBlobBatch  = 32 << 20 // bytes that are handed to git at once
)

// ObjectID is the ID of a blob in a repository in which like is a full ID.
func ObjectID(like string, data []byte) string {
	var h hash.Hash = sha1.New()
	if len(like) == 64 {
		h = sha256.New()
	}
	fmt.Fprintf(h, "blob %d\x00", len(data))
	h.Write(data)
	return hex.EncodeToString(h.Sum(nil))
}

// store is the repository without its working tree: git runs in the common directory, and finds no file of the user's.
func (r Repo) store() Repo { return Repo{Top: r.CommonDir, GitDir: r.GitDir, CommonDir: r.CommonDir} }

// WriteBlobs puts n blobs into the object store as they are, no filter asked. data returns the bytes and the ID of
// one; it is called in order, once each.
func (r Repo) WriteBlobs(ctx context.Context, n int, data func(i int) ([]byte, string, error)) error {
	for i := 0; i < n; {
		done, err := r.writeBatch(ctx, i, n, data)
		if err != nil {
			return err
		}
		i = done
	}
	return nil
}

func (r Repo) writeBatch(ctx context.Context, i, n int, data func(i int) ([]byte, string, error)) (int, error) {
	dir, err := os.MkdirTemp("", "holdfast-commit-")
	if err != nil {
		return 0, fmt.Errorf("write blobs: %w", err)
	}
	defer os.RemoveAll(dir)
	var paths bytes.Buffer
	var want []string
	for size := 0; i < n && size < maxBlobBatch; i++ {
		b, id, err := data(i)
		if err != nil {
			return 0, err
		}
		path := filepath.Join(dir, strconv.Itoa(i))
		if err := os.WriteFile(path, b, 0o600); err != nil {
			return 0, fmt.Errorf("write blobs: %w", err)
		}
		fmt.Fprintln(&paths, path)
		size += len(b)
		want = append(want, id)
	}
	out, err := run(ctx, call{repo: r.store(), time: checkoutTime, stdin: paths.Bytes(), most: 80 * len(want),
		args: []string{"hash-object", "-w", "-t", "blob", "--no-filters", "--stdin-paths"}})
	if err != nil {
		return 0, err
	}
	if got := strings.Fields(string(out)); !slices.Equal(got, want) {
		return 0, fmt.Errorf("git hash-object: other blobs than were written")
	}
	return i, nil
}

// Commit makes the commit object. Its blobs must be there. No branch, index or working tree is touched: the tree is
// made in a temporary index. ErrUnsafe where the base does not have what the edits say was there before, or a path
// is one that git does not take.
func (r Repo) Commit(ctx context.Context, c Commit) (string, error) {
	if !hexID(c.Base) || len(c.Edits) == 0 || !strings.HasSuffix(c.Message, "\n") {
		return "", fmt.Errorf("make a commit: it needs a base, an edit and a message")
	}
	dir, err := os.MkdirTemp("", "holdfast-commit-")
	if err != nil {
		return "", fmt.Errorf("make a commit: %w", err)
	}
	defer os.RemoveAll(dir)
	git := func(in []byte, args ...string) (string, error) {
		out, err := run(ctx, call{repo: r.store(), time: checkoutTime, stdin: in, args: args, env: append(signed(c.At), "GIT_INDEX_FILE="+filepath.Join(dir, "index"))})
		return strings.TrimSpace(string(out)), err
	}
	if _, err := git(nil, "read-tree", c.Base); err != nil {
		return "", err
	}
	if _, err := git(indexInfo(c), "update-index", "-z", "--index-info"); err != nil {
		return "", err
	}
	tree, err := git(nil, "write-tree")
	if err != nil {
		return "", err
	}
	// What was made is compared with what was meant: an edit that pushed something else out of the tree, or found
	// something else in it than it was made from, shows here.
	if same, err := r.holds(ctx, c, tree); err != nil || !same {
		return "", orUnsafe(err)
	}
	commit, err := git([]byte(c.Message), "commit-tree", "--no-gpg-sign", "-p", c.Base, "-F", "-", tree)
	if err == nil && !hexID(commit) {
		err = fmt.Errorf("git commit-tree: no commit")
	}
	return commit, err
}

func orUnsafe(err error) error {
	if err != nil {
		return err
	}
	return ErrUnsafe
}

// indexInfo is the edits as git update-index reads them, removals first, so that a folder can make room for a file.
func indexInfo(c Commit) []byte {
	var b bytes.Buffer
	for _, e := range c.Edits {
		if e.After == (Entry{}) {
			fmt.Fprintf(&b, "0 %s\t%s\x00", strings.Repeat("0", len(c.Base)), e.Path)
		}
	}
	for _, e := range c.Edits {
		if e.After != (Entry{}) {
			fmt.Fprintf(&b, "%s %s\t%s\x00", e.After.Mode, e.After.ID, e.Path)
		}
	}
	return b.Bytes()
}

// holds reports whether tree differs from the base by exactly the edits.
func (r Repo) holds(ctx context.Context, c Commit, tree string) (bool, error) {
	out, err := run(ctx, call{repo: r.store(), time: checkoutTime, most: maxRawDiff,
		args: []string{"diff-tree", "-r", "-z", "--raw", "--no-renames", "--no-abbrev", "--no-ext-diff", "--no-textconv", c.Base, tree}})
	if err != nil {
		return false, err
	}
	edits := make(map[string]Edit, len(c.Edits))
	for _, e := range c.Edits {
		edits[e.Path] = e
	}
	entry := func(mode, id string) Entry {
		if mode == "000000" {
			return Entry{}
		}
		return Entry{mode, id}
	}
	// ":mode mode id id LETTER" NUL path NUL
	fields := strings.Split(strings.TrimSuffix(string(out), "\x00"), "\x00")
	for ; len(fields) >= 2; fields = fields[2:] {
		f := strings.Fields(strings.TrimPrefix(fields[0], ":"))
		if len(f) != 5 {
			return false, nil
		}
		if got := (Edit{fields[1], entry(f[0], f[2]), entry(f[1], f[3])}); edits[got.Path] != got {
			return false, nil
		}
		delete(edits, fields[1])
	}
	return len(edits) == 0, nil
}

// IsCommit reports whether id is the commit that Commit would make. It writes nothing.
func (r Repo) IsCommit(ctx context.Context, id string, c Commit) (bool, error) {
	if !hexID(id) {
		return false, nil
	}
	out, err := run(ctx, call{repo: r.store(), time: callTime, most: maxCommitText, args: []string{"cat-file", "commit", id}})
	if err != nil {
		return false, err
	}
	tree, rest, _ := strings.Cut(strings.TrimPrefix(string(out), "tree "), "\n")
	when := fmt.Sprintf("%s %d +0000\n", author, c.At.Unix())
	if !hexID(tree) || rest != "parent "+c.Base+"\nauthor "+when+"committer "+when+"\n"+c.Message {
		return false, nil
	}
	return r.holds(ctx, c, tree)
}

// signed is who makes a commit and a reflog entry, and when.
func signed(at time.Time) []string {
	name, mail, _ := strings.Cut(strings.TrimSuffix(author, ">"), " <")
	var env []string
	for _, who := range []string{"AUTHOR", "COMMITTER"} {
		env = append(env, "GIT_"+who+"_NAME="+name, "GIT_"+who+"_EMAIL="+mail, fmt.Sprintf("GIT_%s_DATE=%d +0000", who, at.Unix()))
	}
	return env
}
