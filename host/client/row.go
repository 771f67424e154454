package client

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"

	"holdfast/nip"
)

// The kinds and states of an outbox row.
const (
	kindCommand  = "command"
	kindCreate   = "create"
	stateWaiting = "waiting" // not answered; sending it again is safe
	stateUnknown = "unknown" // a create that may have happened; it is read before anything is made
)

// row is one durable wish of the device. A row is only ever sent to the host it
// was made for.
type row struct {
	seq       uint64 // its key: arrival order
	Host      nip.PubKey
	Op        nip.Operation // nip.TaskCommand or nip.TaskCreate
	Since     int64         // local time
	Tries     int
	LastTry   int64 // local time of the last unanswered try; 0 before one
	State     string
	LastError string // at most 256 bytes
	// Of a create: its request as it was signed, the end of that request, and
	// the request that it took the place of.
	Request  nip.RequestID
	Event    *nip.Event
	Expires  int64 // host time
	Replaces nip.RequestID
}

// rowDisk is a row as it stands in the store.
type rowDisk struct {
	V         string          `json:"v"`
	Host      nip.PubKey      `json:"host"`
	Op        json.RawMessage `json:"op"`
	Since     int64           `json:"since"`
	Tries     int             `json:"tries"`
	LastTry   int64           `json:"last_try"`
	State     string          `json:"state"`
	LastError string          `json:"last_error"`
	Request   nip.RequestID   `json:"request"`
	Event     json.RawMessage `json:"event"`
	Expires   int64           `json:"expires"`
	Replaces  nip.RequestID   `json:"replaces"`
}

const (
	rowVersion = "holdfast.device-outbox.v1"
	maxRow     = 512 << 10
	maxWords   = 256
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// encode writes the checksum (CRC-32C, 4 bytes big-endian) and the JSON it is of.
func (r row) encode() ([]byte, error) {
	op, err := nip.EncodeOperation(r.Op)
	if err != nil {
		return nil, err
	}
	d := rowDisk{V: rowVersion, Host: r.Host, Op: op, Since: r.Since, Tries: r.Tries, LastTry: r.LastTry, State: r.State,
		LastError: r.LastError, Request: r.Request, Event: json.RawMessage("null"), Expires: r.Expires, Replaces: r.Replaces}
	if r.Event != nil {
		d.Event = nip.EncodeEvent(r.Event)
	}
	body, err := json.Marshal(d)
	if err != nil {
		return nil, err
	}
	return withSum(body), nil
}

func withSum(body []byte) []byte {
	return append(binary.BigEndian.AppendUint32(nil, crc32.Checksum(body, castagnoli)), body...)
}

// decodeRow is the inverse of encode. Anything else is ErrDamaged, or ErrNewer
// for a row of a later version.
func decodeRow(seq uint64, raw []byte) (row, error) {
	bad := func(why string) (row, error) { return row{}, fmt.Errorf("%w: outbox row %d: %s", ErrDamaged, seq, why) }
	if len(raw) < 4 || len(raw) > maxRow {
		return bad("impossible length")
	}
	body := raw[4:]
	if binary.BigEndian.Uint32(raw) != crc32.Checksum(body, castagnoli) {
		return bad("checksum differs")
	}
	dec := json.NewDecoder(bytes.NewReader(body))
	dec.DisallowUnknownFields()
	var d rowDisk
	if err := dec.Decode(&d); err != nil || dec.More() {
		return bad("not a row")
	}
	if d.V != rowVersion {
		return row{}, fmt.Errorf("%w: outbox row %d", ErrNewer, seq)
	}
	op, _, err := nip.ParseOperation(d.Op)
	if err != nil {
		return bad("its operation does not decode")
	}
	r := row{seq: seq, Host: d.Host, Op: op, Since: d.Since, Tries: d.Tries, LastTry: d.LastTry, State: d.State,
		LastError: d.LastError, Request: d.Request, Expires: d.Expires, Replaces: d.Replaces}
	if !bytes.Equal(d.Event, []byte("null")) {
		if r.Event, err = nip.ParseEvent(d.Event); err != nil {
			return bad("its event does not decode")
		}
	}
	if err := r.check(); err != nil {
		return bad(err.Error())
	}
	return r, nil
}

func (r row) check() error {
	if _, err := nip.ParsePubKey(string(r.Host)); err != nil {
		return errors.New("its host is no key")
	}
	if r.Tries < 0 || len(r.LastError) > maxWords || r.State != stateWaiting && r.State != stateUnknown {
		return errors.New("impossible state")
	}
	switch r.Op.(type) {
	case nip.TaskCommand:
		if r.Event != nil || r.Request != "" || r.State != stateWaiting {
			return errors.New("a command does not carry a request")
		}
	case nip.TaskCreate:
		if r.Event == nil || !nip.ValidID(string(r.Request)) {
			return errors.New("a create without its request")
		}
	default:
		return errors.New("not a durable operation")
	}
	return nil
}

// command is the row's command, if it is one.
func (r row) command() (nip.Command, bool) {
	op, ok := r.Op.(nip.TaskCommand)
	return op.Command, ok
}

// id is what the row is known by outside: the command's ID, or the request's.
func (r row) id() string {
	if c, ok := r.command(); ok {
		return string(c.ID)
	}
	return string(r.Request)
}
