package sandbox

import (
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// TestHandled: what a domain handles on each kernel is what that kernel knows,
// never more, or the kernel would refuse the whole.
func TestHandled(t *testing.T) {
	const (
		first = 1<<13 - 1
		all   = first | unix.LANDLOCK_ACCESS_FS_REFER | unix.LANDLOCK_ACCESS_FS_TRUNCATE | unix.LANDLOCK_ACCESS_FS_IOCTL_DEV
		tcp   = unix.LANDLOCK_ACCESS_NET_BIND_TCP | unix.LANDLOCK_ACCESS_NET_CONNECT_TCP
		udp   = unix.LANDLOCK_ACCESS_NET_BIND_UDP | unix.LANDLOCK_ACCESS_NET_CONNECT_SEND_UDP
		both  = unix.LANDLOCK_SCOPE_ABSTRACT_UNIX_SOCKET | unix.LANDLOCK_SCOPE_SIGNAL
	)
	for name, row := range map[string]struct {
		kernel int
		plan   plan
		want   landlocked
	}{
		"none":           {0, plan{}, landlocked{}},
		"no moves":       {1, plan{}, landlocked{Kernel: 1}},
		"refer":          {2, plan{}, landlocked{2, 2, first | unix.LANDLOCK_ACCESS_FS_REFER, 0, 0}},
		"truncate":       {3, plan{}, landlocked{3, 3, first | unix.LANDLOCK_ACCESS_FS_REFER | unix.LANDLOCK_ACCESS_FS_TRUNCATE, 0, 0}},
		"tcp":            {4, plan{}, landlocked{4, 4, first | unix.LANDLOCK_ACCESS_FS_REFER | unix.LANDLOCK_ACCESS_FS_TRUNCATE, tcp, 0}},
		"devices":        {5, plan{}, landlocked{5, 5, all, tcp, 0}},
		"scopes":         {6, plan{}, landlocked{6, 6, all, tcp, both}},
		"logs":           {7, plan{}, landlocked{7, 7, all, tcp, both}},
		"host's network": {7, plan{HostNet: true}, landlocked{7, 7, all, 0, both}},
		"unix":           {9, plan{}, landlocked{9, 9, all | unix.LANDLOCK_ACCESS_FS_RESOLVE_UNIX, tcp, both}},
		"udp":            {10, plan{}, landlocked{10, 10, all | unix.LANDLOCK_ACCESS_FS_RESOLVE_UNIX, tcp | udp, both}},
		"newer":          {99, plan{}, landlocked{99, 10, all | unix.LANDLOCK_ACCESS_FS_RESOLVE_UNIX, tcp | udp, both}},
	} {
		t.Run(name, func(t *testing.T) {
			if got := handled(row.kernel, row.plan); got != row.want {
				t.Errorf("%+v, want %+v", got, row.want)
			}
		})
	}
}

// TestFileRules: only what a plan may write is writable, and no rule makes
// devices or sockets, or speaks to either.
func TestFileRules(t *testing.T) {
	p := plan{Reply: 1, Sources: []source{
		{Path: "/home/u/work", Dir: true, Write: true}, {Path: "/home/u/work/.git"}, {Path: "/opt/tools", Dir: true},
	}}
	const never = unix.LANDLOCK_ACCESS_FS_MAKE_BLOCK | unix.LANDLOCK_ACCESS_FS_MAKE_CHAR | unix.LANDLOCK_ACCESS_FS_MAKE_SOCK |
		unix.LANDLOCK_ACCESS_FS_IOCTL_DEV | unix.LANDLOCK_ACCESS_FS_RESOLVE_UNIX
	var made, edited []string
	for _, r := range fileRules(p) {
		if r.rights&never != 0 {
			t.Errorf("%s: rights %#x", r.path, r.rights)
		}
		if r.rights&unix.LANDLOCK_ACCESS_FS_MAKE_REG != 0 {
			made = append(made, r.path)
		} else if r.rights&landlockEdit != 0 {
			edited = append(edited, r.path)
		}
		if r.path == "/" && r.rights != unix.LANDLOCK_ACCESS_FS_READ_DIR {
			t.Errorf("the root allows %#x", r.rights)
		}
		if r.path == "/home/u/work/.git" && r.rights != landlockRead&landlockFile {
			t.Errorf("the pointer allows %#x", r.rights)
		}
	}
	if got := strings.Join(made, " "); got != "/dev/shm /tmp /run/home /run/holdfast /home/u/work" {
		t.Errorf("files can be made in %s", got)
	}
	if got := strings.Join(edited, " "); got != "/proc /dev/null /dev/zero /dev/full /dev/random /dev/urandom" {
		t.Errorf("files can be changed in %s", got)
	}
}

// TestFiltered: a start goes on only under exactly one filter more, the one that
// was asked for.
func TestFiltered(t *testing.T) {
	asked, err := callFilter(0)
	if err != nil {
		t.Fatal(err)
	}
	good := posture{Seccomp: 2, Filters: 1, confined: confined{FilterDigest: filterDigest(asked)}}
	if err := filtered(good, asked); err != nil {
		t.Error(err)
	}
	for name, change := range map[string]func(*posture){
		"none":      func(p *posture) { p.Seccomp = 0 },
		"strict":    func(p *posture) { p.Seccomp = 1 },
		"inherited": func(p *posture) { p.Filters = 0 },
		"another":   func(p *posture) { p.FilterDigest = filterDigest(nil) },
		"unsaid":    func(p *posture) { p.FilterDigest = "" },
	} {
		bad := good
		change(&bad)
		if filtered(bad, asked) == nil {
			t.Errorf("%s: taken", name)
		}
	}
	network, err := callFilter(plan{HostNet: true}.grants())
	if err != nil || filterDigest(network) == filterDigest(asked) || filtered(good, network) == nil {
		t.Errorf("filters are mixed up: %v", err)
	}
}
