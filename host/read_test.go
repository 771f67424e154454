package host

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"holdfast/nip"
	"holdfast/owner"
)

// readPage asks for one page, as a device does.
func (r *rig) readPage(d device, task nip.TaskID, limit int, from *nip.PageCursor) nip.Reply {
	r.t.Helper()
	q := nip.ReadQuery{Workspace: "demo", Task: string(task), Limit: limit, Cursor: from}
	if from != nil {
		q.Revision = &from.Scope.Revision
	}
	return r.ask(d, nip.TaskRead{Query: q})
}

// A device that reads on gets every step once and in order, whatever is in them: what does not fit is named as a gap,
// whose bytes are in the original.
func TestReadOn(t *testing.T) {
	r := newRig(t)
	d := r.pair(nip.PairingRights())
	task := r.create(d, strings.Repeat("é", 6_000))
	r.begin(task)
	var b bytes.Buffer
	fmt.Fprintf(&b, `{"type":"session","id":"%s-1","at":1}`+"\n", task)
	gaps := map[int]bool{}
	for i := range 30 {
		message, extra := strings.Repeat("é", 100), `{}`
		switch i {
		case 3, 29:
			message, gaps[i] = strings.Repeat("é", 9<<10), true
		case 4, 5, 6:
			message = strings.Repeat("x", 16<<10-120) // a page of its own
		case 10:
			extra, gaps[i] = `{"n":1e999}`, true // no canonical form
		case 11:
			extra, gaps[i] = `{"n":[`+strings.TrimSuffix(strings.Repeat("1e20,", 3000), ",")+`]}`, true // a longer one
		}
		fmt.Fprintf(&b, `{"type":"step","step_id":%d,"at":%d,"source":"agent","message":"%s","extra":%s}`+"\n", i+1, i, message, extra)
	}
	path := filepath.Join(r.c.store.TaskDir(owner.TaskID(task)), owner.TraceName(1))
	write := func(b []byte) {
		t.Helper()
		if err := os.WriteFile(path, b, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(b.Bytes())
	var cursor, early *nip.PageCursor
	var ref *nip.OriginalRef
	seen, pages := 0, 0
	for {
		p := r.readPage(d, task, 64, cursor)
		out, ok := p.Outcome.(nip.TaskPage)
		if !ok {
			t.Fatalf("from step %d: %+v", seen, p.Refusal)
		}
		page := out.Task
		if raw, err := nip.EncodeOutcome(out); err != nil || len(raw) > 49_152 {
			t.Fatalf("%d bytes, %v", len(raw), err)
		}
		if whole := strings.Repeat("é", 6_000); !strings.HasPrefix(whole, page.Prompt) || page.Evidence.TotalSteps != 30 {
			t.Fatalf("prompt %.20q, %d steps", page.Prompt, page.Evidence.TotalSteps)
		}
		for _, step := range page.Evidence.Steps {
			if step.Index != seen || (step.Kind == "gap") != gaps[seen] || gaps[seen] && (step.Reason != "oversized" || step.Original == nil) {
				t.Fatalf("step %d: %+v", seen, step)
			}
			if step.Original != nil {
				ref = step.Original
			}
			seen++
		}
		cursor = page.Next
		if pages++; early == nil {
			early = cursor
		}
		if !page.MoreAvailable {
			break
		}
	}
	if seen != 30 || pages < 4 {
		t.Fatalf("%d steps in %d pages", seen, pages)
	}

	// The original of the gaps, in chunks that cut characters.
	var got []byte
	q := nip.OriginalQuery{Scope: cursor.Scope, Original: *ref, Limit: 16_383}
	for {
		p := r.ask(d, nip.TaskOriginal{Query: q})
		out, ok := p.Outcome.(nip.Original)
		if !ok {
			t.Fatalf("%+v", p.Refusal)
		}
		got = append(got, out.Original.Data...)
		if q.Cursor = out.Original.Next; !out.Original.MoreAvailable {
			break
		}
	}
	if !bytes.Equal(got, b.Bytes()) {
		t.Fatal("other bytes than the transcript's")
	}

	// Appended lines make no cursor stale; a prefix that changed does, and so does a cursor of something else.
	write(append(bytes.Clone(b.Bytes()), `{"type":"step","step_id":31,"at":1,"source":"agent","message":"more"}`+"\n"...))
	p := r.readPage(d, task, 64, cursor)
	if out, ok := p.Outcome.(nip.TaskPage); !ok || len(out.Task.Evidence.Steps) != 1 || out.Task.Evidence.Steps[0].Index != 30 {
		t.Fatalf("%+v %+v", p.Outcome, p.Refusal)
	}
	for name, change := range map[string]func(c *nip.PageCursor){
		"another prefix": func(c *nip.PageCursor) { c.PrefixDigest = nip.DigestOf(nil) },
		"another place":  func(c *nip.PageCursor) { c.NextStep-- },
		"past the end":   func(c *nip.PageCursor) { c.NextStep = 1000 },
		"another turn":   func(c *nip.PageCursor) { c.Source = "trace:2" },
		"another intent": func(c *nip.PageCursor) { c.Scope.IntentDigest = nip.DigestOf(nil) },
	} {
		c := *early
		change(&c)
		if p := r.readPage(d, task, 64, &c); p.Refusal == nil || p.Refusal.Code != nip.Stale {
			t.Errorf("%s: %+v %+v", name, p.Outcome, p.Refusal)
		}
	}
	write(bytes.Replace(b.Bytes(), []byte(`"at":0,`), []byte(`"at":7,`), 1))
	if p := r.readPage(d, task, 64, cursor); p.Refusal == nil || p.Refusal.Code != nip.Stale {
		t.Fatalf("%+v %+v", p.Outcome, p.Refusal)
	}
}
