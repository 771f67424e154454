package owner

import (
	"encoding/json"
	"strings"
	"testing"

	"holdfast/sandbox"
)

func TestParseReply(t *testing.T) {
	for _, r := range []struct{ name, text, reply, ask, err string }{
		{"reply", `{"reply":"hi","ask":null}`, "hi", "", ""},
		{"ask left out", `{"reply":"hi"}`, "hi", "", ""},
		{"question", `{"reply":"hi?","ask":"question"}`, "hi?", "question", ""},
		{"approval", ` {"ask":"approval", "reply":"hi?"} `, "hi?", "approval", ""},
		{"nothing said", `{"reply":"","ask":null}`, "", "", ""},
		{"the longest", `{"reply":"` + strings.Repeat("x", maxReply) + `"}`, strings.Repeat("x", maxReply), "", ""},
		{"too long", `{"reply":"` + strings.Repeat("x", maxReply+1) + `"}`, "", "", "a reply of more than 32768 bytes"},
		{"too long a file", `{"reply":"x"}` + strings.Repeat(" ", maxReplyFile), "", "", "longer than 49152 bytes"},
		{"no reply", `{"ask":null}`, "", "", `no "reply"`},
		{"null reply", `{"reply":null}`, "", "", `no "reply"`},
		{"asks nothing", `{"reply":" ","ask":"question"}`, "", "", `an "ask" without anything in "reply"`},
		{"other ask", `{"reply":"x","ask":"money"}`, "", "", `"ask" is neither null, "question" nor "approval"`},
		{"unknown member", `{"reply":"x","exit":0}`, "", "", `not one JSON object of "reply" and "ask"`},
		{"duplicate", `{"reply":"x","reply":"y"}`, "", "", `not one JSON object of "reply" and "ask"`},
		{"number", `{"reply":1}`, "", "", `not one JSON object of "reply" and "ask"`},
		{"two documents", `{"reply":"x"}{}`, "", "", `not one JSON object of "reply" and "ask"`},
		{"bad UTF-8", "{\"reply\":\"\xff\"}", "", "", `not one JSON object of "reply" and "ask"`},
		{"empty", ``, "", "", `not one JSON object of "reply" and "ask"`},
	} {
		t.Run(r.name, func(t *testing.T) {
			reply, ask, err := parseReply([]byte(r.text))
			said := ""
			if err != nil {
				said = err.Error()
			}
			if reply != r.reply || ask != r.ask || said != r.err {
				t.Fatalf("%.40q, %q, %q", reply, ask, said)
			}
		})
	}
}

