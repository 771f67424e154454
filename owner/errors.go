package owner

import (
	"errors"
	"fmt"
)

// Error is a definite refusal of the store: nothing happened. Code is one of
// the public words: invalid_command, unsupported_schema, command_conflict,
// revision_mismatch, not_found, invalid_transition, limit_exceeded,
// unsafe_path, store_busy, workspace_busy, not_enforceable.
type Error struct {
	Code   string
	Detail string
}

func (e *Error) Error() string { return e.Code + ": " + e.Detail }

// What opening or reading the store can meet.
var (
	// ErrCorrupt is returned when a file is not what was written; the store stops.
	ErrCorrupt = errors.New("task store is damaged; run holdfast check")
	// ErrNewer is returned for a store made by a newer holdfast.
	ErrNewer = errors.New("task store was made by a newer holdfast")
	// ErrUnsafe is returned for a link, a foreign owner or open permissions in the store.
	ErrUnsafe = errors.New("task store has unsafe files; make them yours alone again (folders 0700, files 0600, no links)")
)

// What writing can meet.
var (
	// ErrReopen is returned after a failed write whose outcome is not known.
	ErrReopen = errors.New("a write to the task store failed; it must be reopened")
)

func refuse(code, format string, args ...any) *Error {
	return &Error{Code: code, Detail: fmt.Sprintf(format, args...)}
}

func corrupt(format string, args ...any) error {
	return fmt.Errorf("%s: %w", fmt.Sprintf(format, args...), ErrCorrupt)
}

// refused reports whether err is a definite refusal.
func refused(err error) bool {
	var refusal *Error
	return errors.As(err, &refusal)
}
