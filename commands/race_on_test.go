//go:build race

package commands

// Race says that the tests run under the race detector, where the long ones
// take fewer steps.
const Race = true
