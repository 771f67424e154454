package owner

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// freezing is a turn whose context was read and is not kept yet: two instructions, knowledge, the manifest, the grant
// and the admission are still to come.
type freezing struct {
	t     *testing.T
	root  string
	grant []byte
	at    *Admission
	f     *frozen
}

func newFreezing(t *testing.T) *freezing {
	t.Helper()
	k := &freezing{t: t, root: canonicalDir(t)}
	source := tree(t, k.root, map[string]string{"AGENTS.md": "root", "src/AGENTS.md": "src", "docs/k.md": someEntry})
	r := someRequirements()
	pin := pinned("docs/k.md", someEntry)
	r["instruction_targets"] = []any{"src"}
	r["knowledge"] = []any{map[string]any{"id": pin.ID, "version": pin.Version, "digest": pin.Digest, "path": pin.Path, "sources": pin.Sources}}
	k.grant = publicGrant(t, map[string]any{"task_id": deviceTask, "requirements": r})
	g, err := ParseGrant(k.grant)
	if err != nil {
		t.Fatal(err)
	}
	if k.f, err = freezeContext(g.Requirements, k.root, source); err != nil {
		t.Fatal(err)
	}
	k.at = &Admission{SourceSnapshot: treeDigest(source), Checks: &CheckPlan{Requirements: DigestOf(mustJSON(g.Requirements)), Seconds: 60,
		Suites: []Suite{{Check: "c", Manifest: "/suites/c.json", ManifestDigest: aDigest, Program: "/suites/c", ProgramDigest: aDigest, Seconds: 60, OutputBytes: 4096}}}}
	return k
}

// admit keeps the context and the grant and then records the admission, as an owner does.
func (k *freezing) admit(s *Store) error {
	task, err := s.Get(deviceTask)
	if err != nil {
		return err
	}
	a := admission(&task)
	a.SourceSnapshot, a.Checks = k.at.SourceSnapshot, k.at.Checks
	e := &execution{parts: realParts(), store: s, id: deviceTask}
	e.wait.sleep = func(context.Context, time.Duration) error { return nil }
	if a.GrantDigest, err = s.PutBlob(k.grant); err != nil {
		return err
	}
	k.f.bind(deviceTask, 1, a)
	if a.Context, err = e.keepContext(context.Background(), k.f); err != nil {
		return err
	}
	_, err = s.Append(context.Background(), deviceTask, task.NextEpoch(), Event{Admitted: a})
	return err
}

// A crash at every operation between the first blob and the admission: an admission names a context only when all of
// it is on disk; without one nothing names it, the check finds nothing, and the next owner keeps the same again.
func TestCrashWhileContextIsKept(t *testing.T) {
	k := newFreezing(t)
	for _, how := range []string{"error", "short", "kill", "cut", "cut-half", "cut-zeros"} {
		t.Run(how, func(t *testing.T) {
			k.t = t
			base := memDir(t)
			admitted, lost := 0, 0
			for at := 1; ; at++ {
				disk := newFailFS(0, how)
				home := filepath.Join(base, fmt.Sprint(at))
				if err := os.Mkdir(home, 0o700); err != nil {
					t.Fatal(err)
				}
				s, err := open(home, Options{Now: fixedClock, Create: true}, disk)
				if err != nil {
					t.Fatal(err)
				}
				mustApply(t, s, submitOf(deviceTask, "c1"))
				disk.at = disk.n + at
				err = k.admit(s)
				s.Close()
				if err != nil && (disk.failed == "" || !errors.Is(err, errInjected) && !errors.Is(err, ErrReopen)) {
					t.Fatalf("failing %q: %v", disk.failed, err)
				}
				if len(how) > 2 && how[:3] == "cut" {
					disk.restart(t, home, home+"-restarted")
					home += "-restarted"
				}
				k.settled(home, err == nil, &admitted, &lost)
				if t.Failed() {
					t.Fatalf("after failing %q (operation %d)", disk.failed, at)
				}
				if disk.failed == "" {
					if at < 20 || admitted == 0 || lost == 0 {
						t.Fatalf("%d operations, %d admissions, %d without", at, admitted, lost)
					}
					break
				}
			}
		})
	}
}

// settled opens what is left, holds it against what was said, and admits the turn where it was not.
func (k *freezing) settled(home string, done bool, admitted, lost *int) {
	k.t.Helper()
	s, err := open(home, Options{Now: fixedClock}, newFailFS(0, "error"))
	if err != nil {
		k.t.Fatal(err)
	}
	defer s.Close()
	wantSound(k.t, s)
	task, err := s.Get(deviceTask)
	if err != nil {
		k.t.Fatal(err)
	}
	if task.Run == nil {
		*lost++
		if done {
			k.t.Error("the admission was acknowledged and is lost")
		}
		if err := k.admit(s); err != nil {
			k.t.Fatalf("admitted again: %v", err)
		}
	} else {
		*admitted++
	}
	c, _, err := s.FrozenContext(deviceTask, 1)
	if err != nil || len(c.parts()) != 3 {
		k.t.Errorf("the admission names %+v: %v", c, err)
	}
	wantSound(k.t, s)
}
