package interop

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"holdfast/internal/skip"
	"holdfast/relay/relaytest"
)

// The versions that the test installs.
var packages = []string{"ws@8.18.0", "nostr-tools@2.10.4"}

func TestJavaScriptClientWithOurRelay(t *testing.T) {
	for _, program := range []string{"node", "npm"} {
		skip.Program(t, program)
	}
	t.Parallel()
	dir := t.TempDir()
	ctx, stop := context.WithTimeout(t.Context(), 5*relaytest.Patience)
	defer stop()
	install := exec.CommandContext(ctx, "npm", append([]string{"install", "--no-audit", "--no-fund", "--ignore-scripts", "--prefix", dir}, packages...)...)
	if out, err := install.CombinedOutput(); err != nil {
		skip.Missing(t, "npm could not install "+strings.Join(packages, " ")+": "+err.Error()+"\n"+string(out))
	}
	for _, c := range []struct {
		script  string
		printed []string // what the script says of each line that it prints
		shown   []int    // which of them the host is shown, in order
	}{
		{"client.mjs", []string{"the request"}, []int{0, 0}},
		{"faults.mjs", []string{"the request of three connections", "the last request"}, []int{0, 1}},
	} {
		t.Run(c.script, func(t *testing.T) {
			t.Parallel()
			ctx, stop := context.WithTimeout(t.Context(), 5*relaytest.Patience)
			defer stop()
			script, err := os.ReadFile(filepath.Join("testdata", c.script))
			if err != nil {
				t.Fatal(err)
			}
			path := filepath.Join(dir, c.script)
			if err := os.WriteFile(path, script, 0o600); err != nil {
				t.Fatal(err)
			}
			url := embeddedRelay(t)
			host := relaytest.Key(t)
			requests := answering(t, url, host)
			began := time.Now()
			out, err := exec.CommandContext(ctx, "node", path, string(url), string(host.Public())).CombinedOutput()
			if err != nil {
				t.Fatalf("%v\n%s", err, out)
			}
			ids := strings.Fields(string(out))
			if len(ids) != len(c.printed) {
				t.Fatalf("printed %q", out)
			}
			slow := time.Since(began) > 5*time.Second // then a copy may count as a retry, and be shown
			for _, i := range c.shown {
				got := next(t, requests, c.printed[i])
				for slow && i > 0 && got == ids[0] {
					got = next(t, requests, c.printed[i])
				}
				if got != ids[i] {
					t.Errorf("%s: %s, want %s", c.printed[i], got, ids[i])
				}
			}
		})
	}
}
