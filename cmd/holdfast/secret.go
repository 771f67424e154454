package main

import (
	"fmt"
	"io"
	"sort"
	"strings"

	"github.com/spf13/cobra"

	"holdfast/host"
	"holdfast/owner"
)

const secretLimit = 32 << 10

// secretNames is what every secret verb prints: names, never a value.
type secretNames struct {
	Names []string `json:"names"`
}

func secretCommand(g *globals) *cobra.Command {
	c := &cobra.Command{Use: "secret", Short: "Values that a policy may pass to a program by name; never printed"}
	change := func(c *cobra.Command, verb, said string, a host.SecretArgs) error {
		if !host.Initialised(g.home) {
			return &cliError{Exit: exitFailed, Code: "no_home", Message: g.home + " holds no store", Hint: "run holdfast init or holdfast up"}
		}
		out, err := ask[secretNames](c.Context(), g, verb, a)
		if err != nil {
			return err
		}
		return g.emit(out, func(w io.Writer) { fmt.Fprintln(w, said+" "+a.Name) })
	}
	c.AddCommand(&cobra.Command{
		Use: "set NAME", Short: "Keep a value read from standard input", Args: cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			raw, err := g.readInput("-", secretLimit)
			if err != nil {
				return err
			}
			return change(c, "secret.set", "kept", host.SecretArgs{Name: args[0], Value: strings.TrimRight(string(raw), "\r\n")})
		},
	}, &cobra.Command{
		Use: "list", Short: "The names", Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			m, err := owner.ReadSecrets(g.home)
			if err != nil {
				return err
			}
			out := secretNames{Names: []string{}}
			for n := range m {
				out.Names = append(out.Names, n)
			}
			sort.Strings(out.Names)
			return g.emit(out, func(w io.Writer) {
				for _, n := range out.Names {
					fmt.Fprintln(w, n)
				}
			})
		},
	}, &cobra.Command{
		Use: "remove NAME", Short: "Forget a value", Args: cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			return change(c, "secret.remove", "removed", host.SecretArgs{Name: args[0]})
		},
	})
	return c
}
