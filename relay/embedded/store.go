package embedded

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"hash/crc32"
	"hash/fnv"
	"io"
	"os"
	"path/filepath"
	"runtime/debug"
	"sync/atomic"
	"syscall"
	"time"

	"go.etcd.io/bbolt"
	berrors "go.etcd.io/bbolt/errors"

	"holdfast/internal/atomicfile"
	"holdfast/internal/saferead"
	"holdfast/nip"
)

// The file. Every number is big-endian, every time Unix seconds, every key and
// ID 32 raw bytes.
//
//	header     "header" -> magic | version u32 | CRC-32 of both
//	events     id -> record (see encodeRecord)
//	recipient  recipient | created u64 | id -> author | mailbox | ends u64
//	author     author | created u64 | id -> recipient | mailbox | ends u64
//	ends       ends u64 | id -> nothing: the order in which events expire
//	room       recipient | arrival u64 | id -> size u32: a member's, oldest first
//	strangers  arrival u64 | id -> nothing: strangers' events, oldest first
//
// arrival is a counter that only grows, bucket events' sequence.
const (
	magic   = "holdfast-relay"
	version = 1
)

var (
	bHeader    = []byte("header")
	bEvents    = []byte("events")
	bRecipient = []byte("recipient")
	bAuthor    = []byte("author")
	bEnds      = []byte("ends")
	bRoom      = []byte("room")
	bStrangers = []byte("strangers")

	buckets = [][]byte{bHeader, bEvents, bRecipient, bAuthor, bEnds, bRoom, bStrangers}
)

type store struct {
	db     *bbolt.DB
	jobs   chan *job
	broken atomic.Bool   // a commit failed: nothing is written until reopened
	cause  error         // why; set before failed is closed
	failed chan struct{} // closed once broken
	room   int64         // memberRoom
	pool   int           // strangerRoom
	// Of the committer alone.
	used      map[[32]byte]int64 // bytes of members' events by recipient
	strangers int
}

// openStore opens or creates the file.
func openStore(path string, now time.Time) (*store, error) {
	if _, err := os.Lstat(path); errors.Is(err, os.ErrNotExist) {
		if err := createStore(path, now); err != nil {
			return nil, err
		}
	} else if err := atomicfile.SyncName(path); err != nil {
		// Who made it may have died before its name was durable.
		return nil, fmt.Errorf("open relay store %s: %w", path, err)
	}
	return openFile(path, now)
}

// createStore makes the file under a temporary name, and renames it when its
// header is on disk. A crash before the rename leaves a temporary file that the
// next start removes, and never a half-made store, which would be taken for a
// damaged one; after the folder's sync the name stays, and with it what is
// answered OK from then on. The folder's lock keeps two creators apart.
func createStore(path string, now time.Time) error {
	fault := func(err error) error { return fmt.Errorf("make relay store %s: %w", path, err) }
	dir, err := os.Open(filepath.Dir(path))
	if err != nil {
		return fault(err)
	}
	defer dir.Close() // and with it the lock
	switch err := syscall.Flock(int(dir.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); {
	case errors.Is(err, syscall.EWOULDBLOCK):
		return ErrLocked
	case err != nil:
		return fault(err)
	}
	if _, err := os.Lstat(path); err == nil {
		return nil // another process was quicker
	}
	tmp := path + ".new"
	if err := os.Remove(tmp); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fault(err)
	}
	st, err := openFile(tmp, now)
	if err == nil {
		err = st.db.Close()
	}
	if err == nil {
		err = os.Rename(tmp, path)
	}
	if err == nil {
		err = dir.Sync()
	}
	if err != nil {
		return fault(err)
	}
	return nil
}

