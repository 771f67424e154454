//go:build !linux && !darwin

package procid

// Self returns ErrUnsupported.
func Self() (ID, error) { return ID{}, ErrUnsupported }

// Of returns ErrUnsupported.
func Of(int) (ID, error) { return ID{}, ErrUnsupported }

// Alive returns ErrUnsupported.
func Alive(ID) (bool, error) { return false, ErrUnsupported }

// BootID returns ErrUnsupported.
func BootID() (string, error) { return "", ErrUnsupported }
