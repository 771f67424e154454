package sandbox_test

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"holdfast/sandbox"
)

// What a turn may not ask of the kernel. Each test names the layers without
// which it fails; TestThreatsNeedTheirLayers holds it to that.

// calls runs one group of raw calls and returns what each gave.
func calls(t *testing.T, group string, args ...string) map[string]string {
	t.Helper()
	return played(t, hostile(t, "calls", append([]string{group}, args...)...), nil)
}

// played runs a turn of raw calls; ready runs between its start and its release.
func played(t *testing.T, s sandbox.Spec, ready func()) map[string]string {
	t.Helper()
	p := start(t, s)
	if ready != nil {
		ready()
	}
	if err := p.Release(); err != nil {
		t.Fatalf("release: %v", err)
	}
	r, o := finish(t, p)
	exited(t, r, o, 0)
	got := map[string]string{}
	if err := json.Unmarshal(o.stdout.Bytes(), &got); err != nil {
		t.Fatalf("%v: %s", err, clip(o.stdout.String()))
	}
	return got
}

// gave holds every outcome against what is allowed; "*" stands for the rest.
func gave(t *testing.T, got map[string]string, want map[string]string) {
	t.Helper()
	for name, result := range got {
		allowed, ok := want[name]
		if !ok {
			allowed, ok = want["*"]
		}
		fits := false
		for _, w := range strings.Split(allowed, "|") {
			fits = fits || w == result
		}
		if !ok || !fits {
			t.Errorf("%s gave %q, want %s", name, result, allowed)
		}
	}
	for name := range want {
		if _, tried := got[name]; name != "*" && !tried {
			t.Errorf("%s was not tried", name)
		}
	}
}

// TestThreatS9: the first process cannot be looked into, nor changed (dumpable,
// caps, landlock: each alone would do).
func TestThreatS9(t *testing.T) {
	gave(t, calls(t, "init"), map[string]string{"*": "EACCES|EPERM"})
}

// TestThreatS10: no process can be traced or read by another, not even a child
// (seccomp; for the first process also what S9 names).
func TestThreatS10(t *testing.T) {
	gave(t, calls(t, "processes"), map[string]string{"*": "EPERM"})
}

// TestThreatS12: a program may rewrite its own code, and has gained nothing (no
// layer: what holds it is outside of it).
func TestThreatS12(t *testing.T) {
	sentinel := write(t, filepath.Join(temp(t), "sentinel"), "sentinel-of-the-user", 0o644)
	gave(t, calls(t, "memory", sentinel), map[string]string{"rewrite": "", "sentinel": "ENOENT", "unshare": "EPERM", "mount": "EPERM",
		"socket": "EAFNOSUPPORT"})
}

// count listens and counts what arrives.
func count(t *testing.T, n *atomic.Int64, network, address string) net.Addr {
	t.Helper()
	if strings.HasPrefix(network, "udp") || network == "unixgram" {
		l, err := net.ListenPacket(network, address)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { l.Close() })
		go func() {
			for {
				if _, _, err := l.ReadFrom(make([]byte, 64)); err != nil {
					return
				}
				n.Add(1)
			}
		}()
		return l.LocalAddr()
	}
	l, err := net.Listen(network, address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			n.Add(1)
			io.Copy(io.Discard, c)
			c.Close()
		}
	}()
	return l.Addr()
}

// TestThreatS18S20: without a network nothing reaches the host by TCP, UDP, ICMP,
// raw or abstract sockets (net, seccomp, landlock: the first two alone would do,
// the last for TCP and abstract sockets).
func TestThreatS18S20(t *testing.T) {
	var arrived atomic.Int64
	tcp := count(t, &arrived, "tcp4", "127.0.0.1:0").(*net.TCPAddr)
	count(t, &arrived, "udp4", tcp.String())
	abstract := count(t, &arrived, "unix", fmt.Sprintf("@holdfast-test-%d-%d", os.Getpid(), time.Now().UnixNano()))
	got := calls(t, "network", strconv.Itoa(tcp.Port), abstract.String())
	for name, result := range got {
		if result == "" {
			t.Errorf("%s reached the host", name)
		}
	}
	if arrived.Load() != 0 || len(got) != 9 {
		t.Errorf("%d arrived of %d attempts", arrived.Load(), len(got))
	}
	if err := dialOnce("unix", abstract.String()); err != nil { // it would have been heard
		t.Error(err)
	}
	eventually(t, "the listener hears", 30*time.Second, func() bool { return arrived.Load() == 1 })
}

