package nip

// Answers reports whether outcome o may answer operation op: the kinds agree,
// and so does everything in the outcome that repeats the question. It judges
// values that were decoded or validated before.
func Answers(op Operation, o Outcome) bool {
	switch op := op.(type) {
	case EnrollRedeem:
		_, ok := o.(Granted)
		return ok
	case EnrollApprove:
		// The approver cannot read the grant; the event still says whom it is for.
		out, ok := o.(Granted)
		return ok && grantedTo(out, op.Device)
	case EnrollDeny:
		_, ok := o.(DeniedEnrollment)
		return ok
	case InviteCreate:
		_, ok := o.(Invited)
		return ok
	case InviteCancel:
		out, ok := o.(CancelledInvitation)
		return ok && out.Invitation == op.Invitation
	case DeviceList:
		_, ok := o.(Devices)
		return ok
	case DeviceRevoke:
		out, ok := o.(RevokedDevice)
		return ok && out.Device == op.Device
	case WorkspaceList:
		_, ok := o.(Workspaces)
		return ok
	case TaskCreate:
		// The reference is the new task's ID, which is the request's.
		out, ok := o.(Dispatched)
		return ok && out.Operation == op.Kind() && ValidID(out.Reference)
	case TaskCommand:
		out, ok := o.(Dispatched)
		return ok && out.Operation == op.Kind() && out.Reference == string(op.Command.Task)
	case TaskSteer, TaskCancel, TaskArchive:
		out, ok := o.(Dispatched)
		return ok && out.Operation == op.Kind()
	case TaskQueue:
		out, ok := o.(QueueState)
		return ok && out.Task == op.Task
	case TaskCommandAt:
		out, ok := o.(Dispatched)
		return ok && out.Operation == op.Kind() && out.Reference == string(op.Command.Task)
	case TaskQueueAt:
		out, ok := o.(QueueAtRevision)
		return ok && answersQueueAt(op, out)
	case RequestOperation:
		out, ok := o.(RecordedOperation)
		return ok && out.Request == op.Request && out.RequestEvent == op.RequestEvent
	case ArtifactPut:
		out, ok := o.(ArtifactProgress)
		return ok && answersPut(op, out)
	case TaskList:
		out, ok := o.(Tasks)
		return ok && answersList(op.Query, out.Tasks)
	case TaskRead:
		out, ok := o.(TaskPage)
		return ok && answersRead(op.Query, out.Task)
	case TaskOriginal:
		out, ok := o.(Original)
		return ok && answersOriginal(op.Query, out.Original)
	}
	return false
}

func grantedTo(out Granted, device PubKey) bool {
	tags, err := artifactTags(out.Authorization)
	return err == nil && tags.recipient == device
}

func answersList(q ListQuery, t TaskListing) bool {
	from := 0
	if q.Cursor != nil {
		if q.Cursor.SnapshotDigest != t.SnapshotDigest {
			return false
		}
		from = q.Cursor.Next
	}
	return t.Workspace == q.Workspace && len(t.Rows) <= q.Limit &&
		(t.Next == nil || t.Next.Next == from+len(t.Rows))
}

func answersRead(q ReadQuery, p Page) bool {
	if p.Scope.Workspace != q.Workspace || p.Scope.Task != q.Task || len(p.Evidence.Steps) > q.Limit {
		return false
	}
	if q.Revision != nil && *q.Revision != p.Scope.Revision {
		return false
	}
	first := 0
	if q.Cursor != nil {
		if !q.Cursor.Scope.Equal(p.Scope) {
			return false
		}
		first = q.Cursor.NextStep
	}
	return len(p.Evidence.Steps) == 0 || p.Evidence.Steps[0].Index == first
}

func answersOriginal(q OriginalQuery, c Chunk) bool {
	var start int64
	if q.Cursor != nil {
		start = q.Cursor.NextByte
	}
	return c.Scope.Equal(q.Scope) && c.Original == q.Original && c.Start == start && len(c.Data) <= q.Limit
}
