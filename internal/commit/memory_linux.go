package commit

import (
	"os"

	"golang.org/x/sys/unix"
)

// memoryFile is a file that no disk and no folder knows.
func memoryFile() (*os.File, error) {
	fd, err := unix.MemfdCreate("holdfast-store", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, os.NewSyscallError("memfd_create", err)
	}
	return os.NewFile(uintptr(fd), "holdfast-store"), nil
}
