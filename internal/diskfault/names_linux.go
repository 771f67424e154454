//go:build amd64 || arm64

package diskfault

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// names is what of the folders would survive a power cut: the names that a folder
// had at its last sync, and the files that lost a name since.
type names struct {
	synced map[inode]map[string]inode // by folder; one that was never synced has no names
	limbo  string                     // a folder beside the watched one, "" until something is kept
	kept   map[inode]string           // files that lost a name -> their name in limbo
}

// beginNames takes what is there now as synced. The caller holds d.mu.
func (d *Disk) beginNames() error {
	d.names = names{synced: map[inode]map[string]inode{}, kept: map[inode]string{}}
	return d.eachFolder(func(path string, id inode) error {
		list, err := listing(path)
		d.names.synced[id] = list
		return err
	})
}

// eachFolder calls fn for the watched folder and all below it, each before those
// that it holds at that time.
func (d *Disk) eachFolder(fn func(path string, id inode) error) error {
	todo := []string{strings.TrimSuffix(d.dir, "/")}
	for len(todo) > 0 {
		path := todo[0]
		todo = todo[1:]
		var st unix.Stat_t
		if err := unix.Lstat(path, &st); errors.Is(err, unix.ENOENT) {
			continue // the story has not made it yet
		} else if err != nil {
			return err
		}
		if err := fn(path, inode{uint64(st.Dev), st.Ino}); err != nil {
			return err
		}
		list, err := os.ReadDir(path)
		if err != nil {
			return err
		}
		for _, e := range list {
			if e.IsDir() {
				todo = append(todo, filepath.Join(path, e.Name()))
			}
		}
	}
	return nil
}

func listing(folder string) (map[string]inode, error) {
	list, err := os.ReadDir(folder)
	if err != nil {
		return nil, err
	}
	out := make(map[string]inode, len(list))
	for _, e := range list {
		var st unix.Stat_t
		if unix.Lstat(filepath.Join(folder, e.Name()), &st) == nil {
			out[e.Name()] = inode{uint64(st.Dev), st.Ino}
		}
	}
	return out, nil
}

// syncNames is the sync of a folder that passed.
func (d *Disk) syncNames(path string, id inode) error {
	list, err := listing(path)
	d.names.synced[id] = list
	return err
}

// judgeName keeps the file that a rename or a removal is about to take a name
// from. A link to it until then would be seen, so it is made here.
func (d *Disk) judgeName(nr int, args [6]uint64) answer {
	dirfd, name := args[0], args[1]
	if nr == unix.SYS_RENAMEAT {
		dirfd, name = args[2], args[3]
	}
	path, err := d.path(int(int32(dirfd)), name)
	if err != nil || d.dir == "" || !strings.HasPrefix(path, d.dir) {
		return answer{pass: true}
	}
	if d.dead {
		return answer{err: unix.EIO}
	}
	var st unix.Stat_t
	if unix.Lstat(path, &st) != nil || st.Mode&unix.S_IFMT == unix.S_IFDIR {
		return answer{pass: true}
	}
	id := inode{uint64(st.Dev), st.Ino}
	if _, have := d.names.kept[id]; have {
		return answer{pass: true}
	}
	place, err := d.place()
	if err == nil {
		err = unix.Link(path, place)
	}
	if err != nil {
		return answer{err: unix.EUCLEAN}
	}
	d.names.kept[id] = place
	return answer{pass: true}
}

// place is a free name in limbo.
func (d *Disk) place() (string, error) {
	if d.names.limbo == "" {
		limbo := strings.TrimSuffix(d.dir, "/") + ".limbo"
		if err := os.Mkdir(limbo, 0o700); err != nil {
			return "", err
		}
		d.names.limbo = limbo
	}
	d.places++
	return filepath.Join(d.names.limbo, strconv.Itoa(d.places)), nil
}

// path is what a call names, from the memory of this process.
func (d *Disk) path(dirfd int, at uint64) (string, error) {
	var text []byte
	for len(text) < unix.PathMax {
		// To the end of the page at most: what follows may not be mapped.
		b := make([]byte, 4096-at%4096)
		if _, err := d.mem.ReadAt(b, int64(at)); err != nil {
			return "", err
		}
		if end := bytes.IndexByte(b, 0); end >= 0 {
			text = append(text, b[:end]...)
			break
		}
		text = append(text, b...)
		at += uint64(len(b))
	}
	if filepath.IsAbs(string(text)) {
		return filepath.Clean(string(text)), nil
	}
	folder := "/proc/self/cwd"
	if dirfd != unix.AT_FDCWD {
		folder = fmt.Sprintf("/proc/self/fd/%d", dirfd)
	}
	base, err := os.Readlink(folder)
	return filepath.Join(base, string(text)), err
}

// loseNames gives every folder the names that it had at its last sync. A folder
// that nobody synced into its own folder goes with all that is in it.
func (d *Disk) loseNames() error {
	return d.eachFolder(func(path string, id inode) error {
		now, err := listing(path)
		if err != nil {
			return err
		}
		was := d.names.synced[id]
		for name, file := range now {
			if was[name] == file {
				continue
			}
			place, err := d.place()
			if err == nil {
				// Not renameat, which would wait for this package's own answer.
				err = unix.Renameat2(unix.AT_FDCWD, filepath.Join(path, name), unix.AT_FDCWD, place, 0)
			}
			if err != nil {
				return err
			}
			if d.names.kept[file] == "" {
				d.names.kept[file] = place // it may have had another name before
			}
		}
		for name, file := range was {
			if now[name] == file || d.names.kept[file] == "" {
				continue // it is there, or was a folder, which nobody removes
			}
			if err := unix.Renameat2(unix.AT_FDCWD, d.names.kept[file], unix.AT_FDCWD, filepath.Join(path, name), 0); err != nil {
				return err
			}
			delete(d.names.kept, file)
		}
		return nil
	})
}
