package host

import (
	"errors"
	"fmt"
	"unicode/utf8"

	"go.etcd.io/bbolt"

	"holdfast/nip"
	"holdfast/owner"
)

const (
	promptLimit = 8 << 10  // of a page; the whole is task.original
	stepLimit   = 16 << 10 // one step's JSON
)

// read answers task.list, task.read and task.original. Reads are not retained.
// The grant and the right are checked again just before sealing: whoever lost
// them meanwhile gets no page.
func (h *Host) read(k *call) error {
	reply, err := h.readReply(k)
	if err != nil {
		return err
	}
	var code nip.Code
	if err := h.db.View(func(tx *bbolt.Tx) (err error) {
		code, err = h.standing(tx, k.who.sender, nip.Observe, h.now())
		return err
	}); err != nil || code != "" {
		return err
	}
	return h.answerOnce(k, reply)
}

func (h *Host) readReply(k *call) (nip.Reply, error) {
	no := func(code nip.Code) nip.Reply { return nip.Reply{Refusal: &nip.Refusal{Code: code}} }
	ws, err := loadWorkspaces(h.home)
	if err != nil {
		h.log.Error().Err(err).Msg("workspaces cannot be read")
		return no(nip.Unavailable), nil
	}
	var out nip.Outcome
	var code nip.Code
	switch op := k.req.Op.(type) {
	case nip.TaskList:
		w, ok := ws.find(op.Query.Workspace)
		if !ok {
			return no(nip.Forbidden), nil
		}
		var l nip.TaskListing
		l, code, err = h.listTasks(w, op.Query)
		out = nip.Tasks{Tasks: l}
	case nip.TaskRead:
		w, ok := ws.find(op.Query.Workspace)
		if !ok {
			return no(nip.Forbidden), nil
		}
		var p nip.Page
		p, code, err = h.readTask(w, op.Query)
		out = nip.TaskPage{Task: p}
	case nip.TaskOriginal:
		w, ok := ws.find(op.Query.Scope.Workspace)
		if !ok {
			return no(nip.Forbidden), nil
		}
		var c nip.Chunk
		c, code, err = h.readOriginal(w, op.Query)
		out = nip.Original{Original: c}
	}
	var refused *owner.Error
	switch {
	case errors.As(err, &refused):
		return no(storeCode(refused.Code)), nil
	case err != nil:
		// A damaged task must not make the host deaf: the device hears
		// unavailable, the operator reads why.
		h.log.Error().Err(err).Str("request", string(k.req.ID)).Msg("task cannot be read")
		return no(nip.Unavailable), nil
	case code != "":
		return no(code), nil
	}
	return nip.Reply{Outcome: out}, nil
}

// listTasks shows the newest tasks first. The digest binds the cursor to the
// listing it came from, so that a page is never from two different ones.
func (h *Host) listTasks(w Workspace, q nip.ListQuery) (nip.TaskListing, nip.Code, error) {
	l := nip.TaskListing{Workspace: w.Label, Rows: []nip.TaskRow{}}
	if err := h.fill(); err != nil {
		return l, "", err
	}
	start := 0
	if c := q.Cursor; c != nil {
		if c.Workspace != w.Label {
			return l, nip.Malformed, nil
		}
		start = c.Next
	}
	rows, total, digest := h.index.page(w.Path, start, q.Limit)
	l.SnapshotDigest = digest
	if c := q.Cursor; c != nil && (c.SnapshotDigest != digest || start > total) {
		return l, nip.Stale, nil
	}
	for _, r := range rows {
		l.Rows = append(l.Rows, r.onWire())
	}
	for {
		l.Next, l.MoreAvailable = nil, false
		if next := start + len(l.Rows); next < total {
			l.MoreAvailable = true
			l.Next = &nip.ListCursor{Workspace: w.Label, SnapshotDigest: digest, Next: next}
		}
		if fits(nip.Tasks{Tasks: l}) || len(l.Rows) <= 1 {
			return l, "", nil
		}
		l.Rows = l.Rows[:len(l.Rows)/2]
	}
}

// fits reports whether an outcome leaves its reply under the size that this
// host writes.
func fits(o nip.Outcome) bool {
	raw, err := nip.EncodeOutcome(o)
	return err == nil && len(raw) <= outcomeRoom
}

// attempt is the current turn's number, null before a turn was admitted.
func attempt(t *owner.Task) *int {
	if t.Run == nil {
		return nil
	}
	n := t.Turn()
	return &n
}

func scopeOf(label nip.Label, t *owner.Task) nip.Scope {
	return nip.Scope{Workspace: label, Task: string(t.ID), Revision: t.Revision, Attempt: attempt(t), IntentDigest: nip.Digest(t.IntentDigest)}
}

