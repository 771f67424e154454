package runnable

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
)

// Programs can be run the moment they are written, while the same process starts many others, and be replaced while
// they run.
func TestWrittenWhileOthersStart(t *testing.T) {
	dir := t.TempDir()
	var group sync.WaitGroup
	for n := range 4 {
		group.Go(func() {
			path := filepath.Join(dir, fmt.Sprint(n))
			for i := range 60 {
				want := fmt.Sprintf("%d\n", i)
				if err := Write(path, []byte("#!/bin/sh\necho "+want), 0o755); err != nil {
					t.Error(err)
					return
				}
				if got, err := exec.Command(path).Output(); err != nil || string(got) != want {
					t.Errorf("said %q: %v", got, err)
					return
				}
			}
		})
	}
	group.Wait()
}

// A program that runs is replaced, and has the mode that was asked for.
func TestReplacedWhileItRuns(t *testing.T) {
	self, err := os.ReadFile("/bin/sleep")
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "program")
	if err := Write(path, self, 0o755); err != nil {
		t.Fatal(err)
	}
	running := exec.Command(path, "60")
	if err := running.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { running.Process.Kill(); running.Wait() }()
	if err := os.WriteFile(path, nil, 0o755); err == nil {
		t.Fatal("this system lets a program that runs be written to: the test shows nothing")
	}
	if err := Write(path, []byte("other"), 0o711); err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(path); err != nil || info.Mode() != 0o711 {
		t.Fatalf("%v: %v", info, err)
	}
}
