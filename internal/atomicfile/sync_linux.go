package atomicfile

import (
	"os"

	"golang.org/x/sys/unix"
)

// dataSync is fdatasync: a changed size is flushed with the data, times are not.
func dataSync(f *os.File) error {
	for {
		err := unix.Fdatasync(int(f.Fd()))
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return &os.PathError{Op: "fdatasync", Path: f.Name(), Err: err}
		}
		return nil
	}
}
