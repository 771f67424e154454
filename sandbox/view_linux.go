package sandbox

import (
	"errors"
	"fmt"
	"path"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

const hostName = "holdfast"

// ground is what a view's common part depends on: it is built before there is a
// plan.
type ground struct {
	hostNet bool
	memory  int64 // what the turn may use; 0 where that is not bounded
}

// words puts a ground on the command line of init; groundOf takes it from there.
func (g ground) words() []string {
	return []string{strconv.FormatBool(g.hostNet), strconv.FormatInt(g.memory, 10)}
}

func groundOf(words []string) (g ground, err error) {
	if len(words) != 2 {
		return g, fmt.Errorf("%d words, not 2, say what the view is for", len(words))
	}
	var err1, err2 error
	g.hostNet, err1 = strconv.ParseBool(words[0])
	g.memory, err2 = strconv.ParseInt(words[1], 10, 64)
	return g, errors.Join(err1, err2)
}

// view builds the new root. It runs in init, whose mount namespace is a copy
// that no other process uses. Where any of it fails, init ends: a half-built view
// is never used.
type view struct {
	ground ground
	items  []item
	root   int // the new root
}

// newView lays out the common part. The host's files stay to be seen beside it:
// the new root lies on top of the old one, where no path leads before enter.
func newView(g ground) (*view, error) {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return nil, notEnforceable("mounts cannot be made private; a security profile may take rights inside user namespaces "+
			"away (on Ubuntu: allow userns for this binary in an AppArmor profile)", err)
	}
	v := &view{ground: g}
	var err error
	if v.root, err = newMount("tmpfs", []string{"size", "8m", "nr_inodes", "4096", "mode", "0755"}, unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NODEV); err == nil {
		err = unix.MoveMount(v.root, "", unix.AT_FDCWD, "/", unix.MOVE_MOUNT_F_EMPTY_PATH)
	}
	if err != nil {
		return nil, notEnforceable("a tmpfs cannot be mounted in a user namespace on this machine", err)
	}
	if err := v.add(g.common()); err != nil {
		return nil, err
	}
	return v, v.sealProc()
}

// finish shows what the plan shows besides, and then nothing else. The plan is
// one for this ground.
func (v *view) finish(p plan, history []byte) error {
	if own := (ground{hostNet: p.HostNet, memory: p.Memory}); own != v.ground {
		return fmt.Errorf("the view is for %+v, the plan for %+v", v.ground, own)
	}
	if err := v.add(p.own(history)); err != nil {
		return err
	}
	return v.enter()
}

// add places items. Every source of them is held before any is placed, so nothing
// that is mounted here can come between.
func (v *view) add(items []item) error {
	for i := range items {
		if it := &items[i]; it.kind == itemTree {
			if err := it.open(); err != nil {
				return err
			}
		}
	}
	v.items = append(v.items, items...)
	for i := range items {
		if err := v.place(&items[i]); err != nil {
			return err
		}
	}
	return nil
}

// open takes a detached copy of a source, with the attributes it will have.
// Where the supervisor already did so, the descriptor is used as it is.
func (it *item) open() error {
	if it.fd > 0 {
		return nil
	}
	fd, err := openPinned(it.source)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	it.fd, err = unix.OpenTree(fd, "", unix.AT_EMPTY_PATH|unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_RECURSIVE)
	if err != nil {
		return notEnforceable("cannot bind "+string(it.source.Path), err)
	}
	return setAttr(it.fd, it.attr)
}

// openPinned opens a source without following any link, and checks that it is
// the file that was admitted.
func openPinned(s source) (int, error) {
	fd, err := unix.Openat2(unix.AT_FDCWD, string(s.Path), &unix.OpenHow{
		Flags: unix.O_PATH | unix.O_CLOEXEC, Resolve: unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS})
	if errors.Is(err, unix.ENOSYS) {
		return -1, notEnforceable("the kernel is older than 5.12", err)
	}
	if err != nil {
		return -1, fmt.Errorf("%w: %s is missing or moved: %w", ErrSpec, s.Path, err)
	}
	if (s.ID != fileID{}) {
		id, _, err := identify(fd)
		if err != nil || id != s.ID {
			unix.Close(fd)
			return -1, refuse("%s was replaced since it was admitted", s.Path)
		}
	}
	return fd, nil
}

