package owner

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
)

// A task's log on disk, all integers big endian:
//
//	header  "HFTASKLG", u32 version, u8 n, n bytes of task ID, u32 crc32c of all before
//	frame   u32 n, u8 type, 32 bytes SHA-256 of the frame before (of the header for the first),
//	        u32 crc32c of all before, n bytes of payload, u32 crc32c of all before
//
// The head has a checksum of its own, because the length decides what counts
// as torn: a damaged one must never make sound records behind it look unfinished.
//
// A frame type that this version does not know, in an otherwise sound frame,
// is ErrNewer: later versions add types without a new header version.
const (
	logMagic    = "HFTASKLG"
	logVersion  = 1
	frameHead   = 4 + 1 + sha256.Size + 4
	frameTail   = 4
	maxFrame    = 256 << 10 // payload; a result's 32 KiB reply may take six times that in JSON
	frameCmd    = 1
	frameEvent  = 2
	frameLatest = frameEvent
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// errCutShort is the end of what was written whole: a frame cut short, or the run
// of zeros that a file system leaves where the size reached the disk before the data.
var errCutShort = errors.New("torn tail")

type frame struct {
	kind    byte
	payload []byte
	hash    [sha256.Size]byte // of the whole frame, what the next one names
	size    int64
}

func appendHeader(b []byte, id TaskID) []byte {
	start := len(b)
	b = append(b, logMagic...)
	b = binary.BigEndian.AppendUint32(b, logVersion)
	b = append(b, byte(len(id)))
	b = append(b, id...)
	return binary.BigEndian.AppendUint32(b, crc32.Checksum(b[start:], castagnoli))
}

// readHeader returns the task's ID, the header's hash and its length.
func readHeader(r io.Reader) (id TaskID, hash [sha256.Size]byte, size int64, err error) {
	b := make([]byte, len(logMagic)+4+1, len(logMagic)+4+1+maxID+4)
	if _, err := io.ReadFull(r, b); err != nil {
		return "", hash, 0, short(err, "log header")
	}
	if string(b[:len(logMagic)]) != logMagic {
		return "", hash, 0, corrupt("not a task log")
	}
	// The magic word is checked first, the checksum before anything is
	// believed but the version: a newer header may have another shape.
	if v := binary.BigEndian.Uint32(b[len(logMagic):]); v > logVersion {
		return "", hash, 0, fmt.Errorf("log version %d: %w", v, ErrNewer)
	}
	head := len(b)
	n := int(b[head-1])
	if n > maxID {
		return "", hash, 0, corrupt("log header names no task")
	}
	b = b[:head+n+4]
	if _, err := io.ReadFull(r, b[head:]); err != nil {
		return "", hash, 0, short(err, "log header")
	}
	if crc32.Checksum(b[:head+n], castagnoli) != binary.BigEndian.Uint32(b[head+n:]) {
		return "", hash, 0, corrupt("log header checksum")
	}
	if v := binary.BigEndian.Uint32(b[len(logMagic):]); v != logVersion {
		return "", hash, 0, corrupt("log version %d", v)
	}
	id = TaskID(b[head : head+n])
	if !identifier(string(id), "") {
		return "", hash, 0, corrupt("log header names no task")
	}
	return id, sha256.Sum256(b), int64(len(b)), nil
}

func short(err error, what string) error {
	if err == io.EOF || err == io.ErrUnexpectedEOF {
		return corrupt("%s is cut short", what)
	}
	return err
}

func appendFrame(b []byte, kind byte, previous [sha256.Size]byte, payload []byte) []byte {
	start := len(b)
	b = binary.BigEndian.AppendUint32(b, uint32(len(payload)))
	b = append(b, kind)
	b = append(b, previous[:]...)
	b = binary.BigEndian.AppendUint32(b, crc32.Checksum(b[start:], castagnoli))
	b = append(b, payload...)
	return binary.BigEndian.AppendUint32(b, crc32.Checksum(b[start:], castagnoli))
}

// readFrame reads the frame that follows previous; left is how many bytes the
// file holds from here. io.EOF is the regular end, errCutShort an unfinished one,
// ErrCorrupt a frame that is whole and wrong.
func readFrame(r io.Reader, left int64, previous [sha256.Size]byte) (frame, error) {
	if left == 0 {
		return frame{}, io.EOF
	}
	if left < frameHead {
		return frame{}, errCutShort
	}
	var head [frameHead]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return frame{}, torn(err)
	}
	if head == [frameHead]byte{} {
		return frame{}, zeros(r, left-frameHead)
	}
	if crc32.Checksum(head[:frameHead-4], castagnoli) != binary.BigEndian.Uint32(head[frameHead-4:]) {
		return frame{}, corrupt("frame head checksum")
	}
	n := int64(binary.BigEndian.Uint32(head[:4]))
	if n == 0 || n > maxFrame {
		return frame{}, corrupt("frame of %d bytes", n)
	}
	if [sha256.Size]byte(head[5:]) != previous {
		return frame{}, corrupt("frame does not follow the one before it")
	}
	if left < frameHead+n+frameTail {
		return frame{}, errCutShort
	}
	b := make([]byte, frameHead+n+frameTail)
	copy(b, head[:])
	if _, err := io.ReadFull(r, b[frameHead:]); err != nil {
		return frame{}, torn(err)
	}
	end := len(b) - frameTail
	if crc32.Checksum(b[:end], castagnoli) != binary.BigEndian.Uint32(b[end:]) {
		return frame{}, corrupt("frame checksum")
	}
	kind := head[4]
	if kind == 0 {
		return frame{}, corrupt("frame without a type")
	}
	if kind > frameLatest {
		return frame{}, fmt.Errorf("frame type %d: %w", kind, ErrNewer)
	}
	return frame{kind: kind, payload: b[frameHead:end], hash: sha256.Sum256(b), size: int64(len(b))}, nil
}

// torn turns a file that became shorter while it was read into a torn tail: a
// writer cuts one off before it appends.
func torn(err error) error {
	if err == io.EOF || err == io.ErrUnexpectedEOF {
		return errCutShort
	}
	return err
}

// zeros reports errCutShort where the rest of the file is zero.
func zeros(r io.Reader, left int64) error {
	if left > maxFrame {
		return corrupt("a long run of zeros")
	}
	b, err := io.ReadAll(io.LimitReader(r, left))
	if err != nil {
		return err
	}
	if len(bytes.Trim(b, "\x00")) != 0 {
		return corrupt("frame without a length")
	}
	return errCutShort
}
