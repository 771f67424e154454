package owner

import (
	"fmt"
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
