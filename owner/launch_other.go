//go:build !linux

package owner

import "os"

// selfExecutable is where the running binary was started from; nothing else names it here.
func selfExecutable() (string, error) { return os.Executable() }

// sealDescriptors has nothing to do: Go opens its files close-on-exec.
func sealDescriptors() {}
