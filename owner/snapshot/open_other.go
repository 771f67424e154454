//go:build !linux

package snapshot

// beneath opens path below root, following no link at any component.
func beneath(root int, path string, flags int) (int, error) { return chain(root, path, flags) }
