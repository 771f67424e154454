package owner

import (
	"math"

	"golang.org/x/sys/unix"
)

// selfExecutable names the running image itself: the file it was started from may be replaced or gone by now.
func selfExecutable() (string, error) { return "/proc/self/exe", nil }

// sealDescriptors marks everything above standard error close-on-exec. Go opens its files so; this covers what this
// process inherited from its own parent. A kernel without the call leaves those to the parent's care.
func sealDescriptors() { _ = unix.CloseRange(3, math.MaxUint32, unix.CLOSE_RANGE_CLOEXEC) }
