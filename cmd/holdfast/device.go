package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"holdfast/host/client"
	"holdfast/nip"
	"holdfast/relay"
)

// deviceVerbs is what the verbs of the device's side share.
type deviceVerbs struct {
	g       *globals
	profile string
	host    string
	timeout time.Duration
	waited  sync.Once // a verb says once that it waits for a signer
}

// defaultCall is how long a device verb waits for the host unless told.
const defaultCall = 60 * time.Second

// deviceCommand is the device's side: for paired desktop clients and scripts.
func deviceCommand(g *globals) *cobra.Command {
	v := &deviceVerbs{g: g}
	c := &cobra.Command{
		Use:   "device",
		Short: "Be a paired device: pair with a host and command its tasks",
		Long: "The device side. The profile folder holds the device's key, the host's grant and\n" +
			"the outbox: a command is kept there until the host has signed an outcome, and is\n" +
			"sent again under the same ID, so it never runs twice.",
	}
	c.PersistentFlags().StringVar(&v.profile, "profile", "", "the folder that holds this device (default $HOLDFAST_PROFILE, else $XDG_STATE_HOME/holdfast-device)")
	c.PersistentFlags().StringVar(&v.host, "host", "", "which host: its key, or the beginning of it (needed where there are several)")
	c.PersistentFlags().DurationVar(&v.timeout, "timeout", defaultCall, "how long to wait for the host")
	c.AddCommand(v.initVerb(), v.pairVerb(), v.ownVerb(), v.createVerb(),
		v.commandVerb(nip.Send, "send TASK TEXT", "Give an ended task its next turn"),
		v.commandVerb(nip.Queue, "queue TASK TEXT", "Hold a message until the task's turn has ended"),
		v.commandVerb(nip.Steer, "steer TASK TEXT", "Change what the running turn does"),
		v.commandVerb(nip.Answer, "answer TASK TEXT", "Answer the question a task waits with"),
		v.commandVerb(nip.Interrupt, "interrupt TASK [REASON]", "Stop the running turn"),
		v.heldVerb(), v.tasksVerb(), v.readVerb(), v.originalVerb(), v.watchVerb(),
		v.callVerb(), v.outboxVerb(), v.commandsVerb(), v.hostsVerb(),
		v.inviteVerb(), v.cancelInviteVerb(), v.enrollmentsVerb(), v.approveVerb(), v.denyVerb(), v.acceptVerb(),
		v.simpleVerb("devices", "List the devices of the host", 0, func([]string) (nip.Operation, error) { return nip.DeviceList{}, nil }),
		v.simpleVerb("workspaces", "List the workspace labels of the host", 0, func([]string) (nip.Operation, error) { return nip.WorkspaceList{}, nil }),
		v.simpleVerb("revoke KEY", "Revoke a device", 1, func(args []string) (nip.Operation, error) {
			key, err := nip.ParseAnyPubKey(args[0])
			return nip.DeviceRevoke{Device: key}, err
		}),
		v.simpleVerb("archive TASK", "Archive an ended task", 1, func(args []string) (nip.Operation, error) {
			task, err := taskID(args[0])
			return nip.TaskArchive{Task: task}, err
		}),
	)
	return c
}

func defaultProfile() string {
	if p := os.Getenv("HOLDFAST_PROFILE"); p != "" {
		return p
	}
	if s := os.Getenv("XDG_STATE_HOME"); s != "" {
		return filepath.Join(s, "holdfast-device")
	}
	h, err := os.UserHomeDir()
	if err != nil {
		h = "/"
	}
	return filepath.Join(h, ".local", "state", "holdfast-device")
}

func (v *deviceVerbs) dir() string {
	if v.profile != "" {
		return v.profile
	}
	return defaultProfile()
}

// with opens the profile for one verb. limit bounds the verb; 0 is none.
func (v *deviceVerbs) with(c *cobra.Command, limit time.Duration, fn func(ctx context.Context, d *client.Device) error) error {
	d, err := client.Open(v.dir(), v.options())
	if err != nil {
		return deviceError(err)
	}
	defer d.Close()
	ctx := c.Context()
	if limit = v.patience(c, d, limit); limit > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, limit)
		defer cancel()
	}
	before, _ := d.Grant()
	err = fn(ctx, d)
	if g, ok := d.Grant(); ok && g.ID != before.ID {
		fmt.Fprintf(v.g.stderr, "the host renewed this device's grant, now until %s\n", clockTime(g.ExpiresAt))
	}
	if off := d.ClockOffset(); off > 30*time.Second || off < -30*time.Second {
		fmt.Fprintf(v.g.stderr, "this clock is %d s %s the host's; set it\n", int64(off.Abs()/time.Second), aheadOr(off > 0))
	}
	return deviceError(err)
}

func aheadOr(ahead bool) string {
	if ahead {
		return "ahead of"
	}
	return "behind"
}

