package commit

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"fmt"

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
