package owner

import (
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"math"
	"reflect"
	"strings"
	"sync"

	"holdfast/internal/saferead"
)

// live/rows, all integers big endian:
//
//	header  "HFTASKRW", u32 version, 32 bytes shape (see rowShape), u32 crc32c of all before
//	record  u16 n, u16 complement of n, payload of n bytes, u32 crc32c of all before
//	payload u64 revision, u64 created, u64 updated, u8 turn (0 none), u8 1 where archived, and, each as u16 length and
//	        bytes: task ID, status, phase, headline, title, path
//
// A task's last record is its row. One that has a file in live may have changed since: its log is to be read. So only
// tasks that have ended have a row that counts. The file is a hint as a whole: where there is none, or none of this build,
// or any of it is not as written, every log is read (Reindex) and it is made anew.
const (
	rowsName    = "rows"
	rowsMagic   = "HFTASKRW"
	rowsVersion = 1
	rowsHead    = len(rowsMagic) + 4 + sha256.Size + 4
	maxRow      = 1 << 14
	maxRows     = 1 << 30 // bytes of the file that are read
)

// rowShape tells the builds apart that may make another row of the same log.
var rowShape = sync.OnceValue(func() [sha256.Size]byte {
	base := checkpointShape()
	var b strings.Builder
	fmt.Fprintf(&b, "%x\n", base)
	describeType(&b, reflect.TypeFor[Row](), map[reflect.Type]bool{})
	return sha256.Sum256([]byte(b.String()))
})

func rowsHeader() []byte {
	shape := rowShape()
	b := binary.BigEndian.AppendUint32([]byte(rowsMagic), rowsVersion)
	b = append(b, shape[:]...)
	return binary.BigEndian.AppendUint32(b, crc32.Checksum(b, castagnoli))
}

func (r *Row) texts() []string {
	return []string{string(r.ID), string(r.Status), r.Phase, r.Headline, r.Title, r.Path}
}

// appendRow adds the record; false where it would be too long, for which the task stays live.
func appendRow(b []byte, r *Row) ([]byte, bool) {
	from := len(b)
	b = append(b, 0, 0, 0, 0)
	for _, n := range []int64{r.Revision, r.CreatedAt, r.UpdatedAt} {
		b = binary.BigEndian.AppendUint64(b, uint64(n))
	}
	archived := byte(0)
	if r.Archived {
		archived = 1
	}
	b = append(b, byte(r.Turn), archived)
	for _, s := range r.texts() {
		if len(s) > maxRow {
			return b[:from], false
		}
		b = append(binary.BigEndian.AppendUint16(b, uint16(len(s))), s...)
	}
	n := len(b) - from - 4
	if n > maxRow {
		return b[:from], false
	}
	binary.BigEndian.PutUint16(b[from:], uint16(n))
	binary.BigEndian.PutUint16(b[from+2:], ^uint16(n))
	return binary.BigEndian.AppendUint32(b, crc32.Checksum(b[from:], castagnoli)), true
}

// interned keeps one copy of what very many rows share.
type interned map[string]string

func (m interned) of(b []byte) string {
	if s, ok := m[string(b)]; ok {
		return s
	}
	if len(m) > 1024 {
		return string(b)
	}
	s := string(b)
	m[s] = s
	return s
}

// decodeRow reads the record at the start of b; errCutShort where b ends in it.
func decodeRow(b []byte, names interned) (r Row, size int, err error) {
	const head, fixed = 4, 3*8 + 2
	if len(b) < head || len(b) <= head+maxRow+4 && allZero(b) {
		return r, 0, errCutShort
	}
	n := int(binary.BigEndian.Uint16(b))
	if uint16(n) != ^binary.BigEndian.Uint16(b[2:]) || n < fixed || n > maxRow {
		return r, 0, corrupt("row of %d bytes", n)
	}
	if len(b) < head+n+4 {
		return r, 0, errCutShort
	}
	if crc32.Checksum(b[:head+n], castagnoli) != binary.BigEndian.Uint32(b[head+n:]) {
		return r, 0, corrupt("row checksum")
	}
	p := b[head : head+n]
	for i, v := range []*int64{&r.Revision, &r.CreatedAt, &r.UpdatedAt} {
		u := binary.BigEndian.Uint64(p[8*i:])
		if u > math.MaxInt64 {
			return r, 0, corrupt("row number")
		}
		*v = int64(u)
	}
	r.Turn, r.Archived = int(p[24]), p[25] == 1
	rest := p[fixed:]
	var parts [6][]byte
	for i := range parts {
		if len(rest) < 2 || len(rest) < 2+int(binary.BigEndian.Uint16(rest)) {
			return r, 0, corrupt("row lengths")
		}
		m := 2 + int(binary.BigEndian.Uint16(rest))
		parts[i], rest = rest[2:m], rest[m:]
	}
	if len(rest) > 0 || p[25] > 1 {
		return r, 0, corrupt("row lengths")
	}
	r.ID, r.Title = TaskID(parts[0]), string(parts[4])
	r.Status, r.Phase, r.Headline, r.Path = Status(names.of(parts[1])), names.of(parts[2]), names.of(parts[3]), names.of(parts[5])
	if !identifier(string(r.ID), "") {
		return r, 0, corrupt("row name")
	}
	return r, head + n + 4, nil
}

// errOtherRows is returned for rows of another build: not damage, and of no use.
var errOtherRows = errors.New("rows of another build")

// decodeRows calls each for the records of a file, and returns the offset behind the last whole one.
func decodeRows(b []byte, each func(Row)) (end int64, err error) {
	if len(b) < rowsHead || string(b[:len(rowsMagic)]) != rowsMagic {
		return 0, corrupt("no rows")
	}
	if crc32.Checksum(b[:rowsHead-4], castagnoli) != binary.BigEndian.Uint32(b[rowsHead-4:]) {
		return 0, corrupt("header of the rows")
	}
	if string(b[:rowsHead]) != string(rowsHeader()) {
		return 0, errOtherRows
	}
	end = int64(rowsHead)
	names := interned{}
	for b = b[rowsHead:]; len(b) > 0; {
		r, n, err := decodeRow(b, names)
		if err == errCutShort {
			return end, nil
		}
		if err != nil {
			return end, fmt.Errorf("at byte %d: %w", end, err)
		}
		each(r)
		b = b[n:]
		end += int64(n)
	}
	return end, nil
}

// readRows reads the file, which another process may be replacing just now: then what was opened has no name any more.
func readRows(d *saferead.Dir, each func(Row)) (end int64, err error) {
	for try := 0; ; try++ {
		b, err := d.Read(rowsName, maxRows)
		if errors.Is(err, saferead.ErrUnsafe) && try < 200 {
			continue
		}
		if err != nil {
			return 0, classify(err)
		}
		return decodeRows(b, each)
	}
}

// noRows reports whether err says that there are no rows that count, and nothing worse.
func noRows(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, ErrCorrupt) || errors.Is(err, errOtherRows) || errors.Is(err, saferead.ErrTooLarge)
}
