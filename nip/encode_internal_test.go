package nip

import (
	"bytes"
	"strings"
	"testing"

	json "github.com/go-json-experiment/json"
	"github.com/nbd-wtf/go-nostr"
)

// EncodeEvent writes what the general writer, followed by the canonical form,
// would write.
func TestEncodeEventIsCanonical(t *testing.T) {
	texts := []string{"", "plain", "\"\\/\b\f\n\r\t\x00\x1f\x7f<>&", "\u2028\u2029\ufffd é 𝄞", "\xff", "\xed\xa0\x80", strings.Repeat("x", 1<<20)}
	for i := range 256 {
		texts = append(texts, string(rune(i)))
	}
	for _, s := range texts {
		for _, at := range []nostr.Timestamp{0, -1, maxInt, maxInt + 1, -maxInt - 1, 1_790_000_000} {
			for _, tags := range []nostr.Tags{nil, {}, {{}}, {{"p", s}, {s}, nil, {"t", "x", "y"}}} {
				for _, ev := range []*Event{
					{CreatedAt: at, Kind: KindArtifact, Tags: tags, Content: s, ID: "id", PubKey: "key", Sig: "sig"},
					{CreatedAt: 1, Kind: int(at), Tags: tags, ID: s, PubKey: s, Sig: s},
				} {
					if got, want := EncodeEvent(ev), generalEvent(ev); !bytes.Equal(got, want) {
						t.Fatalf("%.60q at %d: %.200q, want %.200q", s, at, got, want)
					}
				}
			}
			if len(s) > 1<<16 {
				break
			}
		}
	}
}

func generalEvent(ev *Event) []byte {
	b, err := json.Marshal(eventMembers(ev))
	if err != nil {
		return nil
	}
	out, err := canonical(b, maxJSON, false)
	if err != nil {
		return nil
	}
	return out
}

func BenchmarkEncodeEvent(b *testing.B) {
	ev := &Event{CreatedAt: 1_790_000_000, Kind: KindArtifact, Tags: nostr.Tags{{"p", strings.Repeat("a", 64)}, {"h", strings.Repeat("b", 64)}, {"t", tagArtifact}},
		Content: strings.Repeat("c", 1500), ID: strings.Repeat("d", 64), PubKey: strings.Repeat("e", 64), Sig: strings.Repeat("f", 128)}
	b.Run("direct", func(b *testing.B) {
		for b.Loop() {
			EncodeEvent(ev)
		}
	})
	b.Run("general", func(b *testing.B) {
		for b.Loop() {
			generalEvent(ev)
		}
	})
}
