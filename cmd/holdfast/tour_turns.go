package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"holdfast/owner"
)

// tourPage is what the tour looks at in a page.
type tourPage struct {
	Execution    string
	Verification string
	Cleanup      string
	Phase        string
	Next         json.RawMessage
	More         bool `json:"more_available"`
	Evidence     struct {
		State string
		Total int `json:"total_steps"`
		Steps []json.RawMessage
	}
}

// tourQueue is what the tour looks at in a queue.
type tourQueue struct {
	Queue struct {
		Lease *struct{ Device string }
		Items []struct {
			Command  string
			Text     string
			Priority bool
		}
	}
}

func (q *tourQueue) order() string {
	var list []string
	for _, i := range q.Queue.Items {
		list = append(list, i.Text)
	}
	return strings.Join(list, " | ")
}

// sent is a command that the host took.
type sent struct {
	Command string
	BasedOn int64 `json:"based_on"`
}

// command sends one durable command and shows its hops.
func (t *tour) command(ctx context.Context, args ...string) (sent, error) {
	var s sent
	if err := t.phone(ctx, &s, args...); err != nil {
		return s, err
	}
	return s, t.journal(ctx, args[0], s.Command)
}

// running waits until the task's turn really runs: the process is recorded and
// its program has written the prompt down.
func (t *tour) running(ctx context.Context, turn int) (owner.Task, error) {
	var last owner.Task
	err := t.until(ctx, fmt.Sprintf("turn %d to run", turn), func(s *owner.Store) (bool, error) {
		now, err := s.Get(owner.TaskID(t.task))
		if err != nil {
			return false, err
		}
		last = now
		if now.Turn() != turn || now.Run == nil || now.Run.Process == nil {
			return false, nil
		}
		raw, err := os.ReadFile(filepath.Join(now.Worktree.Path, "notes.txt"))
		if errors.Is(err, os.ErrNotExist) {
			return false, nil
		}
		return strings.HasSuffix(string(raw), now.EffectivePrompt()+"\n"), err
	})
	return last, err
}

// until looks at the store after each of its changes.
func (t *tour) until(ctx context.Context, what string, done func(*owner.Store) (bool, error)) error {
	s, err := owner.Open(t.home, owner.Options{})
	if err != nil {
		return err
	}
	defer s.Close()
	poll := time.NewTicker(20 * time.Millisecond)
	defer poll.Stop()
	for {
		ok, err := done(s)
		if ok || err != nil {
			return err
		}
		select {
		case <-poll.C:
		case <-ctx.Done():
			return fmt.Errorf("waited for %s", what)
		}
	}
}

func (t *tour) stepQueue(ctx context.Context) error {
	if _, err := t.command(ctx, "send", t.task, "wait 120"); err != nil {
		return err
	}
	if _, err := t.running(ctx, 2); err != nil {
		return err
	}
	one, err := t.command(ctx, "queue", t.task, "the first message")
	if err != nil {
		return err
	}
	two, err := t.command(ctx, "queue", t.task, "the second message")
	if err != nil {
		return err
	}
	var q tourQueue
	edits := []struct {
		say  string
		args []string
		want string
	}{
		{"lease", []string{"lease"}, "the first message | the second message"},
		{"edit", []string{"edit", one.Command, "the first message, edited"}, "the first message, edited | the second message"},
		{"reorder", []string{"reorder", two.Command, one.Command}, "the second message | the first message, edited"},
		{"list", []string{"list"}, "the second message | the first message, edited"},
	}
	for _, e := range edits {
		q = tourQueue{}
		if err := t.phone(ctx, &q, append([]string{"held", t.task}, e.args...)...); err != nil {
			return err
		}
		if q.order() != e.want {
			return fmt.Errorf("after %s the queue is %q, not %q", e.say, q.order(), e.want)
		}
		if q.Queue.Lease == nil || q.Queue.Lease.Device != t.device {
			return fmt.Errorf("after %s the device does not hold the lease", e.say)
		}
		t.say(e.say, q.order(), nil)
	}
	t.first = two.Command
	return nil
}

