package sandbox_test

import (
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// tries collects what raw system calls gave: an error's name, "" for success.
type tries map[string]string

func (got tries) errno(name string, no syscall.Errno) {
	got[name] = ""
	if no != 0 {
		got[name] = unix.ErrnoName(no)
	}
}

func (got tries) raw(name string, number uintptr, args ...uintptr) {
	var a [6]uintptr
	copy(a[:], args)
	_, _, no := unix.Syscall6(number, a[0], a[1], a[2], a[3], a[4], a[5])
	got.errno(name, no)
}

func (got tries) err(name string, err error) {
	var no syscall.Errno
	if err != nil && !errors.As(err, &no) {
		got[name] = err.Error()
		return
	}
	got.errno(name, no)
}

func pointer(s string) uintptr { return uintptr(unsafe.Pointer(unsafe.StringData(s + "\x00"))) }

// rawCalls plays one group and prints what each call gave. Pointers are to
// nothing where the call must be refused before it looks.
func rawCalls(args []string) {
	got := tries{}
	map[string]func(tries, []string){
		"init": initFiles, "processes": processCalls, "memory": rewriteOwnText, "network": networkCalls,
		"sockets": socketCalls, "terminals": terminalCalls, "namespaces": namespaceCalls, "mounts": mountCalls,
		"rings": ringCalls, "large": largeCalls, "handles": handleCalls, "machine": machineCalls,
		"devices": deviceCalls, "rights": rightCalls, "elsewhere": elsewhere, "paths": pathCalls,
	}[args[0]](got, args[1:])
	json.NewEncoder(os.Stdout).Encode(got)
}

func initFiles(got tries, _ []string) {
	for _, name := range []string{"environ", "auxv", "maps", "mem", "exe", "root/etc/passwd", "cwd/etc/passwd", "fd/5", "stack", "syscall"} {
		f, err := os.Open("/proc/1/" + name)
		if err == nil && !strings.HasPrefix(name, "fd/") { // a pipe, which would never answer
			if _, err = f.Read(make([]byte, 1)); err == io.EOF {
				err = nil
			}
		}
		f.Close()
		got.err(name, err)
	}
	for _, name := range []string{"exe", "root", "cwd", "fd/5", "ns/user", "ns/mnt"} {
		_, err := os.Readlink("/proc/1/" + name)
		got.err("link "+name, err)
	}
	for _, name := range []string{"mem", "oom_score_adj", "uid_map", "comm"} {
		f, err := os.OpenFile("/proc/1/"+name, os.O_WRONLY, 0)
		if err == nil {
			_, err = f.Write([]byte("0"))
			f.Close()
		}
		got.err("write "+name, err)
	}
}

// processCalls reaches for the first process and for a child of its own.
func processCalls(got tries, _ []string) {
	child := exec.Command("/proc/self/exe", hostileArg, "idle")
	if _, err := child.StdinPipe(); err != nil {
		panic(err)
	}
	if err := child.Start(); err != nil {
		panic(err)
	}
	for name, pid := range map[string]uintptr{"init": 1, "child": uintptr(child.Process.Pid)} {
		got.raw("attach "+name, unix.SYS_PTRACE, unix.PTRACE_ATTACH, pid)
		got.raw("seize "+name, unix.SYS_PTRACE, unix.PTRACE_SEIZE, pid)
		got.raw("read "+name, unix.SYS_PROCESS_VM_READV, pid, 0, 0, 0, 0, 0)
		got.raw("write "+name, unix.SYS_PROCESS_VM_WRITEV, pid, 0, 0, 0, 0, 0)
		got.raw("compare "+name, unix.SYS_KCMP, pid, uintptr(os.Getpid()), 1, 0, 0)
		fd, _, _ := unix.Syscall(unix.SYS_PIDFD_OPEN, pid, 0, 0)
		got.raw("take from "+name, unix.SYS_PIDFD_GETFD, fd, 0, 0)
	}
	got.raw("be traced", unix.SYS_PTRACE, unix.PTRACE_TRACEME)
	child.Process.Kill()
}

// rewriteOwnText changes memory that it has mapped read-only, code among it, as
// anybody may, and then tries what was forbidden before.
func rewriteOwnText(got tries, args []string) {
	mem, err := os.OpenFile("/proc/self/mem", os.O_RDWR, 0)
	if err != nil {
		panic(err)
	}
	page, err := unix.Mmap(-1, 0, os.Getpagesize(), unix.PROT_READ|unix.PROT_EXEC, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		panic(err)
	}
	_, err = mem.WriteAt([]byte("changed"), int64(uintptr(unsafe.Pointer(&page[0]))))
	got.err("rewrite", err)
	if string(page[:7]) != "changed" {
		got["rewrite"] = "nothing changed"
	}
	_, err = os.ReadFile(args[0])
	got.err("sentinel", err)
	got.raw("unshare", unix.SYS_UNSHARE, unix.CLONE_NEWNS)
	got.raw("mount", unix.SYS_MOUNT)
	got.raw("socket", unix.SYS_SOCKET, unix.AF_UNIX, unix.SOCK_STREAM, 0)
}

// networkCalls talks to listeners of the host: TCP, UDP, ICMP, raw.
func networkCalls(got tries, args []string) {
	port, err := strconv.Atoi(args[0])
	if err != nil {
		panic(err)
	}
	to := &unix.SockaddrInet4{Port: port, Addr: [4]byte{127, 0, 0, 1}}
	to6 := &unix.SockaddrInet6{Port: port, Addr: [16]byte{15: 1}}
	for name, s := range map[string]struct {
		family, kind, protocol int
		to                     unix.Sockaddr
	}{
		"tcp": {unix.AF_INET, unix.SOCK_STREAM, 0, to}, "tcp6": {unix.AF_INET6, unix.SOCK_STREAM, 0, to6},
		"mptcp": {unix.AF_INET, unix.SOCK_STREAM, unix.IPPROTO_MPTCP, to},
		"udp":   {unix.AF_INET, unix.SOCK_DGRAM, 0, to}, "udp6": {unix.AF_INET6, unix.SOCK_DGRAM, 0, to6},
		"icmp": {unix.AF_INET, unix.SOCK_DGRAM, unix.IPPROTO_ICMP, to}, "raw": {unix.AF_INET, unix.SOCK_RAW, unix.IPPROTO_ICMP, to},
		"raw6": {unix.AF_INET6, unix.SOCK_RAW, unix.IPPROTO_ICMPV6, to6},
	} {
		fd, err := unix.Socket(s.family, s.kind, s.protocol)
		if err == nil {
			if err = unix.Connect(fd, s.to); err == nil {
				_, err = unix.Write(fd, []byte("\x08\x00ping"))
			}
			if err == nil {
				err = unix.Sendto(fd, []byte("hostile"), 0, nil)
			}
			unix.Close(fd)
		}
		got.err(name, err)
	}
	got.err("abstract", dialOnce("unix", args[1]))
}

// socketCalls makes sockets of every family that a kernel has.
func socketCalls(got tries, _ []string) {
	for name, family := range map[string]uintptr{
		"unix": unix.AF_UNIX, "netlink": unix.AF_NETLINK, "packet": unix.AF_PACKET, "alg": unix.AF_ALG, "vsock": unix.AF_VSOCK,
		"bluetooth": unix.AF_BLUETOOTH, "can": unix.AF_CAN, "tipc": unix.AF_TIPC, "rds": unix.AF_RDS, "key": unix.AF_KEY,
		"xdp": unix.AF_XDP, "smc": unix.AF_SMC, "kcm": unix.AF_KCM, "unspecified": 0,
	} {
		for kind, number := range map[string]uintptr{"stream": unix.SOCK_STREAM, "datagram": unix.SOCK_DGRAM, "raw": unix.SOCK_RAW, "sequence": unix.SOCK_SEQPACKET} {
			got.raw(name+" "+kind, unix.SYS_SOCKET, family|1<<40, number|unix.SOCK_CLOEXEC, 0)
		}
	}
	got.raw("netfilter", unix.SYS_SOCKET, unix.AF_NETLINK, unix.SOCK_RAW, unix.NETLINK_NETFILTER)
	got.raw("audit", unix.SYS_SOCKET, unix.AF_NETLINK, unix.SOCK_RAW, unix.NETLINK_AUDIT)
	got.raw("pair of tipc", unix.SYS_SOCKETPAIR, unix.AF_TIPC, unix.SOCK_STREAM, 0, 0)
	// What a granted network leaves of netlink: to look, not to change.
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_ROUTE)
	if err == nil {
		err = setLoopbackDown(fd)
	}
	got.err("change a link", err)
}

