// Package owner keeps tasks and is the only code that executes anything.
//
// A Task is what was asked for and what became of it; a turn is one run of it.
// The truth about a task is its log: an append-only file of exact command
// bytes with their receipts, and of owner events. A Task is derived by
// replaying the log through NextCommand and NextEvent, which are pure; what is
// kept of one, the checkpoint of a long log, is a hint. A reader that starts
// from nothing verifies the chain of the whole history, and replays it from the
// checkpoint on where that fits.
//
// In come exact task commands (Apply, called by the evaluator of device
// commands and by the command line) and owner events (Append, called by the
// process that owns a turn). Out come tasks, bounded views of transcripts, and
// receipts. Applying a command never runs anything: a turn needs an execution
// grant and an owner process, which the execution half of this package is.
//
// Store may be used from any goroutine, and many processes may have the same
// store open: the locks are files. Their order is owner.lock, then a task's
// lock, then one identity shard; nobody holds two task locks. Readers take none.
//
// Durable when it returns: Apply's receipt (identity reserved first, then the
// log frame, each synced), Append's event, PutBlob's blob. A failed write that
// may or may not have reached the disk stops this Store with ErrReopen. A torn
// last frame is what a crash leaves of a write that was never acknowledged:
// readers pass over it and the next writer cuts it off under the task's lock.
// Everything else that is not as written is ErrCorrupt, and is not repaired.
//
// A store of an older version is read as it is, and the first write makes it one
// of this version, once (upgrade). A newer one is refused whole.
//
// Not here: who may send a command, what a workspace label means, and what is
// published. Nothing is pruned, and no other user of the machine is trusted.
package owner