func identify(fd int) (fileID, unix.Stat_t, error) {
	var st unix.Stat_t
	err := unix.Fstat(fd, &st)
	return fileID{Dev: uint64(st.Dev), Ino: st.Ino}, st, err
}

func setAttr(fd int, attr uint64) error {
	err := unix.MountSetattr(fd, "", unix.AT_EMPTY_PATH|unix.AT_RECURSIVE,
		&unix.MountAttr{Attr_set: attr | unix.MOUNT_ATTR_NOSUID, Propagation: unix.MS_PRIVATE})
	if err != nil {
		return notEnforceable("mount attributes cannot be set; the kernel must be 5.12 or later", err)
	}
	return nil
}

// place puts one item under the new root.
func (v *view) place(it *item) error {
	switch it.kind {
	case itemLink:
		dir, name, err := v.parent(it.target)
		if err != nil {
			return err
		}
		defer unix.Close(dir)
		if err := unix.Symlinkat(it.data, dir, name); err != nil {
			return fmt.Errorf("make %s: %w", it.target, err)
		}
		return nil
	case itemFile:
		return v.write(it)
	case itemTmpfs:
		return v.mount(it, "tmpfs", it.options, it.attr|unix.MOUNT_ATTR_NOSUID)
	case itemProc:
		err := v.mount(it, "proc", nil, unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NODEV|unix.MOUNT_ATTR_NOEXEC)
		if errors.Is(err, unix.EPERM) {
			return notEnforceable("a fresh /proc cannot be mounted because parts of the outer /proc are covered, as "+
				"containers do; run outside the container, or give it an unmasked /proc", err)
		}
		return err
	}
	return v.attach(it.fd, it.target, it.source.Dir)
}

// mount makes a new filesystem and attaches it.
func (v *view) mount(it *item, kind string, options []string, attr uint64) error {
	fd, err := newMount(kind, options, attr)
	if err != nil {
		return fmt.Errorf("make %s: %w", it.target, err)
	}
	return v.attach(fd, it.target, true)
}

// newMount makes a new filesystem with options, key and value by turns, and
// mounts it nowhere.
func newMount(kind string, options []string, attr uint64) (int, error) {
	fs, err := unix.Fsopen(kind, unix.FSOPEN_CLOEXEC)
	if err != nil {
		return -1, err
	}
	defer unix.Close(fs)
	for i := 0; i+1 < len(options); i += 2 {
		if err := unix.FsconfigSetString(fs, options[i], options[i+1]); err != nil {
			return -1, fmt.Errorf("option %s: %w", options[i], err)
		}
	}
	if err := unix.FsconfigCreate(fs); err != nil {
		return -1, err
	}
	return unix.Fsmount(fs, unix.FSMOUNT_CLOEXEC, int(attr))
}

// attach moves a detached mount to its target and closes it.
func (v *view) attach(fd int, target string, dir bool) error {
	defer unix.Close(fd)
	at, err := v.point(target, dir)
	if err != nil {
		return err
	}
	defer unix.Close(at)
	if err := unix.MoveMount(fd, "", at, "", unix.MOVE_MOUNT_F_EMPTY_PATH|unix.MOVE_MOUNT_T_EMPTY_PATH); err != nil {
		return fmt.Errorf("mount on %s: %w", target, err)
	}
	return nil
}

// ours reports whether a target's directory is memory of this view. Elsewhere
// nothing is ever created: a mount point made there would appear on the disk.
func (v *view) ours(target string) bool {
	owner := item{kind: itemTmpfs}
	for _, it := range v.items {
		deeper := len(it.target) > len(owner.target)
		if (it.kind == itemTree || it.kind == itemTmpfs) && it.target != target && within(target, it.target) && deeper {
			owner = it
		}
	}
	return owner.kind == itemTmpfs
}

// parent opens the directory of a target, made where it may be.
func (v *view) parent(target string) (dir int, name string, err error) {
	dir, err = unix.Openat(v.root, ".", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, "", fmt.Errorf("open new root: %w", err)
	}
	above, name := path.Split(target)
	walked := ""
	for _, part := range strings.Split(strings.Trim(above, "/"), "/") {
		if part == "" {
			continue
		}
		walked += "/" + part
		next, err := v.step(dir, part, walked)
		unix.Close(dir)
		if err != nil {
			return -1, "", err
		}
		dir = next
	}
	return dir, name, nil
}

