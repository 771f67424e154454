package bpf

// Grant is what a turn may do beyond the common policy.
type Grant uint8

const (
	// Sockets: the turn has a network, its own or the host's.
	Sockets Grant = 1 << iota
	// MemoryFiles: a memory cgroup counts files in memory.
	MemoryFiles
	// Shared: the turn has no namespaces, so it is the host's user among the
	// host's processes and files. This grants nothing and refuses more.
	Shared
)

// Row refuses one system call. The first row that fits a call decides; a call
// that no row fits is allowed.
type Row struct {
	Name  string
	AMD64 int // number, or none
	ARM64 int

	Verdict Verdict
	Reason  string
	When    []Condition // all must hold; none: always

	With    Grant // the row stands only where all of these are granted
	Without Grant // and only where none of these is
}

// none is the number of a call that an architecture does not have.
const none = -1

// Condition looks at the low 32 bits of one argument.
type Condition struct {
	Arg  int
	Mask uint32
	In   []uint32 // the masked argument is one of these
	Not  bool     // or is none of them
}

func in(arg int, values ...uint32) Condition {
	return Condition{Arg: arg, Mask: ^uint32(0), In: values}
}

func notIn(arg int, values ...uint32) Condition {
	return Condition{Arg: arg, Mask: ^uint32(0), In: values, Not: true}
}

// Numbers in arguments.
const (
	flagsSet, attributesSet, verityEnable = 0x40086602, 0x401c5820, 0x40806685 // FS_IOC_SETFLAGS, FS_IOC_FSSETXATTR, FS_IOC_ENABLE_VERITY

	familyUnix, familyInet, familyInet6, familyNetlink = 1, 2, 10, 16

	socketKind                                    = 0xf // of a socket's type, besides its flags
	kindStream, kindDatagram, kindSequence        = 1, 2, 5
	protocolAny, protocolTCP, protocolUDP         = 0, 6, 17
	netlinkRoute                                  = 0
	typeInTerminal, terminalSelection             = 0x5412, 0x541c // TIOCSTI, TIOCLINUX
	personalityLinux, personalityRead      uint32 = 0, 0xffffffff

	// namespaceFlags are CLONE_NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID
	// and NEWNET. CLONE_NEWTIME lies where clone has the signal, so only
	// unshare and clone3 take it.
	namespaceFlags = 0x00020000 | 0x02000000 | 0x04000000 | 0x08000000 | 0x10000000 | 0x20000000 | 0x40000000
)

// Reasons that several rows share.
const (
	whyMount   = "the view is fixed before the program runs"
	whyRoot    = "another root would be another view"
	whySpace   = "further namespaces bring back rights over them"
	whyOther   = "reaches into another process"
	whyRing    = "does what other calls do, past this filter"
	whyHandle  = "opens files by number, past every path"
	whyClock   = "the clock is the machine's"
	whyName    = "the name was set for the turn"
	whyMachine = "administers the machine"
	whyModule  = "changes the kernel"
	whyKeys    = "keys are kept by user, not by namespace"
	whyNodes   = "moves memory of others between nodes; large in the kernel and of little use"
	whyOld     = "of no use to a program; large in the kernel or gone from it"
	whyFamily  = "only the internet families are granted with a network, and none without"
	whyMark    = "marks files that can be seen and not written; no other layer refuses it"
	whyAmong   = "reaches into a process of the same user"
	whyIPC     = "shared memory and queues are the machine's"
	whyKind    = "raw and exotic sockets leave every rule on ports and hosts"
)

// Rows is the whole policy.
func Rows() []Row { return policy }

