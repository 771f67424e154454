package host

import (
	"reflect"
	"slices"
	"strings"
	"testing"

	"holdfast/nip"
	"holdfast/owner"
)

// lasting is what a refusal may not touch: the whole of host.db without the
// retained replies, the results for request.operation and their counts, the last
// sign of life and the journal's own notes, and every task.
func (r *rig) lasting(also ...string) ([]string, []owner.Task) {
	r.t.Helper()
	var kept []string
	for line := range strings.Lines(r.dump()) {
		bucket, _, _ := strings.Cut(line, "/")
		if !slices.Contains(append(also, "replies", "replies.index", "recovery", "recovery.ends", "meta", "last_seen", "journal.entry", "journal.history", "journal.of", "journal.count", "journal.meta"), bucket) {
			kept = append(kept, line)
		}
	}
	ids, err := r.c.store.List()
	if err != nil {
		r.t.Fatal(err)
	}
	var tasks []owner.Task
	for _, id := range ids {
		tasks = append(tasks, r.task(nip.TaskID(id)))
	}
	return kept, tasks
}

// Each code that the wire has, signed by a real host: what asks for it, what
// `missing` says, whether an exact retry gets the same bytes after a restart,
// and that nothing else became of the request.
func TestEveryRefusalCode(t *testing.T) {
	type question struct {
		from  device
		op    nip.Operation
		spoil func(string) string
	}
	rows := []struct {
		code    nip.Code
		missing nip.Right
		kept    bool
		also    string // a bucket that may change all the same
		ask     func(r *rig) question
	}{
		{code: nip.Malformed, kept: true, ask: func(r *rig) question {
			return question{from: r.pair(adminRights), op: nip.DeviceList{}, spoil: spoil("device.list", "host.shutdown")}
		}},
		{code: nip.Unsupported, kept: true, ask: func(r *rig) question {
			return question{from: r.pair(nip.StandardRights()), op: nip.Other{Name: "studio.snapshot", Answer: nip.Unsupported}}
		}},
		{code: nip.Forbidden, ask: func(r *rig) question {
			return question{from: device{key: newKey(r.t)}, op: nip.WorkspaceList{}}
		}},
		{code: nip.MissingRight, missing: nip.AccessRead, kept: true, ask: func(r *rig) question {
			return question{from: r.pair(nip.StandardRights()), op: nip.DeviceList{}}
		}},
		{code: nip.Expired, ask: func(r *rig) question {
			d := r.pairFor(1, nip.StandardRights(), newKey(r.t))
			r.clock.at.Store(d.grant.ExpiresAt)
			return question{from: d, op: nip.WorkspaceList{}}
		}},
		{code: nip.Revoked, ask: func(r *rig) question {
			d := r.pair(nip.StandardRights())
			if _, err := r.c.Revoke(r.t.Context(), d.pub(), false); err != nil {
				r.t.Fatal(err)
			}
			return question{from: d, op: nip.WorkspaceList{}}
		}},
		{code: nip.Stale, kept: true, ask: func(r *rig) question {
			d := r.pair(nip.StandardRights())
			return question{from: d, op: nip.TaskSteer{Task: r.create(d, "p"), Revision: 7, Prompt: "p"}}
		}},
		{code: nip.Conflict, kept: true, ask: func(r *rig) question {
			d := r.pair(nip.StandardRights())
			return question{from: d, op: nip.TaskArchive{Task: r.create(d, "p")}}
		}},
		{code: nip.Bounds, kept: true, ask: func(r *rig) question {
			d := r.pair(nip.StandardRights())
			return question{from: d, op: nip.TaskSteer{Task: r.create(d, "p"), Revision: 1, Prompt: "word"}, spoil: spoil(`"word"`, `" "`)}
		}},
		{code: nip.Unavailable, kept: true, ask: func(r *rig) question {
			return question{from: r.pair(nip.StandardRights()), op: nip.Other{Name: "thread.list", Answer: nip.Unavailable}}
		}},
		{code: nip.RateLimited, kept: true, ask: func(r *rig) question {
			d, op := r.pair(adminRights), r.approvable()
			right := op.Code
			op.Code = "0000-0000"
			for range maxEnrollmentTries {
				r.wantCode(r.ask(d, op), nip.WrongCode)
			}
			op.Code = right
			return question{from: d, op: op}
		}},
		{code: nip.WrongCode, kept: true, also: "enrollments", ask: func(r *rig) question {
			op := r.approvable()
			op.Code = "0000-0000"
			return question{from: r.pair(adminRights), op: op}
		}},
		{code: nip.Denied, kept: true, ask: func(r *rig) question {
			d, op := r.pair(adminRights), r.approvable()
			r.wantCode(r.ask(d, nip.EnrollDeny{Enrollment: op.Enrollment, RequestDigest: op.RequestDigest}), "")
			return question{from: d, op: op}
		}},
	}
	for _, row := range rows {
		t.Run(string(row.code), func(t *testing.T) {
			r := newRig(t)
			q := row.ask(r)
			var changes []func(string) string
			if q.spoil != nil {
				changes = append(changes, q.spoil)
			}
			in := r.sealed(q.from, r.req(q.from, q.op), changes...)
			before, tasks := r.lasting(row.also)
			replies := r.rows(bucketReplies)
			p := r.one(q.from, in)
			if p.Refusal == nil || *p.Refusal != (nip.Refusal{Code: row.code, Missing: row.missing}) || p.Outcome != nil {
				t.Fatalf("refused with %+v, outcome %+v", p.Refusal, p.Outcome)
			}
			if got := r.rows(bucketReplies) - replies; got != 0 != row.kept {
				t.Errorf("%d replies retained", got)
			}
			same := func(when string) {
				t.Helper()
				after, now := r.lasting(row.also)
				for _, line := range after {
					if !slices.Contains(before, line) {
						t.Errorf("%s: new in host.db: %s", when, line)
					}
				}
				if len(after) != len(before) || !reflect.DeepEqual(now, tasks) {
					t.Errorf("%s: %d rows were %d, or a task changed", when, len(after), len(before))
				}
			}
			same("refused")
			// A retained reply comes again as it was; another is found anew.
			r.restart()
			r.clock.add(6)
			again := r.give(in)
			if len(again) != 1 {
				t.Fatalf("the retry got %d replies", len(again))
			}
			second := r.read(q.from, again[0])
			if code(second) != row.code {
				t.Errorf("the retry got %+v", second.Refusal)
			}
			if got := second.IssuedAt == p.IssuedAt; got != row.kept {
				t.Errorf("the same bytes %v, want %v", got, row.kept)
			}
			same("asked again")
		})
	}
	have := map[nip.Code]bool{}
	for _, row := range rows {
		have[row.code] = true
	}
	if len(have) != 13 { // the wire's table of refusal codes
		t.Errorf("%d codes have a row", len(have))
	}
}

// approvable is an enrollment request with the approval that would be granted.
func (r *rig) approvable() nip.EnrollApprove {
	r.t.Helper()
	rec, code := r.enrolled(nip.StandardRights())
	return nip.EnrollApprove{Enrollment: rec.ID, RequestDigest: rec.Digest, Code: code, Device: newKey(r.t).Public(),
		Rights: nip.Rights{nip.Observe}, GrantExpiresAt: r.clock.now() + day}
}
