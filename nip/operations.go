package nip

import (
	"github.com/go-json-experiment/json/jsontext"
)

// The bounds of operations (NIP-HOST, operations).
const (
	maxTitle      = 200
	maxPrompt     = 16_384
	maxLabel      = 128
	maxReason     = 512
	maxImages     = 4
	maxImageBytes = 8 << 20
	maxImageName  = 96 // characters
)

// ParseOperation decodes the op object alone, for a person's own call. A fault
// comes as an error with its code beside it; both are set or neither.
func ParseOperation(b []byte) (Operation, Code, error) {
	if err := checkJSON(b, maxBody, true); err != nil {
		return nil, withLayer(err, layerOperation, "op").Code, err
	}
	_, op, err := decodeOperation(b)
	if err != nil {
		return nil, err.Code, err
	}
	return op, "", nil
}

// parseOperation gives the kind as far as it could be read, and either the
// operation or the code with which it is refused.
func parseOperation(v jsontext.Value) (string, Operation, Code) {
	kind, op, err := decodeOperation(v)
	if err != nil {
		return kind, nil, err.Code
	}
	return kind, op, ""
}

// decodeOperation decodes v, which was checked as JSON, and validates it.
func decodeOperation(v jsontext.Value) (string, Operation, *Error) {
	r := &reader{layer: layerOperation}
	o := r.object("op", v)
	kind := o.text("kind")
	if r.err != nil {
		return "", nil, r.err
	}
	if u, ok := unserved[kind]; ok {
		return kind, Other{Name: kind, Answer: u.answer}, nil
	}
	op := r.operation(kind, o)
	o.end()
	if r.err == nil {
		r.err = checkOperation(op)
	}
	if r.err != nil {
		// A kind that nobody knows is the sender's text: it is not passed on.
		if op == nil {
			kind = ""
		}
		return kind, nil, r.err
	}
	return kind, op, nil
}

func (r *reader) operation(kind string, o object) Operation {
	switch kind {
	case EnrollRedeem{}.Kind():
		return EnrollRedeem{InvitationID(o.text("invitation")), o.text("capability")}
	case EnrollApprove{}.Kind():
		return o.enrollApprove()
	case EnrollDeny{}.Kind():
		return EnrollDeny{EnrollmentID(o.text("enrollment")), Digest(o.text("request_digest"))}
	case InviteCreate{}.Kind():
		return InviteCreate{o.rights("rights"), o.int("grant_expires_at")}
	case InviteCancel{}.Kind():
		return InviteCancel{InvitationID(o.text("invitation"))}
	case DeviceList{}.Kind():
		return DeviceList{}
	case DeviceRevoke{}.Kind():
		return DeviceRevoke{PubKey(o.text("device"))}
	case TaskCreate{}.Kind():
		return o.object("task").create()
	case TaskSteer{}.Kind():
		return TaskSteer{TaskID(o.text("task")), o.int("revision"), o.text("prompt")}
	case TaskCancel{}.Kind():
		return TaskCancel{TaskID(o.text("task")), o.int("revision"), o.text("reason")}
	case TaskArchive{}.Kind():
		return TaskArchive{TaskID(o.text("task"))}
	case TaskCommand{}.Kind():
		return TaskCommand{o.object("command").command()}
	case TaskQueue{}.Kind():
		return TaskQueue{TaskID(o.text("task")), o.object("edit").queueEdit()}
	case TaskCommandAt{}.Kind():
		return TaskCommandAt{o.object("command").command(), o.int("revision")}
	case TaskQueueAt{}.Kind():
		return o.taskQueueAt()
	case RequestOperation{}.Kind():
		return RequestOperation{RequestID(o.text("request")), EventID(o.text("request_event"))}
	case ArtifactPut{}.Kind():
		return o.object("artifact").artifactPut()
	case WorkspaceList{}.Kind():
		return WorkspaceList{}
	case TaskList{}.Kind():
		return TaskList{o.object("query").listQuery()}
	case TaskRead{}.Kind():
		return TaskRead{o.object("query").readQuery()}
	case TaskOriginal{}.Kind():
		return TaskOriginal{o.object("query").originalQuery()}
	}
	r.fail(Malformed, "op.kind is not known")
	return nil
}

func (o object) create() TaskCreate {
	t := TaskCreate{Title: o.text("title"), Prompt: o.text("prompt"), Workspace: Label(o.text("workspace"))}
	if o.has("images") {
		for _, v := range o.list("images", maxImages) {
			i := o.r.object(o.path+".images", v)
			t.Images = append(t.Images, Image{
				Digest: Digest(i.text("digest")), MediaType: i.text("media_type"),
				Size: i.int("size"), Name: i.text("name"),
			})
			i.end()
		}
	}
	if !o.null("engine") {
		t.Engine = oneOf(o, "engine", engines...)
	}
	o.end()
	return t
}

