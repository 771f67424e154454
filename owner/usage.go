package owner

import (
	"context"
	"errors"
	"io/fs"
	"path/filepath"
	"syscall"
)

// maxCounted bounds how many entries of a folder are counted.
const maxCounted = 50_000

// Usage is what a folder takes on disk, in bytes, of at most the given number of its entries, and whether those were
// all. What cannot be read counts nothing; no link is followed.
func Usage(ctx context.Context, path string, entries int) (bytes int64, whole bool) {
	whole = true
	stop := errors.New("enough")
	err := filepath.WalkDir(path, func(_ string, d fs.DirEntry, err error) error {
		if err != nil {
			return nil
		}
		if entries--; entries < 0 || ctx.Err() != nil {
			return stop
		}
		if info, err := d.Info(); err == nil {
			bytes += onDisk(info)
		}
		return nil
	})
	return bytes, err == nil
}

// onDisk is what a file takes, which of one with holes is less than its size.
func onDisk(info fs.FileInfo) int64 {
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		return st.Blocks * 512
	}
	return info.Size()
}
