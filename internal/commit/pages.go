package commit

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"hash/fnv"
	"io"
)

// bbolt maps its file and trusts it: a damaged page makes it touch memory that
// is not there, in a goroutine of its own, and the process dies without an
// answer. So the pages are read and bounded here before bbolt walks them.
//
// Layout, in the machine's byte order. Page: id (8), flags (2), count (2),
// overflow (4), then elements of 16 bytes and what they point to. Meta, after
// the page's header: magic, version, page size, flags (4 each), root bucket
// (root page 8, sequence 8), free list (8), page count (8), transaction (8),
// checksum (8). Branch element: position, key size (4 each), page (8). Leaf
// element: flags, position, key size, value size (4 each). Positions count from
// their element.
const (
	pageHeader = 16
	element    = 16
	metaSize   = 64
	metaMagic  = 0xED0CDAED

	flagBranch = 0x01
	flagLeaf   = 0x02
	leafBucket = 0x01

	// depthLimit is far above what a tree, or buckets within buckets, reach.
	depthLimit = 64
)

// meta is what the newest valid meta page says.
type meta struct {
	pageSize int64
	pages    uint64 // the file's pages; every page number is below
	root     uint64
	txid     uint64
}

// readMeta finds the newest valid meta page and refuses a file that is shorter
// than it says.
func readMeta(r io.ReaderAt, size int64) (meta, error) {
	var m meta
	consider := func(at int64) bool {
		var buf [metaSize]byte
		if _, err := r.ReadAt(buf[:], at+pageHeader); err != nil {
			return false
		}
		n := binary.NativeEndian
		sum := fnv.New64a()
		sum.Write(buf[:metaSize-8])
		if n.Uint32(buf[0:]) != metaMagic || n.Uint64(buf[56:]) != sum.Sum64() {
			return false
		}
		if txid := n.Uint64(buf[48:]); txid >= m.txid {
			m = meta{
				pageSize: int64(n.Uint32(buf[8:])), pages: n.Uint64(buf[40:]),
				root: n.Uint64(buf[16:]), txid: txid,
			}
		}
		return true
	}
	if consider(0) {
		consider(m.pageSize)
	} else {
		// The first meta page is torn: the second stands one page further,
		// and the page's size is what it says about itself.
		for at := int64(1024); at <= 1<<24; at *= 2 {
			if consider(at) {
				break
			}
		}
	}
	if m.pages == 0 {
		return m, fmt.Errorf("%w: it has no valid meta page", ErrCorrupt)
	}
	if m.pageSize < 1024 || m.pageSize > 1<<24 || m.pages > uint64(size/m.pageSize) {
		return m, fmt.Errorf("%w: it is cut short", ErrCorrupt)
	}
	return m, nil
}

// CheckPages reads every page in use of a bbolt file that somebody else opens,
// of size bytes, once; ErrCorrupt where bbolt would meet memory that is not
// there. Nobody may write the file meanwhile.
func CheckPages(r io.ReaderAt, size int64) error { return checkPages(r, size) }

// checkPages reads every page that is in use once. The caller holds the file's
// lock.
func checkPages(r io.ReaderAt, size int64) error {
	m, err := readMeta(r, size)
	if err != nil {
		return err
	}
	w := walker{r: r, meta: m, used: make([]bool, m.pages)}
	return w.page(m.root, 0, span{})
}

// span is where the keys of a page must lie; nil is no bound.
type span struct{ from, below []byte }

// holds says whether key lies in s and behind last, its neighbour.
func (s span) holds(key, last []byte) bool {
	return (s.from == nil || bytes.Compare(key, s.from) >= 0) &&
		(s.below == nil || bytes.Compare(key, s.below) < 0) &&
		(last == nil || bytes.Compare(key, last) > 0)
}

type walker struct {
	r    io.ReaderAt
	meta meta
	used []bool
}

func damagedPage(id uint64, what string) error {
	return fmt.Errorf("%w: page %d %s", ErrCorrupt, id, what)
}

