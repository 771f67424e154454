package sandbox

import (
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// achieved makes the Report from what init read inside and what this process
// reads outside. It fails where something that is never optional is missing.
func achieved(s Spec, seen posture, pid int, shared bool) (Report, error) {
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
	if shared { // init's namespaces are this process's, and closed to it besides
		r.UIDMap, r.GIDMap = seen.UIDMap, seen.GIDMap
	} else if err := r.ownNamespaces(s, seen, pid); err != nil {
		return r, err
	}
	status, err := readStatus(procDir(pid) + "/status")
	if err != nil {
		return r, fmt.Errorf("read the sandbox's credentials: %w", err)
	}
	for _, g := range strings.Fields(status["Groups"]) {
		n, err := strconv.Atoi(g)
		if err != nil {
			return r, fmt.Errorf("read the sandbox's groups: %w", err)
		}
		if g != strings.Fields(status["Gid"])[0] {
			r.Groups = append(r.Groups, n)
		}
	}
	if shared {
		return achievedShared(s, seen, r)
	}
	if err := required(seen, status); err != nil {
		return r, err
	}
	r.Gaps = gaps(s, r)
	return r, nil
}

// ownNamespaces holds the namespaces of a turn against what was asked, and
// writes them and their maps of users, as the host sees them, into the Report.
func (r *Report) ownNamespaces(s Spec, seen posture, pid int) error {
	host, err := namespaces("/proc/self")
	if err != nil {
		return fmt.Errorf("read own namespaces: %w", err)
	}
	outside, err := namespaces(procDir(pid))
	if err != nil {
		return fmt.Errorf("read the sandbox's namespaces: %w", err)
	}
	for _, name := range namespaceNames {
		own := outside[name] != host[name]
		if own {
			r.Namespaces[name] = outside[name]
		}
		if shared := name == "net" && (s.Network == NetworkHost || !on(layerNet)); own == shared {
			return notEnforceable("the "+name+" namespace is not as asked", nil)
		}
		if seen.Namespaces[name] != outside[name] {
			return notEnforceable("the program's process is in another "+name+" namespace", nil)
		}
	}
	// The map as the host sees it; from inside both sides look alike.
	for file, to := range map[string]*string{"/uid_map": &r.UIDMap, "/gid_map": &r.GIDMap} {
		b, err := os.ReadFile(procDir(pid) + file)
		if err != nil {
			return fmt.Errorf("read the sandbox's id maps: %w", err)
		}
		*to = strings.Join(strings.Fields(string(b)), " ")
	}
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
