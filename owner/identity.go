package owner

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"os"
	"sync"

	"holdfast/internal/atomicfile"
	"holdfast/internal/saferead"
)

// identities/XX.log, all integers big endian:
//
//	header  "HFIDENTS", u32 version, u32 crc32c of all before
//	record  u16 n, u16 complement of n, payload of n bytes, u32 crc32c of all before
//	payload u8 a, a bytes of command ID, u8 b, b bytes of task ID, 32 bytes SHA-256 of the command
//
// XX is the first byte of the SHA-256 of the command ID. A record reserves a
// command ID for a task before the command enters the task's log; the log
// decides what the bytes were. So a record without its command, which a crash
// between the two leaves, binds nothing but the task. A missing or empty file
// is a shard that was never used; Check finds one that was.
const (
	identMagic   = "HFIDENTS"
	identVersion = 1
	identHead    = len(identMagic) + 4 + 4
	maxIdent     = 1 + maxID + 1 + maxID + sha256.Size
)

type identity struct {
	command string
	task    TaskID
	digest  [sha256.Size]byte
}

// shard is what this process knows of one file of identities.
type shard struct {
	mu    sync.Mutex     // guards all below
	end   int64          // offset behind the last whole record
	stamp saferead.Stamp // of the file when it was read to its end
	know  map[string]identity
}

func shardOf(command string) (index byte, name string) {
	h := sha256.Sum256([]byte(command))
	return h[0], fmt.Sprintf("%02x.log", h[0])
}

func identHeader() []byte {
	b := binary.BigEndian.AppendUint32([]byte(identMagic), identVersion)
	return binary.BigEndian.AppendUint32(b, crc32.Checksum(b, castagnoli))
}

func checkIdentHeader(b []byte) error {
	if string(b[:len(identMagic)]) != identMagic {
		return corrupt("not an identity shard")
	}
	if v := binary.BigEndian.Uint32(b[len(identMagic):]); v > identVersion {
		return fmt.Errorf("identity shard version %d: %w", v, ErrNewer)
	}
	if string(b[:identHead]) != string(identHeader()) {
		return corrupt("identity shard header")
	}
	return nil
}

func (i identity) encode() []byte {
	p := append([]byte{byte(len(i.command))}, i.command...)
	p = append(p, byte(len(i.task)))
	p = append(p, i.task...)
	p = append(p, i.digest[:]...)
	b := binary.BigEndian.AppendUint16(nil, uint16(len(p)))
	b = binary.BigEndian.AppendUint16(b, ^uint16(len(p)))
	b = append(b, p...)
	return binary.BigEndian.AppendUint32(b, crc32.Checksum(b, castagnoli))
}

// decodeIdentity reads the record at the start of b; errCutShort where b ends in it.
func decodeIdentity(b []byte) (identity, int, error) {
	const head = 4
	if len(b) < head || len(b) <= head+maxIdent+4 && allZero(b) {
		return identity{}, 0, errCutShort
	}
	n := int(binary.BigEndian.Uint16(b))
	if uint16(n) != ^binary.BigEndian.Uint16(b[2:]) || n == 0 || n > maxIdent {
		return identity{}, 0, corrupt("identity of %d bytes", n)
	}
	if len(b) < head+n+4 {
		return identity{}, 0, errCutShort
	}
	if crc32.Checksum(b[:head+n], castagnoli) != binary.BigEndian.Uint32(b[head+n:]) {
		return identity{}, 0, corrupt("identity checksum")
	}
	p := b[head : head+n]
	a := int(p[0])
	if len(p) < 1+a+1 || len(p) != 1+a+1+int(p[1+a])+sha256.Size {
		return identity{}, 0, corrupt("identity lengths")
	}
	i := identity{command: string(p[1 : 1+a]), task: TaskID(p[2+a : len(p)-sha256.Size])}
	copy(i.digest[:], p[len(p)-sha256.Size:])
	if !identifier(i.command, "") || !identifier(string(i.task), "") {
		return identity{}, 0, corrupt("identity names")
	}
	return i, head + n + 4, nil
}

// decodeShard calls each for the records of b, the bytes of a shard from
// offset from, and returns the offset behind the last whole one.
func decodeShard(b []byte, from int64, each func(identity)) (int64, error) {
	end := from
	if from == 0 {
		if len(b) < identHead {
			return 0, nil // never used, or its header is torn
		}
		if err := checkIdentHeader(b); err != nil {
			if len(b) <= identHead+maxIdent && allZero(b) {
				return 0, nil
			}
			return 0, err
		}
		b = b[identHead:]
		end = int64(identHead)
	}
	for len(b) > 0 {
		i, n, err := decodeIdentity(b)
		if err == errCutShort {
			return end, nil
		}
		if err != nil {
			return end, fmt.Errorf("at byte %d: %w", end, err)
		}
		each(i)
		b = b[n:]
		end += int64(n)
	}
	return end, nil
}

