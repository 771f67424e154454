package client

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"

	"go.etcd.io/bbolt"

	"holdfast/nip"
)

// maxPages bounds the tasks of one host whose last page is kept; beyond it the
// page that was issued longest ago is forgotten.
const maxPages = 256

// maxPageBody bounds the stored body of a page: the wire's own bound of a body.
const maxPageBody = 128 << 10

// LastPage is the last page of a task that the host published to this device
// and the device has verified, and whether there is one. It says what was when
// it was issued; Known may hold a later revision. RefreshPages and Watch bring
// new ones.
func (d *Device) LastPage(task nip.TaskID) (nip.PublishedPage, bool, error) {
	g, err := d.standing()
	if err != nil {
		return nip.PublishedPage{}, false, err
	}
	return d.store.page(g.Host, task)
}

// keptPage is a page as it stands in the store: its body as the host signed it,
// behind the two numbers that decide between two pages of one task.
type keptPage struct {
	revision, issued int64
	body             []byte
}

// replaces reports whether p takes the place of known. A lower revision never
// does; of one revision the page that was issued last is kept.
func (p keptPage) replaces(known keptPage) bool {
	return p.revision > known.revision || p.revision == known.revision && p.issued > known.issued
}

// pageHeader is the checksum, the revision and the time before a body.
const pageHeader = 4 + 8 + 8

// encode writes the CRC-32C (4 bytes big-endian) of what follows it: revision
// and time of issue (8 bytes each) and the body.
func (p keptPage) encode() []byte {
	b := make([]byte, 4, pageHeader+len(p.body))
	b = binary.BigEndian.AppendUint64(b, uint64(p.revision))
	b = binary.BigEndian.AppendUint64(b, uint64(p.issued))
	b = append(b, p.body...)
	binary.BigEndian.PutUint32(b, crc32.Checksum(b[4:], castagnoli))
	return b
}

// decodeKeptPage is the inverse of encode; the body is not looked into.
func decodeKeptPage(raw []byte) (keptPage, error) {
	if len(raw) < pageHeader || len(raw) > pageHeader+maxPageBody ||
		binary.BigEndian.Uint32(raw) != crc32.Checksum(raw[4:], castagnoli) {
		return keptPage{}, fmt.Errorf("%w: kept page", ErrDamaged)
	}
	return keptPage{revision: int64(binary.BigEndian.Uint64(raw[4:])), issued: int64(binary.BigEndian.Uint64(raw[12:])),
		body: raw[pageHeader:]}, nil
}

// open decodes the body, which must agree with the numbers before it.
func (p keptPage) open() (nip.PublishedPage, error) {
	page, err := nip.ParseTaskPage(p.body)
	if err == nil && (page.IssuedAt != p.issued || page.Page.Scope.Revision != p.revision) {
		err = errors.New("another page than its header says")
	}
	if err != nil {
		return nip.PublishedPage{}, fmt.Errorf("%w: kept page: %w", ErrDamaged, err)
	}
	return page, nil
}

// page returns the kept page of a task.
func (s *store) page(host nip.PubKey, task nip.TaskID) (page nip.PublishedPage, ok bool, err error) {
	err = s.view(func(tx *bbolt.Tx) error {
		b := tx.Bucket(bucketPages)
		if b == nil {
			return nil
		}
		raw := b.Get(append(seenPrefix(host), task...))
		if raw == nil {
			return nil
		}
		// The row is gone with the transaction; a page may lean on its body.
		p, err := decodeKeptPage(bytes.Clone(raw))
		if err != nil {
			return err
		}
		page, err = p.open()
		ok = err == nil
		return err
	})
	return page, ok, err
}

// keepPages judges each page against the kept one of its task in one
// transaction, so that two watching processes never go back. again says of one
// that is the kept page itself, which another process may have met first.
func (s *store) keepPages(host nip.PubKey, pubs []publication) ([]verdict, error) {
	verdicts := make([]verdict, len(pubs))
	err := s.update(func(tx *bbolt.Tx) error {
		b := tx.Bucket(bucketPages)
		for i, p := range pubs {
			v, err := keepPage(b, host, p)
			if err != nil {
				return err
			}
			verdicts[i] = v
		}
		return nil
	})
	return verdicts, err
}

func keepPage(b *bbolt.Bucket, host nip.PubKey, pub publication) (verdict, error) {
	scope := pub.Page.Page.Scope
	p := keptPage{revision: scope.Revision, issued: pub.issued, body: pub.body}
	prefix := seenPrefix(host)
	key := append(prefix[:len(prefix):len(prefix)], scope.Task...)
	raw := b.Get(key)
	if raw != nil {
		known, err := decodeKeptPage(raw)
		switch {
		case err != nil:
			return stale, err
		case bytes.Equal(known.body, p.body):
			return again, nil
		case !p.replaces(known):
			return stale, nil
		}
	}
	if err := b.Put(key, p.encode()); err != nil || raw != nil {
		return newer, err
	}
	return newer, trimOldest(b, prefix, maxPages, func(raw []byte) (int64, error) {
		p, err := decodeKeptPage(raw)
		return p.issued, err
	})
}

// trimOldest forgets the row of the lowest time under prefix if there are more
// than most. It looks into rows only then.
func trimOldest(b *bbolt.Bucket, prefix []byte, most int, at func(raw []byte) (int64, error)) error {
	n := 0
	c := b.Cursor()
	for k, _ := c.Seek(prefix); bytes.HasPrefix(k, prefix); k, _ = c.Next() {
		n++
	}
	if n <= most {
		return nil
	}
	var victim []byte
	var oldest int64
	for k, raw := c.Seek(prefix); bytes.HasPrefix(k, prefix); k, raw = c.Next() {
		t, err := at(raw)
		if err != nil {
			return err
		}
		if victim == nil || t < oldest {
			victim, oldest = bytes.Clone(k), t
		}
	}
	return b.Delete(victim)
}

// eachPage calls fn with each kept page of a host; the body is not looked into
// and only good until fn returns.
func (s *store) eachPage(host nip.PubKey, fn func(task string, p keptPage)) error {
	prefix := seenPrefix(host)
	return s.view(func(tx *bbolt.Tx) error {
		b := tx.Bucket(bucketPages)
		if b == nil {
			return nil
		}
		c := b.Cursor()
		for k, raw := c.Seek(prefix); bytes.HasPrefix(k, prefix); k, raw = c.Next() {
			p, err := decodeKeptPage(raw)
			if err != nil {
				return err
			}
			fn(string(k[len(prefix):]), p)
		}
		return nil
	})
}
