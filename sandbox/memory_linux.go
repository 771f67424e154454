package sandbox

import (
	"bytes"
	"os"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// memoryLook is how often init adds the group's memory up; memoryShare
	// bounds what that costs to a part of the processor's time, and memoryNear
	// is that part where half of the limit is used.
	memoryLook  = 20 * time.Millisecond
	memoryShare = 20
	memoryNear  = 4
	// memorySlack is what one process may have beyond the group's limit, or as
	// much again where that is more: RLIMIT_DATA stands between two looks. It
	// counts what is reserved, too, so at the limit itself it would refuse
	// programs that never use what they reserve.
	memorySlack = 256 << 20
	// inodeBytes is what the kernel keeps for a file of a tmpfs besides its
	// pages, however small the file is.
	inodeBytes = 1 << 10
)

// dataLimit is the RLIMIT_DATA of each process of a group with this limit.
func dataLimit(memory int64) int64 { return memory + max(memory, memorySlack) }

// watchMemory says once that the group uses more memory than limit. It ends
// with the process.
func watchMemory(m meter) <-chan struct{} {
	over := make(chan struct{})
	go func() {
		for wait := memoryLook; ; {
			time.Sleep(wait)
			began := time.Now()
			used := m.used()
			if used > m.limit {
				close(over)
				return
			}
			share := time.Duration(memoryShare)
			if used > m.limit/2 {
				share = memoryNear
			}
			wait = max(memoryLook, share*time.Since(began))
		}
	}()
	return over
}

// meter adds up the memory of one PID namespace and of what its view and its
// IPC namespace hold whether or not any process maps it.
type meter struct {
	proc   string
	limit  int64
	mounts []string // filesystems in memory that the group may fill
	shared uint64   // device of memory files, as smaps shows it; 0: not known
}

// newMeter is the meter of init's own view.
func newMeter(p plan) meter {
	m := meter{proc: "/proc", limit: p.Memory, mounts: []string{tmpDir, homeDir, "/dev/shm"}}
	if p.Reply > 0 {
		m.mounts = append(m.mounts, replyDir)
	}
	if fd, err := unix.MemfdCreate("meter", unix.MFD_CLOEXEC); err == nil {
		if id, _, err := identify(fd); err == nil {
			m.shared = id.Dev
		}
		unix.Close(fd)
	}
	return m
}

// used is the memory in bytes, or an amount that is not above the limit and not
// below the truth. The first sum is cheap and counts a page once for each
// process that shares it, and once more where a tmpfs or a segment holds it;
// only where that is over the limit are the pages' shares asked for.
func (m meter) used() int64 {
	held := m.files() + heldByIPC(m.proc)
	entries, err := os.ReadDir(m.proc)
	if err != nil {
		return held
	}
	type process struct {
		dir string
		use usage
	}
	var all []process
	sum := held
	for _, e := range entries {
		// Init's own memory is not the program's.
		pid, err := strconv.Atoi(e.Name())
		if err != nil || pid == 1 {
			continue
		}
		dir := m.proc + "/" + e.Name()
		if u := usageOf(dir); u.size > 0 {
			all = append(all, process{dir, u})
			sum += u.total()
		}
	}
	if sum <= m.limit {
		return sum
	}
	sum = held
	seen := map[int64][]int{} // one process of each address space, by its size
	for _, p := range all {
		if sameSpace(p.use.task, seen[p.use.size]) {
			continue // between vfork and execve a child runs in its parent's memory
		}
		seen[p.use.size] = append(seen[p.use.size], p.use.task)
		sum += m.shareOf(p.dir, p.use)
	}
	return sum
}

// files is what the view's filesystems in memory take, unlinked files too.
func (m meter) files() (sum int64) {
	for _, path := range m.mounts {
		var st unix.Statfs_t
		if unix.Statfs(path, &st) == nil && st.Type == unix.TMPFS_MAGIC {
			sum += int64(st.Blocks-st.Bfree)*st.Bsize + int64(st.Files-st.Ffree)*inodeBytes
		}
	}
	return sum
}

// memoryFile reports whether a mapping is of memory that no filesystem of files()
// and no segment holds.
func (m meter) memoryFile(dev uint64, path []byte) bool {
	// A segment of System V is counted where it is held.
	return m.shared != 0 && dev == m.shared && !bytes.HasPrefix(path, []byte("/SYSV"))
}