func allZero(b []byte) bool {
	for _, c := range b {
		if c != 0 {
			return false
		}
	}
	return true
}

// load reads the new tail of the shard. The caller holds sh.mu.
func (sh *shard) load(f atomicfile.File, name string) error {
	stamp, err := stampOfFile(f)
	if err != nil {
		return err
	}
	if stamp.Size < sh.end {
		return corrupt("identities/%s lost records", name)
	}
	b := make([]byte, stamp.Size-sh.end)
	n, err := f.ReadAt(b, sh.end)
	if err != nil && n < len(b) {
		b = b[:n] // a writer cut a torn tail off meanwhile
	}
	end, err := decodeShard(b, sh.end, func(i identity) { sh.know[i.command] = i })
	if err != nil {
		return fmt.Errorf("identities/%s: %w", name, err)
	}
	sh.end, sh.stamp = end, stamp
	return nil
}

// peek looks a command up in what this process has read, where the shard is
// still in the very state that it was read in to its end.
func (sh *shard) peek(stamp saferead.Stamp, command string) (i identity, have, current bool) {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if sh.stamp != stamp || sh.end != stamp.Size {
		return identity{}, false, false
	}
	i, have = sh.know[command]
	return i, have, true
}

// identity looks the command up; it takes no lock of the disk, unless what it
// read looks damaged: a writer that cuts a torn tail off and appends may have
// been seen half way.
func (s *Store) identity(ctx context.Context, command string) (identity, bool, error) {
	index, name := shardOf(command)
	sh := &s.shards[index]
	if stamp, err := s.idents.Peek("", name); err == nil {
		if i, have, current := sh.peek(stamp, command); current {
			return i, have, nil
		}
	}
	f, err := s.fs.Open(s.idents, name, os.O_RDONLY)
	if errors.Is(err, fs.ErrNotExist) {
		return identity{}, false, nil
	}
	if err != nil {
		return identity{}, false, classify(err)
	}
	defer f.Close()
	err = sh.loadLocked(f, name)
	if errors.Is(err, ErrCorrupt) {
		lock, lerr := s.flock(ctx, s.idents, name, exclusive)
		if lerr != nil {
			return identity{}, false, lerr
		}
		err = sh.loadLocked(f, name)
		lock.Close()
	}
	if err != nil {
		return identity{}, false, err
	}
	sh.mu.Lock()
	defer sh.mu.Unlock()
	i, ok := sh.know[command]
	return i, ok, nil
}

func (sh *shard) loadLocked(f atomicfile.File, name string) error {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	return sh.load(f, name)
}

// reserve makes the command's identity the task's own, durably; *Error
// command_conflict where another task has it. The caller holds the task's lock.
func (s *Store) reserve(ctx context.Context, want identity) error {
	index, name := shardOf(want.command)
	f, err := s.fs.Open(s.idents, name, os.O_RDWR|os.O_CREATE)
	if err != nil {
		return classify(err)
	}
	defer f.Close()
	lock, err := s.flock(ctx, s.idents, name, exclusive)
	if err != nil {
		return err
	}
	defer lock.Close()
	sh := &s.shards[index]
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if err := sh.load(f, name); err != nil {
		return err
	}
	have, ok := sh.know[want.command]
	if ok && have.task != want.task {
		return refuse("command_conflict", "command %s belongs to another task", want.command)
	}
	if ok && have == want {
		// Left by a crash: seen is not durable, so it is synced before it is relied on.
		return s.unknown(f.Sync())
	}
	b := want.encode()
	if sh.end == 0 {
		// The file's name first: a record in a file that a power cut takes away reserves nothing.
		if err := s.fs.SyncDir(s.idents); err != nil {
			return fmt.Errorf("reserve a command: %w", err)
		}
		b = append(identHeader(), b...)
	}
	// The reservation's commit point. A crash before it leaves nothing or a
	// torn record, after it a reservation that only this task can use.
	if err := s.appendDurable(f, sh.end, b); err != nil {
		return fmt.Errorf("reserve a command: %w", err)
	}
	sh.know[want.command] = want
	sh.end += int64(len(b))
	sh.stamp, err = stampOfFile(f)
	return err
}
