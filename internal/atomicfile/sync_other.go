//go:build !linux

package atomicfile

import "os"

// dataSync is the full flush of os.File.Sync, which on macOS reaches the medium.
func dataSync(f *os.File) error { return f.Sync() }
