package main

import (
	"context"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/mdp/qrterminal/v3"
	"github.com/spf13/cobra"

	"holdfast/host/client"
	"holdfast/nip"
)

// grantTerms are the two flags that say what a new grant holds.
type grantTerms struct {
	rights string
	days   int
}

func (f *grantTerms) flags(c *cobra.Command) {
	c.Flags().StringVar(&f.rights, "rights", "", "standard, pairing, or a list such as observe,operate (default: of the standard ones those that this device holds)")
	c.Flags().IntVar(&f.days, "days", 0, "how long the grant lasts, 1 to 30 (default: as long as this device's own, at most 30)")
}

// clockSlack is taken off the longest life, in seconds: the host counts the 30
// days from its own clock.
const clockSlack = 60

// of resolves the flags. Without them nothing is asked for that the device
// could not give: no right that it does not hold, no end after its own. An owner
// holds them all without an end.
func (f *grantTerms) of(d *client.Device, within nip.Rights) (nip.Rights, int64, error) {
	if f.days < 0 || f.days > 30 {
		return nil, 0, usage("--days is 1 to 30")
	}
	g, _ := d.Grant()
	if _, owned := d.Owned(); owned {
		g.Rights, g.ExpiresAt = nip.PairingRights(), math.MaxInt64
	}
	var rights nip.Rights
	if f.rights != "" {
		var err error
		if rights, err = parseRights(f.rights); err != nil {
			return nil, 0, err
		}
	} else {
		for _, r := range within {
			if slices.Contains(g.Rights, r) {
				rights = append(rights, r)
			}
		}
		if len(rights) == 0 {
			return nil, 0, usage("this device holds none of the rights; say --rights")
		}
	}
	now := time.Now().Add(-d.ClockOffset()).Unix()
	if f.days == 0 {
		return rights, min(now+30*86_400-clockSlack, g.ExpiresAt), nil
	}
	return rights, now + int64(f.days)*86_400 - clockSlack, nil
}

// inviteVerb makes an invitation in the name of this device.
func (v *deviceVerbs) inviteVerb() *cobra.Command {
	var terms grantTerms
	c := &cobra.Command{
		Use: "invite", Short: "Make a pairing code for another device", Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			return v.with(c, v.timeout, func(ctx context.Context, d *client.Device) error {
				rights, until, err := terms.of(d, nip.StandardRights())
				if err != nil {
					return err
				}
				out, err := d.Call(ctx, nip.InviteCreate{Rights: rights, GrantExpiresAt: until})
				if err != nil {
					return err
				}
				inv := out.(nip.Invited)
				return v.g.emit(map[string]any{"invitation": inv.Invitation, "code": inv.Code, "expires_at": inv.ExpiresAt,
					"rights": rights, "grant_expires_at": until}, func(w io.Writer) {
					fmt.Fprint(w, qrText(inv.Code))
					fmt.Fprintf(w, "\n  %s\n\ngood for one device until %s; it gets %s until %s\n",
						inv.Code, clockTime(inv.ExpiresAt), joinRights(rights), clockTime(until))
				})
			})
		},
	}
	terms.flags(c)
	return c
}

func qrText(code string) string {
	var b strings.Builder
	qrterminal.GenerateWithConfig(code, qrterminal.Config{
		Level: qrterminal.L, Writer: &b, HalfBlocks: true, QuietZone: 1,
		BlackChar: qrterminal.BLACK_BLACK, WhiteBlackChar: qrterminal.WHITE_BLACK,
		WhiteChar: qrterminal.WHITE_WHITE, BlackWhiteChar: qrterminal.BLACK_WHITE,
	})
	return b.String()
}

// enrollmentsVerb lists what waits for an administrator's word.
func (v *deviceVerbs) enrollmentsVerb() *cobra.Command {
	return &cobra.Command{
		Use: "enrollments", Short: "List the host's enrollment requests that wait for a word", Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			return v.with(c, v.timeout, func(ctx context.Context, d *client.Device) error {
				list, err := d.Enrollments(ctx)
				if err != nil {
					return err
				}
				docs := make([]map[string]any, 0, len(list))
				for _, e := range list {
					docs = append(docs, map[string]any{"enrollment": e.ID, "host": e.Host, "relay": e.Relay, "rights": e.Rights,
						"issued_at": e.IssuedAt, "expires_at": e.ExpiresAt, "request_digest": e.Digest})
				}
				return v.g.emit(map[string]any{"enrollments": docs}, func(w io.Writer) {
					if len(list) == 0 {
						fmt.Fprintln(w, "nothing waits")
					}
					for _, e := range list {
						fmt.Fprintf(w, "%s  until %s  at most %s\n", e.ID, clockTime(e.ExpiresAt), joinRights(e.Rights))
					}
				})
			})
		},
	}
}

