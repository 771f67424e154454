package commands

import "errors"

// Returned by Record, Note and Submit.
var (
	// ErrConflict is returned when a known key arrives with other content.
	ErrConflict = errors.New("command id was used for something else")
	// ErrPruned is returned when a command was decided and pruned: it answers expired.
	ErrPruned = errors.New("command was decided before the journal's retention")
	// ErrFull is returned when the journal takes no further undecided entry of this task or device.
	ErrFull = errors.New("too many undecided commands")
)

// ErrChain is returned when the history, or an entry, is not what was written.
var ErrChain = errors.New("journal history does not match its chain")

// ErrUnsettled is returned by Submit, Evaluate and Edit when what was asked is
// recorded but the task could not be brought to rest: its view or its apply
// failed, or it kept changing. Nothing is lost; evaluate the task again later.
var ErrUnsettled = errors.New("recorded, not yet settled")
