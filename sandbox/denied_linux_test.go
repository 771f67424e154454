package sandbox_test

import (
	"encoding/json"
	"net"
	"os"
	"path/filepath"
	"sort"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"holdfast/sandbox"
)

// home is a directory laid out as a host's own, with a linked worktree in it.
type home struct {
	root, key, work, pointer, common string
}

func newHome(t *testing.T) home {
	t.Helper()
	root := temp(t)
	h := home{root: filepath.Join(root, "home"), common: filepath.Join(root, "project", ".git")}
	h.key = write(t, filepath.Join(h.root, "host.key"), "sentinel-of-the-store", 0o644)
	h.work = filepath.Join(h.root, "worktrees", "task", "name")
	h.pointer = write(t, filepath.Join(h.work, ".git"), "gitdir: "+h.common+"/worktrees/name\n", 0o644)
	write(t, filepath.Join(h.common, "config"), "[core]\n", 0o644)
	write(t, filepath.Join(h.common, "hooks", "post-checkout"), "#!/bin/sh\n", 0o755)
	return h
}

// snapshot lists every file below a directory with its content.
func snapshot(t *testing.T, dir string) string {
	t.Helper()
	var all []string
	err := filepath.Walk(dir, func(path string, info os.FileInfo, err error) error {
		if err != nil {
			return err
		}
		line := path + " " + info.Mode().String()
		if info.Mode().IsRegular() {
			b, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			line += " " + string(b)
		}
		all = append(all, line)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return strings.Join(all, "\n")
}

// TestMustBeDenied runs one program that tries everything, as each row, and
// looks at the world outside afterwards.
func TestMustBeDenied(t *testing.T) {
	h := newHome(t)
	sentinel := write(t, filepath.Join(temp(t), "sentinel"), "sentinel-of-the-user", 0o644)
	tcp, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer tcp.Close()
	abstract, err := net.Listen("unix", "@holdfast-test-"+filepath.Base(h.root+temp(t)))
	if err != nil {
		t.Fatal(err)
	}
	defer abstract.Close()
	if err := dialOnce("tcp", tcp.Addr().String()); err != nil {
		t.Fatalf("the listener must be reachable from outside: %v", err)
	}

	s := hostile(t, "attempts")
	s.Workspace, s.GitDir, s.Git, s.Protected = h.work, h.common, sandbox.GitRead, []string{h.root}
	s.Stdin, err = json.Marshal(places{Sentinel: sentinel, Store: h.key, GitDir: h.common,
		TCP: tcp.Addr().String(), Abstract: abstract.Addr().String()})
	if err != nil {
		t.Fatal(err)
	}
	var inode unix.Stat_t
	if err := unix.Stat(h.pointer, &inode); err != nil {
		t.Fatal(err)
	}
	before, beforeCommon := snapshot(t, h.root), snapshot(t, h.common)
	r, o := run(t, s)
	exited(t, r, o, 0)

	got := map[string]string{}
	if err := json.Unmarshal(o.stdout.Bytes(), &got); err != nil {
		t.Fatal(err)
	}
	gone, readOnly, busy := []string{"ENOENT"}, []string{"EROFS"}, []string{"EBUSY", "EROFS"}
	forbidden, noProc := []string{"EPERM"}, []string{"EACCES", "EPERM"}
	want := map[string][]string{
		"read sentinel": gone, "read store": gone, "read shadow": gone, "read machine-id": gone, "read root home": gone,
		"read sys": gone, "read resolv.conf": gone,
		"read init environ": noProc, "read init maps": noProc, "read init mem": noProc, "read init auxv": noProc,
		"read init root": noProc, "read init cwd": noProc, "read init exe": noProc, "read init fd": noProc, "read kcore": {"EACCES", "EPERM", "ENOENT"},
		"write usr": readOnly, "write etc": readOnly, "write root": readOnly, "write dev": readOnly, "write run": readOnly,
		"write passwd": {"EROFS", "EACCES"}, "write hostname": {"EROFS", "EACCES"}, "write userns limit": {"EROFS", "EACCES"},
		"write sysrq": {"EACCES", "EPERM", "ENOENT"}, "write core pattern": {"EROFS", "EACCES"}, "write init oom": noProc, "write init uid map": noProc,
		"write git pointer": readOnly, "write git hook": readOnly, "write git config": readOnly,
		"unlink git pointer": busy, "rename git pointer": busy, "rename over git pointer": busy, "chmod git pointer": readOnly,
		"link out": {"EXDEV"}, "mount tmpfs": forbidden, "remount usr": forbidden, "unmount usr": forbidden,
		"unmount git pointer": forbidden, "pivot root": forbidden, "chroot": forbidden, "open tree": forbidden,
		"fsopen": forbidden, "unshare mounts": forbidden, "clone user namespace": {"ENOSPC", "EPERM"},
		"clone pid namespace": forbidden, "clone net namespace": forbidden, "open init namespace": noProc,
		"ptrace init": forbidden, "set hostname": forbidden, "set uid": {"EINVAL", "EPERM"}, "set groups": forbidden,
		"make device": noProc, "reboot": forbidden, "set clock": forbidden, "raise ambient": forbidden,
		"raise capabilities": forbidden, "forget no_new_privs": {"EINVAL"}, "raise nofile": forbidden, "raise nproc": forbidden,
		"open by handle": {"EPERM", "EOPNOTSUPP"}, "raw socket": {"EAFNOSUPPORT"}, "packet socket": {"EAFNOSUPPORT"},
	}
	for name, outcomes := range want {
		t.Run(name, func(t *testing.T) {
			result, ran := got[name]
			for _, ok := range outcomes {
				if ran && result == ok {
					return
				}
			}
			t.Errorf("gave %q (tried: %v), want one of %v", result, ran, outcomes)
		})
	}
	for _, name := range []string{"dial tcp", "dial abstract"} {
		if result := got[name]; result == "" {
			t.Errorf("%s reached the host", name)
		}
	}
	if len(got) != len(want)+2 {
		t.Errorf("%d attempts, %d expectations", len(got), len(want)+2)
	}
	if after := snapshot(t, h.root); after != before {
		t.Errorf("the home changed:\n%s\nwas:\n%s", after, before)
	}
	if after := snapshot(t, h.common); after != beforeCommon {
		t.Error("the common git directory changed")
	}
	var later unix.Stat_t
	if err := unix.Stat(h.pointer, &later); err != nil || later.Ino != inode.Ino {
		t.Errorf("the git pointer was replaced: %v", err)
	}
	if strings.Contains(o.stdout.String()+o.stderr.String(), "sentinel-of") {
		t.Error("a sentinel came out")
	}
}

func TestNetworkHost(t *testing.T) {
	tcp, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer tcp.Close()
	for name, row := range map[string]struct {
		network sandbox.Network
		code    int
		report  string
	}{
		"none": {sandbox.NetworkNone, 1, "netns-no-lo"},
		"host": {sandbox.NetworkHost, 0, "host"},
	} {
		t.Run(name, func(t *testing.T) {
			s := hostile(t, "dial", "tcp", tcp.Addr().String())
			s.Network = row.network
			r, o := run(t, s)
			exited(t, r, o, row.code)
			if _, own := r.Report.Namespaces["net"]; r.Report.Network != row.report || own != (row.network == sandbox.NetworkNone) {
				t.Errorf("report says %q, namespaces %v", r.Report.Network, r.Report.Namespaces)
			}
		})
	}
}

func TestEnvironmentIsWhatWasDeclared(t *testing.T) {
	t.Setenv("HOLDFAST_TEST_SECRET", "do-not-pass")
	t.Setenv("LD_LIBRARY_PATH", "/nowhere")
	s := hostile(t, "env")
	s.Environment = []string{"API_KEY=scoped", "EMPTY="}
	s.ReplyLimit, s.History, s.Git, s.GitDir = 1024, []byte("{}\n"), sandbox.GitRead, temp(t)
	r, o := run(t, s)
	exited(t, r, o, 0)
	want := []string{
		"API_KEY=scoped", "EMPTY=", "GIT_CONFIG_COUNT=1", "GIT_CONFIG_KEY_0=safe.directory", "GIT_CONFIG_VALUE_0=*",
		"GIT_OPTIONAL_LOCKS=0", "HOLDFAST_HISTORY=/run/holdfast-history.jsonl", "HOLDFAST_REPLY=/run/holdfast/reply.json",
		"HOME=/run/home", "LANG=C.UTF-8", "PATH=/usr/local/bin:/usr/bin:/bin", "TMPDIR=/tmp",
	}
	got := lines(o.stdout.String())
	sort.Strings(got)
	if strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("environment:\n%s", strings.Join(got, "\n"))
	}
}