func (t *tour) stepInterrupt(ctx context.Context) error {
	if _, err := t.command(ctx, "interrupt", t.task, "enough waiting"); err != nil {
		return err
	}
	stopped := owner.Task{}
	if err := t.until(ctx, "the turn to stop", func(s *owner.Store) (bool, error) {
		now, err := s.Get(owner.TaskID(t.task))
		stopped = now
		return err == nil && now.Status == owner.Finished && now.Turn() == 2, err
	}); err != nil {
		return err
	}
	r := stopped.Run.Result
	if stopped.Execution != owner.ExecStopped || !r.GroupClear {
		return fmt.Errorf("the interrupted turn ended as %s, cleanup confirmed: %v", stopped.Execution, r.GroupClear)
	}
	t.say("stopped", fmt.Sprintf("revision %d: %s after %d ms, nothing left of its processes", stopped.Revision, r.Ending, r.ElapsedMS), nil)
	var q tourQueue
	if err := t.phone(ctx, &q, "held", t.task, "list"); err != nil {
		return err
	}
	if len(q.Queue.Items) != 2 {
		return errors.New("held messages ran although the lease was held")
	}
	t.say("held", "both messages wait while the lease is held", nil)
	if err := t.phone(ctx, nil, "held", t.task, "release"); err != nil {
		return err
	}
	if err := t.ended(ctx, 4, owner.Finished); err != nil {
		return err
	}
	if _, err := t.summary(ctx, t.task, "completed", stopped.Revision); err != nil {
		return err
	}
	if err := t.journal(ctx, "queue", t.first); err != nil {
		return err
	}
	return t.notes(firstPrompt, "wait 120", "the second message", "the first message, edited")
}

// ended waits until a turn has its end.
func (t *tour) ended(ctx context.Context, turn int, want owner.Status) error {
	return t.until(ctx, fmt.Sprintf("turn %d to end", turn), func(s *owner.Store) (bool, error) {
		now, err := s.Get(owner.TaskID(t.task))
		return err == nil && now.Turn() == turn && now.Run != nil && now.Run.Result != nil && now.Status == want, err
	})
}

// notes compares the prompts that turns wrote down, in order: each ran once.
func (t *tour) notes(want ...string) error {
	now, err := t.taskNow(t.task)
	if err != nil {
		return err
	}
	raw, err := os.ReadFile(filepath.Join(now.Worktree.Path, "notes.txt"))
	if err != nil {
		return fmt.Errorf("read the worktree: %w", err)
	}
	got := strings.Split(strings.TrimSuffix(string(raw), "\n"), "\n")
	if strings.Join(got, "|") != strings.Join(want, "|") {
		return fmt.Errorf("the turns wrote %q, not %q", got, want)
	}
	t.say("order", "ran, each once: "+strings.Join(want, ", then "), nil)
	return nil
}

func (t *tour) stepSteer(ctx context.Context) error {
	if _, err := t.command(ctx, "send", t.task, "wait 90"); err != nil {
		return err
	}
	if _, err := t.running(ctx, 5); err != nil {
		return err
	}
	s, err := t.command(ctx, "steer", t.task, "do this instead", "--emulate")
	if err != nil {
		return err
	}
	if err := t.ended(ctx, 6, owner.Finished); err != nil {
		return err
	}
	if err := t.journal(ctx, "steer", s.Command); err != nil {
		return err
	}
	return t.notes(firstPrompt, "wait 120", "the second message", "the first message, edited", "wait 90", "do this instead")
}

func (t *tour) stepAnswer(ctx context.Context) error {
	before, err := t.taskNow(t.task)
	if err != nil {
		return err
	}
	if _, err := t.command(ctx, "send", t.task, "ask me something"); err != nil {
		return err
	}
	seq, err := t.summary(ctx, t.task, "waiting", before.Revision)
	if err != nil {
		return err
	}
	if _, err := t.command(ctx, "answer", t.task, "blue"); err != nil {
		return err
	}
	_, err = t.summary(ctx, t.task, "completed", seq)
	return err
}

