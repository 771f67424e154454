package sandbox

import (
	"bytes"
	"fmt"
	"math"
	"os"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// diskLook is how often init asks how much room the workspace's filesystem
	// has, which costs next to nothing; a walk follows where that moved, at most
	// every diskWalk, and in any case every diskLong. diskShare bounds what the
	// walks cost to a part of the processor's time; diskNear is that part where
	// the room went down by a good part of what is allowed.
	diskLook  = 100 * time.Millisecond
	diskWalk  = time.Second
	diskLong  = 10 * time.Second
	diskShare = 20
	diskNear  = 4
)

// diskMeter measures by how much a workspace grew.
type diskMeter struct {
	root  int    // the workspace
	proc  string // where the group's processes are seen
	dev   uint64 // the workspace's filesystem
	base  amount // what was there before
	bound amount // by how much it may grow

	blind bool // something could not be looked into
	room  amount
	start amount // the room at the start
}

// fileLimit is the RLIMIT_FSIZE of a turn whose workspace may grow by so much:
// no file is larger than all may be together.
func fileLimit(bound amount) uint64 {
	if bound.Bytes == 0 {
		return limitFileBytes
	}
	return uint64(min(limitFileBytes, max(bound.Bytes, 1<<20)))
}

// planDisk is the meter of a plan's workspace, nil where there is no bound. What
// cannot be measured must not run.
func planDisk(p plan) (*diskMeter, error) {
	if (p.Disk == amount{}) || !on(layerDisk) {
		return nil, nil
	}
	bound := p.Disk
	if bound.Bytes == 0 {
		bound.Bytes = math.MaxInt64 / 2
	}
	if bound.Names == 0 {
		bound.Names = math.MaxInt32
	}
	m, err := newDiskMeter(string(p.Dir), p.DiskBase, bound)
	if err != nil {
		return nil, fmt.Errorf("measure the workspace: %w", err)
	}
	return m, nil
}

// newDiskMeter measures the workspace at dir, inside. It needs a moment before
// the program runs: the room of the filesystem is compared with that of now.
func newDiskMeter(dir string, base, bound amount) (*diskMeter, error) {
	root, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	id, _, err := identify(root)
	m := &diskMeter{root: root, proc: "/proc", dev: id.Dev, base: base, bound: bound}
	m.start = m.left()
	m.room = m.start
	return m, err
}

// watch says once that the workspace grew by more than it may. It ends with the
// process. A nil meter never says so.
func (m *diskMeter) watch() <-chan struct{} {
	if m == nil {
		return nil
	}
	over := make(chan struct{})
	go func() {
		walked, cost := time.Now(), time.Duration(0)
		for {
			time.Sleep(diskLook)
			since, now := time.Since(walked), m.left()
			if since < m.pause(now, cost) {
				continue
			}
			m.room = now
			began := time.Now()
			if m.exceeded() {
				close(over)
				return
			}
			walked = time.Now()
			cost = walked.Sub(began)
		}
	}()
	return over
}

// pause is how long after the last walk the next may come.
func (m *diskMeter) pause(now amount, cost time.Duration) time.Duration {
	gone := amount{Names: m.room.Names - now.Names, Bytes: m.room.Bytes - now.Bytes}
	switch {
	case gone.Bytes > m.bound.Bytes/8 || gone.Names > m.bound.Names/8:
		return diskNear * cost
	case now != m.room:
		return max(diskWalk, diskShare*cost)
	}
	return max(diskLong, diskShare*cost)
}

// left is the room that the filesystem has, for whoever writes in it.
func (m *diskMeter) left() amount {
	var st unix.Statfs_t
	if unix.Fstatfs(m.root, &st) != nil {
		return amount{}
	}
	return amount{Names: int64(st.Ffree), Bytes: int64(st.Bfree) * st.Bsize}
}

