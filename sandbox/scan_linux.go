package sandbox

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"runtime"
	"sync"

	"golang.org/x/sys/unix"
)

// Bounds of the look at a workspace before the start. Beyond them the turn is
// refused: what was not looked at could lead anywhere.
const (
	scanEntries = 1_000_000
	scanDepth   = 256
	scanWorkers = 4
)

// scan looks at every name of the workspace for what leads out of it although
// the view does not: sockets and pipes where a process outside may listen,
// other filesystems, and, where it may be written, devices and files that have
// further names elsewhere. Nothing is followed and nothing but folders is
// opened. skip are paths below that something else is bound over. It costs some
// two microseconds a name and worker.
//
// It holds for the moment: a process of the user's outside can make a socket or
// a link later, a program inside cannot make one that leads out.
func scan(src source, skip map[string]bool) error {
	pinned, err := openPinned(src)
	if err != nil {
		return err
	}
	defer unix.Close(pinned)
	root, err := unix.Openat(pinned, ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return refuse("workspace %q cannot be listed: %v", src.Path, err)
	}
	defer unix.Close(root)
	var st unix.Statx_t
	if err := unix.Statx(root, "", unix.AT_EMPTY_PATH, scanMask, &st); err != nil {
		return fmt.Errorf("look at the workspace: %w", err)
	}
	s := &scanner{root: root, write: src.Write, skip: skip, mount: st.Mnt_id, jobs: []string{""}, left: 1, links: map[fileID]*linked{}}
	s.wake.L = &s.mu
	var workers sync.WaitGroup
	for range min(scanWorkers, runtime.GOMAXPROCS(0)) {
		workers.Go(s.work)
	}
	workers.Wait()
	if s.found != nil {
		return s.found
	}
	for _, l := range s.links {
		if l.inside < l.names {
			return refuse("%s in the workspace is one of %d names of its file, and only %d are in the workspace: writing it would change "+
				"the others too; copy it (package managers that link from a store, such as pnpm, make such files: install with "+
				"package-import-method=copy)", shown(l.path), l.names, l.inside)
		}
	}
	return nil
}

const scanMask = unix.STATX_TYPE | unix.STATX_NLINK | unix.STATX_INO | unix.STATX_MNT_ID

// linked is a file of more than one name.
type linked struct {
	path          string // one of its names
	names, inside uint32
}

// scanner is the state that its workers share.
type scanner struct {
	root  int
	write bool
	skip  map[string]bool
	mount uint64

	mu    sync.Mutex // guards the rest
	wake  sync.Cond
	jobs  []string // folders to look into
	left  int      // jobs that are waiting or being done
	seen  int      // names
	links map[fileID]*linked
	found error // why the turn is refused; ends the scan
}

func (s *scanner) work() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for {
		for len(s.jobs) == 0 && s.left > 0 && s.found == nil {
			s.wake.Wait()
		}
		if s.left == 0 || s.found != nil {
			s.wake.Broadcast()
			return
		}
		dir := s.jobs[len(s.jobs)-1]
		s.jobs = s.jobs[:len(s.jobs)-1]
		s.mu.Unlock()
		folders, links, n, err := s.list(dir)
		s.mu.Lock()
		s.jobs = append(s.jobs, folders...)
		s.left += len(folders) - 1
		s.seen += n
		for id, l := range links {
			if known := s.links[id]; known != nil {
				known.inside += l.inside
			} else {
				s.links[id] = l
			}
		}
		if err == nil && s.seen > scanEntries {
			err = refuse("the workspace has more than %d files", scanEntries)
		}
		if err != nil && s.found == nil {
			s.found = err
		}
		s.wake.Broadcast()
	}
}

// list looks at each name of one folder.
func (s *scanner) list(dir string) (folders []string, links map[fileID]*linked, n int, err error) {
	fd, err := s.open(dir)
	if err != nil || fd < 0 {
		return nil, nil, 0, err
	}
	f := os.NewFile(uintptr(fd), dir)
	defer f.Close()
	links = map[fileID]*linked{}
	for {
		names, err := f.Readdirnames(1024)
		if len(names) == 0 {
			if err != nil && err != io.EOF {
				return nil, nil, n, refuse("%s in the workspace cannot be listed", shown(dir))
			}
			return folders, links, n, nil
		}
		if n += len(names); n > scanEntries {
			return nil, nil, n, nil // the caller says so
		}
		for _, name := range names {
			at := path.Join(dir, name)
			if s.skip[at] {
				continue
			}
			folder, err := s.look(fd, name, at, links)
			if err != nil {
				return nil, nil, n, err
			}
			if folder {
				folders = append(folders, at)
			}
		}
	}
}

