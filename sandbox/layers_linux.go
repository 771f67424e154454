package sandbox

// layer names one means of confinement that can be missing without the start
// failing for another reason.
type layer string

const (
	layerView       layer = "view"       // what is not named is not in the mount tree
	layerReadOnly   layer = "readonly"   // binds that are not written are read-only
	layerGitPointer layer = "gitpointer" // the .git file is bound read-only onto itself
	layerNet        layer = "net"        // a network namespace of its own
	layerPID        layer = "pid"        // init ends what the program left behind
	layerNested     layer = "nested"     // no further user namespaces
	layerCaps       layer = "caps"       // no capabilities, no_new_privs
	layerFiles      layer = "files"      // inherited descriptors are closed
	layerSignals    layer = "signals"    // init takes no signal from inside
	layerDumpable   layer = "dumpable"   // init cannot be looked into
	layerLandlock   layer = "landlock"
	layerSeccomp    layer = "seccomp"
	layerRlimits    layer = "rlimits"
	layerMemory     layer = "memory" // the sampler or the memory cgroup
	layerDisk       layer = "disk"   // the sampler of the workspace
	layerShared     layer = "shared" // bounds of shared memory: tmpfs sizes, kernel.shm*
	layerScan       layer = "scan"   // the look at the workspace before the start
	layerProxy      layer = "proxy"  // what the proxy refuses
)

// switchedOff is empty in the product, where nothing writes to it. A file of
// this package's tests fills it, here and in the stages of a test binary, so
// that the test of each threat can be seen to fail without the layer that stops
// it.
var switchedOff map[layer]bool

// on reports whether a layer is in force.
func on(l layer) bool { return !switchedOff[l] }
