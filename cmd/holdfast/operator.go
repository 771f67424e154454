package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"runtime/debug"
	"sort"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"holdfast/host"
	"holdfast/nip"
	"holdfast/owner"
	"holdfast/relay"
	"holdfast/sandbox"
)

func versionCommand(g *globals) *cobra.Command {
	return &cobra.Command{
		Use: "version", Short: "Print the version", Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			goVersion := "unknown"
			if bi, ok := debug.ReadBuildInfo(); ok {
				goVersion = bi.GoVersion
			}
			return g.emit(map[string]string{"version": version, "go": goVersion}, func(w io.Writer) {
				fmt.Fprintf(w, "holdfast %s (%s)\n", version, goVersion)
			})
		},
	}
}

func statusCommand(g *globals) *cobra.Command {
	return &cobra.Command{
		Use: "status", Short: "Who this host is, its relays, devices, tasks and sandbox", Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			st, err := ask[host.Status](c.Context(), g, "status", nil)
			if err != nil {
				return err
			}
			return g.emit(st, func(w io.Writer) { writeStatus(w, g.home, st) })
		},
	}
}

func writeStatus(w io.Writer, home string, st host.Status) {
	serving := "not serving"
	if st.Serving {
		serving = "serving"
	}
	fmt.Fprintf(w, "holdfast %s, %s\n  home     %s\n  host     %s\n  owner    %s\n", st.Version, serving, home, st.Host, st.Owner)
	for _, r := range st.Relays {
		note := ""
		if r.State == "open" && !r.Authenticated {
			note = " (without authentication: this relay asks for none)"
		}
		if r.LastError != "" && r.State != "open" {
			note += " (" + r.LastError + ")"
		}
		if longest := time.Duration(r.Gap) * time.Second; longest >= relay.GapReported {
			note += fmt.Sprintf(", was not heard for up to %s", longest)
		}
		if r.Waiting > 0 {
			note += fmt.Sprintf(", %d events wait for it", r.Waiting)
		}
		fmt.Fprintf(w, "  relay    %s %s%s\n", r.URL, r.State, note)
		for _, name := range r.Also {
			fmt.Fprintf(w, "           also %s\n", name)
		}
	}
	fmt.Fprintf(w, "  devices  %d active\n  tasks    %s\n  journal  %d entries, %d undecided\n", st.Devices, counts(st.Tasks), st.Journal.Entries, st.Journal.Undecided)
	if st.Journal.Ahead > journalSlack {
		fmt.Fprintf(w, "           its last record is %s later than this clock: one of the two times was wrong. Until the clock has\n"+
			"           caught up, commands over a day behind that record expire. If this clock is right: holdfast journal resync\n", time.Duration(st.Journal.Ahead)*time.Second)
	}
	d, atLeast := st.Disk, ""
	if d.AtLeast {
		atLeast = "at least "
	}
	fmt.Fprintf(w, "  disk     %sjournal %s, tasks %s, worktrees %s, blobs %s, relay %s (as of %s)\n", atLeast,
		size(d.Journal), size(d.Tasks), size(d.Worktrees), size(d.Blobs), size(d.Relay), time.Unix(d.AsOf, 0).Format("15:04:05"))
	switch {
	case st.Policy.Fault != "":
		fmt.Fprintf(w, "  policy   cannot be read, so nothing starts by itself: %s\n", st.Policy.Fault)
	case st.Policy.Enabled:
		fmt.Fprintf(w, "  policy   on\n")
	default:
		fmt.Fprintf(w, "  policy   off: nothing starts by itself\n")
	}
	if st.Sandbox.Mechanism == "" {
		fmt.Fprintf(w, "  sandbox  cannot be enforced here, so no turn will run; see holdfast doctor\n")
	} else {
		fmt.Fprintf(w, "  sandbox  %s\n", st.Sandbox.Mechanism)
	}
	for _, gap := range st.Sandbox.Gaps {
		fmt.Fprintf(w, "           not enforced: %s\n", gap)
	}
}

// journalSlack is how far the journal may be ahead of the clock before status
// speaks of it, in seconds.
const journalSlack = 5

func counts(m map[string]int) string {
	if len(m) == 0 {
		return "none"
	}
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	sort.Strings(keys)
	var parts []string
	for _, k := range keys {
		parts = append(parts, fmt.Sprintf("%d %s", m[k], k))
	}
	return strings.Join(parts, ", ")
}

