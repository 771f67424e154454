package sandbox

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"strings"
	"testing"
	"time"
)

func TestFrames(t *testing.T) {
	var b bytes.Buffer
	if err := writeFrame(&b, frameReply, []byte("hello")); err != nil {
		t.Fatal(err)
	}
	whole := bytes.Clone(b.Bytes())
	kind, payload, err := readFrame(&b)
	if kind != frameReply || string(payload) != "hello" || err != nil {
		t.Fatalf("%q %q %v", kind, payload, err)
	}
	if _, _, err := readFrame(&b); err != io.EOF {
		t.Errorf("between frames: %v", err)
	}
	for n := 1; n < len(whole); n++ {
		if _, _, err := readFrame(bytes.NewReader(whole[:n])); !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Errorf("cut after %d: %v", n, err)
		}
	}
	for name, head := range map[string][]byte{
		"unknown kind": {'?', 0, 0, 0, 0}, "no kind": {0, 0, 0, 0, 0},
		"too large": {byte(frameDone), 0, 1, 0, 0}, "huge": {byte(frameReply), 255, 255, 255, 255},
	} {
		if _, _, err := readFrame(bytes.NewReader(head)); err == nil || errors.Is(err, io.ErrUnexpectedEOF) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := writeFrame(io.Discard, frameDone, make([]byte, 1<<20)); err == nil {
		t.Error("an oversized frame was written")
	}
}

// FuzzReport feeds the report pipe of a turn: no panic, bounded allocation, and
// never an exit that no frame of an ending carried.
func FuzzReport(f *testing.F) {
	var good bytes.Buffer
	writeFrame(&good, frameReply, []byte("{}"))
	writeJSON(&good, frameDone, ended{Exit: 3, Reaped: 1})
	f.Add(good.Bytes())
	f.Add([]byte{byte(frameFault), 0, 0, 0, 1, 'x'})
	f.Add([]byte{byte(frameDone), 0, 0, 0, 2, '{', '}'})
	f.Add([]byte{byte(frameReady), 0, 0, 0, 4, 'n', 'u', 'l', 'l'})
	f.Fuzz(func(t *testing.T, b []byte) {
		s := supervision{Process: &Process{turn: &turn{spec: Spec{ReplyLimit: 64}}}, released: time.Now()}
		r := bytes.NewReader(b)
		done := false
		for {
			kind, payload, err := readFrame(r)
			if err != nil {
				break
			}
			s.take(frame{kind, payload})
			done = done || kind == frameDone
		}
		var result Result
		result.Fault = s.fault
		s.conclude(&result)
		if result.ExitCode != nil && !done || len(s.reply) > 64 {
			t.Errorf("result %+v from %q", result, b)
		}
		if (result.ExitCode != nil) != (result.Ending == EndingExit) || (result.Signal != "") && result.Ending != EndingSignal {
			t.Errorf("result contradicts itself: %+v", result)
		}
	})
}

func TestPlanSurvivesThePipe(t *testing.T) {
	p := plan{Program: "/p", Argv: []exact{"/p", "a\xffb", "<&>\u2028", exact(strings.Repeat("\x01", 1000))}, Env: []exact{"A=\xfe"}}
	var b bytes.Buffer
	if err := writeJSON(&b, framePlan, p); err != nil {
		t.Fatal(err)
	}
	_, payload, err := readFrame(&b)
	if err != nil {
		t.Fatal(err)
	}
	var q plan
	if err := json.Unmarshal(payload, &q); err != nil {
		t.Fatal(err)
	}
	for i := range p.Argv {
		if p.Argv[i] != q.Argv[i] {
			t.Errorf("argument %d: %q became %q", i, p.Argv[i], q.Argv[i])
		}
	}
	if p.Env[0] != q.Env[0] {
		t.Errorf("environment: %q became %q", p.Env[0], q.Env[0])
	}
}

func TestLayoutPutsParentsFirst(t *testing.T) {
	p := plan{Reply: 1, Sources: []source{
		{Path: "/tmp/w/inner", Dir: true}, {Path: "/tmp/w", Dir: true, Write: true}, {Path: "/tmp/w/.git"}},
		Cover: []exact{"/tmp/w/hidden"}}
	common, own := ground{}.common(), p.own(nil)
	// What is placed later must hide nothing that is common.
	for _, it := range own {
		for _, below := range common {
			if within(below.target, it.target) {
				t.Errorf("%s hides %s", it.target, below.target)
			}
		}
	}
	items := append(common, own...)
	place := map[string]int{}
	for i, it := range items {
		if j, twice := place[it.target]; twice {
			t.Errorf("%s stands at %d and %d", it.target, j, i)
		}
		place[it.target] = i
	}
	v := view{items: items}
	for _, it := range items {
		for _, above := range items {
			if above.target != it.target && within(it.target, above.target) && place[above.target] > place[it.target] {
				t.Errorf("%s comes after %s", above.target, it.target)
			}
		}
		for _, never := range []string{"/etc/shadow", "/etc/sudoers", "/etc/machine-id", "/etc/ssh", "/etc/resolv.conf", "/sys"} {
			if within(never, it.target) && it.target != "/" && it.kind == itemTree {
				t.Errorf("%s shows %s", it.target, never)
			}
		}
	}
	for target, ours := range map[string]bool{
		"/tmp/w": true, "/tmp/x": true, "/tmp/w/inner": false, "/tmp/w/.git": false, "/tmp/w/new/deep": false,
		"/usr/new": false, "/home/u/x": true, "/dev/null": true, "/tmp/w/hidden/x": true,
	} {
		if v.ours(target) != ours {
			t.Errorf("%s: made by us %v", target, !ours)
		}
	}
}
