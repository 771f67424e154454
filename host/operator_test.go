package host

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"holdfast/internal/skip"
	"holdfast/nip"
	"holdfast/owner"
)

func init() {
	testChildren["dial-operator"] = func(args []string) int {
		found, err := DialOperator(context.Background(), args[0], "status", nil, func(json.RawMessage) error { return nil })
		fmt.Println(found, err)
		if err == nil && found {
			return 0
		}
		return 7
	}
}

// operator serves the operator's socket until the test ends.
func (r *rig) operator() {
	r.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- r.c.ServeOperator(ctx) }()
	r.t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			r.t.Error(err)
		}
	})
	// Its file is there a moment before anybody listens.
	r.until("the socket", func() bool {
		addr, release, err := socketAddress(r.home)
		if err != nil {
			return false
		}
		defer release()
		conn, err := net.Dial("unix", addr)
		if err == nil {
			conn.Close()
		}
		return err == nil
	})
}

// Each verb gives the same over the socket of a host and on a store that was
// opened without one.
func TestVerbs(t *testing.T) {
	r := newRig(t)
	r.policy()
	d := r.pair(nip.PairingRights())
	task := r.create(d, "words of the device")
	cmd := r.command(task, nip.Steer, "other words")
	r.wantCode(r.ask(d, nip.TaskCommand{Command: cmd}), "")
	r.operator()
	offline := func(verb string, args any) (string, error) {
		r.c.serving = nil
		defer func() { r.c.serving = r.h }()
		var out strings.Builder
		err := r.c.Operate(t.Context(), verb, mustRaw(t, args), func(v any) error {
			raw, err := json.Marshal(v)
			out.Write(append(raw, '\n'))
			return err
		})
		return out.String(), err
	}
	online := func(verb string, args any) (string, error) {
		var out strings.Builder
		found, err := DialOperator(t.Context(), r.home, verb, args, func(raw json.RawMessage) error {
			out.Write(append(raw, '\n'))
			return nil
		})
		if !found {
			t.Fatal("no host answers")
		}
		return out.String(), err
	}
	ways := map[string]func(string, any) (string, error){"with a host": online, "without": offline}
	for _, row := range []struct {
		verb  string
		args  any
		holds string // what the answer must hold
		code  string // the error's code instead
	}{
		{"status", nil, `"journal":{"entries":4,`, ""},
		{"devices.list", nil, string(d.pub()), ""},
		{"workspace.list", nil, `"label":"demo"`, ""},
		{"workspace.add", WorkspaceArgs{Label: "two", Path: r.repo}, `"label":"two"`, ""},
		{"workspace.remove", WorkspaceArgs{Label: "none"}, "", "not_found"},
		{"policy.set", json.RawMessage(`{"v":"x"}`), "", "usage"},
		{"journal.list", JournalArgs{Device: d.pub()}, string(cmd.ID), ""},
		{"journal.list", JournalArgs{State: "done", NoText: true}, string(cmd.ID), ""},
		{"journal.list", JournalArgs{State: "asleep"}, "", "usage"},
		{"journal.show", JournalArgs{Device: d.pub(), ID: string(cmd.ID)}, `"text":"other words"`, ""},
		{"journal.show", JournalArgs{Device: d.pub(), ID: string(task)}, `"kind":"task.create"`, ""}, // a request ID
		{"journal.show", JournalArgs{Device: d.pub(), ID: newID(t)}, "", "not_found"},
		{"journal.show", JournalArgs{Device: d.pub(), ID: "x"}, "", "usage"},
		{"journal.tail", JournalArgs{}, `"what":"dispatching"`, ""},
		{"journal.tail", JournalArgs{After: 1 << 40}, "", ""},
		{"journal.dump", nil, string(cmd.ID), ""},
		{"journal.check", nil, `"ok":true`, ""},
		{"check", nil, `"ok":true`, ""},
		{"invite", InviteArgs{Rights: nip.StandardRights(), Days: 1, Relay: paperRelay}, `"code":"coder-host:`, ""},
		{"invite", InviteArgs{Rights: nip.Rights{"root"}, Days: 1, Relay: paperRelay}, "", "usage"},
		{"devices.revoke", RevokeArgs{Device: newKey(t).Public()}, "", "not_found"},
		{"task.archive", TaskArgs{Task: "none", Reason: "r"}, "", "not_found"},
		{"task.archive", TaskArgs{Task: owner.TaskID(task)}, "", "usage"},
		{"task.new", TaskArgs{Workspace: "demo", Prompt: "by hand"}, `"title":"by hand"`, ""},
		{"task.new", TaskArgs{Workspace: "none", Prompt: "by hand"}, "", "not_found"},
		{"task.apply", TaskArgs{Request: []byte("{"), Verb: "submit"}, "", "unsupported_schema|invalid_command"},
		{"no.such.verb", nil, "", "usage"},
		{"devices.list", json.RawMessage(`[]`), "", ""},
		{"journal.list", json.RawMessage(`[]`), "", "usage"},
	} {
		for way, do := range ways {
			t.Run(row.verb+" "+way, func(t *testing.T) {
				out, err := do(row.verb, row.args)
				if row.code == "" && err != nil {
					t.Fatal(err)
				}
				if row.code != "" {
					if err == nil {
						t.Fatal("done")
					}
					var remote *OperatorError
					got := ErrorCode(err)
					if errors.As(err, &remote) {
						got = remote.Code
					}
					if !strings.Contains(row.code, got) {
						t.Fatalf("code %s: %v", got, err)
					}
				}
				if !strings.Contains(out, row.holds) {
					t.Fatalf("not in the answer: %s\n%s", row.holds, out)
				}
			})
		}
	}
	if n, err := offline("journal.list", JournalArgs{NoText: true}); err != nil || strings.Contains(n, "other words") {
		t.Error("a text in spite of no_text")
	}
	out, err := online("task.stop", TaskArgs{Task: owner.TaskID(task)})
	if err != nil || !strings.Contains(out, `"status":"cancelled"`) {
		t.Error(out, err)
	}
	out, err = online("task.archive", TaskArgs{Task: owner.TaskID(task), Reason: "done"})
	if err != nil || !strings.Contains(out, `"archived"`) {
		t.Error(out, err)
	}
	out, err = online("policy.off", nil)
	if err != nil || !strings.Contains(out, `"enabled":false`) {
		t.Error(out, err)
	}
}

