package owner

import (
	"bufio"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"holdfast/internal/saferead"
)

// Check verifies every durable file of the store, read-only, and calls report
// for each with its absolute path: every log replayed from its header, with
// all its commands reserved, its grants, frozen contexts and retained changes kept and its transcripts as sealed;
// every identity shard; the indexes of workspaces and of tasks; every blob against its name. It may run beside
// writers. ErrCorrupt when anything was reported as not ok.
func (s *Store) Check(report func(path string, ok bool, detail string)) error {
	c := &checker{s: s, report: report, rows: map[string]Row{}, opened: map[string]bool{}}
	c.file(s.tasks, markerName, func() error {
		b, err := s.tasks.Read(markerName, 64<<10)
		if err != nil {
			return err
		}
		version, err := parseMarker(b)
		if err == nil && version < storeVersion {
			c.detail = fmt.Sprintf("version %d, which the next write makes version %d", version, storeVersion)
		}
		return err
	})
	dirs, err := s.tasks.Names()
	if err != nil {
		return fmt.Errorf("check task store: %w", err)
	}
	for _, dir := range dirs {
		if lowerHex(dir, 64) {
			c.task(dir)
		}
	}
	// After the logs: a command is reserved before it is logged.
	shards, err := s.idents.Names()
	if err != nil {
		return fmt.Errorf("check task store: %w", err)
	}
	for i := range c.logged {
		name := fmt.Sprintf("%02x.log", i)
		if _, there := slices.BinarySearch(shards, name); !there && len(c.logged[i]) == 0 {
			continue
		}
		c.file(s.idents, name, func() error { return c.shard(byte(i), name) })
	}
	c.claims()
	c.index()
	if err := c.blobs(); err != nil {
		return fmt.Errorf("check task store: %w", err)
	}
	if c.bad {
		return ErrCorrupt
	}
	return nil
}

type checker struct {
	s      *Store
	report func(path string, ok bool, detail string)
	bad    bool
	detail string          // of the file that is being checked, where it is sound
	logged [256][]identity // the commands of all logs, by shard
	hold   []TaskID        // whose turn holds a workspace
	rows   map[string]Row  // what the logs make of the tasks, by folder
	opened map[string]bool // of those, the tasks that have not ended
}

// file reports one file by what fn finds.
func (c *checker) file(d *saferead.Dir, name string, fn func() error) {
	c.detail = ""
	path := filepath.Join(d.Path(), name)
	if err := classify(fn()); err != nil {
		c.bad = true
		c.report(path, false, strings.TrimPrefix(err.Error(), path+": "))
		return
	}
	c.report(path, true, c.detail)
}

// task checks one task's folder.
func (c *checker) task(dir string) {
	d, err := c.s.tasks.OpenDir(dir)
	if err != nil {
		c.file(c.s.tasks, dir, func() error { return err })
		return
	}
	defer d.Close()
	var st *state
	c.file(d, logName, func() (err error) {
		st, err = c.replay(d, dir)
		return err
	})
	if st == nil {
		return
	}
	c.rows[dir], c.opened[dir] = RowOf(st.task), !st.task.Ended()
	if _, holds := st.task.Holds(); holds {
		c.hold = append(c.hold, st.id)
	}
	c.checkpoint(d)
	for _, name := range []string{lockName, ownerLockName} {
		c.file(d, name, func() error {
			f, err := d.Open(name, os.O_RDONLY)
			if err != nil {
				return err
			}
			return f.Close()
		})
	}
	runs := slices.Clone(st.task.Earlier)
	if st.task.Run != nil {
		runs = append(runs, *st.task.Run)
	}
	for _, r := range runs {
		if r.Result != nil {
			c.file(d, r.Admission.TraceFile, func() error { return sealedTrace(d, r) })
		}
		if r.Result != nil && r.Result.Artifacts != "" {
			if err := c.s.keptWhole(st.id, &r); err != nil {
				hash := strings.TrimPrefix(string(r.Result.Artifacts), "sha256:")
				c.file(c.s.blobs, hash[:2]+"/"+hash, func() error { return fmt.Errorf("changes of task %s: %w", st.id, err) })
			}
		}
		if r.Admission.Context != "" {
			if _, err := c.s.contextWhole(st.id, &r); err != nil {
				hash := strings.TrimPrefix(string(r.Admission.Context), "sha256:")
				c.file(c.s.blobs, hash[:2]+"/"+hash, func() error { return fmt.Errorf("frozen context of task %s: %w", st.id, err) })
			}
		}
		g := r.Admission.GrantDigest
		if _, err := c.s.GetBlob(g, MaxCommand); err != nil {
			hash := strings.TrimPrefix(string(g), "sha256:")
			c.file(c.s.blobs, hash[:2]+"/"+hash, func() error { return fmt.Errorf("grant of task %s: %w", st.id, err) })
		}
	}
}