func FuzzParseReply(f *testing.F) {
	f.Add([]byte(`{"reply":"hi","ask":"question"}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		reply, ask, err := parseReply(b)
		if err != nil && (reply != "" || ask != "") {
			t.Fatal("something of a refused reply was kept")
		}
		// What is accepted must be what a result may hold, or the turn could not end.
		r := Result{Ending: "exit 0", ExitCode: ptr(0), TraceDigest: aDigest, CostStatus: "unknown", Reply: reply, Ask: ask}
		if ask != "" {
			r.Ending = map[string]string{"question": EndingAskedQuestion, "approval": EndingAskedApproval}[ask]
		}
		if err := checkResult(&Run{}, r); err != nil {
			t.Fatal(err)
		}
	})
}

func TestResultFrom(t *testing.T) {
	clear := sandbox.Cleanup{Confirmed: true}
	for _, r := range []struct {
		name    string
		seen    observed
		ending  string
		stopped bool
		clear   bool
	}{
		{"exit", observed{sandbox: sandbox.Result{Ending: sandbox.EndingExit, ExitCode: ptr(3), Cleanup: clear}}, "exit 3", false, true},
		{"signal", observed{sandbox: sandbox.Result{Ending: sandbox.EndingSignal, Signal: "SIGSEGV", Cleanup: clear}}, "stopped by a signal", false, true},
		{"timeout", observed{sandbox: sandbox.Result{Ending: sandbox.EndingTimeout, Cleanup: clear}}, "timed out", false, true},
		{"output", observed{sandbox: sandbox.Result{Ending: sandbox.EndingOutput, Cleanup: clear}}, "output_limit", true, true},
		{"stop", observed{asked: true, sandbox: sandbox.Result{Ending: sandbox.EndingStop, Cleanup: clear}}, "stopped", true, true},
		{"exit while being stopped", observed{asked: true, sandbox: sandbox.Result{Ending: sandbox.EndingExit, ExitCode: ptr(0), Cleanup: clear}}, "exit 0", true, true},
		{"lost", observed{sandbox: sandbox.Result{Ending: sandbox.EndingLost}}, "failed: how the program ended is not known", false, false},
		{"nothing", observed{}, "failed: how the program ended is not known", false, false},
		{"fault", observed{sandbox: sandbox.Result{Ending: sandbox.EndingExit, ExitCode: ptr(1), Fault: "exec format error", Cleanup: clear}}, "failed: exec format error", false, true},
		{"fault with a path", observed{sandbox: sandbox.Result{Fault: "exec /home/me/x: denied", Cleanup: clear}}, "failed: the program could not be run", false, true},
	} {
		t.Run(r.name, func(t *testing.T) {
			got := resultFrom(r.seen)
			if got.Ending != r.ending || got.StopRequested != r.stopped || got.GroupClear != r.clear {
				t.Fatalf("%+v", got)
			}
			got.TraceDigest, got.CostStatus = aDigest, "unknown"
			if err := checkResult(&Run{}, got); err != nil {
				t.Fatalf("the log refuses it: %v", err)
			}
		})
	}
}

func TestHistory(t *testing.T) {
	task := Task{Intent: Intent{Prompt: "first"}}
	if h := history(&task); h == nil || len(h) != 0 {
		t.Fatalf("history of a first turn: %q", h)
	}
	long := strings.Repeat("é", 3000) // 6,000 bytes
	revision := int64(1)
	for turn := 1; turn <= 10; turn++ {
		reply := "reply"
		if turn == 10 {
			reply = long
		}
		task.Earlier = append(task.Earlier, Run{Turn: turn, Admission: Admission{ReadRevision: revision}, Result: &Result{Ending: "exit 0", Reply: reply}})
		revision += 5
		task.FollowUps = append(task.FollowUps, FollowUp{Revision: revision, Prompt: "follow-up " + itoa(int64(turn))})
	}
	// Read by the third turn, and by no other.
	task.Corrections = []Correction{{Revision: task.FollowUps[1].Revision + 1, Prompt: "corrected"}}
	task.Earlier[2].Admission.ReadRevision = task.FollowUps[1].Revision + 1
	task.Earlier[4].Result = nil
	var turns []int
	for i, l := range strings.Split(strings.TrimSuffix(string(history(&task)), "\n"), "\n") {
		var got struct {
			Turn   int
			Prompt string
			Reply  string
			Cut    bool
		}
		if err := json.Unmarshal([]byte(l), &got); err != nil {
			t.Fatal(err)
		}
		turns = append(turns, got.Turn)
		want := "follow-up " + itoa(int64(got.Turn-1))
		if got.Turn == 3 {
			want = "corrected"
		}
		if got.Prompt != want || got.Cut != (got.Turn == 10) {
			t.Fatalf("line %d: %+v, want %q", i, got, want)
		}
		if got.Turn == 10 && got.Reply != strings.Repeat("é", historyText/2) {
			t.Fatalf("cut to %d bytes", len(got.Reply))
		}
	}
	if len(turns) != 8 || turns[0] != 3 || turns[7] != 10 {
		t.Fatalf("turns %v", turns)
	}
}

func TestSteeringOf(t *testing.T) {
	for adapter, want := range map[string]Steering{
		PromptCommand: {Emulate: true}, BoundedCommand: {}, "somebody-else's": {},
	} {
		if got := SteeringOf(adapter); got != want {
			t.Errorf("%s: %+v", adapter, got)
		}
	}
}