// heldByIPC is what the IPC namespace holds: segments, messages, semaphores.
func heldByIPC(proc string) (sum int64) {
	// A semaphore has a cache line of its own, a message a header.
	const semaphore, message = 64, 64
	for file, weigh := range map[string]map[string]int64{
		"shm": {"rss": 1, "swap": 1},
		"msg": {"cbytes": 1, "qnum": message},
		"sem": {"nsems": semaphore},
	} {
		b, err := readKernel(proc + "/sysvipc/" + file)
		if err != nil {
			continue
		}
		var names [][]byte
		for line := range bytes.Lines(b) {
			fields := bytes.Fields(line)
			if names == nil {
				names = fields
				continue
			}
			for i, f := range fields[:min(len(fields), len(names))] {
				if w := weigh[string(names[i])]; w > 0 {
					sum += w * number(f)
				}
			}
		}
	}
	return sum
}

// usage is the memory of one process, in bytes.
type usage struct {
	task                    int   // a thread that has the address space
	size                    int64 // of the address space; 0: there is none
	anon, shared, swap, own int64 // own: page tables and huge pages, which nobody shares
}

func (u usage) total() int64 { return u.anon + u.shared + u.swap + u.own }

// usageOf is what a process uses; nothing where it is gone. One whose first
// thread has ended shows its memory only in the others.
func usageOf(dir string) usage {
	u, threads := usageIn(dir)
	if u.size > 0 || threads < 2 {
		return u
	}
	tasks, err := os.ReadDir(dir + "/task")
	if err != nil {
		return usage{}
	}
	for _, t := range tasks {
		if u, _ := usageIn(dir + "/task/" + t.Name()); u.size > 0 {
			return u
		}
	}
	return usage{}
}

func usageIn(dir string) (u usage, threads int64) {
	status, err := readKernel(dir + "/status")
	if err != nil {
		return u, 0
	}
	for line := range bytes.Lines(status) {
		name, value, _ := bytes.Cut(line, []byte(":"))
		switch string(name) {
		case "Pid":
			u.task = int(number(bytes.TrimSpace(value)))
		case "VmSize":
			u.size = kibibytes(value)
		case "RssAnon":
			u.anon = kibibytes(value)
		case "RssShmem":
			u.shared = kibibytes(value)
		case "VmSwap":
			u.swap = kibibytes(value)
		case "VmPTE", "HugetlbPages":
			u.own += kibibytes(value)
		case "Threads":
			threads = number(bytes.TrimSpace(value))
		}
	}
	return u, threads
}

// shareOf is a process's usage with each page divided by the processes that
// share it, without what files() and heldByIPC count. A program can keep that
// to itself, and then counts in full.
func (m meter) shareOf(dir string, u usage) int64 {
	b, err := readKernel(dir + "/smaps_rollup")
	if err != nil || len(b) == 0 {
		return u.total()
	}
	sum, shmem := u.own, int64(0)
	for line := range bytes.Lines(b) {
		name, value, _ := bytes.Cut(line, []byte(":"))
		switch string(name) {
		case "Pss_Anon", "SwapPss":
			sum += kibibytes(value)
		case "Pss_Shmem":
			shmem = kibibytes(value)
		}
	}
	if shmem == 0 {
		return sum
	}
	if b, err = readKernel(dir + "/smaps"); err != nil || len(b) == 0 || m.shared == 0 {
		return sum + shmem
	}
	counts := false
	for line := range bytes.Lines(b) {
		if value, ok := bytes.CutPrefix(line, []byte("Pss:")); ok && counts {
			sum += kibibytes(value)
		} else if f := bytes.Fields(line); len(f) >= 5 && bytes.IndexByte(f[0], '-') > 0 {
			var path []byte
			if len(f) > 5 {
				path = f[5]
			}
			counts = m.memoryFile(device(f[3]), path)
		}
	}
	return sum
}

// sameSpace reports whether a process has the address space of one of others.
func sameSpace(pid int, others []int) bool {
	const kcmpVM = 1
	for _, other := range others {
		if r, _, no := unix.RawSyscall6(unix.SYS_KCMP, uintptr(pid), uintptr(other), kcmpVM, 0, 0, 0); no == 0 && r == 0 {
			return true
		}
	}
	return false
}

// device reads "major:minor", in hexadecimal.
func device(b []byte) uint64 {
	major, minor, _ := bytes.Cut(b, []byte(":"))
	a, err1 := strconv.ParseUint(string(major), 16, 32)
	i, err2 := strconv.ParseUint(string(minor), 16, 32)
	if err1 != nil || err2 != nil {
		return 0
	}
	return unix.Mkdev(uint32(a), uint32(i))
}

// kibibytes reads "   123 kB" as bytes.
func kibibytes(b []byte) int64 {
	return number(bytes.TrimSuffix(bytes.TrimSpace(b), []byte(" kB"))) << 10
}

func number(b []byte) int64 {
	n, err := strconv.ParseInt(string(b), 10, 64)
	if err != nil || n < 0 {
		return 0
	}
	return n
}