// open enters a folder below the root, over no link and into no other mount.
// Below zero without an error: there is nothing to look at.
func (s *scanner) open(dir string) (int, error) {
	if dir == "" {
		return unix.Openat(s.root, ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	}
	fd, err := unix.Openat2(s.root, dir, &unix.OpenHow{Flags: unix.O_RDONLY | unix.O_DIRECTORY | unix.O_NOFOLLOW | unix.O_CLOEXEC,
		Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_XDEV | unix.RESOLVE_NO_MAGICLINKS})
	switch {
	case err == nil:
		return fd, nil
	case errors.Is(err, unix.ENOENT), errors.Is(err, unix.EACCES) && !s.write:
		return -1, nil // gone meanwhile, or closed to the workload as well, which cannot open it
	case errors.Is(err, unix.EXDEV):
		return -1, foreign(dir)
	}
	return -1, refuse("%s in the workspace cannot be looked into: %v", shown(dir), err)
}

func foreign(at string) error {
	return refuse("%s in the workspace is another filesystem or a bind mount; unmount it, or name a workspace without it", shown(at))
}

// look judges one name. folder says that it is to be looked into.
func (s *scanner) look(fd int, name, at string, links map[fileID]*linked) (folder bool, err error) {
	var st unix.Statx_t
	err = unix.Statx(fd, name, unix.AT_SYMLINK_NOFOLLOW|unix.AT_NO_AUTOMOUNT, scanMask, &st)
	switch {
	case errors.Is(err, unix.ENOENT):
		return false, nil // removed meanwhile
	case err != nil:
		return false, refuse("%s in the workspace cannot be looked at: %v", shown(at), err)
	case st.Mnt_id != s.mount:
		return false, foreign(at)
	}
	switch uint32(st.Mode) & unix.S_IFMT {
	case unix.S_IFDIR:
		if depth(at) > scanDepth {
			return false, refuse("%s in the workspace lies more than %d folders deep", shown(at), scanDepth)
		}
		return true, nil
	case unix.S_IFSOCK:
		return false, refuse("%s in the workspace is a socket: a program outside may serve it; stop that program, or remove the socket", shown(at))
	case unix.S_IFIFO:
		return false, refuse("%s in the workspace is a pipe: a program outside may hold its other end; remove it", shown(at))
	case unix.S_IFCHR, unix.S_IFBLK:
		if s.write {
			return false, refuse("%s in the workspace is a device; remove it", shown(at))
		}
	case unix.S_IFREG:
		if s.write && st.Nlink > 1 {
			id := fileID{Dev: unix.Mkdev(st.Dev_major, st.Dev_minor), Ino: st.Ino}
			if l := links[id]; l != nil {
				l.inside++
			} else {
				links[id] = &linked{path: at, names: st.Nlink, inside: 1}
			}
		}
	}
	return false, nil
}

// shown is a path in a refusal: of any bytes, and of any length.
func shown(at string) string {
	if len(at) > 200 {
		at = at[:100] + "..." + at[len(at)-97:]
	}
	return fmt.Sprintf("%q", at)
}

func depth(at string) int {
	n := 1
	for _, c := range []byte(at) {
		if c == '/' {
			n++
		}
	}
	return n
}

// scan looks at the workspace as it will be bound.
func (p *pinned) scan() error {
	if !on(layerScan) {
		return nil
	}
	work := p.sources[0]
	skip := map[string]bool{}
	below := func(at exact) {
		if at != work.Path && within(string(at), string(work.Path)) {
			skip[string(at)[len(work.Path)+1:]] = true
		}
	}
	for _, s := range p.sources[1:] {
		below(s.Path) // read-only
	}
	for _, c := range p.cover {
		below(c)
	}
	return scan(work, skip)
}
