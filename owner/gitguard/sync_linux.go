package gitguard

import (
	"os"

	"golang.org/x/sys/unix"
)

// syncTree flushes the file system that holds path: one call for all files of a checkout.
func syncTree(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	return unix.Syncfs(int(f.Fd()))
}