// TestThreatS20WithNetwork: the host's network does not bring its abstract
// sockets (seccomp, landlock).
func TestThreatS20WithNetwork(t *testing.T) {
	var arrived atomic.Int64
	tcp := count(t, &arrived, "tcp4", "127.0.0.1:0").(*net.TCPAddr)
	abstract := count(t, &arrived, "unix", fmt.Sprintf("@holdfast-test-%d-%d", os.Getpid(), time.Now().UnixNano()))
	s := hostile(t, "calls", "network", strconv.Itoa(tcp.Port), abstract.String())
	s.Network = sandbox.NetworkHost
	got := played(t, s, nil)
	for name, want := range map[string]string{"tcp": "", "raw": "EPERM", "raw6": "EPERM", "mptcp": "EPROTONOSUPPORT", "abstract": "EAFNOSUPPORT"} {
		if got[name] != want {
			t.Errorf("%s gave %q, want %q", name, got[name], want)
		}
	}
	eventually(t, "tcp arrives", 30*time.Second, func() bool { return arrived.Load() == 1 })
}

// TestThreatS21: sockets of the host that appear in the workspace cannot be
// reached, in any of the ways in which a program can get a socket that takes a
// path (seccomp; landlock too where it knows of them).
func TestThreatS21(t *testing.T) {
	var arrived atomic.Int64
	s := hostile(t, "calls", "paths")
	got := played(t, s, func() {
		for name, network := range map[string]string{"stream.sock": "unix", "datagram.sock": "unixgram"} {
			path := filepath.Join(s.Workspace, name)
			count(t, &arrived, network, path)
			if err := os.Chmod(path, 0o777); err != nil {
				t.Fatal(err)
			}
		}
	})
	gave(t, got, map[string]string{"stream": "EAFNOSUPPORT", "datagram": "EAFNOSUPPORT", "pair": "", "turned pair": "EISCONN|EACCES",
		"turned widowed pair": "EISCONN|EACCES", "*": "ESOCKTNOSUPPORT"})
	if arrived.Load() != 0 {
		t.Errorf("%d arrived", arrived.Load())
	}
}

// TestThreatS22: no family of sockets but the internet's, and that only with a
// network; netlink then looks and does not change (seccomp, and caps for the
// last).
func TestThreatS22(t *testing.T) {
	gave(t, calls(t, "sockets"), map[string]string{"*": "EAFNOSUPPORT"})
	s := hostile(t, "calls", "sockets")
	s.Network = sandbox.NetworkHost
	gave(t, played(t, s, nil), map[string]string{"netlink raw": "", "netlink datagram": "", "netlink stream": "ESOCKTNOSUPPORT",
		"netlink sequence": "ESOCKTNOSUPPORT", "netfilter": "EPROTONOSUPPORT", "audit": "EPROTONOSUPPORT", "change a link": "EPERM",
		"*": "EAFNOSUPPORT"})
}

// TestThreatS24: nothing is typed into a terminal, whatever the half of the
// request says that the kernel does not look at (seccomp).
func TestThreatS24(t *testing.T) {
	gave(t, calls(t, "terminals"), map[string]string{"open tty": "ENOENT", "open ptmx": "ENOENT", "*": "EPERM"})
}

// TestThreatS39: no signal that is sent to the first process, or to everybody,
// changes how a turn ends (signals, landlock).
func TestThreatS39(t *testing.T) {
	r, o := run(t, hostile(t, "signals"))
	exited(t, r, o, 7)
	for _, line := range lines(o.stdout.String()) {
		if r.Report.LandlockScope&unix.LANDLOCK_SCOPE_SIGNAL == 0 && line != "" || line != "" && !strings.HasSuffix(line, "operation not permitted") {
			t.Errorf("kill gave %s", line)
		}
	}
}

// TestThreatS42: no namespace can be made or entered, by any call and in any
// combination of flags (seccomp; nested and caps for the effect).
func TestThreatS42(t *testing.T) {
	gave(t, calls(t, "namespaces"), map[string]string{"clone3": "ENOSYS", "clone3 of nothing": "ENOSYS", "*": "EPERM"})
}

