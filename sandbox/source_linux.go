package sandbox

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"
)

const (
	// workUID is the workload's user and group inside, everywhere.
	workUID = 1000
	// rootBase plus the slot is the workload's user outside, as root.
	rootBase = 200_000
)

// pinned is what a Spec names on the disk, held open by the supervisor.
type pinned struct {
	sources []source
	cover   []exact
	program fileID
	open    []*os.File // all of these, so that nothing else gets their numbers while init works
	base    amount     // what is in the workspace
	trees   []*os.File // as root: the detached, idmapped mounts, in the order of sources
}

func (p *pinned) close() {
	for _, f := range slices.Concat(p.trees, p.open) {
		f.Close()
	}
}

// handProgram gives what keeps the program's number away, which must stay until
// the program is executed.
func (p *pinned) handProgram() *os.File {
	if p.program == (fileID{}) {
		return nil // this binary stands in
	}
	last := len(p.open) - 1
	f := p.open[last]
	p.open = p.open[:last]
	return f
}

// pin opens everything that the Spec names, without following links, and
// decides what is bound. It is the last look that can still answer ErrSpec
// cheaply; init looks again. self: this binary stands in for the program.
func pin(s Spec, self bool) (_ *pinned, err error) {
	p := &pinned{}
	defer func() {
		if err != nil {
			p.close()
		}
	}()
	add := func(path string, write bool) error {
		src, err := p.look(path, write)
		if err != nil {
			return err
		}
		if err := outside(src, s); err != nil {
			return err
		}
		p.sources = append(p.sources, src)
		return nil
	}
	if err := add(s.Workspace, s.Write); err != nil {
		return nil, err
	}
	if !p.sources[0].Dir {
		return nil, refuse("workspace %q is not a directory", s.Workspace)
	}
	if err := mustBe(s.WorkspaceFile, p.sources[0].ID, s.Workspace); err != nil {
		return nil, err
	}
	for _, path := range s.Read {
		if p.has(path) {
			continue // twice the same, or the workspace itself, which keeps its own right
		}
		if err := add(path, false); err != nil {
			return nil, err
		}
	}
	hidden := s.GitDir != "" && s.Git == GitHidden
	if s.Git == GitRead && !p.has(s.GitDir) {
		if err := add(s.GitDir, false); err != nil {
			return nil, err
		}
	}
	if hidden && p.shows(s.GitDir) {
		p.cover = append(p.cover, exact(s.GitDir))
	}
	pointer := filepath.Join(s.Workspace, ".git")
	if s.Write && on(layerGitPointer) && !p.has(pointer) && !(hidden && pointer == s.GitDir) {
		if _, err := os.Lstat(pointer); err == nil {
			// An existing file, so the mount point is not a new one.
			if err := add(pointer, false); err != nil {
				return nil, err
			}
		} else if !errors.Is(err, os.ErrNotExist) {
			return nil, fmt.Errorf("look for %s: %w", pointer, err)
		}
	}
	if !self {
		if err := p.addProgram(s, add); err != nil {
			return nil, err
		}
	}
	if err := p.scan(); err != nil {
		return nil, err
	}
	if os.Geteuid() == 0 {
		if err := p.idmap(s.Slot); err != nil {
			return nil, err
		}
	}
	return p, nil
}

// has reports whether a path is bound by itself.
func (p *pinned) has(path string) bool {
	for _, s := range p.sources {
		if string(s.Path) == path {
			return true
		}
	}
	return false
}

// shows reports whether a path is visible through a bind.
func (p *pinned) shows(path string) bool {
	for _, s := range p.sources {
		if within(path, string(s.Path)) {
			return true
		}
	}
	return false
}

