package host

import "errors"

var (
	// ErrBusy is returned when another process holds the home or the port.
	ErrBusy = errors.New("locked")
	// ErrNoHome is returned for a home that was never initialised.
	ErrNoHome = errors.New("no home")
	// ErrUnsafeHome is returned for a home of another user or one that others can enter.
	ErrUnsafeHome = errors.New("unsafe home")
	// ErrOtherOwner is returned by Init when the home has another owner.
	ErrOtherOwner = errors.New("another owner")
	// ErrUsage is returned by operator verbs for wrong words.
	ErrUsage = errors.New("usage")
	// ErrNotFound is returned by operator verbs for what is not there.
	ErrNotFound = errors.New("not found")
	// ErrBackup is returned for a file that is no backup, or not a whole one.
	ErrBackup = errors.New("the backup cannot be used")
)
