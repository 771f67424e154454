package nip

import "slices"

// The bounds of an activity summary (NIP-HOST, companion records).
const (
	maxSummary       = 1_024 // canonical bytes of the body
	maxHeadline      = 160   // bytes
	maxSummaryRetain = 604_800
	summaryRetain    = 86_400
	failedHeadline   = "Task failed"
)

var attentions = []string{"none", "approval", "input", "completed", "failed"}

// ParseSummary decodes the canonical body of an activity summary; env is the
// artifact that carried it, whose times belong to the rules. A subject other
// than a task is unsupported. That the host is the signer is for the caller.
func ParseSummary(inline []byte, env Artifact) (Summary, error) {
	r := &reader{layer: layerSchema}
	o := r.document("summary", inline, maxSummary)
	v, requires := o.header()
	s := Summary{Host: PubKey(o.text("host"))}
	subject := o.object("subject")
	kind := oneOf(subject, "kind", "task", "session")
	s.Task = TaskID(subject.text("id"))
	subject.end()
	s.Sequence, s.Phase = o.int("sequence"), oneOf(o, "phase", phases...)
	s.Headline, s.Attention = o.text("headline"), oneOf(o, "attention", attentions...)
	s.UpdatedAt = o.int("updated_at")
	o.end()
	r.checkHeader(v, requires, SchemaSummary)
	if kind != "task" {
		r.fail(Unsupported, "the subject is not a task")
	}
	if r.err == nil {
		r.err = checkSummary(s)
	}
	if r.err == nil && (env.IssuedAt != s.UpdatedAt ||
		env.RetainUntil <= s.UpdatedAt || env.RetainUntil > s.UpdatedAt+maxSummaryRetain) {
		r.fail(Malformed, "the envelope's times do not agree with updated_at")
	}
	if r.err != nil {
		return Summary{}, r.err
	}
	return s, nil
}

// checkSummary refuses a headline that redaction would change: whoever reads it
// may be looking at a locked screen.
func checkSummary(s Summary) *Error {
	v := &validator{layer: layerSchema}
	v.key(s.Host, "host")
	v.id(string(s.Task), "subject.id")
	v.int(s.Sequence, "sequence")
	v.phase(s.Phase)
	v.must(slices.Contains(attentions, s.Attention), Malformed, "attention is not known")
	v.must(attentionFits(s.Phase, s.Attention), Malformed, "attention does not agree with phase")
	v.int(s.UpdatedAt, "updated_at")
	v.text(s.Headline, maxHeadline, "headline")
	v.must(s.Phase != PhaseFailed || s.Headline == failedHeadline, Malformed, "the headline of a failed task says more")
	v.must(Headline(s.Headline, "") == s.Headline, Malformed, "headline is not redacted")
	return v.err
}

func attentionFits(p Phase, attention string) bool {
	switch attention {
	case "approval", "input":
		return p == PhaseWaiting
	case "completed":
		return p == PhaseCompleted
	case "failed":
		return p == PhaseFailed
	}
	return p != PhaseFailed
}

// EncodeSummary writes a summary under the rules of ParseSummary, and refuses
// what redaction would change. Its artifact is retained for 86,400 seconds; the
// caller may set RetainUntil up to 604,800 seconds after UpdatedAt before sealing.
func EncodeSummary(s Summary) (Artifact, error) {
	if err := checkSummary(s); err != nil {
		return Artifact{}, err
	}
	a, err := artifact(SchemaSummary, members{
		"host": s.Host, "subject": members{"kind": "task", "id": s.Task}, "sequence": s.Sequence,
		"phase": s.Phase, "headline": s.Headline, "attention": s.Attention, "updated_at": s.UpdatedAt,
	}, s.UpdatedAt, s.UpdatedAt+summaryRetain)
	if err == nil && len(a.Inline) > maxSummary {
		return Artifact{}, fault(Bounds, layerSchema, "the summary is over 1,024 bytes")
	}
	return a, err
}
