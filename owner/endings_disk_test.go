package owner

import (
	"context"
	"strings"
	"testing"
)

// A turn whose workspace grows beyond what it may ends for that reason, and what it wrote is looked at all the same.
func TestDiskLimit(t *testing.T) {
	for _, r := range []struct{ name, script string }{
		{"bytes", "i=0; while [ $i -lt 8 ]; do head -c 1M /dev/zero > f$i; i=$((i+1)); done; sleep 600"},
		{"holes", "i=0; while [ $i -lt 8 ]; do truncate -s 1M f$i; i=$((i+1)); done; sleep 600"},
	} {
		t.Run(r.name, func(t *testing.T) {
			t.Parallel()
			w := newWorkbench(t)
			w.submit("t", BoundedCommand)
			p := testParts(nil)
			p.disk = 4 << 20
			task, err := execute(context.Background(), w.s, "t", w.grant("t", r.script, func(g *Grant) { g.Write = true }), p)
			if err != nil {
				t.Fatal(err)
			}
			wantEnding(t, task, Finished, ExecFailed, EndingDiskLimit)
			res := task.Run.Result
			if !res.GroupClear || res.ExitCode != nil || res.StopRequested || res.Candidate == "" ||
				!strings.Contains(string(res.Confinement), "measured about once a second") {
				t.Errorf("result %+v", res)
			}
			w.wantSealed(task)
			mustApply(t, w.s, continueOf("t", "next", task.Revision))
		})
	}
}