// setLoopbackDown asks the kernel by netlink and returns its answer.
func setLoopbackDown(fd int) error {
	request := struct {
		head unix.NlMsghdr
		link unix.IfInfomsg
	}{
		unix.NlMsghdr{Len: unix.SizeofNlMsghdr + unix.SizeofIfInfomsg, Type: unix.RTM_NEWLINK, Flags: unix.NLM_F_REQUEST | unix.NLM_F_ACK},
		unix.IfInfomsg{Index: 1, Change: unix.IFF_UP},
	}
	b := unsafe.Slice((*byte)(unsafe.Pointer(&request)), unsafe.Sizeof(request))
	if err := unix.Sendto(fd, b, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return err
	}
	answer := make([]byte, 4096)
	n, _, err := unix.Recvfrom(fd, answer, 0)
	if err != nil || n < unix.SizeofNlMsghdr+4 {
		return err
	}
	if no := -*(*int32)(unsafe.Pointer(&answer[unix.SizeofNlMsghdr])); no != 0 {
		return syscall.Errno(no)
	}
	return nil
}

// pathCalls reaches for sockets of the host in the workspace.
func pathCalls(got tries, _ []string) {
	got.err("stream", dialOnce("unix", "stream.sock"))
	got.err("datagram", dialOnce("unixgram", "datagram.sock"))
	to := &unix.SockaddrUnix{Name: "datagram.sock"}
	for name, kind := range map[string]int{"datagram": unix.SOCK_DGRAM, "raw": unix.SOCK_RAW} {
		pair, err := unix.Socketpair(unix.AF_UNIX, kind, 0)
		if err == nil {
			err = unix.Sendto(pair[0], []byte("hostile"), 0, to)
		}
		got.err("pair of "+name, err)
		if err == nil {
			err = unix.Connect(pair[0], to)
		}
		got.err("turned pair of "+name, err)
	}
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM, 0)
	got.err("pair", err)
	if err == nil {
		got.err("turned pair", unix.Connect(pair[0], &unix.SockaddrUnix{Name: "stream.sock"}))
		unix.Close(pair[1])
		got.err("turned widowed pair", unix.Connect(pair[0], &unix.SockaddrUnix{Name: "stream.sock"}))
	}
}

