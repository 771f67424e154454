package host

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sort"
	"strings"
	"sync"
	"unicode"
	"unicode/utf8"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"holdfast/internal/atomicfile"
	"holdfast/internal/saferead"
	"holdfast/nip"
	"holdfast/owner/gitguard"
)

const (
	workspacesVersion = "holdfast.workspaces.v1"
	workspacesLimit   = 512 << 10
	maxWorkspaces     = 64
)

// Workspace is a label for a root on this machine. The path never travels.
type Workspace struct {
	Label nip.Label `json:"label"`
	Path  string    `json:"path"`
}

// workspaceFile is workspaces.json, sorted by label.
type workspaceFile struct {
	V          string      `json:"v"`
	Workspaces []Workspace `json:"workspaces"`
}

func (f *workspaceFile) find(l nip.Label) (Workspace, bool) {
	for _, w := range f.Workspaces {
		if w.Label == l {
			return w, true
		}
	}
	return Workspace{}, false
}

// labelsOf lists the labels whose root is path.
func (f *workspaceFile) labelsOf(path string) []nip.Label {
	var out []nip.Label
	for _, w := range f.Workspaces {
		if w.Path == path {
			out = append(out, w.Label)
		}
	}
	return out
}

func (f *workspaceFile) labels() []nip.Label {
	out := make([]nip.Label, 0, len(f.Workspaces))
	for _, w := range f.Workspaces {
		out = append(out, w.Label)
	}
	return out
}

func loadWorkspaces(home string) (*workspaceFile, error) {
	raw, err := saferead.Read(filepath.Join(home, "workspaces.json"), workspacesLimit)
	if errors.Is(err, os.ErrNotExist) {
		return &workspaceFile{V: workspacesVersion}, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read workspaces: %w", err)
	}
	var f workspaceFile
	if err := json.Unmarshal(raw, &f, json.RejectUnknownMembers(true)); err != nil {
		return nil, fmt.Errorf("workspaces.json: %w", err)
	}
	if f.V != workspacesVersion || len(f.Workspaces) > maxWorkspaces {
		return nil, fmt.Errorf("workspaces.json is not a %s of at most %d labels", workspacesVersion, maxWorkspaces)
	}
	// A person may have edited the file: the wire wants sorted, distinct labels.
	sort.Slice(f.Workspaces, func(i, j int) bool { return f.Workspaces[i].Label < f.Workspaces[j].Label })
	for i, w := range f.Workspaces {
		switch {
		case labelFault(w.Label) != "":
			return nil, fmt.Errorf("workspaces.json: label %q: %s", w.Label, labelFault(w.Label))
		case i > 0 && w.Label == f.Workspaces[i-1].Label:
			return nil, fmt.Errorf("workspaces.json names %q twice", w.Label)
		case !filepath.IsAbs(w.Path):
			return nil, fmt.Errorf("workspaces.json: the path of %q is not absolute", w.Label)
		}
	}
	return &f, nil
}

func (f *workspaceFile) save(home string) error {
	sort.Slice(f.Workspaces, func(i, j int) bool { return f.Workspaces[i].Label < f.Workspaces[j].Label })
	raw, err := json.Marshal(f, jsontext.WithIndent("  "))
	if err != nil {
		return fmt.Errorf("encode workspaces: %w", err)
	}
	return atomicfile.Write(filepath.Join(home, "workspaces.json"), append(raw, '\n'))
}

// settings keeps two changes of workspaces.json or policy.json of this process
// from crossing; other processes are kept out by host.lock.
var settings sync.Mutex

// AddWorkspace gives a root a label. The root must exist, be outside the home,
// and is kept by its canonical path.
func AddWorkspace(home string, label nip.Label, path string) (Workspace, error) {
	abs, err := rootFor(home, label, path)
	if err != nil {
		return Workspace{}, err
	}
	settings.Lock()
	defer settings.Unlock()
	f, err := loadWorkspaces(home)
	if err != nil {
		return Workspace{}, err
	}
	w := Workspace{Label: label, Path: abs}
	if old, ok := f.find(label); ok {
		if old.Path == abs {
			return w, nil
		}
		return Workspace{}, fmt.Errorf("%w: %q already names %s; remove it first", ErrUsage, label, old.Path)
	}
	if len(f.Workspaces) >= maxWorkspaces {
		return Workspace{}, fmt.Errorf("%w: at most %d workspaces", ErrUsage, maxWorkspaces)
	}
	f.Workspaces = append(f.Workspaces, w)
	return w, f.save(home)
}

// rootFor is the canonical path that the label would name, or why it cannot.
func rootFor(home string, label nip.Label, path string) (string, error) {
	if why := labelFault(label); why != "" {
		return "", fmt.Errorf("%w: label: %s", ErrUsage, why)
	}
	abs, err := filepath.Abs(path)
	if err == nil {
		abs, err = filepath.EvalSymlinks(abs)
	}
	if err != nil {
		return "", fmt.Errorf("%w: %s", ErrUsage, err)
	}
	if st, err := os.Stat(abs); err != nil || !st.IsDir() {
		return "", fmt.Errorf("%w: %s is not a folder", ErrUsage, abs)
	}
	realHome, err := filepath.EvalSymlinks(home)
	if err != nil {
		return "", fmt.Errorf("look at home: %w", err)
	}
	if within(abs, realHome) || within(realHome, abs) {
		return "", fmt.Errorf("%w: a workspace and the home must not contain each other", ErrUsage)
	}
	return abs, nil
}

// RemoveWorkspace forgets a label; the folder and its tasks stay.
func RemoveWorkspace(home string, label nip.Label) error {
	settings.Lock()
	defer settings.Unlock()
	f, err := loadWorkspaces(home)
	if err != nil {
		return err
	}
	for i, w := range f.Workspaces {
		if w.Label == label {
			f.Workspaces = append(f.Workspaces[:i], f.Workspaces[i+1:]...)
			return f.save(home)
		}
	}
	return fmt.Errorf("%w: no workspace %q", ErrNotFound, label)
}

// kind says how tasks of a root can run.
func (w Workspace) kind() string {
	if _, err := os.Stat(w.Path); err != nil {
		return "missing"
	}
	if _, err := gitguard.Find(w.Path); err != nil {
		return "folder"
	}
	return "git"
}

func labelFault(l nip.Label) string {
	s := string(l)
	switch {
	case s == "" || len(s) > 128:
		return "1 to 128 bytes"
	case s == "." || s == "..", strings.ContainsAny(s, `/\`):
		return "no slashes, not . or .."
	case strings.ContainsFunc(s, unicode.IsControl), !utf8.ValidString(s):
		return "no control characters, and UTF-8"
	}
	return ""
}

// within reports whether path is root or below it.
func within(path, root string) bool {
	rel, err := filepath.Rel(root, path)
	return err == nil && rel != ".." && !strings.HasPrefix(rel, "../")
}

// ValidLabel reports whether a workspace can have the label.
func ValidLabel(l nip.Label) bool { return labelFault(l) == "" }
