package owner

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"strings"
	"time"

	"go.etcd.io/bbolt"

	"holdfast/internal/commit"
	"holdfast/internal/saferead"
)

// workspaces/index.db says which turns may hold a workspace. The truth is each
// task's log: a turn holds its workspace from `admitted` until its result proves
// that nothing of it is left, and checks hold it, as one who reads, from
// `check_intent` until `checked`, for which the steps are the same. The index is what makes the question cheap, and
// never says more than the logs: an entry whose log does not bear it out counts
// for nothing and goes when it is met, so nothing but the order of the first two
// steps matters:
//
//  1. the entry is durable, while the file's lock is held;
//  2. `admitted` is durable, and the lock is given up.
//
// A crash before 1 leaves nothing, between the two an entry that counts for
// nothing, after 2 a turn that holds its workspace until it is settled. The
// entry is taken away after the result; a crash before that leaves one that
// counts for nothing. So every turn that holds a workspace has its entry.
//
// Keys are a prefix tree of path components: each component and a zero byte,
// then one more zero byte and the task's folder, for no component is empty.
// Whether a path, what is above it or what is below it is held takes one look a
// component and one for all that is below, however many tasks there are.
const (
	claimsFolder  = "workspaces"
	claimsName    = "index.db"
	claimsKind    = "holdfast-workspaces"
	claimsVersion = 1
	claimFormat   = 1
)

var (
	bucketAlone = []byte("alone") // turns that share with nobody
	bucketRead  = []byte("read")  // turns that share with their like
	bucketWhole = []byte("whole") // made in the commit that entered what the logs held
)

// claim is one turn's hold on a workspace.
type claim struct {
	task  TaskID
	path  string // canonical
	alone bool   // conflicts with every other; else only with those that are alone
}

func (c claim) bucket() []byte {
	if c.alone {
		return bucketAlone
	}
	return bucketRead
}

func (c claim) key() []byte { return append(append(pathKey(c.path), 0), dirName(c.task)...) }

// claimsAlone reports whether a grant's turn shares its workspace with nobody:
// one that writes, and one that the person at the machine started by a grant of
// their own, which has the folder to itself as the public grant promises. Turns
// of the policy that only read share a folder.
func claimsAlone(g *Grant) bool { return g.Write || g.PolicyDigest == "" }

// Holds is the workspace that the task's turn holds: from its admission until
// nothing of it is left, which an unknown run does not prove.
func (t *Task) Holds() (path string, ok bool) {
	if t.Run == nil || t.Status != Running && t.Status != CancelRequested && t.Status != StatusUnknown {
		return "", false
	}
	return t.Run.Admission.Workspace, true
}

// occupies is the workspace that the task's turn holds, or that its checks read. Checks share it with whoever only
// reads.
func (t *Task) occupies() (path string, checks, ok bool) {
	if t.Checks == ChecksRunning && t.Run != nil {
		return t.Run.Admission.Workspace, true, true
	}
	path, ok = t.Holds()
	return path, false, ok
}

// pathKey is the prefix of everything at and below a canonical path.
func pathKey(path string) []byte {
	var b []byte
	for _, part := range strings.Split(path, "/") {
		if part != "" {
			b = append(append(b, part...), 0)
		}
	}
	return b
}

// taskOf is the task of an entry, corrupt where key and value do not agree.
func taskOf(key, value []byte) (TaskID, error) {
	if len(value) < 2 {
		return "", corrupt("%s/%s has an entry of %d bytes", claimsFolder, claimsName, len(value))
	}
	if value[0] > claimFormat {
		return "", fmt.Errorf("%s/%s has an entry of format %d: %w", claimsFolder, claimsName, value[0], ErrNewer)
	}
	id := TaskID(value[1:])
	if !identifier(string(id), "") || !bytes.HasSuffix(key, append([]byte{0}, dirName(id)...)) {
		return "", corrupt("%s/%s has an entry that names no task", claimsFolder, claimsName)
	}
	return id, nil
}

func claimsPath(home string) string { return filepath.Join(home, claimsFolder, claimsName) }

