package sandbox

import (
	"fmt"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// surroundings are what this process reads of init's confinement, which is the
// program's too: nothing of it changes once init runs.
type surroundings struct {
	host, namespaces map[string]uint64
	uidMap, gidMap   string // as the host sees them; from inside both sides look alike
	status           map[string]string
	ipcBounded       bool
}

// readOutside reads it of the init with this pid, and bounds its IPC, which only
// this side can.
func readOutside(pid int, k kind, memory int64) (o surroundings, err error) {
	if o.status, err = readStatus(procDir(pid) + "/status"); err != nil {
		return o, fmt.Errorf("read the sandbox's credentials: %w", err)
	}
	if k.shared { // init's namespaces are this process's, and closed to it besides
		return o, nil
	}
	if o.host, err = namespaces("/proc/self"); err != nil {
		return o, fmt.Errorf("read own namespaces: %w", err)
	}
	if o.namespaces, err = namespaces(procDir(pid)); err != nil {
		return o, fmt.Errorf("read the sandbox's namespaces: %w", err)
	}
	for file, to := range map[string]*string{"/uid_map": &o.uidMap, "/gid_map": &o.gidMap} {
		b, err := readKernel(procDir(pid) + file)
		if err != nil {
			return o, fmt.Errorf("read the sandbox's id maps: %w", err)
		}
		*to = strings.Join(strings.Fields(string(b)), " ")
	}
	o.ipcBounded = boundIPC(pid, memory)
	return o, nil
}

// achieved makes the Report from what init read inside and what this process
// read outside. It fails where something that is never optional is missing.
func achieved(s Spec, seen posture, out surroundings, shared bool) (Report, error) {
	r := Report{
		Mechanism: "linux-userns", Namespaces: map[string]uint64{}, UIDMap: "", GIDMap: "", Groups: []int{},
		CapEff: seen.Caps["CapEff"], CapBnd: seen.Caps["CapBnd"], NoNewPrivs: seen.NoNewPrivs, Seccomp: seen.Seccomp,
		SeccompDigest: seen.FilterDigest, Landlock: seen.Landlock.ABI, LandlockAsked: landlockNewest,
		LandlockFiles: seen.Landlock.Files, LandlockNet: seen.Landlock.Net, LandlockScope: seen.Landlock.Scope,
		Mounts: seen.Mounts, Rlimits: seen.Rlimits, Files: seen.Files,
	}
	var err error
	if !shared {
		if r.Network, err = networkOf(s, seen); err != nil {
			return r, err
		}
	}
	var uts unix.Utsname
	if err := unix.Uname(&uts); err != nil {
		return r, fmt.Errorf("read kernel version: %w", err)
	}
	r.Kernel = unix.ByteSliceToString(uts.Release[:])
	if shared {
		r.UIDMap, r.GIDMap = seen.UIDMap, seen.GIDMap
	} else if err := r.ownNamespaces(s, seen, out); err != nil {
		return r, err
	}
	for _, g := range strings.Fields(out.status["Groups"]) {
		n, err := strconv.Atoi(g)
		if err != nil {
			return r, fmt.Errorf("read the sandbox's groups: %w", err)
		}
		if g != strings.Fields(out.status["Gid"])[0] {
			r.Groups = append(r.Groups, n)
		}
	}
	if shared {
		return achievedShared(s, seen, r)
	}
	if err := required(seen, out.status); err != nil {
		return r, err
	}
	r.Gaps = gaps(s, r)
	return r, nil
}

// ownNamespaces holds the namespaces of a turn against what was asked, and
// writes them and their maps of users, as the host sees them, into the Report.
func (r *Report) ownNamespaces(s Spec, seen posture, out surroundings) error {
	for _, name := range namespaceNames {
		own := out.namespaces[name] != out.host[name]
		if own {
			r.Namespaces[name] = out.namespaces[name]
		}
		if shared := name == "net" && (s.Network == NetworkHost || !on(layerNet)); own == shared {
			return notEnforceable("the "+name+" namespace is not as asked", nil)
		}
		if seen.Namespaces[name] != out.namespaces[name] {
			return notEnforceable("the program's process is in another "+name+" namespace", nil)
		}
	}
	r.UIDMap, r.GIDMap = out.uidMap, out.gidMap
	return nil
}

// required holds what every turn must have, whatever its Spec says.
func required(seen posture, outside map[string]string) error {
	for set, value := range seen.Caps {
		if strings.Trim(value, "0") != "" && on(layerCaps) || value == "" {
			return notEnforceable("capabilities could not be dropped: "+set+" is "+value, nil)
		}
	}
	if len(seen.Caps) != 5 || !seen.NoNewPrivs && on(layerCaps) {
		return notEnforceable("no_new_privs is not set", nil)
	}
	if seen.NestedUser != "0" && on(layerNested) {
		return notEnforceable("nested user namespaces are not forbidden", nil)
	}
	if len(seen.Files) != 3 && on(layerFiles) {
		return notEnforceable("the program would inherit descriptors: "+strings.Join(seen.Files, ", "), nil)
	}
	for _, uid := range strings.Fields(outside["Uid"]) {
		if uid == "0" {
			return notEnforceable("the workload would be the host's root", nil)
		}
	}
	return nil
}

// gaps says in plain words what this release does not enforce.
func gaps(s Spec, r Report) []string {
	g := landlockGaps(r)
	if s.Network == NetworkHost {
		g = append(g, "the host's network is reachable, with its loopback")
	}
	if s.Network == NetworkAllow {
		g = append(g, "an allowed connection is not looked into: a server that answers for several names may answer for all of them")
	}
	if len(r.Groups) > 0 {
		g = append(g, "supplementary groups of the caller are kept: an ordinary user cannot drop them")
	}
	return g
}
