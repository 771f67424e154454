package bpf_test

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"runtime"
	"strconv"
	"testing"

	"golang.org/x/sys/unix"

	"holdfast/internal/skip"
	"holdfast/sandbox/bpf"
)

var (
	arches = map[string]bpf.Arch{"amd64": bpf.AMD64, "arm64": bpf.ARM64}
	grants = []bpf.Grant{0, bpf.Sockets, bpf.MemoryFiles, bpf.Sockets | bpf.MemoryFiles, bpf.Shared, bpf.Shared | bpf.Sockets}
)

// high is what a program may put into the half of a register that the kernel
// does not look at.
const high = 0xdeadbeef << 32

func compile(t testing.TB, arch bpf.Arch, granted bpf.Grant) bpf.Program {
	t.Helper()
	p, err := bpf.Compile(arch, granted)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func verdict(t testing.TB, p bpf.Program, c bpf.Call) bpf.Verdict {
	t.Helper()
	v, err := p.Run(c)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

func number(r bpf.Row, arch bpf.Arch) int {
	if arch == bpf.ARM64 {
		return r.ARM64
	}
	return r.AMD64
}

// stands reports whether a row is part of a program.
func stands(r bpf.Row, granted bpf.Grant) bool {
	return granted&r.With == r.With && granted&r.Without == 0
}

// satisfy returns arguments for which each condition of the row holds.
func satisfy(r bpf.Row) (args [6]uint64) {
	for _, w := range r.When {
		value := w.In[len(w.In)-1]
		for w.Not && contains(w.In, value&w.Mask) {
			value += w.Mask & -w.Mask // the next value under the mask
		}
		args[w.Arg] = uint64(value)
	}
	return args
}

func contains(list []uint32, v uint32) bool {
	for _, e := range list {
		if e == v {
			return true
		}
	}
	return false
}

// TestEveryRow asks each program for each of its rows, with and without high
// halves, and for each row that does not stand.
func TestEveryRow(t *testing.T) {
	for name, arch := range arches {
		for _, granted := range grants {
			p := compile(t, arch, granted)
			for i, r := range bpf.Rows() {
				t.Run(fmt.Sprintf("%s/%d/%d %s", name, granted, i, r.Name), func(t *testing.T) {
					n := number(r, arch)
					if r.Reason == "" || r.Verdict.Errno() == 0 {
						t.Error("a row must refuse, and say why")
					}
					if n < 0 || !stands(r, granted) {
						return
					}
					c := bpf.Call{Number: int32(n), Arch: uint32(arch), Args: satisfy(r)}
					if got := verdict(t, p, c); got != r.Verdict {
						t.Errorf("%v for %+v, want %v", got, c, r.Verdict)
					}
					for i := range c.Args {
						c.Args[i] |= high
					}
					if got := verdict(t, p, c); got != r.Verdict {
						t.Errorf("%v with high halves, want %v", got, r.Verdict)
					}
				})
			}
		}
	}
}

// TestCalls is the policy by example, on the architecture that has the call.
func TestCalls(t *testing.T) {
	const cloexec = 0x80000
	for name, row := range map[string]struct {
		amd64, arm64 int
		args         [6]uint64
		granted      bpf.Grant
		want         bpf.Verdict
	}{
		"read":                    {0, 63, [6]uint64{0, 1, 2}, 0, bpf.Allow},
		"openat":                  {257, 56, [6]uint64{}, 0, bpf.Allow},
		"newest":                  {471, 471, [6]uint64{}, 0, bpf.Allow},
		"too new":                 {472, 472, [6]uint64{}, 0, bpf.ENOSYS},
		"far too new":             {1 << 20, 1 << 20, [6]uint64{}, 0, bpf.ENOSYS},
		"minus one":               {-1, -1, [6]uint64{}, 0, bpf.ENOSYS},
		"most negative":           {-1 << 31, -1 << 31, [6]uint64{}, 0, bpf.ENOSYS},
		"in the gap":              {400, 400, [6]uint64{}, 0, bpf.ENOSYS},
		"last before the gap":     {336, 294 + 130, [6]uint64{}, 0, bpf.Allow},
		"x32 mount":               {0x40000000 | 165, 0x40000000 | 40, [6]uint64{}, 0, bpf.ENOSYS},
		"x32 read":                {0x40000000, 0x40000000 | 63, [6]uint64{}, 0, bpf.ENOSYS},
		"thread":                  {56, 220, [6]uint64{0x3d0f00}, 0, bpf.Allow},
		"vfork by clone":          {56, 220, [6]uint64{0x4111}, 0, bpf.Allow},
		"fork in user ns":         {56, 220, [6]uint64{0x10000011}, 0, bpf.EPERM},
		"fork in mount ns":        {56, 220, [6]uint64{0x00020011 | high}, 0, bpf.EPERM},
		"unshare nothing":         {272, 97, [6]uint64{}, 0, bpf.EPERM},
		"read personality":        {135, 92, [6]uint64{0xffffffff}, 0, bpf.Allow},
		"plain personality":       {135, 92, [6]uint64{0}, 0, bpf.Allow},
		"personality, high half":  {135, 92, [6]uint64{high}, 0, bpf.Allow},
		"no randomisation":        {135, 92, [6]uint64{0x0040000}, 0, bpf.EPERM},
		"terminal size":           {16, 29, [6]uint64{0, 0x5413}, 0, bpf.Allow},
		"type in":                 {16, 29, [6]uint64{0, 0x5412}, 0, bpf.EPERM},
		"type in, high half":      {16, 29, [6]uint64{0, 1<<32 | 0x5412}, 0, bpf.EPERM},
		"selection, high half":    {16, 29, [6]uint64{0, 1<<63 | 0x541c}, 0, bpf.EPERM},
		"tcp, none":               {41, 198, [6]uint64{2, 1}, 0, bpf.EAFNOSUPPORT},
		"udp6, none":              {41, 198, [6]uint64{10, 2}, bpf.MemoryFiles, bpf.EAFNOSUPPORT},
		"netlink, none":           {41, 198, [6]uint64{16, 3}, 0, bpf.EAFNOSUPPORT},
		"tcp":                     {41, 198, [6]uint64{2, 1 | cloexec, 6}, bpf.Sockets, bpf.Allow},
		"udp6":                    {41, 198, [6]uint64{10, 2 | cloexec}, bpf.Sockets, bpf.Allow},
		"multipath tcp":           {41, 198, [6]uint64{2, 1, 262}, bpf.Sockets, bpf.EPROTONOSUPPORT},
		"sctp":                    {41, 198, [6]uint64{2, 1, 132}, bpf.Sockets, bpf.EPROTONOSUPPORT},
		"ping":                    {41, 198, [6]uint64{2, 2, 1}, bpf.Sockets, bpf.EPROTONOSUPPORT},
		"raw icmp":                {41, 198, [6]uint64{2, 3, 1}, bpf.Sockets, bpf.EPERM},
		"raw icmp6, high half":    {41, 198, [6]uint64{10 | high, 3 | cloexec | high, 58 | high}, bpf.Sockets, bpf.EPERM},
		"old packet socket":       {41, 198, [6]uint64{2, 10}, bpf.Sockets, bpf.EPERM},
		"routes":                  {41, 198, [6]uint64{16, 3 | cloexec, 0}, bpf.Sockets, bpf.Allow},
		"netfilter":               {41, 198, [6]uint64{16, 3, 12}, bpf.Sockets, bpf.EPROTONOSUPPORT},
		"unix":                    {41, 198, [6]uint64{1, 1}, bpf.Sockets, bpf.EAFNOSUPPORT},
		"unix, high half":         {41, 198, [6]uint64{1 | high, 1}, bpf.Sockets, bpf.EAFNOSUPPORT},
		"unix, none":              {41, 198, [6]uint64{1, 1}, 0, bpf.EAFNOSUPPORT},
		"packet":                  {41, 198, [6]uint64{17, 3}, bpf.Sockets, bpf.EAFNOSUPPORT},
		"alg":                     {41, 198, [6]uint64{38, 5}, bpf.Sockets, bpf.EAFNOSUPPORT},
		"vsock":                   {41, 198, [6]uint64{40, 1}, bpf.Sockets, bpf.EAFNOSUPPORT},
		"family zero":             {41, 198, [6]uint64{0, 1}, bpf.Sockets, bpf.EAFNOSUPPORT},
		"pair":                    {53, 199, [6]uint64{1, 1 | cloexec}, 0, bpf.Allow},
		"pair of sequences":       {53, 199, [6]uint64{1, 5}, 0, bpf.Allow},
		"pair of datagrams":       {53, 199, [6]uint64{1, 2 | cloexec}, 0, bpf.ESOCKTNOSUPPORT},
		"pair of raw":             {53, 199, [6]uint64{1, 3}, bpf.Sockets, bpf.ESOCKTNOSUPPORT},
		"pair of another family":  {53, 199, [6]uint64{30, 1}, bpf.Sockets, bpf.EAFNOSUPPORT},
		"memory file":             {319, 279, [6]uint64{}, bpf.Sockets, bpf.ENOSYS},
		"memory file, counted":    {319, 279, [6]uint64{}, bpf.MemoryFiles, bpf.Allow},
		"secret memory, counted":  {447, 447, [6]uint64{}, bpf.MemoryFiles, bpf.ENOSYS},
		"mode":                    {90, 53, [6]uint64{}, bpf.Sockets, bpf.Allow},
		"mode, among others":      {90, 53, [6]uint64{}, bpf.Shared, bpf.EPERM},
		"own limits":              {302, 261, [6]uint64{0, 7}, bpf.Shared, bpf.Allow},
		"limits of another":       {302, 261, [6]uint64{4711, 7}, bpf.Shared, bpf.EPERM},
		"own niceness":            {141, 140, [6]uint64{0, 0, 5}, bpf.Shared, bpf.Allow},
		"niceness of a user":      {141, 140, [6]uint64{2, 0, 19}, bpf.Shared, bpf.EPERM},
		"own input priority":      {251, 30, [6]uint64{1, 0, 5}, bpf.Shared, bpf.Allow},
		"that of a group":         {251, 30, [6]uint64{2, 0, 5}, bpf.Shared, bpf.EPERM},
		"segment":                 {29, 194, [6]uint64{}, bpf.Shared, bpf.EPERM},
		"file flags":              {16, 29, [6]uint64{3, 0x40086602}, bpf.Shared, bpf.EPERM},
		"unknown flags of clone3": {435, 435, [6]uint64{}, ^bpf.Grant(0), bpf.ENOSYS},
	} {
		for name2, arch := range arches {
			t.Run(name+"/"+name2, func(t *testing.T) {
				c := bpf.Call{Number: int32(row.amd64), Arch: uint32(arch), Args: row.args}
				if arch == bpf.ARM64 {
					c.Number = int32(row.arm64)
				}
				if got := verdict(t, compile(t, arch, row.granted), c); got != row.want {
					t.Errorf("%v, want %v", got, row.want)
				}
			})
		}
	}
}

// TestNoNamespacePasses holds random calls against the rule that no call with
// a flag for a namespace gets through, in any register, under any grant.
func TestNoNamespacePasses(t *testing.T) {
	flags := []uint64{0x00020000, 0x02000000, 0x04000000, 0x08000000, 0x10000000, 0x20000000, 0x40000000}
	makers := map[bpf.Arch][]int32{bpf.AMD64: {56, 272, 308, 435}, bpf.ARM64: {220, 97, 268, 435}}
	rng := rand.New(rand.NewPCG(1, 2))
	for _, arch := range arches {
		for _, granted := range grants {
			p := compile(t, arch, granted)
			for range 4000 {
				c := bpf.Call{Number: makers[arch][rng.IntN(4)], Arch: uint32(arch)}
				for i := range c.Args {
					c.Args[i] = rng.Uint64()
				}
				c.Args[0] |= flags[rng.IntN(len(flags))]
				if got := verdict(t, p, c); got == bpf.Allow {
					t.Fatalf("%+v is allowed", c)
				}
			}
		}
	}
}

// TestOtherArchitecture: whatever the number, another architecture's call ends
// the process, 32-bit ones of the same machine too.
func TestOtherArchitecture(t *testing.T) {
	const i386, arm = 0x40000003, 0x40000028
	for _, arch := range arches {
		p := compile(t, arch, bpf.Sockets)
		for _, other := range []uint32{0, i386, arm, uint32(bpf.AMD64), uint32(bpf.ARM64)} {
			for n := int32(0); n < 500 && other != uint32(arch); n++ {
				if got := verdict(t, p, bpf.Call{Number: n, Arch: other}); got != bpf.Kill {
					t.Fatalf("%v for %d of %#x", got, n, other)
				}
			}
		}
	}
	if p, err := bpf.Compile(bpf.Arch(i386), 0); err == nil {
		t.Errorf("a program of %d instructions for an architecture without a policy", len(p))
	}
}

// TestPlainCallsNeedNoArguments: a call without a row is allowed whatever its
// arguments are, so that the kernel can remember it and skip the program.
func TestPlainCallsNeedNoArguments(t *testing.T) {
	for _, arch := range arches {
		rows := map[int]bool{}
		for _, r := range bpf.Rows() {
			rows[number(r, arch)] = true
		}
		p := compile(t, arch, 0)
		for n := range 600 {
			c := bpf.Call{Number: int32(n), Arch: uint32(arch)}
			zero := verdict(t, p, c)
			c.Args = [6]uint64{^uint64(0), ^uint64(0), ^uint64(0), ^uint64(0), ^uint64(0), ^uint64(0)}
			if ones := verdict(t, p, c); !rows[n] && (ones != zero || zero != bpf.Allow && zero != bpf.ENOSYS) {
				t.Errorf("call %d: %v and %v", n, zero, ones)
			}
		}
	}
}

// TestNumbers holds the table against the kernel's headers as x/sys has them.
func TestNumbers(t *testing.T) {
	file, _ := runtime.FuncForPC(reflect.ValueOf(unix.Getpagesize).Pointer()).FileLine(0)
	for name, arch := range arches {
		source, err := os.ReadFile(filepath.Join(filepath.Dir(file), "zsysnum_linux_"+name+".go"))
		if err != nil {
			skip.Missing(t, "the source of golang.org/x/sys is not on this machine: "+err.Error())
		}
		want, newest := map[string]int{}, 0
		for _, m := range regexp.MustCompile(`(?m)^\tSYS_(\w+) += (\d+)$`).FindAllStringSubmatch(string(source), -1) {
			n, err := strconv.Atoi(m[2])
			if err != nil {
				t.Fatal(err)
			}
			want[m[1]], newest = n, max(newest, n)
		}
		for _, r := range bpf.Rows() {
			n, ok := want[upper(r.Name)]
			if !ok {
				n = -1
			}
			if n != number(r, arch) {
				t.Errorf("%s: %s is %d, the table says %d", name, r.Name, n, number(r, arch))
			}
		}
		// A library that knows more calls is a reason to look at them.
		p := compile(t, arch, 0)
		known := map[int]bool{}
		for _, n := range want {
			known[n] = true
		}
		for n := range newest + 100 {
			refused := verdict(t, p, bpf.Call{Number: int32(n), Arch: uint32(arch)}) == bpf.ENOSYS
			if !known[n] && !refused {
				t.Errorf("%s: %d is no system call, and not refused", name, n)
			}
		}
		if verdict(t, p, bpf.Call{Number: int32(newest), Arch: uint32(arch)}) == bpf.ENOSYS {
			t.Errorf("%s: system calls up to %d are known, the policy ends earlier", name, newest)
		}
	}
}

func upper(s string) string {
	b := []byte(s)
	for i, c := range b {
		if 'a' <= c && c <= 'z' {
			b[i] = c - 'a' + 'A'
		}
	}
	return string(b)
}
