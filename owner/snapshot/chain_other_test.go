//go:build !linux

package snapshot

func useChain(bool) (restore func()) { return func() {} }