var engines = []string{"codex", "claude_code", "grok_build", "opencode", "devin"}

// checkOperation validates a decoded operation, or one to be encoded.
func checkOperation(op Operation) *Error {
	v := &validator{layer: layerOperation}
	switch op := op.(type) {
	case EnrollRedeem:
		v.id(string(op.Invitation), "invitation")
		v.id(op.Capability, "capability")
	case EnrollApprove:
		v.enrollApprove(op)
	case EnrollDeny:
		v.id(string(op.Enrollment), "enrollment")
		v.digest(op.RequestDigest, "request_digest")
	case InviteCreate:
		v.grantTerms(op.Rights, op.GrantExpiresAt)
	case InviteCancel:
		v.id(string(op.Invitation), "invitation")
	case DeviceRevoke:
		v.key(op.Device, "device")
	case TaskCreate:
		v.create(op)
	case TaskSteer:
		v.id(string(op.Task), "task")
		v.int(op.Revision, "revision")
		v.prose(op.Prompt, maxPrompt, "prompt")
	case TaskCancel:
		v.id(string(op.Task), "task")
		v.int(op.Revision, "revision")
		v.text(op.Reason, maxReason, "reason")
	case TaskArchive:
		v.id(string(op.Task), "task")
	case TaskCommand:
		v.command(op.Command)
	case TaskQueue:
		v.id(string(op.Task), "task")
		v.queueEdit(op.Edit)
	case TaskCommandAt:
		v.taskCommandAt(op)
	case TaskQueueAt:
		v.taskQueueAt(op)
	case RequestOperation:
		v.id(string(op.Request), "request")
		v.id(string(op.RequestEvent), "request_event")
	case ArtifactPut:
		v.artifactPut(op)
	case TaskList:
		v.listQuery(op.Query)
	case TaskRead:
		v.readQuery(op.Query)
	case TaskOriginal:
		v.originalQuery(op.Query)
	case DeviceList, WorkspaceList:
	case Other:
		u, ok := unserved[op.Name]
		v.must(ok && u.answer == op.Answer, Malformed, "op.kind is not known")
	default:
		v.must(false, Malformed, "there is no operation")
	}
	return v.err
}

// EncodeOperation writes the op object alone, canonically, under the rules of
// ParseOperation. An Other is its kind and nothing else.
func EncodeOperation(op Operation) ([]byte, error) {
	if err := checkOperation(op); err != nil {
		return nil, err
	}
	m := members{"kind": op.Kind()}
	switch op := op.(type) {
	case EnrollRedeem:
		m["invitation"], m["capability"] = op.Invitation, op.Capability
	case EnrollApprove:
		enrollApproveMembers(m, op)
	case EnrollDeny:
		m["enrollment"], m["request_digest"] = op.Enrollment, op.RequestDigest
	case InviteCreate:
		m["rights"], m["grant_expires_at"] = op.Rights, op.GrantExpiresAt
	case InviteCancel:
		m["invitation"] = op.Invitation
	case DeviceRevoke:
		m["device"] = op.Device
	case TaskCreate:
		m["task"] = createMembers(op)
	case TaskSteer:
		m["task"], m["revision"], m["prompt"] = op.Task, op.Revision, op.Prompt
	case TaskCancel:
		m["task"], m["revision"], m["reason"] = op.Task, op.Revision, op.Reason
	case TaskArchive:
		m["task"] = op.Task
	case TaskCommand:
		m["command"] = commandMembers(op.Command)
	case TaskQueue:
		m["task"], m["edit"] = op.Task, queueEditMembers(op.Edit)
	case TaskCommandAt:
		m["command"], m["revision"] = commandMembers(op.Command), op.Revision
	case TaskQueueAt:
		m["task"], m["revision"], m["edit"] = op.Task, op.Revision, queueEditMembers(op.Edit)
		m["queue_digest"] = op.QueueDigest
	case RequestOperation:
		m["request"], m["request_event"] = op.Request, op.RequestEvent
	case ArtifactPut:
		m["artifact"] = artifactPutMembers(op)
	case TaskList:
		m["query"] = listQueryMembers(op.Query)
	case TaskRead:
		m["query"] = readQueryMembers(op.Query)
	case TaskOriginal:
		m["query"] = originalQueryMembers(op.Query)
	}
	return encode(m)
}
