//go:build linux || darwin

package sandbox

import (
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"syscall"
)

// A frame is one message between supervisor and init: a kind byte, the payload's length
// as four big-endian bytes, the payload.
type frameKind byte

const (
	framePlan    frameKind = 'S' // supervisor to init: a plan
	frameHistory frameKind = 'H' // supervisor to init: the history file
	frameIdle    frameKind = 'I' // init to supervisor: it waits for its plan; empty
	frameReady   frameKind = 'V' // init to supervisor: a posture
	frameRefuse  frameKind = 'E' // before ready: a failure
	frameFault   frameKind = 'X' // after release: why the program could not be executed
	frameReply   frameKind = 'P' // init to supervisor: the reply file
	frameDone    frameKind = 'D' // init to supervisor: an ending; the last frame
)

// frameBounds is the largest payload of each kind. A kind that is not here is
// refused, before anything is allocated.
var frameBounds = map[frameKind]uint32{
	framePlan:    8 << 20, // arguments and environment, in base64
	frameHistory: maxHistory,
	frameIdle:    0,
	frameReady:   256 << 10,
	frameRefuse:  16 << 10,
	frameFault:   16 << 10,
	frameReply:   maxReply,
	frameDone:    16 << 10,
}

func writeFrame(w io.Writer, kind frameKind, payload []byte) error {
	if uint64(len(payload)) > uint64(frameBounds[kind]) {
		return fmt.Errorf("frame %q of %d bytes is too large", kind, len(payload))
	}
	b := make([]byte, 5, 5+len(payload))
	b[0] = byte(kind)
	binary.BigEndian.PutUint32(b[1:], uint32(len(payload)))
	_, err := w.Write(append(b, payload...))
	return err
}

func writeJSON(w io.Writer, kind frameKind, value any) error {
	b, err := json.Marshal(value)
	if err != nil {
		return err
	}
	return writeFrame(w, kind, b)
}

// readFrame returns io.EOF only between two frames.
func readFrame(r io.Reader) (frameKind, []byte, error) {
	var head [5]byte
	if _, err := io.ReadFull(r, head[:1]); err != nil {
		return 0, nil, err
	}
	if _, err := io.ReadFull(r, head[1:]); err != nil {
		return 0, nil, cutShort(err)
	}
	kind, size := frameKind(head[0]), binary.BigEndian.Uint32(head[1:])
	bound, known := frameBounds[kind]
	if !known || size > bound {
		return 0, nil, fmt.Errorf("frame %q of %d bytes refused", kind, size)
	}
	payload := make([]byte, size)
	if _, err := io.ReadFull(r, payload); err != nil {
		return 0, nil, cutShort(err)
	}
	return kind, payload, nil
}

func cutShort(err error) error {
	if err == io.EOF {
		return io.ErrUnexpectedEOF
	}
	return err
}

// exact is a string of any bytes. JSON strings hold only valid UTF-8, and would
// silently change what is neither.
type exact string

// MarshalText encodes as base64.
func (e exact) MarshalText() ([]byte, error) {
	return base64.StdEncoding.AppendEncode(nil, []byte(e)), nil
}

// UnmarshalText decodes base64.
func (e *exact) UnmarshalText(text []byte) error {
	b, err := base64.StdEncoding.AppendDecode(nil, text)
	*e = exact(b)
	return err
}

func exactly(list []string) []exact {
	out := make([]exact, len(list))
	for i, s := range list {
		out[i] = exact(s)
	}
	return out
}

func plainly(list []exact) []string {
	out := make([]string, len(list))
	for i, e := range list {
		out[i] = string(e)
	}
	return out
}

// fileID pins a file against replacement between two looks at its path.
type fileID struct {
	Dev uint64 `json:"dev"`
	Ino uint64 `json:"ino"`
}

// mustBe checks that what path was found to be is the file that the caller has
// open; nil is any.
func mustBe(file *os.File, found fileID, path string) error {
	if file == nil {
		return nil
	}
	info, err := file.Stat()
	if err != nil {
		return fmt.Errorf("look at %s: %w", path, err)
	}
	if st, ok := info.Sys().(*syscall.Stat_t); !ok || (fileID{Dev: uint64(st.Dev), Ino: st.Ino}) != found {
		return refuse("%q was replaced since it was admitted", path)
	}
	return nil
}

// failure is why a stage gave up before the program ran.
type failure struct {
	Spec    bool   `json:"spec"`    // the Spec is at fault
	Enforce bool   `json:"enforce"` // the machine is at fault
	Text    string `json:"text"`
}

func (f failure) err() error {
	switch {
	case f.Spec:
		return refuse("%s", f.Text)
	case f.Enforce:
		return notEnforceable(f.Text, nil)
	}
	return fmt.Errorf("start sandbox: %s", f.Text)
}

// failureOf keeps the class of an error across a pipe.
func failureOf(err error) failure {
	text := strings.TrimPrefix(err.Error(), ErrNotEnforceable.Error()+": ")
	text = strings.TrimPrefix(text, ErrSpec.Error()+": ")
	if len(text) > 4096 {
		text = text[:4096]
	}
	return failure{Spec: errors.Is(err, ErrSpec), Enforce: errors.Is(err, ErrNotEnforceable), Text: text}
}