func doctorCommand(g *globals) *cobra.Command {
	return &cobra.Command{
		Use: "doctor", Short: "Try what the sandbox must forbid, and say what to fix", Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			able := sandbox.Probe()
			checks := able.Checks
			if checks == nil {
				checks = []sandbox.Check{}
			}
			err := g.emit(map[string]any{"checks": checks, "mechanism": able.Mechanism, "degraded": able.Degraded, "gaps": able.Gaps}, func(w io.Writer) {
				for _, c := range checks {
					mark := "ok  "
					if !c.OK {
						mark = "FAIL"
					}
					detail := ""
					if c.Detail != "" {
						detail = ": " + c.Detail
					}
					fmt.Fprintf(w, "%s  %s%s\n", mark, c.Name, detail)
					if !c.OK && c.Fix != "" {
						fmt.Fprintf(w, "      fix: %s\n", c.Fix)
					}
				}
				for _, gap := range able.Gaps {
					fmt.Fprintf(w, "note  not enforced: %s\n", gap)
				}
			})
			if err == nil && able.Mechanism == "" && able.Degraded {
				return &cliError{Exit: exitSandbox, Code: "not_enforceable", Message: "this machine can confine only turns that read and whose grant allows degraded confinement", Hint: "the checks above say what to fix for all others"}
			}
			if err == nil && able.Mechanism == "" {
				return &cliError{Exit: exitSandbox, Code: "not_enforceable", Message: "this machine cannot confine a turn, so none will run", Hint: "the checks above say what to fix"}
			}
			return err
		},
	}
}

func devicesCommand(g *globals) *cobra.Command {
	c := &cobra.Command{Use: "devices", Short: "The access book"}
	c.AddCommand(&cobra.Command{
		Use: "list", Short: "Every grant and its state", Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			out, err := ask[struct {
				Devices []host.DeviceRow `json:"devices"`
			}](c.Context(), g, "devices.list", nil)
			if err != nil {
				return err
			}
			return g.emit(out, func(w io.Writer) {
				if len(out.Devices) == 0 {
					fmt.Fprintln(w, "no device was ever paired; holdfast invite makes a code")
					return
				}
				tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
				fmt.Fprintln(tw, "DEVICE\tSTATE\tRIGHTS\tEPOCH\tUNTIL\tLAST SEEN")
				for _, d := range out.Devices {
					fmt.Fprintf(tw, "%s\t%s\t%s\t%d\t%s\t%s\n", d.Device, d.State, joinRights(d.Rights), d.Epoch, day(d.ExpiresAt), seen(d.LastSeen))
				}
				tw.Flush()
			})
		},
	})
	var stop bool
	revoke := &cobra.Command{
		Use: "revoke KEY", Short: "Take a device's access away, now", Args: cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			key, err := nip.ParseAnyPubKey(args[0])
			if err != nil {
				return usage("KEY: %s", err)
			}
			rev, err := ask[host.Revocation](c.Context(), g, "devices.revoke", host.RevokeArgs{Device: key, Stop: stop})
			if err != nil {
				return err
			}
			return g.emit(rev, func(w io.Writer) {
				fmt.Fprintf(w, "revoked %s: %d grant(s), epoch now %d\n", rev.Device, len(rev.Grants), rev.Epoch)
				for _, id := range rev.Running {
					if stop {
						fmt.Fprintf(w, "asked its running turn to stop: task %s\n", id)
					} else {
						fmt.Fprintf(w, "its turn still runs: task %s (holdfast task stop %s)\n", id, id)
					}
				}
			})
		},
	}
	revoke.Flags().BoolVar(&stop, "stop", false, "also stop the turns that this device started")
	c.AddCommand(revoke)
	return c
}

func day(at int64) string { return time.Unix(at, 0).Format(time.DateOnly) }

func seen(at *int64) string {
	if at == nil {
		return "never"
	}
	return time.Unix(*at, 0).Format("2006-01-02 15:04")
}

