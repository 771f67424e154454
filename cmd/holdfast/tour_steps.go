package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"holdfast/host"
	"holdfast/owner"
)

const tourLabel = "repository"

// firstPrompt is that of the first task. Its turn lasts so long that a busy
// machine still publishes that it runs: summaries of one task coalesce.
const firstPrompt = "wait 3"

func (t *tour) stepHome(ctx context.Context) error {
	if err := makeDemoRepository(ctx, t.repo); err != nil {
		return err
	}
	var id struct{ Host, Owner string }
	if err := t.operator(ctx, &id, "init"); err != nil {
		return err
	}
	t.say("keys", "host "+short(id.Host)+", owner "+short(id.Owner), map[string]any{"host": id.Host, "owner": id.Owner})
	if err := t.operator(ctx, nil, "workspace", "add", tourLabel, t.repo); err != nil {
		return err
	}
	if err := t.setPolicy(ctx); err != nil {
		return err
	}
	t.say("policy", "turns in "+tourLabel+" run a shell without network, written to a worktree of their own", nil)
	return nil
}

// setPolicy hands the demonstration policy in as an operator would.
func (t *tour) setPolicy(ctx context.Context) error {
	raw, err := demoPolicy(tourLabel)
	if err != nil {
		return err
	}
	return t.verbWith(ctx, raw, nil, "policy", "set", "-", "--home", t.home)
}

func (t *tour) stepServe(ctx context.Context) error {
	var err error
	if t.listen, err = freeLoopback(); err != nil {
		return err
	}
	return t.startHost(ctx)
}

func (t *tour) startHost(ctx context.Context) error {
	p, err := t.spawn("up", "--json", "--home", t.home, "--listen", t.listen)
	if err != nil {
		return err
	}
	t.host = p
	ready, _, err := p.await(ctx, 0, "the host to serve", isEvent("ready"))
	if err != nil {
		return err
	}
	code, _, err := p.await(ctx, 0, "a pairing code", isEvent("invitation"))
	if err != nil {
		return err
	}
	t.code, _ = code["code"].(string)
	t.say("relay", fmt.Sprint(ready["relay"])+" (this computer only)", map[string]any{"relay": ready["relay"]})
	return nil
}

func isEvent(name string) func(map[string]any) bool {
	return func(v map[string]any) bool { return v["event"] == name }
}

func (t *tour) stepPair(ctx context.Context) error {
	key, err := t.pair(ctx, "phone", t.code)
	if err != nil {
		return err
	}
	t.device = key
	var inv host.Invited
	if err := t.operator(ctx, &inv, "invite", "--rights", "observe"); err != nil {
		return err
	}
	if _, err := t.pair(ctx, "watch", inv.Code); err != nil {
		return err
	}
	t.watcher, err = t.spawn("device", "watch", "--json", "--profile", t.profile("watch"))
	if err != nil {
		return err
	}
	line, _, err := t.watcher.await(ctx, 0, "presence of the host", isEvent("presence"))
	if err != nil {
		return err
	}
	t.say("presence", fmt.Sprintf("generation %v, seen by the watching device", line["generation"]), nil)
	return nil
}

func (t *tour) pair(ctx context.Context, name, code string) (string, error) {
	profile := t.profile(name)
	var dev struct{ Device string }
	if err := t.verb(ctx, &dev, "device", "init", "--profile", profile); err != nil {
		return "", err
	}
	if err := t.verb(ctx, nil, "device", "pair", code, "--allow-loopback", "--profile", profile); err != nil {
		return "", err
	}
	var list struct{ Devices []host.DeviceRow }
	if err := t.operator(ctx, &list, "devices", "list"); err != nil {
		return "", err
	}
	for _, d := range list.Devices {
		if string(d.Device) == dev.Device && d.State == "active" {
			t.say("grant", fmt.Sprintf("%s %s, epoch %d, rights %s", name, short(dev.Device), d.Epoch, joinRights(d.Rights)),
				map[string]any{"device": dev.Device, "grant": d.Grant, "epoch": d.Epoch})
			return dev.Device, nil
		}
	}
	return "", fmt.Errorf("%s paired, but the access book has no active grant for it", name)
}

// summary waits until the watching device has a signed summary that fits.
func (t *tour) summary(ctx context.Context, task, phase string, after int64) (int64, error) {
	line, _, err := t.watcher.await(ctx, 0, fmt.Sprintf("phase %s of task %s", phase, short(task)), func(v map[string]any) bool {
		seq, _ := v["sequence"].(float64)
		return v["event"] == "summary" && v["task"] == task && v["phase"] == phase && int64(seq) > after
	})
	if err != nil {
		return 0, err
	}
	seq := int64(line["sequence"].(float64))
	t.say("summary", fmt.Sprintf("sequence %d: %v", seq, line["headline"]), map[string]any{"task": task, "sequence": seq, "phase": phase})
	return seq, nil
}

