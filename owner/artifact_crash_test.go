package owner

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"holdfast/owner/snapshot"
	"holdfast/sandbox"
)

// keeping is a turn whose program has ended, before what it changed is kept:
// three files as it left them, two as they were, the manifest, the transcript's
// end and the result are still to come.
type keeping struct {
	t         *testing.T
	workspace string
	before    *snapshot.Tree
	old       []byte // of the file that is edited; an earlier turn's blob has it
}

func newKeeping(t *testing.T) *keeping {
	k := &keeping{t: t, workspace: filepath.Join(memDir(t), "workspace"), old: []byte("as it was\n")}
	if err := os.MkdirAll(k.workspace, 0o700); err != nil {
		t.Fatal(err)
	}
	k.file("edited", k.old)
	k.file("gone", k.old)
	k.file("stays", []byte("not touched\n"))
	k.before = k.take()
	k.file("edited", []byte("as the turn left it\n"))
	k.file("new", make([]byte, 20_000))
	k.file("second", []byte("second\n"))
	if err := os.Remove(filepath.Join(k.workspace, "gone")); err != nil {
		t.Fatal(err)
	}
	return k
}

func (k *keeping) file(name string, b []byte) {
	writeFile(k.t, filepath.Join(k.workspace, name), b)
}

func (k *keeping) take() *snapshot.Tree {
	k.t.Helper()
	tree, err := snapshot.Take(context.Background(), k.workspace, snapshot.Options{Exclude: excluded, At: time.Now()})
	if err != nil || !tree.Complete() {
		k.t.Fatal(err)
	}
	return tree
}

// run is the turn up to its program's end, on a disk that fails nothing yet.
func (k *keeping) run(s *Store, disk *failFS) (*execution, *admittedTurn, *transcript) {
	k.t.Helper()
	ctx := context.Background()
	mustApply(k.t, s, submitOf(deviceTask, "c1"))
	for _, b := range [][]byte{[]byte("grant"), k.old} {
		if _, err := s.PutBlob(b); err != nil {
			k.t.Fatal(err)
		}
	}
	task, err := s.Get(deviceTask)
	if err != nil {
		k.t.Fatal(err)
	}
	admitted := admission(&task)
	admitted.SourceSnapshot = treeDigest(k.before)
	for _, ev := range []Event{
		{Admitted: admitted}, {EffectIntent: ptr(EffectID(deviceTask, 1))},
		{Spawned: &sandbox.Identity{PID: 7, StartTime: 1, BootID: "another boot"}},
	} {
		if task, err = s.Append(ctx, deviceTask, 1, ev); err != nil {
			k.t.Fatal(err)
		}
	}
	p := realParts()
	p.fs = disk
	p.wait.sleep = func(context.Context, time.Duration) error { return nil }
	e := &execution{parts: p, store: s, id: deviceTask, epoch: 1, turn: 1}
	a := &admittedTurn{task: task, place: place{workspace: k.workspace}, source: k.before}
	tr, err := e.openTranscript(ctx, a)
	if err == nil {
		err = tr.sync()
	}
	if err != nil {
		k.t.Fatal(err)
	}
	return e, a, tr
}

// whole fails unless the turn's changes are all there as the turn left them.
func (k *keeping) whole(s *Store, m Changes) {
	k.t.Helper()
	var got []string
	for _, c := range m.Changes {
		got = append(got, c.Path+" "+c.Kind)
		for _, side := range []*Side{c.Before, c.After} {
			if side == nil || !side.Kept {
				continue
			}
			if _, err := s.GetBlob(side.Digest, maxRetainedFile); err != nil {
				k.t.Errorf("%s: %v", c.Path, err)
			}
		}
		if c.After != nil {
			b, err := os.ReadFile(filepath.Join(k.workspace, c.Path))
			if err != nil || DigestOf(b) != c.After.Digest || !c.After.Kept {
				k.t.Errorf("%s is kept as %+v: %v", c.Path, c.After, err)
			}
		}
	}
	want := []string{"edited edited", "gone removed", "new added", "second added"}
	if !m.Complete || !slices.Equal(got, want) {
		k.t.Errorf("complete %v: %v", m.Complete, got)
	}
}

