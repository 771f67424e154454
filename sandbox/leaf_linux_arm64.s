#include "textflag.h"

// func cloneLeaf(flags uintptr, stack unsafe.Pointer, c *child) int
//
// The new process has this one's memory and a stack of its own, on which it
// calls leafMain, which does not return.
TEXT ·cloneLeaf(SB),NOSPLIT|NOFRAME,$0-32
	MOVD	flags+0(FP), R0
	MOVD	stack+8(FP), R1
	MOVD	c+16(FP), R9
	MOVD	$0, R2
	MOVD	$0, R3
	MOVD	$0, R4
	MOVD	$220, R8 // clone
	SVC
	CBZ	R0, child
	MOVD	R0, ret+24(FP)
	RET
child:
	MOVD	$0, R29
	SUB	$32, RSP
	MOVD	R9, 8(RSP)
	CALL	·leafMain(SB)
	BRK
