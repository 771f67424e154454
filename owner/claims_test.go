package owner

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.etcd.io/bbolt"

	"holdfast/internal/commit"
)

// hold admits a queued task's turn at a path, as its owner does.
func hold(s *Store, id TaskID, path string, alone bool) (holder TaskID, err error) {
	t, err := s.Get(id)
	if err != nil {
		return "", err
	}
	ad := admission(&t)
	ad.Workspace = path
	if _, err := s.PutBlob([]byte("grant")); err != nil {
		return "", err
	}
	return s.claim(context.Background(), claim{id, path, alone}, 30*time.Second, func() error {
		_, err := s.Append(context.Background(), id, 1, Event{Admitted: ad})
		return err
	})
}

// letGo ends the turn of hold.
func letGo(t testing.TB, s *Store, id TaskID, path string) {
	t.Helper()
	mustAppend(t, s, id, 1, Event{Result: exited(0)})
	if err := s.release(context.Background(), claim{task: id, path: path}); err != nil {
		t.Fatal(err)
	}
}

// entries is everything that the index holds.
func entries(t testing.TB, s *Store) (keys []string) {
	t.Helper()
	db, err := s.openClaims(30*time.Second, false)
	if err != nil || db == nil {
		t.Fatalf("index: %v %v", db, err)
	}
	defer db.Close()
	if err := db.View(func(tx *bbolt.Tx) error {
		for _, name := range [][]byte{bucketAlone, bucketRead} {
			if err := tx.Bucket(name).ForEach(func(k, _ []byte) error {
				keys = append(keys, string(k))
				return nil
			}); err != nil {
				return err
			}
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	return keys
}

func TestOverlap(t *testing.T) {
	for _, r := range []struct {
		name           string
		first, second  string
		alone1, alone2 bool
		busy           bool
	}{
		{"equal", "/a/b", "/a/b", true, true, true},
		{"above", "/a/b", "/a", true, true, true},
		{"below", "/a", "/a/b/c", true, true, true},
		{"the root", "/a/b/c", "/", true, true, true},
		{"below the root", "/", "/a", true, true, true},
		{"beside", "/a/b", "/a/c", true, true, false},
		{"a longer name", "/a/b", "/a/bc", true, true, false},
		{"a shorter name", "/a/bc", "/a/b", true, true, false},
		{"a longer name with a low byte", "/a/b", "/a/b ", true, true, false},
		{"below a name of a low byte", "/a/ /c", "/a", true, true, true},
		{"two that read", "/a", "/a", false, false, false},
		{"reading above one that reads", "/a/b", "/a", false, false, false},
		{"writing beside one that reads", "/a", "/a", false, true, true},
		{"reading beside one that writes", "/a", "/a", true, false, true},
		{"writing above one that reads", "/a/b/c", "/a", false, true, true},
		{"reading below one that writes", "/a", "/a/b", true, false, true},
		{"reading above one that writes", "/a/b", "/a", true, false, true},
	} {
		t.Run(r.name, func(t *testing.T) {
			t.Parallel()
			s := newStore(t)
			for _, id := range []TaskID{"one", "two"} {
				mustApply(t, s, submitOf(id, "c-"+string(id)))
			}
			if _, err := hold(s, "one", r.first, r.alone1); err != nil {
				t.Fatal(err)
			}
			holder, err := hold(s, "two", r.second, r.alone2)
			if !r.busy {
				wantCode(t, err, "")
				wantSound(t, s)
				return
			}
			wantCode(t, err, "workspace_busy")
			if holder != "one" {
				t.Fatalf("holder %q", holder)
			}
			if two, err := s.Get("two"); err != nil || two.Run != nil || two.Revision != 1 {
				t.Fatalf("the refused one: %+v %v", two, err)
			}
			if who, err := s.WorkspaceHolder(r.second, "two", r.alone2); err != nil || who != "one" {
				t.Fatalf("holder %q, %v", who, err)
			}
			letGo(t, s, "one", r.first)
			if who, err := s.WorkspaceHolder(r.second, "two", r.alone2); err != nil || who != "" {
				t.Fatalf("holder after the end %q, %v", who, err)
			}
			if _, err := hold(s, "two", r.second, r.alone2); err != nil {
				t.Fatal(err)
			}
			if got := entries(t, s); len(got) != 1 {
				t.Fatalf("entries %q", got)
			}
			wantSound(t, s)
		})
	}
}

// A workspace stays its turn's until nothing of the turn is left, whatever was said of it meanwhile.
func TestClaimLasts(t *testing.T) {
	s := newStore(t)
	for _, id := range []TaskID{"one", "two"} {
		mustApply(t, s, submitOf(id, "c-"+string(id)))
	}
	busy := func(what string) {
		t.Helper()
		if err := s.release(context.Background(), claim{task: "one", path: "/a", alone: true}); err != nil {
			t.Fatal(err)
		}
		_, err := hold(s, "two", "/a", true)
		var refusal *Error
		if !errors.As(err, &refusal) || refusal.Code != "workspace_busy" {
			t.Fatalf("%s: %v", what, err)
		}
	}
	if _, err := hold(s, "one", "/a", true); err != nil {
		t.Fatal(err)
	}
	busy("running")
	one, _ := s.Get("one")
	mustApply(t, s, cancelOf("one", "cancel", one.Revision))
	busy("asked to stop")
	mustAppend(t, s, "one", 2, Event{OwnerLost: true})
	busy("its owner lost")
	// Only the proof that nothing is left gives it back.
	lost := Result{Ending: EndingOwnerEnded, GroupClear: true, TraceDigest: DigestOf(nil), CostStatus: "unknown"}
	mustAppend(t, s, "one", 2, Event{Result: &lost})
	if _, err := hold(s, "two", "/a", true); err != nil {
		t.Fatal(err)
	}
	t.Run("not clear", func(t *testing.T) {
		mustApply(t, s, submitOf("three", "c-three"))
		left := exited(0)
		left.GroupClear = false
		if one := mustAppend(t, s, "two", 1, Event{Result: left}); one.Status != StatusUnknown {
			t.Fatal(one.Status)
		}
		_, err := hold(s, "three", "/a", true)
		wantCode(t, err, "workspace_busy")
	})
}

// What a crash leaves between the two durable steps, and after the result, counts for nothing.
func TestClaimLeftByACrash(t *testing.T) {
	s := newStore(t)
	for _, id := range []TaskID{"one", "two", "three"} {
		mustApply(t, s, submitOf(id, "c-"+string(id)))
	}
	died := errors.New("died")
	if _, err := s.claim(context.Background(), claim{"one", "/a", true}, time.Second, func() error { return died }); !errors.Is(err, died) {
		t.Fatal(err)
	}
	if got := entries(t, s); len(got) != 1 {
		t.Fatalf("entries %q", got)
	}
	if _, err := hold(s, "two", "/a/b", true); err != nil {
		t.Fatalf("an entry without its admission: %v", err)
	}
	mustAppend(t, s, "two", 1, Event{Result: exited(0)}) // and its owner dies before the release
	if _, err := hold(s, "three", "/", true); err != nil {
		t.Fatalf("an entry of a turn that has ended: %v", err)
	}
	if got := entries(t, s); len(got) != 1 {
		t.Fatalf("entries %q", got)
	}
	// A turn's own entry of before does not stand in its way.
	s2 := newStore(t)
	mustApply(t, s2, submitOf("one", "c"))
	for range 2 {
		if _, err := s2.claim(context.Background(), claim{"one", "/a", true}, time.Second, func() error { return died }); !errors.Is(err, died) {
			t.Fatal(err)
		}
	}
	if _, err := hold(s2, "one", "/a", false); err != nil {
		t.Fatal(err)
	}
}

// The index says nothing that the logs do not: without it, it is made from them.
func TestClaimsMadeAnew(t *testing.T) {
	s := newStore(t)
	for _, id := range []TaskID{"one", "two", "reads", "idle"} {
		mustApply(t, s, submitOf(id, "c-"+string(id)))
	}
	if _, err := hold(s, "one", "/a", true); err != nil {
		t.Fatal(err)
	}
	// One whose grant says that it only reads, and shares.
	g := Grant{TaskID: "reads", IntentDigest: DigestOf(nil), ExpectedRevision: 1, Program: "/bin/sh", WallSeconds: 1, StreamBytes: 1024,
		MemoryBytes: 64 << 20, Adapter: BoundedCommand, Network: []byte(`"none"`), Git: "hidden", PolicyDigest: DigestOf([]byte("policy"))}
	b, err := EncodeGrant(g)
	if err != nil {
		t.Fatal(err)
	}
	digest, err := s.PutBlob(b)
	if err != nil {
		t.Fatal(err)
	}
	reads, _ := s.Get("reads")
	ad := admission(&reads)
	ad.GrantDigest, ad.Workspace = digest, "/r"
	mustAppend(t, s, "reads", 1, Event{Admitted: ad})
	if err := os.RemoveAll(filepath.Join(s.Home(), claimsFolder)); err != nil {
		t.Fatal(err)
	}
	again := openStore(t, s.Home(), false) // another process, that knows nothing
	_, err = hold(again, "two", "/a/b", true)
	wantCode(t, err, "workspace_busy")
	_, err = hold(again, "two", "/r", true)
	wantCode(t, err, "workspace_busy")
	if _, err := hold(again, "two", "/r", false); err != nil {
		t.Fatal(err)
	}
	wantSound(t, s)
}

// However many ask at once, one has it.
func TestClaimRace(t *testing.T) {
	s := newStore(t)
	const many = 8
	paths := []string{"/a", "/a/b", "/", "/a/b/c"}
	for i := range many {
		mustApply(t, s, submitOf(TaskID(fmt.Sprint("t", i)), fmt.Sprint("c", i)))
	}
	var wg sync.WaitGroup
	var have atomic.Int32
	for i := range many {
		own := openStore(t, s.Home(), false)
		wg.Go(func() {
			_, err := hold(own, TaskID(fmt.Sprint("t", i)), paths[i%len(paths)], true)
			switch {
			case err == nil:
				have.Add(1)
			case !isRefusal(err, "workspace_busy"):
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if have.Load() != 1 {
		t.Fatalf("%d hold it", have.Load())
	}
}

func TestClaimsRefuse(t *testing.T) {
	edit := func(fn func(b *bbolt.Bucket) error) func(t *testing.T, path string) {
		return func(t *testing.T, path string) {
			db, err := commit.Open(path, commit.Options{Kind: claimsKind, Version: claimsVersion})
			if err != nil {
				t.Fatal(err)
			}
			defer db.Close()
			if err := db.Update(context.Background(), func(tx *bbolt.Tx) error { return fn(tx.Bucket(bucketAlone)) }); err != nil {
				t.Fatal(err)
			}
		}
	}
	good := claim{"one", "/a", true}
	for _, r := range []struct {
		name   string
		damage func(t *testing.T, path string)
		is     error
	}{
		{"no store", func(t *testing.T, path string) { writeFile(t, path, make([]byte, 8192)) }, ErrCorrupt},
		{"empty", func(t *testing.T, path string) { os.Truncate(path, 0) }, ErrCorrupt},
		{"an entry that names no task", edit(func(b *bbolt.Bucket) error { return b.Put(good.key(), []byte{claimFormat, '/'}) }), ErrCorrupt},
		{"an entry of another task", edit(func(b *bbolt.Bucket) error { return b.Put(good.key(), []byte("\x01two")) }), ErrCorrupt},
		{"a short entry", edit(func(b *bbolt.Bucket) error { return b.Put(good.key(), []byte{claimFormat}) }), ErrCorrupt},
		{"a newer entry", edit(func(b *bbolt.Bucket) error { return b.Put(good.key(), []byte("\x02one")) }), ErrNewer},
	} {
		t.Run(r.name, func(t *testing.T) {
			s := newStore(t)
			for _, id := range []TaskID{"one", "two"} {
				mustApply(t, s, submitOf(id, "c-"+string(id)))
			}
			if _, err := hold(s, "one", "/a", true); err != nil {
				t.Fatal(err)
			}
			r.damage(t, filepath.Join(s.Home(), claimsFolder, claimsName))
			_, err := hold(s, "two", "/a", true)
			wantErr(t, err, r.is)
			if two, _ := s.Get("two"); two.Run != nil {
				t.Fatal("admitted all the same")
			}
		})
	}
	t.Run("a folder that is a link", func(t *testing.T) {
		s := newStore(t)
		mustApply(t, s, submitOf("one", "c"))
		if err := os.Symlink(t.TempDir(), filepath.Join(s.Home(), claimsFolder)); err != nil {
			t.Fatal(err)
		}
		_, err := hold(s, "one", "/a", true)
		wantErr(t, err, ErrUnsafe)
	})
}

func FuzzClaim(f *testing.F) {
	c := claim{"one", "/a/b", true}
	f.Add(c.key(), []byte("\x01one"))
	f.Add([]byte{0}, []byte{1})
	f.Fuzz(func(t *testing.T, key, value []byte) {
		id, err := taskOf(key, value)
		switch {
		case err != nil && !errors.Is(err, ErrCorrupt) && !errors.Is(err, ErrNewer):
			t.Fatal(err)
		case err == nil && (!identifier(string(id), "") || len(key) < 1+len(dirName(id))):
			t.Fatalf("%q of %q", id, key)
		}
	})
}

// A turn that holds a workspace without an entry is damage: another turn could take it.
func TestCheckFindsAMissingClaim(t *testing.T) {
	s := newStore(t)
	for _, id := range []TaskID{"one", "two"} {
		mustApply(t, s, submitOf(id, "c-"+string(id)))
	}
	wantSound(t, s) // without an index
	for id, path := range map[TaskID]string{"one": "/a", "two": "/b"} {
		if _, err := hold(s, id, path, true); err != nil {
			t.Fatal(err)
		}
	}
	wantSound(t, s)
	index := filepath.Join(s.Home(), claimsFolder, claimsName)
	db, err := commit.Open(index, commit.Options{Kind: claimsKind, Version: claimsVersion})
	if err != nil {
		t.Fatal(err)
	}
	err = db.Update(context.Background(), func(tx *bbolt.Tx) error { return tx.Bucket(bucketAlone).Delete(claim{"one", "/a", true}.key()) })
	if err := errors.Join(err, db.Close()); err != nil {
		t.Fatal(err)
	}
	var bad []string
	err = s.Check(func(path string, ok bool, detail string) {
		if !ok {
			bad = append(bad, path+": "+detail)
		}
	})
	if !errors.Is(err, ErrCorrupt) || len(bad) != 1 || !strings.HasPrefix(bad[0], index) || !strings.Contains(bad[0], "one") {
		t.Fatalf("%v: %q", err, bad)
	}
}
