package nip

import (
	"slices"

	"github.com/nbd-wtf/go-nostr"
)

const (
	maxDevices    = 128
	maxWorkspaces = 64
	maxReference  = 128
	maxKind       = 64
)

func (Granted) OutcomeKind() string       { return "granted" }
func (Devices) OutcomeKind() string       { return "devices" }
func (RevokedDevice) OutcomeKind() string { return "revoked" }
func (Dispatched) OutcomeKind() string    { return "dispatched" }
func (QueueState) OutcomeKind() string    { return "queue" }
func (Workspaces) OutcomeKind() string    { return "workspaces" }
func (Tasks) OutcomeKind() string         { return "tasks" }
func (TaskPage) OutcomeKind() string      { return "task" }
func (Original) OutcomeKind() string      { return "task_original" }

// outcome takes the members of an outcome by its kind.
func (r *reader) outcome(o object) Outcome {
	var out Outcome
	kind := o.text("kind")
	if r.err != nil {
		return nil
	}
	switch kind {
	case Granted{}.OutcomeKind():
		out = Granted{r.event(o.object("authorization"))}
	case DeniedEnrollment{}.OutcomeKind():
		out = DeniedEnrollment{}
	case Invited{}.OutcomeKind():
		out = Invited{InvitationID(o.text("invitation")), o.text("code"), o.int("expires_at")}
	case CancelledInvitation{}.OutcomeKind():
		out = CancelledInvitation{InvitationID(o.text("invitation"))}
	case Devices{}.OutcomeKind():
		out = o.devices()
	case RevokedDevice{}.OutcomeKind():
		d := RevokedDevice{Device: PubKey(o.text("device")), Epoch: o.int("epoch")}
		for _, s := range o.texts("grants", maxDevices) {
			d.Grants = append(d.Grants, GrantID(s))
		}
		out = d
	case Dispatched{}.OutcomeKind():
		receipt := o.object("receipt")
		out = Dispatched{receipt.text("operation"), receipt.text("reference")}
		receipt.end()
	case QueueState{}.OutcomeKind():
		out = o.object("queue").queueState()
	case QueueAtRevision{}.OutcomeKind():
		out = QueueAtRevision{o.object("queue").queueState(), o.int("revision"), Digest(o.text("queue_digest"))}
	case RecordedOperation{}.OutcomeKind():
		out = o.recorded()
	case ArtifactProgress{}.OutcomeKind():
		out = o.object("artifact").artifactProgress()
	case Workspaces{}.OutcomeKind():
		w := Workspaces{}
		for _, s := range o.texts("workspaces", maxWorkspaces) {
			w.Workspaces = append(w.Workspaces, Label(s))
		}
		out = w
	case Tasks{}.OutcomeKind():
		out = Tasks{o.object("tasks").listing()}
	case TaskPage{}.OutcomeKind():
		out = TaskPage{o.object("task").page()}
	case Original{}.OutcomeKind():
		out = Original{o.object("original").chunk()}
	default:
		r.fail(Unsupported, "the outcome's kind has no shape here")
		return nil
	}
	o.end()
	return out
}

func (o object) devices() Devices {
	var d Devices
	for _, v := range o.list("devices", maxDevices) {
		e := o.r.object("device", v)
		d.Devices = append(d.Devices, DeviceEntry{
			Device: PubKey(e.text("device")), Grant: GrantID(e.text("grant")), Rights: e.rights("rights"),
			Epoch: e.int("epoch"), Origin: oneOf(e, "origin", "invitation", "approval"),
			IssuedAt: e.int("issued_at"), ExpiresAt: e.int("expires_at"),
			State: oneOf(e, "state", "active", "revoked", "expired"), LastSeen: e.intOrNull("last_seen"),
		})
		e.end()
	}
	return d
}

func (o object) queueState() QueueState {
	q := QueueState{Task: TaskID(o.text("task")), Revision: o.int("revision")}
	if !o.null("lease") {
		l := o.object("lease")
		q.Lease = &Lease{Device: PubKey(l.text("device")), ExpiresAt: l.int("expires_at")}
		l.end()
	}
	for _, v := range o.list("items", maxHeld) {
		i := o.r.object("queue.items", v)
		item := QueueItem{Command: CommandID(i.text("command")), Device: PubKey(i.text("device"))}
		if !i.null("text") {
			s := i.text("text")
			item.Text = &s
		}
		item.Priority = i.bool("priority")
		i.end()
		q.Items = append(q.Items, item)
	}
	o.end()
	return q
}

// outcome holds an outcome to its rules, its encoded size apart.
func (v *validator) outcome(out Outcome) {
	switch out := out.(type) {
	case Granted:
		v.authorization(out.Authorization)
	case DeniedEnrollment:
	case Invited:
		v.invited(out)
	case CancelledInvitation:
		v.id(string(out.Invitation), "invitation")
	case Devices:
		v.must(len(out.Devices) <= maxDevices, Bounds, "too many devices")
		for _, d := range out.Devices {
			v.deviceEntry(d)
		}
	case RevokedDevice:
		v.key(out.Device, "device")
		v.int(out.Epoch, "epoch")
		v.must(len(out.Grants) <= maxDevices, Bounds, "too many grants")
		for _, g := range out.Grants {
			v.id(string(g), "grants")
		}
	case Dispatched:
		v.text(out.Operation, maxKind, "receipt.operation")
		v.text(out.Reference, maxReference, "receipt.reference")
	case QueueState:
		v.queueState(out)
	case QueueAtRevision:
		v.queueAtRevision(out)
	case RecordedOperation:
		v.recorded(out)
	case ArtifactProgress:
		v.artifactProgress(out)
	case Workspaces:
		v.must(len(out.Workspaces) <= maxWorkspaces, Bounds, "too many workspaces")
		for i, w := range out.Workspaces {
			v.text(string(w), maxLabel, "a workspace")
			v.must(i == 0 || out.Workspaces[i-1] < w, Malformed, "workspaces are not sorted and distinct")
		}
	case Tasks:
		v.listing(out.Tasks)
	case TaskPage:
		v.page(out.Task)
	case Original:
		v.chunk(out.Original)
	default:
		v.must(false, Unsupported, "the outcome's kind has no shape here")
	}
}

