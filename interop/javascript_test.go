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
	ctx, stop := context.WithTimeout(t.Context(), 50*time.Second)
	defer stop()
	install := exec.CommandContext(ctx, "npm", append([]string{"install", "--no-audit", "--no-fund", "--ignore-scripts", "--prefix", dir}, packages...)...)
	if out, err := install.CombinedOutput(); err != nil {
		skip.Missing(t, "npm could not install "+strings.Join(packages, " ")+": "+err.Error()+"\n"+string(out))
	}
	script, err := os.ReadFile("testdata/client.mjs")
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "client.mjs")
	if err := os.WriteFile(path, script, 0o600); err != nil {
		t.Fatal(err)
	}
	url := embeddedRelay(t)
	host := relaytest.Key(t)
	requests := answering(t, url, host)
	out, err := exec.CommandContext(ctx, "node", path, string(url), string(host.Public())).CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	id := strings.TrimSpace(string(out))
	for _, what := range []string{"the request", "its retry"} {
		if got := next(t, requests, what); got != id {
			t.Errorf("%s: %s, want %s", what, got, id)
		}
	}
}
