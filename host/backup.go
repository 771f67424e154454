package host

import (
	"archive/tar"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"time"

	"go.etcd.io/bbolt"

	"holdfast/internal/atomicfile"
	"holdfast/internal/saferead"
	"holdfast/nip"
)

// A backup is one tar file: backup.json first, then the files of the home under
// their own names, backup.sum last. What can be fetched or made again is left
// out: the embedded relay's store, pictures, worktrees, hints, locks.
const (
	backupVersion = "holdfast.backup.v1"
	backupHead    = "backup.json"
	backupSum     = "backup.sum"
	backupNotes   = 64 << 10 // either of the two at most
)

// backupName is every name that a backup may hold between the two; a reader
// takes no other. Like the other long patterns, it is compiled when it is first
// wanted: at the start of every process it took more than all else there.
var backupName = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`^(host\.db|host\.key|owner\.key|policy\.json|workspaces\.json|secrets\.json|tasks/store\.json|` +
		`tasks/[0-9a-f]{64}/(log|turn-[0-9]{1,2}\.atif\.jsonl)|identities/[0-9a-f]{2}\.log|blobs/sha256/[0-9a-f]{2}/[0-9a-f]{64})$`)
})

type backupHeader struct {
	V       string     `json:"v"`
	Host    nip.PubKey `json:"host"`
	Owner   nip.PubKey `json:"owner"`
	MadeAt  int64      `json:"made_at"`
	Version string     `json:"version"`
}

// backupTrailer proves that nothing of the file is missing or changed: Digest is
// of every file before it, see backupWriter.put.
type backupTrailer struct {
	V      string     `json:"v"`
	Files  int        `json:"files"`
	Bytes  int64      `json:"bytes"`
	Digest nip.Digest `json:"digest"`
}

// BackupArgs of "backup": an absolute path where nothing is yet, or a folder.
type BackupArgs struct {
	Path string `json:"path"`
}

// Backup says what a backup holds.
type Backup struct {
	Backup string `json:"backup"`
	Files  int    `json:"files"`
	Bytes  int64  `json:"bytes"`
	MadeAt int64  `json:"made_at"`
}

func verbBackup(ctx context.Context, c *Core, raw json.RawMessage, emit func(any) error) error {
	var a BackupArgs
	if err := arguments(raw, &a); err != nil {
		return err
	}
	b, err := c.Backup(ctx, a.Path)
	if err != nil {
		return err
	}
	return emit(b)
}

// Backup writes a copy of the home as one new file, mode 0600, which holds every
// secret of the home. It may run beside everything that the host does. The file
// appears whole or not at all.
//
// host.db is copied first, as it was at one commit; then each task, its log
// before its transcripts; then the reserved command IDs, then the blobs. Each of
// these is written before what names it, so the copies of later ones hold
// whatever the earlier copies speak of, and a task that went on meanwhile is
// like one whose host died behind an effect: the same bytes change nothing.
func (c *Core) Backup(ctx context.Context, to string) (Backup, error) {
	made := c.opts.Now()
	out := Backup{MadeAt: made.Unix()}
	if !filepath.IsAbs(to) {
		return out, fmt.Errorf("%w: a backup needs an absolute path", ErrUsage)
	}
	if st, err := os.Stat(to); err == nil && st.IsDir() {
		to = filepath.Join(to, "holdfast-"+made.UTC().Format("20060102T150405Z")+".backup")
	}
	folder, err := filepath.EvalSymlinks(filepath.Dir(to))
	if err != nil {
		return out, fmt.Errorf("%w: the folder for the backup: %w", ErrUsage, err)
	}
	home, err := filepath.EvalSymlinks(c.home)
	if err != nil {
		return out, fmt.Errorf("look at home: %w", err)
	}
	if folder == home || strings.HasPrefix(folder, home+string(filepath.Separator)) {
		return out, fmt.Errorf("%w: a backup inside of the home would be lost with it; name another folder", ErrUsage)
	}
	to = filepath.Join(folder, filepath.Base(to))
	err = atomicfile.Create(to, func(w io.Writer) error {
		b := &backupWriter{ctx: ctx, tw: tar.NewWriter(w), sum: sha256.New(), at: made}
		if err := c.writeBackup(b); err != nil {
			return err
		}
		out.Files, out.Bytes = b.files, b.bytes
		return b.tw.Close()
	})
	if errors.Is(err, fs.ErrExist) {
		return out, fmt.Errorf("%w: %s is there already; a backup replaces nothing", ErrUsage, to)
	}
	if err != nil {
		return out, fmt.Errorf("write backup: %w", err)
	}
	out.Backup = to
	return out, nil
}

