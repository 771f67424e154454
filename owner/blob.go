package owner

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"

	"holdfast/internal/atomicfile"
	"holdfast/internal/saferead"
)

// maxBlob bounds what is kept as one blob, in bytes.
const maxBlob = 64 << 20

// PutBlob keeps b under its digest and returns when it is durable. A blob that
// is there already is verified, and written anew where a crash of the machine
// left something else under its name. Either way it is young afterwards, so
// that a sweep leaves it to whoever is about to name it.
func (s *Store) PutBlob(b []byte) (Digest, error) {
	if s.poisoned.Load() {
		return "", ErrReopen
	}
	if len(b) > maxBlob {
		return "", refuse("limit_exceeded", "a blob has at most %d bytes", maxBlob)
	}
	h := sha256.Sum256(b)
	name := hex.EncodeToString(h[:])
	if err := s.fs.Mkdir(s.blobs, name[:2]); err != nil && !errors.Is(err, fs.ErrExist) {
		return "", fmt.Errorf("keep a blob: %w", err)
	}
	d, err := s.blobs.OpenDir(name[:2])
	if err != nil {
		return "", classify(err)
	}
	defer d.Close()
	if err := sharing(d); err != nil {
		return "", err
	}
	// Synced although another may have made it: seen is not durable.
	if err := s.fs.SyncDir(s.blobs); err != nil {
		return "", fmt.Errorf("keep a blob: %w", err)
	}
	if have, err := d.Read(name, int64(len(b))); err == nil && sha256.Sum256(have) == h {
		f, err := s.fs.Open(d, name, os.O_RDWR)
		if err != nil {
			return "", classify(err)
		}
		defer f.Close()
		if err := young(d, name); err != nil {
			return "", fmt.Errorf("keep a blob: %w", err)
		}
		if err := s.unknown(errors.Join(f.Sync(), s.fs.SyncDir(d))); err != nil {
			return "", err
		}
		return Digest("sha256:" + name), nil
	} else if errors.Is(err, saferead.ErrUnsafe) {
		return "", classify(err)
	}
	// The rename inside shows only a whole blob; nothing names it before this returns.
	err = atomicfile.WriteIn(s.fs, d, name, b)
	if errors.Is(err, atomicfile.ErrUnknown) {
		return "", s.unknown(err)
	}
	if err != nil {
		return "", fmt.Errorf("keep a blob: %w", err)
	}
	return Digest("sha256:" + name), nil
}

// GetBlob returns the blob of that digest, at most max bytes of it, verified.
// *Error not_found without it, limit_exceeded for a longer one; ErrCorrupt
// where the bytes are not the digest's.
func (s *Store) GetBlob(d Digest, max int64) ([]byte, error) {
	if !d.valid() {
		return nil, refuse("invalid_command", "a digest is sha256: and 64 lowercase hex characters")
	}
	name := string(d)[len("sha256:"):]
	dir, err := s.blobs.OpenDir(name[:2])
	if errors.Is(err, fs.ErrNotExist) {
		return nil, refuse("not_found", "there is no blob %s", d)
	}
	if err != nil {
		return nil, classify(err)
	}
	defer dir.Close()
	f, err := dir.Open(name, os.O_RDONLY)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, refuse("not_found", "there is no blob %s", d)
	}
	if err != nil {
		return nil, classify(err)
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, max+1))
	if err != nil {
		return nil, fmt.Errorf("read a blob: %w", err)
	}
	if int64(len(b)) > max {
		return nil, refuse("limit_exceeded", "the blob is longer than %d bytes", max)
	}
	if DigestOf(b) != d {
		return nil, corrupt("blobs/sha256/%s/%s", name[:2], name)
	}
	return b, nil
}