// openFile opens the file, and makes its header where it is empty. bbolt panics
// on some damage and a truncated file faults on its memory map; both are
// ErrCorrupt here.
func openFile(path string, now time.Time) (st *store, err error) {
	var file *os.File
	defer guard(&err, func() {
		if file != nil {
			// bbolt's own Close may want the pages that fault. The map, and
			// with it the lock, stays until the process ends.
			file.Close()
		}
	})
	if err := checkLength(path); err != nil {
		return nil, err
	}
	db, err := bbolt.Open(path, 0o600, &bbolt.Options{
		Timeout:      time.Second,
		FreelistType: bbolt.FreelistMapType,
		OpenFile: func(name string, flag int, mode os.FileMode) (*os.File, error) {
			f, err := os.OpenFile(name, flag|syscall.O_NOFOLLOW, mode)
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
		return nil, ErrLocked
	case errors.Is(err, berrors.ErrInvalid), errors.Is(err, berrors.ErrVersionMismatch), errors.Is(err, berrors.ErrChecksum):
		return nil, fmt.Errorf("%w: %v", ErrCorrupt, err)
	case err != nil:
		return nil, fmt.Errorf("open relay store %s: %w", path, err)
	}
	st = &store{db: db, room: memberRoom, pool: strangerRoom, jobs: make(chan *job, 256), failed: make(chan struct{}), used: map[[32]byte]int64{}}
	if err := st.begin(now); err != nil {
		db.Close()
		return nil, err
	}
	return st, nil
}

// guard turns a panic or a page fault of bbolt into ErrCorrupt. It is deferred.
func guard(err *error, cleanup func()) {
	if p := recover(); p != nil {
		cleanup()
		*err = fmt.Errorf("%w: %v", ErrCorrupt, p)
	}
}

// checkLength refuses a file that is shorter than its own meta pages say: such
// a file opens and faults later, wherever the missing pages are touched.
func checkLength(path string) error {
	f, err := os.Open(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("open relay store %s: %w", path, err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil || info.Size() == 0 {
		return err
	}
	pages, size, err := extent(f)
	if err != nil {
		return err
	}
	if pages > uint64(info.Size())/size {
		return fmt.Errorf("%w: the file is cut short", ErrCorrupt)
	}
	return nil
}

// extent reads bbolt's two meta pages and returns how many pages the file must
// have, and their size in bytes. A page counts when its sum holds; a torn write
// leaves one that does not.
func extent(f io.ReaderAt) (pages, size uint64, err error) {
	// 16 bytes of page header, then magic u32, version u32, page size u32,
	// flags u32, root (u64, u64), freelist u64, pages u64, transaction u64,
	// FNV-1a of all that u64; in the machine's byte order.
	n := binary.NativeEndian
	try := func(at int64) bool {
		var b [80]byte
		if _, err := f.ReadAt(b[:], at); err != nil || n.Uint32(b[16:]) != 0xED0CDAED {
			return false
		}
		sum := fnv.New64a()
		sum.Write(b[16:72])
		if sum.Sum64() != n.Uint64(b[72:]) {
			return false
		}
		size = uint64(n.Uint32(b[24:]))
		pages = max(pages, n.Uint64(b[56:]))
		return size >= 1024
	}
	first := try(0)
	for at := int64(1024); at <= 1<<16; at *= 2 { // the second stands one page in
		if (!first || uint64(at) == size) && try(at) {
			return pages, size, nil
		}
	}
	if !first {
		return 0, 0, fmt.Errorf("%w: it has no valid meta page", ErrCorrupt)
	}
	return pages, size, nil
}

// begin checks or writes the header, counts the room in use and lets go of what
// ended while nobody looked. It is one transaction: a crash before its commit
// leaves the file as it was, which for a new file is empty.
func (st *store) begin(now time.Time) error {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	tx, err := st.db.Begin(true)
	if err != nil {
		return err
	}
	defer tx.Rollback()
	if first, _ := tx.Cursor().First(); first == nil {
		for _, name := range buckets {
			if _, err := tx.CreateBucket(name); err != nil {
				return err
			}
		}
		if err := tx.Bucket(bHeader).Put(bHeader, encodeHeader(version)); err != nil {
			return err
		}
		return tx.Commit()
	}
	if err := checkHeader(tx); err != nil {
		return err
	}
	for _, name := range buckets {
		if tx.Bucket(name) == nil {
			return ErrCorrupt
		}
	}
	if err := st.count(tx); err != nil {
		return err
	}
	changed, err := st.expire(tx, now, 10*sweepMost)
	if err != nil || !changed {
		return err
	}
	return tx.Commit()
}

// count adds up the room in use.
func (st *store) count(tx *bbolt.Tx) error {
	if err := tx.Bucket(bStrangers).ForEach(func(_, _ []byte) error { st.strangers++; return nil }); err != nil {
		return err
	}
	return tx.Bucket(bRoom).ForEach(func(k, v []byte) error {
		if len(k) != 72 || len(v) != 4 {
			return ErrCorrupt
		}
		st.used[[32]byte(k)] += int64(binary.BigEndian.Uint32(v))
		return nil
	})
}

func encodeHeader(v uint32) []byte {
	b := binary.BigEndian.AppendUint32([]byte(magic), v)
	return binary.BigEndian.AppendUint32(b, crc32.ChecksumIEEE(b))
}

func checkHeader(tx *bbolt.Tx) error {
	b := tx.Bucket(bHeader)
	if b == nil {
		return ErrCorrupt
	}
	h := b.Get(bHeader)
	if len(h) < len(magic)+8 || !bytes.HasPrefix(h, []byte(magic)) {
		return ErrCorrupt
	}
	body, sum := h[:len(h)-4], binary.BigEndian.Uint32(h[len(h)-4:])
	if crc32.ChecksumIEEE(body) != sum {
		return ErrCorrupt
	}
	switch v := binary.BigEndian.Uint32(h[len(magic):]); {
	case v > version:
		return ErrNewer
	case v != version || len(h) != len(magic)+8:
		return ErrCorrupt
	}
	return nil
}

// record is one stored event with what the indexes need to find it again.
type record struct {
	id, author, recipient, mailbox [32]byte
	created, ends, arrival         uint64
	expires                        uint64 // its publisher's wish, part of ends once stored; not in the file
	stranger                       bool
	via                            nip.RelayURL // the name that its publisher authenticated with
	json                           []byte
}

const recordHead = 1 + 8*3 + 32*3 + 2

// encodeRecord: flags u8 | created | ends | arrival | author | recipient |
// mailbox | length of via u16 | via | event JSON.
func encodeRecord(r *record) []byte {
	b := make([]byte, 0, recordHead+len(r.via)+len(r.json))
	var flags byte
	if r.stranger {
		flags = 1
	}
	b = append(b, flags)
	for _, n := range []uint64{r.created, r.ends, r.arrival} {
		b = binary.BigEndian.AppendUint64(b, n)
	}
	b = append(append(append(b, r.author[:]...), r.recipient[:]...), r.mailbox[:]...)
	b = binary.BigEndian.AppendUint16(b, uint16(len(r.via)))
	return append(append(b, r.via...), r.json...)
}

// decodeRecord copies out of the transaction's memory.
func decodeRecord(id, b []byte) (*record, error) {
	if len(id) != 32 || len(b) < recordHead || b[0] > 1 {
		return nil, ErrCorrupt
	}
	r := &record{
		id: [32]byte(id), stranger: b[0] == 1,
		created: binary.BigEndian.Uint64(b[1:]), ends: binary.BigEndian.Uint64(b[9:]), arrival: binary.BigEndian.Uint64(b[17:]),
		author: [32]byte(b[25:]), recipient: [32]byte(b[57:]), mailbox: [32]byte(b[89:]),
	}
	n := int(binary.BigEndian.Uint16(b[121:]))
	if b = b[recordHead:]; len(b) < n {
		return nil, ErrCorrupt
	}
	r.via, r.json = nip.RelayURL(b[:n]), bytes.Clone(b[n:])
	return r, nil
}

func (r *record) indexKey(owner [32]byte) []byte {
	k := binary.BigEndian.AppendUint64(owner[:], r.created)
	return append(k, r.id[:]...)
}

func (r *record) indexValue(peer [32]byte) []byte {
	v := append(append(make([]byte, 0, 72), peer[:]...), r.mailbox[:]...)
	return binary.BigEndian.AppendUint64(v, r.ends)
}

// raw decodes 64 hex characters; false for anything else.
func raw(s string) (b [32]byte, ok bool) {
	if len(s) != 64 {
		return b, false
	}
	_, err := hex.Decode(b[:], []byte(s))
	return b, err == nil
}