// create makes a task and returns its ID.
func (t *tour) create(ctx context.Context, title, prompt string) (string, error) {
	var made struct{ Task string }
	if err := t.phone(ctx, &made, "create", "--workspace", tourLabel, "--title", title, "--prompt", prompt); err != nil {
		return "", err
	}
	return made.Task, t.journal(ctx, "create", made.Task)
}

// journal shows the operator's view of one command: every transition with its
// sequence number.
func (t *tour) journal(ctx context.Context, what, id string) error {
	e, err := t.entry(ctx, id)
	if err != nil {
		return err
	}
	var steps []string
	for _, h := range e.History {
		steps = append(steps, fmt.Sprintf("#%d %s", h.Seq, h.What))
	}
	t.say("journal", fmt.Sprintf("%s %s: %s", what, short(id), strings.Join(steps, ", ")),
		map[string]any{"command": id, "seq": e.Seq, "state": e.State, "outcome": e.Outcome, "revision": e.Revision})
	return nil
}

func (t *tour) entry(ctx context.Context, id string) (host.EntryView, error) {
	var e host.EntryView
	return e, t.operator(ctx, &e, "journal", "show", t.device, id)
}

func (t *tour) stepCreate(ctx context.Context) error {
	// Summaries of one task coalesce, so the policy is held back until the
	// watching device has seen the task wait.
	if err := t.operator(ctx, nil, "policy", "off"); err != nil {
		return err
	}
	task, err := t.create(ctx, "a first task", firstPrompt)
	if err != nil {
		return err
	}
	queued, err := t.summary(ctx, task, "queued", 0)
	if err != nil {
		return err
	}
	if err := t.setPolicy(ctx); err != nil {
		return err
	}
	running, err := t.summary(ctx, task, "running", queued)
	if err != nil {
		return err
	}
	if _, err := t.summary(ctx, task, "completed", running); err != nil {
		return err
	}
	now, err := t.taskNow(task)
	if err != nil {
		return err
	}
	r := now.Run
	if r == nil || r.Result == nil || !r.Result.GroupClear || r.Result.Ending != "exit 0" {
		return errors.New("the turn has no result that ends in exit 0 with nothing left")
	}
	t.say("sandbox", fmt.Sprintf("pid %d in its own PID namespace; nothing left after it", r.Process.PID), map[string]any{"process": r.Process})
	note, err := os.ReadFile(filepath.Join(now.Worktree.Path, "notes.txt"))
	if err != nil || string(note) != firstPrompt+"\n" {
		return fmt.Errorf("notes.txt of the worktree holds %q", note)
	}
	if _, err := os.Stat(filepath.Join(t.repo, "notes.txt")); !errors.Is(err, os.ErrNotExist) {
		return errors.New("the turn wrote into the repository itself")
	}
	t.say("worktree", "the edit is in the task's own worktree; the repository is untouched", nil)
	t.task = task
	return nil
}

// taskNow reads the store as the operator does; it is this machine's own view.
func (t *tour) taskNow(id string) (owner.Task, error) {
	s, err := owner.Open(t.home, owner.Options{})
	if err != nil {
		return owner.Task{}, err
	}
	defer s.Close()
	return s.Get(owner.TaskID(id))
}

func (t *tour) stepRead(ctx context.Context) error {
	cursor, total, pages := "", 0, 0
	for {
		args := []string{"read", t.task, "--limit", "2"}
		if cursor != "" {
			args = append(args, "--cursor", cursor)
		}
		var out struct{ Task tourPage }
		if err := t.phone(ctx, &out, args...); err != nil {
			return err
		}
		p := out.Task
		if p.Evidence.State != "sealed" {
			return fmt.Errorf("the evidence is %s, not sealed", p.Evidence.State)
		}
		total += len(p.Evidence.Steps)
		pages++
		if !p.More {
			t.say("pages", fmt.Sprintf("%d steps on %d pages, evidence sealed, execution %s, verification %s, cleanup %s", total, pages, p.Execution, p.Verification, p.Cleanup),
				map[string]any{"steps": total, "pages": pages})
			if total != p.Evidence.Total || total == 0 {
				return fmt.Errorf("read %d steps of %d", total, p.Evidence.Total)
			}
			return nil
		}
		cursor = string(p.Next)
	}
}