// TestThreatS43: nothing can be mounted, unmounted, moved or made the root
// (seccomp; caps and landlock for the effect).
func TestThreatS43(t *testing.T) {
	gave(t, calls(t, "mounts"), map[string]string{"*": "EPERM"})
}

// TestThreatS44: no ring, nor any call that is newer than the filter, does what
// the filter refuses (seccomp).
func TestThreatS44(t *testing.T) {
	gave(t, calls(t, "rings"), map[string]string{"*": "ENOSYS"})
}

// TestThreatS45: the large and dangerous parts of the kernel are closed (seccomp).
func TestThreatS45(t *testing.T) {
	gave(t, calls(t, "large"), map[string]string{"memfd_create": "ENOSYS", "memfd_secret": "ENOSYS", "*": "EPERM"})
}

// TestThreatS47: no file can be opened by its number (seccomp; caps too).
func TestThreatS47(t *testing.T) {
	gave(t, calls(t, "handles"), map[string]string{"*": "EPERM"})
}

// TestThreatS48: clock, names and settings of the machine stay (seccomp and caps,
// each alone; the settings are read-only).
func TestThreatS48(t *testing.T) {
	before, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	gave(t, calls(t, "machine"), map[string]string{"write kernel/hostname": "EROFS|EACCES", "write kernel/core_pattern": "EROFS|EACCES",
		"write user/max_user_namespaces": "EROFS|EACCES", "write vm/drop_caches": "EROFS|EACCES", "*": "EPERM"})
	if after, err := os.Hostname(); err != nil || after != before {
		t.Errorf("the host is called %q, %v; it was %q", after, err, before)
	}
}

// TestThreatS49: devices cannot be made, nor opened where one lies in the
// workspace, nor spoken to beyond reading and writing (caps and the kernel's own
// rule for the first, nodev for the second, landlock for sockets and the last).
func TestThreatS49(t *testing.T) {
	s := hostile(t, "calls", "devices")
	placed := false
	got := played(t, s, func() {
		placed = unix.Mknod(filepath.Join(s.Workspace, "device"), unix.S_IFCHR|0o666, int(unix.Mkdev(1, 3))) == nil
	})
	want := map[string]string{"open urandom": "", "make socket": "EACCES", "talk to urandom": "EACCES", "*": "EPERM|EACCES"}
	if placed {
		want["open device"] = "EACCES"
	}
	gave(t, got, want)
	if _, err := os.Lstat(filepath.Join(s.Workspace, "made")); err == nil {
		t.Error("a device was made in the workspace")
	}
}

// TestThreatS50: programs with set-user-ID bits or file capabilities give
// nothing to whom executes them (caps, which holds no_new_privs; every mount is
// nosuid).
func TestThreatS50(t *testing.T) {
	exe, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	s := hostile(t, "calls", "rights")
	s.Program = write(t, filepath.Join(s.Workspace, "raised"), string(exe), 0o755)
	if os.Geteuid() == 0 {
		// All capabilities, permitted and effective, as a file says it.
		all := []byte{1, 0, 0, 2, 255, 255, 255, 255, 0, 0, 0, 0, 255, 1, 0, 0, 0, 0, 0, 0}
		if err := unix.Setxattr(s.Program, "security.capability", all, 0); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Chmod(s.Program, 0o755|os.ModeSetuid|os.ModeSetgid); err != nil {
		t.Fatal(err)
	}
	none := "0000000000000000"
	gave(t, played(t, s, nil), map[string]string{"Uid": "1000\t1000\t1000\t1000", "CapPrm": none, "CapEff": none, "NoNewPrivs": "1"})
}

// TestThreatS58: a program that the program wrote itself is as confined as it;
// one in memory alone cannot be made (seccomp, landlock, and what S1 and S50 name).
func TestThreatS58(t *testing.T) {
	sentinel := write(t, filepath.Join(temp(t), "sentinel"), "sentinel-of-the-user", 0o644)
	none := "0000000000000000"
	gave(t, calls(t, "elsewhere", sentinel), map[string]string{"sentinel": "ENOENT", "mount": "EPERM", "unix socket": "EAFNOSUPPORT",
		"ring": "ENOSYS", "trace": "EPERM", "memory file": "ENOSYS", "Uid": "1000\t1000\t1000\t1000", "CapPrm": none, "CapEff": none,
		"NoNewPrivs": "1"})
}
