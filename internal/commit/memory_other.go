//go:build !linux

package commit

import "os"

// memoryFile is a nameless temporary file: its bytes may reach a disk, and
// nothing waits for that.
func memoryFile() (*os.File, error) {
	f, err := os.CreateTemp("", "holdfast-store-")
	if err != nil {
		return nil, err
	}
	if err := os.Remove(f.Name()); err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}
