package embedded

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"runtime/debug"
	"syscall"
	"time"

	"go.etcd.io/bbolt"
	berrors "go.etcd.io/bbolt/errors"

	"holdfast/internal/commit"
	"holdfast/internal/saferead"
	"holdfast/nip"
)

// Check reads a whole store that nobody has open, and changes nothing: its pages, its header, and
// every event with its signature and its place in each index. It returns the
// number of events. The errors are fs.ErrNotExist, ErrLocked when a process has
// the file open, ErrNewer, ErrCorrupt, and those of an unsafe file.
func Check(path string) (events int, err error) {
	var file *os.File
	defer guard(&err, func() {
		if file != nil {
			file.Close() // as in openStore
		}
	})
	if err := checkLength(path); err != nil {
		return 0, err
	}
	if info, err := os.Lstat(path); err == nil && info.Size() == 0 {
		return 0, nil // as a crash leaves it before its first commit; Open takes it as new
	}
	db, err := bbolt.Open(path, 0o600, &bbolt.Options{
		Timeout: time.Second, ReadOnly: true,
		OpenFile: func(name string, _ int, _ os.FileMode) (*os.File, error) {
			f, err := os.OpenFile(name, os.O_RDONLY|syscall.O_NOFOLLOW, 0)
			if err != nil {
				return nil, err
			}
			if err := saferead.PrivateFile(f); err != nil {
				f.Close()
				return nil, err
			}
			file = f
			return f, nil
		},
	})
	switch {
	case errors.Is(err, berrors.ErrTimeout):
		return 0, ErrLocked
	case errors.Is(err, berrors.ErrInvalid), errors.Is(err, berrors.ErrVersionMismatch), errors.Is(err, berrors.ErrChecksum):
		return 0, fmt.Errorf("%w: %v", ErrCorrupt, err)
	case err != nil:
		return 0, fmt.Errorf("open relay store %s: %w", path, err)
	}
	info, err := file.Stat()
	if err == nil && commit.CheckPages(file, info.Size()) != nil {
		err = fmt.Errorf("%w: a page is not what was written", ErrCorrupt)
	}
	if err == nil {
		events, err = checkEvents(db)
	}
	return events, errors.Join(err, db.Close())
}

// Check is Check of the store that this relay has open, pages apart: they
// change while it serves, and what can be reached is read all the same.
func (r *Relay) Check() (events int, err error) {
	defer guard(&err, func() {})
	return checkEvents(r.store.db)
}

func checkEvents(db *bbolt.DB) (n int, err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	tx, err := db.Begin(false)
	if err != nil {
		return 0, err
	}
	defer tx.Rollback()
	if err := checkHeader(tx); err != nil {
		return 0, err
	}
	for _, name := range buckets {
		if tx.Bucket(name) == nil {
			return 0, fmt.Errorf("%w: bucket %s is missing", ErrCorrupt, name)
		}
	}
	rows := map[string]int{}
	if err := tx.Bucket(bEvents).ForEach(func(id, value []byte) error {
		n++
		r, err := decodeRecord(id, value)
		if err == nil {
			err = r.check(tx, len(value), rows)
		}
		if err != nil {
			return fmt.Errorf("event %s: %w", hex.EncodeToString(id), err)
		}
		return nil
	}); err != nil {
		return 0, err
	}
	// Each event has its entries, so an entry too many names no event.
	for _, name := range buckets[2:] {
		have := 0
		if err := tx.Bucket(name).ForEach(func(_, _ []byte) error { have++; return nil }); err != nil {
			return 0, err
		}
		if have != rows[string(name)] {
			return 0, fmt.Errorf("%w: %s has %d entries for %d events", ErrCorrupt, name, have, rows[string(name)])
		}
	}
	return n, nil
}

// check holds one record against its event and its index entries.
func (r *record) check(tx *bbolt.Tx, size int, rows map[string]int) error {
	var ev nip.Event
	if err := json.Unmarshal(r.json, &ev); err != nil {
		return fmt.Errorf("%w: it is no event", ErrCorrupt)
	}
	v, err := nip.VerifyEvent(&ev)
	if err != nil {
		return fmt.Errorf("%w: it does not verify", ErrCorrupt)
	}
	id, _ := raw(v.Event().ID)
	author, _ := raw(v.Event().PubKey)
	if id != r.id || author != r.author || uint64(v.Event().CreatedAt) != r.created {
		return fmt.Errorf("%w: it is filed as another", ErrCorrupt)
	}
	entries := []struct{ bucket, key, value []byte }{
		{bRecipient, r.indexKey(r.recipient), r.indexValue(r.author)},
		{bAuthor, r.indexKey(r.author), r.indexValue(r.recipient)},
		{bEnds, r.endsKey(), nil},
	}
	if r.stranger {
		entries = append(entries, struct{ bucket, key, value []byte }{bStrangers, r.strangerKey(), nil})
	} else {
		entries = append(entries, struct{ bucket, key, value []byte }{bRoom, r.roomKey(), binary.BigEndian.AppendUint32(nil, uint32(size))})
	}
	for _, e := range entries {
		got := tx.Bucket(e.bucket).Get(e.key)
		if got == nil || !bytes.Equal(got, e.value) {
			return fmt.Errorf("%w: its entry in %s is missing or another", ErrCorrupt, e.bucket)
		}
		rows[string(e.bucket)]++
	}
	return nil
}
