//go:build !linux || !(amd64 || arm64)

package diskfault

import "errors"

// Disk cannot be had here.
type Disk struct{}

// Install says that this system has no such filter.
func Install() (*Disk, error) {
	return nil, errors.New("disk faults need Linux on amd64 or arm64")
}

// Begin does nothing.
func (*Disk) Begin(string, Plan) {}

// Revive does nothing.
func (*Disk) Revive() error { return nil }

// Struck is never.
func (*Disk) Struck() (call string, dead bool) { return "", false }

// Unseen is nothing.
func (*Disk) Unseen() []string { return nil }

// End does nothing.
func (*Disk) End() (calls int, struck bool) { return 0, false }
