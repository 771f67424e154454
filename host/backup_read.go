package host

import (
	"archive/tar"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path"

	"holdfast/internal/saferead"
)

// backupFault is what is wrong with a backup.
func backupFault(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrBackup, fmt.Sprintf(format, args...))
}

// unpack writes what a backup holds into a new private folder, each file and
// each name synced. Nothing of it may be used before unpack returned nil: only
// then is it known that the backup was whole.
func unpack(r io.Reader, into *saferead.Dir) (backupHeader, backupTrailer, error) {
	var head backupHeader
	var end backupTrailer
	u := unpacker{root: into, made: map[string]*saferead.Dir{}}
	defer u.close()
	tr := tar.NewReader(r)
	sum := sha256.New()
	files, bytes := 0, int64(0)
	for {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			return head, end, backupFault("it is cut short")
		}
		if err != nil {
			return head, end, backupFault("%s", err)
		}
		name := h.Name
		if h.Typeflag != tar.TypeReg || h.Size < 0 {
			return head, end, backupFault("%q is no plain file", name)
		}
		switch {
		case name == backupSum:
			if err := note(tr, h, &end); err != nil {
				return head, end, err
			}
			if end.V != backupVersion || end.Files != files || end.Bytes != bytes || end.Digest != sumOf(sum) {
				return head, end, backupFault("its files are not those that were written")
			}
			if _, err := tr.Next(); !errors.Is(err, io.EOF) {
				return head, end, backupFault("something stands behind its end")
			}
			return head, end, u.sync()
		case files == 0:
			if name != backupHead {
				return head, end, backupFault("it does not begin as one")
			}
			digestName(sum, name, h.Size)
			if err := note(io.TeeReader(tr, sum), h, &head); err != nil {
				return head, end, err
			}
			if head.V != backupVersion {
				return head, end, backupFault("it says %q; use the holdfast that made it", head.V)
			}
		case !backupName().MatchString(name):
			return head, end, backupFault("it holds %q, which no backup has", name)
		default:
			digestName(sum, name, h.Size)
			if err := u.file(name, io.TeeReader(tr, sum)); err != nil {
				return head, end, err
			}
		}
		files++
		bytes += h.Size
	}
}

func note(r io.Reader, h *tar.Header, into any) error {
	if h.Size > backupNotes {
		return backupFault("%s is too large", h.Name)
	}
	raw, err := io.ReadAll(r)
	if err == nil {
		err = json.Unmarshal(raw, into)
	}
	if err != nil {
		return backupFault("%s cannot be read: %s", h.Name, err)
	}
	return nil
}

// unpacker makes folders as their first file comes.
type unpacker struct {
	root *saferead.Dir
	made map[string]*saferead.Dir
}

func (u *unpacker) folder(at string) (*saferead.Dir, error) {
	if at == "." {
		return u.root, nil
	}
	if d := u.made[at]; d != nil {
		return d, nil
	}
	parent, err := u.folder(path.Dir(at))
	if err != nil {
		return nil, err
	}
	name := path.Base(at)
	if err := parent.Mkdir(name); err != nil && !errors.Is(err, os.ErrExist) {
		return nil, err
	}
	d, err := parent.OpenDir(name)
	if err != nil {
		return nil, err
	}
	if path.Dir(at) == "tasks" || path.Dir(at) == "blobs/sha256" {
		// There may be any number of these, and their files stand together.
		for other, old := range u.made {
			if path.Dir(other) == path.Dir(at) {
				if err := errors.Join(old.Sync(), old.Close()); err != nil {
					return nil, errors.Join(err, d.Close())
				}
				delete(u.made, other)
			}
		}
	}
	u.made[at] = d
	return d, nil
}

func (u *unpacker) file(name string, r io.Reader) error {
	d, err := u.folder(path.Dir(name))
	if err != nil {
		return err
	}
	if path.Base(name) == "log" {
		for _, lock := range []string{"lock", "owner.lock"} { // a task has both from its first moment on
			if err := write(d, lock, nil); err != nil {
				return err
			}
		}
	}
	return write(d, path.Base(name), r)
}

func write(d *saferead.Dir, name string, r io.Reader) error {
	f, err := d.Open(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL)
	if err != nil {
		return backupFault("%s", err)
	}
	if r != nil {
		if _, err = io.Copy(f, r); errors.Is(err, io.ErrUnexpectedEOF) {
			err = backupFault("it is cut short")
		}
	}
	if err == nil {
		err = f.Sync()
	}
	return errors.Join(err, f.Close())
}

// sync makes every name durable that was not yet, and the folders that a home
// has even where they are empty.
func (u *unpacker) sync() error {
	for _, part := range []string{"tasks", "identities", "blobs/sha256", "worktrees"} {
		if _, err := u.folder(part); err != nil {
			return err
		}
	}
	var errs []error
	for _, d := range u.made {
		errs = append(errs, d.Sync())
	}
	return errors.Join(append(errs, u.root.Sync())...)
}

func (u *unpacker) close() {
	for _, d := range u.made {
		d.Close()
	}
}
