package gitguard

import (
	"bytes"
	"context"
	"fmt"
	"io/fs"
	"slices"
	"strconv"
	"strings"
)

// Contents reads files of commit as the object store has them, without any filter: by path, those of paths that are
// there, are plain UTF-8 without a line feed, and have at most file bytes, until they have total bytes together. It runs in the common
// directory and never in a working tree.
func (r Repo) Contents(ctx context.Context, commit string, paths []string, file, total int64) (map[string][]byte, error) {
	if !hexID(commit) {
		return nil, fmt.Errorf("read a commit: no full ID")
	}
	store := Repo{Top: r.CommonDir, GitDir: r.CommonDir, CommonDir: r.CommonDir}
	var ask []string
	var in bytes.Buffer
	for _, p := range paths {
		// git reads "./" and "../" as relative to a place that there is none of, and ends.
		if fs.ValidPath(p) && !strings.ContainsAny(p, "\n\x00") {
			ask = append(ask, p)
			fmt.Fprintf(&in, "%s:%s\n", commit, p)
		}
	}
	out, err := run(ctx, call{repo: store, time: checkoutTime, stdin: in.Bytes(), most: in.Len() + 256*len(ask),
		args: []string{"cat-file", "--batch-check=%(objectname) %(objecttype) %(objectsize)"}})
	if err != nil {
		return nil, err
	}
	// One line for each question, of which no path holds a line feed.
	lines := strings.Split(strings.TrimSuffix(string(out), "\n"), "\n")
	if len(ask) == 0 || len(lines) != len(ask) {
		return nil, nil
	}
	of, sizes := map[string][]string{}, map[string]int64{} // object -> paths, bytes
	var names []string
	for i, line := range lines {
		f := strings.Fields(line)
		if len(f) != 3 || f[1] != "blob" || !hexID(f[0]) {
			continue
		}
		size, err := strconv.ParseInt(f[2], 10, 64)
		if err != nil || size < 0 || size > file || size > total && !slices.Contains(names, f[0]) {
			continue
		}
		if _, known := sizes[f[0]]; !known {
			total -= size
			sizes[f[0]] = size
			names = append(names, f[0])
		}
		of[f[0]] = append(of[f[0]], ask[i])
	}
	if len(names) == 0 {
		return nil, nil
	}
	most := 0
	for _, n := range names {
		most += int(sizes[n]) + 128
	}
	out, err = run(ctx, call{repo: store, time: checkoutTime, stdin: []byte(strings.Join(names, "\n") + "\n"), most: most,
		args: []string{"cat-file", "--batch"}})
	if err != nil {
		return nil, err
	}
	found := map[string][]byte{}
	for _, n := range names {
		head := fmt.Appendf(nil, "%s blob %d\n", n, sizes[n])
		rest, ok := bytes.CutPrefix(out, head)
		if !ok || int64(len(rest)) < sizes[n]+1 {
			return nil, fmt.Errorf("git cat-file: another object than was asked for")
		}
		for _, p := range of[n] {
			found[p] = rest[:sizes[n]:sizes[n]]
		}
		out = rest[sizes[n]+1:]
	}
	return found, nil
}
