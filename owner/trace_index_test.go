package owner

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"holdfast/internal/atomicfile"
	"holdfast/internal/saferead"
)

// ownTrace starts the transcript of the task's turn as its owner does, with n steps of size bytes.
func ownTrace(t testing.TB, s *Store, n, size int) *transcript {
	t.Helper()
	task, err := s.Get(deviceTask)
	if err != nil {
		t.Fatal(err)
	}
	tr, err := newTranscript(context.Background(), s.TaskDir(deviceTask), 1, session{
		ID: sessionID(deviceTask, 1), Base: chainBase(task.ID, task.IntentDigest, TraceName(1)),
	}, atomicfile.OS, time.Now, patience{sleep: sleepFor})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(tr.close)
	addSteps(t, tr, n, size)
	return tr
}

func addSteps(t testing.TB, tr *transcript, n, size int) {
	t.Helper()
	text := strings.Repeat("x", size)
	for range n {
		if err := tr.step(context.Background(), traceStep{source: "agent", message: text}); err != nil {
			t.Fatal(err)
		}
	}
}

func seal(t testing.TB, tr *transcript) Digest {
	t.Helper()
	digest, err := tr.seal(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	return digest
}

func tracePath(s *Store) string { return filepath.Join(s.TaskDir(deviceTask), TraceName(1)) }
func indexPath(s *Store) string { return filepath.Join(s.TaskDir(deviceTask), indexName(1)) }

// calm waits until a file's last change is as old as it must be for a reader not to look twice.
func calm(t testing.TB, path string) {
	t.Helper()
	eventually(t, "the change of "+path+" to be over", func() bool {
		fi, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		stamp, _ := stampOf(fi)
		return time.Since(time.Unix(0, stamp.ctime)) > indexFresh
	})
}

// indexHolds reports whether a reader would go by the index.
func indexHolds(t testing.TB, s *Store) bool {
	t.Helper()
	task, err := s.Get(deviceTask)
	if err != nil {
		t.Fatal(err)
	}
	f, err := s.openTrace(&task, 1)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	x := s.openIndex(f, &task, 1)
	if x != nil {
		x.close()
	}
	return x != nil
}

// Whatever page is asked for, the index gives what a scan gives.
func TestIndexAgreesWithScan(t *testing.T) {
	for _, sealed := range []bool{false, true} {
		t.Run(fmt.Sprint("sealed ", sealed), func(t *testing.T) {
			s := runningTask(t, nil)
			tr := ownTrace(t, s, 9, 10)
			addSteps(t, tr, 1, 3000) // beyond the step limit below
			addSteps(t, tr, 2, 10)
			if sealed {
				r := exited(0)
				r.TraceDigest = seal(t, tr)
				mustAppend(t, s, deviceTask, 1, Event{Result: r})
			}
			if !indexHolds(t, s) {
				t.Fatal("no index that holds")
			}
			pages := func() (out []View) {
				for limit := 1; limit < 14; limit++ {
					for from := (*ViewCursor)(nil); ; {
						v, err := s.View(deviceTask, limit, 2000, from)
						if err != nil {
							t.Fatal(err)
						}
						out = append(out, v)
						if from = v.Next; !v.More {
							break
						}
					}
					v, err := s.ViewLast(deviceTask, limit, 2000)
					if err != nil {
						t.Fatal(err)
					}
					out = append(out, v)
				}
				return out
			}
			indexed := pages()
			if err := os.Rename(indexPath(s), indexPath(s)+".x"); err != nil {
				t.Fatal(err)
			}
			if !reflect.DeepEqual(indexed, pages()) {
				t.Fatal("the pages differ")
			}
			if want := map[bool]string{false: "incomplete", true: "sealed"}[sealed]; indexed[0].Evidence != want || indexed[0].TotalSteps != 12 {
				t.Fatalf("%+v", indexed[0])
			}
		})
	}
}

// An index is believed in nothing that it cannot show: with any other bytes in its place readers get what a scan gets.
func TestIndexDamaged(t *testing.T) {
	s := runningTask(t, nil)
	tr := ownTrace(t, s, 6, 10)
	seal(t, tr)
	good := readFile(t, indexPath(s))
	trace := readFile(t, tracePath(s))
	calm(t, tracePath(s))
	header := good[:indexHeader]
	record := func(b []byte, n int) []byte { return b[indexHeader+n*indexRecord : indexHeader+(n+1)*indexRecord] }
	// forged is the index with one record changed and its checksum right again.
	forged := func(n int, change func(e *indexEntry)) []byte {
		b := bytes.Clone(good)
		e, ok := decodeIndexEntry(header, int64(n), record(b, n))
		if !ok {
			t.Fatal("a good record does not decode")
		}
		change(&e)
		copy(record(b, n), encodeIndexEntry(header, int64(n), e))
		return b
	}
	old := func() (b []byte) { // version 0: offsets and nothing else
		for i := range 6 {
			b = binary.BigEndian.AppendUint64(b, uint64(i*100))
		}
		return b
	}
	swapped := bytes.Clone(good)
	copy(record(swapped, 2), record(good, 3))
	copy(record(swapped, 3), record(good, 2))
	foreign := bytes.Clone(good)
	copy(foreign, encodeIndexHeader(binary.BigEndian.Uint64(good[12:]), chainBase("another", "", TraceName(1))))
	moved := bytes.Clone(good)
	copy(moved, encodeIndexHeader(binary.BigEndian.Uint64(good[12:])+1, [32]byte(good[20:52])))
	rows := map[string][]byte{
		"empty": {}, "header only": header, "half a header": good[:20], "short by a record": good[:len(good)-indexRecord],
		"short by a byte": good[:len(good)-1], "one record more": append(bytes.Clone(good), record(good, 7)...),
		"zeros at the end": append(bytes.Clone(good[:len(good)-indexRecord]), make([]byte, indexRecord)...),
		"offsets only":     old(), "records exchanged": swapped, "of another task": foreign, "of another file": moved,
		"a step inside a line":               forged(3, func(e *indexEntry) { e.offset++; e.length-- }),
		"a step that is shorter":             forged(3, func(e *indexEntry) { e.length-- }),
		"a step beyond the file":             forged(3, func(e *indexEntry) { e.offset += int64(len(trace)) }),
		"a step before the last":             forged(3, func(e *indexEntry) { e.offset = 0 }),
		"another chain":                      forged(3, func(e *indexEntry) { e.chain[0] ^= 1 }),
		"another chain at the end of a page": forged(2, func(e *indexEntry) { e.chain[0] ^= 1 }),
		"a step called the end":              forged(3, func(e *indexEntry) { e.kind = indexEnd }),
		"no end":                             forged(7, func(e *indexEntry) { e.kind = indexStep }),
		"no session":                         forged(0, func(e *indexEntry) { e.kind = indexStep }),
		"another first chain":                forged(0, func(e *indexEntry) { e.chain[0] ^= 1 }),
		"another time":                       forged(7, func(e *indexEntry) { e.ctime++ }),
		"another time of data":               forged(7, func(e *indexEntry) { e.mtime++ }),
	}
	for i := range good {
		if n := (i - indexHeader) / indexRecord; n == 2 || n > 3 && n < 7 {
			continue // as record 3
		}
		b := bytes.Clone(good)
		b[i] ^= 1
		rows[fmt.Sprint("byte ", i)] = b
	}
	views := func() (out []View) {
		out = append(out, view(t, s, 200, nil))
		for c := (*ViewCursor)(nil); ; {
			v := view(t, s, 2, c)
			out = append(out, v)
			if c = v.Next; !v.More {
				return out
			}
		}
	}
	os.Remove(indexPath(s))
	want := views()
	for name, b := range rows {
		writeFile(t, indexPath(s), b)
		if !reflect.DeepEqual(views(), want) {
			t.Errorf("%s: other pages than a scan gives", name)
		}
	}
	writeFile(t, indexPath(s), good)
	if !indexHolds(t, s) {
		t.Fatal("the good index does not hold at the end: the rows showed nothing")
	}
	// Whose digest is not the result's is not believed, and the scan judges.
	r := exited(0)
	r.TraceDigest = DigestOf(trace)
	mustAppend(t, s, deviceTask, 1, Event{Result: r})
	writeFile(t, indexPath(s), forged(7, func(e *indexEntry) { e.digest[0] ^= 1 }))
	if v := view(t, s, 2, nil); v.Evidence != "sealed" || v.Digest != DigestOf(trace) {
		t.Fatalf("%s %s", v.Evidence, v.Digest)
	}
	// An index that is a link, or open to others, is none.
	if err := os.Chmod(indexPath(s), 0o644); err != nil {
		t.Fatal(err)
	}
	if v := view(t, s, 2, nil); v.Evidence != "sealed" || indexHolds(t, s) {
		t.Fatal("an index that others can write was used")
	}
}

// Whatever stands in the place of the index, a page is the one that a scan gives.
func FuzzTraceIndex(f *testing.F) {
	s := runningTask(f, nil)
	seal(f, ownTrace(f, s, 3, 10))
	calm(f, tracePath(s))
	good := readFile(f, indexPath(s))
	f.Add(good)
	f.Add(good[:indexHeader+indexRecord])
	f.Add([]byte{})
	if err := os.Remove(indexPath(s)); err != nil {
		f.Fatal(err)
	}
	want := view(f, s, 2, nil)
	f.Fuzz(func(t *testing.T, b []byte) {
		writeFile(t, indexPath(s), b)
		if got := view(t, s, 2, nil); !reflect.DeepEqual(got, want) {
			t.Fatalf("%+v, want %+v", got, want)
		}
	})
}

// A prefix that changed in the file makes a cursor stale, whatever its index says, and a later append hides nothing.
func TestIndexTampered(t *testing.T) {
	s := runningTask(t, nil)
	tr := ownTrace(t, s, 6, 10)
	c := view(t, s, 3, nil).Next
	calm(t, tracePath(s))
	trace := readFile(t, tracePath(s))
	second := bytes.Index(trace, []byte(`"step_id":2`))
	f, err := os.OpenFile(tracePath(s), os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.WriteAt([]byte("y"), int64(bytes.IndexByte(trace[second:], 'x')+second)); err != nil {
		t.Fatal(err)
	}
	_, err = s.View(deviceTask, 3, 1<<14, c)
	wantCode(t, err, "revision_mismatch")
	addSteps(t, tr, 1, 10)
	if tr.index != nil {
		t.Fatal("the owner vouches for what another wrote")
	}
	_, err = s.View(deviceTask, 3, 1<<14, c)
	wantCode(t, err, "revision_mismatch")
	if v := view(t, s, 10, nil); len(v.Steps) != 7 {
		t.Fatalf("%d steps", len(v.Steps))
	}
}

// A reader beside the owner never sees a page that is not so, and no cursor of its becomes stale.
func TestIndexWhileWritten(t *testing.T) {
	s := runningTask(t, nil)
	tr := ownTrace(t, s, 1, 10)
	done := make(chan error, 1)
	go func() {
		var err error
		for i := 0; i < 800 && err == nil; i++ {
			err = tr.step(context.Background(), traceStep{source: "agent", message: fmt.Sprint("line ", i)})
		}
		done <- err
	}()
	var c *ViewCursor
	seen, over := 0, false
	for !over || seen < 801 {
		select {
		case err := <-done:
			if err != nil {
				t.Fatal(err)
			}
			over = true
		default:
		}
		v := view(t, s, 7, c)
		for _, step := range v.Steps {
			if seen++; !strings.Contains(string(step.JSON), fmt.Sprintf(`"step_id":%d,`, seen)) {
				t.Fatalf("step %d is %s", seen, step.JSON)
			}
		}
		c = v.Next
	}
	if !indexHolds(t, s) {
		t.Fatal("no index that holds")
	}
}

// countedDisk counts the bytes that are read of transcripts and their indexes.
type countedDisk struct {
	atomicfile.FS
	bytes atomic.Int64
}

func (d *countedDisk) Open(dir *saferead.Dir, name string, flag int) (atomicfile.File, error) {
	f, err := d.FS.Open(dir, name, flag)
	if err != nil || !strings.HasPrefix(name, "turn-") {
		return f, err
	}
	return countedFile{f, d}, nil
}

type countedFile struct {
	atomicfile.File
	disk *countedDisk
}

func (f countedFile) ReadAt(b []byte, off int64) (int, error) {
	n, err := f.File.ReadAt(b, off)
	f.disk.bytes.Add(int64(n))
	return n, err
}

// threePages are the cursors of the first, a middle and the last page of limit steps.
func threePages(t testing.TB, s *Store, limit int) map[string]*ViewCursor {
	t.Helper()
	out := map[string]*ViewCursor{"first": nil}
	total := view(t, s, 1, nil).TotalSteps
	for c := (*ViewCursor)(nil); ; {
		v := view(t, s, limit, c)
		if at := v.Next.NextStep; at <= total/2 {
			out["middle"] = v.Next
		} else if at <= total-limit {
			out["last"] = v.Next
		}
		if c = v.Next; !v.More {
			return out
		}
	}
}

// A page costs what it holds, of a transcript that just changed and of one that is sealed.
func TestPageCost(t *testing.T) {
	const steps, size, limit = 2000, 1000, 50
	home := runningTask(t, nil).Home()
	disk := &countedDisk{FS: atomicfile.OS}
	s, err := open(home, Options{Now: fixedClock}, disk)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	tr := ownTrace(t, s, steps, size)
	for _, state := range []string{"growing", "sealed"} {
		if state == "sealed" {
			r := exited(0)
			r.TraceDigest = seal(t, tr)
			mustAppend(t, s, deviceTask, 1, Event{Result: r})
		}
		for name, c := range threePages(t, s, limit) {
			if state == "growing" {
				addSteps(t, tr, 1, size)
			}
			disk.bytes.Store(0)
			v := view(t, s, limit, c)
			held := int64(0)
			for _, step := range v.Steps {
				held += step.Bytes
			}
			if read := disk.bytes.Load(); len(v.Steps) != limit || read > held*5/4+4096 {
				t.Errorf("%s, %s page: %d bytes read for %d steps of %d bytes", state, name, read, len(v.Steps), held)
			}
		}
		disk.bytes.Store(0)
		data, total, _, err := s.Original(deviceTask, "trace:1", 1<<20, 100)
		if err != nil || len(data) != 100 || total < steps*size {
			t.Fatal(len(data), total, err)
		}
		if read := disk.bytes.Load(); read > 4096 {
			t.Errorf("%s: %d bytes read for 100 of the original", state, read)
		}
	}
}

// The first, the middle and the last page of a transcript as large as they get. ratio is the slowest of the pages so
// far against the quickest, each by its quickest run: the others say how busy the machine was.
func BenchmarkPage(b *testing.B) {
	s := runningTask(b, nil)
	tr := ownTrace(b, s, 4160, 16_000)
	r := exited(0)
	r.TraceDigest = seal(b, tr)
	mustAppend(b, s, deviceTask, 1, Event{Result: r})
	if v := view(b, s, 1, nil); v.Bytes < 63<<20 || v.Evidence != "sealed" {
		b.Fatalf("%d bytes, %s", v.Bytes, v.Evidence)
	}
	pages := threePages(b, s, 50)
	slow, quick := time.Duration(0), time.Hour
	for _, name := range []string{"first", "middle", "last"} {
		best := time.Hour
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				start := time.Now()
				if v := view(b, s, 50, pages[name]); len(v.Steps) != 50 {
					b.Fatal(len(v.Steps))
				}
				best = min(best, time.Since(start))
			}
			b.ReportMetric(max(slow, best).Seconds()/min(quick, best).Seconds(), "ratio")
		})
		slow, quick = max(slow, best), min(quick, best)
	}
}