// A crash at every operation between the first blob of what a turn changed and
// its result: the result names a manifest only when that and every blob it names
// are on disk; without a result the turn ends as its owner's death, with nothing
// retained; the check finds nothing either way; and what was kept already stands
// in nobody's way when the same is kept again.
func TestCrashWhileChangesAreKept(t *testing.T) {
	k := newKeeping(t)
	for _, how := range []string{"error", "short", "kill", "cut", "cut-half", "cut-zeros"} {
		t.Run(how, func(t *testing.T) {
			k.t = t
			base := memDir(t)
			recorded, lost := 0, 0
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
				e, a, tr := k.run(s, disk)
				disk.at = disk.n + at
				zero := 0
				_, err = e.finish(context.Background(), tr, a, observed{sandbox: sandbox.Result{
					Ending: sandbox.EndingExit, ExitCode: &zero, Cleanup: sandbox.Cleanup{Confirmed: true},
				}})
				done := err == nil
				s.Close()
				if disk.failed != "" && !done && !errors.Is(err, errInjected) && !errors.Is(err, ErrReopen) {
					t.Fatalf("failing %q: %v", disk.failed, err)
				}
				if strings.HasPrefix(how, "cut") {
					disk.restart(t, home, home+"-restarted")
					home += "-restarted"
				}
				k.settled(home, done, disk.failed, &recorded, &lost)
				if t.Failed() {
					t.Fatalf("after failing %q (operation %d)", disk.failed, at)
				}
				if disk.failed == "" {
					if at < 20 || recorded == 0 || lost == 0 {
						t.Fatalf("%d operations, %d results, %d without", at, recorded, lost)
					}
					break
				}
			}
		})
	}
}

// settled opens what is left and holds it against what was acknowledged.
func (k *keeping) settled(home string, done bool, failed string, recorded, lost *int) {
	k.t.Helper()
	ctx := context.Background()
	s, err := open(home, Options{Now: fixedClock}, newFailFS(0, "error"))
	if err != nil {
		k.t.Fatalf("after failing %q: %v", failed, err)
	}
	defer s.Close()
	wantSound(k.t, s)
	task, err := s.Get(deviceTask)
	if err != nil {
		k.t.Fatal(err)
	}
	switch r := task.Run.Result; {
	case r != nil && r.Artifacts != "":
		*recorded++
		m, err := s.Changes(deviceTask, 1)
		if err != nil {
			k.t.Errorf("the result names changes: %v", err)
		}
		k.whole(s, m)
	case r != nil: // it says that they could not be retained
		if failed == "" {
			k.t.Error("nothing failed, and nothing is retained")
		}
	case done:
		k.t.Error("the result was acknowledged and is lost")
	default:
		*lost++
		after, changed, err := s.Settle(ctx, deviceTask)
		if err != nil || !changed || after.Run.Result.Ending != EndingOwnerEnded || after.Run.Result.Artifacts != "" {
			k.t.Errorf("settled %v: %+v, %v", changed, after.Run.Result, err)
		}
		wantSound(k.t, s)
	}
	// The next turn finds the same files: blobs that are there, or are not.
	e := &execution{parts: realParts(), store: s, id: deviceTask, epoch: 1, turn: 1}
	m, name, err := e.retain(ctx, &admittedTurn{place: place{workspace: k.workspace}, source: k.before}, k.take())
	if err != nil {
		k.t.Fatalf("kept again: %v", err)
	}
	k.whole(s, m)
	if _, err := s.GetBlob(name, maxManifest); err != nil {
		k.t.Error(err)
	}
	wantSound(k.t, s)
}
