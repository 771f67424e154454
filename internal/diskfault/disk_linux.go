//go:build amd64 || arm64

package diskfault

import (
	"fmt"
	"os"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

// Disk watches this process's calls.
type Disk struct {
	listener int
	mem      *os.File // this process's memory, to read what a call writes

	mu       sync.Mutex // guards everything below; serve holds it for one call
	dir      string     // "": nothing is watched
	plan     Plan
	calls    int
	struck   bool
	dead     bool
	full     bool // after a short write: the next call finds no room
	unsynced map[string][]undo
}

// undo takes one call back: bytes at an offset, and the file's length before it.
type undo struct {
	fd     int
	offset int64
	old    []byte
	size   int64
}

// Begin watches the files below dir from now on, under a plan.
func (d *Disk) Begin(dir string, p Plan) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.dir, d.plan = strings.TrimSuffix(dir, "/")+"/", p
	d.calls, d.struck, d.dead, d.full = 0, false, false, false
	d.unsynced = make(map[string][]undo)
}

// Revive is a new process: after Kill and power cuts the disk works again.
func (d *Disk) Revive() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.dead, d.full = false, false
}

// End stops watching. It returns how many calls there were since Begin, and
// whether one of them failed.
func (d *Disk) End() (calls int, struck bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.dir, d.unsynced = "", nil
	return d.calls, d.struck
}

// answer is what the caller of one call gets.
type answer struct {
	pass bool // the kernel carries it out
	val  int64
	err  unix.Errno
}

// judge says what becomes of a call.
func (d *Disk) judge(nr int, args [6]uint64) answer {
	d.mu.Lock()
	defer d.mu.Unlock()
	fd := int(int32(args[0]))
	name, err := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", fd))
	if err != nil || d.dir == "" || !strings.HasPrefix(name+"/", d.dir) {
		return answer{pass: true}
	}
	switch d.calls++; {
	case d.dead:
		return answer{err: unix.EIO}
	case d.full:
		d.full = false
		return answer{err: unix.ENOSPC}
	case d.plan.Kind != None && d.calls == d.plan.At:
		d.struck = true
		return d.strike(nr, fd, args)
	}
	if nr == unix.SYS_FSYNC || nr == unix.SYS_FDATASYNC {
		delete(d.unsynced, name)
		return answer{}
	}
	if err := d.remember(nr, name, fd, args); err != nil {
		return answer{err: unix.EUCLEAN} // a code that nobody expects: the test sees it
	}
	return answer{pass: true}
}

// strike is the failing call.
func (d *Disk) strike(nr, fd int, args [6]uint64) answer {
	half := func() int64 {
		b := make([]byte, args[2]/2)
		if _, err := d.mem.ReadAt(b, int64(args[1])); err != nil {
			return 0
		}
		n, err := unix.Pwritev(fd, [][]byte{b}, int64(args[3]))
		if err != nil {
			return 0
		}
		return int64(n)
	}
	switch d.plan.Kind {
	case Short:
		if nr == unix.SYS_PWRITE64 {
			d.full = true
			return answer{val: half()}
		}
	case Kill, PowerCut, Torn:
		d.dead = true
		if d.plan.Kind != Kill {
			d.lose(d.plan.Kind == Torn)
		}
		if d.plan.Kind == Torn && nr == unix.SYS_PWRITE64 {
			half()
		}
	}
	return answer{err: unix.EIO}
}

// remember notes how to take a call back before it is carried out.
func (d *Disk) remember(nr int, name string, fd int, args [6]uint64) error {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return err
	}
	u := undo{fd: fd, size: st.Size}
	if nr == unix.SYS_PWRITE64 {
		u.offset = int64(args[3])
		u.old = make([]byte, args[2])
		n, err := unix.Pread(fd, u.old, u.offset)
		if err != nil {
			return err
		}
		u.old = u.old[:n]
	} else if int64(args[1]) < st.Size {
		return unix.ENOTSUP // nothing here shortens a file
	}
	d.unsynced[name] = append(d.unsynced[name], u)
	return nil
}

// lose takes back what was not synced, the newest first; some keeps every
// second write, and the file's length.
func (d *Disk) lose(some bool) {
	for name, all := range d.unsynced {
		for i := len(all) - 1; i >= 0; i-- {
			u := all[i]
			if some && i%2 == 0 {
				continue
			}
			if len(u.old) > 0 {
				unix.Pwritev(u.fd, [][]byte{u.old}, u.offset)
			}
			if !some {
				unix.Truncate(fmt.Sprintf("/proc/self/fd/%d", u.fd), u.size)
			}
		}
		delete(d.unsynced, name)
	}
}
