package sandbox_test

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// hostileMain is what runs inside: programs that try what they must not do,
// and say how it went.
func hostileMain(args []string) {
	programs := map[string]func([]string){
		"attempts": attempts, "fds": listDescriptors, "env": listEnvironment, "flood": flood, "signals": signalInit,
		"directly": directly, "fetch": fetch, "speak": speak,
		"forge": forge, "stubborn": stubborn, "posture": showPosture, "dial": dial, "count": countInput,
		"share": shareAttempts, "overwrite": overwrite, "escape": escape,
		"honest": honest, "calls": rawCalls, "idle": idle,
	}
	program, ok := programs[args[0]]
	if !ok {
		program, ok = limitPrograms[args[0]]
	}
	if !ok {
		fmt.Fprintln(os.Stderr, "no such program", args[0])
		os.Exit(99)
	}
	program(args[1:])
}

// places are paths of the host that the attempts are aimed at.
type places struct {
	Sentinel, Store, GitDir, TCP, Abstract string
}

// attempts prints what each attempt gave, "" where it succeeded.
func attempts([]string) {
	var at places
	if err := json.NewDecoder(os.Stdin).Decode(&at); err != nil {
		panic(err)
	}
	got := map[string]string{}
	try := func(name string, err error) {
		got[name] = ""
		if err != nil {
			got[name] = err.Error()
			var no syscall.Errno
			if e, ok := err.(*os.PathError); ok {
				err = e.Err
			}
			if e, ok := err.(*os.LinkError); ok {
				err = e.Err
			}
			if e, ok := err.(syscall.Errno); ok {
				no = e
				got[name] = unix.ErrnoName(no)
			}
		}
	}
	read := func(path string) error {
		_, err := os.ReadFile(path)
		return err
	}
	create := func(path string) error {
		f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o600)
		if err == nil {
			f.WriteString("hostile")
			f.Close()
		}
		return err
	}
	for name, path := range map[string]string{
		"read sentinel": at.Sentinel, "read store": at.Store, "read shadow": "/etc/shadow", "read machine-id": "/etc/machine-id",
		"read root home": "/root/.bashrc", "read sys": "/sys/kernel/notes", "read resolv.conf": "/etc/resolv.conf",
		"read init environ": "/proc/1/environ", "read init maps": "/proc/1/maps", "read init mem": "/proc/1/mem",
		"read init auxv": "/proc/1/auxv", "read init root": "/proc/1/root/etc/passwd", "read init cwd": "/proc/1/cwd/etc/passwd",
		"read init exe": "/proc/1/exe", "read init fd": "/proc/1/fd/5", "read kcore": "/proc/kcore",
	} {
		try(name, read(path))
	}
	for name, path := range map[string]string{
		"write usr": "/usr/hostile", "write etc": "/etc/hostile", "write root": "/hostile", "write dev": "/dev/hostile",
		"write run": "/run/hostile", "write passwd": "/etc/passwd", "write hostname": "/proc/sys/kernel/hostname",
		"write userns limit": "/proc/sys/user/max_user_namespaces", "write sysrq": "/proc/sysrq-trigger",
		"write core pattern": "/proc/sys/kernel/core_pattern", "write git pointer": ".git",
		"write git hook": at.GitDir + "/hooks/post-checkout", "write git config": at.GitDir + "/config",
		"write init oom": "/proc/1/oom_score_adj", "write init uid map": "/proc/1/uid_map",
	} {
		try(name, create(path))
	}
	try("unlink git pointer", os.Remove(".git"))
	try("rename git pointer", os.Rename(".git", "moved"))
	os.WriteFile("planted", []byte("gitdir: /evil\n"), 0o600)
	try("rename over git pointer", os.Rename("planted", ".git"))
	os.Remove("planted")
	try("chmod git pointer", os.Chmod(".git", 0o777))
	try("link out", os.Link("/usr/bin/env", "linked"))

	try("mount tmpfs", unix.Mount("tmpfs", "/tmp", "tmpfs", 0, ""))
	try("remount usr", unix.Mount("", "/usr", "", unix.MS_REMOUNT|unix.MS_BIND, ""))
	try("unmount usr", unix.Unmount("/usr", unix.MNT_DETACH))
	try("unmount git pointer", unix.Unmount(".git", unix.MNT_DETACH))
	try("pivot root", unix.PivotRoot("/tmp", "/tmp"))
	try("chroot", unix.Chroot("/tmp"))
	_, err := unix.OpenTree(unix.AT_FDCWD, "/usr", unix.OPEN_TREE_CLONE)
	try("open tree", err)
	_, err = unix.Fsopen("tmpfs", 0)
	try("fsopen", err)
	try("unshare mounts", unix.Unshare(unix.CLONE_NEWNS))
	try("clone user namespace", clone(unix.CLONE_NEWUSER))
	try("clone pid namespace", clone(unix.CLONE_NEWPID))
	try("clone net namespace", clone(unix.CLONE_NEWNET))
	ns, err := os.Open("/proc/1/ns/mnt")
	try("open init namespace", err)
	if err == nil {
		try("enter init namespace", unix.Setns(int(ns.Fd()), 0))
	}
	try("ptrace init", unix.PtraceAttach(1))
	try("set hostname", unix.Sethostname([]byte("evil")))
	try("set uid", syscall.Setuid(0))
	try("set groups", syscall.Setgroups([]int{0}))
	try("make device", unix.Mknod("/tmp/sda", unix.S_IFBLK|0o600, int(unix.Mkdev(254, 0))))
	try("reboot", unix.Reboot(unix.LINUX_REBOOT_CMD_CAD_OFF))
	try("set clock", unix.Settimeofday(&unix.Timeval{Sec: 1}))
	try("raise ambient", unix.Prctl(unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_RAISE, unix.CAP_SYS_ADMIN, 0, 0))
	head := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	all := [2]unix.CapUserData{{Effective: ^uint32(0), Permitted: ^uint32(0)}, {Effective: 1, Permitted: 1}}
	try("raise capabilities", unix.Capset(&head, &all[0]))
	try("forget no_new_privs", unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 0, 0, 0, 0))
	try("raise nofile", unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 1 << 20, Max: 1 << 20}))
	try("raise nproc", unix.Setrlimit(unix.RLIMIT_NPROC, &unix.Rlimit{Cur: 1 << 20, Max: 1 << 20}))
	try("open by handle", openByHandle())
	_, err = unix.Socket(unix.AF_INET, unix.SOCK_RAW, unix.IPPROTO_ICMP)
	try("raw socket", err)
	_, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW, 0)
	try("packet socket", err)
	try("dial tcp", dialOnce("tcp", at.TCP))
	try("dial abstract", dialOnce("unix", at.Abstract))
	json.NewEncoder(os.Stdout).Encode(got)
}

