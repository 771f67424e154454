package owner

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"testing"
)

func FuzzParseCommand(f *testing.F) {
	for _, c := range []Command{submitOf("t", "c"), cancelOf("t", "c", 1), correctOf("t", "c", 2), continueOf("t", "c", 3)} {
		f.Add(encoded(f, c))
	}
	f.Add([]byte(`{"schema":"openagents.coder.task-command.v1","command_id":"c","task_id":"t","expected_revision":1e0,"action":null}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		c, err := ParseCommand(b)
		if err != nil {
			if !refused(err) {
				t.Fatalf("%v is no refusal", err)
			}
			return
		}
		canonical := encoded(t, c)
		again, err := ParseCommand(canonical)
		if err != nil || !bytes.Equal(encoded(t, again), canonical) {
			t.Fatalf("not stable: %v\n%s", err, canonical)
		}
	})
}

func FuzzLog(f *testing.F) {
	header := appendHeader(nil, deviceTask)
	c := submitOf(deviceTask, "c1")
	request, _ := EncodeCommand(c)
	task, receipt, _ := receiptOf(nil, 0, c, request, 5)
	one := appendFrame(bytes.Clone(header), frameCmd, sha256.Sum256(header), commandRecord{5, receipt, request}.encode())
	last := sha256.Sum256(one[len(header):])
	two := appendFrame(bytes.Clone(one), frameEvent, last, mustJSON(eventRecord{2, 1, Event{Admitted: admission(&task)}, 6}))
	for _, b := range [][]byte{header, one, two, two[:len(two)-3], append(bytes.Clone(one), make([]byte, 50)...)} {
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		r := bytes.NewReader(b)
		st, err := start(r, int64(len(b)))
		if err == nil {
			end := st.end
			_, err = st.follow(r, int64(len(b)), func(frame) {
				if st.end <= end || st.end > int64(len(b)) || st.task == nil {
					t.Fatal("a frame without a length or a task")
				}
				end = st.end
			})
		}
		if err != nil && !errors.Is(err, ErrCorrupt) && !errors.Is(err, ErrNewer) {
			t.Fatal(err)
		}
	})
}

// The payloads on their own: a checksum keeps a fuzzer out of them otherwise.
func FuzzRecords(f *testing.F) {
	c := submitOf(deviceTask, "c1")
	request, _ := EncodeCommand(c)
	task, receipt, _ := receiptOf(nil, 0, c, request, 5)
	f.Add(byte(frameCmd), commandRecord{5, receipt, request}.encode())
	f.Add(byte(frameEvent), mustJSON(eventRecord{2, 1, Event{Admitted: admission(&task)}, 6}))
	f.Add(byte(frameEvent), mustJSON(eventRecord{2, 1, Event{NotStarted: ptr("x")}, 6}))
	f.Fuzz(func(t *testing.T, kind byte, payload []byte) {
		for _, before := range []*state{
			{id: deviceTask, commands: map[string]done{}},
			{id: deviceTask, commands: map[string]done{}, task: &task, sequence: 1, at: 5},
		} {
			err := before.apply(frame{kind: kind, payload: payload})
			if err != nil && !errors.Is(err, ErrCorrupt) && !errors.Is(err, ErrNewer) {
				t.Fatal(err)
			}
		}
	})
}

func FuzzTrace(f *testing.F) {
	whole := traceOf(deviceTask, 1, 3, true)
	f.Add(whole)
	f.Add(whole[:len(whole)-2])
	f.Add(append(bytes.Clone(whole), whole...))
	f.Add([]byte("\xff\n{}\n[]\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		sc, err := readTrace(bytes.NewReader(b), int64(len(b)), &Task{ID: deviceTask}, 1)
		if err != nil {
			t.Fatal(err)
		}
		if sc.size != int64(len(b)) || sc.digest != DigestOf(b) {
			t.Fatal("size or digest is not of the bytes")
		}
		chain := sc.base
		for _, ref := range sc.steps {
			chain = chainNext(chain, b[ref.offset:ref.offset+int64(ref.length)])
			if chain != ref.chain {
				t.Fatal("a step is not where it is said to be")
			}
		}
	})
}

func FuzzMarker(f *testing.F) {
	f.Add([]byte(marker))
	f.Add([]byte(oldMarker(1)))
	f.Add([]byte(`{"v":"holdfast.task-store.v4","x":1}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		if _, err := parseMarker(b); err != nil && !errors.Is(err, ErrCorrupt) && !errors.Is(err, ErrNewer) {
			t.Fatal(err)
		}
	})
}

func FuzzIdentityShard(f *testing.F) {
	b := append(identHeader(), identity{"c1", "t1", sha256.Sum256(nil)}.encode()...)
	f.Add(b)
	f.Add(b[:len(b)-1])
	f.Add(append(bytes.Clone(b), make([]byte, 30)...))
	f.Fuzz(func(t *testing.T, b []byte) {
		var again []byte
		end, err := decodeShard(b, 0, func(i identity) { again = append(again, i.encode()...) })
		if err != nil && !errors.Is(err, ErrCorrupt) && !errors.Is(err, ErrNewer) {
			t.Fatal(err)
		}
		if end > 0 && !bytes.Equal(append(identHeader(), again...), b[:end]) {
			t.Fatal("what was read does not encode to what was there")
		}
	})
}

func FuzzCheckpoint(f *testing.F) {
	c := submitOf(deviceTask, "c1")
	request, _ := EncodeCommand(c)
	task, receipt, _ := receiptOf(nil, 0, c, request, 5)
	st := &state{id: deviceTask, task: &task, sequence: 1, at: 5, commands: map[string]done{"c1": {receipt.RequestDigest, receipt}}, position: position{end: 900}}
	whole := encodeCheckpoint(st)
	if whole == nil {
		f.Fatal("the seed does not encode")
	}
	f.Add(whole[checkpointHead : len(whole)-sha256.Size])
	f.Add([]byte(`{"sequence":1,"at":5,"events":0,"task":null,"receipts":[]}`))
	f.Add([]byte(`{"sequence":-1,"at":5,"events":0,"task":{"task_id":"x"},"receipts":[{"command_id":"a"},{"command_id":"a"}]}`))
	f.Fuzz(func(t *testing.T, payload []byte) {
		// The checksum would keep a fuzzer out: what is inside a sound frame is what it plays with.
		b := append(bytes.Clone(whole[:checkpointHead-4]), byte(len(payload)>>24), byte(len(payload)>>16), byte(len(payload)>>8), byte(len(payload)))
		b = append(b, payload...)
		sum := sha256.Sum256(b)
		st, err := decodeCheckpoint(append(b, sum[:]...))
		if err == nil && (st.task == nil || st.commands == nil || st.end != 900) {
			t.Fatalf("%+v", st)
		}
		if _, err := decodeCheckpoint(payload); err == nil && !bytes.Equal(payload, whole) {
			t.Fatal("a checkpoint without a sum was read")
		}
	})
}
