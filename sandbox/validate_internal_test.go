package sandbox

import (
	"errors"
	"strings"
	"testing"
	"time"
)

func goodSpec() Spec {
	return Spec{Program: "/usr/bin/env", Workspace: "/srv/work", Wall: time.Minute, StreamBytes: 1 << 10}
}

func TestSpecBounds(t *testing.T) {
	if err := goodSpec().check(); err != nil {
		t.Fatal(err)
	}
	long := strings.Repeat("x", maxArgument)
	for name, change := range map[string]func(*Spec){
		"no program":             func(s *Spec) { s.Program = "" },
		"relative program":       func(s *Spec) { s.Program = "bin/env" },
		"unclean program":        func(s *Spec) { s.Program = "/usr/../usr/bin/env" },
		"NUL in a path":          func(s *Spec) { s.Workspace = "/srv/a\x00b" },
		"long path":              func(s *Spec) { s.Workspace = "/" + strings.Repeat("x", maxPath) },
		"no workspace":           func(s *Spec) { s.Workspace = "" },
		"workspace is root":      func(s *Spec) { s.Workspace = "/" },
		"workspace is tmp":       func(s *Spec) { s.Workspace = "/tmp" },
		"workspace is usr":       func(s *Spec) { s.Workspace = "/usr" },
		"workspace in proc":      func(s *Spec) { s.Workspace = "/proc/self" },
		"workspace in run":       func(s *Spec) { s.Workspace = "/run/user/1000/x" },
		"writable in usr":        func(s *Spec) { s.Workspace, s.Write = "/usr/src/x", true },
		"writable in etc":        func(s *Spec) { s.Workspace, s.Write = "/etc/x", true },
		"read is etc":            func(s *Spec) { s.Read = []string{"/etc"} },
		"read is dev":            func(s *Spec) { s.Read = []string{"/dev"} },
		"read is sys":            func(s *Spec) { s.Read = []string{"/sys/class"} },
		"read is slash":          func(s *Spec) { s.Read = []string{"/"} },
		"33 read paths":          func(s *Spec) { s.Read = make([]string, 33) },
		"129 arguments":          func(s *Spec) { s.Arguments = make([]string, 129) },
		"NUL in an argument":     func(s *Spec) { s.Arguments = []string{"a\x00"} },
		"long argument":          func(s *Spec) { s.Arguments = []string{long} },
		"arguments in all":       func(s *Spec) { s.Arguments = strings.SplitAfter(strings.Repeat(long[1:]+",", 9), ",")[:9] },
		"short wall":             func(s *Spec) { s.Wall = time.Second - 1 },
		"no wall":                func(s *Spec) { s.Wall = 0 },
		"long wall":              func(s *Spec) { s.Wall = 24*time.Hour + 1 },
		"negative grace":         func(s *Spec) { s.Grace = -1 },
		"long grace":             func(s *Spec) { s.Grace = time.Hour },
		"small stream":           func(s *Spec) { s.StreamBytes = 1<<10 - 1 },
		"large stream":           func(s *Spec) { s.StreamBytes = 1<<20 + 1 },
		"negative output":        func(s *Spec) { s.OutputLimit = -1 },
		"large input":            func(s *Spec) { s.Stdin = make([]byte, 64<<10+1) },
		"large history":          func(s *Spec) { s.History = make([]byte, 1<<20+1) },
		"large reply":            func(s *Spec) { s.ReplyLimit = 1<<20 + 1 },
		"negative reply":         func(s *Spec) { s.ReplyLimit = -1 },
		"little memory":          func(s *Spec) { s.MemoryBytes = 1 << 20 },
		"negative memory":        func(s *Spec) { s.MemoryBytes = -1 },
		"negative slot":          func(s *Spec) { s.Slot = -1 },
		"large slot":             func(s *Spec) { s.Slot = 100_000 },
		"unknown network":        func(s *Spec) { s.Network = 9 },
		"unknown git":            func(s *Spec) { s.Git = 9 },
		"git without directory":  func(s *Spec) { s.Git = GitRead },
		"git directory inside":   func(s *Spec) { s.Write, s.GitDir = true, "/srv/work/sub/.git" },
		"unclean git directory":  func(s *Spec) { s.GitDir = "/srv//x" },
		"unclean protected":      func(s *Spec) { s.Protected = []string{"home"} },
		"protected in usr":       func(s *Spec) { s.Protected = []string{"/usr/lib/holdfast"} },
		"workspace is protected": func(s *Spec) { s.Protected = []string{"/srv/work"} },
		"workspace above it":     func(s *Spec) { s.Protected = []string{"/srv/work/home"} },
		"read in protected":      func(s *Spec) { s.Protected, s.Read = []string{"/home/x"}, []string{"/home/x/y"} },
		"git in protected":       func(s *Spec) { s.Protected, s.GitDir, s.Git = []string{"/home/x"}, "/home/x/g", GitRead },
	} {
		t.Run(name, func(t *testing.T) {
			s := goodSpec()
			change(&s)
			if err := s.check(); !errors.Is(err, ErrSpec) {
				t.Errorf("check gave %v", err)
			}
		})
	}
}