// openClaims opens the index, making it where write is set; nil without one.
// The file's lock is held until it is closed: exclusive with write, else shared.
func (s *Store) openClaims(wait time.Duration, write bool) (*commit.DB, error) {
	root, err := saferead.OpenDir(s.home)
	if err != nil {
		return nil, classify(err)
	}
	defer root.Close()
	d, err := root.OpenDir(claimsFolder)
	if errors.Is(err, fs.ErrNotExist) && write {
		if err = s.fs.Mkdir(root, claimsFolder); err == nil || errors.Is(err, fs.ErrExist) {
			// A folder that a power cut takes away is made and filled again.
			if err = s.fs.SyncDir(root); err == nil {
				d, err = root.OpenDir(claimsFolder)
			}
		}
	}
	if errors.Is(err, fs.ErrNotExist) && !write {
		return nil, nil
	}
	if err != nil {
		return nil, classify(err)
	}
	defer d.Close()
	db, err := commit.Open(claimsPath(s.home), commit.Options{Kind: claimsKind, Version: claimsVersion, Timeout: wait, ReadOnly: !write})
	switch {
	case errors.Is(err, fs.ErrNotExist) && !write:
		return nil, nil
	case errors.Is(err, commit.ErrLocked):
		return nil, refuse("store_busy", "the index of workspaces is locked by another process")
	case errors.Is(err, commit.ErrNewer):
		return nil, fmt.Errorf("%w: %w", ErrNewer, err)
	case errors.Is(err, commit.ErrCorrupt):
		// It holds nothing that the logs do not, so the advice is to make it anew.
		return nil, fmt.Errorf("remove the folder %s/%s while no turn runs, the next turn makes it anew: %w: %w", s.home, claimsFolder, ErrCorrupt, err)
	}
	return db, err
}

// claim enters c and calls admit, which makes the turn's admission durable,
// before another process can look. A claim that overlaps is *Error
// workspace_busy with its holder, and admit is not called. The caller holds the
// task's owner lock and no task's lock.
func (s *Store) claim(ctx context.Context, c claim, wait time.Duration, admit func() error) (holder TaskID, err error) {
	db, err := s.openClaims(wait, true)
	if err != nil {
		return "", fmt.Errorf("reserve the workspace: %w", err)
	}
	err = db.Update(ctx, func(tx *bbolt.Tx) error {
		holder = ""
		if err := s.fillClaims(ctx, tx); err != nil {
			return err
		}
		var stale [][2][]byte
		var err error
		if holder, stale, err = s.overlapping(tx, c); err != nil {
			return err
		}
		for _, e := range stale {
			if err := tx.Bucket(e[0]).Delete(e[1]); err != nil {
				return err
			}
		}
		if holder != "" {
			return nil
		}
		return tx.Bucket(c.bucket()).Put(c.key(), append([]byte{claimFormat}, c.task...))
	})
	switch {
	case err != nil:
		err = fmt.Errorf("reserve the workspace: %w", err)
	case holder != "":
		err = refuse("workspace_busy", "task %s has this workspace, or a folder above or below it; wait until its turn has ended, or stop it", holder)
	default:
		err = admit()
	}
	return holder, errors.Join(err, db.Close())
}

// release takes the entry of a turn away, unless the turn still holds.
func (s *Store) release(ctx context.Context, c claim) error {
	db, err := s.openClaims(readWait, true)
	if err != nil {
		return err
	}
	err = db.Update(ctx, func(tx *bbolt.Tx) error {
		held, err := s.bears(c.task, pathKey(c.path))
		if err != nil || held {
			return err
		}
		for _, name := range [][]byte{bucketAlone, bucketRead} {
			if b := tx.Bucket(name); b != nil {
				if err := b.Delete(c.key()); err != nil {
					return err
				}
			}
		}
		return nil
	})
	return errors.Join(err, db.Close())
}

