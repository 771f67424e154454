package main

import (
	"context"
	"fmt"
	"io"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"holdfast/host"
	"holdfast/host/client"
	"holdfast/nip"
)

func invitationsCommand(g *globals) *cobra.Command {
	c := &cobra.Command{Use: "invitations", Short: "The codes that are out"}
	c.AddCommand(&cobra.Command{
		Use: "list", Short: "Every invitation of the last minutes and what became of it", Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			out, err := ask[struct {
				Invitations []host.InvitationRow `json:"invitations"`
			}](c.Context(), g, "invitations.list", nil)
			if err != nil {
				return err
			}
			return g.emit(out, func(w io.Writer) {
				if len(out.Invitations) == 0 {
					fmt.Fprintln(w, "no code is out; holdfast invite makes one")
					return
				}
				tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
				fmt.Fprintln(tw, "INVITATION\tSTATE\tRIGHTS\tUNTIL")
				for _, r := range out.Invitations {
					fmt.Fprintf(tw, "%s\t%s\t%s\t%s\n", r.Invitation, r.State, joinRights(r.Rights), clockTime(r.ExpiresAt))
				}
				tw.Flush()
			})
		},
	}, &cobra.Command{
		Use: "cancel INVITATION", Short: "Take a code back before it is redeemed", Args: cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			out, err := ask[map[string]string](c.Context(), g, "invitations.cancel", host.InvitationArgs{Invitation: nip.InvitationID(args[0])})
			if err != nil {
				return err
			}
			return g.emit(out, func(w io.Writer) { fmt.Fprintf(w, "cancelled %s\n", args[0]) })
		},
	})
	return c
}

// cancelInviteVerb takes an invitation back; any administrator may take any.
func (v *deviceVerbs) cancelInviteVerb() *cobra.Command {
	return &cobra.Command{
		Use: "cancel-invite INVITATION", Short: "Take a pairing code back before it is redeemed", Args: cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			if !nip.ValidID(args[0]) {
				return usage("INVITATION is 64 lowercase hex characters")
			}
			return v.with(c, v.timeout, func(ctx context.Context, d *client.Device) error {
				if _, err := d.Call(ctx, nip.InviteCancel{Invitation: nip.InvitationID(args[0])}); err != nil {
					return err
				}
				return v.g.emit(map[string]any{"cancelled": args[0]}, func(w io.Writer) { fmt.Fprintf(w, "cancelled %s\n", args[0]) })
			})
		},
	}
}
