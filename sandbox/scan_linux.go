package sandbox

import (
	"errors"
	"fmt"
	"path"
	"runtime"
	"strings"

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
// further names elsewhere. skip are paths below that something else is bound
// over. It returns how much there is.
//
// It holds for the moment: a process of the user's outside can make a socket or
// a link later, a program inside cannot make one that leads out.
func scan(src source, skip map[string]bool) (amount, error) {
	pinned, err := openPinned(src)
	if err != nil {
		return amount{}, err
	}
	defer unix.Close(pinned)
	root, err := unix.Openat(pinned, ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return amount{}, refuse("workspace %q cannot be listed: %v", src.Path, err)
	}
	defer unix.Close(root)
	t := &tree{root: root, workers: min(scanWorkers, runtime.GOMAXPROCS(0)), most: scanEntries, skip: skip,
		closed: func(dir string, err error) error {
			switch {
			case errors.Is(err, unix.EACCES) && !src.Write:
				return nil // the workload cannot open it either
			case errors.Is(err, unix.EXDEV):
				return foreign(dir)
			}
			return refuse("%s in the workspace cannot be looked into: %v", shown(dir), err)
		}}
	t.visit = func(dir, name string, st *unix.Statx_t) error {
		if st.Mnt_id != t.mount {
			return foreign(path.Join(dir, name))
		}
		return leadsOut(dir, name, uint32(st.Mode)&unix.S_IFMT, src.Write)
	}
	total, err := t.walk()
	if errors.Is(err, errMany) {
		return total, refuse("the workspace has more than %d files", scanEntries)
	}
	if err != nil || !src.Write {
		return total, err
	}
	for _, l := range t.links {
		if l.inside < l.names {
			return total, refuse("%s in the workspace is one of %d names of its file, and only %d are in the workspace: writing it would change "+
				"the others too; copy it (package managers that link from a store, such as pnpm, make such files: install with "+
				"package-import-method=copy)", shown(path.Join(l.dir, l.name)), l.names, l.inside)
		}
	}
	return total, nil
}

// leadsOut refuses the kinds of file by which a program outside can be reached.
func leadsOut(dir, name string, kind uint32, write bool) error {
	at := func() string { return shown(path.Join(dir, name)) }
	switch kind {
	case unix.S_IFDIR:
		if dir != "" && strings.Count(dir, "/")+2 > scanDepth {
			return refuse("%s in the workspace lies more than %d folders deep", at(), scanDepth)
		}
	case unix.S_IFSOCK:
		return refuse("%s in the workspace is a socket: a program outside may serve it; stop that program, or remove the socket", at())
	case unix.S_IFIFO:
		return refuse("%s in the workspace is a pipe: a program outside may hold its other end; remove it", at())
	case unix.S_IFCHR, unix.S_IFBLK:
		if write {
			return refuse("%s in the workspace is a device; remove it", at())
		}
	}
	return nil
}

func foreign(at string) error {
	return refuse("%s in the workspace is another filesystem or a bind mount; unmount it, or name a workspace without it", shown(at))
}

// shown is a path in a refusal: of any bytes, and of any length.
func shown(at string) string {
	if len(at) > 200 {
		at = at[:100] + "..." + at[len(at)-97:]
	}
	return fmt.Sprintf("%q", at)
}

// scan looks at the workspace as it will be bound.
func (p *pinned) scan() (err error) {
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
	p.base, err = scan(work, skip)
	return err
}
