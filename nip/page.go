package nip

import (
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"
)

// The bounds of a page. The wire lets a prompt be 16 MiB; what we write is held
// by the outcome's own ceiling long before.
const (
	maxStep       = 16_384 // canonical bytes
	maxArtifacts  = 64
	maxChildren   = 64
	maxFaults     = 64
	maxFact       = 128
	maxName       = 1_024
	maxPagePrompt = 16 << 20
)

func (o object) page() Page {
	p := Page{
		Scope: o.object("scope").scope(), Title: o.text("title"), Prompt: o.text("prompt"),
		Phase: oneOf(o, "phase", phases...), Execution: o.text("execution"),
		Verification: o.text("verification"), Integration: o.text("integration"),
		Termination: o.text("termination"), Delivery: o.text("delivery"), Cleanup: o.text("cleanup"),
		CostMicroUSD: o.intOrNull("cost_microusd"), CostStatus: o.text("cost_status"),
		Evidence: o.object("evidence").evidence(),
	}
	for _, v := range o.list("artifacts", maxArtifacts) {
		a := o.r.object(o.path+".artifacts", v)
		p.Artifacts = append(p.Artifacts, PageArtifact{
			Label: a.text("label"), State: a.text("state"), Original: a.originalOrNull("original"),
		})
		a.end()
	}
	for _, v := range o.list("children", maxChildren) {
		c := o.r.object(o.path+".children", v)
		child := PageChild{SourceStep: c.count("source_step"), CallID: c.text("call_id"), Agent: c.text("agent")}
		if !c.null("reference") {
			ref := c.text("reference")
			child.Reference = &ref
		}
		child.State = c.text("state")
		c.end()
		p.Children = append(p.Children, child)
	}
	p.MoreChildren = o.bool("more_children")
	p.Next, p.MoreAvailable = o.pageCursor("next"), o.bool("more_available")
	o.end()
	return p
}

func (o object) evidence() Evidence {
	e := Evidence{State: o.text("state"), Original: o.originalOrNull("original"), TotalSteps: o.count("total_steps")}
	for _, v := range o.list("steps", maxSteps) {
		e.Steps = append(e.Steps, o.r.object(o.path+".steps", v).step())
	}
	for _, v := range o.list("faults", maxFaults) {
		f := o.r.object(o.path+".faults", v)
		e.Faults = append(e.Faults, LineFault{Line: f.count("line"), Kind: f.text("kind")})
		f.end()
	}
	e.MoreFaults = o.bool("more_faults")
	o.end()
	return e
}

func (o object) step() Step {
	s := Step{Kind: oneOf(o, "kind", "original", "gap"), Index: o.count("index")}
	switch s.Kind {
	case "original":
		raw := o.raw("step")
		if o.r.err == nil {
			b, err := canonicalStep(raw)
			if err != nil {
				o.r.err = withLayer(err, o.r.layer, "step")
			}
			s.Step = b
		}
	case "gap":
		s.Reason = oneOf(o, "reason", "oversized")
		f := o.object("original").original()
		s.Original = &f
	}
	o.end()
	return s
}

// canonicalStep takes one transcript step: any JSON object, its numbers too.
func canonicalStep(b []byte) ([]byte, error) {
	if jsontext.Value(b).Kind() != '{' {
		return nil, fault(Malformed, layerJSON, "a step is not an object")
	}
	return canonical(b, maxStep, true)
}

