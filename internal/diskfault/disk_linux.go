//go:build amd64 || arm64

package diskfault

import (
	"errors"
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
	struck   string // the call that failed; "" before
	dead     bool
	full     bool // after a short write: the next call finds no room
	unsynced map[inode]*file
	torn     *undo // with Torn: the half of the call itself, that the disk had written
	tornOf   *file
	names    names
	shadow   shadow
	places   int // names that were given out in limbo
}

// inode names a file whatever its name is.
type inode struct{ dev, ino uint64 }

// file is what was done to a file since its last sync. It is open by itself: the
// caller's descriptor may be another file's by the time of the power cut, and a
// copy of it would keep the caller's locks.
type file struct {
	fd    int
	undos []undo
}

// undo takes one call back: bytes at an offset, and the file's length before it.
type undo struct {
	offset int64
	old    []byte
	size   int64
}

// Begin watches the files below dir from now on, under a plan.
func (d *Disk) Begin(dir string, p Plan) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.forget()
	d.dir, d.plan = strings.TrimSuffix(dir, "/")+"/", p
	d.calls, d.struck, d.dead, d.full = 0, "", false, false
	d.unsynced = make(map[inode]*file)
	if err := errors.Join(d.beginNames(), d.beginShadow()); err != nil {
		panic(fmt.Sprintf("diskfault: look at %s: %v", dir, err))
	}
}

// Revive is a new process: after Kill and power cuts the disk works again, and
// what a power cut takes is gone. The old process must have closed its files: it
// would not see its own bytes change.
func (d *Disk) Revive() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	var err error
	if d.dead && d.plan.Kind != Kill {
		err = d.lose()
	}
	if d.dead && d.plan.Kind == Nameless {
		err = errors.Join(err, d.loseNames())
	}
	d.dead, d.full = false, false
	return err
}

// Struck says which call failed, "" while none has, and whether the disk is dead
// since.
func (d *Disk) Struck() (call string, dead bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.struck, d.dead
}

// End stops watching. It returns how many calls there were since Begin, and
// whether one of them failed.
func (d *Disk) End() (calls int, struck bool) {
	d.mu.Lock()
	d.endShadow()
	d.forget()
	d.dir = ""
	calls, struck = d.calls, d.struck != ""
	limbo := d.names.limbo
	d.names = names{}
	d.mu.Unlock()
	if limbo != "" {
		_ = os.RemoveAll(limbo) // its calls come to judge
	}
	return calls, struck
}

func (d *Disk) forget() {
	for _, f := range d.unsynced {
		unix.Close(f.fd)
	}
	if d.tornOf != nil {
		unix.Close(d.tornOf.fd)
	}
	d.unsynced, d.torn, d.tornOf = nil, nil, nil
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
	if nr == unix.SYS_RENAMEAT || nr == unix.SYS_UNLINKAT {
		return d.judgeName(nr, args)
	}
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
		d.struck = fmt.Sprintf("%s of %s", callName(nr), strings.TrimPrefix(name, d.dir))
		return d.strike(nr, fd, args)
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return answer{err: unix.EUCLEAN} // a code that nobody expects: the test sees it
	}
	id := inode{uint64(st.Dev), st.Ino}
	f := d.unsynced[id]
	if nr == unix.SYS_FSYNC || nr == unix.SYS_FDATASYNC {
		if f != nil {
			unix.Close(f.fd)
			delete(d.unsynced, id)
		}
		switch st.Mode & unix.S_IFMT {
		case unix.S_IFDIR:
			err = d.syncNames(name, id)
		case unix.S_IFREG:
			err = d.compare(fmt.Sprintf("/proc/self/fd/%d", fd), name, id)
		}
		if err != nil {
			return answer{err: unix.EUCLEAN}
		}
		return answer{}
	}
	if f == nil {
		if f, err = openFile(fd); err != nil {
			return answer{err: unix.EUCLEAN}
		}
		d.unsynced[id] = f
	}
	u, err := f.undo(nr, args, st.Size)
	if err = errors.Join(err, d.shadowed(nr, args, id)); err != nil {
		return answer{err: unix.EUCLEAN}
	}
	f.undos = append(f.undos, u)
	return answer{pass: true}
}

func callName(nr int) string {
	return map[int]string{
		unix.SYS_PWRITE64: "write", unix.SYS_FTRUNCATE: "resize", unix.SYS_FSYNC: "sync", unix.SYS_FDATASYNC: "data sync",
	}[nr]
}

func openFile(fd int) (*file, error) {
	own, err := unix.Open(fmt.Sprintf("/proc/self/fd/%d", fd), unix.O_RDWR|unix.O_CLOEXEC, 0)
	return &file{fd: own}, err
}

// strike is the failing call.
func (d *Disk) strike(nr, fd int, args [6]uint64) answer {
	write := nr == unix.SYS_PWRITE64
	half := func() []byte {
		b := make([]byte, args[2]/2)
		if _, err := d.mem.ReadAt(b, int64(args[1])); err != nil {
			return nil
		}
		return b
	}
	switch d.plan.Kind {
	case NoRoom:
		return answer{err: unix.ENOSPC}
	case Short:
		if write {
			d.full = true
			n, err := unix.Pwritev(fd, [][]byte{half()}, int64(args[3]))
			if err != nil {
				break
			}
			return answer{val: int64(n)}
		}
	case Torn:
		if write {
			if f, err := openFile(fd); err == nil {
				d.torn, d.tornOf = &undo{offset: int64(args[3]), old: half()}, f
			}
		}
		d.dead = true
	case Kill, PowerCut, Nameless:
		d.dead = true
	}
	return answer{err: unix.EIO}
}

// undo is how to take a call back, read before it is carried out.
func (f *file) undo(nr int, args [6]uint64, size int64) (undo, error) {
	u := undo{size: size}
	switch {
	case nr == unix.SYS_PWRITE64:
		u.offset, u.old = int64(args[3]), make([]byte, args[2])
	case int64(args[1]) < size: // it loses its end
		u.offset = int64(args[1])
		u.old = make([]byte, size-u.offset)
	default:
		return u, nil
	}
	n, err := unix.Pread(f.fd, u.old, u.offset)
	u.old = u.old[:max(n, 0)]
	return u, err
}

// lose takes back what was not synced, the newest first. Torn keeps every second
// call, and the file's length.
func (d *Disk) lose() error {
	var errs []error
	for id, f := range d.unsynced {
		for i := len(f.undos) - 1; i >= 0; i-- {
			u := f.undos[i]
			if d.plan.Kind == Torn && i%2 == 0 {
				continue
			}
			if len(u.old) > 0 {
				_, err := unix.Pwritev(f.fd, [][]byte{u.old}, u.offset)
				errs = append(errs, err)
			}
			if d.plan.Kind != Torn {
				errs = append(errs, truncate(f.fd, u.size))
			}
		}
		unix.Close(f.fd)
		delete(d.unsynced, id)
	}
	if d.torn != nil {
		if len(d.torn.old) > 0 {
			_, err := unix.Pwritev(d.tornOf.fd, [][]byte{d.torn.old}, d.torn.offset)
			errs = append(errs, err)
		}
		unix.Close(d.tornOf.fd)
		d.torn, d.tornOf = nil, nil
	}
	return errors.Join(errs...)
}

// truncate is not ftruncate, which would wait for this package's own answer.
func truncate(fd int, size int64) error {
	return unix.Truncate(fmt.Sprintf("/proc/self/fd/%d", fd), size)
}
