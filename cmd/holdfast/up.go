package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"holdfast/host"
	"holdfast/nip"
	"holdfast/owner"
)

func addServeFlags(c *cobra.Command, o *serveOptions) {
	c.Flags().StringArrayVar(&o.relays, "relay", nil, "also serve on this relay (wss://...); repeatable")
	o.flags(c)
}

func upCommand(g *globals) *cobra.Command {
	var o serveOptions
	c := &cobra.Command{
		Use: "up", Short: "Set up if needed, serve, and show a pairing code; Ctrl-C stops", Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if err := o.check(); err != nil {
				return err
			}
			first := !host.Initialised(g.home)
			if err := host.Init(g.home, "", g.coreOptions()); err != nil {
				return err
			}
			var demo string
			if first {
				demo = g.makeDemo(c.Context())
			}
			return g.serve(c.Context(), o, true, demo)
		},
	}
	addServeFlags(c, &o)
	return c
}

func serveCommand(g *globals) *cobra.Command {
	var o serveOptions
	c := &cobra.Command{
		Use: "serve", Short: "The resident host as a service", Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error { return g.serve(c.Context(), o, false, "") },
	}
	addServeFlags(c, &o)
	c.Flags().BoolVar(&o.noRelay, "no-relay", false, "do not run the embedded relay")
	return c
}

func initCommand(g *globals) *cobra.Command {
	var ownerKey string
	c := &cobra.Command{
		Use: "init", Short: "Make the keys and the store, nothing else", Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			key := nip.PubKey("")
			if ownerKey != "" {
				k, err := nip.ParseAnyPubKey(ownerKey)
				if err != nil {
					return usage("--owner: %s", err)
				}
				key = k
			}
			if err := host.Init(g.home, key, g.coreOptions()); err != nil {
				return err
			}
			st, err := ask[host.Status](c.Context(), g, "status", nil)
			if err != nil {
				return err
			}
			return g.emit(map[string]any{"host": st.Host, "owner": st.Owner, "home": g.home}, func(w io.Writer) {
				fmt.Fprintf(w, "home   %s\nhost   %s\nowner  %s\n\nnothing starts by itself until you set a policy; holdfast up serves\n", g.home, st.Host, st.Owner)
			})
		},
	}
	c.Flags().StringVar(&ownerKey, "owner", "", "the owner's public key (npub or hex) when its secret is elsewhere")
	return c
}

// printer writes event lines from many goroutines.
type printer struct {
	g *globals
	// mu keeps lines whole.
	mu sync.Mutex
}

func (p *printer) line(v any, text string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	_ = p.g.emit(v, func(w io.Writer) {
		if text != "" {
			fmt.Fprintln(w, text)
		}
	})
}

func (p *printer) event(e host.Event) { p.line(e, eventText(e)) }

func eventText(e host.Event) string {
	at := time.Now().Format(time.TimeOnly)
	switch {
	case e.Command != nil:
		c := e.Command
		s := fmt.Sprintf("%s  command %s %s on task %s: %s", at, short(c.Command), c.Action, short(string(c.Task)), c.State)
		if c.State == "done" {
			s += " " + c.Outcome
		}
		if c.Reason != "" {
			s += " (" + string(c.Reason) + ")"
		}
		return s
	case e.Task != nil:
		return fmt.Sprintf("%s  task %s revision %d: %s", at, short(string(e.Task.Task)), e.Task.Revision, e.Task.Headline)
	case e.Device != "":
		return fmt.Sprintf("%s  device %s %s", at, short(string(e.Device)), e.Event)
	}
	return ""
}

// short is enough of an ID for a person to tell two apart.
func short(id string) string {
	if len(id) > 12 {
		return id[:12]
	}
	return id
}

// serve runs the resident host in the foreground.
func (g *globals) serve(ctx context.Context, o serveOptions, invite bool, demo string) error {
	if host.Initialised(g.home) {
		if err := makeRelayDir(g.home); err != nil {
			return err
		}
	}
	out := &printer{g: g}
	p, err := g.build(ctx, o, out.event)
	if err != nil {
		return err
	}
	err = p.run(ctx, func() error {
		names := p.links.served()
		primary := names[0]
		out.plain(o.listening)
		out.line(map[string]any{"event": "ready", "host": p.core.Self(), "owner": p.core.Owner(), "relay": primary, "relays": names, "app": nil},
			g.greeting(p, names, demo))
		if !invite {
			return nil
		}
		inv, code, err := p.core.NewInvitation(ctx, nip.StandardRights(), 30, primary)
		if err != nil {
			// A host that was started often in five minutes serves all the same;
			// a store that failed ends the host by itself.
			out.line(map[string]any{"event": "no_invitation", "why": err.Error()}, "no pairing code: "+err.Error())
			return nil
		}
		out.line(map[string]any{"event": "invitation", "invitation": inv.ID, "code": code, "expires_at": inv.ExpiresAt, "relay": inv.Relay},
			invitationText(code, inv.Relay, names))
		return nil
	})
	p.host.Wait(time.Second)
	cerr := p.close()
	if ctx.Err() != nil && (err == nil || errors.Is(err, context.Canceled)) {
		err = nil
		g.sayRunning(out)
	}
	return errors.Join(err, cerr)
}

