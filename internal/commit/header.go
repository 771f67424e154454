package commit

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"hash/fnv"
	"io"

	"go.etcd.io/bbolt"
)

// The header bucket: magic = kind, version = 4 bytes big-endian, checksum =
// SHA-256 over both with their lengths. It says whose file this is before
// anything in it is believed.
var (
	headerBucket = []byte("header")
	keyMagic     = []byte("magic")
	keyVersion   = []byte("version")
	keyChecksum  = []byte("checksum")
)

func writeHeader(tx *bbolt.Tx, o Options) error {
	b, err := tx.CreateBucket(headerBucket)
	if err != nil {
		return err
	}
	version := binary.BigEndian.AppendUint32(nil, o.Version)
	if err := b.Put(keyMagic, []byte(o.Kind)); err != nil {
		return err
	}
	if err := b.Put(keyVersion, version); err != nil {
		return err
	}
	return b.Put(keyChecksum, headerSum([]byte(o.Kind), version))
}

func headerSum(magic, version []byte) []byte {
	h := sha256.New()
	fmt.Fprintf(h, "%d:%s%d:%s", len(magic), magic, len(version), version)
	return h.Sum(nil)
}

func checkHeader(tx *bbolt.Tx, o Options) error {
	b := tx.Bucket(headerBucket)
	if b == nil {
		return fmt.Errorf("%w: it has no header", ErrCorrupt)
	}
	magic, version := b.Get(keyMagic), b.Get(keyVersion)
	if !bytes.Equal(b.Get(keyChecksum), headerSum(magic, version)) || len(version) != 4 {
		return fmt.Errorf("%w: its header does not match its checksum", ErrCorrupt)
	}
	if string(magic) != o.Kind {
		return fmt.Errorf("%w: it is not a %s store", ErrCorrupt, o.Kind)
	}
	if v := binary.BigEndian.Uint32(version); v > o.Version {
		return fmt.Errorf("%w: format %d, this one reads up to %d", ErrNewer, v, o.Version)
	}
	return nil
}

// walk visits every key of every bucket, so that a damaged page is met here.
func walk(tx *bbolt.Tx) error {
	var visit func(b *bbolt.Bucket) error
	visit = func(b *bbolt.Bucket) error {
		return b.ForEach(func(k, v []byte) error {
			if v != nil {
				return nil
			}
			nested := b.Bucket(k)
			if nested == nil {
				return fmt.Errorf("%w: a bucket cannot be read", ErrCorrupt)
			}
			return visit(nested)
		})
	}
	return tx.ForEach(func(_ []byte, b *bbolt.Bucket) error { return visit(b) })
}

// Layout of a bbolt meta page after its 16-byte page header, in the machine's
// byte order: magic, version, page size, flags (4 bytes each), root bucket
// (16), free list (8), page count (8), transaction (8), checksum (8).
const (
	metaOffset = 16
	metaSize   = 64
	metaMagic  = 0xED0CDAED
)

// checkSize refuses a file that is shorter than its newest meta page says.
// bbolt maps the file, and touching a page that is not there kills the process
// instead of returning an error.
func checkSize(r io.ReaderAt, size int64) error {
	var pages, pageSize int64
	var newest uint64
	consider := func(at int64) bool {
		var buf [metaSize]byte
		if _, err := r.ReadAt(buf[:], at+metaOffset); err != nil {
			return false
		}
		n := binary.NativeEndian
		sum := fnv.New64a()
		sum.Write(buf[:metaSize-8])
		if n.Uint32(buf[0:]) != metaMagic || n.Uint64(buf[56:]) != sum.Sum64() {
			return false
		}
		if txid := n.Uint64(buf[48:]); txid >= newest {
			newest, pages, pageSize = txid, int64(n.Uint64(buf[40:])), int64(n.Uint32(buf[8:]))
		}
		return true
	}
	if consider(0) {
		consider(pageSize)
	} else {
		// The first meta page is torn: the second stands one page further,
		// and the page's size is what it says about itself.
		for at := int64(1024); at <= 1<<24; at *= 2 {
			if consider(at) {
				break
			}
		}
	}
	if pages == 0 {
		return fmt.Errorf("%w: it has no valid meta page", ErrCorrupt)
	}
	if pageSize < 1024 || pageSize > 1<<24 || pages > size/pageSize {
		return fmt.Errorf("%w: it is cut short", ErrCorrupt)
	}
	return nil
}
