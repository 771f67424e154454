package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"holdfast/host/client"
	"holdfast/host/client/remote"
	"holdfast/nip"
)

// signerCall is how long a verb waits in place of defaultCall where a signer
// elsewhere, and so perhaps a person, takes part in each request.
const signerCall = 4 * time.Minute

// maxSecretLine bounds a bunker address or a key.
const maxSecretLine = 4096

// options is how a verb opens the profile.
func (v *deviceVerbs) options() client.Options {
	return client.Options{Log: v.g.log, Host: v.host,
		Waiting: func() {
			v.waited.Do(func() { fmt.Fprintln(v.g.stderr, "waiting for the signer that holds this key; it may want your word") })
		},
		Ask: func(address string) { fmt.Fprintf(v.g.stderr, "the signer wants your leave at %s\n", address) },
	}
}

// patience is how long a verb of d waits for the host and a signer.
func (v *deviceVerbs) patience(c *cobra.Command, d *client.Device, limit time.Duration) time.Duration {
	if limit > 0 && d.KeyElsewhere() && !c.Flags().Changed("timeout") {
		return max(limit, signerCall)
	}
	return limit
}

// initVerb makes a key, takes one that exists, or introduces the profile to a
// signer that keeps it.
func (v *deviceVerbs) initVerb() *cobra.Command {
	var bunker, key string
	var loopback bool
	c := &cobra.Command{
		Use: "init", Short: "Make this device's key, or say who holds it", Args: cobra.NoArgs,
		Long: "Makes this device's key. For the owner of a host there are two other ways:\n\n" +
			"--bunker asks a remote signer (NIP-46) that keeps the owner's key elsewhere; the key\n" +
			"never comes here, and the signer is asked for each request.\n" +
			"--key copies a key, such as the owner.key in the home of the host.\n\n" +
			"Both take a private file, or - for one line of standard input: a bunker:// address\n" +
			"and a key are secrets, and arguments are seen by every user of this computer.\n" +
			"Then holdfast device own HOST --relay URL acts as the owner of that host.",
		RunE: func(c *cobra.Command, _ []string) error {
			d, err := v.initialise(c, bunker, key, loopback)
			if err != nil {
				return deviceError(err)
			}
			defer d.Close()
			return v.g.emit(map[string]any{"device": d.PubKey(), "profile": v.dir(), "elsewhere": d.KeyElsewhere()}, func(w io.Writer) {
				fmt.Fprintf(w, "device %s\nprofile %s\n", d.PubKey(), v.dir())
			})
		},
	}
	c.Flags().StringVar(&bunker, "bunker", "", "the key is kept by the signer of the bunker:// address in this private file (- reads it from standard input)")
	c.Flags().StringVar(&key, "key", "", "copy the key in this private file (- reads it from standard input)")
	c.Flags().BoolVar(&loopback, "allow-loopback", false, "with --bunker, accept an unencrypted relay on this computer (ws://127.0.0.1)")
	return c
}

func (v *deviceVerbs) initialise(c *cobra.Command, bunker, key string, loopback bool) (*client.Device, error) {
	o := v.options()
	o.AnyHost, o.Loopback = true, loopback
	switch {
	case bunker != "" && key != "":
		return nil, usage("--bunker and --key are two ways; take one")
	case bunker != "":
		address, err := v.secretLine(bunker, "bunker:// address")
		if err != nil {
			return nil, err
		}
		limit := v.timeout
		if !c.Flags().Changed("timeout") {
			limit = signerCall
		}
		ctx, cancel := context.WithTimeout(c.Context(), limit)
		defer cancel()
		return client.InitBunker(ctx, v.dir(), address, o)
	case key != "":
		text, err := v.secretLine(key, "key")
		if err != nil {
			return nil, err
		}
		secret, err := nip.ParseSecretKey(text)
		if err != nil {
			return nil, usage("--key: %s", err)
		}
		return client.InitKey(v.dir(), secret, o)
	}
	return client.Init(v.dir(), o)
}

// secretLine reads a secret from a private file, or one line of standard input.
// A secret given as the argument itself is refused and not repeated.
func (v *deviceVerbs) secretLine(source, what string) (string, error) {
	if strings.HasPrefix(source, "bunker:") || strings.HasPrefix(source, "nsec1") || nip.ValidID(source) {
		return "", &cliError{Exit: exitUsage, Code: "usage", Message: "a secret as an argument is seen by every user of this computer",
			Hint: "say - and give it on standard input; if others use this computer, have a new one made"}
	}
	if source != "-" {
		return secretFile(source, what)
	}
	if f, ok := v.g.stdin.(*os.File); ok && isTerminal(f) {
		fmt.Fprintf(v.g.stderr, "the %s, then Enter: ", what)
	}
	line, err := bufio.NewReader(io.LimitReader(v.g.stdin, maxSecretLine)).ReadString('\n')
	if err != nil && !errors.Is(err, io.EOF) {
		return "", fmt.Errorf("read standard input: %w", err)
	}
	if line = strings.TrimSpace(line); line == "" {
		return "", usage("standard input holds no %s", what)
	}
	return line, nil
}