func (t *tour) stepKill(ctx context.Context) error {
	// Long enough that a busy machine still kills the host within it.
	if _, err := t.command(ctx, "send", t.task, "wait 10"); err != nil {
		return err
	}
	before, err := t.running(ctx, 9)
	if err != nil {
		return err
	}
	var held sent
	if err := t.phone(ctx, &held, "queue", t.task, "said before the crash"); err != nil {
		return err
	}
	t.kept = held.Command
	t.host.kill()
	t.say("kill -9", fmt.Sprintf("host process %d is gone", t.host.cmd.Process.Pid), nil)
	during, err := t.taskNow(t.task)
	if err != nil {
		return err
	}
	if during.Run == nil || during.Run.Result != nil || *during.Run.Process != *before.Run.Process {
		return errors.New("the turn did not go on while the host was dead")
	}
	t.say("owner", fmt.Sprintf("the turn goes on as pid %d", during.Run.Process.PID), nil)
	if err := t.startHost(ctx); err != nil {
		return err
	}
	if err := t.ended(ctx, 10, owner.Finished); err != nil {
		return err
	}
	after, err := t.taskNow(t.task)
	if err != nil {
		return err
	}
	nine := after.Earlier[8]
	if nine.Result == nil || nine.Result.Ending != "exit 0" || *nine.Process != *before.Run.Process || nine.Epoch != before.Run.Epoch {
		return fmt.Errorf("the turn did not end by itself as the same process: %+v", nine.Result)
	}
	t.say("turn", fmt.Sprintf("ended by itself: %s after %d ms, same process", nine.Result.Ending, nine.Result.ElapsedMS), nil)
	if _, err := t.summary(ctx, t.task, "completed", before.Revision); err != nil {
		return err
	}
	return t.journal(ctx, "queue", t.kept)
}

func (t *tour) stepReplay(ctx context.Context) error {
	was, err := t.entry(ctx, t.kept)
	if err != nil {
		return err
	}
	rev, err := t.taskNow(t.task)
	if err != nil {
		return err
	}
	var again sent
	err = t.phone(ctx, &again, "call", "--op", string(replayOf(was.Command, t.task, was.Text, was.BasedOn, was.IssuedAt)))
	if err != nil {
		return err
	}
	now, err := t.entry(ctx, t.kept)
	if err != nil {
		return err
	}
	after, err := t.taskNow(t.task)
	if err != nil {
		return err
	}
	if now.Outcome != was.Outcome || now.Revision != was.Revision || len(now.History) != len(was.History) || after.Revision != rev.Revision {
		return fmt.Errorf("the replay changed something: %+v", now)
	}
	t.say("replay", fmt.Sprintf("the same command in a new request: %s at revision %d, as the first time", now.Outcome, now.Revision), nil)
	return t.notes(firstPrompt, "wait 120", "the second message", "the first message, edited", "wait 90", "do this instead",
		"ask me something", "blue", "wait 10", "said before the crash")
}

// replayOf is the operation of a queue command exactly as it was sent.
func replayOf(id, task, text string, basedOn, issuedAt int64) []byte {
	raw, err := json.Marshal(map[string]any{"kind": "task.command", "command": map[string]any{
		"command": id, "task": task, "action": "queue", "based_on": basedOn, "text": text, "emulate": false, "issued_at": issuedAt,
	}})
	if err != nil {
		panic(err) // plain strings and numbers
	}
	return raw
}

func (t *tour) stepRevoke(ctx context.Context) error {
	var rev struct {
		Epoch  int64
		Grants []string
	}
	if err := t.operator(ctx, &rev, "devices", "revoke", t.device); err != nil {
		return err
	}
	t.say("revoked", fmt.Sprintf("epoch %d, %d grant(s)", rev.Epoch, len(rev.Grants)), map[string]any{"epoch": rev.Epoch})
	before, err := t.taskNow(t.task)
	if err != nil {
		return err
	}
	err = t.phone(ctx, nil, "send", t.task, "am I still here?", "--based-on", fmt.Sprint(before.Revision))
	var f *cliFailure
	if !errors.As(err, &f) || f.code != "revoked" {
		return fmt.Errorf("the revoked device's command was not refused as revoked: %v", err)
	}
	after, err := t.taskNow(t.task)
	if err != nil {
		return err
	}
	if after.Revision != before.Revision {
		return errors.New("the refused command changed the task")
	}
	t.say("refused", "signed by the host: "+f.code, nil)
	return nil
}

func (t *tour) stepCheck(ctx context.Context) error {
	var chain struct{ Records int }
	if err := t.operator(ctx, &chain, "journal", "check"); err != nil {
		return err
	}
	var all struct {
		Stores []struct {
			Path string
			OK   bool
		}
	}
	if err := t.operator(ctx, &all, "check"); err != nil {
		return err
	}
	for _, s := range all.Stores {
		if !s.OK {
			return fmt.Errorf("%s is damaged", s.Path)
		}
	}
	t.say("chain", fmt.Sprintf("%d records hold; %d stores verified", chain.Records, len(all.Stores)), map[string]any{"records": chain.Records})
	t.host.end()
	t.say("stopped", "the host left in order", nil)
	return nil
}
