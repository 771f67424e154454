package owner

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

func init() {
	testChildren["store-read"] = childRead
	testChildren["store-own"] = childOwn
}

// childRead does what a dozen verbs do that only read: each round opens the store anew, lists it and reads every
// task and its page, until standard input ends. What it sees of a task never goes back, and it takes no lock that
// could make a writer wait.
func childRead(args []string) int {
	ended := make(chan struct{})
	go func() {
		os.Stdin.Read(make([]byte, 1))
		close(ended)
	}()
	last := map[TaskID]int64{}
	for rounds := 0; ; rounds++ {
		select {
		case <-ended:
			fmt.Println(rounds)
			return 0
		default:
		}
		s, err := Open(args[0], Options{Now: fixedClock})
		if err != nil {
			fmt.Println("open:", err)
			return 1
		}
		ids, err := s.List()
		for _, id := range ids {
			v, verr := s.View(id, 10, 4096, nil)
			if err = errors.Join(err, verr); err == nil && v.Task.Revision < last[id] {
				err = fmt.Errorf("task %s went from revision %d to %d", id, last[id], v.Task.Revision)
			}
			last[id] = v.Task.Revision
		}
		s.Close()
		if err != nil {
			fmt.Println("read:", err)
			return 1
		}
	}
}

// childOwn is an owner: it takes owner.lock, brings the task through args[2] turns, and lets it go. While another has
// the lock it is refused, by name.
func childOwn(args []string) int {
	s, err := Open(args[0], Options{Now: fixedClock})
	if err != nil {
		fmt.Println(err)
		return 1
	}
	defer s.Close()
	id := TaskID(args[1])
	turns, _ := strconv.Atoi(args[2])
	busy := 0
	for done := 0; done < turns; {
		held, err := s.Own(context.Background(), id, 2*time.Millisecond)
		var refusal *Error
		if errors.As(err, &refusal) && refusal.Code == "store_busy" {
			busy++
			continue
		}
		if err != nil {
			fmt.Println("own:", err)
			return 1
		}
		err = oneTurn(s, id, fmt.Sprintf("%s-%d", args[3], done))
		held.Release()
		if err != nil {
			fmt.Println("turn:", err)
			return 1
		}
		done++
	}
	fmt.Println("busy", busy)
	return 0
}

// oneTurn asks for a turn and takes it to its end; the caller owns the task.
func oneTurn(s *Store, id TaskID, command string) error {
	ctx := context.Background()
	task, err := s.Get(id)
	if err != nil {
		return err
	}
	if task.Status != Queued {
		b, err := EncodeCommand(continueOf(id, command, task.Revision))
		if err != nil {
			return err
		}
		if _, err := s.Apply(ctx, b); err != nil {
			return err
		}
		if task, err = s.Get(id); err != nil {
			return err
		}
	}
	for _, ev := range []Event{{Admitted: admission(&task)}, {EffectIntent: ptr(EffectID(id, task.Turn()))}, {Result: exited(0)}} {
		if _, err := s.Append(ctx, id, 1, ev); err != nil {
			return err
		}
	}
	return nil
}

// Two owners that contend for one task, two processes that send commands to
// others, and a dozen readers, all at once: no turn is lost or run by two, no
// reader fails or sees a task go back, and the store is sound.
func TestTwoOwnersAndADozenReaders(t *testing.T) {
	s := newStore(t)
	if _, err := s.PutBlob([]byte("grant")); err != nil {
		t.Fatal(err)
	}
	mustApply(t, s, submitOf("owned", "o"))
	start := func(in string, args ...string) (*exec.Cmd, *bytes.Buffer, func()) {
		cmd := exec.Command(os.Args[0], args...)
		out := &bytes.Buffer{}
		cmd.Stdout, cmd.Stderr = out, out
		stop := func() {}
		if in == "" {
			w, err := cmd.StdinPipe()
			if err != nil {
				t.Fatal(err)
			}
			stop = func() { w.Close() }
		} else {
			cmd.Stdin = strings.NewReader(in)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		return cmd, out, stop
	}
	var readers sync.WaitGroup
	var stops []func()
	for range 12 {
		cmd, out, stop := start("", "store-read", s.Home())
		stops = append(stops, stop)
		readers.Go(func() {
			if err := cmd.Wait(); err != nil {
				t.Errorf("a reader: %v: %s", err, out)
			} else if n := strings.TrimSpace(out.String()); n == "0" {
				t.Error("a reader came to nothing")
			}
		})
	}
	const turns, tasks = 6, 12
	var writers sync.WaitGroup
	for i := range 2 {
		owner, out, _ := start("-", "store-own", s.Home(), "owned", fmt.Sprint(turns), fmt.Sprint("owner-", i))
		writers.Go(func() {
			if err := owner.Wait(); err != nil {
				t.Errorf("an owner: %v: %s", err, out)
			}
		})
		var commands strings.Builder
		for n := range tasks {
			fmt.Fprintf(&commands, "%s\n", encoded(t, submitOf(TaskID(fmt.Sprint("task-", n)), fmt.Sprint("c-", n))))
		}
		apply, said, _ := start(commands.String(), "store-apply", s.Home())
		writers.Go(func() {
			if err := apply.Wait(); err != nil || strings.Contains(said.String(), "fault") {
				t.Errorf("commands: %v: %s", err, said)
			}
		})
	}
	writers.Wait()
	for _, stop := range stops {
		stop()
	}
	readers.Wait()
	task, err := s.Get("owned")
	if err != nil || task.Turn() != 2*turns || task.Status != Finished {
		t.Fatalf("turn %d, %s: %v", task.Turn(), task.Status, err)
	}
	if ids, err := s.List(); err != nil || len(ids) != tasks+1 {
		t.Fatalf("%d tasks, %v", len(ids), err)
	}
	wantSound(t, openStore(t, s.Home(), false))
}
