package owner

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// blob reads a blob by the document.
func (p paperReader) blob(digest string) ([]byte, error) {
	name := strings.TrimPrefix(digest, "sha256:")
	b, err := os.ReadFile(filepath.Join(p.home, "blobs", "sha256", name[:2], name))
	if err != nil {
		return nil, err
	}
	if sum := sha256.Sum256(b); hex.EncodeToString(sum[:]) != name {
		return nil, fmt.Errorf("blob %s", name)
	}
	return b, nil
}

// context reads what was frozen for the first turn of a log that admitted one: its files by path, held against the
// admission and the grant.
func (p paperReader) context(log []byte) (map[string]string, error) {
	_, frames, err := p.frames(log)
	if err != nil {
		return nil, err
	}
	for _, f := range frames {
		var e struct {
			Event struct {
				Admitted *struct {
					Grant    string          `json:"grant_digest"`
					Context  string          `json:"context_digest"`
					Prompt   string          `json:"prompt_digest"`
					Source   string          `json:"source_snapshot"`
					Revision int64           `json:"read_revision"`
					Checks   json.RawMessage `json:"checks"`
				}
			}
		}
		if f.kind != 2 || json.Unmarshal(f.payload, &e) != nil || e.Event.Admitted == nil {
			continue
		}
		a := e.Event.Admitted
		b, err := p.blob(a.Context)
		if err != nil {
			return nil, err
		}
		var c struct {
			V            string
			TaskID       string `json:"task_id"`
			Turn         int
			Revision     int64           `json:"task_revision"`
			Prompt       string          `json:"prompt_digest"`
			Source       string          `json:"source_snapshot"`
			Checks       json.RawMessage `json:"checks"`
			Lineage      json.RawMessage
			Instructions []struct {
				Path, Scope, Digest string
				Bytes               int
			}
			Knowledge []map[string]json.RawMessage
		}
		if err := json.Unmarshal(b, &c); err != nil {
			return nil, err
		}
		if c.V != "holdfast.frozen-context.v1" || c.TaskID != "t" || c.Turn != 1 || c.Revision != a.Revision || c.Prompt != a.Prompt ||
			c.Source != a.Source || string(c.Checks) != string(a.Checks) {
			return nil, fmt.Errorf("%s is not of %+v", b, a)
		}
		if b, err = p.blob(a.Grant); err != nil {
			return nil, err
		}
		var g struct {
			Requirements struct {
				Knowledge    []map[string]json.RawMessage
				TaskSources  json.RawMessage `json:"task_sources"`
				Exclusions   json.RawMessage `json:"source_exclusions"`
				CheckLineage json.RawMessage `json:"check_lineage"`
			}
		}
		if err := json.Unmarshal(b, &g); err != nil {
			return nil, err
		}
		r := g.Requirements
		if want := fmt.Sprintf(`{"task_sources":%s,"source_exclusions":%s,"checks":%s}`, r.TaskSources, r.Exclusions, r.CheckLineage); string(c.Lineage) != want {
			return nil, fmt.Errorf("lineage %s, not %s", c.Lineage, want)
		}
		files := map[string]string{}
		text := func(path, digest string, bytes int) error {
			b, err := p.blob(digest)
			if err == nil && len(b) != bytes {
				err = fmt.Errorf("%s has %d bytes, not %d", path, len(b), bytes)
			}
			files[path] = string(b)
			return err
		}
		for _, in := range c.Instructions {
			if in.Path != filepath.Join(in.Scope, "AGENTS.md") {
				return nil, fmt.Errorf("%q speaks for %q", in.Path, in.Scope)
			}
			if err := text(in.Path, in.Digest, in.Bytes); err != nil {
				return nil, err
			}
		}
		if len(c.Knowledge) != len(r.Knowledge) {
			return nil, fmt.Errorf("%d pieces of knowledge", len(c.Knowledge))
		}
		for i, k := range c.Knowledge {
			var path, digest string
			var bytes int
			if json.Unmarshal(k["path"], &path) != nil || json.Unmarshal(k["digest"], &digest) != nil || json.Unmarshal(k["bytes"], &bytes) != nil {
				return nil, fmt.Errorf("knowledge %s", k)
			}
			if err := text(path, digest, bytes); err != nil {
				return nil, err
			}
			delete(k, "bytes")
			if len(k) != 5 {
				return nil, fmt.Errorf("knowledge %s", k)
			}
			for name, v := range r.Knowledge[i] {
				if string(k[name]) != string(v) {
					return nil, fmt.Errorf("%s of knowledge is %s, not %s", name, k[name], v)
				}
			}
		}
		return files, nil
	}
	return nil, fmt.Errorf("no turn was admitted")
}

// A reader that was written from docs/disk.md alone finds what was frozen, and that it belongs to its turn.
func TestContextByTheDocument(t *testing.T) {
	w, _ := frozenTurn(t)
	got, err := paperReader{w.home}.context(readFile(t, filepath.Join(w.s.TaskDir("t"), "log")))
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]string{"AGENTS.md": "be kind\n", "src/AGENTS.md": "be brief\n", "docs/k.md": someEntry}
	for path, text := range want {
		if got[path] != text {
			t.Errorf("%s is %q", path, got[path])
		}
	}
	if len(got) != len(want) {
		t.Errorf("%v", got)
	}
}
