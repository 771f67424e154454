package main

import (
	"fmt"
	"strings"
	"testing"

	"holdfast/nip"
)

// A file that a turn changed is fetched by its digest: its length comes out of
// the manifest that the page names.
func TestDeviceArtifact(t *testing.T) {
	file := []byte("exact bytes")
	digest := nip.DigestOf(file)
	hex := strings.TrimPrefix(string(digest), "sha256:")
	manifest := fmt.Appendf(nil, `{"v":"holdfast.retained-changes.v1","changes":[{"path":"a","before":{"bytes":3,"digest":%q},"after":{"bytes":%d,"digest":%q,"kept":true}}]}`,
		nip.DigestOf([]byte("old")), len(file), digest)
	kept := true
	v, s, _ := atHost(t)
	s.set(func(r nip.Request) (nip.Outcome, *nip.Refusal) {
		out, refusal := readable(nip.PhaseCompleted)(r)
		switch p := out.(type) {
		case nip.TaskPage:
			if kept {
				p.Task.Artifacts = []nip.PageArtifact{{Label: "changes", State: "retained", Original: &nip.OriginalRef{
					Source: "manifest:1", Digest: nip.DigestOf(manifest), Bytes: int64(len(manifest)), MediaType: "application/json"}}}
			}
			return p, refusal
		case nip.Original:
			if p.Original.Original.Source == "manifest:1" {
				p.Original.Data = manifest
			}
			return p, refusal
		}
		return out, refusal
	})
	if doc := v.ok(t, "original", taskA, "--source", "artifact:"+hex); doc["data"] != "ZXhhY3QgYnl0ZXM=" || doc["digest"] != string(digest) {
		t.Errorf("artifact %v", doc)
	}
	old := strings.TrimPrefix(string(nip.DigestOf([]byte("old"))), "sha256:")
	v.fails(t, exitUsage, "usage", "original", taskA, "--source", "artifact:"+old) // its bytes were not kept
	kept = false
	v.fails(t, exitFailed, "absent", "original", taskA, "--source", "artifact:"+hex)
}
