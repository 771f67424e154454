package owner

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"hash"
	"hash/crc32"
	"os"

	"holdfast/internal/atomicfile"
	"holdfast/internal/saferead"
)

// The index of a transcript. Its header is
//
//	HFTRINDX; version u32; the transcript's inode u64; the prefix digest before the first step (32); crc32c of all before
//
// and after it stands one record for each line of the transcript, in their order:
//
//	offset u64; length u32, without the newline; kind u8; the prefix digest after the line (32); SHA-256 of the
//	transcript up to and with the line (32); its mtime i64 and ctime i64 then, in ns; crc32c of the header, of the
//	record's number u64, from 0, and of all before
const (
	indexMagic   = "HFTRINDX"
	indexVersion = 1
	indexHeader  = 56
	indexRecord  = 97
)

// The kinds of an indexed line. A transcript with another line in it has no index that holds.
const (
	indexSession byte = 1 + iota
	indexStep
	indexEnd
)

// indexName is the file of a turn's index.
func indexName(turn int) string { return fmt.Sprintf("turn-%d.index", turn) }

// indexEntry is one decoded record.
type indexEntry struct {
	traceRef
	kind         byte
	digest       [sha256.Size]byte
	mtime, ctime int64
}

func (e *indexEntry) end() int64 { return e.offset + int64(e.length) + 1 }

func encodeIndexHeader(ino uint64, base [sha256.Size]byte) []byte {
	b := append(make([]byte, 0, indexHeader), indexMagic...)
	b = binary.BigEndian.AppendUint32(b, indexVersion)
	b = binary.BigEndian.AppendUint64(b, ino)
	b = append(b, base[:]...)
	return binary.BigEndian.AppendUint32(b, crc32.Checksum(b, castagnoli))
}

// indexSum is the checksum of record number n: it binds the record to its place and to the index it was made for.
func indexSum(header []byte, n int64, record []byte) uint32 {
	sum := crc32.Update(crc32.Checksum(header, castagnoli), castagnoli, binary.BigEndian.AppendUint64(nil, uint64(n)))
	return crc32.Update(sum, castagnoli, record)
}

func encodeIndexEntry(header []byte, n int64, e indexEntry) []byte {
	b := binary.BigEndian.AppendUint64(make([]byte, 0, indexRecord), uint64(e.offset))
	b = binary.BigEndian.AppendUint32(b, uint32(e.length))
	b = append(b, e.kind)
	b = append(b, e.chain[:]...)
	b = append(b, e.digest[:]...)
	b = binary.BigEndian.AppendUint64(b, uint64(e.mtime))
	b = binary.BigEndian.AppendUint64(b, uint64(e.ctime))
	return binary.BigEndian.AppendUint32(b, indexSum(header, n, b))
}

// decodeIndexEntry decodes record number n, of indexRecord bytes; false where it is damaged, of another index or of
// another place in this one, or says what no line is.
func decodeIndexEntry(header []byte, n int64, b []byte) (e indexEntry, ok bool) {
	body := b[:indexRecord-4]
	if binary.BigEndian.Uint32(b[indexRecord-4:]) != indexSum(header, n, body) {
		return e, false
	}
	offset, length := binary.BigEndian.Uint64(b), binary.BigEndian.Uint32(b[8:])
	if offset > maxTrace || length >= maxTraceLine {
		return e, false
	}
	e.offset, e.length, e.kind = int64(offset), int(length), b[12]
	copy(e.chain[:], b[13:])
	copy(e.digest[:], b[45:])
	e.mtime, e.ctime = int64(binary.BigEndian.Uint64(b[77:])), int64(binary.BigEndian.Uint64(b[85:]))
	return e, e.kind >= indexSession && e.kind <= indexEnd
}

// indexWriter writes the index beside a transcript that is being written. It vouches for the transcript: before each
// line it looks whether the file is still as its own last line left it, and where it is not it writes no more. So
// the last record says how the transcript looks to somebody who may believe all of them.
//
// Nothing here is synced, and the first failure of any kind ends the index: readers then read the whole transcript.
type indexWriter struct {
	file   atomicfile.File
	header []byte
	n      int64 // records written
	chain  [sha256.Size]byte
	stamp  traceStamp // of the transcript after our own last change
}

// newIndexWriter creates the index of an empty transcript; nil where it cannot.
func newIndexWriter(fs atomicfile.FS, d *saferead.Dir, turn int, trace atomicfile.File, base [sha256.Size]byte) *indexWriter {
	stamp, err := statStamp(trace)
	if err != nil || stamp.size != 0 {
		return nil
	}
	f, err := fs.Open(d, indexName(turn), os.O_RDWR|os.O_CREATE|os.O_EXCL)
	if err != nil {
		return nil
	}
	w := &indexWriter{file: f, header: encodeIndexHeader(stamp.ino, base), chain: base, stamp: stamp}
	if _, err := f.WriteAt(w.header, 0); err != nil {
		f.Close()
		return nil
	}
	return w
}

// untouched reports whether nobody else changed the transcript.
func (w *indexWriter) untouched(trace atomicfile.File) bool {
	now, err := statStamp(trace)
	return err == nil && now == w.stamp
}

// own takes the transcript as it is for our own doing; false where that cannot be known.
func (w *indexWriter) own(trace atomicfile.File, size int64) (ok bool) {
	now, err := statStamp(trace)
	w.stamp = now
	return err == nil && now.size == size
}

// add records the line that was just written at offset; whole is the digest's state with it.
func (w *indexWriter) add(trace atomicfile.File, kind byte, offset int64, line []byte, whole hash.Hash) bool {
	if !w.own(trace, offset+int64(len(line))+1) {
		return false
	}
	if kind == indexStep {
		w.chain = chainNext(w.chain, line)
	}
	e := indexEntry{traceRef: traceRef{offset, len(line), w.chain}, kind: kind, mtime: w.stamp.mtime, ctime: w.stamp.ctime}
	whole.Sum(e.digest[:0])
	_, err := w.file.WriteAt(encodeIndexEntry(w.header, w.n, e), indexHeader+w.n*indexRecord)
	w.n++
	return err == nil
}
