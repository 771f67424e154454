// Package saferead opens private files the way every store of Holdfast must:
// descriptor relative, following no link, and trusting nothing that another
// user could have put there.
//
// Its one noun is Dir, an open private folder. Everything below it is reached
// by single names, so a link swapped in half way can never lead elsewhere. A
// file is accepted when it is regular, has one link, belongs to this user, has
// no permission bits for others, and is still the file that its name denotes
// after it was opened. A folder is accepted when it is a real folder of this
// user with no bits for others. Anything else is ErrUnsafe; permissions are
// never repaired, because bits that are open now may have been used already.
//
// Only the last component of the path given to OpenDir is judged: what lies
// above belongs to the operator's machine, not to the store.
//
// All methods may be called from any goroutine until Close. Nothing here is
// durable by itself; see package atomicfile for the ordering of syncs.
package saferead

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

var (
	// ErrUnsafe is returned for a link, a second link, a special file, a
	// foreign owner, open permissions, or a name that changed while it was opened.
	ErrUnsafe = errors.New("unsafe file")
	// ErrTooLarge is returned when a file is longer than the caller's bound.
	ErrTooLarge = errors.New("file is too large")
)

// Dir is an open private folder.
type Dir struct {
	f    *os.File
	path string
}

// OpenDir opens the private folder at path.
func OpenDir(path string) (*Dir, error) { return openDir(unix.AT_FDCWD, path, path) }

// OpenDir opens the private folder name inside d.
func (d *Dir) OpenDir(name string) (*Dir, error) {
	if err := single(name); err != nil {
		return nil, err
	}
	return openDir(int(d.f.Fd()), name, filepath.Join(d.path, name))
}

func openDir(at int, name, path string) (*Dir, error) {
	fd, err := retry(func() (int, error) {
		return unix.Openat(at, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	})
	if err != nil {
		if err == unix.ELOOP || err == unix.ENOTDIR {
			return nil, unsafe(path, "not a real folder")
		}
		return nil, &os.PathError{Op: "open", Path: path, Err: err}
	}
	d := &Dir{f: os.NewFile(uintptr(fd), path), path: path}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		d.Close()
		return nil, &os.PathError{Op: "stat", Path: path, Err: err}
	}
	if err := private(path, &st, unix.S_IFDIR); err != nil {
		d.Close()
		return nil, err
	}
	return d, nil
}

// Path is the path d was opened by.
func (d *Dir) Path() string { return d.path }

// Close releases the descriptor.
func (d *Dir) Close() error { return d.f.Close() }

// Sync makes the names in d durable: files created in it, renamed or removed.
func (d *Dir) Sync() error { return d.f.Sync() }

// openTries is how often a file is opened whose name leads to another one by
// then: files are replaced by renames, and whoever does so in order is done with
// the first.
const openTries = 16

// Open opens the private file name. flag is of package os; with O_CREATE a new
// file gets mode 0600. The descriptor is closed on exec. A file that is replaced
// meanwhile is opened anew; where that does not end, it is ErrUnsafe.
func (d *Dir) Open(name string, flag int) (*os.File, error) {
	if err := single(name); err != nil {
		return nil, err
	}
	for try := 1; ; try++ {
		f, moved, err := d.open(name, flag)
		if !moved || try == openTries || flag&os.O_EXCL != 0 {
			return f, err
		}
	}
}

// open is one try of Open. moved says that the name does not lead to what was
// opened any more, and nothing else is wrong.
func (d *Dir) open(name string, flag int) (_ *os.File, moved bool, err error) {
	path := filepath.Join(d.path, name)
	fd, err := retry(func() (int, error) {
		return unix.Openat(int(d.f.Fd()), name, flag|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0o600)
	})
	if err != nil {
		switch err {
		case unix.ELOOP, unix.ENXIO, unix.EISDIR:
			return nil, false, unsafe(path, "not a regular file")
		}
		return nil, false, &os.PathError{Op: "open", Path: path, Err: err}
	}
	f := os.NewFile(uintptr(fd), path)
	defer func() {
		if err != nil {
			f.Close()
		}
	}()
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return nil, false, &os.PathError{Op: "stat", Path: path, Err: err}
	}
	if st.Nlink == 0 {
		return nil, true, unsafe(path, "removed or replaced while it was opened")
	}
	if err := private(path, &st, unix.S_IFREG); err != nil {
		return nil, false, err
	}
	if err := d.same(name, f, &st); err != nil {
		return nil, errors.Is(err, ErrUnsafe), err
	}
	return f, false, nil
}

// Stamp tells one state of a file from every other that the kernel tells apart.
type Stamp struct {
	Dev, Ino          uint64
	Size              int64
	Modified, Changed int64 // ns
}

// Peek is the stamp of the private file name in the folder of d, or in d itself where folder is "": both are judged as
// OpenDir and Open do, without being opened. It is for those who have read a file and ask whether it is still that one:
// a stamp that differs says nothing about what is there, and one that is equal that nothing was done to it.
func (d *Dir) Peek(folder, name string) (Stamp, error) {
	if err := single(name); err != nil {
		return Stamp{}, err
	}
	at := name
	if folder != "" {
		if err := single(folder); err != nil {
			return Stamp{}, err
		}
		if _, err := d.peek(folder, unix.S_IFDIR); err != nil {
			return Stamp{}, err
		}
		// Whoever puts a link in the folder's place now leads to another file, which has another stamp.
		at = folder + "/" + name
	}
	st, err := d.peek(at, unix.S_IFREG)
	if err != nil {
		return Stamp{}, err
	}
	return Stamp{Dev: uint64(st.Dev), Ino: uint64(st.Ino), Size: st.Size, Modified: st.Mtim.Nano(), Changed: st.Ctim.Nano()}, nil
}

