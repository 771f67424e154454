package sandbox

import (
	"errors"
	"io"
	"os"
	"path"
	"sync"

	"golang.org/x/sys/unix"
)

// tree walks everything below a folder, over no link and into no other mount.
// Only folders are opened. Names are the workload's: of any bytes and depth,
// and they may change while they are looked at.
type tree struct {
	root    int    // the open folder
	mount   uint64 // the mount that it is in
	workers int
	most    int             // names after which the walk ends with errMany
	skip    map[string]bool // paths that are not looked at
	// visit judges each name, on any worker. nil judges nothing.
	visit func(dir, name string, st *unix.Statx_t) error
	// closed says what a folder that cannot be looked into means; an error ends
	// the walk.
	closed func(dir string, err error) error

	mu    sync.Mutex // guards the rest
	wake  sync.Cond
	jobs  []string // folders to look into
	left  int      // jobs that are waiting or being done
	total amount
	links map[fileID]*linked // regular files of more than one name
	err   error              // why the walk ended early
}

// amount is how much there is.
type amount struct {
	Names int64 `json:"names"`
	Bytes int64 `json:"bytes"` // each file once: its size, or what is allocated for it where that is more
}

// linked is a file of more than one name.
type linked struct {
	dir, name     string // one of its names
	names, inside uint32
}

const treeMask = unix.STATX_TYPE | unix.STATX_NLINK | unix.STATX_INO | unix.STATX_SIZE | unix.STATX_BLOCKS | unix.STATX_MNT_ID

var errMany = errors.New("too many names")

// walk returns what there is, or of what it saw before it ended early.
func (t *tree) walk() (amount, error) {
	var st unix.Statx_t
	if err := unix.Statx(t.root, "", unix.AT_EMPTY_PATH, treeMask, &st); err != nil {
		return amount{}, err
	}
	t.mount, t.jobs, t.left, t.links = st.Mnt_id, []string{""}, 1, map[fileID]*linked{}
	t.wake.L = &t.mu
	var workers sync.WaitGroup
	for range t.workers - 1 {
		workers.Go(t.work)
	}
	t.work()
	workers.Wait()
	return t.total, t.err
}

func (t *tree) work() {
	t.mu.Lock()
	defer t.mu.Unlock()
	for {
		for len(t.jobs) == 0 && t.left > 0 && t.err == nil {
			t.wake.Wait()
		}
		if t.left == 0 || t.err != nil {
			t.wake.Broadcast()
			return
		}
		dir := t.jobs[len(t.jobs)-1]
		t.jobs = t.jobs[:len(t.jobs)-1]
		t.mu.Unlock()
		var f folder
		err := t.list(dir, &f)
		t.mu.Lock()
		t.merge(&f)
		if err == nil && t.total.Names > int64(t.most) {
			err = errMany
		}
		if err != nil && t.err == nil {
			t.err = err
		}
		if t.left == 0 || t.err != nil || len(f.jobs) > 1 {
			t.wake.Broadcast()
		}
	}
}

// folder is what one folder adds.
type folder struct {
	total amount
	jobs  []string
	links map[fileID]*linked
	sizes map[fileID]int64
}

// merge adds what one folder has. The caller holds the lock.
func (t *tree) merge(f *folder) {
	t.jobs = append(t.jobs, f.jobs...)
	t.left += len(f.jobs) - 1
	t.total.Names += f.total.Names
	t.total.Bytes += f.total.Bytes
	for id, l := range f.links {
		if known := t.links[id]; known != nil {
			known.inside += l.inside
			continue
		}
		t.links[id] = l
		t.total.Bytes += f.sizes[id]
	}
}

// list looks at each name of one folder.
func (t *tree) list(dir string, f *folder) error {
	fd, err := t.open(dir)
	if errors.Is(err, unix.ENOENT) {
		return nil // removed meanwhile
	}
	if err != nil {
		return t.closed(dir, err)
	}
	d := os.NewFile(uintptr(fd), dir)
	defer d.Close()
	for {
		names, err := d.Readdirnames(1024)
		if len(names) == 0 && err != io.EOF && !errors.Is(err, unix.ENOENT) {
			return t.closed(dir, err)
		}
		if len(names) == 0 {
			return nil
		}
		for _, name := range names {
			if err := t.look(fd, dir, name, f); err != nil {
				return err
			}
		}
		if f.total.Names > int64(t.most) {
			return nil // worked out where it is added up
		}
	}
}

func (t *tree) open(dir string) (int, error) {
	if dir == "" {
		return unix.Openat(t.root, ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	}
	for {
		fd, err := unix.Openat2(t.root, dir, &unix.OpenHow{Flags: unix.O_RDONLY | unix.O_DIRECTORY | unix.O_NOFOLLOW | unix.O_CLOEXEC,
			Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_XDEV | unix.RESOLVE_NO_MAGICLINKS})
		if err != unix.EINTR && err != unix.EAGAIN { // the second: something was renamed meanwhile
			return fd, err
		}
	}
}

// look counts one name, and has it judged.
func (t *tree) look(fd int, dir, name string, f *folder) error {
	if t.skip != nil && t.skip[path.Join(dir, name)] {
		return nil
	}
	var st unix.Statx_t
	err := unix.Statx(fd, name, unix.AT_SYMLINK_NOFOLLOW|unix.AT_NO_AUTOMOUNT, treeMask, &st)
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	if err != nil {
		return t.closed(path.Join(dir, name), err)
	}
	f.total.Names++
	if t.visit != nil {
		if err := t.visit(dir, name, &st); err != nil {
			return err
		}
	}
	if st.Mnt_id != t.mount {
		return nil
	}
	kind, size := uint32(st.Mode)&unix.S_IFMT, int64(max(st.Size, st.Blocks*512))
	switch {
	case kind == unix.S_IFDIR:
		f.jobs = append(f.jobs, path.Join(dir, name))
	case kind == unix.S_IFREG && st.Nlink > 1:
		f.link(fileID{Dev: unix.Mkdev(st.Dev_major, st.Dev_minor), Ino: st.Ino}, size, linked{dir: dir, name: name, names: st.Nlink, inside: 1})
		return nil
	}
	f.total.Bytes += size
	return nil
}

func (f *folder) link(id fileID, size int64, l linked) {
	if known := f.links[id]; known != nil {
		known.inside++
		return
	}
	if f.links == nil {
		f.links, f.sizes = map[fileID]*linked{}, map[fileID]int64{}
	}
	f.links[id], f.sizes[id] = &l, size
}
