package main

import (
	"cmp"
	"fmt"
	"io"

	"holdfast/owner"
)

// writeReached says what a turn reached through its allow list, and what it
// tried; nothing of a turn without one.
func writeReached(w io.Writer, r *owner.Reached) {
	if r == nil {
		return
	}
	fmt.Fprintf(w, "  egress     %d bytes sent, %d received\n", r.Up, r.Down)
	for _, row := range r.Rows {
		times := "once"
		if row.Count > 1 {
			times = fmt.Sprint(row.Count, " times")
		}
		fmt.Fprintf(w, "             %-32s %s, %s", cmp.Or(row.Target, "(no target)"), row.Verdict, times)
		if row.Up+row.Down > 0 {
			fmt.Fprintf(w, ", %d bytes sent, %d received", row.Up, row.Down)
		}
		fmt.Fprintln(w)
	}
	if r.More > 0 {
		fmt.Fprintf(w, "             and %d more attempts\n", r.More)
	}
}