var policy = []Row{
	{Name: "mount", AMD64: 165, ARM64: 40, Verdict: EPERM, Reason: whyMount},
	{Name: "umount2", AMD64: 166, ARM64: 39, Verdict: EPERM, Reason: whyMount},
	{Name: "fsopen", AMD64: 430, ARM64: 430, Verdict: EPERM, Reason: whyMount},
	{Name: "fsconfig", AMD64: 431, ARM64: 431, Verdict: EPERM, Reason: whyMount},
	{Name: "fsmount", AMD64: 432, ARM64: 432, Verdict: EPERM, Reason: whyMount},
	{Name: "fspick", AMD64: 433, ARM64: 433, Verdict: EPERM, Reason: whyMount},
	{Name: "open_tree", AMD64: 428, ARM64: 428, Verdict: EPERM, Reason: whyMount},
	{Name: "open_tree_attr", AMD64: 467, ARM64: 467, Verdict: EPERM, Reason: whyMount},
	{Name: "move_mount", AMD64: 429, ARM64: 429, Verdict: EPERM, Reason: whyMount},
	{Name: "mount_setattr", AMD64: 442, ARM64: 442, Verdict: EPERM, Reason: whyMount},
	{Name: "pivot_root", AMD64: 155, ARM64: 41, Verdict: EPERM, Reason: whyRoot},
	{Name: "chroot", AMD64: 161, ARM64: 51, Verdict: EPERM, Reason: whyRoot},

	{Name: "unshare", AMD64: 272, ARM64: 97, Verdict: EPERM, Reason: whySpace},
	{Name: "setns", AMD64: 308, ARM64: 268, Verdict: EPERM, Reason: whySpace},
	{Name: "clone", AMD64: 56, ARM64: 220, Verdict: EPERM, Reason: whySpace,
		When: []Condition{{Arg: 0, Mask: namespaceFlags, In: []uint32{0}, Not: true}}},
	{Name: "clone3", AMD64: 435, ARM64: 435, Verdict: ENOSYS, Reason: "has its flags in memory, where no filter can see them; everybody falls back to clone"},
	{Name: "listns", AMD64: 470, ARM64: 470, Verdict: ENOSYS, Reason: whySpace},

	{Name: "ptrace", AMD64: 101, ARM64: 117, Verdict: EPERM, Reason: whyOther},
	{Name: "process_vm_readv", AMD64: 310, ARM64: 270, Verdict: EPERM, Reason: whyOther},
	{Name: "process_vm_writev", AMD64: 311, ARM64: 271, Verdict: EPERM, Reason: whyOther},
	{Name: "kcmp", AMD64: 312, ARM64: 272, Verdict: EPERM, Reason: whyOther},
	{Name: "pidfd_getfd", AMD64: 438, ARM64: 438, Verdict: EPERM, Reason: whyOther},

	{Name: "io_uring_setup", AMD64: 425, ARM64: 425, Verdict: ENOSYS, Reason: whyRing},
	{Name: "io_uring_enter", AMD64: 426, ARM64: 426, Verdict: ENOSYS, Reason: whyRing},
	{Name: "io_uring_register", AMD64: 427, ARM64: 427, Verdict: ENOSYS, Reason: whyRing},
	{Name: "userfaultfd", AMD64: 323, ARM64: 282, Verdict: EPERM, Reason: "holds the kernel in the middle of a call; a tool of attacks on it"},
	{Name: "bpf", AMD64: 321, ARM64: 280, Verdict: EPERM, Reason: whyModule},
	{Name: "perf_event_open", AMD64: 298, ARM64: 241, Verdict: EPERM, Reason: "watches the machine; large in the kernel"},
	{Name: "add_key", AMD64: 248, ARM64: 217, Verdict: EPERM, Reason: whyKeys},
	{Name: "request_key", AMD64: 249, ARM64: 218, Verdict: EPERM, Reason: whyKeys},
	{Name: "keyctl", AMD64: 250, ARM64: 219, Verdict: EPERM, Reason: whyKeys},
	{Name: "name_to_handle_at", AMD64: 303, ARM64: 264, Verdict: EPERM, Reason: whyHandle},
	{Name: "open_by_handle_at", AMD64: 304, ARM64: 265, Verdict: EPERM, Reason: whyHandle},
	{Name: "fanotify_init", AMD64: 300, ARM64: 262, Verdict: EPERM, Reason: whyHandle},

	{Name: "clock_settime", AMD64: 227, ARM64: 112, Verdict: EPERM, Reason: whyClock},
	{Name: "clock_adjtime", AMD64: 305, ARM64: 266, Verdict: EPERM, Reason: whyClock},
	{Name: "adjtimex", AMD64: 159, ARM64: 171, Verdict: EPERM, Reason: whyClock},
	{Name: "settimeofday", AMD64: 164, ARM64: 170, Verdict: EPERM, Reason: whyClock},
	{Name: "sethostname", AMD64: 170, ARM64: 161, Verdict: EPERM, Reason: whyName},
	{Name: "setdomainname", AMD64: 171, ARM64: 162, Verdict: EPERM, Reason: whyName},

	{Name: "swapon", AMD64: 167, ARM64: 224, Verdict: EPERM, Reason: whyMachine},
	{Name: "swapoff", AMD64: 168, ARM64: 225, Verdict: EPERM, Reason: whyMachine},
	{Name: "reboot", AMD64: 169, ARM64: 142, Verdict: EPERM, Reason: whyMachine},
	{Name: "quotactl", AMD64: 179, ARM64: 60, Verdict: EPERM, Reason: whyMachine},
	{Name: "quotactl_fd", AMD64: 443, ARM64: 443, Verdict: EPERM, Reason: whyMachine},
	{Name: "acct", AMD64: 163, ARM64: 89, Verdict: EPERM, Reason: whyMachine},
	{Name: "syslog", AMD64: 103, ARM64: 116, Verdict: EPERM, Reason: "the kernel's log is about the machine and its addresses"},
	{Name: "vhangup", AMD64: 153, ARM64: 58, Verdict: EPERM, Reason: whyMachine},
	{Name: "ioperm", AMD64: 173, ARM64: none, Verdict: EPERM, Reason: whyMachine},
	{Name: "iopl", AMD64: 172, ARM64: none, Verdict: EPERM, Reason: whyMachine},
	{Name: "lsm_set_self_attr", AMD64: 460, ARM64: 460, Verdict: EPERM, Reason: "a security profile is chosen by who starts the turn"},
	{Name: "kexec_load", AMD64: 246, ARM64: 104, Verdict: EPERM, Reason: whyModule},
	{Name: "kexec_file_load", AMD64: 320, ARM64: 294, Verdict: EPERM, Reason: whyModule},
	{Name: "init_module", AMD64: 175, ARM64: 105, Verdict: EPERM, Reason: whyModule},
	{Name: "finit_module", AMD64: 313, ARM64: 273, Verdict: EPERM, Reason: whyModule},
	{Name: "delete_module", AMD64: 176, ARM64: 106, Verdict: EPERM, Reason: whyModule},
	{Name: "create_module", AMD64: 174, ARM64: none, Verdict: ENOSYS, Reason: whyOld},
	{Name: "get_kernel_syms", AMD64: 177, ARM64: none, Verdict: ENOSYS, Reason: whyOld},
	{Name: "query_module", AMD64: 178, ARM64: none, Verdict: ENOSYS, Reason: whyOld},
	{Name: "nfsservctl", AMD64: 180, ARM64: 42, Verdict: ENOSYS, Reason: whyOld},
	{Name: "lookup_dcookie", AMD64: 212, ARM64: 18, Verdict: ENOSYS, Reason: whyOld},
	{Name: "uselib", AMD64: 134, ARM64: none, Verdict: ENOSYS, Reason: whyOld},
	{Name: "_sysctl", AMD64: 156, ARM64: none, Verdict: ENOSYS, Reason: whyOld},
	{Name: "modify_ldt", AMD64: 154, ARM64: none, Verdict: EPERM, Reason: "16-bit segments; a tool of attacks on the kernel"},
	{Name: "personality", AMD64: 135, ARM64: 92, Verdict: EPERM, Reason: "other personalities weaken the layout of memory",
		When: []Condition{notIn(0, personalityLinux, personalityRead)}},

	{Name: "move_pages", AMD64: 279, ARM64: 239, Verdict: EPERM, Reason: whyNodes},
	{Name: "migrate_pages", AMD64: 256, ARM64: 238, Verdict: EPERM, Reason: whyNodes},
	{Name: "mbind", AMD64: 237, ARM64: 235, Verdict: EPERM, Reason: whyNodes},
	{Name: "get_mempolicy", AMD64: 239, ARM64: 236, Verdict: EPERM, Reason: whyNodes},
	{Name: "set_mempolicy", AMD64: 238, ARM64: 237, Verdict: EPERM, Reason: whyNodes},
	{Name: "set_mempolicy_home_node", AMD64: 450, ARM64: 450, Verdict: EPERM, Reason: whyNodes},

	{Name: "ioctl", AMD64: 16, ARM64: 29, Verdict: EPERM, Reason: "types into a terminal for somebody else",
		When: []Condition{in(1, typeInTerminal, terminalSelection)}},

	{Name: "socket", AMD64: 41, ARM64: 198, Verdict: EAFNOSUPPORT, Reason: whyFamily, Without: Sockets},
	{Name: "socket", AMD64: 41, ARM64: 198, Verdict: EAFNOSUPPORT, Reason: whyFamily, With: Sockets,
		When: []Condition{notIn(0, familyInet, familyInet6, familyNetlink)}},
	{Name: "socket", AMD64: 41, ARM64: 198, Verdict: EPROTONOSUPPORT, Reason: "of netlink, programs look addresses and routes up", With: Sockets,
		When: []Condition{in(0, familyNetlink), notIn(2, netlinkRoute)}},
	{Name: "socket", AMD64: 41, ARM64: 198, Verdict: EPERM, Reason: whyKind, With: Sockets,
		When: []Condition{in(0, familyInet, familyInet6), {Arg: 1, Mask: socketKind, In: []uint32{kindStream, kindDatagram}, Not: true}}},
	{Name: "socket", AMD64: 41, ARM64: 198, Verdict: EPROTONOSUPPORT, Reason: whyKind, With: Sockets,
		When: []Condition{in(0, familyInet, familyInet6), {Arg: 1, Mask: socketKind, In: []uint32{kindStream, kindDatagram}},
			notIn(2, protocolAny, protocolTCP, protocolUDP)}},
	{Name: "socketpair", AMD64: 53, ARM64: 199, Verdict: EAFNOSUPPORT, Reason: whyFamily, When: []Condition{notIn(0, familyUnix)}},
	{Name: "socketpair", AMD64: 53, ARM64: 199, Verdict: ESOCKTNOSUPPORT, Reason: "a pair of datagram sockets can be pointed at any socket's path",
		When: []Condition{in(0, familyUnix), {Arg: 1, Mask: socketKind, In: []uint32{kindStream, kindSequence}, Not: true}}},

	{Name: "memfd_create", AMD64: 319, ARM64: 279, Verdict: ENOSYS, Reason: "memory that no process maps escapes a sampler of processes", Without: MemoryFiles},
	{Name: "memfd_secret", AMD64: 447, ARM64: 447, Verdict: ENOSYS, Reason: "memory that nobody can look at or count"},

	{Name: "chmod", AMD64: 90, ARM64: none, Verdict: EPERM, Reason: whyMark, With: Shared},
	{Name: "fchmod", AMD64: 91, ARM64: 52, Verdict: EPERM, Reason: whyMark, With: Shared},
	{Name: "fchmodat", AMD64: 268, ARM64: 53, Verdict: EPERM, Reason: whyMark, With: Shared},
	{Name: "fchmodat2", AMD64: 452, ARM64: 452, Verdict: EPERM, Reason: whyMark, With: Shared},
	{Name: "chown", AMD64: 92, ARM64: none, Verdict: EPERM, Reason: whyMark, With: Shared},
	{Name: "fchown", AMD64: 93, ARM64: 55, Verdict: EPERM, Reason: whyMark, With: Shared},
	{Name: "lchown", AMD64: 94, ARM64: none, Verdict: EPERM, Reason: whyMark, With: Shared},
	{Name: "fchownat", AMD64: 260, ARM64: 54, Verdict: EPERM, Reason: whyMark, With: Shared},
	{Name: "utime", AMD64: 132, ARM64: none, Verdict: EPERM, Reason: whyMark, With: Shared},
	{Name: "utimes", AMD64: 235, ARM64: none, Verdict: EPERM, Reason: whyMark, With: Shared},
	{Name: "futimesat", AMD64: 261, ARM64: none, Verdict: EPERM, Reason: whyMark, With: Shared},
	{Name: "utimensat", AMD64: 280, ARM64: 88, Verdict: EPERM, Reason: whyMark, With: Shared},
	{Name: "setxattr", AMD64: 188, ARM64: 5, Verdict: EPERM, Reason: whyMark, With: Shared},
	{Name: "lsetxattr", AMD64: 189, ARM64: 6, Verdict: EPERM, Reason: whyMark, With: Shared},
	{Name: "fsetxattr", AMD64: 190, ARM64: 7, Verdict: EPERM, Reason: whyMark, With: Shared},
	{Name: "setxattrat", AMD64: 463, ARM64: 463, Verdict: EPERM, Reason: whyMark, With: Shared},
	{Name: "removexattr", AMD64: 197, ARM64: 14, Verdict: EPERM, Reason: whyMark, With: Shared},
	{Name: "lremovexattr", AMD64: 198, ARM64: 15, Verdict: EPERM, Reason: whyMark, With: Shared},
	{Name: "fremovexattr", AMD64: 199, ARM64: 16, Verdict: EPERM, Reason: whyMark, With: Shared},
	{Name: "removexattrat", AMD64: 466, ARM64: 466, Verdict: EPERM, Reason: whyMark, With: Shared},
	{Name: "file_setattr", AMD64: 469, ARM64: 469, Verdict: EPERM, Reason: whyMark, With: Shared},
	{Name: "ioctl", AMD64: 16, ARM64: 29, Verdict: EPERM, Reason: whyMark, With: Shared, When: []Condition{in(1, flagsSet, attributesSet, verityEnable)}},
	{Name: "prlimit64", AMD64: 302, ARM64: 261, Verdict: EPERM, Reason: whyAmong, With: Shared, When: []Condition{notIn(0, 0)}},
	{Name: "sched_setaffinity", AMD64: 203, ARM64: 122, Verdict: EPERM, Reason: whyAmong, With: Shared, When: []Condition{notIn(0, 0)}},
	{Name: "sched_setscheduler", AMD64: 144, ARM64: 119, Verdict: EPERM, Reason: whyAmong, With: Shared, When: []Condition{notIn(0, 0)}},
	{Name: "sched_setparam", AMD64: 142, ARM64: 118, Verdict: EPERM, Reason: whyAmong, With: Shared, When: []Condition{notIn(0, 0)}},
	{Name: "sched_setattr", AMD64: 314, ARM64: 274, Verdict: EPERM, Reason: whyAmong, With: Shared, When: []Condition{notIn(0, 0)}},
	{Name: "setpriority", AMD64: 141, ARM64: 140, Verdict: EPERM, Reason: whyAmong, With: Shared, When: []Condition{notIn(1, 0)}},
	{Name: "setpriority", AMD64: 141, ARM64: 140, Verdict: EPERM, Reason: whyAmong, With: Shared, When: []Condition{notIn(0, 0)}},
	{Name: "ioprio_set", AMD64: 251, ARM64: 30, Verdict: EPERM, Reason: whyAmong, With: Shared, When: []Condition{notIn(1, 0)}},
	{Name: "ioprio_set", AMD64: 251, ARM64: 30, Verdict: EPERM, Reason: whyAmong, With: Shared, When: []Condition{notIn(0, 1)}},
	{Name: "process_madvise", AMD64: 440, ARM64: 440, Verdict: EPERM, Reason: whyAmong, With: Shared},
	{Name: "process_mrelease", AMD64: 448, ARM64: 448, Verdict: EPERM, Reason: whyAmong, With: Shared},
	{Name: "shmget", AMD64: 29, ARM64: 194, Verdict: EPERM, Reason: whyIPC, With: Shared},
	{Name: "shmat", AMD64: 30, ARM64: 196, Verdict: EPERM, Reason: whyIPC, With: Shared},
	{Name: "shmctl", AMD64: 31, ARM64: 195, Verdict: EPERM, Reason: whyIPC, With: Shared},
	{Name: "semget", AMD64: 64, ARM64: 190, Verdict: EPERM, Reason: whyIPC, With: Shared},
	{Name: "semop", AMD64: 65, ARM64: 193, Verdict: EPERM, Reason: whyIPC, With: Shared},
	{Name: "semtimedop", AMD64: 220, ARM64: 192, Verdict: EPERM, Reason: whyIPC, With: Shared},
	{Name: "semctl", AMD64: 66, ARM64: 191, Verdict: EPERM, Reason: whyIPC, With: Shared},
	{Name: "msgget", AMD64: 68, ARM64: 186, Verdict: EPERM, Reason: whyIPC, With: Shared},
	{Name: "msgsnd", AMD64: 69, ARM64: 189, Verdict: EPERM, Reason: whyIPC, With: Shared},
	{Name: "msgrcv", AMD64: 70, ARM64: 188, Verdict: EPERM, Reason: whyIPC, With: Shared},
	{Name: "msgctl", AMD64: 71, ARM64: 187, Verdict: EPERM, Reason: whyIPC, With: Shared},
	{Name: "mq_open", AMD64: 240, ARM64: 180, Verdict: EPERM, Reason: whyIPC, With: Shared},
	{Name: "mq_unlink", AMD64: 241, ARM64: 181, Verdict: EPERM, Reason: whyIPC, With: Shared},
}