func terminalCalls(got tries, _ []string) {
	letter := byte('x')
	for name, request := range map[string]uint64{"sti": unix.TIOCSTI, "linux": unix.TIOCLINUX} {
		for half, high := range map[string]uint64{"": 0, ", bit 32": 1 << 32, ", bit 63": 1 << 63, ", all": 0xffffffff << 32} {
			got.raw(name+half, unix.SYS_IOCTL, 0, uintptr(request|high), uintptr(unsafe.Pointer(&letter)))
		}
	}
	f, err := os.OpenFile("/dev/tty", os.O_RDWR, 0)
	got.err("open tty", err)
	f.Close()
	_, err = os.Open("/dev/ptmx")
	got.err("open ptmx", err)
}

// namespaceNames are the flags that make a namespace, as clone takes them.
var namespaceFlags = map[string]uintptr{
	"mnt": unix.CLONE_NEWNS, "cgroup": unix.CLONE_NEWCGROUP, "uts": unix.CLONE_NEWUTS, "ipc": unix.CLONE_NEWIPC,
	"user": unix.CLONE_NEWUSER, "pid": unix.CLONE_NEWPID, "net": unix.CLONE_NEWNET,
}

func namespaceCalls(got tries, _ []string) {
	for name, flag := range namespaceFlags {
		got.raw("unshare "+name, unix.SYS_UNSHARE, flag)
		for half, more := range map[string]uintptr{"": 0, " and user": unix.CLONE_NEWUSER, ", high half": 1 << 40} {
			pid, _, no := unix.RawSyscall6(unix.SYS_CLONE, flag|more|uintptr(unix.SIGCHLD), 0, 0, 0, 0, 0)
			if no == 0 && pid == 0 {
				unix.RawSyscall(unix.SYS_EXIT, 0, 0, 0)
			}
			got.errno("clone "+name+half, no)
		}
		f, err := os.Open("/proc/self/ns/" + name)
		if err != nil {
			panic(err)
		}
		got.raw("enter "+name, unix.SYS_SETNS, f.Fd(), 0)
		f.Close()
	}
	got.raw("unshare time", unix.SYS_UNSHARE, unix.CLONE_NEWTIME)
	args := [11]uint64{0: unix.CLONE_NEWUSER, 4: uint64(unix.SIGCHLD)}
	pid, _, no := unix.RawSyscall(unix.SYS_CLONE3, uintptr(unsafe.Pointer(&args)), unsafe.Sizeof(args), 0)
	if no == 0 && pid == 0 {
		unix.RawSyscall(unix.SYS_EXIT, 0, 0, 0)
	}
	got.errno("clone3", no)
	got.raw("clone3 of nothing", unix.SYS_CLONE3)
}

