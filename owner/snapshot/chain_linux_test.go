package snapshot

// useChain takes openat2 away, as older kernels and filters do; the function returned gives it back.
func useChain(on bool) (restore func()) {
	noOpenat2.Store(on)
	return func() { noOpenat2.Store(false) }
}