func (p *pinned) addProgram(s Spec, add func(string, bool) error) error {
	fd, err := openPinned(source{Path: exact(s.Program)})
	if err != nil {
		return fmt.Errorf("%w: program is missing or moved: %w", ErrSpec, err)
	}
	file := os.NewFile(uintptr(fd), s.Program)
	defer func() { p.open = append(p.open, file) }() // the last one: handProgram takes it
	id, st, err := identify(fd)
	if err != nil {
		return fmt.Errorf("look at %s: %w", s.Program, err)
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG || st.Mode&0o111 == 0 {
		return refuse("program %q is not a regular executable file", s.Program)
	}
	if err := mustBe(s.ProgramFile, id, s.Program); err != nil {
		return err
	}
	p.program = id
	if p.shows(s.Program) {
		return nil
	}
	for _, root := range systemRoots {
		if within(s.Program, root) {
			return nil
		}
	}
	return add(s.Program, false)
}

// look opens one path, keeps it open, and says what it is.
func (p *pinned) look(path string, write bool) (source, error) {
	fd, err := openPinned(source{Path: exact(path)})
	if err != nil {
		return source{}, err
	}
	p.open = append(p.open, os.NewFile(uintptr(fd), path))
	id, st, err := identify(fd)
	if err != nil {
		return source{}, fmt.Errorf("look at %s: %w", path, err)
	}
	kind := st.Mode & unix.S_IFMT
	if kind != unix.S_IFDIR && kind != unix.S_IFREG {
		return source{}, refuse("%q is neither a directory nor a regular file", path)
	}
	return source{Path: exact(path), ID: id, Dir: kind == unix.S_IFDIR, Write: write}, nil
}

// outside holds a bind against Protected by identity: a second name of a
// protected directory, such as a bind mount, is found by its inode.
func outside(src source, s Spec) error {
	for _, protected := range s.Protected {
		if err := overlap(string(src.Path), s.Workspace, protected); err != nil {
			return err
		}
		for dir := protected; dir != "/"; dir = filepath.Dir(dir) {
			if id, ok := idOf(dir); ok && id == src.ID {
				return refuse("%q is another name of %q, which holds the protected %q", src.Path, dir, protected)
			}
		}
		id, ok := idOf(protected)
		if !ok || within(string(src.Path), s.Workspace) {
			continue
		}
		for dir := string(src.Path); dir != "/"; dir = filepath.Dir(dir) {
			if got, ok := idOf(dir); ok && got == id {
				return refuse("%q lies inside another name of the protected %q", src.Path, protected)
			}
		}
	}
	return nil
}

func idOf(path string) (fileID, bool) {
	var st unix.Stat_t
	if err := unix.Lstat(path, &st); err != nil {
		return fileID{}, false
	}
	return fileID{Dev: uint64(st.Dev), Ino: st.Ino}, true
}

// idmap makes every source a detached mount on which the owner of its top is
// the workload. Files written through it belong to that owner on the disk, and
// files of anybody else are closed to writing.
func (p *pinned) idmap(slot int) error {
	spaces := map[[2]uint32]*os.File{}
	defer func() {
		for _, f := range spaces {
			f.Close()
		}
	}()
	for i := range p.sources {
		s := &p.sources[i]
		fd, err := openPinned(*s)
		if err != nil {
			return err
		}
		tree, err := idmapped(fd, *s, slot, spaces)
		unix.Close(fd)
		if err != nil {
			return err
		}
		s.FD = fileFirst + len(p.trees)
		p.trees = append(p.trees, tree)
	}
	return nil
}

func idmapped(fd int, s source, slot int, spaces map[[2]uint32]*os.File) (*os.File, error) {
	_, st, err := identify(fd)
	if err != nil {
		return nil, fmt.Errorf("look at %s: %w", s.Path, err)
	}
	owner := [2]uint32{st.Uid, st.Gid}
	if spaces[owner] == nil {
		if spaces[owner], err = userNamespace(owner, rootBase+slot); err != nil {
			return nil, err
		}
	}
	tree, err := unix.OpenTree(fd, "", unix.AT_EMPTY_PATH|unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_RECURSIVE)
	if err != nil {
		return nil, notEnforceable("cannot bind "+string(s.Path), err)
	}
	attr := unix.MountAttr{Attr_set: unix.MOUNT_ATTR_IDMAP | unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV,
		Propagation: unix.MS_PRIVATE, Userns_fd: uint64(spaces[owner].Fd())}
	if !s.Write && on(layerReadOnly) {
		attr.Attr_set |= unix.MOUNT_ATTR_RDONLY
	}
	if err := unix.MountSetattr(tree, "", unix.AT_EMPTY_PATH|unix.AT_RECURSIVE, &attr); err != nil {
		unix.Close(tree)
		return nil, notEnforceable("the filesystem of "+string(s.Path)+" cannot map owners, which is needed when running as root; "+
			"use ext4, xfs, btrfs or tmpfs, or run as an ordinary user", err)
	}
	return os.NewFile(uintptr(tree), string(s.Path)), nil
}
