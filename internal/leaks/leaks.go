// Package leaks holds that the goroutines of a package's tests end with them.
//
// Main takes the place of m.Run and os.Exit in a TestMain. What still runs when
// the tests have passed has half a minute to end: closing a socket or a process
// is over when the other side has heard of it, and on a machine that has much
// else to do goleak's own patience, which is 0.4 s, ends before. What does not
// end fails the package with its stack.
//
// Only tests import it, once each, from the goroutine of TestMain. The options
// are goleak's, for goroutines that have no end by their nature. Nothing here is
// durable.
package leaks

import (
	"fmt"
	"os"
	"testing"
	"time"

	"go.uber.org/goleak"
)

// limit is for a busy machine; goroutines without an end fail at any.
const limit = 30 * time.Second

// Main runs the tests, waits for their goroutines and ends the process.
func Main(m *testing.M, options ...goleak.Option) {
	code := m.Run()
	if code == 0 {
		if err := settled(limit, options...); err != nil {
			fmt.Fprintf(os.Stderr, "after %s: %v\n", limit, err)
			code = 1
		}
	}
	os.Exit(code)
}

// settled waits until no goroutine is left but the caller's.
func settled(limit time.Duration, options ...goleak.Option) error {
	for end := time.Now().Add(limit); ; {
		err := goleak.Find(options...) // it looks again for 0.4 s by itself
		if err == nil || time.Now().After(end) {
			return err
		}
	}
}
