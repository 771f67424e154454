package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"holdfast/host"
)

// Without a host, tail follows and leaves the store free: other verbs run, and
// what they did comes next.
func TestTailLeavesTheStoreFree(t *testing.T) {
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	home, plain := filepath.Join(dir, "home"), filepath.Join(dir, "plain")
	if err := os.Mkdir(plain, 0o755); err != nil {
		t.Fatal(err)
	}
	verb := func(args ...string) string {
		t.Helper()
		var out, errs bytes.Buffer
		if code := run(append(args, "--home", home), strings.NewReader(""), &out, &errs); code != 0 {
			t.Fatalf("%v: exit %d, %s", args, code, errs.String())
		}
		return out.String()
	}
	verb("init")
	verb("workspace", "add", "one", plain)
	r, w := io.Pipe()
	lines := make(chan string, 64)
	go func() {
		defer close(lines)
		for sc := bufio.NewScanner(r); sc.Scan(); {
			lines <- sc.Text()
		}
	}()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	g := &globals{home: home, json: true, stdin: strings.NewReader(""), stdout: w, stderr: io.Discard}
	go func() { done <- g.tail(ctx, 0); w.Close() }()
	next := func(kind, what string) {
		t.Helper()
		limit := time.After(30 * time.Second)
		for {
			select {
			case line, ok := <-lines:
				if ok && strings.Contains(line, `"kind":"`+kind+`"`) && strings.Contains(line, `"what":"`+what+`"`) {
					return
				}
				if !ok {
					t.Fatal("tail ended")
				}
			case <-limit:
				t.Fatalf("never told: %s %s", kind, what)
			}
		}
	}
	next("workspace.add", "received")
	next("workspace.add", "applied")
	verb("workspace", "remove", "one")
	next("workspace.remove", "received")
	next("workspace.remove", "applied")
	cancel()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	for line := range lines {
		t.Errorf("told twice: %s", line)
	}
	// The entry by the beginnings of its key and ID, as list prints them, for a
	// person and for a script.
	var list struct{ Entries []host.EntryView }
	if err := json.Unmarshal([]byte(verb("journal", "list", "--json")), &list); err != nil || len(list.Entries) != 2 {
		t.Fatal(list, err)
	}
	e := list.Entries[1]
	text := verb("journal", "show", string(e.Device)[:12], e.Command[:12])
	for _, want := range []string{e.Command, "note      one", "received", "applied", "epoch -1"} {
		if !strings.Contains(text, want) {
			t.Errorf("show does not say %q:\n%s", want, text)
		}
	}
	if doc := verb("journal", "show", string(e.Device), e.Command, "--json", "--no-text"); !strings.Contains(doc, `"history":[{"seq":3,`) {
		t.Error(doc)
	}
}