// sameTurn reports whether an older scope still speaks of this turn: a cursor
// outlives appended events, never another turn.
func sameTurn(label nip.Label, s nip.Scope, t *owner.Task) bool {
	now := scopeOf(label, t)
	same := s.Attempt == nil && now.Attempt == nil || s.Attempt != nil && now.Attempt != nil && *s.Attempt == *now.Attempt
	return same && s.Workspace == label && s.Task == now.Task && s.IntentDigest == now.IntentDigest && s.Revision <= now.Revision
}

func (h *Host) readTask(w Workspace, q nip.ReadQuery) (nip.Page, nip.Code, error) {
	var page nip.Page
	t, err := h.store.Get(owner.TaskID(q.Task))
	if err != nil {
		return page, "", err
	}
	if t.Intent.Workspace.Path != w.Path {
		return page, nip.Forbidden, nil
	}
	if q.Revision != nil && q.Cursor == nil && *q.Revision != t.Revision {
		return page, nip.Stale, nil
	}
	var from *owner.ViewCursor
	if c := q.Cursor; c != nil {
		if q.Revision == nil || *q.Revision != c.Scope.Revision {
			return page, nip.Malformed, nil
		}
		if !sameTurn(w.Label, c.Scope, &t) || t.Run == nil || c.Source != traceSource(t.Run.Turn) {
			return page, nip.Stale, nil
		}
		from = &owner.ViewCursor{
			TaskID: t.ID, IntentDigest: t.IntentDigest, TraceFile: t.Run.Admission.TraceFile,
			NextStep: c.NextStep, PrefixDigest: owner.Digest(c.PrefixDigest),
		}
	}
	page, err = fitPage(w.Label, q.Limit, h.changes(&t), func(limit int) (owner.View, error) {
		return h.store.View(t.ID, limit, stepLimit, from)
	})
	return page, "", err
}

// changes is the manifest of what the newest turn that kept one changed, for
// the page: everything in it is task.original with this source, or by the
// digest of its bytes with artifact.
func (h *Host) changes(t *owner.Task) []nip.PageArtifact {
	ref, err := h.store.ChangesOf(t)
	switch {
	case err != nil:
		h.log.Error().Err(err).Str("task", string(t.ID)).Msg("the manifest of a turn's changes cannot be read")
		return []nip.PageArtifact{{Label: "changes", State: "unavailable"}}
	case ref == nil:
		return nil
	}
	return []nip.PageArtifact{{Label: "changes", State: "retained", Original: &nip.OriginalRef{
		Source: fmt.Sprintf("manifest:%d", ref.Turn), Digest: nip.Digest(ref.Digest), Bytes: ref.Bytes, MediaType: "application/json",
	}}}
}

// fitPage makes the page of a view, of as many steps as fit into one reply.
func fitPage(label nip.Label, limit int, changes []nip.PageArtifact, view func(limit int) (owner.View, error)) (nip.Page, error) {
	prompt := promptLimit
	for {
		v, err := view(limit)
		if err != nil {
			return nip.Page{}, err
		}
		page := pageOf(label, &v, prompt)
		page.Artifacts = append(page.Artifacts, changes...)
		switch {
		case fits(nip.TaskPage{Task: page}):
			return page, nil
		case limit == 1 && prompt == 0:
			// Only a step that no program of ours wrote is longer in its canonical
			// form, or has none. It must not hide the steps behind it.
			page.Evidence.Steps = []nip.Step{}
			for _, s := range v.Steps {
				page.Evidence.Steps = append(page.Evidence.Steps, gapStep(s.Index, page.Evidence.Original))
			}
			return page, nil
		case limit > 1:
			// Fewer steps and the same cursor rules: a page is split at a step,
			// never inside one.
			limit = max(1, min(limit, len(v.Steps))/2)
		default:
			prompt /= 2 // escapes can make eight KiB long; the whole is task.original
		}
	}
}

func traceSource(turn int) string { return fmt.Sprintf("trace:%d", turn) }

