// Package sandbox turns a Spec into one confined process group and a Report of
// the confinement that was read back from it.
//
// Its nouns: a Spec says exactly what the program may see and do; a Process is
// the running turn; a Result says how it ended, what was captured and whether
// the whole process group is proven gone; a Report says what confinement was
// achieved, as observed from the live process and never as intended.
//
// Start is called by the execution owner, from any goroutine. This binary
// executes itself once: the caller is the supervisor; init is the first process
// of new user, mount, PID, network, IPC, UTS and cgroup namespaces, builds a
// view from nothing and reaps. It, and what every view shows, can be had before
// the Spec is known (Prepare). The leaf is a clone of a thread of init that gave
// up every right; it waits for Release and becomes the program. So Reexec must be
// the first statement of main, and package-level initialisation must be cheap,
// here and in what this package imports. Nothing here is durable: the
// caller stores the Identity before Release and asks Gone after a crash. When
// the supervisor dies, however it dies, the group dies with it.
//
// The view holds the system directories, a few files of /etc, and what the
// Spec names, each at its real path; /tmp, HOME (/run/home) and /dev/shm are
// private memory. As root the program never has the host's root: it is user
// 200000+Slot, and every bind is mapped so that files keep the owner on the
// disk that the top of the bind has; files of other owners are read-only.
//
// The network is none, the host's, or an allow list: then the way out is a proxy
// (package proxy) that the supervisor runs for the life of the turn, on a
// listener that init made inside and passed out, and Result.Egress says what it
// was asked.
//
// # Limitations
//
// Linux 5.12 or later, with user namespaces; as root the filesystems of all
// binds must support idmapped mounts (ext4, xfs, btrfs, tmpfs from 6.3).
// On macOS the same is tried with a profile of sandbox-exec and a scan for what
// is left, by code that was never run on a Mac: nothing about it is verified.
// Elsewhere, and where the outer /proc is masked as in many containers, Start
// returns ErrNotEnforceable; only a turn that reads, of a Spec that says
// Degraded, runs with Landlock and the filter alone (shared_linux.go). The system call filter
// (package bpf) is always there, for amd64 and arm64; Landlock rules are a second
// layer where the kernel has them in a usable form, from 5.19, and their absence
// is a gap. Programs cannot have Unix sockets except as connected pairs, nor
// netlink without a network, trace each other, make namespaces, or make files in
// memory. Memory, of processes, files in memory and IPC, is added up every 20 ms
// and the workspace measured about once a second, so a turn can be beyond its
// bounds for a moment. A memory cgroup stands a part above the bound where this
// machine gives one: of version 2 where it is delegated, of version 1 as root;
// elsewhere what the kernel keeps for pipes and sockets is not counted. What
// leads out of the workspace before the
// start is refused; what others put there later is not seen. An ordinary user cannot drop
// supplementary groups. Report.Gaps repeats what holds for a turn.
package sandbox

import (
	"errors"
	"os"
	"time"

	"holdfast/sandbox/proxy"
)

// Network is what a turn may reach. The zero value reaches nothing.
type Network uint8

const (
	NetworkNone  Network = iota // a network namespace of its own, loopback down
	NetworkHost                 // the host's network, by explicit grant only
	NetworkAllow                // a network namespace of its own, in which a proxy leads to what Allow lists and nothing else does
)

// GitAccess says how a linked worktree's common Git directory is seen.
type GitAccess uint8

const (
	GitHidden GitAccess = iota // not in the view
	GitRead                    // read-only at its real path
)

