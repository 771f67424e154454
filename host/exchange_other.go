//go:build !linux

package host

import (
	"errors"
	"os"
)

var errNoExchange = errors.New("this system cannot put a home in the place of another in one step; move the old one away first")

// exchange swaps two folders of one file system in one step.
func exchange(_, _ string) error { return errNoExchange }

// renameNew renames a folder to a name that is free.
func renameNew(from, to string) error {
	if _, err := os.Lstat(to); err == nil {
		return os.ErrExist
	}
	return os.Rename(from, to)
}
