package owner

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
)

// thousand is a store with 1,000 tasks.
func thousand(b *testing.B) *Store {
	b.Helper()
	s := newStore(b)
	for i := range 1000 {
		mustApply(b, s, submitOf(TaskID(fmt.Sprint("task-", i)), fmt.Sprint("c-", i)))
	}
	return s
}

// Opening a store and submitting one task beside 1,000 others.
func BenchmarkOpenAndSubmitBeside1000(b *testing.B) {
	home := thousand(b).Home()
	for i := 0; b.Loop(); i++ {
		s, err := Open(home, Options{Now: fixedClock})
		if err != nil {
			b.Fatal(err)
		}
		mustApply(b, s, submitOf(TaskID(fmt.Sprint("more-", i)), fmt.Sprint("m-", i)))
		s.Close()
	}
}

// The first List of a store reads every log's header; later ones read names.
func BenchmarkOpenAndList1000(b *testing.B) {
	home := thousand(b).Home()
	for b.Loop() {
		s, err := Open(home, Options{Now: fixedClock})
		if err != nil {
			b.Fatal(err)
		}
		if ids, err := s.List(); err != nil || len(ids) != 1000 {
			b.Fatal(len(ids), err)
		}
		s.Close()
	}
}

// Reading a task of 1,901 records that has not changed: no replay, but a copy
// of its 1,900 corrections.
func BenchmarkGetLongTask(b *testing.B) {
	s := newStore(b)
	mustApply(b, s, submitOf("a", "c0"))
	for i := range 1900 {
		mustApply(b, s, correctOf("a", fmt.Sprint("c-", i), int64(i+1)))
	}
	for b.Loop() {
		if _, err := s.Get("a"); err != nil {
			b.Fatal(err)
		}
	}
}

// What a process pays that meets a task of 10,000 events for the first time: with its checkpoint, and without.
func BenchmarkColdGet10000(b *testing.B) {
	s := quickStore(b, quickHome(b), true)
	mustApply(b, s, submitOf("a", "c0"))
	mustApply(b, s, cancelOf("a", "c1", 1))
	if err := archiveN(s, "a", 10_000); err != nil {
		b.Fatal(err)
	}
	for _, row := range []string{"checkpoint", "replay"} {
		if row == "replay" {
			if err := os.Remove(filepath.Join(s.TaskDir("a"), checkpointName)); err != nil {
				b.Fatal(err)
			}
		}
		b.Run(row, func(b *testing.B) {
			for b.Loop() {
				cold, err := Open(s.Home(), Options{Now: fixedClock})
				if err != nil {
					b.Fatal(err)
				}
				if _, err := cold.Get("a"); err != nil {
					b.Fatal(err)
				}
				cold.Close()
			}
		})
	}
}

// One more event of a task that has few, and of one that has 10,000; the disk is not waited for.
func BenchmarkAppend(b *testing.B) {
	for _, before := range []int{10, 10_000} {
		b.Run(fmt.Sprint(before), func(b *testing.B) {
			s := quickStore(b, quickHome(b), true)
			mustApply(b, s, submitOf("a", "c0"))
			mustApply(b, s, cancelOf("a", "c1", 1))
			if err := archiveN(s, "a", before); err != nil {
				b.Fatal(err)
			}
			b.ResetTimer()
			for range min(b.N, 2_000) {
				if err := archiveN(s, "a", 2); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(2*min(b.N, 2_000)), "ns/append")
		})
	}
}
