//go:build race

package sandbox_test

// raced is how many times as much memory a program of this test binary has: the
// race detector takes several times what the program takes.
const raced = 4
