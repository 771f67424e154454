package nip_test

import (
	"strings"
	"testing"

	"holdfast/nip"
)

func benchArtifact(b *testing.B, n int) nip.Artifact {
	b.Helper()
	a, err := nip.EncodeRequest(nip.Request{
		ID: nip.RequestID(id("a")), Host: host, Grant: nip.GrantID(id("1")), Relay: fixRelay,
		IssuedAt: issued, ExpiresAt: issued + 60,
		Op: nip.TaskSteer{Task: fixTask, Revision: 1, Prompt: strings.Repeat("x", n)},
	})
	if err != nil {
		b.Fatal(err)
	}
	return a
}

func BenchmarkSeal(b *testing.B) {
	for name, n := range map[string]int{"1KiB": 1_024, "16KiB": 16_384} {
		b.Run(name, func(b *testing.B) {
			a := benchArtifact(b, n)
			b.ReportAllocs()
			for b.Loop() {
				if _, err := nip.Seal(deviceKey, host, nip.Mailbox(id("a")), a, nil); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func BenchmarkVerifyEvent(b *testing.B) {
	for name, n := range map[string]int{"1KiB": 1_024, "16KiB": 16_384} {
		b.Run(name, func(b *testing.B) {
			ev, err := nip.Seal(deviceKey, host, nip.Mailbox(id("a")), benchArtifact(b, n), nil)
			if err != nil {
				b.Fatal(err)
			}
			b.ReportAllocs()
			for b.Loop() {
				if _, err := nip.VerifyEvent(ev); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkOpen is hops 2 and 3 without the signature: decrypt, check, decode.
func BenchmarkOpen(b *testing.B) {
	for name, n := range map[string]int{"1KiB": 1_024, "16KiB": 16_384} {
		b.Run(name, func(b *testing.B) {
			ev, err := nip.Seal(deviceKey, host, nip.Mailbox(id("a")), benchArtifact(b, n), nil)
			if err != nil {
				b.Fatal(err)
			}
			v, err := nip.VerifyEvent(ev)
			if err != nil {
				b.Fatal(err)
			}
			b.ReportAllocs()
			for b.Loop() {
				o, err := nip.Open(v, hostKey)
				if err != nil {
					b.Fatal(err)
				}
				if _, err := nip.ParseRequest(o.Inline, nip.Profile{}); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
