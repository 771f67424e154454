package bpf

import (
	"strings"
	"testing"
)

// TestRefusedPrograms: the interpreter takes no program that the kernel would
// refuse, so that a green test says something about the kernel.
func TestRefusedPrograms(t *testing.T) {
	end := Instruction{Op: opReturn, K: uint32(Allow)}
	for name, row := range map[string]struct {
		program Program
		want    string
	}{
		"empty":          {nil, "1 to 4096"},
		"too long":       {make(Program, maxProgram+1), "1 to 4096"},
		"no verdict":     {Program{{Op: opLoad}}, "no verdict"},
		"unaligned load": {Program{{Op: opLoad, K: 2}, end}, "offset 2"},
		"load outside":   {Program{{Op: opLoad, K: callBytes}, end}, "offset 64"},
		"jump to end":    {Program{{Op: opEqual, JT: 1}, end}, "out of the program"},
		"jump past end":  {Program{{Op: opGreater, JF: 9}, end}, "out of the program"},
		"packet length":  {Program{{Op: 0x80}, end}, "unknown operation"},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := row.program.Run(Call{}); err == nil || !strings.Contains(err.Error(), row.want) {
				t.Errorf("%v, want %q", err, row.want)
			}
		})
	}
}

func TestAssembler(t *testing.T) {
	a := &assembler{}
	a.compare(opEqual, 1, "far", "")
	for range 256 {
		a.and(0)
	}
	a.label("far")
	a.ret(0)
	if _, err := a.finish(); err == nil {
		t.Error("a jump over 256 instructions was made")
	}
	a = &assembler{}
	a.compare(opEqual, 1, "", "nowhere")
	a.ret(0)
	if _, err := a.finish(); err == nil {
		t.Error("a jump to nowhere was made")
	}
}

// TestDigest: programs differ by what is granted and by architecture, and a
// program is the same each time.
func TestDigest(t *testing.T) {
	seen := map[string]bool{}
	for _, arch := range []Arch{AMD64, ARM64} {
		for _, granted := range []Grant{0, Sockets, MemoryFiles, Sockets | MemoryFiles, Shared, Shared | Sockets} {
			p, err := Compile(arch, granted)
			if err != nil {
				t.Fatal(err)
			}
			again, _ := Compile(arch, granted)
			if d := p.Digest(); seen[d] || len(d) != 64 || d != again.Digest() || len(p.Bytes()) != 8*len(p) {
				t.Errorf("digest %s", d)
			}
			seen[p.Digest()] = true
		}
	}
	if ArchOf("amd64") != AMD64 || ArchOf("arm64") != ARM64 || ArchOf("riscv64") != 0 {
		t.Error("architectures are mixed up")
	}
}

func BenchmarkCompile(b *testing.B) {
	for b.Loop() {
		p, err := Compile(AMD64, 0)
		if err != nil {
			b.Fatal(err)
		}
		p.Digest()
	}
}