// step enters one directory without following a link.
func (v *view) step(dir int, name, walked string) (int, error) {
	const flags = unix.O_PATH | unix.O_DIRECTORY | unix.O_NOFOLLOW | unix.O_CLOEXEC
	fd, err := unix.Openat(dir, name, flags, 0)
	if errors.Is(err, unix.ENOENT) && v.ours(walked) {
		if err := unix.Mkdirat(dir, name, 0o755); err != nil {
			return -1, fmt.Errorf("make %s: %w", walked, err)
		}
		fd, err = unix.Openat(dir, name, flags, 0)
	}
	if err != nil {
		return -1, fmt.Errorf("open %s in the view: %w", walked, err)
	}
	return fd, nil
}

// point opens a mount point, made where it may be.
func (v *view) point(target string, dir bool) (int, error) {
	at, name, err := v.parent(target)
	if err != nil {
		return -1, err
	}
	defer unix.Close(at)
	if dir {
		return v.step(at, name, target)
	}
	const flags = unix.O_PATH | unix.O_NOFOLLOW | unix.O_CLOEXEC
	fd, err := unix.Openat(at, name, flags, 0)
	if errors.Is(err, unix.ENOENT) && v.ours(target) {
		fd, err = unix.Openat(at, name, unix.O_CREAT|unix.O_EXCL|unix.O_WRONLY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o444)
	}
	if err != nil {
		return -1, fmt.Errorf("open %s in the view: %w", target, err)
	}
	return fd, nil
}

func (v *view) write(it *item) error {
	dir, name, err := v.parent(it.target)
	if err != nil {
		return err
	}
	defer unix.Close(dir)
	fd, err := unix.Openat(dir, name, unix.O_CREAT|unix.O_EXCL|unix.O_WRONLY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o444)
	if err != nil {
		return fmt.Errorf("make %s: %w", it.target, err)
	}
	defer unix.Close(fd)
	if _, err := (rawFile(fd)).Write([]byte(it.data)); err != nil {
		return fmt.Errorf("write %s: %w", it.target, err)
	}
	return nil
}

// sealProc forbids further user namespaces, and then writing to the parts of
// /proc that are about the machine.
func (v *view) sealProc() error {
	if on(layerNested) {
		fd, err := unix.Openat(v.root, "proc/sys/user/max_user_namespaces", unix.O_WRONLY|unix.O_CLOEXEC, 0)
		if err == nil {
			_, err = (rawFile(fd)).Write([]byte("0"))
			unix.Close(fd)
		}
		if err != nil {
			return notEnforceable("nested user namespaces cannot be forbidden", err)
		}
	}
	for _, name := range []string{"sys", "irq", "bus", "fs"} {
		tree, err := unix.OpenTree(v.root, "proc/"+name, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_SYMLINK_NOFOLLOW)
		if errors.Is(err, unix.ENOENT) {
			continue
		}
		if err != nil {
			return fmt.Errorf("seal /proc/%s: %w", name, err)
		}
		if err := setAttr(tree, unix.MOUNT_ATTR_RDONLY|unix.MOUNT_ATTR_NODEV|unix.MOUNT_ATTR_NOEXEC); err != nil {
			return err
		}
		if err := v.attach(tree, "/proc/"+name, true); err != nil {
			return err
		}
	}
	return nil
}

// enter makes the new root the only one.
func (v *view) enter() error {
	if err := unix.Fchdir(v.root); err != nil {
		return fmt.Errorf("enter new root: %w", err)
	}
	unix.Close(v.root)
	// The old root is stacked on the new one, then detached: no path and no
	// descriptor leads to it afterwards.
	if err := unix.PivotRoot(".", "."); err != nil {
		return fmt.Errorf("pivot root: %w", err)
	}
	if err := unix.Unmount(".", unix.MNT_DETACH); err != nil {
		return fmt.Errorf("detach old root: %w", err)
	}
	if err := unix.Chdir("/"); err != nil {
		return fmt.Errorf("enter new root: %w", err)
	}
	for _, it := range v.items {
		if it.late {
			if err := readOnly(it.target); err != nil {
				return err
			}
		}
	}
	return readOnly("/")
}

// readOnly seals a single mount, not those below it.
func readOnly(target string) error {
	if !on(layerReadOnly) {
		return nil
	}
	err := unix.MountSetattr(unix.AT_FDCWD, target, 0, &unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY})
	if err != nil {
		return fmt.Errorf("make %s read-only: %w", target, err)
	}
	return nil
}
