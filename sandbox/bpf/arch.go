package bpf

// Arch is a processor architecture as the kernel tells it to a filter.
type Arch uint32

const (
	AMD64 Arch = 0xc000003e
	ARM64 Arch = 0xc00000b7
)

// newest is the last system call that the policy was held against. Both
// architectures number alike from 424 on.
const newest = 471

// x32 marks calls of the x32 ABI, which has the architecture of amd64 and
// numbers of its own.
const x32 = 0x40000000

// span is a range of numbers, both ends in it.
type span struct{ from, to uint32 }

// unused are numbers below newest that no call has. A later kernel may give
// them to anything.
var unused = map[Arch][]span{
	AMD64: {{337, 423}},
	ARM64: {{245, 259}, {295, 423}},
}

// ArchOf is the architecture by its name in GOARCH, 0 where there is no filter
// for it.
func ArchOf(goarch string) Arch {
	switch goarch {
	case "amd64":
		return AMD64
	case "arm64":
		return ARM64
	}
	return 0
}
