package owner

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
)

// Filling says what Fill writes.
type Filling struct {
	Tasks   int
	Path    string // the workspace of all of them, canonical
	At      int64  // when all of it happened, Unix seconds; each next task one second later
	Waiting bool   // the tasks wait in the queue; else they were cancelled there
	Holding int    // so many of the last run, each in a folder of its own in Path, with an owner that is gone
}

// Fill writes tasks into a store that has none, for measurements of a full one:
// each was submitted by a command of its own, as Apply would have left it, and
// Check accepts it. It is quicker by the syncs that it leaves out, so that a
// crash may leave anything: it is for throw-away stores. Nobody else may use
// the store meanwhile.
func (s *Store) Fill(ctx context.Context, f Filling) error {
	if have, err := s.idents.Names(); err != nil || len(have) > 0 {
		return fmt.Errorf("fill a store: it is not empty: %w", err)
	}
	// Made while there is nothing to read, as in a store that grew.
	none := claim{task: FilledTask(0), path: f.Path}
	if _, err := s.claim(ctx, none, readWait, func() error { return nil }); err != nil {
		return fmt.Errorf("fill a store: %w", err)
	}
	if err := s.release(ctx, none); err != nil {
		return fmt.Errorf("fill a store: %w", err)
	}
	var shards [256]bytes.Buffer
	var rows []Row
	var live []string
	for i := range f.Tasks {
		if err := ctx.Err(); err != nil {
			return err
		}
		t, err := s.fillTask(FilledTask(i), f, f.Waiting || i >= f.Tasks-f.Holding, f.At+int64(i), &shards)
		if err != nil {
			return fmt.Errorf("fill a store: %w", err)
		}
		if t.Ended() {
			rows = append(rows, RowOf(t))
		} else {
			live = append(live, dirName(t.ID))
		}
	}
	for i := range shards {
		if shards[i].Len() == 0 {
			continue
		}
		name := fmt.Sprintf("%02x.log", i)
		file, err := s.idents.Open(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL)
		if err != nil {
			return fmt.Errorf("fill a store: %w", err)
		}
		_, err = file.Write(append(identHeader(), shards[i].Bytes()...))
		if cerr := file.Close(); err == nil {
			err = cerr
		}
		if err != nil {
			return fmt.Errorf("fill a store: %w", err)
		}
	}
	d, done, err := s.indexing(ctx)
	if err != nil {
		return fmt.Errorf("fill a store: %w", err)
	}
	err = s.writeIndex(d, rows, live)
	done()
	if err != nil {
		return fmt.Errorf("fill a store: %w", err)
	}
	return s.fillHolding(ctx, f)
}

// fillHolding admits the last tasks, as claimed does.
func (s *Store) fillHolding(ctx context.Context, f Filling) error {
	grant, err := s.PutBlob([]byte("the grant of a task that was filled in"))
	if err != nil {
		return err
	}
	boot, err := self()
	if err != nil {
		return err
	}
	for i := f.Tasks - f.Holding; i < f.Tasks; i++ {
		id := FilledTask(i)
		t, err := s.Get(id)
		if err != nil {
			return err
		}
		c := claim{task: id, path: filepath.Join(f.Path, strconv.Itoa(i)), alone: true}
		_, err = s.claim(ctx, c, readWait, func() error {
			_, err := s.Append(ctx, id, 1, Event{Admitted: &Admission{
				GrantDigest: grant, Adapter: PromptCommand, Workspace: c.path, Program: "/bin/true", ProgramDigest: grant,
				Network: []byte(`"none"`), Prompt: DigestOf([]byte(t.EffectivePrompt())), ReadRevision: t.Revision,
				TraceFile: TraceName(t.Turn()), Owner: boot, At: f.At * 1000,
			}})
			return err
		})
		if err != nil {
			return fmt.Errorf("fill a store: %w", err)
		}
	}
	return nil
}

// FilledTask is the ID of the task that Fill writes as number i, from 0.
func FilledTask(i int) TaskID {
	h := sha256.Sum256([]byte("holdfast.filled-task " + strconv.Itoa(i)))
	return TaskID(hex.EncodeToString(h[:]))
}

// FilledCommand is the ID of the command that submitted it.
func FilledCommand(i int) string { return "fill-" + strconv.Itoa(i) }

func (s *Store) fillTask(id TaskID, f Filling, waiting bool, at int64, shards *[256]bytes.Buffer) (*Task, error) {
	if err := s.tasks.Mkdir(dirName(id)); err != nil {
		return nil, err
	}
	d, err := s.tasks.OpenDir(dirName(id))
	if err != nil {
		return nil, err
	}
	defer d.Close()
	number := at - f.At
	st := &state{id: id, commands: map[string]done{}}
	log := appendHeader(nil, id)
	st.last = sha256.Sum256(log)
	list := []Command{{CommandID: FilledCommand(int(number)), TaskID: id, Action: Action{Submit: &Intent{
		Title: "task " + strconv.FormatInt(number, 10), Prompt: "nothing to do", Workspace: Workspace{Path: f.Path},
		Configuration: Configuration{Adapter: PromptCommand}}}}}
	if !waiting {
		first := int64(1)
		list = append(list, Command{CommandID: FilledCommand(int(number)) + "-cancel", TaskID: id, Expected: &first,
			Action: Action{Cancel: &CancelAction{Reason: "not needed"}}})
	}
	for _, c := range list {
		request, err := EncodeCommand(c)
		if err != nil {
			return nil, err
		}
		_, receipt, err := receiptOf(st.task, st.sequence, c, request, at)
		if err != nil {
			return nil, err
		}
		payload := commandRecord{at, receipt, request}.encode()
		b := appendFrame(nil, frameCmd, st.last, payload)
		if err := st.apply(frame{kind: frameCmd, payload: payload, hash: sha256.Sum256(b), size: int64(len(b))}); err != nil {
			return nil, err
		}
		log = append(log, b...)
		index, _ := shardOf(c.CommandID)
		shards[index].Write(identity{c.CommandID, id, sha256.Sum256(request)}.encode())
	}
	for _, file := range []struct {
		name string
		b    []byte
	}{{lockName, nil}, {ownerLockName, nil}, {logName, log}} {
		out, err := d.Open(file.name, os.O_WRONLY|os.O_CREATE|os.O_EXCL)
		if err != nil {
			return nil, err
		}
		_, err = out.Write(file.b)
		if cerr := out.Close(); err == nil {
			err = cerr
		}
		if err != nil {
			return nil, err
		}
	}
	return st.task, nil
}