// deviceError gives the faults of a device their exit codes and advice.
func deviceError(err error) error {
	var refused *client.Refused
	var relayRefused *relay.RefusedError
	var fault *nip.Error
	var already *cliError
	var choice *client.ChoiceError
	var owner *client.OwnerError
	at := func(exit int, code, hint string) error {
		return &cliError{Exit: exit, Code: code, Message: err.Error(), Hint: hint}
	}
	switch {
	case err == nil || errors.As(err, &already):
		return err
	case signerError(err) != nil:
		return signerError(err)
	case errors.As(err, &owner):
		return at(exitFailed, "owner", "")
	case errors.As(err, &choice):
		return at(exitUsage, "which_host", "--host KEY; device hosts lists them")
	case errors.As(err, &refused):
		return at(exitFailed, string(refused.Code), refusalHint(refused))
	case errors.As(err, &relayRefused) && !errors.Is(err, client.ErrNoAnswer):
		return at(exitFailed, "relay_refused", "device outbox shows what waits")
	case errors.Is(err, client.ErrNoAnswer), errors.Is(err, context.DeadlineExceeded), errors.Is(err, context.Canceled):
		return at(exitUnreachable, "no_answer", "whether the host acted is unknown; device outbox shows what waits")
	case errors.Is(err, client.ErrBusy):
		return at(exitBusy, "busy", "try again when the other process is done")
	case errors.Is(err, client.ErrNewer):
		return at(exitCorrupt, "newer", "use the holdfast that wrote it")
	case errors.Is(err, client.ErrDamaged):
		return at(exitCorrupt, "damaged", "pair with that host again, or use another --profile")
	case errors.Is(err, client.ErrNoKey):
		return at(exitFailed, "no_key", "holdfast device init")
	case errors.Is(err, client.ErrNotPaired), errors.Is(err, client.ErrGrantExpired):
		return at(exitFailed, "not_paired", "holdfast invite on the host, then holdfast device pair CODE here")
	case errors.Is(err, client.ErrConflict):
		return at(exitFailed, "conflict", "")
	case errors.As(err, &fault):
		return at(exitUsage, string(fault.Code), "")
	}
	return err
}

// refusalHint says what a person can do about a signed refusal.
func refusalHint(r *client.Refused) string {
	switch r.Code {
	case nip.MissingRight:
		return "the grant does not hold that right; ask for an invitation with it"
	case nip.Revoked, nip.Expired:
		return "this standing or command is over; pair again or give the command anew"
	case nip.Stale:
		return "the task has moved on; read it and decide again"
	case nip.Conflict:
		return "the task's state does not allow it now; read it first"
	case nip.Forbidden:
		return "no such task, workspace or device for this grant"
	case nip.Unsupported:
		return "this host or its adapter cannot do that; a steer may need --emulate"
	}
	return ""
}

// taskID parses a task argument of commands.
func taskID(s string) (nip.TaskID, error) {
	if !nip.ValidID(s) {
		return "", usage("a task is 64 lowercase hex characters; device tasks lists them")
	}
	return nip.TaskID(s), nil
}

func (v *deviceVerbs) words(s string, max int64) (string, error) { return v.g.words(s, max) }

func (v *deviceVerbs) pairVerb() *cobra.Command {
	var loopback bool
	c := &cobra.Command{
		Use: "pair CODE", Short: "Redeem an invitation (- reads it from standard input)", Args: cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			code, err := v.words(args[0], 4096)
			if err != nil {
				return err
			}
			d, err := client.Init(v.dir(), client.Options{Log: v.g.log, Loopback: loopback, AnyHost: true})
			if err != nil {
				return deviceError(err)
			}
			defer d.Close()
			ctx, cancel := context.WithTimeout(c.Context(), v.timeout)
			defer cancel()
			grant, err := d.Pair(ctx, strings.TrimSpace(code))
			if err != nil {
				return pairError(err, loopback)
			}
			return v.emitGrant(grant)
		},
	}
	c.Flags().BoolVar(&loopback, "allow-loopback", false, "accept an unencrypted relay on this computer (ws://127.0.0.1)")
	return c
}

// pairError adds what only the pairing person can know.
func pairError(err error, loopback bool) error {
	var fault *nip.Error
	if errors.As(err, &fault) && fault.Code == nip.Forbidden && !loopback {
		return &cliError{Exit: exitUsage, Code: string(fault.Code), Message: err.Error(), Hint: "a ws:// relay on this computer needs --allow-loopback"}
	}
	if errors.Is(err, client.ErrNoAnswer) {
		return &cliError{Exit: exitUnreachable, Code: "no_answer", Message: err.Error(), Hint: "check the code, the relay and this clock; a host does not answer a wrong code"}
	}
	return deviceError(err)
}

func (v *deviceVerbs) emitGrant(g nip.Grant) error {
	a, err := nip.EncodeGrant(g)
	if err != nil {
		return fmt.Errorf("encode grant: %w", err)
	}
	return v.g.emit(map[string]any{"grant": rawJSON(a.Inline)}, func(w io.Writer) {
		rights := make([]string, len(g.Rights))
		for i, r := range g.Rights {
			rights[i] = string(r)
		}
		fmt.Fprintf(w, "paired with host %s\nover %s\nrights %s\nuntil %s\n", g.Host, g.Relay, strings.Join(rights, ", "), clockTime(g.ExpiresAt))
	})
}