// A home whose path does not fit into a socket's address.
func TestLongHome(t *testing.T) {
	dir := filepath.Join(memDir(t), strings.Repeat("long/", 25))
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	r := newRigIn(t, strings.TrimSuffix(dir, "/"))
	r.operator()
	answers := 0
	found, err := DialOperator(t.Context(), r.home, "status", nil, func(json.RawMessage) error { answers++; return nil })
	if !found || err != nil || answers != 1 {
		t.Fatal(found, err, answers)
	}
}

// Another user gets no answer, even where the file's modes would let it in.
func TestForeignUser(t *testing.T) {
	skip.Root(t, "become another user")
	r := newRig(t)
	r.operator()
	for path, mode := range map[string]os.FileMode{r.dir: 0o755, r.home: 0o755, filepath.Join(r.home, socketName): 0o666} {
		if err := os.Chmod(path, mode); err != nil {
			t.Fatal(err)
		}
	}
	dial := func(uid uint32) (string, error) {
		cmd := exec.Command("/proc/self/exe", "dial-operator", r.home)
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid}}
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	if out, err := dial(0); err != nil {
		t.Fatalf("own user: %v %s", err, out)
	}
	out, err := dial(65534)
	if err == nil || strings.HasPrefix(out, "true <nil>") {
		t.Fatalf("another user: %v %s", err, out)
	}
}

// A peer that says nothing, garbage, or too much costs nobody else anything.
func TestHostilePeers(t *testing.T) {
	r := newRig(t)
	r.operator()
	path := filepath.Join(r.home, socketName)
	for _, row := range []struct {
		name string
		say  []byte
		want string
	}{
		{"nothing", nil, ""},
		{"an empty line", []byte("\n"), `"error"`},
		{"garbage", []byte("garbage\n"), `"error"`},
		{"a verb that is no text", []byte(`{"verb":7}` + "\n"), `"error"`},
		{"no such verb", []byte(`{"verb":"rm"}` + "\n"), `"usage"`},
		{"no end", bytes.Repeat([]byte("x"), operatorLine+10), ""},
	} {
		t.Run(row.name, func(t *testing.T) {
			conn, err := net.Dial("unix", path)
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			_, _ = conn.Write(row.say)
			if row.want == "" {
				return
			}
			buf := make([]byte, 4096)
			n, err := conn.Read(buf)
			if err != nil || !strings.Contains(string(buf[:n]), row.want) {
				t.Fatalf("%s %v", buf[:n], err)
			}
		})
	}
	if found, err := DialOperator(t.Context(), r.home, "status", nil, func(json.RawMessage) error { return nil }); !found || err != nil {
		t.Fatal(found, err)
	}
}

// No host: nothing was asked, and nobody waits.
func TestNoHost(t *testing.T) {
	r := newRig(t)
	if found, err := DialOperator(t.Context(), r.home, "status", nil, nil); found || err != nil {
		t.Fatal(found, err)
	}
}

func FuzzOperate(f *testing.F) {
	r := newRig(f)
	d := r.pair(nip.PairingRights())
	r.c.serving = nil
	f.Add("journal.list", []byte(`{"device":"`+string(d.pub())+`","state":"done","since":1,"after":2}`))
	f.Add("journal.show", []byte(`{"id":"x"}`))
	f.Add("devices.revoke", []byte(`{"device":"","stop":true}`))
	f.Add("task.apply", []byte(`{"request":"e30=","verb":"submit"}`))
	f.Add("policy.set", []byte(`{"v":"holdfast.policy.v1"}`))
	f.Add("task.new", []byte(`{"workspace":"demo","prompt":"p"}`))
	f.Fuzz(func(t *testing.T, verb string, args []byte) {
		switch verb {
		case "status", "workspace.add", "workspace.remove", "task.start", "task.check": // the machine itself, and launches
			return
		}
		if bytes.Contains(args, []byte("follow")) || bytes.Contains(bytes.ToLower(args), []byte("follow")) {
			return
		}
		err := r.c.Operate(t.Context(), verb, args, func(v any) error { _, err := json.Marshal(v); return err })
		if err != nil && fatal(err) {
			t.Fatal(err)
		}
	})
}
