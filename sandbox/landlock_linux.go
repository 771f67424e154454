package sandbox

import (
	"errors"
	"fmt"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

// landlocked is the Landlock domain that a thread went into.
type landlocked struct {
	Kernel int    `json:"kernel"` // the kernel's ABI, 0 where it has none
	ABI    int    `json:"abi"`    // the ABI that the domain was made with, 0 where there is none
	Files  uint64 `json:"files"`  // LANDLOCK_ACCESS_FS_* that are refused but where a rule allows them
	Net    uint64 `json:"net"`    // LANDLOCK_ACCESS_NET_*, likewise
	Scope  uint64 `json:"scope"`  // LANDLOCK_SCOPE_*
}

// landlockNewest is the newest ABI that the rules were written for; a kernel
// with a newer one keeps it. With the first ABI no file can be moved between
// directories at all, which no program expects, so there it is as if there
// were none.
const (
	landlockNewest = 10
	landlockOldest = 2
)

// landlockSteps is what each ABI can handle beyond the one before it. The first
// counts from 0x1 to MAKE_SYM; 7 and 8 are about logs and threads.
var landlockSteps = [landlockNewest]landlocked{
	{Files: unix.LANDLOCK_ACCESS_FS_MAKE_SYM<<1 - 1},
	{Files: unix.LANDLOCK_ACCESS_FS_REFER},
	{Files: unix.LANDLOCK_ACCESS_FS_TRUNCATE},
	{Net: unix.LANDLOCK_ACCESS_NET_BIND_TCP | unix.LANDLOCK_ACCESS_NET_CONNECT_TCP},
	{Files: unix.LANDLOCK_ACCESS_FS_IOCTL_DEV},
	{Scope: unix.LANDLOCK_SCOPE_ABSTRACT_UNIX_SOCKET | unix.LANDLOCK_SCOPE_SIGNAL},
	{},
	{},
	{Files: unix.LANDLOCK_ACCESS_FS_RESOLVE_UNIX},
	{Net: unix.LANDLOCK_ACCESS_NET_BIND_UDP | unix.LANDLOCK_ACCESS_NET_CONNECT_SEND_UDP},
}

// handled is what a domain of this plan refuses unless a rule allows it, on a
// kernel with this ABI.
func handled(kernel int, p plan) landlocked {
	h := landlocked{Kernel: kernel}
	if kernel < landlockOldest {
		return h
	}
	h.ABI = min(kernel, landlockNewest)
	for _, step := range landlockSteps[:h.ABI] {
		h.Files |= step.Files
		h.Net |= step.Net
		h.Scope |= step.Scope
	}
	if p.HostNet {
		h.Net = 0 // the whole network was granted
	}
	return h
}

// Rights of rules. Making devices and sockets is in none, nor is talking to a
// device beyond reading and writing it.
const (
	landlockRead = unix.LANDLOCK_ACCESS_FS_EXECUTE | unix.LANDLOCK_ACCESS_FS_READ_FILE | unix.LANDLOCK_ACCESS_FS_READ_DIR
	landlockEdit = unix.LANDLOCK_ACCESS_FS_WRITE_FILE | unix.LANDLOCK_ACCESS_FS_TRUNCATE

	landlockWrite = landlockRead | landlockEdit | unix.LANDLOCK_ACCESS_FS_REFER |
		unix.LANDLOCK_ACCESS_FS_REMOVE_FILE | unix.LANDLOCK_ACCESS_FS_REMOVE_DIR |
		unix.LANDLOCK_ACCESS_FS_MAKE_REG | unix.LANDLOCK_ACCESS_FS_MAKE_DIR |
		unix.LANDLOCK_ACCESS_FS_MAKE_SYM | unix.LANDLOCK_ACCESS_FS_MAKE_FIFO

	// landlockFile is what a rule about a file rather than a directory may say.
	landlockFile = landlockEdit | unix.LANDLOCK_ACCESS_FS_EXECUTE | unix.LANDLOCK_ACCESS_FS_READ_FILE
)

// fileRule allows rights under a path of the view.
type fileRule struct {
	path     string
	rights   uint64
	optional bool // where the path is missing or a link, there is nothing to allow
	follow   bool // the path is a link that the kernel makes
}

// fileRules are what a plan may do with files, all in all: they repeat what the
// view holds, so that neither a hole in the view nor a descriptor from outside of
// it leads to more. Only names are free everywhere. Rules cannot take a file out
// of a directory again, so the .git pointer, and read-only binds in the workspace
// or in /tmp, stay the mounts' business.
func fileRules(p plan) []fileRule {
	if p.shared() {
		return sharedRules(p)
	}
	rules := []fileRule{
		{path: "/", rights: unix.LANDLOCK_ACCESS_FS_READ_DIR},
		{path: "/etc", rights: landlockRead},
		{path: "/run", rights: landlockRead},
		// One's own processes: their names, their scores, their memory. The rest
		// of /proc is read-only by mount, or root's.
		{path: "/proc", rights: landlockRead | landlockEdit},
		{path: "/dev/shm", rights: landlockWrite},
		{path: tmpDir, rights: landlockWrite},
		{path: homeDir, rights: landlockWrite},
	}
	for _, root := range systemRoots {
		rules = append(rules, fileRule{path: root, rights: landlockRead, optional: true})
	}
	for _, name := range deviceFiles {
		rules = append(rules, fileRule{path: "/dev/" + name, optional: true,
			rights: unix.LANDLOCK_ACCESS_FS_READ_FILE | unix.LANDLOCK_ACCESS_FS_WRITE_FILE})
	}
	if p.Reply > 0 {
		rules = append(rules, fileRule{path: replyDir, rights: landlockWrite})
	}
	for _, s := range p.Sources {
		rights := uint64(landlockRead)
		if s.Write {
			rights = landlockWrite
		}
		if !s.Dir {
			rights &= landlockFile
		}
		rules = append(rules, fileRule{path: string(s.Path), rights: rights})
	}
	if p.Self { // the probe's binary is not in the view
		rules = append(rules, fileRule{path: "/proc/self/exe", rights: landlockRead & landlockFile, follow: true})
	}
	return rules
}

// landlockKernel is the ABI of this kernel's Landlock, 0 where it is not built
// in or was switched off at boot.
func landlockKernel() int {
	abi, _, errno := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, 0, 0, unix.LANDLOCK_CREATE_RULESET_VERSION)
	if errno != 0 {
		return 0
	}
	return int(abi)
}

