package bpf

import "fmt"

// Verdict is what a filter answers: the kernel's action, with an error number
// in the low half where the call is refused.
type Verdict uint32

const (
	// Allow lets the kernel do the call.
	Allow Verdict = 0x7fff0000
	// Kill ends the whole process with SIGSYS.
	Kill Verdict = 0x80000000

	refused Verdict = 0x00050000
)

// Error numbers, alike on both architectures.
const (
	EPERM           = refused | 1
	ENOSYS          = refused | 38
	EPROTONOSUPPORT = refused | 93
	ESOCKTNOSUPPORT = refused | 94
	EAFNOSUPPORT    = refused | 97
)

// Errno is the error that a call gets, 0 where the verdict gives it none.
func (v Verdict) Errno() int {
	if v&0xffff0000 != refused {
		return 0
	}
	return int(v & 0xffff)
}

// String names a verdict as a manual page does.
func (v Verdict) String() string {
	switch v {
	case Allow:
		return "allow"
	case Kill:
		return "kill"
	case EPERM:
		return "EPERM"
	case ENOSYS:
		return "ENOSYS"
	case EPROTONOSUPPORT:
		return "EPROTONOSUPPORT"
	case ESOCKTNOSUPPORT:
		return "ESOCKTNOSUPPORT"
	case EAFNOSUPPORT:
		return "EAFNOSUPPORT"
	}
	return fmt.Sprintf("verdict %#x", uint32(v))
}
