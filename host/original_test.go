package host

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"holdfast/internal/skip"
	"holdfast/nip"
	"holdfast/owner"
	"holdfast/sandbox"
)

// original reads a whole original over the wire, in pieces.
func (r *rig) original(d device, scope nip.Scope, ref nip.OriginalRef) ([]byte, nip.Code) {
	r.t.Helper()
	var got []byte
	q := nip.OriginalQuery{Scope: scope, Original: ref, Limit: 16_384}
	for {
		p := r.overWire(d, nip.TaskOriginal{Query: q})
		out, ok := p.Outcome.(nip.Original)
		if !ok {
			return got, p.Refusal.Code
		}
		if int64(len(got)) != out.Original.Start || len(out.Original.Data) > q.Limit {
			r.t.Fatalf("%d bytes at %d, after %d", len(out.Original.Data), out.Original.Start, len(got))
		}
		got = append(got, out.Original.Data...)
		if q.Cursor = out.Original.Next; !out.Original.MoreAvailable {
			return got, ""
		}
	}
}

// What a turn changed, over the wire and from a real owner: the page names the
// manifest, the manifest names the files, and their bytes come by their digest;
// nobody gets a blob that is not theirs to read.
func TestOriginalOfChanges(t *testing.T) {
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	r := newRigIn(t, dir)
	r.git()
	r.launch = owner.Launch
	if able := sandbox.Probe(); able.Mechanism == "" {
		skip.Mounts(t, "no turn can be confined on this machine: "+fmt.Sprint(able.Gaps))
	}
	r.policy(func(p *Policy) {
		// 40,000 bytes, so in three pieces; and one small file.
		p.Rules[0].Arguments = []string{"-c", `i=0; while [ $i -lt 4000 ]; do echo 123456789; i=$((i+1)); done >big; cat >small`}
	})
	d := r.pair(nip.PairingRights())
	operator := r.pair(nip.Rights{nip.Operate})
	r.serve()
	task := r.createOverWire(d, "the first")
	r.until("the turn ends", func() bool { got := r.task(task); return got.Ended() })
	done := r.task(task)
	if done.Execution != owner.ExecFinished || done.Run.Result.Artifacts == "" {
		t.Fatalf("%s, not started %q, %+v", done.Execution, done.NotStarted, done.Run)
	}
	out, ok := r.overWire(d, nip.TaskRead{Query: nip.ReadQuery{Workspace: "demo", Task: string(task), Limit: 1}}).Outcome.(nip.TaskPage)
	if !ok {
		t.Fatal("no page")
	}
	var ref *nip.OriginalRef
	for _, a := range out.Task.Artifacts {
		if a.Label == "changes" && a.State == "retained" {
			ref = a.Original
		}
	}
	if ref == nil || ref.Source != "manifest:1" || ref.Digest != nip.Digest(done.Run.Result.Artifacts) {
		t.Fatalf("the page names %+v", out.Task.Artifacts)
	}
	scope := out.Task.Scope
	raw, code := r.original(d, scope, *ref)
	if code != "" || nip.DigestOf(raw) != ref.Digest {
		t.Fatalf("manifest: %s, %d bytes", code, len(raw))
	}
	var m owner.Changes
	if err := json.Unmarshal(raw, &m); err != nil || len(m.Changes) != 2 {
		t.Fatalf("%v %+v", err, m)
	}
	artifact := func(digest owner.Digest, n int64) nip.OriginalRef {
		return nip.OriginalRef{Source: "artifact:" + strings.TrimPrefix(string(digest), "sha256:"), Digest: nip.Digest(digest), Bytes: n, MediaType: "application/octet-stream"}
	}
	for i, want := range [][]byte{bytes.Repeat([]byte("123456789\n"), 4000), []byte("the first")} {
		side := m.Changes[i].After
		if got, code := r.original(d, scope, artifact(side.Digest, side.Bytes)); code != "" || !bytes.Equal(got, want) {
			t.Fatalf("%s: %s, %d bytes", m.Changes[i].Path, code, len(got))
		}
	}

	big := artifact(m.Changes[0].After.Digest, m.Changes[0].After.Bytes)
	grant := artifact(done.Run.Admission.GrantDigest, 600)
	other, err := r.c.store.PutBlob([]byte("of nobody's turn"))
	if err != nil {
		t.Fatal(err)
	}
	change := func(f func(o *nip.OriginalRef)) nip.OriginalRef { o := big; f(&o); return o }
	for _, row := range []struct {
		name string
		by   device
		ref  nip.OriginalRef
		code nip.Code
	}{
		{"by one that may not observe", operator, big, nip.MissingRight},
		{"a grant", d, grant, nip.Forbidden},
		{"a blob of nobody's", d, artifact(other, 16), nip.Forbidden},
		{"bytes that were never kept", d, artifact(owner.DigestOf([]byte("never")), 5), nip.Forbidden},
		{"another size", d, change(func(o *nip.OriginalRef) { o.Bytes-- }), nip.Stale},
		{"another digest than the source's", d, change(func(o *nip.OriginalRef) { o.Digest = ref.Digest }), nip.Stale},
		{"a turn that never was", d, nip.OriginalRef{Source: "manifest:2", Digest: ref.Digest, Bytes: ref.Bytes, MediaType: "x"}, nip.Forbidden},
	} {
		if _, code := r.original(row.by, scope, row.ref); code != row.code {
			t.Errorf("%s: %q, want %q", row.name, code, row.code)
		}
	}
	otherTask := r.createOverWire(d, "the second")
	r.until("the second turn ends", func() bool { got := r.task(otherTask); return got.Ended() })
	if got := r.task(otherTask); got.Run == nil || got.Run.Result.Artifacts == "" {
		t.Fatalf("the second turn: %q", got.NotStarted)
	}
	page, ok := r.overWire(d, nip.TaskRead{Query: nip.ReadQuery{Workspace: "demo", Task: string(otherTask), Limit: 1}}).Outcome.(nip.TaskPage)
	if !ok {
		t.Fatal("no page")
	}
	if got, code := r.original(d, page.Task.Scope, artifact(owner.DigestOf([]byte("the second")), 10)); code != "" || string(got) != "the second" {
		t.Errorf("its own file: %q, %q", code, got)
	}
	if _, code := r.original(d, page.Task.Scope, artifact(owner.DigestOf([]byte("the first")), 9)); code != nip.Forbidden {
		t.Errorf("another task's file: %q", code)
	}
	// A cursor of another place or original.
	first := r.overWire(d, nip.TaskOriginal{Query: nip.OriginalQuery{Scope: scope, Original: big, Limit: 100}}).Outcome.(nip.Original).Original
	forged := *first.Next
	forged.NextByte++
	if p := r.overWire(d, nip.TaskOriginal{Query: nip.OriginalQuery{Scope: scope, Original: big, Limit: 100, Cursor: &forged}}); p.Refusal == nil || p.Refusal.Code != nip.Stale {
		t.Errorf("a forged cursor: %+v", p)
	}
	// Bytes that are not what their name says are served to nobody, also when
	// they were sound a moment ago.
	hash := strings.TrimPrefix(string(big.Digest), "sha256:")
	path := filepath.Join(r.home, "blobs", "sha256", hash[:2], hash)
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	b[20_000] ^= 1
	if err := os.WriteFile(path, b, 0o600); err != nil {
		t.Fatal(err)
	}
	if got, code := r.original(d, scope, big); code != nip.Unavailable || len(got) != 0 {
		t.Errorf("damaged: %q after %d bytes", code, len(got))
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if _, code := r.original(d, scope, big); code != nip.Unavailable {
		t.Errorf("missing: %q", code)
	}
}