// secretFile reads a file that nobody else may read. Its folder is the person's
// own affair: the file is read once and kept in the profile.
func secretFile(path, what string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", fmt.Errorf("read the %s: %w", what, err)
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return "", fmt.Errorf("read the %s: %w", what, err)
	}
	if !st.Mode().IsRegular() || st.Mode().Perm()&0o077 != 0 {
		return "", usage("%s is no private file; chmod 600 makes it one", path)
	}
	raw, err := io.ReadAll(io.LimitReader(f, maxSecretLine+1))
	if err != nil {
		return "", fmt.Errorf("read the %s: %w", what, err)
	}
	if len(raw) > maxSecretLine {
		return "", usage("%s is too long for a %s", path, what)
	}
	return strings.TrimSpace(string(raw)), nil
}

// ownVerb acts as the owner of a host.
func (v *deviceVerbs) ownVerb() *cobra.Command {
	var url string
	var loopback bool
	c := &cobra.Command{
		Use: "own HOST --relay URL", Short: "Act as the owner of a host, with the owner's key",
		Long: "Asks the host HOST over the relay URL whether this profile's key is its owner, and\n" +
			"acts as the owner from then on: every verb of a device works, with every right and\n" +
			"without a grant. The key is the one that holdfast init --owner named on the host, or\n" +
			"a copy of its owner.key (device init --bunker or --key). Both HOST and URL stand in\n" +
			"holdfast status there. An owner reads no publications: watch and read --offline do not\n" +
			"work, and commands shows the replies alone.",
		Args: cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			host, err := nip.ParseAnyPubKey(args[0])
			if err != nil {
				return usage("HOST is the host's whole key, as holdfast status shows it there")
			}
			if url == "" {
				return usage("--relay is needed: a relay of the host, as holdfast status shows it there")
			}
			o := v.options()
			o.AnyHost, o.Loopback, o.Host = true, loopback, ""
			d, err := client.Open(v.dir(), o)
			if err != nil {
				return ownError(err, loopback)
			}
			defer d.Close()
			ctx, cancel := context.WithTimeout(c.Context(), v.patience(c, d, v.timeout))
			defer cancel()
			if err := d.Own(ctx, host, nip.RelayURL(url)); err != nil {
				return ownError(err, loopback)
			}
			return v.g.emit(map[string]any{"host": host, "owner": d.PubKey(), "relay": url}, func(w io.Writer) {
				fmt.Fprintf(w, "owner of host %s\nover %s\n", host, url)
			})
		},
	}
	c.Flags().StringVar(&url, "relay", "", "a relay of the host, exactly as holdfast status shows it there")
	c.Flags().BoolVar(&loopback, "allow-loopback", false, "accept an unencrypted relay on this computer (ws://127.0.0.1)")
	return c
}

// ownError adds what only whoever owns a host can know.
func ownError(err error, loopback bool) error {
	var refused *client.Refused
	var signer *nip.KeeperError
	at := func(exit int, code, hint string) error {
		return &cliError{Exit: exit, Code: code, Message: err.Error(), Hint: hint}
	}
	switch {
	case errors.As(err, &signer):
	case errors.Is(err, client.ErrNoKey):
		return at(exitFailed, "no_key", "holdfast device init --bunker - (or --key FILE) first")
	case errors.As(err, &refused) && refused.Code == nip.Forbidden:
		return at(exitFailed, string(refused.Code), "this profile's key is not the host's owner; holdfast status there names it")
	case errors.Is(err, client.ErrNoAnswer):
		return at(exitUnreachable, "no_answer", "check that the host runs, its key, that --relay is exactly what holdfast status shows there, and this clock")
	}
	return pairError(err, loopback)
}

// signerError says what became of a request that a signer elsewhere had part in;
// nil when none had.
func signerError(err error) error {
	var signer *nip.KeeperError
	if !errors.As(err, &signer) {
		return nil
	}
	e := &cliError{Exit: exitUnreachable, Code: "signer_silent", Message: err.Error()}
	var no *remote.RefusedError
	switch {
	case errors.As(err, &no):
		e.Exit, e.Code = exitFailed, "signer_refused"
	case !errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, context.Canceled):
		e.Exit, e.Code = exitFailed, "signer"
	}
	if errors.Is(err, client.ErrNoAnswer) {
		e.Exit = exitUnreachable
		e.Hint = "the request was sent; whether the host acted is unknown; device outbox shows what waits"
	} else {
		e.Hint = "nothing was sent; agree in the signer and say it again"
	}
	return e
}
