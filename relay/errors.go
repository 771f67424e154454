package relay

import "errors"

var (
	// ErrUnconfirmed is returned when the connection ended before the relay's
	// OK: the event may or may not be stored, publish the same bytes again.
	ErrUnconfirmed = errors.New("relay connection ended before it confirmed the event")
	// ErrClosed is returned by a closed link.
	ErrClosed = errors.New("relay link closed")
	// ErrTooLarge is returned for an event over the relay's message limit.
	ErrTooLarge = errors.New("event larger than the relay accepts")
)
