package remote

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"holdfast/host/client/remote/remotetest"
)

// What Save gives makes the same bunker again, without a word to it before the
// first call, under the same client key.
func TestSaveAndResume(t *testing.T) {
	s := remotetest.New(t)
	b := connect(t, s, Options{})
	raw, err := b.Save()
	if err != nil {
		t.Fatal(err)
	}
	before := s.Relay.Conns()
	var methods []string
	s.Set(func(r remotetest.Request, honest remotetest.Response) []remotetest.Response {
		methods = append(methods, r.Method)
		return []remotetest.Response{honest}
	})
	again, err := Resume(raw, Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { again.Close() })
	if again.Public() != s.User.Public() || again.Key().Public() != b.Key().Public() || s.Relay.Conns() != before {
		t.Errorf("resumed %s by %s with %d connections", again.Public(), again.Key().Public(), s.Relay.Conns()-before)
	}
	if err := again.Sign(t.Context(), someEvent()); err != nil || len(methods) != 1 {
		t.Errorf("asked for %v, %v", methods, err)
	}
}

func TestResumeRefuses(t *testing.T) {
	s := remotetest.New(t)
	raw, err := connect(t, s, Options{}).Save()
	if err != nil {
		t.Fatal(err)
	}
	good := string(raw)
	for name, bad := range map[string]string{
		"nothing":         "",
		"cut":             good[:len(good)/2],
		"too long":        good + strings.Repeat(" ", MaxSaved),
		"another member":  strings.Replace(good, `"v"`, `"w":1,"v"`, 1),
		"no client key":   strings.Replace(good, `"client":"`, `"client":"0`, 1),
		"another key":     strings.Replace(good, `"key":"`, `"key":"0`, 1),
		"no bunker":       strings.Replace(good, "bunker://", "bunk://", 1),
		"no loopback now": strings.Replace(good, `"loopback":true`, `"loopback":false`, 1),
	} {
		_, err := Resume([]byte(bad), Options{})
		if err == nil || strings.Contains(err.Error(), "only") || strings.Contains(err.Error(), "bunker://"+good[:8]) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := Resume([]byte(strings.Replace(good, ".v1", ".v2", 1)), Options{}); !errors.Is(err, ErrNewer) {
		t.Errorf("a later version: %v", err)
	}
}

// Whoever waits for another call's end hears its own context.
func TestBunkerTurns(t *testing.T) {
	s := remotetest.New(t)
	b := connect(t, s, Options{})
	asked := make(chan struct{})
	s.Set(func(remotetest.Request, remotetest.Response) []remotetest.Response { close(asked); return nil })
	first, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- b.Sign(first, someEvent()) }()
	<-asked
	second, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := b.Sign(second, someEvent()); !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "under way") {
		t.Errorf("the second: %v", err)
	}
	stop()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Errorf("the first: %v", err)
	}
	s.Set(nil)
	if err := b.Sign(t.Context(), someEvent()); err != nil {
		t.Errorf("after both: %v", err)
	}
}

// FuzzResume: whatever stands in the file, it is a bunker or a fault, and what
// is one can be saved again.
func FuzzResume(f *testing.F) {
	f.Add([]byte(`{"v":"holdfast.device-bunker.v1","url":"bunker://79be667ef9dcbbac55a06295ce870b07029bfcdb2dce28d959f2815b16f81798?relay=wss://r.example.com/","client":"` +
		strings.Repeat("0", 63) + `1","key":"79be667ef9dcbbac55a06295ce870b07029bfcdb2dce28d959f2815b16f81798","loopback":false}`))
	f.Fuzz(func(t *testing.T, raw []byte) {
		b, err := Resume(raw, Options{})
		if err != nil {
			return
		}
		out, err := b.Save()
		if err != nil {
			t.Fatal(err)
		}
		if _, err := Resume(out, Options{}); err != nil {
			t.Fatal(err)
		}
	})
}
