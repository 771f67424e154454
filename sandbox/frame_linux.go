package sandbox

import (
	"errors"
	"fmt"
)

// plan is a Spec after the supervisor resolved and pinned what it names.
type plan struct {
	Program exact   `json:"program"`
	Argv    []exact `json:"argv"`
	Env     []exact `json:"env"`
	Dir     exact   `json:"dir"`
	Self    bool    `json:"self"` // execute this binary in place of Program (the probe)

	ProgramID fileID   `json:"program_id"`
	Sources   []source `json:"sources"`
	Cover     []exact  `json:"cover"` // directories hidden under an empty, read-only tmpfs
	HostNet   bool     `json:"host_net"`
	ProxyPort int      `json:"proxy_port"` // of 127.0.0.1 inside; 0: no proxy
	ProxyFD   int      `json:"proxy_fd"`   // which of the files handed over init passes its listener out by
	// MemoryCgroup: a memory cgroup holds the turn, and counts what no process maps.
	MemoryCgroup bool   `json:"memory_cgroup"`
	Filter       []byte `json:"filter"`  // the system call filter, as the kernel takes it
	Scratch      exact  `json:"scratch"` // the private directory of a turn without namespaces, "" with them
	Others       int    `json:"others"`  // without namespaces: processes that the kernel counts besides the turn's
	History      bool   `json:"history"`
	Reply        int    `json:"reply"`
	Memory       int64  `json:"memory"`
	GraceNS      int64  `json:"grace_ns"`

	Disk     amount `json:"disk"`      // by how much the workspace may grow; zero: it is not measured
	DiskBase amount `json:"disk_base"` // what was in it before
}

// Places among the files that are handed over with a plan.
const (
	fileStdin = iota
	fileGate  // what the program's process waits at
	fileFirst // detached mounts, and init's end of the egress
)

// maxHanded is how many files are handed over at most: the kernel takes 253.
const maxHanded = fileFirst + maxRead + 8

// place puts descriptors where the plan has places among the files that came
// with it.
func (p *plan) place(files []int) error {
	at := func(place *int) error {
		if *place == 0 {
			return nil
		}
		if *place < fileFirst || *place >= len(files) {
			return fmt.Errorf("the plan names file %d of %d", *place, len(files))
		}
		*place = files[*place]
		return nil
	}
	if len(files) < fileFirst {
		return fmt.Errorf("%d files came with the plan", len(files))
	}
	err := at(&p.ProxyFD)
	for i := range p.Sources {
		err = errors.Join(err, at(&p.Sources[i].FD))
	}
	return err
}

// sockets reports whether the program may make internet sockets: where there is
// no network, no socket is of any use.
func (p plan) sockets() bool { return p.HostNet || p.ProxyPort != 0 }

// source is one bind of the view.
type source struct {
	Path  exact  `json:"path"` // where it is, and where it is bound
	ID    fileID `json:"id"`
	Dir   bool   `json:"dir"`
	Write bool   `json:"write"`
	FD    int    `json:"fd"` // which of the files handed over is its detached mount; 0: init opens Path
}

// confined is what cannot be read back of what was done to the leaf.
type confined struct {
	FilterDigest string     `json:"filter_digest"`
	Landlock     landlocked `json:"landlock"`
}

// posture is what init reads back about the leaf, in the view's own /proc.
type posture struct {
	Namespaces map[string]uint64 `json:"namespaces"`
	UIDMap     string            `json:"uid_map"`
	GIDMap     string            `json:"gid_map"`
	Caps       map[string]string `json:"caps"` // CapInh, CapPrm, CapEff, CapBnd, CapAmb
	NoNewPrivs bool              `json:"no_new_privs"`
	Seccomp    int               `json:"seccomp"`
	Filters    int               `json:"filters"` // system call filters beyond those of init
	confined
	Mounts     string            `json:"mounts"`
	Rlimits    map[string]uint64 `json:"rlimits"`
	Files      []string          `json:"files"`
	NestedUser string            `json:"nested_user"` // user.max_user_namespaces
	UpLinks    []string          `json:"up_links"`    // network links that are up; not looked for in the host's network
}

// ended is how the turn went, seen from inside.
type ended struct {
	Stopped  bool   `json:"stopped"` // a stop came before the program ended
	Memory   bool   `json:"memory"`  // all were killed because they used too much memory together
	Disk     bool   `json:"disk"`    // all were killed because the workspace grew too much
	Exit     int    `json:"exit"`
	Signal   int    `json:"signal"`
	Left     int    `json:"left"`
	Reaped   int    `json:"reaped"`
	ReplyErr string `json:"reply_err"`
	TookNS   int64  `json:"took_ns"`
}
