package owner

import (
	"bufio"
	"encoding/json"
	"fmt"
	netpkg "net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"holdfast/sandbox"
	"holdfast/sandbox/proxy"
)

// connectVerb runs, inside, a program that asks the proxy for each argument and prints the answers.
const connectVerb = "connect-through"

func init() {
	testChildren[connectVerb] = func(targets []string) int {
		for _, target := range targets {
			c, err := netpkg.Dial("tcp", strings.TrimPrefix(os.Getenv("HTTPS_PROXY"), "http://"))
			if err != nil {
				fmt.Println(err)
				return 1
			}
			c.SetDeadline(time.Now().Add(30 * time.Second))
			fmt.Fprintf(c, "CONNECT %s HTTP/1.1\r\n\r\n", target)
			line, _ := bufio.NewReader(c).ReadString('\n')
			fmt.Println(target, strings.TrimSpace(line))
			c.Close()
		}
		return 0
	}
}

// connecting makes a grant run that program with an allow list.
func connecting(t testing.TB, allow string, targets ...string) func(*Grant) {
	exe, err := os.Executable()
	if err == nil {
		exe, err = filepath.EvalSymlinks(exe)
	}
	if err != nil {
		t.Fatal(err)
	}
	return func(g *Grant) {
		g.Program, g.Arguments = exe, append([]string{connectVerb}, targets...)
		g.Network = json.RawMessage(`{"allow":["` + allow + `"]}`)
	}
}

// TestEgressIsInTheEvidence: a turn with an allow list runs, and what it reached and tried stands in its result, its
// transcript and its export.
func TestEgressIsInTheEvidence(t *testing.T) {
	w := newWorkbench(t)
	w.submit("t", BoundedCommand)
	task := w.execute("t", w.grant("t", "", connecting(t, "example.org:443", "evil.example:443", "evil.example:443", "127.0.0.1:22", "example.org:22")), nil)
	wantEnding(t, task, Finished, ExecFinished, "exit 0")
	const no = " HTTP/1.1 403 Forbidden\n"
	if got := said(t, w.trace("t", 1), "stdout"); got != "evil.example:443"+no+"evil.example:443"+no+"127.0.0.1:22"+no+"example.org:22"+no {
		t.Fatalf("stdout %q", got)
	}
	var rep sandbox.Report
	if json.Unmarshal(task.Run.Result.Confinement, &rep) != nil || rep.Network != "netns-lo-proxy" {
		t.Fatalf("confinement %s", task.Run.Result.Confinement)
	}
	want := []ReachedRow{
		{"127.0.0.1:22", "refused: an address that is not on the allow list", 1, 0, 0},
		{"evil.example:443", "refused: not on the allow list", 2, 0, 0},
		{"example.org:22", "refused: not on the allow list", 1, 0, 0},
	}
	got := task.Run.Result.Reached()
	if got == nil || !slices.Equal(got.Rows, want) || got.More != 0 || got.Up != 0 {
		t.Fatalf("reached %+v", got)
	}
	if again := w.get("t").Run.Result.Reached(); again == nil || !slices.Equal(again.Rows, want) {
		t.Fatalf("read again: %+v", again)
	}
	raw := string(readFile(t, w.tracePath("t", 1)))
	if !strings.Contains(raw, `"message":"egress"`) || !strings.Contains(raw, `"evil.example:443"`) {
		t.Fatal("the transcript does not say what was tried")
	}
}

// A turn without an allow list has no record of one.
func TestNoEgressWithoutAList(t *testing.T) {
	w := newWorkbench(t)
	w.submit("t", BoundedCommand)
	task := w.execute("t", w.grant("t", "true"), nil)
	if task.Run.Result.Egress != nil || task.Run.Result.Reached() != nil || strings.Contains(string(readFile(t, w.tracePath("t", 1))), `"egress"`) {
		t.Fatalf("egress %s", task.Run.Result.Egress)
	}
}

// A record of any size fits an event, and keeps what was reached.
func TestEgressFitsAnEvent(t *testing.T) {
	r := proxy.Record{Rows: []proxy.Row{{Target: "example.org:443", Verdict: proxy.Allowed, Count: 1, Up: 2, Down: 3}}, Up: 2, Down: 3}
	for i := range 256 {
		r.Rows = append(r.Rows, proxy.Row{Target: fmt.Sprintf("%s-%d.example:443", strings.Repeat("a", 60), i), Verdict: proxy.NotListed, Count: 1})
	}
	b := egressOf(&sandbox.Result{Egress: &r})
	got := (&Result{Egress: b}).Reached()
	if !document(b, true) || got == nil || got.Rows[0].Target != "example.org:443" || got.More == 0 || int(got.More)+len(got.Rows) != 257 {
		t.Fatalf("%d bytes, %+v", len(b), got)
	}
	if egressOf(&sandbox.Result{}) != nil || (&Result{Egress: json.RawMessage("[]")}).Reached() != nil {
		t.Fatal("a record out of nothing")
	}
}

// TestSecretsStayInTheirFile: the bytes of a secret that a turn is given by name are, while it runs and afterwards, in
// no file of the home but secrets.json, and in no command line outside of the turn.
func TestSecretsStayInTheirFile(t *testing.T) {
	w := newWorkbench(t)
	const secret = "s3cret-0f-the-0perator-5b1d"
	writeFile(t, filepath.Join(w.home, secretsFile), []byte(`{"v":"holdfast.secrets.v1","values":{"API_KEY":"`+secret+`","OTHER":"`+secret+`-unused"}}`))
	w.submit("t", PromptCommand)
	lines := 0
	look := func(point string) {
		if point != "opened" {
			return
		}
		all, err := filepath.Glob("/proc/[0-9]*/cmdline")
		if err != nil {
			t.Error(err)
		}
		for _, f := range all {
			b, err := os.ReadFile(f)
			if err != nil {
				continue // it ended meanwhile
			}
			lines++
			if strings.Contains(string(b), secret) {
				t.Errorf("%s holds the secret", f)
			}
		}
	}
	// The program knows the secret by its length, and does not print it.
	script := `echo "${#API_KEY} $OTHER"; echo '{"reply":"done","ask":null}' > "$HOLDFAST_REPLY"; sleep 1`
	task := w.execute("t", w.grant("t", script, func(g *Grant) { g.Environment = []string{"API_KEY"} }), look)
	wantEnding(t, task, Finished, ExecFinished, "exit 0")
	if got := said(t, w.trace("t", 1), "stdout"); got != fmt.Sprintf("%d \n", len(secret)) {
		t.Fatalf("stdout %q", got)
	}
	files := 0
	err := filepath.WalkDir(w.home, func(path string, d os.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		files++
		b, err := os.ReadFile(path)
		if err == nil && strings.Contains(string(b), secret) && d.Name() != secretsFile {
			t.Errorf("%s holds the secret", path)
		}
		return err
	})
	if err != nil || files < 5 || lines < 3 {
		t.Fatalf("looked at %d files and %d command lines: %v", files, lines, err)
	}
	if raw := string(readFile(t, w.tracePath("t", 1))); !strings.Contains(raw, `"environment":["API_KEY"]`) {
		t.Error("the transcript does not name the variable")
	}
}
