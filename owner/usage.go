package owner

import (
	"context"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
)

// maxCounted bounds how many entries of a folder are counted.
const maxCounted = 50_000

// usageStep is how many entries of a folder are read at once, so that a short look at a large one stays short.
const usageStep = 256

// Usage is what a folder takes on disk, in bytes, of at most the given number of its entries, and whether those were
// all. What cannot be read counts nothing; no link is followed.
func Usage(ctx context.Context, path string, entries int) (bytes int64, whole bool) {
	info, err := os.Lstat(path)
	if err != nil {
		return 0, true
	}
	u := usage{ctx: ctx, left: entries}
	whole = u.add(path, info)
	return u.bytes, whole
}

type usage struct {
	ctx   context.Context
	left  int // entries that may still be looked at
	bytes int64
}

// add counts what is at path and below; false where it was not all.
func (u *usage) add(path string, info fs.FileInfo) bool {
	if u.left--; u.left < 0 || u.ctx.Err() != nil {
		return false
	}
	u.bytes += onDisk(info)
	if !info.IsDir() {
		return true
	}
	d, err := os.Open(path)
	if err != nil {
		return true
	}
	defer d.Close()
	for {
		list, err := d.ReadDir(usageStep)
		for _, e := range list {
			if info, err := e.Info(); err == nil && !u.add(filepath.Join(path, e.Name()), info) {
				return false
			}
		}
		if err != nil {
			return true // its end, or what cannot be read
		}
	}
}

// onDisk is what a file takes, which of one with holes is less than its size.
func onDisk(info fs.FileInfo) int64 {
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		return st.Blocks * 512
	}
	return info.Size()
}
