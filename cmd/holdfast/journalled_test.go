package main

import (
	"strings"
	"testing"

	"github.com/spf13/cobra"
)

// Every word of the command line has chosen: the journal entry that it leaves,
// or why it leaves none. What has an effect on this host goes through a verb of
// the operator's, and host's own table says that each of those leaves its entry.
func TestEveryCommandHasChosen(t *testing.T) {
	const (
		reads  = "-reads"
		serves = "-serves: what it does by request is journalled by request"
		keys   = "-makes the home in which a journal can be"
		none   = "-knows no home"
	)
	chosen := map[string]string{
		"up": serves, "serve": serves, "relay serve": none, "tour": none, "bench": none, "version": none, "init": keys,
		"status": reads, "doctor": reads, "check": reads, "devices list": reads, "workspace list": reads, "policy show": reads,
		"task list": reads, "task show": reads, "task view": reads, "task artifact": reads, "task diff": reads, "task context": reads, "secret list": reads,
		"journal list": reads, "journal show": reads, "journal tail": reads, "journal check": reads, "journal dump": reads,
		"invite": "invite.create", "enroll": "enroll.request", "devices revoke": "device.revoke",
		"workspace add": "workspace.add", "workspace remove": "workspace.remove", "policy set": "policy.set", "policy off": "policy.off",
		"secret set": "secret.set", "secret remove": "secret.remove",
		"task new": "task.new", "task stop": "task.stop", "task submit": "task.submit", "task correct": "task.correct",
		"task cancel": "task.cancel", "task continue": "task.continue", "task start": "task.start", "task execute": "task.execute",
		"backup": reads, "restore-backup": "backup.restore", "gc": "gc", "journal resync": "journal.resync",
		"invitations list": reads, "invitations cancel": "invite.cancel", "task apply": "task.integrate",
		"task archive": "task.archive", "task restore": "task.restore", "task recover": "task.recover", "task check": "task.check",
	}
	found := map[string]bool{}
	var walk func(c *cobra.Command)
	walk = func(c *cobra.Command) {
		for _, sub := range c.Commands() {
			walk(sub)
		}
		name := strings.TrimPrefix(c.CommandPath(), "holdfast ")
		if c.HasSubCommands() || strings.HasPrefix(name, "device ") || c.Hidden || name == "help" || strings.HasPrefix(name, "completion") {
			return // a device's words have their entries by operation, on the host
		}
		found[name] = true
		if chosen[name] == "" {
			t.Errorf("holdfast %s has not chosen: does it leave a journal entry, or has it no effect?", name)
		}
	}
	walk(rootCommand(&globals{}))
	for name := range chosen {
		if !found[name] {
			t.Errorf("there is no holdfast %s", name)
		}
	}
}
