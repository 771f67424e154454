package owner

import (
	"bytes"
	"encoding/binary"
	stdjson "encoding/json"
	"errors"
	"fmt"

	"github.com/go-json-experiment/json"
)

const receiptSchema = "openagents.coder.task-receipt.v1"

// commandRecord is the payload of a command frame:
//
//	u64 Unix seconds, u32 n, n bytes of receipt (JSON), the exact command bytes
type commandRecord struct {
	at      int64
	receipt Receipt
	request []byte
}

func (c commandRecord) encode() []byte {
	r := mustJSON(c.receipt)
	b := binary.BigEndian.AppendUint64(nil, uint64(c.at))
	b = binary.BigEndian.AppendUint32(b, uint32(len(r)))
	b = append(b, r...)
	return append(b, c.request...)
}

func decodeCommandRecord(b []byte) (commandRecord, error) {
	if len(b) < 12 {
		return commandRecord{}, corrupt("command record of %d bytes", len(b))
	}
	c := commandRecord{at: int64(binary.BigEndian.Uint64(b))}
	n := int64(binary.BigEndian.Uint32(b[8:]))
	if n > int64(len(b)-12) {
		return commandRecord{}, corrupt("receipt of %d bytes", n)
	}
	if err := closed(b[12:12+n], &c.receipt); err != nil {
		return commandRecord{}, undecodable("receipt", err)
	}
	c.request = b[12+n:]
	return c, nil
}

// eventRecord is the payload of an event frame, as JSON.
type eventRecord struct {
	Sequence int64 `json:"sequence"`
	Epoch    Epoch `json:"epoch"`
	Event    Event `json:"event"`
	At       int64 `json:"at"` // Unix seconds
}

func decodeEventRecord(b []byte) (eventRecord, error) {
	var e eventRecord
	if err := closed(b, &e); err != nil {
		return eventRecord{}, undecodable("event", err)
	}
	return e, nil
}

// undecodable tells a member that a newer version added from damage: the frame
// around it was sound, so what is in it was written on purpose.
func undecodable(what string, err error) error {
	if errors.Is(err, json.ErrUnknownName) {
		return fmt.Errorf("%s with an unknown member: %w", what, ErrNewer)
	}
	return corrupt("%s is not readable", what)
}

// mustJSON encodes a record in the order of its members, text as it is.
func mustJSON(v any) []byte {
	var buf bytes.Buffer
	enc := stdjson.NewEncoder(&buf)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		panic("owner: a checked record always encodes: " + err.Error())
	}
	return bytes.TrimSuffix(buf.Bytes(), []byte("\n"))
}
