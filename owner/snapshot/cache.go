package snapshot

import (
	"bytes"
	"encoding/binary"
	"hash/crc32"
	"slices"
)

// The file of a cache: magic, version u32, records u32, the cache's own time i64 ns; records in ascending order of
// device and inode: device u64, inode u64, size u64, mtime i64 ns, ctime i64 ns, SHA-256 (32); crc32c of all before.
const (
	cacheMagic   = "HFSNAPCH"
	cacheVersion = 1
	cacheHeader  = 8 + 4 + 4 + 8
	cacheRecord  = 5*8 + 32
	cacheMost    = 400_000
)

// MaxCache bounds the file of a cache, in bytes.
const MaxCache = cacheHeader + cacheMost*cacheRecord + 4

// Slack is how much older than the cache's own time a file must be for its record to count, in ns. The kernel stamps
// a write with a clock that may lag by a tick, at most 10 ms; a file system that keeps whole seconds shows no
// nanoseconds at all, and may round by two of them.
const (
	fineSlack   = 20e6
	coarseSlack = 2e9
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Cache remembers the digests of files. The zero value and nil remember nothing. It is read only, by any goroutine.
type Cache struct {
	at      int64
	records []byte // sorted, cacheRecord bytes each
}

// ParseCache reads what Encode wrote. Anything else, of whatever version or damage, is an empty cache: it costs time.
func ParseCache(b []byte) *Cache {
	c := &Cache{}
	if len(b) < cacheHeader+4 || len(b) > MaxCache || string(b[:8]) != cacheMagic ||
		binary.BigEndian.Uint32(b[8:]) != cacheVersion {
		return c
	}
	body, records := b[:len(b)-4], b[cacheHeader:len(b)-4]
	if int64(binary.BigEndian.Uint32(b[12:]))*cacheRecord != int64(len(records)) ||
		crc32.Checksum(body, castagnoli) != binary.BigEndian.Uint32(b[len(b)-4:]) {
		return c
	}
	for i := cacheRecord; i < len(records); i += cacheRecord {
		if bytes.Compare(records[i-cacheRecord:i-cacheRecord+16], records[i:i+16]) >= 0 {
			return c
		}
	}
	c.at, c.records = int64(binary.BigEndian.Uint64(b[16:])), records
	return c
}

// find returns the digest of the file with this stamp. A file that is not older than the cache itself may have been
// written once more in the same tick of the clock, after it was read and with the same times: it is read again, as
// git reads its racy entries.
func (c *Cache) find(s stamp) (sum [32]byte, ok bool) {
	if c == nil || len(c.records) == 0 {
		return sum, false
	}
	slack := int64(fineSlack)
	if s.ctime%1e9 == 0 {
		slack = coarseSlack
	}
	if s.mtime >= c.at-slack || s.ctime >= c.at-slack {
		return sum, false
	}
	lo, hi := 0, len(c.records)/cacheRecord
	for lo < hi {
		mid := int(uint(lo+hi) >> 1)
		r := c.records[mid*cacheRecord : (mid+1)*cacheRecord]
		dev, ino := binary.BigEndian.Uint64(r), binary.BigEndian.Uint64(r[8:])
		switch {
		case dev < s.dev || dev == s.dev && ino < s.ino:
			lo = mid + 1
		case dev == s.dev && ino == s.ino:
			if int64(binary.BigEndian.Uint64(r[16:])) != s.size || int64(binary.BigEndian.Uint64(r[24:])) != s.mtime ||
				int64(binary.BigEndian.Uint64(r[32:])) != s.ctime {
				return sum, false
			}
			return [32]byte(r[40:]), true
		default:
			hi = mid
		}
	}
	return sum, false
}

// Cache is what the next Take of this tree can do without reading. A tree with faults remembers what it did read.
func (t *Tree) Cache() *Cache {
	files := make([]*Entry, 0, len(t.Entries))
	for i := range t.Entries {
		if e := &t.Entries[i]; e.Kind == File && e.stamp != (stamp{}) && e.Size == e.stamp.size {
			files = append(files, e)
		}
	}
	slices.SortFunc(files, func(a, b *Entry) int {
		switch {
		case a.stamp.dev != b.stamp.dev && a.stamp.dev < b.stamp.dev, a.stamp.dev == b.stamp.dev && a.stamp.ino < b.stamp.ino:
			return -1
		case a.stamp.dev == b.stamp.dev && a.stamp.ino == b.stamp.ino:
			return 0
		}
		return 1
	})
	c := &Cache{at: t.at, records: make([]byte, 0, min(len(files), cacheMost)*cacheRecord)}
	for i, e := range files {
		if i > 0 && e.stamp.dev == files[i-1].stamp.dev && e.stamp.ino == files[i-1].stamp.ino {
			continue // another name of the same file
		}
		if len(c.records) == cacheMost*cacheRecord {
			break
		}
		c.records = binary.BigEndian.AppendUint64(c.records, e.stamp.dev)
		c.records = binary.BigEndian.AppendUint64(c.records, e.stamp.ino)
		c.records = binary.BigEndian.AppendUint64(c.records, uint64(e.stamp.size))
		c.records = binary.BigEndian.AppendUint64(c.records, uint64(e.stamp.mtime))
		c.records = binary.BigEndian.AppendUint64(c.records, uint64(e.stamp.ctime))
		c.records = append(c.records, e.Sum[:]...)
	}
	return c
}

// Encode is the cache as a file.
func (c *Cache) Encode() []byte {
	b := make([]byte, 0, cacheHeader+len(c.records)+4)
	b = append(b, cacheMagic...)
	b = binary.BigEndian.AppendUint32(b, cacheVersion)
	b = binary.BigEndian.AppendUint32(b, uint32(len(c.records)/cacheRecord))
	b = binary.BigEndian.AppendUint64(b, uint64(c.at))
	b = append(b, c.records...)
	return binary.BigEndian.AppendUint32(b, crc32.Checksum(b, castagnoli))
}
