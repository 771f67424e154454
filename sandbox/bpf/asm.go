package bpf

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
)

// Instruction is one step of a filter, laid out as the kernel's sock_filter.
type Instruction struct {
	Op uint16
	JT uint8 // instructions to skip where a comparison holds
	JF uint8 // and where it does not
	K  uint32
}

// Program is a filter, ready for the kernel.
type Program []Instruction

// The operations that a filter is made of, of the many that the kernel knows.
const (
	opLoad    = 0x20 // A = 32-bit word at offset K of the call
	opAnd     = 0x54 // A &= K
	opEqual   = 0x15 // A == K
	opGreater = 0x25 // A > K
	opReturn  = 0x06 // verdict K
)

// maxProgram is the kernel's bound on the length of one filter.
const maxProgram = 4096

// Bytes is the program as it lies in memory.
func (p Program) Bytes() []byte {
	b := make([]byte, 0, 8*len(p))
	for _, i := range p {
		b = binary.LittleEndian.AppendUint16(b, i.Op)
		b = append(b, i.JT, i.JF)
		b = binary.LittleEndian.AppendUint32(b, i.K)
	}
	return b
}

// Digest is the SHA-256 of Bytes, in hex.
func (p Program) Digest() string {
	sum := sha256.Sum256(p.Bytes())
	return hex.EncodeToString(sum[:])
}

// assembler puts a program together. A jump names a label that is set later;
// "" is the next instruction. Every jump goes forward, as the kernel demands.
type assembler struct {
	program Program
	open    []jump
	err     error
}

// jump is a comparison whose targets are not known yet.
type jump struct {
	at               int
	holds, otherwise string
}

func (a *assembler) add(i Instruction) { a.program = append(a.program, i) }

func (a *assembler) load(offset uint32) { a.add(Instruction{Op: opLoad, K: offset}) }

func (a *assembler) and(mask uint32) { a.add(Instruction{Op: opAnd, K: mask}) }

func (a *assembler) ret(verdict uint32) { a.add(Instruction{Op: opReturn, K: verdict}) }

func (a *assembler) compare(op uint16, k uint32, holds, otherwise string) {
	a.open = append(a.open, jump{len(a.program), holds, otherwise})
	a.add(Instruction{Op: op, K: k})
}

// label gives the next instruction a name, which may be used again afterwards.
func (a *assembler) label(name string) {
	left := a.open[:0]
	for _, j := range a.open {
		distance := len(a.program) - j.at - 1
		if (j.holds == name || j.otherwise == name) && distance > 255 {
			a.err = fmt.Errorf("jump to %s over %d instructions, at most 255", name, distance)
		}
		if j.holds == name {
			a.program[j.at].JT, j.holds = uint8(distance), ""
		}
		if j.otherwise == name {
			a.program[j.at].JF, j.otherwise = uint8(distance), ""
		}
		if j.holds != "" || j.otherwise != "" {
			left = append(left, j)
		}
	}
	a.open = left
}

// finish returns the program, if it is one that the kernel would take.
func (a *assembler) finish() (Program, error) {
	if a.err != nil {
		return nil, a.err
	}
	if len(a.open) > 0 {
		return nil, fmt.Errorf("jump to a label that is not set: %+v", a.open[0])
	}
	return a.program, a.program.verify()
}
