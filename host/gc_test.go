package host

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"holdfast/nip"
	"holdfast/owner"
)

func (r *rig) gc(dry bool) (out Collected) {
	r.t.Helper()
	if err := r.c.Operate(r.t.Context(), "gc", mustRaw(r.t, GCArgs{DryRun: dry}), func(v any) error {
		out = v.(Collected)
		return nil
	}); err != nil {
		r.t.Fatal(err)
	}
	return out
}

// TestGC: it says what it would do, does it, and has nothing to do the second time; a part that cannot be done is
// named and stops no other.
func TestGC(t *testing.T) {
	r := newRig(t)
	r.policy()
	d := r.pair(nip.PairingRights())
	r.create(d, "p")
	r.clock.at.Store(time.Now().Unix()) // files have the system's times
	blob, err := r.c.store.PutBlob([]byte("unnamed"))
	if err != nil {
		t.Fatal(err)
	}
	hex := strings.TrimPrefix(string(blob), "sha256:")
	path := filepath.Join(r.home, "blobs", "sha256", hex[:2], hex)
	temp := filepath.Join(r.home, ".policy.json.tmp-0123456789abcdef")
	r.write(filepath.Base(temp), "half")
	old := time.Now().Add(-2 * owner.SweepAge)
	if err := errors.Join(os.Chtimes(path, old, old), os.Chtimes(temp, old, old), os.Mkdir(filepath.Join(r.home, "worktrees", "stranger"), 0o700)); err != nil {
		t.Fatal(err)
	}
	dry := r.gc(true)
	if len(dry.Removed) != 2 || dry.Removed[0].Kind != "blob" || dry.Removed[1].Path != temp || dry.Freed == 0 || !dry.DryRun {
		t.Fatalf("%+v", dry)
	}
	if len(dry.Kept) != 1 || dry.Kept[0].Why != "no task that can be read has it" {
		t.Errorf("%+v", dry.Kept)
	}
	if _, err := os.Stat(path); err != nil {
		t.Fatal("the dry run removed it")
	}
	r.write("policy.json", "{")
	did := r.gc(false)
	if len(did.Removed) != 2 || did.Freed != dry.Freed || len(did.Kept) != 1 || did.Kept[0].Kind != "worktree" {
		t.Fatalf("%+v", did)
	}
	if again := r.gc(false); len(again.Removed) != 0 || again.Freed != 0 {
		t.Fatalf("%+v", again)
	}
	var kinds []string
	if err := r.c.Operate(t.Context(), "journal.list", json.RawMessage(`{}`), func(v any) error {
		raw, err := json.Marshal(v)
		if strings.Contains(string(raw), `"gc"`) {
			kinds = append(kinds, "gc")
		}
		return err
	}); err != nil || len(kinds) == 0 {
		t.Errorf("the journal says nothing of it: %v", err)
	}
}

func TestGCRowsAreBounded(t *testing.T) {
	var g Collected
	for range maxGCRows + 5 {
		g.removed(GCRow{Bytes: 2})
		g.kept(GCRow{})
	}
	if len(g.Removed) != maxGCRows || len(g.Kept) != maxGCRows || g.More != 10 || g.Freed != 2*(maxGCRows+5) {
		t.Fatalf("%d, %d, %d, %d", len(g.Removed), len(g.Kept), g.More, g.Freed)
	}
}

// TestDiskFigure: each kind is what its folder takes, and the whole is bounded. A serving host shows its last count with
// its age, and counts anew beside the status that found it old.
func TestDiskFigure(t *testing.T) {
	r := newRig(t)
	before := r.c.disk(t.Context())
	if before.Journal == 0 || before.Tasks == 0 || before.AtLeast || before.AsOf != r.c.now() {
		t.Fatalf("%+v", before)
	}
	if _, err := r.c.store.PutBlob(make([]byte, 1<<20)); err != nil {
		t.Fatal(err)
	}
	for i := range diskGlance + 10 {
		r.write(filepath.Join("tasks", fmt.Sprint(".", i)), "")
	}
	r.clock.at.Add(7)
	if same := r.c.disk(t.Context()); same != before {
		t.Fatalf("%+v was counted anew at once: %+v", before, same)
	}
	glance := r.c.countDisk(t.Context(), diskGlance, diskGlanceTime)
	if !glance.AtLeast || glance.Blobs < before.Blobs+1<<20 || glance.Worktrees != before.Worktrees {
		t.Fatalf("%+v, then %+v", before, glance)
	}
	r.h.diskBook.mu.Lock()
	r.h.diskBook.next = time.Time{}
	r.h.diskBook.mu.Unlock()
	r.c.disk(t.Context())
	r.until("a count beside the status", func() bool { return r.c.disk(t.Context()) != before })
	if after := r.c.disk(t.Context()); after.AtLeast || after.AsOf != before.AsOf+7 || after.Blobs != glance.Blobs {
		t.Fatalf("%+v, then %+v", before, after)
	}
	n, whole := owner.Usage(t.Context(), r.home, 2)
	if all, _ := owner.Usage(t.Context(), r.home, 1000); whole || n >= all {
		t.Errorf("%d of %d, whole %v", n, all, whole)
	}
}
