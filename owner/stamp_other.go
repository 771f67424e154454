//go:build !linux

package owner

import (
	"os"
	"syscall"
)

// stampOf takes the stamp of an open file from what Stat said.
func stampOf(fi os.FileInfo) (traceStamp, bool) {
	st, ok := fi.Sys().(*syscall.Stat_t)
	if !ok {
		return traceStamp{}, false
	}
	return traceStamp{dev: uint64(st.Dev), ino: st.Ino, size: st.Size, mtime: st.Mtimespec.Nano(), ctime: st.Ctimespec.Nano()}, true
}
