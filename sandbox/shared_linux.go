package sandbox

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// The shared mode is what Spec.Degraded allows where this machine gives an
// ordinary user no namespaces: Landlock and the system call filter alone, among
// the host's own processes and files. It is for turns that only read. Its
// private files lie in a scratch directory on the disk, and its end is proven
// by init, which all of it descends from, having no child left.

// sharedABI is the Landlock ABI that the mode needs: with signals scoped, or
// the program could end init and outlive it.
const sharedABI = 6

// Names in the scratch directory.
const (
	scratchHome    = "home"
	scratchTmp     = "tmp"
	scratchReply   = "reply/reply.json"
	scratchHistory = "history.jsonl"
)

// shared reports whether the plan is for the mode without namespaces.
func (p plan) shared() bool { return p.Scratch != "" }

// inScratch is a path in the scratch directory.
func (p plan) inScratch(name string) string { return filepath.Join(string(p.Scratch), name) }

// replyFile is where the program leaves its reply.
func (p plan) replyFile() string {
	if p.shared() {
		return p.inScratch(scratchReply)
	}
	return replyPath
}

// sharable says why a Spec cannot run without namespaces, "" where it can.
func sharable(s Spec, pins *pinned) string {
	switch {
	case os.Geteuid() == 0:
		return "as root nothing runs without namespaces; run the host as an ordinary user"
	case s.Write:
		return "a turn that writes its workspace needs namespaces: without them its .git could be replaced"
	case s.Network == NetworkAllow:
		return "an allow list needs a network namespace; give the turn no network or the host's"
	case len(pins.cover) > 0:
		return "the Git directory lies in what the turn may read and cannot be hidden without namespaces; allow git to be read"
	case landlockKernel() < sharedABI:
		return fmt.Sprintf("Landlock of this kernel has ABI %d; without namespaces %d is needed (Linux 6.12)", landlockKernel(), sharedABI)
	}
	return ""
}

// launchShared starts a turn without namespaces. why is what the full sandbox
// failed with.
func launchShared(spec Spec, why error) (*Process, error) {
	pins, err := pin(spec, false)
	if err != nil {
		return nil, err
	}
	defer pins.close()
	if not := sharable(spec, pins); not != "" {
		return nil, fmt.Errorf("%w; a degraded turn is not possible either: %s", why, not)
	}
	scratch, err := newScratch(spec)
	if err != nil {
		return nil, fmt.Errorf("start sandbox: %w", err)
	}
	p, err := launchFrom(spec, pins, false, scratch, nil)
	if err != nil {
		os.RemoveAll(scratch)
	}
	return p, err
}

// newScratch makes the private directory of a turn.
func newScratch(s Spec) (string, error) {
	dir, err := os.MkdirTemp("", "holdfast-turn-")
	if err != nil {
		return "", err
	}
	if dir, err = filepath.EvalSymlinks(dir); err != nil {
		return "", err
	}
	for _, name := range []string{scratchHome, scratchTmp, filepath.Dir(scratchReply)} {
		err = errors.Join(err, os.Mkdir(filepath.Join(dir, name), 0o700))
	}
	if s.History != nil {
		err = errors.Join(err, os.WriteFile(filepath.Join(dir, scratchHistory), s.History, 0o400))
	}
	if err != nil {
		os.RemoveAll(dir)
		return "", err
	}
	return dir, nil
}

// moved puts the scratch directory's paths where environ put the view's.
func (p plan) moved(env []string) []string {
	if !p.shared() {
		return env
	}
	out := make([]string, 0, len(env))
	for _, v := range env {
		switch name, _, _ := strings.Cut(v, "="); name {
		case "HOME":
			v = "HOME=" + p.inScratch(scratchHome)
		case "TMPDIR":
			v = "TMPDIR=" + p.inScratch(scratchTmp)
		case "HOLDFAST_REPLY":
			v = "HOLDFAST_REPLY=" + p.inScratch(scratchReply)
		case "HOLDFAST_HISTORY":
			v = "HOLDFAST_HISTORY=" + p.inScratch(scratchHistory)
		}
		out = append(out, v)
	}
	return out
}

// sharedAttr starts init in the host's namespaces. Init is not killed with its
// supervisor: it sees the control pipe end, ends everything below it, and goes.
func sharedAttr() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setsid: true}
}

// reap makes this process the parent of everything below that loses its own.
func reap() error {
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("become the reaper of the turn: %w", err)
	}
	return nil
}

// sharedEtc is read besides etcNames: without namespaces there is no other
// copy of what names users and hosts. None of it is secret.
var sharedEtc = []string{"passwd", "group", "hosts"}

