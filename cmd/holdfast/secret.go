package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"sort"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/spf13/cobra"

	"holdfast/host"
	"holdfast/internal/atomicfile"
	"holdfast/owner"
)

var secretName = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]{0,127}$`)

const secretLimit = 32 << 10

func secretCommand(g *globals) *cobra.Command {
	c := &cobra.Command{Use: "secret", Short: "Values that a policy may pass to a program by name; never printed"}
	names := func(m map[string]string) map[string]any {
		list := []string{}
		for n := range m {
			list = append(list, n)
		}
		sort.Strings(list)
		return map[string]any{"names": list}
	}
	say := func(m map[string]string, text string) error {
		return g.emit(names(m), func(w io.Writer) {
			if text != "" {
				fmt.Fprintln(w, text)
				return
			}
			for _, n := range names(m)["names"].([]string) {
				fmt.Fprintln(w, n)
			}
		})
	}
	c.AddCommand(&cobra.Command{
		Use: "set NAME", Short: "Keep a value read from standard input", Args: cobra.ExactArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			if !secretName.MatchString(args[0]) {
				return usage("%q is no variable name", args[0])
			}
			raw, err := g.readInput("-", secretLimit)
			if err != nil {
				return err
			}
			value := strings.TrimRight(string(raw), "\r\n")
			if value == "" || strings.ContainsRune(value, 0) {
				return usage("the value on standard input is empty or holds a NUL byte")
			}
			m, err := g.changeSecrets(func(m map[string]string) error { m[args[0]] = value; return nil })
			if err != nil {
				return err
			}
			return say(m, "kept "+args[0])
		},
	}, &cobra.Command{
		Use: "list", Short: "The names", Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			m, err := owner.ReadSecrets(g.home)
			if err != nil {
				return err
			}
			return say(m, "")
		},
	}, &cobra.Command{
		Use: "remove NAME", Short: "Forget a value", Args: cobra.ExactArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			m, err := g.changeSecrets(func(m map[string]string) error {
				if _, ok := m[args[0]]; !ok {
					return &cliError{Exit: exitFailed, Code: "not_found", Message: "no secret " + args[0]}
				}
				delete(m, args[0])
				return nil
			})
			if err != nil {
				return err
			}
			return say(m, "removed "+args[0])
		},
	})
	return c
}

// changeSecrets rewrites secrets.json whole; the rename is the commit point.
func (g *globals) changeSecrets(change func(map[string]string) error) (map[string]string, error) {
	if !host.Initialised(g.home) {
		return nil, &cliError{Exit: exitFailed, Code: "no_home", Message: g.home + " holds no store", Hint: "run holdfast init or holdfast up"}
	}
	m, err := owner.ReadSecrets(g.home)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	if m == nil {
		m = map[string]string{}
	}
	if err := change(m); err != nil {
		return nil, err
	}
	raw, err := json.Marshal(struct {
		V      string            `json:"v"`
		Values map[string]string `json:"values"`
	}{"holdfast.secrets.v1", m}, jsontext.WithIndent("  "), json.Deterministic(true))
	if err != nil {
		return nil, fmt.Errorf("encode secrets: %w", err)
	}
	return m, atomicfile.Write(filepath.Join(g.home, "secrets.json"), append(raw, '\n'))
}
