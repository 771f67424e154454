// Package atomicfile writes private files so that a crash leaves the old file
// or the new one, and never a part of either.
//
// Write is the whole of it for most callers: a temporary file of the same
// folder is written and synced, renamed over the name, and the folder is
// synced. The rename is the moment the new content becomes visible; the sync
// of the folder is the moment it survives a power cut.
//
// FS and File are the few operations on which the stores build their own
// orderings (logs, blobs, shards). OS performs them; tests put a double
// between that fails the Nth one, cuts a write short or forgets what was not
// synced, to prove that every ordering holds. Nothing here follows a link:
// folders and files are opened through package saferead.
//
// All functions may be called from any goroutine.
package atomicfile

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"holdfast/internal/saferead"
)

// FS is what a store does to a disk.
type FS interface {
	Open(d *saferead.Dir, name string, flag int) (File, error)
	Mkdir(d *saferead.Dir, name string) error
	Rename(d *saferead.Dir, from, to string) error
	Remove(d *saferead.Dir, name string) error
	SyncDir(d *saferead.Dir) error
}

// File is an open private file.
type File interface {
	io.ReaderAt
	io.WriterAt
	Truncate(size int64) error
	Sync() error // data and size; the name needs SyncDir
	Stat() (os.FileInfo, error)
	Close() error
}

// OS is the real disk.
var OS FS = osFS{}

type osFS struct{}

func (osFS) Open(d *saferead.Dir, name string, flag int) (File, error) {
	f, err := d.Open(name, flag)
	if err != nil {
		return nil, err
	}
	return osFile{f}, nil
}
func (osFS) Mkdir(d *saferead.Dir, name string) error      { return d.Mkdir(name) }
func (osFS) Rename(d *saferead.Dir, from, to string) error { return d.Rename(from, to) }
func (osFS) Remove(d *saferead.Dir, name string) error     { return d.Remove(name) }
func (osFS) SyncDir(d *saferead.Dir) error                 { return d.Sync() }

type osFile struct{ *os.File }

// Sync makes data and size durable, and not the times.
func (f osFile) Sync() error { return dataSync(f.File) }

// ErrUnknown is returned when the failure came after the point where the new
// content may have become visible: what a power cut would leave is not known.
var ErrUnknown = errors.New("the outcome of a write is not known")

// WriteIn writes name in d. An error that is not ErrUnknown means that the old
// content, or none, is still there.
func WriteIn(fs FS, d *saferead.Dir, name string, data []byte) (err error) {
	var r [8]byte
	rand.Read(r[:])
	temp := "." + name + ".tmp-" + hex.EncodeToString(r[:])
	f, err := fs.Open(d, temp, os.O_RDWR|os.O_CREATE|os.O_EXCL)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil && !errors.Is(err, ErrUnknown) {
			fs.Remove(d, temp) // an orphan is harmless: nothing reads a temporary name
		}
	}()
	_, err = f.WriteAt(data, 0)
	if err == nil {
		// Before the rename: a crash after the rename must not show an empty file.
		err = f.Sync()
	}
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err != nil {
		return err
	}
	if err := fs.Rename(d, temp, name); err != nil {
		return fmt.Errorf("%w: %w", ErrUnknown, err)
	}
	// The commit point: a crash before leaves old or new, after it the new.
	if err := fs.SyncDir(d); err != nil {
		return fmt.Errorf("%w: %w", ErrUnknown, err)
	}
	return nil
}

// Write writes the private file at path, whose folder must be private, too.
func Write(path string, data []byte) error {
	d, err := saferead.OpenDir(filepath.Dir(path))
	if err != nil {
		return err
	}
	defer d.Close()
	return WriteIn(OS, d, filepath.Base(path), data)
}

// MakeAll makes the folder path and what is missing above it, each name synced
// into its folder: what is kept in a folder that a power cut takes away was not
// kept. That path was there already says nothing about its name; whoever relies
// on it calls SyncName.
func MakeAll(path string, mode os.FileMode) error {
	err := os.Mkdir(path, mode)
	if errors.Is(err, os.ErrNotExist) && filepath.Dir(path) != path {
		if err := MakeAll(filepath.Dir(path), mode); err != nil {
			return err
		}
		err = os.Mkdir(path, mode)
	}
	if st, serr := os.Stat(path); errors.Is(err, os.ErrExist) && serr == nil && st.IsDir() {
		return nil
	}
	if err != nil {
		return err
	}
	return SyncName(path)
}

// SyncName makes the name of a file or folder durable that is there already: who
// made it may have died before it came to that.
func SyncName(path string) error {
	d, err := os.Open(filepath.Dir(path))
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
