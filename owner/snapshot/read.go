package snapshot

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// ErrChanged is returned for a file that is not what a snapshot saw, or has a second name.
var ErrChanged = errors.New("the file is no longer what the snapshot saw")

// Root is an open folder of which files are read by what a snapshot says of them.
type Root struct{ fd int }

// Open opens the folder at path, absolute and canonical, following no link.
func Open(path string) (*Root, error) {
	fd, err := OpenRoot(path)
	if err != nil {
		return nil, err
	}
	return &Root{fd}, nil
}

// Close releases the descriptor.
func (r *Root) Close() error { return unix.Close(r.fd) }

// Read returns the bytes of a file exactly as the snapshot saw it, at most max of them: the same file by the same
// path over no link, with one name, the same times, and the same digest. ErrChanged otherwise.
func (r *Root) Read(e *Entry, max int64) ([]byte, error) {
	if e.Kind != File || e.Size > max {
		return nil, fmt.Errorf("read a file of a tree: no file of at most %d bytes", max)
	}
	fd, err := beneath(r.fd, e.Path, fileFlags)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrChanged, err)
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil || stampOf(&st) != e.stamp || uint64(st.Nlink) != 1 {
		return nil, ErrChanged
	}
	b := make([]byte, e.Size)
	for n := 0; n < len(b); {
		some, err := unix.Pread(fd, b[n:], int64(n))
		if err == unix.EINTR {
			continue
		}
		if err != nil || some == 0 {
			return nil, ErrChanged
		}
		n += some
	}
	// The digest says the rest: these are the bytes that the snapshot names, whatever happens to the file now.
	if sha256.Sum256(b) != e.Sum {
		return nil, ErrChanged
	}
	return b, nil
}

// Differ reports whether two entries of one path count as a change: what their trees' digests would show.
func Differ(a, b *Entry) bool {
	return a.Kind != b.Kind || a.Exec != b.Exec || a.Size != b.Size || a.Sum != b.Sum || a.Target != b.Target
}

// Outward reports whether a link at path leads out of the tree, or may: it is absolute, climbs over the root, or
// climbs again after it went down, where another link could have led anywhere.
func Outward(path, target string) bool {
	if filepath.IsAbs(target) || target == "" {
		return true
	}
	up, down := 0, false
	for _, c := range strings.Split(target, "/") {
		switch c {
		case "", ".":
		case "..":
			if down {
				return true
			}
			up++
		default:
			down = true
		}
	}
	return up > strings.Count(path, "/")
}