func mountCalls(got tries, _ []string) {
	tmp, tmpfs, here := pointer("/tmp"), pointer("tmpfs"), uintptr(0)
	at := ^uintptr(99) // AT_FDCWD
	got.raw("mount", unix.SYS_MOUNT, tmpfs, tmp, tmpfs, 0, 0)
	got.raw("remount", unix.SYS_MOUNT, 0, pointer("/usr"), 0, unix.MS_REMOUNT|unix.MS_BIND, 0)
	got.raw("umount", unix.SYS_UMOUNT2, pointer("/usr"), unix.MNT_DETACH)
	got.raw("pivot_root", unix.SYS_PIVOT_ROOT, tmp, tmp)
	got.raw("chroot", unix.SYS_CHROOT, tmp)
	got.raw("fsopen", unix.SYS_FSOPEN, tmpfs, here)
	got.raw("fsconfig", unix.SYS_FSCONFIG, 0, 6, 0, 0, 0)
	got.raw("fsmount", unix.SYS_FSMOUNT, 0, 0, 0)
	got.raw("fspick", unix.SYS_FSPICK, at, tmp, 0)
	got.raw("open_tree", unix.SYS_OPEN_TREE, at, tmp, 0)
	got.raw("clone of a tree", unix.SYS_OPEN_TREE, at, tmp, unix.OPEN_TREE_CLONE)
	got.raw("open_tree_attr", unix.SYS_OPEN_TREE_ATTR, at, tmp, 0, 0, 0)
	got.raw("move_mount", unix.SYS_MOVE_MOUNT, at, tmp, at, tmp, 0)
	got.raw("mount_setattr", unix.SYS_MOUNT_SETATTR, at, tmp, 0, 0, 0)
}

func ringCalls(got tries, _ []string) {
	var params [120]byte
	got.raw("setup", unix.SYS_IO_URING_SETUP, 8, uintptr(unsafe.Pointer(&params)))
	got.raw("enter", unix.SYS_IO_URING_ENTER, 0, 1, 0, 0)
	got.raw("register", unix.SYS_IO_URING_REGISTER, 0, 0, 0, 0)
	got.raw("too new", 472)
	got.raw("far too new", 100_000)
	got.raw("x32 getpid", 0x40000000|39)
}

func largeCalls(got tries, _ []string) {
	const getKeyring, ofSession = 0, ^uintptr(2)
	got.raw("userfaultfd", unix.SYS_USERFAULTFD, 1) // 1: of user mode only, which anybody may
	got.raw("bpf", unix.SYS_BPF, 0, 0, 0)
	got.raw("perf_event_open", unix.SYS_PERF_EVENT_OPEN, 0, 0, ^uintptr(0), ^uintptr(0), 0)
	got.raw("keyctl", unix.SYS_KEYCTL, getKeyring, ofSession, 1)
	got.raw("add_key", unix.SYS_ADD_KEY, pointer("user"), pointer("k"), pointer("v"), 1, ofSession)
	got.raw("request_key", unix.SYS_REQUEST_KEY, pointer("user"), pointer("k"), 0, 0)
	got.raw("memfd_secret", unix.SYS_MEMFD_SECRET, 0)
	got.raw("memfd_create", unix.SYS_MEMFD_CREATE, pointer("m"), 0)
	got.raw("personality", unix.SYS_PERSONALITY, 0x0040000)
	got.raw("get_mempolicy", unix.SYS_GET_MEMPOLICY)
}

func handleCalls(got tries, _ []string) {
	handle := struct {
		size uint32
		kind int32
		b    [128]byte
	}{size: 128}
	var mount int32
	at := uintptr(unsafe.Pointer(&handle))
	got.raw("name", unix.SYS_NAME_TO_HANDLE_AT, ^uintptr(99), pointer("/usr"), at, uintptr(unsafe.Pointer(&mount)), 0)
	dir, err := unix.Open("/", unix.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		panic(err)
	}
	handle.size, handle.kind, handle.b = 8, 1, [128]byte{2} // the root of an ext4
	got.raw("open", unix.SYS_OPEN_BY_HANDLE_AT, uintptr(dir), at, unix.O_RDONLY)
	got.raw("fanotify", unix.SYS_FANOTIFY_INIT, 0x200, 0)
}

