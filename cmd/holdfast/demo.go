package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"holdfast/host"
	"holdfast/nip"
)

// demoLabel is the workspace that up makes for itself on a new home.
const demoLabel nip.Label = "demo"

// demoScript is the demonstration program: a shell that writes the prompt into
// a file of the task's own worktree. "wait N" takes N seconds, "ask" asks a
// question: so a person can try an interrupt and an answer.
const demoScript = `prompt=$(cat)
printf '%s\n' "$prompt" >> notes.txt
case "$prompt" in
"wait "[0-9]*) seconds=${prompt#wait }; seconds=${seconds%%[!0-9]*}; i=0
  while [ "$i" -lt "$seconds" ]; do echo "waiting, second $i"; i=$((i+1)); sleep 1; done
  reply='done waiting' ask=null ;;
ask*) reply='which colour should it be?' ask='"question"' ;;
*) reply='your prompt stands in notes.txt of this task alone' ask=null ;;
esac
echo "$reply"
printf '{"reply":"%s","ask":%s}' "$reply" "$ask" > "$HOLDFAST_REPLY"
`

// makeDemo gives a new home something harmless to try: a git repository beside
// it, its label, and a policy for that label alone. It returns what to tell
// the person. A machine where it cannot be made is served without it.
func (g *globals) makeDemo(ctx context.Context) string {
	path := g.home + "-demo"
	if err := makeDemoRepository(ctx, path); err != nil {
		return fmt.Sprintf("no demonstration workspace: %s\nadd your own with holdfast workspace add LABEL PATH", err)
	}
	// By the verbs, so that the journal begins with them.
	if _, err := ask[host.WorkspaceRow](ctx, g, "workspace.add", host.WorkspaceArgs{Label: demoLabel, Path: path}); err != nil {
		return fmt.Sprintf("no demonstration workspace: %s", err)
	}
	policy, err := demoPolicy(demoLabel)
	if err == nil {
		_, err = ask[jsontext.Value](ctx, g, "policy.set", jsontext.Value(policy))
	}
	if err != nil {
		return fmt.Sprintf("no demonstration policy: %s", err)
	}
	return fmt.Sprintf("new home: the workspace %q (%s) was made to try things in, with a policy that runs\n"+
		"/bin/sh there in a sandbox without network; nothing else starts by itself (holdfast policy show, policy off)", demoLabel, path)
}

// demoPolicy runs demoScript in one workspace.
func demoPolicy(label nip.Label) ([]byte, error) {
	shell, err := filepath.EvalSymlinks("/bin/sh")
	if err != nil {
		return nil, err
	}
	return json.Marshal(host.Policy{
		V: host.PolicyVersion, Enabled: true, MaxRunning: 2,
		Rules: []host.Rule{{
			Workspaces: []nip.Label{label}, Adapter: "prompt-command", Program: shell, Arguments: []string{"-c", demoScript},
			Write: true, Git: "read", WallSeconds: 600, StreamBytes: 64 << 10, MemoryBytes: 512 << 20,
		}},
	})
}

// makeDemoRepository makes a repository with one commit. A folder that is
// already there is never touched.
func makeDemoRepository(ctx context.Context, path string) error {
	if _, err := os.Lstat(path); err == nil {
		return nil
	}
	git, err := exec.LookPath("git")
	if err != nil {
		return fmt.Errorf("git is not installed")
	}
	if err := os.MkdirAll(path, 0o755); err != nil {
		return err
	}
	readme := "# A workspace to try Holdfast in\n\nEvery task works in a linked worktree of its own; nothing changes here.\n"
	if err := os.WriteFile(filepath.Join(path, "README.md"), []byte(readme), 0o644); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	for _, args := range [][]string{
		{"init", "-q", "-b", "main"}, {"add", "README.md"},
		{"-c", "user.name=Holdfast", "-c", "user.email=holdfast@localhost", "commit", "-q", "-m", "a place to try things"},
	} {
		c := exec.CommandContext(ctx, git, append([]string{"-C", path, "-c", "core.hooksPath=/dev/null", "-c", "commit.gpgSign=false"}, args...)...)
		c.Env = []string{"PATH=" + os.Getenv("PATH"), "GIT_CONFIG_NOSYSTEM=1", "GIT_CONFIG_GLOBAL=/dev/null", "HOME=/nonexistent"}
		if out, err := c.CombinedOutput(); err != nil {
			return fmt.Errorf("git %s: %s", args[0], firstWords(string(out)))
		}
	}
	return nil
}

func firstWords(s string) string {
	if len(s) > 200 {
		s = s[:200]
	}
	return s
}