// Spec is everything a turn may see and do. What is not named is not there.
// All paths are canonical and absolute; Start opens them without following
// links and refuses where one moved.
type Spec struct {
	Program     string   // canonical path of a regular file
	Arguments   []string // without argv[0]
	Environment []string // exactly these, "NAME=value"; HOME, TMPDIR, PATH and HOLDFAST_* are set by the sandbox
	Stdin       []byte   // what the program reads on standard input, then EOF; nil is /dev/null

	Workspace string // bound at its real path, the working directory
	Write     bool   // whether the workspace may be written; a `.git` pointer file inside stays read-only

	GitDir    string    // the common Git directory ("" where the workspace is no worktree)
	Git       GitAccess // how GitDir is seen
	Read      []string  // further canonical paths, read-only
	Protected []string  // canonical paths that no bind may contain or lie within (the home); the workspace may lie within one

	History    []byte // read-only file named by HOLDFAST_HISTORY; nil omits it
	ReplyLimit int    // bytes of HOLDFAST_REPLY that are collected; 0 gives no reply file

	Network  Network
	Allow    []string // NetworkAllow: name:port or address:port, as proxy.ParseEndpoint takes them, 1 to 64
	Degraded bool     // may run where only weaker confinement is possible; this package refuses it until such a mode exists

	Wall        time.Duration // monotonic; 1 s to 24 h
	Grace       time.Duration // between the polite and the final stop; 0 is 250 ms
	StreamBytes int           // pending bytes kept a stream; surplus is counted and dropped as a Gap
	OutputLimit int64         // stdout bytes delivered after which the turn is stopped; 0 is 2 MiB
	MemoryBytes int64         // memory of all processes, /tmp, HOME, /dev/shm and IPC together, beyond which the turn is ended; RLIMIT_DATA of each is twice that, and at least 256 MiB more; 0 sets none
	DiskBytes   int64         // by how much the files of a writable workspace may grow together, sparse ones by their size; 0 sets no bound
	DiskFiles   int64         // by how many names; 0 sets no bound
	Slot        int           // as root: the workload's uid is 200000+Slot; callers give concurrent turns distinct slots

	// Where these are set, Program and Workspace must lead to this very file and
	// folder, or Start refuses: a path can be replaced after the caller looked at
	// it, and back again before it looks once more. The caller keeps them open until
	// Start has returned.
	ProgramFile, WorkspaceFile *os.File

	outside *proxy.Outside // NetworkAllow: what the proxy finds outside; nil is the machine's own
}

// Stream names which output a chunk came from.
type Stream uint8

const (
	Stdout Stream = iota + 1
	Stderr
)

// Gap is output that was read and dropped, never silently.
type Gap struct {
	Offset int64
	Bytes  int64
}

// Chunk is captured output. Bytes come before Gaps; the next chunk of the
// stream starts at Offset + len(Bytes) + the gaps' bytes.
type Chunk struct {
	Stream Stream
	Offset int64
	Bytes  []byte
	Gaps   []Gap
}

// Identity names the live group so that a recycled pid is never mistaken for it.
type Identity struct {
	PID       int    `json:"pid"`        // init of the PID namespace, as the host sees it
	StartTime uint64 `json:"start_time"` // field 22 of /proc/PID/stat, clock ticks since boot
	BootID    string `json:"boot_id"`
	PIDNS     uint64 `json:"pid_ns"`           // inode of the PID namespace, 0 where there is none; on macOS the mark of the turn's environment
	Shared    bool   `json:"shared,omitempty"` // a degraded turn: it had no PID namespace
}

// Ending says how the program ended. Values are stored: never renumber.
type Ending uint8

const (
	EndingNone    Ending = iota // the program could not be executed; Fault says why
	EndingExit                  // exited by itself; ExitCode holds
	EndingSignal                // ended by a signal nobody here asked for
	EndingTimeout               // the wall clock ran out
	EndingOutput                // OutputLimit reached
	EndingStop                  // Stop was called
	EndingLost                  // init ended without a report: how the program ended is not known
	EndingMemory                // MemoryBytes were exceeded, and everything was killed
	EndingDisk                  // DiskBytes or DiskFiles were exceeded, and everything was killed; the files stay
)

