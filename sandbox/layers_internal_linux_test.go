package sandbox

import (
	"os"
	"strings"
)

// layersOffVariable names the layers that a run of this test binary, with its
// stages, goes without: "seccomp,landlock".
const layersOffVariable = "HOLDFAST_TEST_LAYERS_OFF"

// A stage begins in an init function of the package, so this comes before all.
var _ = switchOff()

func switchOff() bool {
	value := os.Getenv(layersOffVariable)
	if value == "" {
		return false
	}
	switchedOff = map[layer]bool{}
	for _, name := range strings.Split(value, ",") {
		switchedOff[layer(name)] = true
	}
	stageEnv = append(stageEnv, layersOffVariable+"="+value)
	return true
}
