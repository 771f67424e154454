package nip

// The exact-revision operations (NIP-HOST, task.command and task.queue): the
// same effects, refused as stale where the task moved since the device read it.
type (
	// TaskCommandAt is task.command.at_revision.
	TaskCommandAt struct {
		Command  Command
		Revision int64 // equal to Command.BasedOn
	}
	// TaskQueueAt is task.queue.at_revision.
	TaskQueueAt struct {
		Task        TaskID
		Revision    int64
		Edit        QueueEdit
		QueueDigest *Digest // of the last answer; nil with the edit "list" only
	}
	// QueueAtRevision is the outcome of TaskQueueAt. A device only echoes the digest.
	QueueAtRevision struct {
		Queue       QueueState
		Revision    int64 // equal to Queue.Revision
		QueueDigest Digest
	}
)

func (TaskCommandAt) Kind() string { return "task.command.at_revision" }
func (TaskQueueAt) Kind() string   { return "task.queue.at_revision" }

func (TaskCommandAt) Right() Right { return Operate }
func (TaskQueueAt) Right() Right   { return Operate }

func (QueueAtRevision) OutcomeKind() string { return "queue_at_revision" }

func (o object) taskQueueAt() TaskQueueAt {
	op := TaskQueueAt{Task: TaskID(o.text("task")), Revision: o.int("revision"), Edit: o.object("edit").queueEdit()}
	if !o.null("queue_digest") {
		d := Digest(o.text("queue_digest"))
		op.QueueDigest = &d
	}
	return op
}

func (v *validator) taskCommandAt(op TaskCommandAt) {
	v.command(op.Command)
	v.int(op.Revision, "revision")
	v.must(op.Revision == op.Command.BasedOn, Malformed, "revision is not the command's based_on")
}

func (v *validator) taskQueueAt(op TaskQueueAt) {
	v.id(string(op.Task), "task")
	v.int(op.Revision, "revision")
	v.queueEdit(op.Edit)
	if op.QueueDigest != nil {
		v.digest(*op.QueueDigest, "queue_digest")
	}
	v.must(op.QueueDigest != nil || op.Edit.Action == "list", Malformed, "an edit without queue_digest")
}

func (v *validator) queueAtRevision(out QueueAtRevision) {
	v.queueState(out.Queue)
	v.int(out.Revision, "revision")
	v.must(out.Revision == out.Queue.Revision, Malformed, "revision is not the queue's")
	v.digest(out.QueueDigest, "queue_digest")
}

// answersQueueAt: a listing shows the revision that was asked for; an edit may
// have moved it on.
func answersQueueAt(op TaskQueueAt, out QueueAtRevision) bool {
	if op.Edit.Action == "list" && out.Revision != op.Revision {
		return false
	}
	return out.Queue.Task == op.Task && out.Revision >= op.Revision
}