func workspaceCommand(g *globals) *cobra.Command {
	c := &cobra.Command{Use: "workspace", Short: "Labels for the folders that devices may name"}
	c.AddCommand(&cobra.Command{
		Use: "add LABEL PATH", Short: "Give a folder a label", Args: cobra.ExactArgs(2),
		RunE: func(c *cobra.Command, args []string) error {
			abs, err := absolute(args[1])
			if err != nil {
				return err
			}
			row, err := ask[host.WorkspaceRow](c.Context(), g, "workspace.add", host.WorkspaceArgs{Label: nip.Label(args[0]), Path: abs})
			if err != nil {
				return err
			}
			return g.emit(row, func(w io.Writer) {
				fmt.Fprintf(w, "%s is %s\n", row.Label, row.Path)
				if row.Kind != "git" {
					fmt.Fprintln(w, "it is no Git repository: its tasks can only read it")
				}
			})
		},
	}, &cobra.Command{
		Use: "list", Short: "Every label", Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			out, err := ask[struct {
				Workspaces []host.WorkspaceRow `json:"workspaces"`
			}](c.Context(), g, "workspace.list", nil)
			if err != nil {
				return err
			}
			return g.emit(out, func(w io.Writer) {
				tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
				for _, r := range out.Workspaces {
					fmt.Fprintf(tw, "%s\t%s\t%s\n", r.Label, r.Kind, r.Path)
				}
				tw.Flush()
			})
		},
	}, &cobra.Command{
		Use: "remove LABEL", Short: "Forget a label; the folder and its tasks stay", Args: cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			out, err := ask[map[string]string](c.Context(), g, "workspace.remove", host.WorkspaceArgs{Label: nip.Label(args[0])})
			if err != nil {
				return err
			}
			return g.emit(out, func(w io.Writer) { fmt.Fprintf(w, "removed %s\n", args[0]) })
		},
	})
	return c
}

func policyCommand(g *globals) *cobra.Command {
	c := &cobra.Command{Use: "policy", Short: "What may start by itself"}
	type answer struct {
		Policy  json.RawMessage `json:"policy"`
		Running []owner.TaskID  `json:"running"`
	}
	said := func(a answer) func(io.Writer) {
		return func(w io.Writer) {
			fmt.Fprintf(w, "%s\n", indent(a.Policy))
			for _, id := range a.Running {
				fmt.Fprintf(w, "still running under what it was admitted with: task %s\n", id)
			}
		}
	}
	c.AddCommand(&cobra.Command{
		Use: "show", Short: "Print the policy", Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			p, err := host.ShowPolicy(g.home)
			if err != nil {
				return err
			}
			raw, err := host.EncodePolicy(p)
			if err != nil {
				return err
			}
			return g.emit(json.RawMessage(raw), func(w io.Writer) { fmt.Fprintf(w, "%s\n", raw) })
		},
	}, &cobra.Command{
		Use: "set FILE|-", Short: "Take a policy whole, with its paths resolved once", Args: cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			raw, err := g.readInput(args[0], 256<<10)
			if err != nil {
				return err
			}
			if !json.Valid(raw) {
				return usage("the policy is not JSON")
			}
			a, err := ask[answer](c.Context(), g, "policy.set", json.RawMessage(raw))
			if err != nil {
				return err
			}
			return g.emit(a, said(a))
		},
	}, &cobra.Command{
		Use: "off", Short: "Nothing starts by itself any more; running turns go on", Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			a, err := ask[answer](c.Context(), g, "policy.off", nil)
			if err != nil {
				return err
			}
			return g.emit(a, said(a))
		},
	})
	return c
}

func indent(raw json.RawMessage) string {
	var v any
	if json.Unmarshal(raw, &v) != nil {
		return string(raw)
	}
	out, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return string(raw)
	}
	return string(out)
}

func checkCommand(g *globals) *cobra.Command {
	return &cobra.Command{
		Use: "check", Short: "Verify every durable file, changing nothing", Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			out, err := ask[struct {
				Stores []struct {
					Path   string `json:"path"`
					OK     bool   `json:"ok"`
					Detail string `json:"detail"`
				} `json:"stores"`
			}](c.Context(), g, "check", nil)
			if err != nil {
				return err
			}
			bad := 0
			err = g.emit(out, func(w io.Writer) {
				for _, s := range out.Stores {
					mark := "ok     "
					if !s.OK {
						mark = "DAMAGED"
					}
					fmt.Fprintf(w, "%s  %s  %s\n", mark, s.Path, s.Detail)
				}
			})
			for _, s := range out.Stores {
				if !s.OK {
					bad++
				}
			}
			if err == nil && bad > 0 {
				return &cliError{Exit: exitCorrupt, Code: "damaged", Message: fmt.Sprintf("%d store(s) are damaged", bad), Hint: "put them back from a backup; nothing was changed"}
			}
			return err
		},
	}
}

// readInput reads a file argument, "-" being standard input, boundedly.
func (g *globals) readInput(path string, limit int64) ([]byte, error) {
	in := g.stdin
	if path != "-" {
		f, err := os.Open(path)
		if err != nil {
			return nil, usage("%s", err)
		}
		defer f.Close()
		in = f
	}
	raw, err := io.ReadAll(io.LimitReader(in, limit+1))
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", path, err)
	}
	if int64(len(raw)) > limit {
		return nil, usage("%s is larger than %d bytes", path, limit)
	}
	return raw, nil
}
