//go:build amd64 || arm64

package diskfault

import (
	"bytes"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// shadow is what the watched files hold if every write of theirs was seen. It is
// kept while nothing is to fail: what a failing disk would not have failed, nor
// a power cut taken back, shows as a file that holds something else.
type shadow struct {
	files  map[inode][]byte
	unseen map[string]bool // names below the watched folder
}

// Unseen names the files that were written past this package since Begin, by a
// call that it does not watch: by write or by a truncating open, say. Only a
// plan that lets nothing fail finds them. It is complete after End.
func (d *Disk) Unseen() []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Sorted(maps.Keys(d.shadow.unseen))
}

// beginShadow takes what is there now as seen. The caller holds d.mu.
func (d *Disk) beginShadow() error {
	d.shadow = shadow{unseen: map[string]bool{}}
	if d.plan.Kind != None {
		return nil
	}
	d.shadow.files = map[inode][]byte{}
	return d.eachFile(func(path string, id inode) error {
		b, err := os.ReadFile(path)
		d.shadow.files[id] = b
		return err
	})
}

// eachFile calls fn for every regular file that is watched.
func (d *Disk) eachFile(fn func(path string, id inode) error) error {
	root := strings.TrimSuffix(d.dir, "/")
	return filepath.WalkDir(root, func(path string, e fs.DirEntry, err error) error {
		var st unix.Stat_t
		switch {
		case path == root && os.IsNotExist(err):
			return nil // the story has not made it yet
		case err != nil:
			return err
		case !e.Type().IsRegular():
			return nil
		}
		if err := unix.Lstat(path, &st); err != nil {
			return err
		}
		return fn(path, inode{uint64(st.Dev), st.Ino})
	})
}

// shadowed follows a call that is about to be carried out.
func (d *Disk) shadowed(nr int, args [6]uint64, id inode) error {
	if d.shadow.files == nil {
		return nil
	}
	have := d.shadow.files[id]
	resized := func(size int) {
		if size > len(have) {
			have = append(have, make([]byte, size-len(have))...)
		}
	}
	if nr == unix.SYS_PWRITE64 {
		b, at := make([]byte, args[2]), int(args[3])
		if _, err := d.mem.ReadAt(b, int64(args[1])); err != nil {
			return err
		}
		resized(at + len(b))
		copy(have[at:], b)
	} else {
		resized(int(args[1]))
		have = have[:args[1]]
	}
	d.shadow.files[id] = have
	return nil
}

// compare holds a file against its shadow.
func (d *Disk) compare(path, name string, id inode) error {
	if d.shadow.files == nil {
		return nil
	}
	b, err := os.ReadFile(path)
	if err == nil && !bytes.Equal(b, d.shadow.files[id]) {
		d.shadow.unseen[strings.TrimPrefix(name, d.dir)] = true
	}
	return err
}

// endShadow compares all that is left, also what was never synced.
func (d *Disk) endShadow() {
	if d.shadow.files == nil || d.dir == "" {
		return
	}
	if err := d.eachFile(func(path string, id inode) error { return d.compare(path, path, id) }); err != nil {
		d.shadow.unseen[fmt.Sprintf("what cannot be read: %v", err)] = true
	}
	d.shadow.files = nil
}