// authorization demands the form of a grant's envelope. Its signature is for the
// device to verify, which alone knows the host that it pinned.
func (v *validator) authorization(ev *nostr.Event) {
	v.must(ev != nil && ev.Kind == KindArtifact, Malformed, "authorization is not an artifact event")
	if v.err != nil {
		return
	}
	v.must(isHex(ev.ID, 64) && isHex(ev.Sig, 128), Malformed, "authorization is not signed")
	if err := checkShape(ev); err != nil && v.err == nil {
		v.err = withLayer(err, v.layer, "authorization")
	}
	if _, err := artifactTags(ev); err != nil && v.err == nil {
		v.err = withLayer(err, v.layer, "authorization")
	}
}

func (v *validator) deviceEntry(d DeviceEntry) {
	v.key(d.Device, "device")
	v.id(string(d.Grant), "grant")
	v.must(d.Rights.valid(), Malformed, "rights are not a nonempty list in canonical order")
	v.int(d.Epoch, "epoch")
	v.must(d.Origin == "invitation" || d.Origin == "approval", Malformed, "origin is not known")
	v.int(d.IssuedAt, "issued_at")
	v.int(d.ExpiresAt, "expires_at")
	v.must(slices.Contains([]string{"active", "revoked", "expired"}, d.State), Malformed, "state is not known")
	if d.LastSeen != nil {
		v.int(*d.LastSeen, "last_seen")
	}
}

func (v *validator) queueState(q QueueState) {
	v.id(string(q.Task), "task")
	v.int(q.Revision, "revision")
	if q.Lease != nil {
		v.key(q.Lease.Device, "lease.device")
		v.int(q.Lease.ExpiresAt, "lease.expires_at")
	}
	v.must(len(q.Items) <= maxHeld, Bounds, "too many held messages")
	// A command ID is unique per device only: two devices may use the same one.
	seen := make(map[[2]string]bool)
	for _, i := range q.Items {
		v.id(string(i.Command), "items.command")
		v.key(i.Device, "items.device")
		id := [2]string{string(i.Device), string(i.Command)}
		v.must(!seen[id], Malformed, "a held message stands twice")
		seen[id] = true
		if i.Text != nil {
			v.prose(*i.Text, maxPrompt, "items.text")
		}
	}
}

// EncodeOutcome writes the outcome object alone, canonically. More than 49,152
// bytes is bounds.
func EncodeOutcome(out Outcome) ([]byte, error) {
	v := &validator{layer: layerSchema}
	v.outcome(out)
	if v.err != nil {
		return nil, v.err
	}
	m := members{"kind": out.OutcomeKind()}
	switch out := out.(type) {
	case Granted:
		m["authorization"] = eventMembers(out.Authorization)
	case Invited:
		m["invitation"], m["code"], m["expires_at"] = out.Invitation, out.Code, out.ExpiresAt
	case CancelledInvitation:
		m["invitation"] = out.Invitation
	case Devices:
		m["devices"] = deviceMembers(out.Devices)
	case RevokedDevice:
		m["device"], m["epoch"], m["grants"] = out.Device, out.Epoch, out.Grants
	case Dispatched:
		m["receipt"] = members{"operation": out.Operation, "reference": out.Reference}
	case QueueState:
		m["queue"] = queueMembers(out)
	case QueueAtRevision:
		m["queue"], m["revision"], m["queue_digest"] = queueMembers(out.Queue), out.Revision, out.QueueDigest
	case RecordedOperation:
		if err := recordedMembers(m, out); err != nil {
			return nil, err
		}
	case ArtifactProgress:
		m["artifact"] = members{"digest": out.Digest, "received": out.Received, "complete": out.Complete}
	case Workspaces:
		m["workspaces"] = out.Workspaces
	case Tasks:
		m["tasks"] = listingMembers(out.Tasks)
	case TaskPage:
		m["task"] = pageMembers(out.Task)
	case Original:
		m["original"] = chunkMembers(out.Original)
	}
	b, err := encode(m)
	if err != nil {
		return nil, err
	}
	if len(b) > maxOutcome {
		return nil, fault(Bounds, layerSchema, "the outcome is over 48 KiB")
	}
	return b, nil
}

func deviceMembers(list []DeviceEntry) []members {
	out := make([]members, 0, len(list))
	for _, d := range list {
		out = append(out, members{
			"device": d.Device, "grant": d.Grant, "rights": d.Rights, "epoch": d.Epoch, "origin": d.Origin,
			"issued_at": d.IssuedAt, "expires_at": d.ExpiresAt, "state": d.State, "last_seen": d.LastSeen,
		})
	}
	return out
}

func queueMembers(q QueueState) members {
	items := make([]members, 0, len(q.Items))
	for _, i := range q.Items {
		items = append(items, members{
			"command": i.Command, "device": i.Device, "text": i.Text, "priority": i.Priority,
		})
	}
	return members{
		"task": q.Task, "revision": q.Revision, "items": items,
		"lease": orNull(q.Lease, func(l Lease) members {
			return members{"device": l.Device, "expires_at": l.ExpiresAt}
		}),
	}
}
