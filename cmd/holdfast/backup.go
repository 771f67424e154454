package main

import (
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"holdfast/host"
)

func backupCommand(g *globals) *cobra.Command {
	return &cobra.Command{
		Use: "backup FILE|FOLDER", Short: "Copy the home into one new file, also while the host runs",
		Long: "Copies what cannot be had again: keys, access book, journal, tasks with transcripts and\n" +
			"what they changed, policy and secrets. The file holds every secret key of the home.",
		Args: cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			to, err := absolute(args[0])
			if err != nil {
				return err
			}
			out, err := ask[host.Backup](c.Context(), g, "backup", host.BackupArgs{Path: to})
			if err != nil {
				return err
			}
			return g.emit(out, func(w io.Writer) {
				fmt.Fprintf(w, "%s: %d files, %d bytes\nit holds the secret keys of this host; keep it as safe as the home\n", out.Backup, out.Files, out.Bytes)
			})
		},
	}
}

func restoreBackupCommand(g *globals) *cobra.Command {
	var replace bool
	c := &cobra.Command{
		Use: "restore-backup FILE", Short: "Put a backup back as the home, with no host running",
		Long: "Every device has to pair again afterwards, and no command or turn from before runs:\n" +
			"nobody knows what the host did after the backup was made.",
		Args: cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			from, err := absolute(args[0])
			if err != nil {
				return err
			}
			o := g.coreOptions()
			o.LockWait = 2 * time.Second
			out, err := host.Restore(c.Context(), g.home, from, replace, o)
			if err != nil {
				return err
			}
			return g.emit(out, func(w io.Writer) { writeRestored(w, out) })
		},
	}
	c.Flags().BoolVar(&replace, "replace", false, "put it in the place of a home that is there; that one is kept beside")
	return c
}

func writeRestored(w io.Writer, out host.Restored) {
	fmt.Fprintf(w, "%s is the backup of %s: %d files, %d bytes\n", out.Home, at(out.MadeAt), out.Files, out.Bytes)
	if out.Kept != "" {
		fmt.Fprintf(w, "the home before it is %s; only there are its worktrees\n", out.Kept)
	}
	fmt.Fprintf(w, "restored at %s: what was asked before, or is dated up to five minutes after it, answers expired\n", at(out.RestoredAt))
	for _, d := range out.Devices {
		fmt.Fprintf(w, "device %s: epoch now %d, it must pair again\n", d.Device, d.Epoch)
	}
	for _, id := range out.Ended {
		fmt.Fprintf(w, "its turn waited and will not start: task %s\n", id)
	}
	fmt.Fprintln(w, "next: holdfast check, holdfast up, holdfast invite for each device")
}

func at(t int64) string { return time.Unix(t, 0).Format("2006-01-02 15:04:05") }
