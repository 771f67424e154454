package client

import (
	"os"
	"testing"

	"holdfast/internal/leaks"
)

// TestMain runs the suite, or the child process that a test kills.
func TestMain(m *testing.M) {
	if dir := os.Getenv("HOLDFAST_TEST_CHILD_PROFILE"); dir != "" {
		childSend(dir)
		return
	}
	leaks.Main(m)
}
