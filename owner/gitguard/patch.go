package gitguard

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// File is one file or link of a tree that Patch compares.
type File struct {
	Path string
	Mode string // 100644, 100755, or 120000 for a link, whose Data is where it leads
	Data []byte
}

// maxPatch bounds a patch, in bytes.
const maxPatch = 64 << 20

// Patch is what `git apply` takes to come from before to after, binary files included, renames as a removal and an
// addition. Objects are named in the hash that id, a full ID of the repository, has. It works in a bare repository
// of its own, in a temporary folder that is gone when it returns: no attributes, hooks or configuration but ours.
func Patch(ctx context.Context, id string, before, after []File) ([]byte, error) {
	dir, err := os.MkdirTemp("", "holdfast-patch-")
	if err != nil {
		return nil, fmt.Errorf("make a patch: %w", err)
	}
	defer os.RemoveAll(dir)
	config := "[core]\n\trepositoryformatversion = 0\n\tbare = true\n"
	if len(id) == 64 {
		config = "[core]\n\trepositoryformatversion = 1\n\tbare = true\n[extensions]\n\tobjectformat = sha256\n"
	}
	for _, d := range []string{"objects", "refs"} {
		if err := os.Mkdir(filepath.Join(dir, d), 0o700); err != nil {
			return nil, fmt.Errorf("make a patch: %w", err)
		}
	}
	// HEAD names nothing, so no tree that is compared can bring attributes along.
	for name, text := range map[string]string{"config": config, "HEAD": "ref: refs/heads/none\n"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			return nil, fmt.Errorf("make a patch: %w", err)
		}
	}
	repo := Repo{Top: dir, GitDir: dir, CommonDir: dir}
	var in bytes.Buffer
	commit(&in, "refs/holdfast/before", before)
	commit(&in, "refs/holdfast/after", after)
	if _, err := run(ctx, call{repo: repo, time: checkoutTime, stdin: in.Bytes(), args: []string{"fast-import", "--quiet"}}); err != nil {
		return nil, err
	}
	return run(ctx, call{repo: repo, time: checkoutTime, most: maxPatch, args: []string{"diff-tree", "-r", "-p", "--binary", "--full-index",
		"--no-renames", "--no-ext-diff", "--no-textconv", "--no-color", "refs/holdfast/before", "refs/holdfast/after"}})
}

// commit writes one tree for git fast-import.
func commit(in *bytes.Buffer, ref string, files []File) {
	fmt.Fprintf(in, "commit %s\ncommitter holdfast <> 0 +0000\ndata 0\n\n", ref)
	quote := strings.NewReplacer(`\`, `\\`, `"`, `\"`, "\n", `\n`)
	for _, f := range files {
		fmt.Fprintf(in, "M %s inline \"%s\"\ndata %d\n", f.Mode, quote.Replace(f.Path), len(f.Data))
		in.Write(f.Data)
		in.WriteByte('\n')
	}
	in.WriteByte('\n')
}