func pageOf(label nip.Label, v *owner.View, prompt int) nip.Page {
	t := &v.Task
	phase, _, _ := t.Summary()
	p := nip.Page{
		Scope: scopeOf(label, t), Title: cut(t.Intent.Title, 200), Prompt: cut(t.EffectivePrompt(), prompt),
		Phase: nip.Phase(phase), Execution: string(t.Execution), Verification: string(t.Checks),
		Integration: t.Integration(), Termination: termination(t), Delivery: delivery(t), Cleanup: cleanup(t),
		CostStatus: "unknown", Artifacts: []nip.PageArtifact{}, Children: []nip.PageChild{},
		Evidence: nip.Evidence{State: v.Evidence, TotalSteps: v.TotalSteps, Steps: []nip.Step{}, Faults: []nip.LineFault{}, MoreFaults: v.MoreFaults},
	}
	if whole := t.EffectivePrompt(); p.Prompt != whole {
		p.Artifacts = append(p.Artifacts, nip.PageArtifact{Label: "prompt", State: "retained", Original: &nip.OriginalRef{
			Source: "task", Digest: nip.DigestOf([]byte(whole)), Bytes: int64(len(whole)), MediaType: "text/plain",
		}})
	}
	if v.Trace != "" && v.Digest != "" {
		p.Evidence.Original = &nip.OriginalRef{Source: traceSource(t.Run.Turn), Digest: nip.Digest(v.Digest), Bytes: v.Bytes, MediaType: "application/jsonl"}
	}
	for _, s := range v.Steps {
		if s.JSON == nil {
			p.Evidence.Steps = append(p.Evidence.Steps, gapStep(s.Index, p.Evidence.Original))
			continue
		}
		p.Evidence.Steps = append(p.Evidence.Steps, nip.Step{Kind: "original", Index: s.Index, Step: s.JSON})
	}
	for _, f := range v.Faults {
		p.Evidence.Faults = append(p.Evidence.Faults, nip.LineFault{Line: f.Line, Kind: f.Kind})
	}
	if v.Next != nil && t.Run != nil && v.Digest != "" { // without a transcript there is nothing to go on from
		p.Next = &nip.PageCursor{
			Scope: p.Scope, Source: traceSource(t.Run.Turn), SourceDigest: nip.Digest(v.Digest), SourceBytes: v.Bytes,
			NextStep: v.Next.NextStep, PrefixDigest: nip.Digest(v.Next.PrefixDigest),
		}
	}
	p.MoreAvailable = v.More
	return p
}

// gapStep stands for a step that does not go into a page: its bytes are in the original.
func gapStep(index int, original *nip.OriginalRef) nip.Step {
	return nip.Step{Kind: "gap", Index: index, Reason: "oversized", Original: original}
}

// termination is how the turn's process ended, in the owner's own words.
func termination(t *owner.Task) string {
	switch {
	case t.NotStarted != "":
		return cut("not started: "+t.NotStarted, 128)
	case t.Run == nil || t.Run.Result == nil:
		return "none"
	}
	return cut(t.Run.Result.Ending, 128)
}

func delivery(t *owner.Task) string {
	switch {
	case t.Run == nil:
		return "not_delivered"
	case t.Run.Process == nil:
		return "admitted"
	}
	return "delivered"
}

func cleanup(t *owner.Task) string {
	switch {
	case t.Run == nil || t.Run.Result == nil:
		return "none"
	case t.Run.Clear():
		return "confirmed"
	}
	return "unconfirmed"
}

func (h *Host) readOriginal(w Workspace, q nip.OriginalQuery) (nip.Chunk, nip.Code, error) {
	var out nip.Chunk
	t, err := h.store.Get(owner.TaskID(q.Scope.Task))
	if err != nil {
		return out, "", err
	}
	if t.Intent.Workspace.Path != w.Path {
		return out, nip.Forbidden, nil
	}
	if !sameTurn(w.Label, q.Scope, &t) {
		return out, nip.Stale, nil
	}
	start := int64(0)
	if c := q.Cursor; c != nil {
		if c.Source != q.Original.Source || c.Digest != q.Original.Digest || c.NextByte < 0 {
			return out, nip.Malformed, nil
		}
		if c.PrefixDigest != prefixDigest(q.Original, c.NextByte) {
			return out, nip.Stale, nil
		}
		start = c.NextByte
	}
	data, total, digest, err := h.store.Original(t.ID, q.Original.Source, start, min(q.Limit, 16<<10))
	if err != nil {
		return out, "", err
	}
	if nip.Digest(digest) != q.Original.Digest || total != q.Original.Bytes {
		return out, nip.Stale, nil
	}
	out = nip.Chunk{Scope: q.Scope, Original: q.Original, Start: start, Data: data}
	if end := start + int64(len(data)); end < total {
		out.MoreAvailable = true
		out.Next = &nip.ChunkCursor{
			Scope: q.Scope, Source: q.Original.Source, Digest: q.Original.Digest, NextByte: end,
			PrefixDigest: prefixDigest(q.Original, end),
		}
	}
	return out, "", nil
}

// prefixDigest binds a chunk's cursor to the original and the place.
func prefixDigest(o nip.OriginalRef, end int64) nip.Digest {
	return nip.DigestOf(fmt.Appendf(nil, "%s %s %d", o.Source, o.Digest, end))
}

// cut shortens s to at most n bytes on a character boundary.
func cut(s string, n int) string {
	if len(s) <= n {
		return s
	}
	for n > 0 && !utf8.RuneStart(s[n]) {
		n--
	}
	return s[:n]
}
