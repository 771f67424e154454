package main

import (
	"encoding/json"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"holdfast/host"
	"holdfast/nip"
)

// enrollCommand asks, from a machine that shows no QR to anybody, to be given a
// device: an administrator sees the request on another one and types the code
// that stands here.
func enrollCommand(g *globals) *cobra.Command {
	var rights, relayURL string
	c := &cobra.Command{
		Use: "enroll", Short: "Ask the owner and the administrators to add a device by a short code", Args: cobra.NoArgs,
		Long: "Asks the owner and every administrator's device, over the relay, to add a device.\n" +
			"Whoever approves types the code that is shown here. The request lasts five minutes,\n" +
			"also when this command is interrupted.",
		RunE: func(c *cobra.Command, _ []string) error {
			list, err := parseRights(rights)
			if err != nil {
				return err
			}
			last := ""
			err = g.operate(c.Context(), "enroll", host.EnrollArgs{Rights: list, Relay: nip.RelayURL(relayURL)}, func(raw json.RawMessage) error {
				var e host.Enrolling
				if err := json.Unmarshal(raw, &e); err != nil {
					return err
				}
				last = e.State
				return g.emit(raw, func(w io.Writer) { writeEnrolling(w, e) })
			})
			if err != nil {
				return err
			}
			return enrollmentEnd(last)
		},
	}
	c.Flags().StringVar(&rights, "rights", "standard", "the most that may be granted: standard, pairing, or a list such as observe,operate")
	c.Flags().StringVar(&relayURL, "relay", "", "the relay to ask on (default: the first one served)")
	return c
}

func writeEnrolling(w io.Writer, e host.Enrolling) {
	switch e.State {
	case "open":
		fmt.Fprintf(w, "asked %d on %s\n\n    code  %s\n\nWhoever adds the device types this code. It ends at %s.\n", e.Copies, e.Relay, e.Code, clockTime(e.ExpiresAt))
	case "wrong_code":
		fmt.Fprintf(w, "a wrong code was typed (%d of 5)\n", e.Tries)
	case "approved":
		fmt.Fprintf(w, "approved: device %s, grant %s\n", e.Device, e.Grant)
	}
}

// enrollmentEnd is the exit of the verb: 0 for an approval, or when the person
// ended it.
func enrollmentEnd(state string) error {
	end := func(message, hint string) error {
		return &cliError{Exit: exitFailed, Code: state, Message: message, Hint: hint}
	}
	switch state {
	case "denied":
		return end("the request was denied", "ask whoever denied it, or run holdfast enroll again")
	case "closed":
		return end("five wrong codes closed the request", "if nobody you know typed them, look at holdfast devices list; else run holdfast enroll again")
	case "expired":
		return end("nobody approved within five minutes", "holdfast status shows whether the relay is reached; run holdfast enroll again")
	}
	return nil
}
