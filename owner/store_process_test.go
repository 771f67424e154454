package owner

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"
)

func init() { testChildren["store-apply"] = childApply }

// childApply applies each hex-free line of standard input as a command and
// answers with a line: the receipt, or the refusal's code.
func childApply(args []string) int {
	s, err := Open(args[0], Options{Now: fixedClock})
	if err != nil {
		fmt.Println(err)
		return 1
	}
	defer s.Close()
	in := bufio.NewScanner(os.Stdin)
	in.Buffer(nil, 1<<20)
	for in.Scan() {
		r, err := s.Apply(context.Background(), in.Bytes())
		var refusal *Error
		switch {
		case errors.As(err, &refusal):
			fmt.Println(refusal.Code)
		case err != nil:
			fmt.Println("fault", err)
		default:
			fmt.Println(string(mustJSON(r)))
		}
	}
	return 0
}

// Several processes send the same commands at once: each is applied once, and
// everyone gets the one receipt. The same IDs with other bytes, and for another
// task, lose or win as a whole.
func TestRetryAndConflictAcrossProcesses(t *testing.T) {
	s := newStore(t)
	mustApply(t, s, submitOf("b", "submit-b"))
	const tasks = 12
	var same, rivals strings.Builder
	for i := range tasks {
		id := TaskID(fmt.Sprint("task-", i))
		fmt.Fprintf(&same, "%s\n", encoded(t, submitOf(id, fmt.Sprint("c-", i))))
		// The same command ID, to be had by one of two tasks only.
		c := submitOf(TaskID(fmt.Sprint("rival-", i)), fmt.Sprint("c-", i))
		fmt.Fprintf(&rivals, "%s\n", encoded(t, c))
	}
	outputs := make([][]string, 4)
	var wg sync.WaitGroup
	for i := range outputs {
		in := same.String()
		if i == 3 {
			in = rivals.String()
		}
		wg.Go(func() {
			cmd := exec.Command(os.Args[0], "store-apply", s.Home())
			cmd.Stdin = strings.NewReader(in)
			out, err := cmd.CombinedOutput()
			if err != nil {
				t.Errorf("child: %v: %s", err, out)
			}
			outputs[i] = strings.Split(strings.TrimSpace(string(out)), "\n")
		})
	}
	wg.Wait()
	for i := range tasks {
		if len(outputs[0]) != tasks || len(outputs[3]) != tasks {
			t.Fatalf("answers %q", outputs)
		}
		a, rival := outputs[0][i], outputs[3][i]
		if outputs[1][i] != a || outputs[2][i] != a {
			t.Errorf("command %d: %q", i, outputs)
		}
		if (a == "command_conflict") == (rival == "command_conflict") {
			t.Errorf("command %d: one of the two tasks must have it: %s, %s", i, a, rival)
		}
	}
	wantSound(t, s)
	ids, err := s.List()
	if err != nil || len(ids) != tasks+1 {
		t.Fatalf("%d tasks, %v", len(ids), err)
	}
	for _, id := range ids {
		if task, err := s.Get(id); err != nil || task.Revision != 1 {
			t.Errorf("%s: revision %d, %v", id, task.Revision, err)
		}
	}
}

