package nip_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"reflect"
	"testing"

	"holdfast/nip"
)

var loopback = nip.Profile{Loopback: true}

// tooBig says that a value was read that we would not write: readers go up to
// the wire's limits, writers stop where common relays do.
func tooBig(err error) bool {
	var e *nip.Error
	return errors.As(err, &e) && e.Code == nip.Bounds
}

// typed demands that every error of a parser is this package's own.
func typed(t *testing.T, err error) {
	t.Helper()
	var e *nip.Error
	if err != nil && !errors.As(err, &e) {
		t.Fatalf("an error of another type: %v", err)
	}
}

// roundTrip checks decode, encode, decode: the same value, and from then on the
// same bytes.
func roundTrip[T any](t *testing.T, in []byte, parse func([]byte) (T, error), encode func(T) (nip.Artifact, error)) {
	t.Helper()
	first, err := parse(in)
	typed(t, err)
	if err != nil {
		return
	}
	a, err := encode(first)
	typed(t, err)
	if tooBig(err) {
		return
	}
	if err != nil {
		t.Fatalf("what was read cannot be written: %v\n%s", err, in)
	}
	second, err := parse(a.Inline)
	if err != nil || !reflect.DeepEqual(first, second) {
		t.Fatalf("%+v became %+v (%v)", first, second, err)
	}
	again, err := encode(second)
	if err != nil || !bytes.Equal(again.Inline, a.Inline) {
		t.Fatalf("%s became %s (%v)", a.Inline, again.Inline, err)
	}
}

func FuzzCanonical(f *testing.F) {
	for _, s := range []string{`{"b":1,"a":[true,null,"\ud83d\ude00"]}`, `-0`, `1e3`, `"\u0000"`, `{"a":{"a":{}}}`, `9007199254740991`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		out, err := nip.Canonical(b)
		typed(t, err)
		if err != nil {
			return
		}
		again, err := nip.Canonical(out)
		if err != nil || !bytes.Equal(again, out) {
			t.Fatalf("%s became %s (%v)", out, again, err)
		}
		if !json.Valid(b) || !json.Valid(out) {
			t.Fatalf("%q is not JSON", b)
		}
	})
}