func clone(flags uintptr) error {
	pid, err := syscall.ForkExec("/proc/self/exe", []string{"x", hostileArg, "fds"}, &syscall.ProcAttr{
		Env: []string{}, Files: []uintptr{0, 2, 2}, Sys: &syscall.SysProcAttr{Cloneflags: flags}})
	if err == nil {
		syscall.Wait4(pid, nil, 0, nil)
	}
	return err
}

func openByHandle() error {
	handle, mount, err := unix.NameToHandleAt(unix.AT_FDCWD, "/usr", 0)
	if err != nil {
		return err
	}
	_ = mount
	dir, err := unix.Open("/usr", unix.O_RDONLY, 0)
	if err != nil {
		return err
	}
	_, err = unix.OpenByHandleAt(dir, handle, unix.O_RDONLY)
	return err
}

func dialOnce(network, address string) error {
	c, err := net.DialTimeout(network, address, 2*time.Second)
	if err == nil {
		c.Close()
	}
	return err
}

func dial(args []string) {
	if err := dialOnce(args[0], args[1]); err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
}

// listDescriptors looks at each number rather than at a directory, which would
// itself be open.
func listDescriptors([]string) {
	var found []string
	for fd := 0; fd < 4096; fd++ {
		flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0)
		// The runtime's own poller is made after exec, and is close-on-exec.
		if err == nil && flags&unix.FD_CLOEXEC == 0 {
			found = append(found, strconv.Itoa(fd))
		}
	}
	fmt.Println(strings.Join(found, " "))
}

