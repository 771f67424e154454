package client

import (
	"errors"
	"fmt"

	"holdfast/nip"
)

// Returned by Init and Open.
var (
	// ErrNoKey is returned by Open for a profile without a device key.
	ErrNoKey = errors.New("no device key in this profile; run device init")
	// ErrBusy is returned when another process used the profile for the whole wait of two seconds.
	ErrBusy = errors.New("profile is in use by another process")
	// ErrDamaged is returned for a file of the profile that is not what it says or proves nothing.
	ErrDamaged = errors.New("profile is damaged")
	// ErrNewer is returned for a profile written by a newer version.
	ErrNewer = errors.New("profile was made by a newer holdfast")
)

// Returned by calls.
var (
	// ErrNotPaired is returned by every call before Pair succeeded.
	ErrNotPaired = errors.New("device is not paired; ask the host for an invitation")
	// ErrGrantExpired is returned without a call when the grant has ended.
	ErrGrantExpired = errors.New("the grant of this device has expired; pair again")
	// ErrNoAnswer is returned when no verified reply arrived: whether the host acted is unknown.
	ErrNoAnswer = errors.New("no signed answer from the host")
	// ErrConflict is returned when the host signed two different answers to one request,
	// or a command ID of the outbox is used again with other content.
	ErrConflict = errors.New("conflict")
)

// Refused is the host's signed refusal.
type Refused struct {
	Op      string
	Code    nip.Code
	Missing nip.Right // with nip.MissingRight alone
}

func (e *Refused) Error() string {
	if e.Missing != "" {
		return fmt.Sprintf("host refused %s: %s %s", e.Op, e.Code, e.Missing)
	}
	return fmt.Sprintf("host refused %s: %s", e.Op, e.Code)
}