// sharedRules are what a turn without namespaces may do with files. What they
// do not name cannot be opened; it can still be seen to exist.
func sharedRules(p plan) []fileRule {
	read := append([]string{}, systemRoots...)
	names := append(append([]string{}, etcNames...), sharedEtc...)
	if p.HostNet {
		names = append(names, "resolv.conf")
	}
	for _, name := range names {
		read = append(read, "/etc/"+name)
	}
	for _, s := range p.Sources {
		read = append(read, string(s.Path))
	}
	read = append(read, string(p.Program), p.inScratch(scratchHistory))
	var rules []fileRule
	for _, path := range read {
		real, err := filepath.EvalSymlinks(path)
		if err != nil {
			continue // this host does not have it
		}
		st, err := os.Stat(real)
		if err != nil {
			continue
		}
		r := fileRule{path: real, rights: landlockRead, optional: true}
		if !st.IsDir() {
			r.rights = landlockRead & landlockFile
		}
		rules = append(rules, r)
	}
	for _, name := range []string{scratchHome, scratchTmp, filepath.Dir(scratchReply)} {
		rules = append(rules, fileRule{path: p.inScratch(name), rights: landlockWrite})
	}
	for _, name := range deviceFiles {
		rules = append(rules, fileRule{path: "/dev/" + name, optional: true,
			rights: unix.LANDLOCK_ACCESS_FS_READ_FILE | unix.LANDLOCK_ACCESS_FS_WRITE_FILE})
	}
	return rules
}

// othersRunning counts the threads of this user, which the kernel counts
// towards the limit of processes where there is no namespace of users.
func othersRunning() int {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return 0
	}
	n := 0
	for _, e := range entries {
		status, err := readKernel("/proc/" + e.Name() + "/status")
		if err != nil || !bytes.Contains(status, []byte(fmt.Sprintf("\nUid:\t%d\t", os.Getuid()))) {
			continue
		}
		if tasks, err := os.ReadDir("/proc/" + e.Name() + "/task"); err == nil {
			n += len(tasks)
		}
	}
	return n
}

// clearCapabilities is dropCapabilities for a process that has no rights over
// its own sets: there is nothing in them, and no_new_privs keeps it so.
func clearCapabilities() error {
	head := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var none [2]unix.CapUserData
	if err := unix.Capset(&head, &none[0]); err != nil {
		return fmt.Errorf("drop capabilities: %w", err)
	}
	return nil
}

// achievedShared makes the Report of a turn without namespaces from what init
// read, and fails where something is missing that such a turn stands on.
func achievedShared(s Spec, seen posture, r Report) (Report, error) {
	r.Mechanism, r.Network = "linux-landlock", "seccomp-sockets"
	if s.Network == NetworkHost {
		r.Network = "host"
	}
	for _, set := range []string{"CapInh", "CapPrm", "CapEff", "CapAmb"} {
		if strings.Trim(seen.Caps[set], "0") != "" || seen.Caps[set] == "" {
			return r, notEnforceable("capabilities could not be dropped: "+set+" is "+seen.Caps[set], nil)
		}
	}
	switch {
	case !seen.NoNewPrivs:
		return r, notEnforceable("no_new_privs is not set", nil)
	case seen.Landlock.ABI < sharedABI:
		return r, notEnforceable("no Landlock rules are in force", nil)
	case len(seen.Files) != 3:
		return r, notEnforceable("the program would inherit descriptors: "+strings.Join(seen.Files, ", "), nil)
	}
	r.Gaps = sharedGaps(s, r)
	return r, nil
}

// sharedGaps says in plain words what a turn without namespaces can do that
// another cannot.
func sharedGaps(s Spec, r Report) []string {
	g := []string{
		"degraded: this machine gives no namespaces, so the turn runs among the host's own processes and files",
		"which files exist outside of what the turn may read, and their names, sizes and times, can be found out; their content cannot",
		"memory is bounded for each process, not for all together; the private files on the disk are not bounded",
		"after a death of the host's processes nobody can prove that nothing of the turn is left, until this machine starts anew",
		"there is no /proc inside: programs that need it fail",
	}
	if s.Network == NetworkHost {
		g = append(g, "the host's network is reachable, with its loopback")
	}
	if len(r.Groups) > 0 {
		g = append(g, "supplementary groups of the caller are kept: an ordinary user cannot drop them")
	}
	return g
}

// probeShared reports whether a turn without namespaces can be run here, by
// running one.
func probeShared(why error) bool {
	shell, err := filepath.EvalSymlinks("/bin/sh")
	if err != nil {
		return false
	}
	work, err := os.MkdirTemp("", "holdfast-probe-")
	if err != nil {
		return false
	}
	defer os.RemoveAll(work)
	if work, err = filepath.EvalSymlinks(work); err != nil {
		return false
	}
	p, err := launchShared(Spec{Program: shell, Arguments: []string{"-c", "exit 0"}, Workspace: work, Degraded: true,
		Wall: 10 * time.Second, StreamBytes: minStream}.withDefaults(), why)
	if err != nil {
		return false
	}
	if err := p.Release(); err != nil {
		p.Stop()
	}
	for range p.Chunks() {
	}
	r := p.Wait()
	return r.Cleanup.Confirmed && r.ExitCode != nil && *r.ExitCode == 0
}
