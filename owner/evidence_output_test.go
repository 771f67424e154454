package owner

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"holdfast/internal/atomicfile"
	"holdfast/sandbox"
)

// piece is one step of output as it was recorded.
type piece struct {
	Message string
	outputExtra
}

// recorded runs chunks through output and reads the steps back.
func recorded(t *testing.T, errRoom int64, chunks ...sandbox.Chunk) (pieces []piece, incomplete bool) {
	t.Helper()
	dir := privateDir(t)
	tr, err := newTranscript(context.Background(), dir, 1, session{}, atomicfile.OS, time.Now, patience{sleep: sleepFor})
	if err != nil {
		t.Fatal(err)
	}
	out := newOutput(errRoom)
	for _, c := range chunks {
		if err := out.add(context.Background(), tr, c); err != nil {
			t.Fatal(err)
		}
	}
	if err := out.flush(context.Background(), tr); err != nil {
		t.Fatal(err)
	}
	if _, err := tr.seal(context.Background()); err != nil {
		t.Fatal(err)
	}
	for _, r := range traceLines(t, filepath.Join(dir, TraceName(1))) {
		if r.Type == "step" {
			p := piece{Message: r.Message}
			r.extra(t, &p.outputExtra)
			pieces = append(pieces, p)
		}
	}
	return pieces, out.incomplete
}

func TestOutputSteps(t *testing.T) {
	const o, e = sandbox.Stdout, sandbox.Stderr
	chunk := func(s sandbox.Stream, at int64, b string, gaps ...sandbox.Gap) sandbox.Chunk {
		return sandbox.Chunk{Stream: s, Offset: at, Bytes: []byte(b), Gaps: gaps}
	}
	for _, r := range []struct {
		name       string
		chunks     []sandbox.Chunk
		want       string // one line a step: stream offset bytes message [raw] gaps
		incomplete bool
	}{
		{"text", []sandbox.Chunk{chunk(o, 0, "héllo")}, `stdout 0 6 "héllo" []`, false},
		{"nothing", nil, ``, false},
		{"raw bytes", []sandbox.Chunk{chunk(o, 0, "a\xff\xfeb")}, `stdout 0 4 "a�b" [] raw Yf/+Yg==`, false},
		{"a character in two chunks", []sandbox.Chunk{chunk(o, 0, "a\xe2\x82"), chunk(o, 3, "\xacb")},
			`stdout 0 1 "a" []` + "\n" + `stdout 1 4 "€b" []`, false},
		{"a character that never ends", []sandbox.Chunk{chunk(o, 0, "a\xe2\x82")},
			`stdout 0 1 "a" []` + "\n" + `stdout 1 2 "�" [] raw 4oI=`, false},
		{"a character in three chunks", []sandbox.Chunk{chunk(o, 0, "\xf0\x9f"), chunk(o, 2, "\x98"), chunk(o, 3, "\x80")},
			`stdout 0 4 "😀" []`, false},
		{"a gap", []sandbox.Chunk{chunk(o, 0, "ab", sandbox.Gap{Offset: 2, Bytes: 5}), chunk(o, 7, "c")},
			`stdout 0 2 "ab" [{2 5}]` + "\n" + `stdout 7 1 "c" []`, true},
		{"a gap in a character", []sandbox.Chunk{chunk(o, 0, "a\xe2", sandbox.Gap{Offset: 2, Bytes: 5})},
			`stdout 0 2 "a�" [{2 5}] raw YeI=`, true},
		{"only a gap", []sandbox.Chunk{chunk(o, 0, "", sandbox.Gap{Offset: 0, Bytes: 5})}, `stdout 0 0 "" [{0 5}]`, true},
		{"streams do not mix", []sandbox.Chunk{chunk(o, 0, "a\xe2"), chunk(e, 0, "x"), chunk(o, 2, "\x82\xac")},
			`stdout 0 1 "a" []` + "\n" + `stderr 0 1 "x" []` + "\n" + `stdout 1 3 "€" []`, false},
		{"stderr beyond its room", []sandbox.Chunk{chunk(e, 0, "0123456"), chunk(e, 7, "789ab"), chunk(e, 12, "c", sandbox.Gap{Offset: 13, Bytes: 7}), chunk(o, 0, "z")},
			`stderr 0 7 "0123456" []` + "\n" + `stderr 7 3 "789" []` + "\n" + `stdout 0 1 "z" []` + "\n" + `stderr 10 0 "" [{10 10}]`, true},
		{"stderr of just its room", []sandbox.Chunk{chunk(e, 0, "0123456789")}, `stderr 0 10 "0123456789" []`, false},
	} {
		t.Run(r.name, func(t *testing.T) {
			pieces, incomplete := recorded(t, 10, r.chunks...)
			var lines []string
			for _, p := range pieces {
				line := strings.Join([]string{p.Stream, itoa(p.Offset), itoa(int64(p.Bytes)), `"` + p.Message + `"`}, " ") + " ["
				for _, g := range p.Gaps {
					line += "{" + itoa(g.Offset) + " " + itoa(g.Bytes) + "}"
				}
				line += "]"
				if p.Raw != nil {
					line += " raw " + base64.StdEncoding.EncodeToString(p.Raw)
				}
				lines = append(lines, line)
			}
			if got := strings.Join(lines, "\n"); got != r.want || incomplete != r.incomplete {
				t.Fatalf("incomplete %v\n got %s\nwant %s", incomplete, got, r.want)
			}
		})
	}
}

func itoa(n int64) string {
	b, _ := json.Marshal(n)
	return string(b)
}

// However it is spelled, a line stays within its bound.
func TestOutputLinesAreBounded(t *testing.T) {
	for _, b := range []string{"\x00", "\xff", "\x01\xff", "\u2028", "\""} {
		pieces, _ := recorded(t, 0, sandbox.Chunk{Stream: sandbox.Stdout, Bytes: []byte(strings.Repeat(b, 1<<20/len(b)))})
		total := 0
		for _, p := range pieces {
			total += p.Bytes
		}
		if total != 1<<20/len(b)*len(b) {
			t.Fatalf("%q: %d bytes", b, total)
		}
	}
}
