package commands

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"

	"go.etcd.io/bbolt"
	"golang.org/x/sys/unix"

	"holdfast/internal/skip"
	"holdfast/nip"
)

// mappedRig is a rig over bbolt in memory, mapped once for good under a name of
// its own, so that the kernel can say which of its pages were looked at.
func mappedRig(t *testing.T, name string) *rig {
	t.Helper()
	db, err := bbolt.Open(name, 0o600, &bbolt.Options{
		NoSync: true, NoGrowSync: true, NoFreelistSync: true, FreelistType: bbolt.FreelistMapType, InitialMmapSize: 1 << 30,
		OpenFile: func(string, int, os.FileMode) (*os.File, error) {
			fd, err := unix.MemfdCreate(name, unix.MFD_CLOEXEC)
			return os.NewFile(uintptr(fd), name), err
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() })
	if err := db.Update(Journal{}.Setup); err != nil {
		t.Fatal(err)
	}
	return newRigOver(t, &store{db: db})
}

// pagesOf counts the mapped pages that fn looked at: the kernel's accessed bits
// are cleared before and counted after.
func pagesOf(t *testing.T, name string, fn func()) int {
	t.Helper()
	for _, what := range []string{"1", "4"} { // the bits; and the soft-dirty ones, for the flush that comes with them
		if err := os.WriteFile("/proc/self/clear_refs", []byte(what), 0); err != nil {
			skip.Missing(t, "this kernel does not count what a process looks at: "+err.Error())
		}
	}
	fn()
	f, err := os.Open("/proc/self/smaps")
	if err != nil {
		skip.Missing(t, "this kernel does not count what a process looks at: "+err.Error())
	}
	defer f.Close()
	kilobytes, mine := 0, false
	for lines := bufio.NewScanner(f); lines.Scan(); {
		line := lines.Text()
		if word, rest, _ := strings.Cut(line, " "); !strings.HasSuffix(word, ":") {
			mine = strings.Contains(rest, name)
		} else if word == "Referenced:" && mine {
			n, err := strconv.Atoi(strings.TrimSuffix(strings.TrimSpace(rest), " kB"))
			if err != nil {
				t.Fatal(err)
			}
			kilobytes += n
		}
	}
	return kilobytes * 1024 / os.Getpagesize()
}

// TestCostOfOneTask: what is done to one task reads as many pages of the store
// beside 200 entries of other tasks as beside 20,000, but for a level or two of
// the trees: nothing walks through what is not its own. Decided entries and
// undecided ones of other tasks and devices stand there, and leases.
func TestCostOfOneTask(t *testing.T) {
	pages := make(map[string][2]int)
	var names []string
	total := [2]int{}
	for i, size := range []int{200, 20_000} {
		name := fmt.Sprintf("holdfast-cost-%d", i)
		r := mappedRig(t, name)
		crowd(t, r, size)
		r.tasks.add(task(0), running)
		for n := range 5 {
			r.submit(sender(0), command(n, nip.Queue, 5))
		}
		total[i] = pagesOf(t, name, r.check) // and every page is mapped from here on
		for n, op := range costs(t, r) {
			got := pagesOf(t, name, op.run)
			if i == 0 {
				names = append(names, op.name)
			} else if names[n] != op.name {
				t.Fatal("the operations moved")
			}
			both := pages[op.name]
			both[i] = got
			pages[op.name] = both
		}
		r.check()
	}
	if total[1] < 20*total[0] || total[1] < 1000 {
		t.Fatalf("a whole walk looks at %d and %d pages: nothing is counted here", total[0], total[1])
	}
	for _, name := range names {
		t.Logf("%-28s %3d pages, then %3d", name, pages[name][0], pages[name][1])
		if few, many := pages[name][0], pages[name][1]; few == 0 || many > 2*few+16 {
			t.Errorf("%s looks at %d pages beside few entries and at %d beside many", name, few, many)
		}
	}
}

// crowd fills the journal with other tasks' entries: decided ones, one
// undecided for each twenty of them, and a lease for each two hundred.
func crowd(t *testing.T, r *rig, size int) {
	t.Helper()
	f := filling(size, size/20, 50)
	if err := r.Journal.Fill(context.Background(), r.store, f); err != nil {
		t.Fatal(err)
	}
	r.update(func(tx *bbolt.Tx) error {
		for i, on := range f.Tasks {
			c := command(-i-1, nip.Queue, 5)
			c.Task = on
			e, err := r.Journal.Record(tx, entryFor(Sender{Device: f.Devices[i%len(f.Devices)]}, c), start)
			if err != nil {
				return err
			}
			e.State = StateHeld
			if _, err := r.Journal.Change(tx, e, "held", start); err != nil {
				return err
			}
			if i%10 == 0 {
				if err := r.Journal.SetLease(tx, on, &Lease{Device: f.Devices[0], ExpiresAt: start + 60}); err != nil {
					return err
				}
			}
		}
		return nil
	})
}

type costed struct {
	name string
	run  func()
}

func costs(t *testing.T, r *rig) []costed {
	ctx := context.Background()
	reading := func(fn func(tx *bbolt.Tx) error) func() { return func() { r.view(fn) } }
	return []costed{
		{"submit, refused", func() { r.submit(sender(1), command(100, nip.Send, 5)) }},
		{"submit, held", func() { r.submit(sender(1), command(101, nip.Queue, 5)) }},
		{"submit again", func() { r.submit(sender(1), command(101, nip.Queue, 5)) }},
		{"interrupt", func() { r.submit(sender(1), command(102, nip.Interrupt, 5)) }},
		{"evaluate", r.evaluate},
		{"edit", func() {
			if err := r.Edit(ctx, task(0), func(tx *bbolt.Tx, _ TaskView, now int64) error {
				return r.Journal.SetLease(tx, task(0), &Lease{Device: device(0), ExpiresAt: now + 60})
			}); err != nil {
				t.Error(err)
			}
		}},
		{"list of the task", reading(func(tx *bbolt.Tx) error {
			all, _, err := r.Journal.Page(tx, Filter{Task: task(0)})
			if len(all) != 8 {
				t.Errorf("%d entries are listed", len(all))
			}
			return err
		})},
		{"held messages", reading(func(tx *bbolt.Tx) error { _, _, err := r.Journal.Held(tx, task(0), 64); return err })},
		{"undecided ones", reading(func(tx *bbolt.Tx) error { _, err := r.Journal.Undecided(tx, task(0)); return err })},
		{"next deadline", reading(func(tx *bbolt.Tx) error { _, _, err := r.Journal.NextDeadline(tx, task(0)); return err })},
		{"counts", reading(func(tx *bbolt.Tx) error { _, _, err := r.Journal.Counts(tx); return err })},
		{"prune, nothing to do", func() {
			r.update(func(tx *bbolt.Tx) error { _, err := r.Journal.Prune(tx, start, 256); return err })
		}},
	}
}
