package snapshot

import (
	"fmt"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

const (
	folderFlags = unix.O_RDONLY | unix.O_DIRECTORY | unix.O_NOFOLLOW | unix.O_CLOEXEC
	// Non-blocking, so that a pipe which takes a file's place is not waited for.
	fileFlags = unix.O_RDONLY | unix.O_NONBLOCK | unix.O_NOFOLLOW | unix.O_CLOEXEC
)

// OpenRoot opens the folder at path, absolute and canonical, following no link at any component.
func OpenRoot(path string) (int, error) {
	if !filepath.IsAbs(path) || filepath.Clean(path) != path {
		return -1, fmt.Errorf("open a tree: the path must be absolute and clean")
	}
	top, err := unix.Open("/", folderFlags, 0)
	if err != nil {
		return -1, fmt.Errorf("open a tree: %w", err)
	}
	if path == "/" {
		return top, nil
	}
	defer unix.Close(top)
	fd, err := beneath(top, path[1:], folderFlags)
	if err != nil {
		return -1, fmt.Errorf("open a tree: %w", err)
	}
	return fd, nil
}

// chain opens path below root a component at a time, each without following a link: what openat2 does in one call.
func chain(root int, path string, flags int) (int, error) {
	at := root
	for {
		name, rest, more := strings.Cut(path, "/")
		f := flags
		if more {
			f = folderFlags
		}
		fd, err := retry(func() (int, error) { return unix.Openat(at, name, f, 0) })
		if at != root {
			unix.Close(at)
		}
		if err != nil || !more {
			return fd, err
		}
		at, path = fd, rest
	}
}

func retry(open func() (int, error)) (int, error) {
	for {
		fd, err := open()
		if err != unix.EINTR {
			return fd, err
		}
	}
}

// stamp is what a file's digest is remembered by: as long as all of it is the same, nobody has written.
type stamp struct {
	dev, ino     uint64
	size         int64
	mtime, ctime int64 // ns
}

func stampOf(st *unix.Stat_t) stamp {
	return stamp{uint64(st.Dev), st.Ino, st.Size, st.Mtim.Nano(), st.Ctim.Nano()}
}

// kindOf sorts a mode into the four kinds, and names a special one.
func kindOf(st *unix.Stat_t) (Kind, string) {
	switch uint32(st.Mode) & unix.S_IFMT {
	case unix.S_IFDIR:
		return Directory, ""
	case unix.S_IFREG:
		return File, ""
	case unix.S_IFLNK:
		return Link, ""
	case unix.S_IFIFO:
		return Special, "fifo"
	case unix.S_IFSOCK:
		return Special, "socket"
	}
	return Special, "device"
}
