package owner

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"time"

	"holdfast/internal/saferead"
)

// A sweep removes what nothing names: blobs, and what interrupted writes left.
//
// A blob is kept before the log that names it says so, and one that is there already is kept by leaving it there. So
// being named by no log does not mean that nobody is about to name it. Three things keep a sweep apart from such a
// writer. Whoever keeps a blob makes it young, and only old ones are swept: SweepAge is far more than a writer takes
// from the blob to its record. Making it young and looking at its age for the last time are done under the lock of the
// blob's folder, shared by writers and exclusive for the sweep, so that none is removed between the two. And a log that
// cannot be read, or a manifest, ends the sweep before anything is removed.

// SweepAge is how old a blob or a temporary file must be before a sweep takes it.
const SweepAge = 24 * time.Hour

// blobWait bounds how long a writer of a blob waits for a sweep's moment with its folder.
const blobWait = 5 * time.Second

// Swept is one thing that a sweep removed, or would.
type Swept struct {
	Kind  string // blob, temporary
	Path  string
	Bytes int64
}

// sharing takes the writers' lock of a folder of blobs; it goes with d.
func sharing(d *saferead.Dir) error {
	deadline := time.Now().Add(blobWait)
	for {
		if ok, err := d.TryLock(false); ok || err != nil {
			return err
		}
		if time.Now().After(deadline) {
			return refuse("store_busy", "%s is locked by another process", d.Path())
		}
		time.Sleep(lockPoll)
	}
}

// young gives a blob the present time. The caller has the writers' lock. The clock is the system's, which stamps new
// files too.
func young(d *saferead.Dir, name string) error {
	now := time.Now()
	return os.Chtimes(filepath.Join(d.Path(), name), now, now)
}

// holdBlob makes a blob that is there young, after verifying it, for a caller who is about to name it.
func (s *Store) holdBlob(digest Digest, max int64) error {
	if !digest.valid() {
		return refuse("invalid_command", "a digest is sha256: and 64 lowercase hex characters")
	}
	name := strings.TrimPrefix(string(digest), "sha256:")
	d, err := s.blobs.OpenDir(name[:2])
	if err != nil {
		return classify(err)
	}
	defer d.Close()
	if err := sharing(d); err != nil {
		return err
	}
	if _, err := s.GetBlob(digest, max); err != nil {
		return err
	}
	return young(d, name)
}

// SweepBlobs removes the blobs that were last kept before a time and that no log and no manifest names. dry only
// reports. Nothing is removed where any log or manifest cannot be read. It may run beside writers and readers.
func (s *Store) SweepBlobs(ctx context.Context, before time.Time, dry bool, report func(Swept)) error {
	if err := s.usable(ctx); err != nil {
		return err
	}
	named, err := s.named(ctx)
	if err != nil {
		return fmt.Errorf("find out which blobs are in use: %w", err)
	}
	folders, err := s.blobs.Names()
	if err != nil {
		return fmt.Errorf("sweep blobs: %w", err)
	}
	for _, folder := range folders {
		if len(folder) != 2 {
			continue
		}
		if err := s.sweepFolder(ctx, folder, named, before, dry, report); err != nil {
			return fmt.Errorf("sweep blobs: %w", err)
		}
	}
	return nil
}

func (s *Store) sweepFolder(ctx context.Context, folder string, named map[Digest]bool, before time.Time, dry bool, report func(Swept)) error {
	d, err := s.blobs.OpenDir(folder)
	if err != nil {
		return classify(err)
	}
	defer d.Close()
	names, err := d.Names()
	if err != nil {
		return err
	}
	for _, name := range names {
		if err := ctx.Err(); err != nil {
			return err
		}
		if !lowerHex(name, 64) || named[Digest("sha256:"+name)] {
			continue
		}
		swept, err := removeOld(d, name, before, dry)
		if err != nil {
			return err
		}
		if swept != nil {
			swept.Kind = "blob"
			report(*swept)
		}
	}
	return nil
}

// removeOld removes one file if it is old, looking and removing under the sweep's lock: a writer that came first has
// made it young, one that comes later finds it gone and writes it anew. A folder that is in use is left for next time.
func removeOld(d *saferead.Dir, name string, before time.Time, dry bool) (*Swept, error) {
	ok, err := d.TryLock(true)
	if err != nil || !ok {
		return nil, err
	}
	defer d.Unlock()
	f, err := d.Open(name, os.O_RDONLY)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, saferead.ErrUnsafe) {
		return nil, nil // gone, or something that check is to name
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil || !info.ModTime().Before(before) {
		return nil, err
	}
	swept := &Swept{Path: filepath.Join(d.Path(), name), Bytes: onDisk(info)}
	if dry {
		return swept, nil
	}
	// Not synced: a removal that a power cut undoes is done again by the next sweep.
	return swept, d.Remove(name)
}

