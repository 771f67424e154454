package sandbox_test

import (
	"testing"

	"holdfast/sandbox"
)

// S27: a group that takes too much memory ends for that reason, whether one process takes it or many, and whatever the
// program makes of signals. dd takes its whole block as private memory, and holds it while nobody reads.
func TestThreatS27(t *testing.T) {
	for _, r := range []struct{ name, script string }{
		{"one process", `trap '' TERM; dd if=/dev/zero bs=150M count=1 | sleep 20`},
		{"many processes", `for i in 1 2 3 4 5 6; do ( dd if=/dev/zero bs=20M count=1 | sleep 20 ) & done; wait`},
		{"a process that left its session", `setsid dd if=/dev/zero bs=150M count=1 | sleep 20`},
	} {
		t.Run(r.name, func(t *testing.T) {
			t.Parallel()
			s := shell(t, r.script)
			s.MemoryBytes = 64 << 20
			got, o := run(t, s)
			if got.Ending != sandbox.EndingMemory || got.ExitCode != nil || got.Fault != "" || got.Signal != "" {
				t.Fatalf("ending %d, exit %v, fault %q\n%s", got.Ending, got.ExitCode, got.Fault, o.stderr.String())
			}
		})
	}
}
