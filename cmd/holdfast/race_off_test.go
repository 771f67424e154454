//go:build !race

package main

// parallel is how many tests run at once.
const parallel = 8
