// Package snapshot observes a folder: what is in it, as one digest that two
// equal trees share and two different ones do not.
//
// Its nouns are the Tree, every entry below one folder in the order of the
// bytes of their paths, and the Cache, which remembers the digests of files
// that have not changed since. Take makes a Tree; package owner calls it
// before a turn is dispatched (the source, which is a pin) and after it has
// ended (the candidate). An Entry is a folder, a file, a link or something
// special; what counts is its path, its kind, whether a file is executable,
// its bytes, and where a link leads. Times, inodes, owners and the other bits
// of a mode do not count: a checkout of the same content has the same digest.
//
// The tree is hostile, and a program that is still alive may change it. The
// root is opened without following a link, everything else by its path below
// that descriptor, no link followed at any component, and nothing but files
// and folders is opened at all. What the parent's listing said of a name must
// hold when the name is opened, and again after the last byte was read.
//
// A Tree is complete or it is not. Whatever cannot be read, changes while it
// is read, or is beyond a bound is a Fault, and a Tree with a fault has no
// digest: there is no half snapshot. It is no picture of one instant, either;
// what changes behind the walk is seen by the next one.
//
// Any goroutine may call; several workers do one Take. Nothing is written: the
// caller keeps the Cache, which is a hint and may be lost at any time.
//
// Not here: what changed between two trees means, and git.
package snapshot

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"hash"
)

// Kind is what an entry is. The numbers are part of the digest.
type Kind uint8

// The kinds.
const (
	Directory Kind = 1
	File      Kind = 2
	Link      Kind = 3
	Special   Kind = 4 // a pipe, a socket or a device
)

// Entry is one name below the root.
type Entry struct {
	Path   string // relative, separated by slashes, the bytes as they are
	Kind   Kind
	Exec   bool     // of a file: its owner may execute it, as git asks
	Size   int64    // of a file, bytes
	Sum    [32]byte // of a file, the SHA-256 of its bytes
	Target string   // where a link leads; of a special file "fifo", "socket" or "device"
	Names  uint64   // hard links of a file; not part of the digest
	stamp  stamp
}

// Fault says why a Tree is not complete. Why names no path.
type Fault struct {
	Path string
	Why  string
}

// Tree is what Take saw.
type Tree struct {
	Entries []Entry // in the order of the bytes of Path
	Faults  []Fault // at most Limits.Faults, by path
	Reread  int     // files whose bytes were read, because the cache did not answer
	digest  [32]byte
	at      int64 // ns: before the first entry was looked at
}

// Complete reports whether everything was seen.
func (t *Tree) Complete() bool { return len(t.Faults) == 0 }

// Digest is the tree's name, 64 lowercase hex characters; "" of a tree that is not complete.
func (t *Tree) Digest() string {
	if !t.Complete() {
		return ""
	}
	return hex.EncodeToString(t.digest[:])
}

// framing begins every digest. Another encoding needs another word.
const framing = "holdfast.snapshot.v1\x00"

// sum hashes the entries. Every part has a length or a fixed size, so that no two trees have the same bytes:
//
//	framing
//	u32 exclusions, each u32 n, n bytes
//	each entry: u8 kind; u32 n, n bytes of path; u8 executable; of a file u64 size and 32 bytes of SHA-256;
//	of a link or a special file u32 n, n bytes of target
//	u8 0; u64 entries
func sum(entries []Entry, exclude []string) [32]byte {
	d := digester{h: sha256.New(), buf: make([]byte, 0, 64<<10)}
	d.buf = append(d.buf, framing...)
	d.buf = binary.BigEndian.AppendUint32(d.buf, uint32(len(exclude)))
	for _, x := range exclude {
		d.text(x)
	}
	for i := range entries {
		e := &entries[i]
		d.buf = append(d.buf, byte(e.Kind))
		d.text(e.Path)
		exec := byte(0)
		if e.Exec {
			exec = 1
		}
		d.buf = append(d.buf, exec)
		switch e.Kind {
		case File:
			d.buf = binary.BigEndian.AppendUint64(d.buf, uint64(e.Size))
			d.buf = append(d.buf, e.Sum[:]...)
		case Link, Special:
			d.text(e.Target)
		}
		d.flush(32 << 10)
	}
	d.buf = append(d.buf, 0)
	d.buf = binary.BigEndian.AppendUint64(d.buf, uint64(len(entries)))
	d.flush(0)
	return [32]byte(d.h.Sum(nil))
}

type digester struct {
	h   hash.Hash
	buf []byte
}

func (d *digester) text(s string) {
	d.buf = binary.BigEndian.AppendUint32(d.buf, uint32(len(s)))
	d.buf = append(d.buf, s...)
}

// flush hashes what has gathered once it is more than n bytes.
func (d *digester) flush(n int) {
	if len(d.buf) > n {
		d.h.Write(d.buf)
		d.buf = d.buf[:0]
	}
}