func (d *Dir) peek(at string, kind uint32) (*unix.Stat_t, error) {
	var st unix.Stat_t
	if err := unix.Fstatat(int(d.f.Fd()), at, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return nil, &os.PathError{Op: "stat", Path: filepath.Join(d.path, at), Err: err}
	}
	if err := private(at, &st, kind); err != nil {
		return nil, fmt.Errorf("in %s: %w", d.path, err)
	}
	return &st, nil
}

// Same reports ErrUnsafe unless name in d still denotes the file that f has open.
func (d *Dir) Same(name string, f *os.File) error {
	var open unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &open); err != nil {
		return &os.PathError{Op: "stat", Path: f.Name(), Err: err}
	}
	return d.same(name, f, &open)
}

// same is Same of a file of which open was just said.
func (d *Dir) same(name string, f *os.File, open *unix.Stat_t) error {
	var named unix.Stat_t
	err := unix.Fstatat(int(d.f.Fd()), name, &named, unix.AT_SYMLINK_NOFOLLOW)
	if err == unix.ENOENT {
		return unsafe(f.Name(), "removed while it was opened")
	}
	if err != nil {
		return &os.PathError{Op: "stat", Path: f.Name(), Err: err}
	}
	if open.Dev != named.Dev || open.Ino != named.Ino {
		return unsafe(f.Name(), "replaced while it was opened")
	}
	return nil
}

// Read returns the whole private file name, at most max bytes of it: a longer
// one is ErrTooLarge.
func (d *Dir) Read(name string, max int64) ([]byte, error) {
	f, err := d.Open(name, os.O_RDONLY)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, max+1))
	if err != nil {
		return nil, err
	}
	if int64(len(b)) > max {
		return nil, fmt.Errorf("%s: %w", f.Name(), ErrTooLarge)
	}
	return b, nil
}

// Read is OpenDir of the parent folder and Read of the file: for a private
// file in a private folder.
func Read(path string, max int64) ([]byte, error) {
	d, err := OpenDir(filepath.Dir(path))
	if err != nil {
		return nil, err
	}
	defer d.Close()
	return d.Read(filepath.Base(path), max)
}

// Mkdir makes the folder name with mode 0700.
func (d *Dir) Mkdir(name string) error {
	if err := single(name); err != nil {
		return err
	}
	if err := unix.Mkdirat(int(d.f.Fd()), name, 0o700); err != nil {
		return &os.PathError{Op: "mkdir", Path: filepath.Join(d.path, name), Err: err}
	}
	return nil
}

// Rename renames within d, replacing the target.
func (d *Dir) Rename(from, to string) error {
	if err := errors.Join(single(from), single(to)); err != nil {
		return err
	}
	fd := int(d.f.Fd())
	if err := unix.Renameat(fd, from, fd, to); err != nil {
		return &os.LinkError{Op: "rename", Old: filepath.Join(d.path, from), New: filepath.Join(d.path, to), Err: err}
	}
	return nil
}

// Remove removes the file name.
func (d *Dir) Remove(name string) error {
	if err := single(name); err != nil {
		return err
	}
	if err := unix.Unlinkat(int(d.f.Fd()), name, 0); err != nil {
		return &os.PathError{Op: "remove", Path: filepath.Join(d.path, name), Err: err}
	}
	return nil
}

// Names lists d, sorted.
func (d *Dir) Names() ([]string, error) {
	// A descriptor of its own: the read position of d.f is shared by all callers.
	fd, err := retry(func() (int, error) {
		return unix.Openat(int(d.f.Fd()), ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	})
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: d.path, Err: err}
	}
	f := os.NewFile(uintptr(fd), d.path)
	defer f.Close()
	names, err := f.Readdirnames(-1)
	slices.Sort(names)
	return names, err
}

// PrivateFile refuses an open file that is not this user's own plain file with
// one name and no rights for others: ErrUnsafe. It is for stores that open
// their file themselves (with O_NOFOLLOW).
func PrivateFile(f *os.File) error {
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return fmt.Errorf("look at %s: %w", f.Name(), err)
	}
	return private(f.Name(), &st, unix.S_IFREG)
}

// private judges an open descriptor.
func private(path string, st *unix.Stat_t, kind uint32) error {
	mode := uint32(st.Mode)
	switch {
	case mode&unix.S_IFMT != kind:
		return unsafe(path, "of another kind")
	case st.Uid != uint32(os.Geteuid()):
		return unsafe(path, "owned by another user")
	case mode&0o077 != 0:
		return unsafe(path, fmt.Sprintf("open to others (mode %04o)", mode&0o7777))
	case kind == unix.S_IFREG && st.Nlink != 1:
		return unsafe(path, "linked more than once")
	}
	return nil
}

func unsafe(path, why string) error { return fmt.Errorf("%s is %s: %w", path, why, ErrUnsafe) }

// single refuses everything but one plain name.
func single(name string) error {
	if name == "" || name == "." || name == ".." || strings.ContainsAny(name, "/\x00") {
		return fmt.Errorf("%q is no plain file name: %w", name, ErrUnsafe)
	}
	return nil
}

func retry(open func() (int, error)) (int, error) {
	for {
		fd, err := open()
		if err != unix.EINTR {
			return fd, err
		}
	}
}
