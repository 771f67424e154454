package sandbox

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
	ProxyFD   int      `json:"proxy_fd"`   // where init passes its listener out
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

// sockets reports whether the program may make internet sockets: where there is
// no network, no socket is of any use.
func (p plan) sockets() bool { return p.HostNet || p.ProxyPort != 0 }

// source is one bind of the view.
type source struct {
	Path  exact  `json:"path"` // where it is, and where it is bound
	ID    fileID `json:"id"`
	Dir   bool   `json:"dir"`
	Write bool   `json:"write"`
	FD    int    `json:"fd"` // a detached mount that init inherits; 0: init opens Path
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
	Ran      bool   `json:"ran"`     // the program was released
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
