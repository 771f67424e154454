package owner

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
)

// indexed makes the index, as a host's start does where there is none.
func indexed(t testing.TB, s *Store) {
	t.Helper()
	err := s.Reindex(context.Background(), func(_ context.Context, id TaskID) (*Task, error) {
		task, err := s.Get(id)
		if errors.Is(err, ErrCorrupt) {
			return nil, nil
		}
		return &task, err
	})
	if err != nil {
		t.Fatal(err)
	}
}

func wantIndex(t testing.TB, s *Store, live ...TaskID) Index {
	t.Helper()
	x, whole, err := s.Index()
	if err != nil || !whole {
		t.Fatalf("whole %v, %v", whole, err)
	}
	slices.Sort(live)
	slices.Sort(x.Live)
	if !slices.Equal(x.Live, live) {
		t.Fatalf("live are %v, want %v", x.Live, live)
	}
	return x
}

// endedTask leaves a task that was cancelled.
func endedTask(t testing.TB, s *Store, id TaskID) {
	t.Helper()
	mustApply(t, s, submitOf(id, "s-"+string(id)))
	mustApply(t, s, cancelOf(id, "c-"+string(id), 1))
}

// What is live is read, what was put away is a row that says what the log
// gives, and the next record makes it live again.
func TestIndexOverATasksLife(t *testing.T) {
	s := newStore(t)
	if _, whole, err := s.Index(); whole || err != nil {
		t.Fatal(whole, err)
	}
	endedTask(t, s, "a")
	endedTask(t, s, deviceTask)
	mustApply(t, s, submitOf("open", "o"))
	indexed(t, s)
	// A task that has ended leaves live only by PutAway, an open one not at all.
	wantIndex(t, s, "a", deviceTask, "open")
	if n, err := s.PutAway(context.Background(), []TaskID{"a", "open", "never", deviceTask}); n != 2 || err != nil {
		t.Fatal(n, err)
	}
	cold := openStore(t, s.Home(), false)
	x := wantIndex(t, cold, "open")
	for _, r := range x.Rows {
		task, err := cold.Get(r.ID)
		if err != nil || r != RowOf(&task) {
			t.Fatalf("%+v, want %+v, %v", r, task, err)
		}
	}
	if len(x.Rows) != 2 {
		t.Fatalf("%d rows", len(x.Rows))
	}
	wantSound(t, cold)
	mustApply(t, cold, continueOf("a", "again", 2))
	wantIndex(t, s, "a", "open")
	mustApply(t, cold, cancelOf("a", "enough", 3))
	if n, err := s.PutAway(context.Background(), []TaskID{"a"}); n != 1 || err != nil {
		t.Fatal(n, err)
	}
	// The later of its two records is its row.
	for _, r := range wantIndex(t, cold, "open").Rows {
		if r.ID == "a" && r.Revision != 4 {
			t.Fatalf("%+v", r)
		}
	}
	rows, err := cold.Rows(func(_ TaskID, err error) error { return err })
	if err != nil || len(rows) != 3 || rows[0].ID > rows[1].ID {
		t.Fatal(rows, err)
	}
	wantSound(t, s)
}

// An index that is lost, damaged or of another build says nothing, every task
// is read, and what is made anew is the same.
func TestIndexIsAHint(t *testing.T) {
	for _, row := range []struct {
		name  string
		spoil func(rows string) error
		bad   bool // check says so
	}{
		{"no rows", os.Remove, false},
		{"no folder", func(rows string) error { return os.RemoveAll(filepath.Dir(rows)) }, false},
		{"empty", func(rows string) error { return os.Truncate(rows, 0) }, true},
		{"another build", func(rows string) error {
			b := rowsHeader()
			b[len(rowsMagic)+4] ^= 1
			return os.WriteFile(rows, append(b[:rowsHead-4], rehash(b[:rowsHead-4])...), 0o600)
		}, false},
		{"a bit", func(rows string) error {
			b, err := os.ReadFile(rows)
			b[rowsHead+20] ^= 1
			return errors.Join(err, os.WriteFile(rows, b, 0o600))
		}, true},
	} {
		t.Run(row.name, func(t *testing.T) {
			s := newStore(t)
			endedTask(t, s, "a")
			mustApply(t, s, submitOf("open", "o"))
			indexed(t, s)
			if n, err := s.PutAway(context.Background(), []TaskID{"a"}); n != 1 || err != nil {
				t.Fatal(n, err)
			}
			if err := row.spoil(filepath.Join(s.Home(), liveFolder, rowsName)); err != nil {
				t.Fatal(err)
			}
			cold := openStore(t, s.Home(), false)
			if x, whole, err := cold.Index(); whole || err != nil || len(x.Rows)+len(x.Live) > 0 {
				t.Fatal(x, whole, err)
			}
			if err := cold.Check(func(string, bool, string) {}); (err != nil) != row.bad {
				t.Fatal(err)
			}
			if rows, err := cold.Rows(func(_ TaskID, err error) error { return err }); err != nil || len(rows) != 2 {
				t.Fatal(rows, err)
			}
			if n, err := cold.PutAway(context.Background(), []TaskID{"a"}); n != 0 || err != nil {
				t.Fatal(n, err)
			}
			if ids, err := cold.Awake(); err != nil || !slices.Contains(ids, "open") {
				t.Fatal(ids, err)
			}
			indexed(t, cold)
			if x := wantIndex(t, cold, "open"); len(x.Rows) != 1 {
				t.Fatal(x)
			}
			wantSound(t, cold)
		})
	}
}

