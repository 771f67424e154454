package atomicfile

import (
	"bufio"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
)

// Create makes the new file at path, mode 0600, of what fill writes. It is for what a person asked to have written
// somewhere: the folder need not be private, and a file that is there already is never replaced (fs.ErrExist). The
// content appears as a whole or not at all: it is written and synced under a temporary name of the same folder, which
// is then linked to path. After an error that is not ErrUnknown there is no file at path that was not there before.
func Create(path string, fill func(w io.Writer) error) (err error) {
	dir, name := filepath.Split(path)
	if _, err := os.Lstat(path); err == nil {
		return &os.PathError{Op: "create", Path: path, Err: os.ErrExist} // before all the work; the link decides
	}
	var r [8]byte
	rand.Read(r[:])
	temp := filepath.Join(dir, "."+name+".tmp-"+hex.EncodeToString(r[:]))
	f, err := os.OpenFile(temp, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	defer os.Remove(temp)
	w := bufio.NewWriter(f)
	err = fill(w)
	if err == nil {
		err = w.Flush()
	}
	if err == nil {
		// Before the link: a crash after it must not show an empty file.
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	if err := os.Link(temp, path); err != nil {
		return err
	}
	// The commit point: a crash before leaves the file or none, after it the file.
	d, err := os.Open(filepath.Clean(dir + "."))
	if err == nil {
		err = errors.Join(d.Sync(), d.Close())
	}
	if err != nil {
		return fmt.Errorf("%w: %w", ErrUnknown, err)
	}
	return nil
}