func machineCalls(got tries, _ []string) {
	now := unix.Timespec{Sec: 1}
	var tx unix.Timex
	got.raw("clock_settime", unix.SYS_CLOCK_SETTIME, 0, uintptr(unsafe.Pointer(&now)))
	got.raw("settimeofday", unix.SYS_SETTIMEOFDAY, uintptr(unsafe.Pointer(&unix.Timeval{Sec: 1})), 0)
	tx.Modes = unix.ADJ_TICK
	got.raw("adjtimex", unix.SYS_ADJTIMEX, uintptr(unsafe.Pointer(&tx)))
	got.raw("clock_adjtime", unix.SYS_CLOCK_ADJTIME, 0, uintptr(unsafe.Pointer(&tx)))
	got.raw("sethostname", unix.SYS_SETHOSTNAME, pointer("evil"), 4)
	got.raw("setdomainname", unix.SYS_SETDOMAINNAME, pointer("evil"), 4)
	got.raw("reboot", unix.SYS_REBOOT, 0, 0, 0, 0)
	got.raw("swapon", unix.SYS_SWAPON, pointer("/tmp"), 0)
	got.raw("syslog", unix.SYS_SYSLOG, 10, 0, 0) // the size of the log
	got.raw("init_module", unix.SYS_INIT_MODULE, 0, 0, 0)
	got.raw("kexec_load", unix.SYS_KEXEC_LOAD, 0, 0, 0, 0)
	got.raw("acct", unix.SYS_ACCT, 0)
	got.raw("quotactl", unix.SYS_QUOTACTL, 0, 0, 0, 0)
	for _, name := range []string{"kernel/hostname", "kernel/core_pattern", "user/max_user_namespaces", "vm/drop_caches"} {
		got.err("write "+name, os.WriteFile("/proc/sys/"+name, []byte("1"), 0))
	}
}

func deviceCalls(got tries, _ []string) {
	device := int(unix.Mkdev(1, 3)) // null, which is harmless where it works
	got.err("make block device", unix.Mknod("/tmp/block", unix.S_IFBLK|0o600, int(unix.Mkdev(254, 0))))
	got.err("make character device", unix.Mknod("/tmp/character", unix.S_IFCHR|0o600, device))
	got.err("make device in workspace", unix.Mknod("made", unix.S_IFCHR|0o600, device))
	got.err("make socket", unix.Mknod("/tmp/socket", unix.S_IFSOCK|0o600, 0))
	if _, err := os.Lstat("device"); err == nil {
		_, err := unix.Open("device", unix.O_RDWR, 0)
		got.err("open device", err)
	}
	// What the view's own devices are for, and no more.
	fd, err := unix.Open("/dev/urandom", unix.O_RDWR, 0)
	got.err("open urandom", err)
	if err == nil {
		got.raw("talk to urandom", unix.SYS_IOCTL, uintptr(fd), unix.RNDGETENTCNT, uintptr(unsafe.Pointer(new(int32))))
	}
}

// rightCalls says what this process has: user, capabilities, no_new_privs, and
// mounts that would give more.
func rightCalls(got tries, _ []string) {
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		panic(err)
	}
	for line := range strings.Lines(string(status)) {
		switch key, value, _ := strings.Cut(line, ":"); key {
		case "Uid", "CapPrm", "CapEff", "NoNewPrivs":
			got[key] = strings.TrimSpace(value)
		}
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		panic(err)
	}
	for line := range strings.Lines(string(mounts)) {
		if f := strings.Fields(line); len(f) > 5 && !strings.Contains(","+f[5]+",", ",nosuid,") {
			got["mount "+f[4]] = f[5]
		}
	}
}

// elsewhere executes a copy of this program in /tmp, which tries the same.
func elsewhere(got tries, args []string) {
	if len(args) > 1 {
		_, err := os.ReadFile(args[0])
		got.err("sentinel", err)
		got.raw("mount", unix.SYS_MOUNT)
		got.raw("unix socket", unix.SYS_SOCKET, unix.AF_UNIX, unix.SOCK_STREAM, 0)
		got.raw("ring", unix.SYS_IO_URING_SETUP)
		got.raw("trace", unix.SYS_PTRACE, unix.PTRACE_SEIZE, 1)
		got.raw("memory file", unix.SYS_MEMFD_CREATE, pointer("m"), 0)
		rightCalls(got, nil)
		return
	}
	self, err := os.Open("/proc/self/exe")
	if err != nil {
		panic(err)
	}
	there, err := os.OpenFile("/tmp/elsewhere", os.O_CREATE|os.O_WRONLY|os.O_EXCL, 0o755)
	if err != nil {
		panic(err)
	}
	if _, err := io.Copy(there, self); err != nil {
		panic(err)
	}
	there.Close()
	out, err := exec.Command("/tmp/elsewhere", hostileArg, "calls", "elsewhere", args[0], "there").Output()
	if err != nil {
		panic(err)
	}
	if err := json.Unmarshal(out, &got); err != nil {
		panic(err)
	}
}
