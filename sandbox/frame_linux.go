package sandbox

import (
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
)

// A frame is one message between supervisor and init: a kind byte, the payload's length
// as four big-endian bytes, the payload.
type frameKind byte

const (
	framePlan    frameKind = 'S' // supervisor to init: a plan
	frameHistory frameKind = 'H' // supervisor to init: the history file
	frameReady   frameKind = 'V' // init to supervisor: a posture
	frameRefuse  frameKind = 'E' // before ready: a failure
	frameFault   frameKind = 'X' // after release: why the program could not be executed
	frameReply   frameKind = 'P' // init to supervisor: the reply file
	frameDone    frameKind = 'D' // init to supervisor: an ending; the last frame
)

// frameBounds is the largest payload of each kind. A kind that is not here is
// refused, before anything is allocated.
var frameBounds = map[frameKind]uint32{
	framePlan:    8 << 20, // arguments and environment, in base64
	frameHistory: maxHistory,
	frameReady:   256 << 10,
	frameRefuse:  16 << 10,
	frameFault:   16 << 10,
	frameReply:   maxReply,
	frameDone:    16 << 10,
}

func writeFrame(w io.Writer, kind frameKind, payload []byte) error {
	if uint64(len(payload)) > uint64(frameBounds[kind]) {
		return fmt.Errorf("frame %q of %d bytes is too large", kind, len(payload))
	}
	b := make([]byte, 5, 5+len(payload))
	b[0] = byte(kind)
	binary.BigEndian.PutUint32(b[1:], uint32(len(payload)))
	_, err := w.Write(append(b, payload...))
	return err
}

func writeJSON(w io.Writer, kind frameKind, value any) error {
	b, err := json.Marshal(value)
	if err != nil {
		return err
	}
	return writeFrame(w, kind, b)
}

// readFrame returns io.EOF only between two frames.
func readFrame(r io.Reader) (frameKind, []byte, error) {
	var head [5]byte
	if _, err := io.ReadFull(r, head[:1]); err != nil {
		return 0, nil, err
	}
	if _, err := io.ReadFull(r, head[1:]); err != nil {
		return 0, nil, cutShort(err)
	}
	kind, size := frameKind(head[0]), binary.BigEndian.Uint32(head[1:])
	bound, known := frameBounds[kind]
	if !known || size > bound {
		return 0, nil, fmt.Errorf("frame %q of %d bytes refused", kind, size)
	}
	payload := make([]byte, size)
	if _, err := io.ReadFull(r, payload); err != nil {
		return 0, nil, cutShort(err)
	}
	return kind, payload, nil
}

func cutShort(err error) error {
	if err == io.EOF {
		return io.ErrUnexpectedEOF
	}
	return err
}

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

// exact is a string of any bytes. JSON strings hold only valid UTF-8, and would
// silently change what is neither.
type exact string

// MarshalText encodes as base64.
func (e exact) MarshalText() ([]byte, error) {
	return base64.StdEncoding.AppendEncode(nil, []byte(e)), nil
}

// UnmarshalText decodes base64.
func (e *exact) UnmarshalText(text []byte) error {
	b, err := base64.StdEncoding.AppendDecode(nil, text)
	*e = exact(b)
	return err
}

func exactly(list []string) []exact {
	out := make([]exact, len(list))
	for i, s := range list {
		out[i] = exact(s)
	}
	return out
}

func plainly(list []exact) []string {
	out := make([]string, len(list))
	for i, e := range list {
		out[i] = string(e)
	}
	return out
}

// fileID pins a file against replacement between two looks at its path.
type fileID struct {
	Dev uint64 `json:"dev"`
	Ino uint64 `json:"ino"`
}

// source is one bind of the view.
type source struct {
	Path  exact  `json:"path"` // where it is, and where it is bound
	ID    fileID `json:"id"`
	Dir   bool   `json:"dir"`
	Write bool   `json:"write"`
	FD    int    `json:"fd"` // a detached mount that init inherits; 0: init opens Path
}

// failure is why a stage gave up before the program ran.
type failure struct {
	Spec    bool   `json:"spec"`    // the Spec is at fault
	Enforce bool   `json:"enforce"` // the machine is at fault
	Text    string `json:"text"`
}

func (f failure) err() error {
	switch {
	case f.Spec:
		return refuse("%s", f.Text)
	case f.Enforce:
		return notEnforceable(f.Text, nil)
	}
	return fmt.Errorf("start sandbox: %s", f.Text)
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