// named is every blob that the store's logs lead to.
func (s *Store) named(ctx context.Context) (map[Digest]bool, error) {
	named := map[Digest]bool{}
	ids, err := s.List()
	if err != nil {
		return nil, err
	}
	for _, id := range ids {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		t, err := s.Get(id)
		if err != nil {
			return nil, err
		}
		for _, r := range append(t.Earlier, lastRun(&t)...) {
			named[r.Admission.GrantDigest] = true
			if r.Admission.Context != "" {
				named[r.Admission.Context] = true
				c, err := s.context(id, &r)
				if err != nil {
					return nil, err
				}
				for _, p := range c.parts() {
					named[p.digest] = true
				}
			}
			if r.Result == nil || r.Result.Artifacts == "" {
				continue
			}
			named[r.Result.Artifacts] = true
			m, err := s.manifest(id, &r)
			if err != nil {
				return nil, err
			}
			for _, c := range m.Changes {
				for _, side := range []*Side{c.Before, c.After} {
					if side != nil && side.Kept {
						named[side.Digest] = true
					}
				}
			}
		}
	}
	return named, nil
}

var (
	// temporaryFile is the name of a whole-file write before its rename.
	temporaryFile = regexp.MustCompile(`^\..+\.tmp-[0-9a-f]{16}$`)
	// temporaryFolder is what a process that was killed leaves in the system's folder for such: of a probe of the
	// sandbox, of a patch, of a commit.
	temporaryFolder = regexp.MustCompile(`^holdfast-(probe|patch|commit)-[0-9]+$`)
)

// SweepTemporary removes what whole-file writes and helpers left before a time, when they were killed: files that
// nothing reads, in the home's own folders, and our folders in temp, the system's place for such. dry only reports.
func (s *Store) SweepTemporary(ctx context.Context, temp string, before time.Time, dry bool, report func(Swept)) error {
	if err := s.usable(ctx); err != nil {
		return err
	}
	root, err := saferead.OpenDir(s.home)
	if err != nil {
		return classify(err)
	}
	defer root.Close()
	for _, d := range []*saferead.Dir{root, s.tasks, s.idents} {
		if err := sweepFiles(d, before, dry, report); err != nil {
			return err
		}
	}
	for _, d := range []*saferead.Dir{s.tasks, s.blobs} {
		names, err := d.Names()
		if err != nil {
			return fmt.Errorf("sweep temporary files: %w", err)
		}
		for _, name := range names {
			if err := ctx.Err(); err != nil {
				return err
			}
			if !lowerHex(name, 64) && !lowerHex(name, 2) {
				continue
			}
			sub, err := d.OpenDir(name)
			if err != nil {
				continue // check names it
			}
			err = sweepFiles(sub, before, dry, report)
			sub.Close()
			if err != nil {
				return err
			}
		}
	}
	return sweepFolders(temp, before, dry, report)
}

func sweepFiles(d *saferead.Dir, before time.Time, dry bool, report func(Swept)) error {
	names, err := d.Names()
	if err != nil {
		return fmt.Errorf("sweep temporary files: %w", err)
	}
	for _, name := range names {
		if !temporaryFile.MatchString(name) {
			continue
		}
		info, err := os.Lstat(filepath.Join(d.Path(), name))
		if err != nil || !info.Mode().IsRegular() || !info.ModTime().Before(before) {
			continue
		}
		if !dry {
			if err := d.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return fmt.Errorf("sweep temporary files: %w", err)
			}
		}
		report(Swept{"temporary", filepath.Join(d.Path(), name), onDisk(info)})
	}
	return nil
}

// sweepFolders looks in a folder that other users may write to: only a real folder of this user's counts, and what is
// removed is reached over no link.
func sweepFolders(temp string, before time.Time, dry bool, report func(Swept)) error {
	entries, err := os.ReadDir(temp)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("sweep temporary folders: %w", err)
	}
	for _, e := range entries {
		path := filepath.Join(temp, e.Name())
		if !temporaryFolder.MatchString(e.Name()) {
			continue
		}
		info, err := os.Lstat(path)
		if err != nil || !info.IsDir() || !info.ModTime().Before(before) {
			continue
		}
		if st, ok := info.Sys().(*syscall.Stat_t); !ok || int(st.Uid) != os.Getuid() {
			continue
		}
		bytes, _ := Usage(context.Background(), path, maxCounted)
		if !dry {
			if err := os.RemoveAll(path); err != nil {
				return fmt.Errorf("sweep temporary folders: %w", err)
			}
		}
		report(Swept{"temporary", path, bytes})
	}
	return nil
}