// exceeded walks the workspace, and looks for files without a name. Where something cannot
// be looked into, because the program closed it, what the filesystem lost since
// the start stands for it, whoever wrote that.
func (m *diskMeter) exceeded() bool {
	m.blind = false
	t := &tree{root: m.root, workers: 1, most: int(m.base.Names + m.bound.Names),
		closed: func(dir string, err error) error {
			// What belongs to others the program cannot have closed, nor can it open it.
			m.blind = m.blind || err != unix.EXDEV && !m.foreign(dir)
			return nil
		}}
	seen, err := t.walk()
	if err == errMany {
		return true
	}
	m.blind = m.blind || err != nil
	grown := amount{Names: seen.Names - m.base.Names, Bytes: seen.Bytes - m.base.Bytes}
	if m.over(grown) {
		return true
	}
	// Others give room back meanwhile, so what the filesystem lost does not say
	// that there are none.
	held := m.nameless()
	if grown.Bytes += held.Bytes; m.over(grown) {
		return true
	}
	lost := amount{Names: m.start.Names - m.room.Names, Bytes: m.start.Bytes - m.room.Bytes}
	return m.blind && m.over(lost)
}

// foreign reports whether a folder belongs to another user than the workload.
func (m *diskMeter) foreign(dir string) bool {
	fd, err := unix.Openat2(m.root, dir, &unix.OpenHow{Flags: unix.O_PATH | unix.O_CLOEXEC,
		Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS})
	if err != nil {
		return false
	}
	defer unix.Close(fd)
	_, st, err := identify(fd)
	return err == nil && st.Uid != workUID
}

func (m *diskMeter) over(a amount) bool { return a.Bytes > m.bound.Bytes || a.Names > m.bound.Names }

// nameless adds up the files of the workspace that only processes hold, by a
// descriptor or a mapping. Descriptors on their way through a socket are in no
// process: where there are any, not all was seen.
func (m *diskMeter) nameless() (held amount) {
	entries, err := os.ReadDir(m.proc)
	if err != nil {
		m.blind = true
		return held
	}
	files := map[uint64]int64{}
	for _, e := range entries {
		if pid, err := strconv.Atoi(e.Name()); err == nil && pid != 1 {
			m.heldBy(m.proc+"/"+e.Name(), files)
		}
	}
	for _, size := range files {
		held.Bytes += size
		held.Names++
	}
	return held
}

// heldBy adds the nameless files of one process.
func (m *diskMeter) heldBy(dir string, files map[uint64]int64) {
	if u, threads := usageIn(dir); u.size == 0 {
		// Ended, but perhaps only its first thread.
		tasks, err := os.ReadDir(dir + "/task")
		if err != nil || threads < 2 {
			return
		}
		for _, t := range tasks {
			if u, _ := usageIn(dir + "/task/" + t.Name()); u.size > 0 {
				m.heldIn(dir+"/task/"+t.Name(), files)
			}
		}
		return
	}
	m.heldIn(dir, files)
}

// closed notes that a living process keeps to itself what it holds.
func (m *diskMeter) closed(dir string) {
	u, _ := usageIn(dir)
	m.blind = m.blind || u.size > 0
}

func (m *diskMeter) heldIn(dir string, files map[uint64]int64) {
	fds, err := os.ReadDir(dir + "/fd")
	if err != nil {
		m.closed(dir)
		return
	}
	for _, fd := range fds {
		var st unix.Stat_t
		if unix.Stat(dir+"/fd/"+fd.Name(), &st) != nil {
			continue
		}
		switch {
		case st.Mode&unix.S_IFMT == unix.S_IFREG && uint64(st.Dev) == m.dev && st.Nlink == 0:
			files[st.Ino] = max(st.Size, st.Blocks*512)
		case st.Mode&unix.S_IFMT == unix.S_IFSOCK:
			info, err := readStatus(dir + "/fdinfo/" + fd.Name())
			m.blind = m.blind || err == nil && info["scm_fds"] != "" && info["scm_fds"] != "0"
		}
	}
	maps, err := readKernel(dir + "/maps")
	if err != nil {
		m.closed(dir)
		return
	}
	for line := range bytes.Lines(maps) {
		f := bytes.Fields(line)
		if len(f) < 6 || !bytes.HasSuffix(bytes.TrimSpace(line), []byte(" (deleted)")) || device(f[3]) != m.dev {
			continue
		}
		// The mapping shows where it lies in the file, not how long that is.
		from, to, _ := bytes.Cut(f[0], []byte("-"))
		if ino := uint64(number(f[4])); files[ino] == 0 {
			files[ino] = hexadecimal(to) - hexadecimal(from) + hexadecimal(f[2])
		}
	}
}

func hexadecimal(b []byte) int64 {
	n, err := strconv.ParseInt(string(b), 16, 64)
	if err != nil {
		return 0
	}
	return n
}