func FuzzParseEvent(f *testing.F) {
	f.Add(nip.EncodeEvent(sealedGrant(f)))
	f.Add([]byte(`{"id":"","pubkey":"","created_at":0,"kind":22242,"tags":[["a"],[]],"content":"","sig":""}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		ev, err := nip.ParseEvent(b)
		typed(t, err)
		if err != nil {
			return
		}
		out := nip.EncodeEvent(ev)
		again, err := nip.ParseEvent(out)
		if err != nil || !reflect.DeepEqual(ev, again) {
			t.Fatalf("%s (%v)", out, err)
		}
		v, err := nip.VerifyEvent(ev)
		typed(t, err)
		if err == nil && v.Event().Kind == nip.KindArtifact {
			_, err := nip.Open(v, deviceKey)
			typed(t, err)
		}
	})
}

func FuzzParseRequest(f *testing.F) {
	for _, op := range validOperations() {
		f.Add(bytesOf(f, requestObject(op)))
		f.Add(bytesOf(f, with(requestObject(op), obj{"grant": nil, "epoch": nil})))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		q, err := nip.ParseRequest(b, loopback)
		typed(t, err)
		if err == nil && (q.Op == nil) == (q.OpRefusal == "") {
			t.Fatalf("op %v, refusal %q", q.Op, q.OpRefusal)
		}
		if err == nil && q.Op == nil {
			return
		}
		roundTrip(t, b, func(b []byte) (nip.Request, error) { return nip.ParseRequest(b, loopback) }, nip.EncodeRequest)
	})
}

func FuzzParseReply(f *testing.F) {
	for _, o := range outcomes(f) {
		f.Add(bytesOf(f, replyObject(ok(o))))
	}
	f.Add(bytesOf(f, replyObject(refused("missing_right", "review"))))
	f.Fuzz(func(t *testing.T, b []byte) { roundTrip(t, b, nip.ParseReply, nip.EncodeReply) })
}

func FuzzParseGrant(f *testing.F) {
	f.Add(bytesOf(f, grantObject()))
	f.Fuzz(func(t *testing.T, b []byte) {
		roundTrip(t, b, func(b []byte) (nip.Grant, error) { return nip.ParseGrant(b, loopback) }, nip.EncodeGrant)
	})
}

func FuzzParseSummary(f *testing.F) {
	f.Add(bytesOf(f, summaryObject()), int64(issued), int64(issued+86_400))
	f.Fuzz(func(t *testing.T, b []byte, at, retain int64) {
		env := nip.Artifact{IssuedAt: at, RetainUntil: retain}
		roundTrip(t, b, func(b []byte) (nip.Summary, error) { return nip.ParseSummary(b, env) }, nip.EncodeSummary)
	})
}

func FuzzParsePresence(f *testing.F) {
	f.Add(bytesOf(f, presenceObject()))
	f.Fuzz(func(t *testing.T, b []byte) {
		roundTrip(t, b, nip.ParsePresence, func(p nip.Presence) (nip.Artifact, error) {
			return nip.EncodePresence(p, p.ObservedAt+240)
		})
	})
}

func FuzzParseStates(f *testing.F) {
	f.Add(bytesOf(f, statesObject()))
	f.Fuzz(func(t *testing.T, b []byte) { roundTrip(t, b, nip.ParseStates, nip.EncodeStates) })
}

func FuzzParseInvitation(f *testing.F) {
	s, err := nip.EncodeInvitation(fixtureInvitation(), loopback)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(s, int64(issued))
	f.Add("coder-host:AQ", int64(0))
	f.Fuzz(func(t *testing.T, s string, now int64) {
		i, err := nip.ParseInvitation(s, loopback, now)
		typed(t, err)
		if err != nil {
			return
		}
		if out, err := nip.EncodeInvitation(i, loopback); err != nil || out != s {
			t.Fatalf("%q became %q (%v)", s, out, err)
		}
	})
}

func FuzzHeadline(f *testing.F) {
	f.Add("Task waiting", "x")
	f.Add("[redacted]… a/b \xff", "")
	f.Fuzz(func(t *testing.T, s, fallback string) {
		got := nip.Headline(s, "Task running")
		if again := nip.Headline(got, "Task running"); again != got || len(got) > 160 || got == "" {
			t.Fatalf("%q then %q", got, again)
		}
		_ = nip.Headline(s, fallback)
	})
}

func FuzzParseEnrollment(f *testing.F) {
	f.Add(bytesOf(f, enrollmentObject()))
	f.Fuzz(func(t *testing.T, b []byte) {
		roundTrip(t, b, func(b []byte) (nip.Enrollment, error) { return nip.ParseEnrollment(b, loopback) }, nip.EncodeEnrollment)
	})
}

func FuzzParseNudge(f *testing.F) {
	f.Add(bytesOf(f, nudgeObject()))
	f.Fuzz(func(t *testing.T, b []byte) { roundTrip(t, b, nip.ParseNudge, nip.EncodeNudge) })
}

func FuzzParseHints(f *testing.F) {
	f.Add(bytesOf(f, hintsObject(hintObject(nil),
		hintObject(obj{"class": "lan", "transport": "tcp", "address": "[fd00::1%25a]:1"}),
		hintObject(obj{"class": "public", "transport": "websocket", "address": "ws://a:1/?b"}))))
	f.Fuzz(func(t *testing.T, b []byte) {
		roundTrip(t, b, func(b []byte) (nip.Hints, error) { return nip.ParseHints(b, loopback) }, nip.EncodeHints)
	})
}

func FuzzParseTaskPage(f *testing.F) {
	f.Add(bytesOf(f, taskPageObject()))
	f.Fuzz(func(t *testing.T, b []byte) { roundTrip(t, b, nip.ParseTaskPage, nip.EncodeTaskPage) })
}

func FuzzParseResult(f *testing.F) {
	f.Add([]byte(`{"status":"refused","code":"missing_right","missing":"operate"}`))
	f.Add([]byte(`{"outcome":{"kind":"dispatched","receipt":{"operation":"task.create","reference":"a"}},"status":"ok"}`))
	f.Add([]byte(`{"status":"ok","outcome":null}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		roundTrip(t, b, nip.ParseResult, func(res nip.Result) (nip.Artifact, error) {
			raw, err := nip.EncodeResult(res)
			return nip.Artifact{Inline: raw}, err
		})
	})
}

func FuzzEnrollmentCode(f *testing.F) {
	for _, s := range []string{"7K3M-Q9TX", "oOiI-lL00", "7K3MQ9T\xff", ""} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		code, err := nip.NormalizeEnrollmentCode(s)
		typed(t, err)
		if err != nil {
			return
		}
		if again, err := nip.NormalizeEnrollmentCode(code); err != nil || again != code || len(code) != 8 {
			t.Fatalf("%q became %q, then %q (%v)", s, code, again, err)
		}
	})
}
