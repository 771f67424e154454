package sandbox_test

import (
	"errors"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"holdfast/sandbox"
)

// BenchmarkStart runs /bin/true to the proof that nothing is left, and, where
// bubblewrap is installed, by turns in bubblewrap with the same view: the same
// host directories, memory and devices at the same places. It prints both
// medians and their ratio. 100 turns: -bench Start -benchtime 100x
func BenchmarkStart(b *testing.B) {
	benchmarkStart(b, func(sandbox.Spec) *sandbox.Prepared { return nil })
}

// BenchmarkStartPrepared is the same where the caller has prepared while it did
// something else, as an execution owner does.
func BenchmarkStartPrepared(b *testing.B) {
	benchmarkStart(b, func(s sandbox.Spec) *sandbox.Prepared {
		p := sandbox.Prepare(s.Network, s.Slot, s.MemoryBytes)
		p.Ready()
		return p
	})
}

func benchmarkStart(b *testing.B, prepare func(sandbox.Spec) *sandbox.Prepared) {
	s := shell(b, "")
	s.Program, s.Arguments, s.MemoryBytes = canonical(b, "/bin/true"), nil, 512<<20
	bwrap, err := exec.LookPath("bwrap")
	if err != nil {
		b.Log("bubblewrap is not installed: nothing to compare with")
	} else if out, err := exec.Command(bwrap, bubblewrapped(s)...).CombinedOutput(); err != nil {
		b.Logf("bubblewrap does not work here: %v: %s", err, out)
		bwrap = ""
	}
	var ours, theirs []time.Duration
	for i := range 2 + b.N {
		ahead := prepare(s)
		began := time.Now()
		if err := turn(ahead, s); err != nil {
			b.Fatal(err)
		}
		took := time.Since(began)
		if i < 2 {
			continue // the first find cold caches
		}
		ours = append(ours, took)
		if bwrap == "" {
			continue
		}
		began = time.Now()
		if err := exec.Command(bwrap, bubblewrapped(s)...).Run(); err != nil {
			b.Fatal(err)
		}
		theirs = append(theirs, time.Since(began))
	}
	b.ReportMetric(median(ours), "ms/turn")
	if len(theirs) > 0 {
		b.ReportMetric(median(theirs), "ms/bwrap")
		b.ReportMetric(median(ours)/median(theirs), "ratio")
	}
}

func turn(ahead *sandbox.Prepared, s sandbox.Spec) error {
	p, err := ahead.Start(s)
	if err != nil {
		return err
	}
	defer p.Wait()
	if err := p.Release(); err != nil {
		return err
	}
	for range p.Chunks() {
	}
	if r := p.Wait(); r.Ending != sandbox.EndingExit || *r.ExitCode != 0 || !r.Cleanup.Confirmed {
		return errors.New("the turn ended otherwise: " + r.Fault)
	}
	return nil
}

// median is in milliseconds.
func median(d []time.Duration) float64 {
	slices.Sort(d)
	return float64(d[len(d)/2].Microseconds()) / 1000
}

// bubblewrapped are bubblewrap's arguments for what Start makes of s.
func bubblewrapped(s sandbox.Spec) []string {
	args := []string{"--unshare-all", "--die-with-parent", "--new-session", "--hostname", "holdfast", "--uid", "1000", "--gid", "1000",
		"--proc", "/proc", "--dev", "/dev", "--perms", "1777", "--tmpfs", "/dev/shm", "--perms", "1777", "--tmpfs", "/tmp",
		"--tmpfs", "/run/home"}
	hosts := []string{"/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/etc/passwd", "/etc/group", "/etc/hosts"}
	for _, name := range []string{
		"ld.so.cache", "ld.so.conf", "ld.so.conf.d", "alternatives", "ssl/certs", "ssl/openssl.cnf", "ca-certificates",
		"ca-certificates.conf", "localtime", "nsswitch.conf", "protocols", "services", "mime.types", "gai.conf", "os-release"} {
		hosts = append(hosts, "/etc/"+name)
	}
	for _, path := range hosts {
		if link, err := os.Readlink(path); err == nil {
			args = append(args, "--symlink", link, path)
			continue
		}
		args = append(args, "--ro-bind-try", path, path)
	}
	args = append(args, "--bind", s.Workspace, s.Workspace, "--chdir", s.Workspace, "--remount-ro", "/",
		"--cap-drop", "ALL", "--clearenv")
	for _, v := range []string{"PATH=/usr/local/bin:/usr/bin:/bin", "HOME=/run/home", "TMPDIR=/tmp", "LANG=C.UTF-8"} {
		name, value, _ := strings.Cut(v, "=")
		args = append(args, "--setenv", name, value)
	}
	return append(args, s.Program)
}