// enrollment finds the waiting request that id, or the beginning of it, names.
func enrollment(ctx context.Context, d *client.Device, id string) (client.EnrollmentCopy, error) {
	list, err := d.Enrollments(ctx)
	if err != nil {
		return client.EnrollmentCopy{}, err
	}
	list = slices.DeleteFunc(list, func(e client.EnrollmentCopy) bool { return !strings.HasPrefix(string(e.ID), id) })
	switch len(list) {
	case 0:
		return client.EnrollmentCopy{}, &cliError{Exit: exitFailed, Code: "absent", Message: "no such enrollment request waits",
			Hint: "it lives five minutes; device enrollments lists what waits"}
	case 1:
		return list[0], nil
	}
	return client.EnrollmentCopy{}, usage("%d enrollment requests begin like that; say more of the ID", len(list))
}

// approveVerb admits a device by the code that the host's screen shows.
func (v *deviceVerbs) approveVerb() *cobra.Command {
	var terms grantTerms
	var code, device string
	c := &cobra.Command{
		Use: "approve ENROLLMENT --code CODE --device KEY", Short: "Admit a device to a host that shows a code",
		Long: "Admits the device KEY to the host whose screen shows CODE. The grant is sealed to\n" +
			"that device: this one cannot read it and prints it to be passed on, to\n" +
			"holdfast device accept there.",
		Args: cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			if code == "" || device == "" {
				return usage("--code and --device are needed")
			}
			key, err := nip.ParseAnyPubKey(device)
			if err != nil {
				return usage("--device takes the key that device init printed there")
			}
			// A typing error costs none of the five tries.
			if code, err = nip.NormalizeEnrollmentCode(code); err != nil {
				return &cliError{Exit: exitUsage, Code: string(nip.WrongCode), Message: err.Error()}
			}
			return v.with(c, v.timeout, func(ctx context.Context, d *client.Device) error {
				e, err := enrollment(ctx, d, args[0])
				if err != nil {
					return err
				}
				rights, until, err := terms.of(d, e.Rights)
				if err != nil {
					return err
				}
				out, err := d.Call(ctx, nip.EnrollApprove{Enrollment: e.ID, RequestDigest: e.Digest, Code: code, Device: key,
					Rights: rights, GrantExpiresAt: until})
				if err != nil {
					return err
				}
				grant := nip.EncodeEvent(out.(nip.Granted).Authorization)
				return v.g.emit(map[string]any{"enrollment": e.ID, "host": e.Host, "device": key, "rights": rights,
					"grant_expires_at": until, "authorization": rawJSON(grant)}, func(w io.Writer) {
					fmt.Fprintf(v.g.stderr, "admitted %s; on that device: holdfast device accept %s -\n", key, e.Host)
					fmt.Fprintln(w, string(grant))
				})
			})
		},
	}
	c.Flags().StringVar(&code, "code", "", "the code on the host's screen")
	c.Flags().StringVar(&device, "device", "", "the key of the device to admit")
	terms.flags(c)
	return c
}

// denyVerb ends an enrollment request.
func (v *deviceVerbs) denyVerb() *cobra.Command {
	return &cobra.Command{
		Use: "deny ENROLLMENT", Short: "Refuse an enrollment request", Args: cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			return v.with(c, v.timeout, func(ctx context.Context, d *client.Device) error {
				e, err := enrollment(ctx, d, args[0])
				if err != nil {
					return err
				}
				out, err := d.Call(ctx, nip.EnrollDeny{Enrollment: e.ID, RequestDigest: e.Digest})
				if err != nil {
					return err
				}
				raw, err := nip.EncodeOutcome(out)
				if err != nil {
					return fmt.Errorf("encode outcome: %w", err)
				}
				return v.g.emit(map[string]any{"enrollment": e.ID, "outcome": rawJSON(raw)}, func(w io.Writer) {
					fmt.Fprintf(w, "denied %s\n", e.ID)
				})
			})
		},
	}
}

// acceptVerb takes a grant that an administrator passed on.
func (v *deviceVerbs) acceptVerb() *cobra.Command {
	var loopback bool
	c := &cobra.Command{
		Use: "accept HOST GRANT", Short: "Take the grant that an administrator's approve printed (- reads it from standard input)",
		Args: cobra.ExactArgs(2),
		RunE: func(_ *cobra.Command, args []string) error {
			host, err := nip.ParseAnyPubKey(args[0])
			if err != nil {
				return usage("HOST is the host's whole key, as its own screen shows it")
			}
			text, err := v.words(args[1], maxGrantEvent)
			if err != nil {
				return err
			}
			ev, err := nip.ParseEvent([]byte(text))
			if err != nil {
				return deviceError(err)
			}
			d, err := client.Init(v.dir(), client.Options{Log: v.g.log, Loopback: loopback, AnyHost: true})
			if err != nil {
				return deviceError(err)
			}
			defer d.Close()
			grant, err := d.Accept(ev, host)
			if err != nil {
				return deviceError(err)
			}
			return v.emitGrant(grant)
		},
	}
	c.Flags().BoolVar(&loopback, "allow-loopback", false, "accept an unencrypted relay on this computer (ws://127.0.0.1)")
	return c
}

// maxGrantEvent bounds a grant's event on standard input.
const maxGrantEvent = 128 << 10