// page checks one page with its overflow, and everything below it.
func (w *walker) page(id uint64, depth int, keys span) error {
	if id < 2 || id >= w.meta.pages {
		return damagedPage(id, "does not exist")
	}
	if depth > depthLimit {
		return damagedPage(id, "lies too deep")
	}
	var head [pageHeader]byte
	at := int64(id) * w.meta.pageSize
	if _, err := w.r.ReadAt(head[:], at); err != nil {
		return err
	}
	n := binary.NativeEndian
	pages := uint64(n.Uint32(head[12:])) + 1
	if n.Uint64(head[0:]) != id || id+pages > w.meta.pages {
		return damagedPage(id, "has a damaged header")
	}
	for i := id; i < id+pages; i++ {
		if w.used[i] {
			return damagedPage(i, "is used twice")
		}
		w.used[i] = true
	}
	b := make([]byte, int64(pages)*w.meta.pageSize)
	if _, err := w.r.ReadAt(b, at); err != nil {
		return err
	}
	switch n.Uint16(b[8:]) {
	case flagBranch:
		return w.branch(id, b, depth, keys)
	case flagLeaf:
		return w.leaf(id, b, depth, keys)
	}
	return damagedPage(id, "is of no known kind")
}

func (w *walker) branch(id uint64, b []byte, depth int, keys span) error {
	n := binary.NativeEndian
	count := int(n.Uint16(b[10:]))
	if count == 0 || pageHeader+count*element > len(b) {
		return damagedPage(id, "has a damaged header")
	}
	children := make([]span, count)
	var last []byte
	for i := range count {
		e := pageHeader + i*element
		key, ok := slice(b, e, n.Uint32(b[e:]), n.Uint32(b[e+4:]))
		if !ok || !keys.holds(key, last) {
			return damagedPage(id, "has damaged keys")
		}
		last = key
		children[i] = span{from: key, below: keys.below}
		if i > 0 {
			children[i-1].below = key
		}
	}
	for i, child := range children {
		if err := w.page(n.Uint64(b[pageHeader+i*element+8:]), depth+1, child); err != nil {
			return err
		}
	}
	return nil
}

// leaf checks a leaf page; an inline bucket's value holds one too.
func (w *walker) leaf(id uint64, b []byte, depth int, keys span) error {
	n := binary.NativeEndian
	count := int(n.Uint16(b[10:]))
	if pageHeader+count*element > len(b) {
		return damagedPage(id, "has a damaged header")
	}
	var last []byte
	for i := range count {
		e := pageHeader + i*element
		pos, keySize, valueSize := n.Uint32(b[e+4:]), n.Uint32(b[e+8:]), n.Uint32(b[e+12:])
		key, ok := slice(b, e, pos, keySize)
		value, ok2 := slice(b, e, pos+keySize, valueSize)
		if !ok || !ok2 || pos+keySize < pos || !keys.holds(key, last) {
			return damagedPage(id, "has damaged keys")
		}
		last = key
		switch n.Uint32(b[e:]) {
		case 0:
		case leafBucket:
			if err := w.bucket(id, value, depth+1); err != nil {
				return err
			}
		default:
			return damagedPage(id, "has a value of no known kind")
		}
	}
	return nil
}

// bucket checks a bucket's value: its root page, or 0 and a small leaf.
func (w *walker) bucket(id uint64, value []byte, depth int) error {
	if len(value) < 16 || depth > depthLimit {
		return damagedPage(id, "has a damaged bucket")
	}
	if root := binary.NativeEndian.Uint64(value); root != 0 {
		return w.page(root, depth, span{})
	}
	inline := value[16:]
	if len(inline) < pageHeader || binary.NativeEndian.Uint16(inline[8:]) != flagLeaf {
		return damagedPage(id, "has a damaged bucket")
	}
	return w.leaf(id, inline, depth, span{})
}

// slice is size bytes at pos from the element at e, inside b and behind the
// element itself.
func slice(b []byte, e int, pos, size uint32) ([]byte, bool) {
	from := uint64(e) + uint64(pos)
	if pos < element || from+uint64(size) > uint64(len(b)) {
		return nil, false
	}
	return b[from : from+uint64(size)], true
}