// WorkspaceHolder is a task whose turn now holds a path, or one above or below
// it, so that no turn of the task `but` can have it, alone or beside its like;
// "" where there is none. It is for saying so and for waiting: only an
// admission decides.
func (s *Store) WorkspaceHolder(path string, but TaskID, alone bool) (holder TaskID, err error) {
	db, err := s.openClaims(readWait, false)
	if err != nil || db == nil {
		return "", err
	}
	err = db.View(func(tx *bbolt.Tx) error {
		holder, _, err = s.overlapping(tx, claim{task: but, path: path, alone: alone})
		return err
	})
	return holder, errors.Join(err, db.Close())
}

// fillClaims enters what the logs hold into an index that is new: the first of
// a store that had none, or one in the place of one that was removed. It reads
// every task that may not have ended, once. A task whose log is damaged is passed over, as everywhere.
func (s *Store) fillClaims(ctx context.Context, tx *bbolt.Tx) error {
	if tx.Bucket(bucketWhole) != nil {
		return nil
	}
	for _, name := range [][]byte{bucketAlone, bucketRead, bucketWhole} {
		if _, err := tx.CreateBucketIfNotExists(name); err != nil {
			return err
		}
	}
	ids, err := s.Awake()
	if err != nil {
		return err
	}
	for _, id := range ids {
		t, err := s.Get(id)
		if errors.Is(err, ErrCorrupt) {
			continue
		}
		if err = errors.Join(err, ctx.Err()); err != nil {
			return err
		}
		path, checks, ok := t.occupies()
		if !ok {
			continue
		}
		c := claim{task: id, path: path, alone: !checks}
		if b, err := s.GetBlob(t.Run.Admission.GrantDigest, maxGrantBytes); err == nil && !checks {
			if g, err := ParseGrant(b); err == nil {
				c.alone = claimsAlone(&g)
			}
		}
		if err := tx.Bucket(c.bucket()).Put(c.key(), append([]byte{claimFormat}, id...)); err != nil {
			return err
		}
	}
	return nil
}

// overlapping finds a holder that c cannot be beside, and the entries that were
// met on the way and count for nothing, as bucket and key.
func (s *Store) overlapping(tx *bbolt.Tx, c claim) (holder TaskID, stale [][2][]byte, err error) {
	path := pathKey(c.path)
	against := [][]byte{bucketAlone}
	if c.alone { // whoever shares does not mind its like
		against = append(against, bucketRead)
	}
	for _, name := range against {
		b := tx.Bucket(name)
		if b == nil {
			continue
		}
		cur := b.Cursor()
		// each walks the entries that begin with prefix, from the first on.
		each := func(prefix []byte) error {
			for k, v := cur.Seek(prefix); k != nil && bytes.HasPrefix(k, prefix); k, v = cur.Next() {
				id, err := taskOf(k, v)
				if err != nil {
					return err
				}
				held := false
				if id != c.task { // its own is of a turn that has ended: it is about to be admitted
					if held, err = s.bears(id, k[:len(k)-1-len(dirName(id))]); err != nil {
						return err
					}
				}
				if held {
					holder = id
					return nil
				}
				stale = append(stale, [2][]byte{name, bytes.Clone(k)})
			}
			return nil
		}
		// At each folder above it, from the root down: a prefix of the key that ends behind a component.
		for end := 0; end < len(path) && holder == "" && err == nil; end += bytes.IndexByte(path[end:], 0) + 1 {
			err = each(append(bytes.Clone(path[:end]), 0))
		}
		if holder == "" && err == nil {
			err = each(path) // at it and below it
		}
		if holder != "" || err != nil {
			return holder, stale, err
		}
	}
	return "", stale, nil
}

// bears reports whether the log of a task bears an entry out. Of a log that is
// damaged nobody can say that its turn has ended, so it does.
func (s *Store) bears(id TaskID, path []byte) (bool, error) {
	t, err := s.Get(id)
	switch {
	case isRefusal(err, "not_found"):
		return false, nil
	case errors.Is(err, ErrCorrupt):
		return true, nil
	case err != nil:
		return false, err
	}
	at, _, ok := t.occupies()
	return ok && bytes.Equal(pathKey(at), path), nil
}