// enterLandlock puts this thread into a domain of its own, for good, where the
// kernel has Landlock. It has no way to be read back, so it is tried: an act
// that nothing else forbids must be refused afterwards.
func enterLandlock(p plan) (landlocked, error) {
	if !on(layerLandlock) {
		return landlocked{}, nil
	}
	h := handled(landlockKernel(), p)
	if h.ABI == 0 {
		return h, nil
	}
	set, err := h.rules(fileRules(p))
	if err != nil {
		return landlocked{}, err
	}
	defer unix.Close(set)
	if err := allowProxy(set, h, p.ProxyPort); err != nil {
		return landlocked{}, err
	}
	if _, _, errno := unix.Syscall(unix.SYS_LANDLOCK_RESTRICT_SELF, uintptr(set), 0, 0); errno != 0 {
		return landlocked{}, fmt.Errorf("enter Landlock rules: %w", errno)
	}
	return h, landlockHolds(p)
}

// rules makes a set of rules about what h handles, which the caller closes.
func (h landlocked) rules(files []fileRule) (int, error) {
	attr := unix.LandlockRulesetAttr{Handled_access_fs: h.Files, Handled_access_net: h.Net, Scoped: h.Scope}
	// An older kernel takes a longer structure as long as what it does not know
	// in it is zero.
	set, _, errno := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, uintptr(unsafe.Pointer(&attr)), unsafe.Sizeof(attr), 0)
	if errno != 0 {
		return -1, fmt.Errorf("make Landlock rules: %w", errno)
	}
	for _, r := range files {
		if err := r.add(int(set), h.Files); err != nil {
			unix.Close(int(set))
			return -1, err
		}
	}
	return int(set), nil
}

// landlockRulePort is LANDLOCK_RULE_NET_PORT, which x/sys has no name for.
const landlockRulePort = 2

// allowProxy lets the turn connect to the one port that leads out; 0: to none.
func allowProxy(set int, h landlocked, port int) error {
	if port == 0 || h.Net&unix.LANDLOCK_ACCESS_NET_CONNECT_TCP == 0 {
		return nil
	}
	to := struct{ allowed, port uint64 }{unix.LANDLOCK_ACCESS_NET_CONNECT_TCP, uint64(port)} // landlock_net_port_attr
	_, _, errno := unix.Syscall6(unix.SYS_LANDLOCK_ADD_RULE, uintptr(set), landlockRulePort,
		uintptr(unsafe.Pointer(&to)), 0, 0, 0)
	runtime.KeepAlive(&to)
	if errno != 0 {
		return fmt.Errorf("allow the proxy's port: %w", errno)
	}
	return nil
}

func (r fileRule) add(set int, handled uint64) error {
	flags := unix.O_PATH | unix.O_CLOEXEC
	if !r.follow {
		flags |= unix.O_NOFOLLOW
	}
	fd, err := unix.Open(r.path, flags, 0)
	if errors.Is(err, unix.ENOENT) && r.optional {
		return nil
	}
	if err != nil {
		return fmt.Errorf("allow %s: %w", r.path, err)
	}
	defer unix.Close(fd)
	under := unix.LandlockPathBeneathAttr{Allowed_access: r.rights & handled, Parent_fd: int32(fd)}
	_, _, errno := unix.Syscall6(unix.SYS_LANDLOCK_ADD_RULE, uintptr(set), unix.LANDLOCK_RULE_PATH_BENEATH,
		uintptr(unsafe.Pointer(&under)), 0, 0, 0)
	runtime.KeepAlive(&under)
	if errno == unix.EINVAL && r.optional {
		return nil // a link, which leads to a place with a rule of its own
	}
	if errno == unix.EBADFD && r.follow {
		return nil // a file in memory, on which there are no rules
	}
	if errno != 0 {
		return fmt.Errorf("allow %s: %w", r.path, errno)
	}
	return nil
}

// landlockHolds tries what only the domain refuses: a socket's node in /tmp.
// Its scope is tried by the program's process: the threads of one process may
// always signal each other.
func landlockHolds(p plan) error {
	node := tmpDir + "/.holdfast"
	if p.shared() {
		node = p.inScratch(scratchTmp) + "/.holdfast"
	}
	if err := unix.Mknod(node, unix.S_IFSOCK|0o600, 0); !errors.Is(err, unix.EACCES) {
		unix.Unlink(node)
		return notEnforceable(fmt.Sprintf("Landlock rules were taken but do not hold: a forbidden act gave %v", err), nil)
	}
	return nil
}

// landlockGaps says what is missing where this kernel's Landlock is of no use.
func landlockGaps(r Report) []string {
	if r.Landlock > 0 {
		return nil
	}
	return []string{"no Landlock rules on this kernel (they need 5.19 or later, and to be on at boot): only the mount view limits files"}
}