// Check names what the index has otherwise than the logs, and a log that is gone.
func TestCheckHoldsTheIndexAgainstTheLogs(t *testing.T) {
	for _, row := range []struct {
		name, says string
		spoil      func(t *testing.T, s *Store) error
	}{
		{"an open task is not live", "has not ended", func(t *testing.T, s *Store) error {
			return os.Remove(filepath.Join(s.Home(), liveFolder, dirName("open")))
		}},
		{"no row", "has no row", func(t *testing.T, s *Store) error {
			endedTask(t, s, "b")
			return os.Remove(filepath.Join(s.Home(), liveFolder, dirName("b")))
		}},
		{"another row", "not what its log gives", func(t *testing.T, s *Store) error {
			mustApply(t, s, correctOf("a", "late", 2))
			return os.Remove(filepath.Join(s.Home(), liveFolder, dirName("a")))
		}},
		{"a log that is lost", "its log is missing", func(t *testing.T, s *Store) error {
			return os.Remove(filepath.Join(s.TaskDir("a"), logName))
		}},
		{"a task's folder that is lost", "its log is missing", func(t *testing.T, s *Store) error {
			return os.RemoveAll(s.TaskDir("a"))
		}},
	} {
		t.Run(row.name, func(t *testing.T) {
			s := newStore(t)
			endedTask(t, s, "a")
			mustApply(t, s, submitOf("open", "o"))
			indexed(t, s)
			if _, err := s.PutAway(context.Background(), []TaskID{"a"}); err != nil {
				t.Fatal(err)
			}
			if err := row.spoil(t, s); err != nil {
				t.Fatal(err)
			}
			said := ""
			err := openStore(t, s.Home(), false).Check(func(path string, ok bool, detail string) {
				if !ok {
					said += detail
				}
			})
			if !errors.Is(err, ErrCorrupt) || !strings.Contains(said, row.says) {
				t.Fatalf("%v: %q", err, said)
			}
		})
	}
}

// Who has read the index refuses a task that lost its log, and does not make it anew.
func TestLostLogIsRefused(t *testing.T) {
	for _, all := range []bool{false, true} {
		s := newStore(t)
		endedTask(t, s, "a")
		indexed(t, s)
		if _, err := s.PutAway(context.Background(), []TaskID{"a"}); err != nil {
			t.Fatal(err)
		}
		gone := filepath.Join(s.TaskDir("a"), logName)
		if all {
			gone = s.TaskDir("a")
		}
		if err := os.RemoveAll(gone); err != nil {
			t.Fatal(err)
		}
		cold := openStore(t, s.Home(), false)
		wantIndex(t, cold)
		_, err := cold.Get("a")
		wantErr(t, err, ErrCorrupt)
		_, err = cold.Apply(context.Background(), encoded(t, submitOf("a", "s-a")))
		wantErr(t, err, ErrCorrupt)
		_, err = cold.Get("never")
		wantCode(t, err, "not_found")
	}
}

// The file does not grow for ever: what is of the past goes.
func TestRowsAreWrittenAnew(t *testing.T) {
	s := newStore(t)
	endedTask(t, s, "a")
	indexed(t, s)
	path := filepath.Join(s.Home(), liveFolder, rowsName)
	var b []byte
	task, _ := s.Get("a")
	r := RowOf(&task)
	b = rowsHeader()
	for range rowsSlack + 10 {
		b, _ = appendRow(b, &r)
	}
	writeFile(t, path, b)
	if n, err := s.PutAway(context.Background(), []TaskID{"a"}); n != 1 || err != nil {
		t.Fatal(n, err)
	}
	if now := readFile(t, path); len(now) > 1000 {
		t.Fatalf("%d bytes are left", len(now))
	}
	wantIndex(t, openStore(t, s.Home(), false))
	wantSound(t, s)
}

// Every truncation of the rows is what a crash may leave: whole rows and no error.
func TestRowsCutShort(t *testing.T) {
	b := rowsHeader()
	ends := map[int]int{len(b): 0}
	for i := range 3 {
		r := Row{ID: TaskID(fmt.Sprint("t", i)), Path: "/w", Title: strings.Repeat("é", i), Phase: "queued", Status: Cancelled, Revision: int64(i), Turn: i}
		b, _ = appendRow(b, &r)
		ends[len(b)] = i + 1
	}
	last := 0
	for n := rowsHead; n <= len(b); n++ {
		var got []Row
		end, err := decodeRows(b[:n], func(r Row) { got = append(got, r) })
		if k, ok := ends[n]; ok {
			last = k
		}
		if err != nil || len(got) != last || int(end) > n {
			t.Fatalf("%d bytes: %d rows, %v", n, len(got), err)
		}
	}
	if _, err := decodeRows(b[:rowsHead-1], nil); !errors.Is(err, ErrCorrupt) {
		t.Fatal(err)
	}
	long := Row{ID: "t", Title: strings.Repeat("x", maxRow+1)}
	if same, ok := appendRow(b, &long); ok || !reflect.DeepEqual(same, b) {
		t.Fatal("a row that is too long was taken")
	}
}

func FuzzRows(f *testing.F) {
	r := Row{ID: "t", Path: "/w", Title: "a", Phase: "queued", Status: Cancelled, Revision: 3, Turn: 1}
	b, _ := appendRow(nil, &r)
	f.Add(b)
	f.Add(append(b, b[:9]...))
	f.Fuzz(func(t *testing.T, b []byte) {
		back := rowsHeader()
		end, err := decodeRows(append(rowsHeader(), b...), func(r Row) { back, _ = appendRow(back, &r) })
		if err == nil && string(back[rowsHead:]) != string(b[:end-int64(rowsHead)]) {
			t.Fatal("the rows do not come back as they were")
		}
	})
}

// rehash is the checksum that b gets.
func rehash(b []byte) []byte {
	return binary.BigEndian.AppendUint32(nil, crc32.Checksum(b, castagnoli))
}