// replay verifies a log from its header on; nil where a submit never committed.
func (c *checker) replay(d *saferead.Dir, dir string) (*state, error) {
	f, err := c.s.openLog(d, os.O_RDONLY)
	if refused(err) {
		c.detail = "no log: a submit that was never acknowledged"
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	once := func() (*state, bool, error) {
		fi, err := f.Stat()
		if err != nil {
			return nil, false, err
		}
		st, err := start(f, fi.Size())
		if err != nil {
			return nil, false, err
		}
		if dirName(st.id) != dir {
			return nil, false, corrupt("the log is of task %s", st.id)
		}
		torn, err := st.follow(f, fi.Size(), nil)
		if err == nil && st.task == nil {
			err = corrupt("the log has no submit")
		}
		return st, torn, err
	}
	st, torn, err := once()
	if errors.Is(err, ErrCorrupt) {
		// A writer may have been seen half way; see Store.read.
		ctx, cancel := context.WithTimeout(context.Background(), readWait)
		defer cancel()
		lock, lerr := c.s.flock(ctx, d, lockName, shared)
		if lerr != nil {
			return nil, errors.Join(err, lerr)
		}
		defer lock.Close()
		st, torn, err = once()
	}
	if err != nil {
		return nil, err
	}
	c.detail = fmt.Sprintf("%d records", st.sequence)
	if torn {
		c.detail += ", and a torn one that was never acknowledged"
	}
	for command, done := range st.commands {
		i := identity{command: command, task: st.id}
		hex.Decode(i.digest[:], []byte(strings.TrimPrefix(string(done.digest), "sha256:")))
		index, _ := shardOf(command)
		c.logged[index] = append(c.logged[index], i)
	}
	return st, nil
}

// checkpoint checks the task's checkpoint, if there is one.
func (c *checker) checkpoint(d *saferead.Dir) {
	if names, err := d.Names(); err != nil || !slices.Contains(names, checkpointName) {
		return
	}
	c.file(d, checkpointName, func() error {
		f, err := c.s.openLog(d, os.O_RDONLY)
		if err != nil {
			return err
		}
		defer f.Close()
		c.detail, err = checkCheckpoint(d, f)
		if errors.Is(err, saferead.ErrUnsafe) {
			// A writer may have replaced it just now; see Store.read.
			ctx, cancel := context.WithTimeout(context.Background(), readWait)
			defer cancel()
			lock, lerr := c.s.flock(ctx, d, lockName, shared)
			if lerr != nil {
				return errors.Join(err, lerr)
			}
			defer lock.Close()
			c.detail, err = checkCheckpoint(d, f)
		}
		return err
	})
}

// sealedTrace compares a transcript with the digest in its turn's result.
func sealedTrace(d *saferead.Dir, r Run) error {
	h := sha256.New()
	f, err := d.Open(r.Admission.TraceFile, os.O_RDONLY)
	if err == nil {
		defer f.Close()
		_, err = io.Copy(h, f)
	}
	// A turn whose owner died before the transcript has none, and the digest of nothing.
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if got := Digest("sha256:" + hex.EncodeToString(h.Sum(nil))); got != r.Result.TraceDigest {
		return corrupt("is not what the result of turn %d sealed", r.Turn)
	}
	return nil
}

// shard verifies one identity file, and that it holds every command of the logs.
func (c *checker) shard(index byte, name string) error {
	f, err := c.s.idents.Open(name, os.O_RDONLY)
	if errors.Is(err, fs.ErrNotExist) {
		return corrupt("is missing")
	}
	if err != nil {
		return err
	}
	defer f.Close()
	fi, err := f.Stat()
	if err != nil {
		return err
	}
	b, err := io.ReadAll(bufio.NewReader(io.NewSectionReader(f, 0, fi.Size())))
	if err != nil {
		return err
	}
	have := map[identity]bool{}
	holder := map[string]TaskID{}
	var wrong error
	end, err := decodeShard(b, 0, func(i identity) {
		if at, _ := shardOf(i.command); at != index {
			wrong = corrupt("command %s is in the wrong shard", i.command)
		}
		if t, ok := holder[i.command]; ok && t != i.task {
			wrong = corrupt("command %s is reserved for two tasks", i.command)
		}
		holder[i.command] = i.task
		have[i] = true
	})
	if err := errors.Join(err, wrong); err != nil {
		return err
	}
	for _, i := range c.logged[index] {
		if !have[i] {
			return corrupt("command %s of task %s is not reserved", i.command, i.task)
		}
	}
	c.detail = fmt.Sprintf("%d commands", len(holder))
	if end < int64(len(b)) {
		c.detail += ", and a torn record that was never relied on"
	}
	return nil
}

// blobs verifies every blob against its name.
func (c *checker) blobs() error {
	folders, err := c.s.blobs.Names()
	if err != nil {
		return err
	}
	for _, folder := range folders {
		d, err := c.s.blobs.OpenDir(folder)
		if err != nil {
			c.file(c.s.blobs, folder, func() error { return err })
			continue
		}
		names, err := d.Names()
		if err != nil {
			d.Close()
			return err
		}
		for _, name := range names {
			if name[0] == '.' {
				continue // what an interrupted write left; nothing names it
			}
			c.file(d, name, func() error { return blob(d, folder, name) })
		}
		d.Close()
	}
	return nil
}

func blob(d *saferead.Dir, folder, name string) error {
	if !lowerHex(name, 64) || name[:2] != folder {
		return corrupt("is no blob's name")
	}
	f, err := d.Open(name, os.O_RDONLY)
	if err != nil {
		return err
	}
	defer f.Close()
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return err
	}
	if hex.EncodeToString(h.Sum(nil)) != name {
		return corrupt("the bytes are not what the name says")
	}
	return nil
}
