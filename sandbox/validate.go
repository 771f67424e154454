package sandbox

import (
	"fmt"
	"path/filepath"
	"strings"
	"time"
)

// Bounds of a Spec. Callers bound their own documents more tightly.
const (
	maxArguments    = 128
	maxArgument     = 128 << 10 // the kernel's own bound for one string
	maxArgumentsAll = 1 << 20
	maxStdin        = 64 << 10
	maxHistory      = 1 << 20
	maxRead         = 32
	maxReply        = 1 << 20
	maxPath         = 4095
	minWall         = time.Second
	maxWall         = 24 * time.Hour
	maxGrace        = time.Minute
	minStream       = 1 << 10
	maxStream       = 1 << 20
	minMemory       = 64 << 20 // below that a Go or Node program does not start
	maxSlot         = 99_999

	defaultGrace  = 250 * time.Millisecond
	defaultOutput = 2 << 20
)

// refuse makes an ErrSpec with its reason.
func refuse(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrSpec, fmt.Sprintf(format, args...))
}

// notEnforceable makes an ErrNotEnforceable: what could not be had, what to do
// about it, and the cause where there is one.
func notEnforceable(advice string, cause error) error {
	if cause == nil {
		return fmt.Errorf("%w: %s", ErrNotEnforceable, advice)
	}
	return fmt.Errorf("%w: %s: %w", ErrNotEnforceable, advice, cause)
}

// check holds what can be said about a Spec without looking at the disk.
func (s Spec) check() error {
	if err := checkArguments(s.Arguments); err != nil {
		return err
	}
	if _, err := environ(s); err != nil {
		return err
	}
	for _, b := range []struct {
		name   string
		value  int64
		lo, hi int64
	}{
		{"standard input bytes", int64(len(s.Stdin)), 0, maxStdin},
		{"history bytes", int64(len(s.History)), 0, maxHistory},
		{"reply limit", int64(s.ReplyLimit), 0, maxReply},
		{"read paths", int64(len(s.Read)), 0, maxRead},
		{"wall nanoseconds", int64(s.Wall), int64(minWall), int64(maxWall)},
		{"grace nanoseconds", int64(s.Grace), 0, int64(maxGrace)},
		{"stream bytes", int64(s.StreamBytes), minStream, maxStream},
		{"output limit", s.OutputLimit, 0, 1 << 50},
		{"disk bytes", s.DiskBytes, 0, 1 << 50},
		{"disk files", s.DiskFiles, 0, 1 << 30},
		{"slot", int64(s.Slot), 0, maxSlot},
	} {
		if b.value < b.lo || b.value > b.hi {
			return refuse("%s %d outside %d to %d", b.name, b.value, b.lo, b.hi)
		}
	}
	if s.MemoryBytes != 0 && s.MemoryBytes < minMemory {
		return refuse("memory bytes %d below %d", s.MemoryBytes, int64(minMemory))
	}
	if s.Network > NetworkAllow || s.Git > GitRead {
		return refuse("unknown network or git access")
	}
	if _, err := s.allowList(); err != nil {
		return err
	}
	return s.checkPaths()
}

func checkArguments(args []string) error {
	if len(args) > maxArguments {
		return refuse("%d arguments, at most %d", len(args), maxArguments)
	}
	total := 0
	for i, a := range args {
		if strings.IndexByte(a, 0) >= 0 {
			return refuse("argument %d holds a NUL", i)
		}
		if len(a) >= maxArgument {
			return refuse("argument %d is longer than %d bytes", i, maxArgument-1)
		}
		total += len(a) + 1
	}
	if total > maxArgumentsAll {
		return refuse("arguments take more than %d bytes", maxArgumentsAll)
	}
	return nil
}

func (s Spec) checkPaths() error {
	named := []struct{ what, path string }{{"program", s.Program}, {"workspace", s.Workspace}}
	if s.GitDir != "" {
		named = append(named, struct{ what, path string }{"git directory", s.GitDir})
	}
	for _, p := range s.Read {
		named = append(named, struct{ what, path string }{"read path", p})
	}
	for _, p := range s.Protected {
		named = append(named, struct{ what, path string }{"protected path", p})
	}
	for _, n := range named {
		if !canonical(n.path) {
			return refuse("%s %q is not a canonical absolute path", n.what, n.path)
		}
	}
	for _, bind := range s.asked() {
		if err := checkPlace(bind); err != nil {
			return err
		}
	}
	if s.Write {
		for _, root := range append([]string{"/etc"}, systemRoots...) {
			if within(s.Workspace, root) {
				return refuse("workspace %q lies in %s, which is never writable; work on a copy elsewhere", s.Workspace, root)
			}
		}
		if s.GitDir != "" && within(s.GitDir, s.Workspace) && s.GitDir != filepath.Join(s.Workspace, ".git") {
			return refuse("git directory %q lies inside the writable workspace", s.GitDir)
		}
	}
	if s.Git == GitRead && s.GitDir == "" {
		return refuse("git is readable but no git directory is named")
	}
	for _, p := range s.Protected {
		for _, bind := range append(s.asked(), systemRoots...) {
			if err := overlap(bind, s.Workspace, p); err != nil {
				return err
			}
		}
	}
	return nil
}

// reserved are the places of the view that are made from nothing: a bind may
// neither contain nor lie within one.
var reserved = []string{"/proc", "/dev", "/run", "/sys"}

// composed are the places that are made from nothing but may hold binds.
var composed = []string{tmpDir, "/etc"}

// systemRoots are bound read-only where the host has them.
var systemRoots = []string{"/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/nix/store"}

// asked are the paths that the Spec takes from the disk.
func (s Spec) asked() []string {
	b := append([]string{s.Workspace, s.Program}, s.Read...)
	if s.Git == GitRead {
		b = append(b, s.GitDir)
	}
	return b
}

// checkPlace refuses a bind that collides with what the view makes itself.
func checkPlace(bind string) error {
	for _, own := range reserved {
		if within(bind, own) || within(own, bind) {
			return refuse("%q overlaps %s, which the sandbox makes itself", bind, own)
		}
	}
	for _, own := range append(composed, systemRoots...) {
		if within(own, bind) {
			return refuse("%q contains %s, which the sandbox lays out itself; name what is needed in it", bind, own)
		}
	}
	return nil
}

// overlap refuses a bind that would show a protected path. The workspace, and
// what lies in it, may lie within a protected path: worktrees live in the home.
func overlap(bind, workspace, protected string) error {
	if within(protected, bind) {
		return refuse("%q contains the protected %q; choose another path or move the home", bind, protected)
	}
	if within(bind, protected) && !within(bind, workspace) {
		return refuse("%q lies inside the protected %q", bind, protected)
	}
	return nil
}

// within reports whether path is dir or lies in it. Both are canonical.
func within(path, dir string) bool {
	return path == dir || dir == "/" || strings.HasPrefix(path, dir+"/")
}

func canonical(path string) bool {
	return len(path) > 1 && len(path) <= maxPath && path[0] == '/' &&
		strings.IndexByte(path, 0) < 0 && filepath.Clean(path) == path
}

func (s Spec) withDefaults() Spec {
	if s.Grace == 0 {
		s.Grace = defaultGrace
	}
	if s.OutputLimit == 0 {
		s.OutputLimit = defaultOutput
	}
	return s
}
