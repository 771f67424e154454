package main

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"

	"holdfast/host/client"
	"holdfast/nip"
)

// artifactRef finds a file that a turn changed, as it was before or after, in
// the manifest that the page names. A file has no line of its own in a page:
// there may be thousands.
func artifactRef(ctx context.Context, d *client.Device, p nip.Page, source string) (nip.OriginalRef, error) {
	name := strings.TrimPrefix(source, "artifact:")
	if !nip.ValidID(name) {
		return nip.OriginalRef{}, usage("an artifact is named by the 64 hex digits of its digest, not %q", name)
	}
	digest := "sha256:" + name
	for _, a := range p.Artifacts {
		if a.Original == nil || !strings.HasPrefix(a.Original.Source, "manifest:") {
			continue
		}
		raw, err := fetchOriginal(ctx, d, p.Scope, *a.Original)
		if err != nil {
			return nip.OriginalRef{}, err
		}
		type side struct {
			Bytes  int64  `json:"bytes"`
			Digest string `json:"digest"`
			Kept   bool   `json:"kept"`
		}
		var m struct {
			Changes []struct {
				Before, After *side
			} `json:"changes"`
		}
		if err := json.Unmarshal(raw, &m); err != nil {
			return nip.OriginalRef{}, fmt.Errorf("%s is not the JSON that it says: %w", a.Original.Source, err)
		}
		for _, c := range m.Changes {
			for _, s := range []*side{c.Before, c.After} {
				if s != nil && s.Kept && s.Digest == digest {
					return nip.OriginalRef{Source: source, Digest: nip.Digest(digest), Bytes: s.Bytes, MediaType: "application/octet-stream"}, nil
				}
			}
		}
		return nip.OriginalRef{}, usage("%s keeps no file %q", a.Original.Source, source)
	}
	return nip.OriginalRef{}, &cliError{Exit: exitFailed, Code: "absent", Message: "the task shows no changes that were kept"}
}
