package client

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"testing"

	"github.com/rs/zerolog"

	"holdfast/nip"
	"holdfast/relay/relaytest"
)

// childSend is the child process: it gives one command over a relay that takes
// everything and answers nothing, until it is killed.
func childSend(dir string) {
	d, err := Open(dir, Options{Log: zerolog.Nop()})
	if err != nil {
		fmt.Println("open:", err)
		os.Exit(1)
	}
	d.dial = (&paper{}).dial
	_, _, err = d.Command(context.Background(), command(nil, nip.Send, "hello"))
	fmt.Println("command ended:", err)
	os.Exit(1)
}

// A killed process leaves its command in the outbox, and the next one sends it
// under the same command ID.
func TestOutboxSurvivesKill(t *testing.T) {
	d, h, p := paired(t)
	child := exec.Command("/proc/self/exe", "-test.run=^$")
	if _, err := os.Stat("/proc/self/exe"); err != nil {
		child.Path = os.Args[0]
	}
	child.Env = append(os.Environ(), "HOLDFAST_TEST_CHILD_PROFILE="+d.dir)
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	defer child.Wait()
	defer child.Process.Kill()
	var rows []OutboxRow
	relaytest.Eventually(t, "the child's command to be in the outbox", func() bool {
		var err error
		if rows, err = d.Outbox(); err != nil && !errors.Is(err, ErrBusy) {
			t.Fatal(err)
		}
		return len(rows) > 0
	})
	if err := child.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	child.Wait()

	var got []nip.CommandID
	h.op = func(r nip.Request) (nip.Outcome, *nip.Refusal) {
		got = append(got, r.Op.(nip.TaskCommand).Command.ID)
		return dispatched(r), nil
	}
	n := reopen(t, d, p)
	if err := n.Resend(t.Context()); err != nil {
		t.Fatal(err)
	}
	if len(got) != 1 || string(got[0]) != rows[0].ID {
		t.Errorf("sent %v, want %s once", got, rows[0].ID)
	}
	if rows, err := n.Outbox(); err != nil || len(rows) != 0 {
		t.Errorf("outbox after the receipt: %v, %v", rows, err)
	}
}
