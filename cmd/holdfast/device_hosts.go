package main

import (
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"holdfast/host/client"
	"holdfast/nip"
)

// hostsVerb lists the hosts that the profile is paired with.
func (v *deviceVerbs) hostsVerb() *cobra.Command {
	var forget string
	c := &cobra.Command{
		Use: "hosts", Short: "List the paired hosts", Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			d, err := v.openAny()
			if err != nil {
				return err
			}
			defer d.Close()
			if forget != "" {
				key, err := nip.ParseAnyPubKey(forget)
				if err != nil {
					return usage("--forget takes a whole key; device hosts shows them")
				}
				ok, err := d.Forget(key)
				if err != nil {
					return deviceError(err)
				}
				if !ok {
					return &cliError{Exit: exitFailed, Code: "absent", Message: "this profile is not paired with that host"}
				}
			}
			list, err := d.Hosts()
			if err != nil {
				return deviceError(err)
			}
			return v.emitHosts(list)
		},
	}
	c.Flags().StringVar(&forget, "forget", "", "forget the standing with this host; the host is not told")
	return c
}

// openAny opens the profile where any host will do: none need be named, and a
// single damaged record is no reason to show nothing.
func (v *deviceVerbs) openAny() (*client.Device, error) {
	d, err := client.Open(v.dir(), client.Options{Log: v.g.log, AnyHost: true})
	return d, deviceError(err)
}

func (v *deviceVerbs) emitHosts(list []client.HostRecord) error {
	docs := make([]map[string]any, 0, len(list))
	for _, r := range list {
		doc := map[string]any{"host": r.Host, "error": nil}
		if r.Err != nil {
			doc["error"] = r.Err.Error()
		} else {
			g := r.Grant
			doc["relay"] = r.Relay
			if r.Owner {
				doc["rights"], doc["grant"] = nip.PairingRights(), nil
				docs = append(docs, doc)
				continue
			}
			doc["relay"], doc["owner"], doc["grant"], doc["rights"] = g.Relay, g.Owner, g.ID, g.Rights
			doc["issued_at"], doc["expires_at"] = g.IssuedAt, g.ExpiresAt
			doc["hints"], doc["hints_until"] = nil, nil
			if r.Hints != nil {
				doc["hints"], doc["hints_until"] = hintDocuments(*r.Hints), r.Hints.ExpiresAt
			}
		}
		docs = append(docs, doc)
	}
	return v.g.emit(map[string]any{"hosts": docs}, func(w io.Writer) {
		if len(list) == 0 {
			fmt.Fprintln(w, "paired with no host")
		}
		for _, r := range list {
			if r.Err != nil {
				fmt.Fprintf(w, "%s  %s\n", r.Host, r.Err)
				continue
			}
			if r.Owner {
				fmt.Fprintf(w, "%s  %s  owner\n", r.Host, r.Relay)
				continue
			}
			fmt.Fprintf(w, "%s  %s  until %s  %s\n", r.Host, r.Grant.Relay, clockTime(r.Grant.ExpiresAt), joinRights(r.Grant.Rights))
			if r.Hints != nil && r.Hints.ExpiresAt > time.Now().Unix() {
				printHints(w, *r.Hints, "    may be reached by ")
			}
		}
	})
}
