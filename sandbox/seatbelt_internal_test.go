package sandbox

import (
	"errors"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

var updateProfiles = flag.Bool("update-profiles", false, "write the profiles in testdata/seatbelt anew")

func exampleSeatbelt() seatbelt {
	return seatbelt{
		self: "/opt/homebrew/bin/holdfast", program: "/usr/local/bin/agent", workspace: "/Volumes/o/.holdfast/trees/t1", write: true,
		temp: "/private/var/folders/ab/T/holdfast-turn-1", read: []string{"/Volumes/o/go/pkg/mod"},
		hidden: []string{"/Volumes/o/src/app/.git"}, sealed: []string{"/Volumes/o/.holdfast/trees/t1/.git"},
		protected: []string{"/Volumes/o/.holdfast", "/Volumes/o/.ssh"}, home: "/Volumes/o",
	}
}

// TestProfiles compares whole profiles, so that no rule comes or goes unseen.
func TestProfiles(t *testing.T) {
	for name, change := range map[string]func(*seatbelt){
		"write":    func(*seatbelt) {},
		"readonly": func(s *seatbelt) { s.write, s.sealed, s.hidden = false, nil, nil },
		"network":  func(s *seatbelt) { s.network = true },
		"quoted":   func(s *seatbelt) { s.workspace = `/Volumes/o/a "b" \(allow default) é;` },
	} {
		t.Run(name, func(t *testing.T) {
			s := exampleSeatbelt()
			change(&s)
			got, err := s.profile()
			if err != nil {
				t.Fatal(err)
			}
			file := filepath.Join("testdata", "seatbelt", name+".sb")
			if *updateProfiles {
				if err := errors.Join(os.MkdirAll(filepath.Dir(file), 0o755), os.WriteFile(file, []byte(got), 0o644)); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			if got != string(want) {
				t.Errorf("got:\n%s\nwant:\n%s", got, want)
			}
		})
	}
}

// TestProfileOrder: the last rule that matches holds, so what must be denied
// comes after what allows it.
func TestProfileOrder(t *testing.T) {
	text, err := exampleSeatbelt().profile()
	if err != nil {
		t.Fatal(err)
	}
	for _, row := range [][2]string{
		{`(subpath "/Volumes/o/.holdfast")`, `(subpath "/Volumes/o/.holdfast/trees/t1")`},
		{`(allow file-write*`, `(subpath "/Volumes/o/.holdfast/trees/t1/.git")`},
		{`(allow process-exec*`, `(subpath "/Volumes/o/src/app/.git")`},
		{`(allow file-read*`, `(subpath "/Volumes/o/Library/Keychains")`},
		{`(allow file-read*`, `(subpath "/Volumes/o/.ssh")`},
		{`(deny default)`, `(deny network*)`},
	} {
		first, second := strings.Index(text, row[0]), strings.LastIndex(text, row[1])
		if first < 0 || second < first {
			t.Errorf("%s at %d, %s at %d", row[0], first, row[1], second)
		}
	}
	if strings.Contains(text, "securityd") || strings.Contains(text, "appleevent") || strings.Contains(text, "(allow network") {
		t.Error("the profile allows what no turn may have")
	}
}

func TestProfileRefuses(t *testing.T) {
	for name, bad := range map[string]string{
		"newline": "/a\nb", "nul": "/a\x00b", "tab": "/a\tb", "delete": "/a\x7fb", "not utf-8": "/a\xff", "relative": "a", "dots": "/a/../b",
		"root": "/", "empty": "",
	} {
		t.Run(name, func(t *testing.T) {
			for _, set := range []func(*seatbelt){
				func(s *seatbelt) { s.workspace = bad }, func(s *seatbelt) { s.program = bad }, func(s *seatbelt) { s.temp = bad },
				func(s *seatbelt) { s.read = []string{bad} }, func(s *seatbelt) { s.hidden = []string{bad} },
				func(s *seatbelt) { s.sealed = []string{bad} }, func(s *seatbelt) { s.protected = []string{bad} },
			} {
				s := exampleSeatbelt()
				set(&s)
				if text, err := s.profile(); !errors.Is(err, ErrSpec) || text != "" {
					t.Errorf("got %v and %d bytes", err, len(text))
				}
			}
		})
	}
}

// FuzzQuoteSBPL: what is quoted reads back as it was, and ends where it should.
func FuzzQuoteSBPL(f *testing.F) {
	for _, seed := range []string{"", "/a", `/a"b`, `/a\`, `\"`, `") (allow default) ("`, "é", "/a;b", "/a\nb"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if !printable(s) {
			return
		}
		back, rest, ok := unquoteSBPL(quoteSBPL(s) + ")")
		if !ok || back != s || rest != ")" {
			t.Fatalf("%q reads back as %q, then %q", s, back, rest)
		}
	})
}

// unquoteSBPL reads one string as Scheme does.
func unquoteSBPL(text string) (value, rest string, ok bool) {
	if !strings.HasPrefix(text, `"`) {
		return "", text, false
	}
	var b strings.Builder
	for i := 1; i < len(text); i++ {
		switch text[i] {
		case '"':
			return b.String(), text[i+1:], true
		case '\\':
			i++
			if i == len(text) {
				return "", "", false
			}
			b.WriteByte(text[i])
		default:
			b.WriteByte(text[i])
		}
	}
	return "", "", false
}
