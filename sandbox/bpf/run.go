package bpf

import (
	"encoding/binary"
	"fmt"
)

// Call is what a filter sees of one system call: the kernel's seccomp_data.
type Call struct {
	Number int32
	Arch   uint32
	IP     uint64
	Args   [6]uint64
}

// callBytes is the size of a Call, and its offsets in it.
const (
	callBytes    = 64
	offsetNumber = 0
	offsetArch   = 4
	offsetArgs   = 16
)

func (c Call) bytes() []byte {
	b := make([]byte, 0, callBytes)
	b = binary.LittleEndian.AppendUint32(b, uint32(c.Number))
	b = binary.LittleEndian.AppendUint32(b, c.Arch)
	b = binary.LittleEndian.AppendUint64(b, c.IP)
	for _, arg := range c.Args {
		b = binary.LittleEndian.AppendUint64(b, arg)
	}
	return b
}

// Run returns the program's verdict on a call, as the kernel would. It fails
// where the kernel would not have taken the program.
func (p Program) Run(c Call) (Verdict, error) {
	if err := p.verify(); err != nil {
		return 0, err
	}
	data := c.bytes()
	var a uint32
	for at := 0; ; at++ {
		i := p[at]
		holds := false
		switch i.Op {
		case opReturn:
			return Verdict(i.K), nil
		case opLoad:
			a = binary.LittleEndian.Uint32(data[i.K:])
			continue
		case opAnd:
			a &= i.K
			continue
		case opEqual:
			holds = a == i.K
		case opGreater:
			holds = a > i.K
		}
		if holds {
			at += int(i.JT)
		} else {
			at += int(i.JF)
		}
	}
}

// verify holds a program against the kernel's rules for filters: known
// operations, aligned loads within the call, jumps that stay inside, and a
// verdict at the end. As every jump goes forward, it ends.
func (p Program) verify() error {
	if len(p) == 0 || len(p) > maxProgram {
		return fmt.Errorf("a filter has 1 to %d instructions, not %d", maxProgram, len(p))
	}
	for at, i := range p {
		left := len(p) - at - 1
		switch i.Op {
		case opReturn, opAnd:
		case opLoad:
			if i.K%4 != 0 || i.K >= callBytes {
				return fmt.Errorf("instruction %d loads from offset %d", at, i.K)
			}
		case opEqual, opGreater:
			if int(i.JT) >= left || int(i.JF) >= left {
				return fmt.Errorf("instruction %d jumps out of the program", at)
			}
		default:
			return fmt.Errorf("instruction %d has the unknown operation %#x", at, i.Op)
		}
	}
	if p[len(p)-1].Op != opReturn {
		return fmt.Errorf("the last instruction gives no verdict")
	}
	return nil
}