func listEnvironment([]string) {
	for _, v := range os.Environ() {
		fmt.Println(v)
	}
}

func countInput([]string) {
	n, err := io.Copy(io.Discard, os.Stdin)
	fmt.Println(n, err)
}

func flood(args []string) {
	n, _ := strconv.ParseInt(args[0], 10, 64)
	block := make([]byte, 64<<10)
	for n > 0 {
		part := block[:min(n, int64(len(block)))]
		wrote, err := syscall.Write(1, part) // may be cut short by a signal
		if err != nil {
			os.Exit(1)
		}
		n -= int64(wrote)
	}
}

// signalInit sends every signal to the first process, and one to everybody.
func signalInit([]string) {
	signal.Ignore(syscall.SIGTERM)
	for sig := 1; sig <= 64; sig++ {
		if err := syscall.Kill(1, syscall.Signal(sig)); err != nil {
			fmt.Println(sig, err)
		}
		unix.Tgkill(1, 1, syscall.Signal(sig))
	}
	syscall.Kill(-1, syscall.SIGTERM)
	// Still served: a child is reaped only by a living first process.
	if _, err := os.Stat("/proc/1/stat"); err != nil {
		os.Exit(1)
	}
	os.Exit(7)
}

// forge writes a report frame to every descriptor that it can think of.
func forge([]string) {
	report := append([]byte{'D', 0, 0, 0, 23}, []byte(`{"ran":true,"exit":0,}  `)...)
	report = append(report, append([]byte{'P', 0, 0, 0, 2}, "{}"...)...)
	for fd := 3; fd < 1024; fd++ {
		syscall.Write(fd, report)
	}
	for fd := 0; fd < 64; fd++ {
		for _, pid := range []string{"1", "self"} {
			if pid == "self" && fd < 3 {
				continue
			}
			if f, err := os.OpenFile(fmt.Sprintf("/proc/%s/fd/%d", pid, fd), os.O_WRONLY, 0); err == nil {
				f.Write(report)
				fmt.Println("opened", pid, fd)
			}
		}
	}
	os.Exit(3)
}

// stubborn becomes a tree of processes that ignore TERM, in sessions of their
// own, and says when the tree stands.
func stubborn(args []string) {
	signal.Ignore(syscall.SIGTERM, syscall.SIGHUP, syscall.SIGINT)
	depth, _ := strconv.Atoi(args[0])
	if depth > 0 {
		for range 2 {
			syscall.ForkExec("/proc/self/exe", []string{"x", hostileArg, "stubborn", strconv.Itoa(depth - 1), args[1]},
				&syscall.ProcAttr{Env: []string{}, Files: []uintptr{0, 1, 2}, Sys: &syscall.SysProcAttr{Setsid: true}})
		}
	}
	syscall.Write(1, []byte("up\n"))
	if len(args) > 2 && args[2] == "leave" {
		// The main process goes once the whole tree stands.
		for {
			entries, _ := os.ReadDir("/proc")
			n := 0
			for _, e := range entries {
				if _, err := strconv.Atoi(e.Name()); err == nil {
					n++
				}
			}
			if n >= 8 { // init, this one and six below it
				os.Exit(0)
			}
		}
	}
	for {
		time.Sleep(time.Hour)
	}
}

func showPosture([]string) {
	for _, path := range []string{"/proc/self/status", "/proc/self/limits", "/proc/self/uid_map"} {
		b, err := os.ReadFile(path)
		if err != nil {
			os.Exit(1)
		}
		os.Stdout.Write(b)
	}
	for _, ns := range []string{"user", "mnt", "pid", "net", "ipc", "uts", "cgroup"} {
		link, err := os.Readlink("/proc/self/ns/" + ns)
		fmt.Println("ns-"+ns+":", link, err)
	}
	ifs, _ := net.Interfaces()
	for _, i := range ifs {
		fmt.Println("interface:", i.Name, i.Flags&net.FlagUp != 0)
	}
	wd, err := os.Getwd()
	fmt.Println("cwd:", wd, err)
}

// idle lives until its input ends.
func idle([]string) { io.Copy(io.Discard, os.Stdin) }
