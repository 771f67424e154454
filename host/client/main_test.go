package client

import (
	"os"
	"testing"

	"go.uber.org/goleak"
)

// TestMain runs the suite, or the child process that a test kills.
func TestMain(m *testing.M) {
	if dir := os.Getenv("HOLDFAST_TEST_CHILD_PROFILE"); dir != "" {
		childSend(dir)
		return
	}
	goleak.VerifyTestMain(m)
}
