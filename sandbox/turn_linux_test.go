package sandbox_test

import (
	"testing"

	"holdfast/sandbox"
)

func TestSmoke(t *testing.T) {
	r, o := run(t, shell(t, `id; pwd; env; ls -la / /etc /dev /tmp /run $HOME; cat /proc/self/mountinfo; cat /proc/self/status; ls -l /proc/self/fd/; touch x; ls -la; cat /proc/self/fdinfo/1`))
	t.Logf("%s\n%s\n%+v", o.stdout.String(), o.stderr.String(), r)
}

func TestProbeSmoke(t *testing.T) {
	t.Logf("%+v", sandbox.Probe())
}
