//go:build race

package main

// parallel is how many tests run at once. Under the race detector they compute
// rather than wait: more of them would only make each other late.
const parallel = 4
