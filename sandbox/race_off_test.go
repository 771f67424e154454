//go:build !race

package sandbox_test

// raced is how many times as much memory a program of this test binary has.
const raced = 1