func (c *Core) writeBackup(b *backupWriter) error {
	root, err := saferead.OpenDir(c.home)
	if err != nil {
		return err
	}
	defer root.Close()
	if err := b.note(backupHead, backupHeader{backupVersion, c.self, c.owner, b.at.Unix(), c.opts.Version}); err != nil {
		return err
	}
	// A view of host.db keeps no commit waiting, except one that must make the
	// file larger: so its copy goes to a file and not to whoever reads slowly.
	if err := c.db.View(func(tx *bbolt.Tx) error {
		return b.put("host.db", tx.Size(), func(w io.Writer) error {
			_, err := tx.WriteTo(w)
			return err
		})
	}); err != nil {
		return err
	}
	for _, name := range []string{"host.key", "owner.key", "policy.json", "workspaces.json", "secrets.json"} {
		if _, err := b.file(root, name, name); err != nil {
			return err
		}
	}
	for _, part := range []string{"tasks", "identities", "blobs"} {
		d, err := root.OpenDir(part)
		if err != nil {
			return err
		}
		err = b.folder(d, part)
		if err = errors.Join(err, d.Close()); err != nil {
			return err
		}
	}
	return b.end()
}

// backupWriter writes a tar and counts and digests its files.
type backupWriter struct {
	ctx   context.Context
	tw    *tar.Writer
	sum   hash.Hash
	at    time.Time
	files int
	bytes int64
}

// put writes one file of exactly size bytes. It counts for the digest with its
// name and size before its bytes, each number and name with an end of its own.
func (b *backupWriter) put(name string, size int64, fill func(w io.Writer) error) error {
	if err := b.ctx.Err(); err != nil {
		return err
	}
	if err := b.tw.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: name, Size: size, Mode: 0o600, ModTime: b.at.Truncate(time.Second)}); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	digestName(b.sum, name, size)
	if err := fill(io.MultiWriter(b.tw, b.sum)); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	b.files++
	b.bytes += size
	return nil
}

func digestName(sum hash.Hash, name string, size int64) {
	fmt.Fprintf(sum, "%d:%s %d:", len(name), name, size)
}

// file writes the file as long as it is now: what is appended meanwhile is of
// later. Absent files are left out.
func (b *backupWriter) file(d *saferead.Dir, name, as string) (found bool, err error) {
	f, err := d.Open(name, os.O_RDONLY)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return false, err
	}
	return true, b.put(as, st.Size(), func(w io.Writer) error {
		_, err := io.CopyN(w, f, st.Size())
		return err
	})
}

// folder writes what a backup takes of a folder and those below it. Of a task
// the log comes first, and without one it never was.
func (b *backupWriter) folder(d *saferead.Dir, as string) error {
	names, err := d.Names()
	if err != nil {
		return err
	}
	for _, name := range names {
		if err := b.ctx.Err(); err != nil {
			return err
		}
		full := path.Join(as, name)
		if backupName().MatchString(full) {
			if _, err := b.file(d, name, full); err != nil {
				return err
			}
			continue
		}
		if !backupFolder().MatchString(full) {
			continue
		}
		sub, err := d.OpenDir(name)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err == nil {
			err = errors.Join(b.folder(sub, full), sub.Close())
		}
		if err != nil {
			return err
		}
	}
	return nil
}

var backupFolder = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`^(tasks/[0-9a-f]{64}|blobs/sha256|blobs/sha256/[0-9a-f]{2})$`)
})

func (b *backupWriter) note(name string, v any) error {
	raw, err := json.Marshal(v)
	if err != nil {
		return err
	}
	return b.put(name, int64(len(raw)), func(w io.Writer) error { _, err := w.Write(raw); return err })
}

func (b *backupWriter) end() error {
	files, bytes := b.files, b.bytes
	err := b.note(backupSum, backupTrailer{backupVersion, files, bytes, sumOf(b.sum)})
	b.files, b.bytes = files, bytes // the end does not count itself
	return err
}

func sumOf(h hash.Hash) nip.Digest { return nip.Digest("sha256:" + hex.EncodeToString(h.Sum(nil))) }
