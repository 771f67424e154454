package owner

import (
	"bufio"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"io/fs"
	"os"
	"strconv"
	"sync"

	"holdfast/internal/atomicfile"
)

// What turns changed, as originals: the manifest of a turn (manifest:<turn>)
// and a file that one of the task's manifests kept (artifact:<hex>, the digest
// of its bytes). Nothing else is served under these names, whatever blobs the
// store has: a grant is a blob, too, and another task's files are.

// Bounds of what is remembered, so that a piece of an original costs a piece.
const (
	maxProven    = 1024 // blobs that have the digest of their name
	maxManifests = 8    // manifests, each with at most 8,192 digests
)

// keptCache remembers what was read of blobs. A blob never changes; one that is
// not the file any more that was read is read again.
type keptCache struct {
	mu     sync.Mutex                                // guards both
	proven map[Digest]traceStamp                     // blobs whose bytes were held against their name
	listed map[Digest]map[[sha256.Size]byte]struct{} // the files that a manifest kept
}

// ChangesRef names the manifest of what a turn changed.
type ChangesRef struct {
	Turn   int
	Digest Digest
	Bytes  int64
}

// ChangesOf is the newest manifest of t, nil where no turn kept one.
func (s *Store) ChangesOf(t *Task) (*ChangesRef, error) {
	r := t.ended(0)
	for r != nil && r.Result.Artifacts == "" && r.Turn > 1 {
		r = t.ended(r.Turn - 1)
	}
	if r == nil || r.Result.Artifacts == "" {
		return nil, nil
	}
	f, err := s.openBlob(r.Result.Artifacts)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	fi, err := f.Stat()
	if err != nil {
		return nil, err
	}
	return &ChangesRef{Turn: r.Turn, Digest: r.Result.Artifacts, Bytes: fi.Size()}, nil
}

// keptOriginal is Original of a manifest or of a file that one names.
func (s *Store) keptOriginal(t *Task, kind, name string, offset int64, limit int) (data []byte, total int64, digest Digest, err error) {
	max := int64(maxManifest)
	if kind == "manifest" {
		turn, err := strconv.Atoi(name)
		if err != nil || strconv.Itoa(turn) != name {
			return nil, 0, "", refuse("invalid_command", "a manifest is named by its turn")
		}
		r := t.ended(turn)
		if turn < 1 || r == nil || r.Result.Artifacts == "" {
			return nil, 0, "", refuse("not_found", "turn %d kept no changes", turn)
		}
		digest = r.Result.Artifacts
	} else {
		digest, max = Digest("sha256:"+name), maxRetainedFile
		if !digest.valid() {
			return nil, 0, "", refuse("invalid_command", "an artifact is named by 64 lowercase hex characters")
		}
		if err := s.keptBy(t, digest); err != nil {
			return nil, 0, "", err
		}
	}
	data, total, err = s.blobPart(digest, max, offset, limit)
	if isRefusal(err, "not_found") {
		err = corrupt("blob %s is missing", digest) // a result or a manifest names it
	}
	return data, total, digest, err
}

// keptBy refuses a file that no manifest of the task kept. It looks at the
// newest turn first.
func (s *Store) keptBy(t *Task, digest Digest) error {
	var want [sha256.Size]byte
	hex.Decode(want[:], []byte(digest[len("sha256:"):]))
	for turn := len(t.Earlier) + 1; turn >= 1; turn-- {
		r := t.ended(turn)
		if r == nil || r.Result.Artifacts == "" {
			continue
		}
		listed, err := s.listed(t.ID, r)
		if err != nil {
			return err
		}
		if _, there := listed[want]; there {
			return nil
		}
	}
	return refuse("not_found", "no turn of the task kept a file with that digest")
}

// listed is the digests of the files that a run's manifest kept.
func (s *Store) listed(id TaskID, r *Run) (map[[sha256.Size]byte]struct{}, error) {
	s.kept.mu.Lock()
	have := s.kept.listed[r.Result.Artifacts]
	s.kept.mu.Unlock()
	if have != nil {
		return have, nil
	}
	m, err := s.manifest(id, r)
	if err != nil {
		return nil, err
	}
	have = map[[sha256.Size]byte]struct{}{}
	for _, c := range m.Changes {
		for _, side := range []*Side{c.Before, c.After} {
			if side != nil && side.Kept {
				var d [sha256.Size]byte
				hex.Decode(d[:], []byte(side.Digest[len("sha256:"):]))
				have[d] = struct{}{}
			}
		}
	}
	s.kept.mu.Lock()
	defer s.kept.mu.Unlock()
	if s.kept.listed == nil || len(s.kept.listed) >= maxManifests {
		s.kept.listed = map[Digest]map[[sha256.Size]byte]struct{}{}
	}
	s.kept.listed[r.Result.Artifacts] = have
	return have, nil
}

// openBlob opens a blob; *Error not_found without it.
func (s *Store) openBlob(d Digest) (atomicfile.File, error) {
	if !d.valid() {
		return nil, refuse("invalid_command", "a digest is sha256: and 64 lowercase hex characters")
	}
	name := string(d)[len("sha256:"):]
	dir, err := s.blobs.OpenDir(name[:2])
	if err == nil {
		defer dir.Close()
		var f atomicfile.File
		if f, err = s.fs.Open(dir, name, os.O_RDONLY); err == nil {
			return f, nil
		}
	}
	if errors.Is(err, fs.ErrNotExist) {
		return nil, refuse("not_found", "there is no blob %s", d)
	}
	return nil, classify(err)
}

// blobPart reads at most limit bytes of a blob of at most max from offset on.
// The first piece reads the whole against its name; for the further ones the
// file must be the one that was read. Who reads all pieces holds them against
// the digest anyway.
func (s *Store) blobPart(d Digest, max, offset int64, limit int) (data []byte, size int64, err error) {
	f, err := s.openBlob(d)
	if err != nil {
		return nil, 0, err
	}
	defer f.Close()
	stamp, err := statStamp(f)
	if err != nil {
		return nil, 0, err
	}
	if size = stamp.size; size > max {
		return nil, 0, refuse("limit_exceeded", "the blob is longer than %d bytes", max)
	}
	if offset > size {
		return nil, 0, refuse("limit_exceeded", "the original has %d bytes", size)
	}
	s.kept.mu.Lock()
	proven := s.kept.proven[d] == stamp
	s.kept.mu.Unlock()
	if !proven {
		h := sha256.New()
		if _, err := io.Copy(h, bufio.NewReader(io.NewSectionReader(f, 0, size))); err != nil {
			return nil, 0, err
		}
		if hexDigest(h.Sum(nil)) != d {
			return nil, 0, corrupt("blobs/sha256/%s/%s", d[len("sha256:"):][:2], d[len("sha256:"):])
		}
	}
	data = make([]byte, min(int64(limit), size-offset))
	if _, err := f.ReadAt(data, offset); err != nil && err != io.EOF {
		return nil, 0, err
	}
	// Bytes that were read while somebody wrote them are not what was proven.
	if now, err := statStamp(f); err != nil || now != stamp {
		return nil, 0, errors.Join(err, corrupt("blob %s changed while it was read", d))
	}
	if !proven {
		s.kept.mu.Lock()
		if s.kept.proven == nil || len(s.kept.proven) >= maxProven {
			s.kept.proven = map[Digest]traceStamp{}
		}
		s.kept.proven[d] = stamp
		s.kept.mu.Unlock()
	}
	return data, size, nil
}
