package main

import (
	"fmt"
	"io"
	"math"
	"runtime"
	"slices"
	"strings"
	"text/tabwriter"
	"time"
)

// writeBench is the table for people. A bar is the ratio on a scale of doublings,
// with the floor at its middle.
func writeBench(w io.Writer, rows []benchRow, missing []benchMissing, quick bool) {
	fmt.Fprintf(w, "\nholdfast %s, %s/%s, %d processors, %s", version, runtime.GOOS, runtime.GOARCH, runtime.GOMAXPROCS(0), runtime.Version())
	if quick {
		fmt.Fprint(w, "; quick, so the samples are few")
	}
	fmt.Fprint(w, "\n\n")
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "measurement\tvalue\tfloor\tratio\tfloor at |\taim")
	for _, r := range rows {
		fmt.Fprintf(t, "%s\t%s\t%s\t%.2f\t%s\t%s\n", r.Name, amount(r.Value, r.Unit), amount(r.Floor, r.Unit), r.Ratio, bar(r.Ratio), r.Aim)
	}
	_ = t.Flush()
	for _, r := range rows {
		fmt.Fprintf(w, "\n%s\n  %s\n", r.Name, r.Detail)
	}
	for _, m := range missing {
		fmt.Fprintf(w, "\n%s: no figures\n  %s\n", m.Name, m.Why)
	}
}

func bar(ratio float64) string {
	const half = 8 // doublings to each side
	at := int(math.Round(math.Log2(ratio)))
	line := []byte(strings.Repeat(".", 2*half+1))
	for i := min(max(at, -half), half); i != 0; {
		line[half+i] = '#'
		if i > 0 {
			i--
		} else {
			i++
		}
	}
	line[half] = '|'
	return string(line)
}

// amount prints three digits that mean something.
func amount(v float64, unit string) string {
	switch unit {
	case "ms":
		return fmt.Sprintf("%.3g ms", v)
	case "bytes":
		return fmt.Sprintf("%.1f MiB", v/(1<<20))
	}
	return fmt.Sprintf("%.4g %s", v, unit)
}

// samples are the times of one thing done again and again.
type samples []time.Duration

// at is the quantile q, 0 to 1, of at least one sample.
func (s samples) at(q float64) time.Duration {
	sorted := slices.Sorted(slices.Values(s))
	return sorted[min(int(q*float64(len(sorted))), len(sorted)-1)]
}

func (s samples) ms(q float64) float64 { return millis(s.at(q)) }

func millis(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