// Cleanup is the proof that nothing is left.
type Cleanup struct {
	Confirmed bool          `json:"confirmed"` // init was waited for and its PID namespace is empty
	Left      int           `json:"left"`      // processes alive when the main one ended, killed since
	Reaped    int           `json:"reaped"`
	Took      time.Duration `json:"took_ns"`
}

// Result is what Wait returns, once.
type Result struct {
	Ending   Ending
	ExitCode *int   // EndingExit only
	Signal   string // EndingSignal only
	Fault    string // what failed inside before the program ran, "" otherwise; carries no prompt or secret
	Elapsed  time.Duration
	Stdout   int64 // bytes produced in all
	Stderr   int64
	Reply    []byte // collected reply file; nil where absent or refused
	ReplyErr string // why a reply file that was there was refused
	Cleanup  Cleanup
	Report   Report
	Egress   *proxy.Record // NetworkAllow: what was reached, and what was tried
}

// Report is the confinement achieved, read back from the live process.
// Its JSON form goes into the evidence as it stands.
type Report struct {
	Mechanism  string            `json:"mechanism"` // "linux-userns" | "darwin-seatbelt" | "linux-landlock"
	Kernel     string            `json:"kernel"`
	Namespaces map[string]uint64 `json:"namespaces"` // name -> inode, only those that differ from the host's
	UIDMap     string            `json:"uid_map"`
	GIDMap     string            `json:"gid_map"`
	Groups     []int             `json:"groups"` // supplementary groups that could not be dropped
	CapEff     string            `json:"cap_eff"`
	CapBnd     string            `json:"cap_bnd"`
	NoNewPrivs bool              `json:"no_new_privs"`
	Seccomp    int               `json:"seccomp"` // /proc status value: 2 is a filter
	// SeccompDigest is the SHA-256 of the system call filter, in hex.
	SeccompDigest string `json:"seccomp_digest"`
	Landlock      int    `json:"landlock"`       // ABI applied, 0 none
	LandlockAsked int    `json:"landlock_asked"` // the newest that this release knows
	// What Landlock refuses but where a rule allows it, and what it scopes, as
	// the kernel's bits.
	LandlockFiles uint64 `json:"landlock_files"`
	LandlockNet   uint64 `json:"landlock_net"`
	LandlockScope uint64 `json:"landlock_scope"`

	Mounts  string            `json:"mounts"` // sha256 of mountinfo
	Rlimits map[string]uint64 `json:"rlimits"`
	Network string            `json:"network"` // "netns-no-lo" | "netns-lo-proxy" | "host" | "seatbelt-deny" | "seccomp-sockets"
	Files   []string          `json:"files"`   // descriptors open in the leaf at exec
	Gaps    []string          `json:"gaps"`    // what is not enforced, in plain words

	Memory      string `json:"memory"`      // what holds MemoryBytes: "data-limit+sampler" | "data-limit", with "memcg+" before it where a cgroup does too; "" where there is none
	Descendants string `json:"descendants"` // what accounts for every process: "pidns" | "pgrp-scan" | "subreaper"
}

// Capability says what this machine can enforce, found by trying.
type Capability struct {
	Mechanism string   `json:"mechanism"` // "" where nothing can be enforced
	Degraded  bool     `json:"degraded"`  // whether a turn with Spec.Degraded that only reads can run all the same
	Checks    []Check  `json:"checks"`
	Gaps      []string `json:"gaps"`
}

// Check is one forbidden act that the probe tried.
type Check struct {
	Name   string `json:"name"`
	OK     bool   `json:"ok"`
	Detail string `json:"detail"`
	Fix    string `json:"fix"`
}

var (
	// ErrNotEnforceable is returned when this machine cannot confine the Spec
	// as asked. Nothing ran; the message says what would make it work.
	ErrNotEnforceable = errors.New("sandbox not enforceable")
	// ErrSpec is returned when the Spec is out of bounds or names something
	// that moved, is missing or overlaps Protected. Nothing ran.
	ErrSpec = errors.New("sandbox spec refused")
)