// page holds a page to its rules. A fact that is not known has a word that says
// so; none is ever empty.
func (v *validator) page(p Page) {
	v.scope(p.Scope)
	v.title(p.Title)
	v.must(len(p.Prompt) <= maxPagePrompt && utf8.ValidString(p.Prompt), Bounds, "prompt is too long")
	v.phase(p.Phase)
	for _, fact := range []string{
		p.Execution, p.Verification, p.Integration, p.Termination, p.Delivery, p.Cleanup, p.CostStatus, p.Evidence.State,
	} {
		v.text(fact, maxFact, "a fact of the page")
	}
	if p.CostMicroUSD != nil {
		v.int(*p.CostMicroUSD, "cost_microusd")
	}
	v.evidence(p.Evidence)
	v.must(len(p.Artifacts) <= maxArtifacts, Bounds, "too many artifacts")
	for _, a := range p.Artifacts {
		v.text(a.Label, maxName, "an artifact's label")
		v.text(a.State, maxFact, "an artifact's state")
		if a.Original != nil {
			v.original(*a.Original)
		}
	}
	v.must(len(p.Children) <= maxChildren, Bounds, "too many children")
	for _, c := range p.Children {
		v.int(int64(c.SourceStep), "a child's source_step")
		v.text(c.CallID, maxName, "a child's call_id")
		v.text(c.Agent, maxName, "a child's agent")
		want := "unavailable"
		if c.Reference != nil {
			want = "reference_only"
			v.text(*c.Reference, maxName, "a child's reference")
		}
		v.must(c.State == want, Malformed, "a child's state does not agree with its reference")
	}
	if p.Next != nil {
		v.pageCursor(*p.Next)
		v.must(p.Next.Scope.Equal(p.Scope), Malformed, "next is of another scope")
	}
	v.must(p.Next != nil || !p.MoreAvailable, Malformed, "more is available without a cursor")
}

func (v *validator) evidence(e Evidence) {
	if e.Original != nil {
		v.original(*e.Original)
	}
	v.int(int64(e.TotalSteps), "total_steps")
	v.must(len(e.Steps) <= maxSteps, Bounds, "too many steps")
	for i, s := range e.Steps {
		v.int(int64(s.Index), "a step's index")
		v.must(s.Index == e.Steps[0].Index+i, Malformed, "steps are not contiguous")
		v.must(s.Index < e.TotalSteps, Malformed, "a step lies past total_steps")
		switch s.Kind {
		case "original":
			v.must(s.Reason == "" && s.Original == nil, Malformed, "a step carries a gap's members")
			if v.err == nil {
				if _, err := canonicalStep(s.Step); err != nil {
					v.err = withLayer(err, v.layer, "step")
				}
			}
		case "gap":
			v.must(s.Reason == "oversized" && s.Original != nil && len(s.Step) == 0, Malformed, "a gap names no original")
			if v.err == nil {
				v.original(*s.Original)
			}
		default:
			v.must(false, Malformed, "a step's kind is not known")
		}
	}
	v.must(len(e.Faults) <= maxFaults, Bounds, "too many faults")
	for _, f := range e.Faults {
		v.int(int64(f.Line), "a fault's line")
		v.text(f.Kind, maxFact, "a fault's kind")
	}
}

func pageMembers(p Page) members {
	artifacts := make([]members, 0, len(p.Artifacts))
	for _, a := range p.Artifacts {
		artifacts = append(artifacts, members{
			"label": a.Label, "state": a.State, "original": orNull(a.Original, originalMembers),
		})
	}
	children := make([]members, 0, len(p.Children))
	for _, c := range p.Children {
		children = append(children, members{
			"source_step": c.SourceStep, "call_id": c.CallID, "agent": c.Agent,
			"reference": c.Reference, "state": c.State,
		})
	}
	return members{
		"scope": scopeMembers(p.Scope), "title": p.Title, "prompt": p.Prompt, "phase": p.Phase,
		"execution": p.Execution, "verification": p.Verification, "integration": p.Integration,
		"termination": p.Termination, "delivery": p.Delivery, "cleanup": p.Cleanup,
		"cost_microusd": p.CostMicroUSD, "cost_status": p.CostStatus,
		"evidence":  evidenceMembers(p.Evidence),
		"artifacts": artifacts, "children": children, "more_children": p.MoreChildren,
		"next": orNull(p.Next, pageCursorMembers), "more_available": p.MoreAvailable,
	}
}

func evidenceMembers(e Evidence) members {
	steps := make([]members, 0, len(e.Steps))
	for _, s := range e.Steps {
		m := members{"kind": s.Kind, "index": s.Index}
		if s.Kind == "gap" {
			m["reason"], m["original"] = s.Reason, orNull(s.Original, originalMembers)
		} else {
			m["step"] = jsontext.Value(s.Step)
		}
		steps = append(steps, m)
	}
	faults := make([]members, 0, len(e.Faults))
	for _, f := range e.Faults {
		faults = append(faults, members{"line": f.Line, "kind": f.Kind})
	}
	return members{
		"state": e.State, "original": orNull(e.Original, originalMembers), "total_steps": e.TotalSteps,
		"steps": steps, "faults": faults, "more_faults": e.MoreFaults,
	}
}
