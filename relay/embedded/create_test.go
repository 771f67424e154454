package embedded_test

import (
	"errors"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"holdfast/relay/embedded"
)

// A store is made whole under another name. What a crash left of that name, or
// of an older version's making in place, stops no start.
func TestMakingOfAStore(t *testing.T) {
	for name, left := range map[string]struct {
		file  string
		bytes []byte
	}{
		"nothing":                       {},
		"a part of the first pages":     {"relay.db.new", make([]byte, 100)},
		"something longer":              {"relay.db.new", make([]byte, 1<<20)},
		"an empty file, made in place":  {"relay.db", nil},
		"an empty one under that name ": {"relay.db.new", nil},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			if left.file != "" {
				if err := os.WriteFile(filepath.Join(dir, left.file), left.bytes, 0o600); err != nil {
					t.Fatal(err)
				}
			}
			r, err := reopen(t, filepath.Join(dir, "relay.db"))
			if err != nil {
				t.Fatal(err)
			}
			if err := r.Close(); err != nil {
				t.Fatal(err)
			}
			list, err := os.ReadDir(dir)
			if err != nil || len(list) != 1 || list[0].Name() != "relay.db" {
				t.Fatal(list, err)
			}
		})
	}
}

// Of processes that make the same store at once one has it, and it is whole.
func TestTwoMakersOfAStore(t *testing.T) {
	path := filepath.Join(t.TempDir(), "relay.db")
	var mu sync.Mutex // guards won
	won := 0
	var makers sync.WaitGroup
	for range 4 {
		makers.Go(func() {
			r, err := embedded.Open(embedded.Options{Path: path, Name: name})
			if err != nil {
				if !errors.Is(err, embedded.ErrLocked) {
					t.Error(err)
				}
				return
			}
			mu.Lock()
			won++
			mu.Unlock()
			if err := r.Close(); err != nil {
				t.Error(err)
			}
		})
	}
	makers.Wait()
	if won == 0 {
		t.Error("nobody made it")
	}
	if _, err := embedded.Check(path); err != nil {
		t.Error(err)
	}
}
