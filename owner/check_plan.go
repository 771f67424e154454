package owner

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"io"
	"os"
	"path/filepath"
	"syscall"
)

const (
	maxSuiteManifest = 1 << 20
	maxSuite         = 128 << 20
)

// CheckPlan is what an admission froze of a grant's requirements.
type CheckPlan struct {
	Requirements Digest  `json:"requirements"` // of their canonical form; the grant is a blob
	Seconds      int64   `json:"seconds"`      // for all checks together
	Suites       []Suite `json:"suites"`
}

// Suite is one check as it was found at admission.
type Suite struct {
	Check          string `json:"check"`
	Manifest       string `json:"manifest"`
	ManifestDigest Digest `json:"manifest_digest"`
	Program        string `json:"program"`
	ProgramDigest  Digest `json:"program_digest"`
	Seconds        int64  `json:"seconds"`
	OutputBytes    int64  `json:"output_bytes"`
}

// valid holds what a log may say.
func (p *CheckPlan) valid() bool {
	if !p.Requirements.valid() || p.Seconds < 1 || p.Seconds > maxCheckSeconds || len(p.Suites) < 1 || len(p.Suites) > maxRequired {
		return false
	}
	for _, s := range p.Suites {
		if !identifier(s.Check, "") || !plainPath(s.Manifest) || !plainPath(s.Program) || !s.ManifestDigest.valid() || !s.ProgramDigest.valid() ||
			s.Seconds < 1 || s.Seconds > p.Seconds || s.OutputBytes < 1 || s.OutputBytes > maxCheckOutput {
			return false
		}
	}
	return true
}

// freezeChecks finds each suite that a grant names and pins it; nil where the grant asks for no checks. A suite that
// the turn's program could write is no witness: manifest and program lie outside of the workspace.
func freezeChecks(r *Requirements, workspace string) (*CheckPlan, error) {
	if r == nil {
		return nil, nil
	}
	p := &CheckPlan{Requirements: DigestOf(mustJSON(r)), Seconds: r.Plan.Seconds}
	for _, c := range r.Plan.Checks {
		s := Suite{Check: c.ID, Manifest: c.Manifest, ManifestDigest: c.ManifestDigest, ProgramDigest: c.Acceptance.SuiteDigest,
			Seconds: c.Seconds, OutputBytes: c.OutputBytes}
		b, why := readPinned(c.Manifest, c.ManifestDigest, workspace, false)
		if why != "" {
			return nil, &cannot{"unsafe_path", "the manifest of check " + c.ID + " " + why, nil}
		}
		// The rest of a manifest is for its own tools.
		var m struct {
			Transport string `json:"transport"`
			Detect    struct {
				Binary string `json:"binary"`
			} `json:"detect"`
		}
		if lax(b, &m) != nil || m.Transport != "subprocess" || len(m.Detect.Binary) > maxGrantPath || !canonicalText(m.Detect.Binary) {
			return nil, &cannot{"invalid_command", "the manifest of check " + c.ID + " does not name a program to run by its absolute path", nil}
		}
		s.Program = m.Detect.Binary
		if _, why := readPinned(s.Program, s.ProgramDigest, workspace, true); why != "" {
			return nil, &cannot{"unsafe_path", "the suite of check " + c.ID + " " + why, nil}
		}
		p.Suites = append(p.Suites, s)
	}
	return p, nil
}

// holds reports why a suite is no longer what was pinned; "" where it is.
func (s *Suite) holds(workspace string) string {
	if _, why := readPinned(s.Manifest, s.ManifestDigest, workspace, false); why != "" {
		return "the manifest of check " + s.Check + " " + why
	}
	if _, why := readPinned(s.Program, s.ProgramDigest, workspace, true); why != "" {
		return "the suite of check " + s.Check + " " + why
	}
	return ""
}

// readPinned looks at a file by its canonical path: a suite's program, or a manifest, whose bytes it returns. why says
// what is wrong with it, without a path, "" where nothing is.
func readPinned(path string, want Digest, workspace string, program bool) (b []byte, why string) {
	most := int64(maxSuiteManifest)
	if program {
		most = maxSuite
	}
	real, err := filepath.EvalSymlinks(path)
	switch {
	case err != nil:
		return nil, "is missing"
	case real != path:
		return nil, "leads over a link; name its real path"
	case within(path, workspace):
		return nil, "lies inside the workspace"
	}
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, "cannot be read"
	}
	defer f.Close()
	info, err := f.Stat()
	switch {
	case err != nil || !info.Mode().IsRegular() || info.Size() > most:
		return nil, "is no file of a size that is taken"
	case program && info.Mode().Perm()&0o111 == 0:
		return nil, "is no executable file"
	}
	h := sha256.New()
	var into io.Writer = h
	var kept bytes.Buffer
	if !program {
		into = io.MultiWriter(h, &kept)
	}
	if _, err := io.Copy(into, io.LimitReader(f, most+1)); err != nil {
		return nil, "cannot be read"
	}
	if Digest("sha256:"+hex.EncodeToString(h.Sum(nil))) != want {
		return nil, "is not the one that was pinned"
	}
	return kept.Bytes(), ""
}
