package sandbox

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"sort"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// namespaceNames are the namespaces that a turn gets, by their /proc names.
var namespaceNames = []string{"user", "mnt", "pid", "net", "ipc", "uts", "cgroup"}

// rlimitNames are the limits that go into a Report.
var rlimitNames = map[string]int{
	"core": unix.RLIMIT_CORE, "nofile": unix.RLIMIT_NOFILE, "fsize": unix.RLIMIT_FSIZE, "nproc": unix.RLIMIT_NPROC,
	"memlock": unix.RLIMIT_MEMLOCK, "msgqueue": unix.RLIMIT_MSGQUEUE, "data": unix.RLIMIT_DATA,
}

// observe reads the confinement of a live process, by its directory in /proc and
// its number, 0 for this one.
func observe(proc string, pid int) (posture, error) {
	seen := posture{Caps: map[string]string{}, Rlimits: map[string]uint64{}}
	status, err := readStatus(proc + "/status")
	if err != nil {
		return seen, err
	}
	for _, set := range []string{"CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"} {
		seen.Caps[set] = status[set]
	}
	seen.NoNewPrivs = status["NoNewPrivs"] == "1"
	if seen.Seccomp, err = strconv.Atoi(status["Seccomp"]); err != nil {
		return seen, fmt.Errorf("read seccomp state: %w", err)
	}
	// This process may be under filters of its own surroundings, as in a
	// container, and its children with it.
	own, err := readStatus("/proc/self/status")
	if err != nil {
		return seen, err
	}
	theirs, err1 := strconv.Atoi(status["Seccomp_filters"])
	ours, err2 := strconv.Atoi(own["Seccomp_filters"])
	if err := errors.Join(err1, err2); err != nil {
		return seen, fmt.Errorf("read seccomp filters: %w", err)
	}
	seen.Filters = theirs - ours
	if seen.Namespaces, err = namespaces(proc); err != nil {
		return seen, err
	}
	for file, to := range map[string]*string{"/uid_map": &seen.UIDMap, "/gid_map": &seen.GIDMap} {
		b, err := readKernel(proc + file)
		if err != nil {
			return seen, err
		}
		*to = strings.Join(strings.Fields(string(b)), " ")
	}
	mounts, err := readKernel(proc + "/mountinfo")
	if err != nil {
		return seen, err
	}
	sum := sha256.Sum256(mounts)
	seen.Mounts = hex.EncodeToString(sum[:])
	for name, which := range rlimitNames {
		var l unix.Rlimit
		if err := unix.Prlimit(pid, which, nil, &l); err != nil {
			return seen, fmt.Errorf("read limit %s: %w", name, err)
		}
		if l.Cur != unix.RLIM_INFINITY {
			seen.Rlimits[name] = l.Cur
		}
	}
	if seen.Files, err = inherited(proc); err != nil {
		return seen, err
	}
	b, err := readKernel("/proc/sys/user/max_user_namespaces")
	seen.NestedUser = strings.TrimSpace(string(b))
	return seen, err
}

// readStatus reads a /proc status file. Its values are the kernel's, except
// Name, whose newlines the kernel escapes.
func readStatus(path string) (map[string]string, error) {
	b, err := readKernel(path)
	if err != nil {
		return nil, err
	}
	fields := map[string]string{}
	lines := bufio.NewScanner(bytes.NewReader(b))
	for lines.Scan() {
		if key, value, ok := strings.Cut(lines.Text(), ":"); ok {
			fields[key] = strings.TrimSpace(value)
		}
	}
	return fields, lines.Err()
}

func namespaces(proc string) (map[string]uint64, error) {
	found := map[string]uint64{}
	for _, name := range namespaceNames {
		inode, err := namespace(proc, name)
		if err != nil {
			return nil, err
		}
		found[name] = inode
	}
	return found, nil
}

// namespace returns the inode number in a link such as "pid:[4026531836]".
func namespace(proc, name string) (uint64, error) {
	link, err := os.Readlink(proc + "/ns/" + name)
	if err != nil {
		return 0, err
	}
	number := strings.TrimSuffix(strings.TrimPrefix(link, name+":["), "]")
	inode, err := strconv.ParseUint(number, 10, 64)
	if err != nil {
		return 0, fmt.Errorf("read namespace %q: %w", link, err)
	}
	return inode, nil
}

// inherited lists the descriptors that survive execve, as "number what".
func inherited(proc string) ([]string, error) {
	entries, err := os.ReadDir(proc + "/fd")
	if err != nil {
		return nil, err
	}
	var numbers []int
	for _, e := range entries {
		n, err := strconv.Atoi(e.Name())
		if err != nil {
			return nil, err
		}
		numbers = append(numbers, n)
	}
	sort.Ints(numbers)
	var files []string
	for _, n := range numbers {
		info, err := readStatus(fmt.Sprintf("%s/fdinfo/%d", proc, n))
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		flags, err := strconv.ParseUint(info["flags"], 8, 64)
		if err != nil {
			return nil, fmt.Errorf("read descriptor %d: %w", n, err)
		}
		if flags&unix.O_CLOEXEC != 0 {
			continue
		}
		what, err := os.Readlink(fmt.Sprintf("%s/fd/%d", proc, n))
		if err != nil {
			return nil, err
		}
		if kind, _, ok := strings.Cut(what, ":["); ok {
			what = kind
		}
		files = append(files, fmt.Sprintf("%d %s", n, what))
	}
	return files, nil
}
