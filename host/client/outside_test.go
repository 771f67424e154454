package client

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"holdfast/internal/skip"
	"holdfast/nip"
	"holdfast/relay"
	"holdfast/relay/relaytest"
)

// deviceExample is the program that docs/wire.md shows under "A device in Go".
func deviceExample(t *testing.T, tree string) string {
	t.Helper()
	doc, err := os.ReadFile(filepath.Join(tree, "docs", "wire.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, section, found := strings.Cut(string(doc), "\n## A device in Go\n")
	if !found {
		t.Fatal("docs/wire.md has no section \"A device in Go\"")
	}
	_, code, found := strings.Cut(section, "\n```go\n")
	code, _, closed := strings.Cut(code, "\n```\n")
	if !found || !closed {
		t.Fatal("the section has no fenced go block")
	}
	return code + "\n"
}

// outside writes a module beside this one that imports it by a replace
// directive, as somebody else's would, and builds its program. The versions are
// ours, so that nothing is fetched.
func outside(t *testing.T) string {
	t.Helper()
	tool, err := exec.LookPath("go")
	if err != nil {
		skip.Missing(t, "the go tool is not in PATH: the documented device is not built")
	}
	tree, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	mod, err := os.ReadFile(filepath.Join(tree, "go.mod"))
	if err != nil {
		t.Fatal(err)
	}
	mod = []byte(strings.Replace(string(mod), "module holdfast\n", "module example\n", 1) +
		"\nrequire holdfast v0.0.0\n\nreplace holdfast => " + tree + "\n")
	sum, err := os.ReadFile(filepath.Join(tree, "go.sum"))
	if err != nil {
		t.Fatal(err)
	}
	for name, b := range map[string][]byte{"go.mod": mod, "go.sum": sum, "main.go": []byte(deviceExample(t, tree))} {
		if err := os.WriteFile(filepath.Join(dir, name), b, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	c := exec.CommandContext(t.Context(), tool, "build", "-o", "example", ".")
	c.Dir = dir
	c.Env = append(os.Environ(), "GOFLAGS=-mod=mod -buildvcs=false", "GOPROXY=off", "GOWORK=off")
	if out, err := c.CombinedOutput(); err != nil {
		t.Fatalf("the documented device does not build: %v\n%s", err, out)
	}
	return filepath.Join(dir, "example")
}

// The program in the documentation is a device: built outside this module, it
// pairs, makes a task, sees its end and reads its page.
func TestDeviceOutsideThisModule(t *testing.T) {
	bin := outside(t)
	url := realRelay(t)
	h := newHost(t, url)
	h.pairs = true
	publisher := relay.Dial(relay.Options{URL: url, Key: h.key, Log: zerolog.Nop(), Now: time.Now})
	defer publisher.Close()
	h.op = func(r nip.Request) (nip.Outcome, *nip.Refusal) {
		switch op := r.Op.(type) {
		case nip.TaskCreate:
			now := time.Now().Unix()
			for i, phase := range []nip.Phase{nip.PhaseQueued, nip.PhaseRunning, nip.PhaseCompleted} {
				ctx, cancel := context.WithTimeout(context.Background(), relaytest.Patience)
				ev := h.sealSummary(h.key, h.grant.Device, h.summary(string(r.ID), int64(i+1), phase, now))
				if err := publisher.Publish(ctx, ev); err != nil {
					t.Errorf("publish a summary: %v", err)
				}
				cancel()
			}
			return nip.Dispatched{Operation: op.Kind(), Reference: string(r.ID)}, nil
		case nip.TaskRead:
			return pageOf(op.Query), nil
		}
		return nil, &nip.Refusal{Code: nip.Unsupported}
	}
	h.online(t)
	profile := filepath.Join(t.TempDir(), "profile")
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	for round, args := range [][]string{{"-code", h.code(h.invitation()), "-allow-loopback"}, nil} {
		c := exec.CommandContext(ctx, bin, append(args, "-profile", profile, "-workspace", "demo", "-prompt", "hello", "-limit", "2m")...)
		out, err := c.CombinedOutput()
		if err != nil {
			t.Fatalf("round %d: %v\n%s", round, err, out)
		}
		want := []string{"task ", "Task finished", "execution "}
		if round == 0 {
			want = append([]string{"paired with " + string(h.key.Public())}, want...)
		}
		rest := string(out)
		for _, w := range want {
			var found bool
			if _, rest, found = strings.Cut(rest, w); !found {
				t.Errorf("round %d: no %q in its place:\n%s", round, w, out)
			}
		}
	}
}