// sayRunning names the turns that go on without the host.
func (g *globals) sayRunning(out *printer) {
	s, err := owner.Open(g.home, owner.Options{})
	if err != nil {
		return
	}
	defer s.Close()
	ids, err := s.Awake()
	if err != nil {
		return
	}
	for _, id := range ids {
		if t, err := s.Get(id); err == nil && (t.Status == owner.Running || t.Status == owner.CancelRequested) {
			out.line(map[string]any{"event": "still_running", "task": id}, "task "+short(string(id))+" still runs; the next start finds it (holdfast task stop "+string(id)+" ends it)")
		}
	}
}

func (g *globals) greeting(p *parts, names []nip.RelayURL, demo string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "holdfast %s serves\n\n  home   %s\n  host   %s\n", version, g.home, p.core.Self())
	for _, n := range names {
		fmt.Fprintf(&b, "  relay  %s\n", n)
	}
	if p.stranded > 0 {
		fmt.Fprintf(&b, "\n  %d paired device(s) know another relay address, which is not served; pair them again with holdfast invite\n", p.stranded)
	}
	if demo != "" {
		fmt.Fprintf(&b, "\n%s\n", demo)
	}
	return b.String()
}

// invitationText shows the code and says, honestly, who can use it. served is
// what the host serves on, as far as it is known here.
func invitationText(code string, relay nip.RelayURL, served []nip.RelayURL) string {
	var b strings.Builder
	b.WriteString("pair a device within five minutes with this code:\n\n")
	writeQR(&b, code)
	fmt.Fprintf(&b, "\n  %s\n\n", code)
	near := func(r nip.RelayURL) bool { return nip.CheckRelay(r, false) != nil }
	other := func(want bool) nip.RelayURL {
		for _, r := range served {
			if near(r) == want {
				return r
			}
		}
		return ""
	}
	if !near(relay) {
		b.WriteString("it works for any device that reaches " + string(relay) + "\n")
		if r := other(true); r != "" {
			b.WriteString("for a device on this computer: holdfast invite --relay " + string(r) + "\n")
		}
	} else {
		b.WriteString("it works for devices on this computer only (the relay is a loopback address):\n" +
			"  holdfast device init && holdfast device pair --allow-loopback CODE\n")
		if r := other(false); r != "" {
			b.WriteString("for a phone: holdfast invite --relay " + string(r) + "\n")
		} else {
			b.WriteString("for a phone, serve on a relay that it can reach: holdfast up --relay wss://RELAY/, then holdfast invite --relay wss://RELAY/,\n" +
				"or give this one a name: holdfast up --public-url wss://NAME/ behind a TLS proxy, or with --listen, --tls-cert and --tls-key\n")
		}
	}
	b.WriteString("another code later: holdfast invite          stop: Ctrl-C\n")
	return b.String()
}

func inviteCommand(g *globals) *cobra.Command {
	var rights, relayURL string
	var days int
	c := &cobra.Command{
		Use: "invite", Short: "Make a pairing code", Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			list, err := parseRights(rights)
			if err != nil {
				return err
			}
			inv, err := ask[host.Invited](c.Context(), g, "invite", host.InviteArgs{Rights: list, Days: days, Relay: nip.RelayURL(relayURL)})
			if err != nil {
				return err
			}
			return g.emit(inv, func(w io.Writer) { fmt.Fprint(w, invitationText(inv.Code, inv.Relay, nil)) })
		},
	}
	c.Flags().StringVar(&rights, "rights", "standard", "standard, pairing, or a list such as observe,operate")
	c.Flags().IntVar(&days, "days", 30, "how long the grant lasts, 1 to 30")
	c.Flags().StringVar(&relayURL, "relay", "", "the relay the device will use (default: the first one served)")
	return c
}

func parseRights(s string) (nip.Rights, error) {
	switch s {
	case "standard":
		return nip.StandardRights(), nil
	case "pairing":
		return nip.PairingRights(), nil
	}
	list, err := nip.ParseRights(strings.Split(s, ","))
	if err != nil {
		return nil, usage("--rights %s: %s (in order: observe,operate,terminal,review,access_read,access_admin)", s, err)
	}
	return list, nil
}

// printRaw prints the operator's documents as they came, for stream verbs.
func (g *globals) printRaw(raw json.RawMessage) error {
	_, err := g.stdout.Write(append(append([]byte(nil), raw...), '\n'))
	return err
}