// In one process: of two commands at the same revision one is applied.
func TestRaceForARevision(t *testing.T) {
	s := newStore(t)
	mustApply(t, s, submitOf(deviceTask, "c1"))
	const n = 8
	codes := make([]string, n)
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() {
			_, err := s.Apply(context.Background(), encoded(t, correctOf(deviceTask, fmt.Sprint("x", i), 1)))
			var refusal *Error
			if errors.As(err, &refusal) {
				codes[i] = refusal.Code
			} else if err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	won := 0
	for _, c := range codes {
		switch c {
		case "":
			won++
		case "revision_mismatch":
		default:
			t.Error("refused with", c)
		}
	}
	if won != 1 {
		t.Fatalf("%d commands were applied at one revision", won)
	}
	wantSound(t, s)
}

func TestConflicts(t *testing.T) {
	s := newStore(t)
	first := mustApply(t, s, submitOf("a", "c1"))
	mustApply(t, s, submitOf("b", "c2"))
	for _, row := range []struct {
		name string
		c    Command
		code string
	}{
		{"another task's command ID", cancelOf("b", "c1", 1), "command_conflict"},
		{"own command ID with other bytes", cancelOf("a", "c1", 1), "command_conflict"},
		{"another task's ID for a new task", submitOf("new", "c1"), "command_conflict"},
		{"no such task", cancelOf("nobody", "c3", 1), "not_found"},
		{"task exists", submitOf("a", "c3"), "invalid_transition"},
		{"a refused ID stays free", cancelOf("a", "c3", 1), ""},
		{"the turn ended", cancelOf("a", "c4", 2), "invalid_transition"},
	} {
		t.Run(row.name, func(t *testing.T) {
			_, err := s.Apply(context.Background(), encoded(t, row.c))
			wantCode(t, err, row.code)
		})
	}
	if again := mustApply(t, s, submitOf("a", "c1")); again != first {
		t.Fatalf("the first receipt changed: %+v", again)
	}
	if _, err := os.Stat(s.TaskDir("new")); err == nil {
		t.Fatal("a refused submit left a folder")
	}
	wantSound(t, s)
}

// A reservation that a crash left binds the task, and neither the bytes nor the revision.
func TestReservationWithoutItsCommand(t *testing.T) {
	s := newStore(t)
	mustApply(t, s, submitOf("a", "c1"))
	mustApply(t, s, submitOf("b", "c2"))
	if err := s.reserve(context.Background(), identity{command: "c3", task: "a"}); err != nil {
		t.Fatal(err)
	}
	_, err := s.Apply(context.Background(), encoded(t, cancelOf("b", "c3", 1)))
	wantCode(t, err, "command_conflict")
	mustApply(t, s, cancelOf("a", "c3", 1))
	wantSound(t, openStore(t, s.Home(), false))
}

func TestLocksExclude(t *testing.T) {
	s := newStore(t)
	mustApply(t, s, submitOf("a", "c1"))
	l, err := s.Lock(context.Background(), "a")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Millisecond)
	defer cancel()
	_, err = s.Append(ctx, "a", 0, Event{NotStarted: ptr("x")})
	wantCode(t, err, "store_busy")
	if _, err := l.Append(0, Event{NotStarted: ptr("x")}); err != nil || l.Task().Status != Cancelled {
		t.Fatalf("%v %+v", err, l.Task())
	}
	l.Unlock()
	l.Unlock()
	mustApply(t, s, continueOf("a", "c2", 2))

	o, err := s.Own(context.Background(), "a", 0)
	if err != nil {
		t.Fatal(err)
	}
	other := openStore(t, s.Home(), false)
	_, err = other.Own(context.Background(), "a", 10*time.Millisecond)
	wantCode(t, err, "store_busy")
	o.Release()
	if o, err = other.Own(context.Background(), "a", 0); err != nil {
		t.Fatal(err)
	}
	o.Release()
	_, err = s.Own(context.Background(), "nobody", 0)
	wantCode(t, err, "not_found")
}

func TestBlobs(t *testing.T) {
	s := newStore(t)
	d, err := s.PutBlob([]byte("hello"))
	if err != nil || d != DigestOf([]byte("hello")) {
		t.Fatal(d, err)
	}
	if again, err := s.PutBlob([]byte("hello")); err != nil || again != d {
		t.Fatal(again, err)
	}
	if b, err := s.GetBlob(d, 5); err != nil || string(b) != "hello" {
		t.Fatal(b, err)
	}
	_, err = s.GetBlob(d, 4)
	wantCode(t, err, "limit_exceeded")
	_, err = s.GetBlob(DigestOf(nil), 4)
	wantCode(t, err, "not_found")
	_, err = s.GetBlob("sha256:../../x", 4)
	wantCode(t, err, "invalid_command")
	path := s.Home() + "/blobs/sha256/" + string(d)[7:9] + "/" + string(d)[7:]
	writeFile(t, path, []byte("hellO"))
	_, err = s.GetBlob(d, 5)
	wantErr(t, err, ErrCorrupt)
	wantErr(t, s.Check(func(string, bool, string) {}), ErrCorrupt)
	// A blob that a crash of the machine spoiled is put right by the next Put.
	if _, err := s.PutBlob([]byte("hello")); err != nil {
		t.Fatal(err)
	}
	wantSound(t, s)
}

func TestTaskJSONHasEmptyLists(t *testing.T) {
	s := newStore(t)
	mustApply(t, s, submitOf("a", "c1"))
	task, _ := s.Get("a")
	b, err := json.Marshal(task)
	if err != nil || !strings.Contains(string(b), `"corrections":[],"follow_ups":[],"earlier":[]`) {
		t.Fatalf("%s %v", b, err)
	}
}