func TestOverlap(t *testing.T) {
	for name, row := range map[string]struct {
		bind, workspace, protected string
		refused                    bool
	}{
		"apart":                       {"/a/b", "/w", "/c", false},
		"same start of a name":        {"/home2", "/w", "/home", false},
		"equal":                       {"/home", "/w", "/home", true},
		"bind contains":               {"/h", "/w", "/h/home", true},
		"bind inside":                 {"/home/x", "/w", "/home", true},
		"workspace inside":            {"/home/worktrees/t", "/home/worktrees/t", "/home", false},
		"in a workspace inside":       {"/home/worktrees/t/tool", "/home/worktrees/t", "/home", false},
		"workspace equal":             {"/home", "/home", "/home", true},
		"workspace contains":          {"/h", "/h", "/h/home", true},
		"beside the workspace inside": {"/home/worktrees/u", "/home/worktrees/t", "/home", true},
	} {
		t.Run(name, func(t *testing.T) {
			if err := overlap(row.bind, row.workspace, row.protected); (err != nil) != row.refused {
				t.Errorf("gave %v", err)
			}
		})
	}
}

func TestEnvironmentRefusals(t *testing.T) {
	for _, v := range []string{
		"", "=", "=x", "NAME", "1A=x", "A B=x", "A-B=x", "É=x", "A\x00=x", "A=\x00", "A=" + strings.Repeat("x", maxVariable),
		"PATH=/evil", "HOME=/x", "TMPDIR=/x", "HOLDFAST_REPLY=/x", "HOLDFAST_X=1",
		"LD_PRELOAD=/x", "LD_LIBRARY_PATH=/x", "BASH_ENV=/x", "ENV=/x", "NODE_OPTIONS=-r x", "GIT_DIR=/x", "GIT_CONFIG_COUNT=9",
		"BASH_FUNC_ls%%=() { evil; }", "GLIBC_TUNABLES=x", "PYTHONSTARTUP=/x",
	} {
		s := goodSpec()
		s.Environment = []string{v}
		if err := s.check(); !errors.Is(err, ErrSpec) {
			t.Errorf("%.30q gave %v", v, err)
		}
	}
	for name, env := range map[string][]string{"twice": {"A=1", "A=2"}, "many": make([]string, maxVariables+1)} {
		s := goodSpec()
		s.Environment = env
		if err := s.check(); !errors.Is(err, ErrSpec) {
			t.Errorf("%s gave %v", name, err)
		}
	}
	s := goodSpec()
	s.Environment = []string{"LANG=de_DE.UTF-8", "A=", "_x9=a=b"}
	env, err := environ(s)
	if err != nil || strings.Count(strings.Join(env, "\n"), "LANG=") != 1 {
		t.Errorf("%v, %v", env, err)
	}
	if err != nil && strings.Contains(err.Error(), "de_DE") {
		t.Error("an error carries a value")
	}
}
