#include "textflag.h"

// func cloneLeaf(flags uintptr, stack unsafe.Pointer, c *child) int
//
// The new process has this one's memory and a stack of its own, on which it
// calls leafMain, which does not return.
TEXT ·cloneLeaf(SB),NOSPLIT|NOFRAME,$0-32
	MOVQ	flags+0(FP), DI
	MOVQ	stack+8(FP), SI
	MOVQ	c+16(FP), R12
	XORL	DX, DX
	XORL	R10, R10
	XORL	R8, R8
	XORL	R9, R9
	MOVL	$56, AX // clone
	SYSCALL
	TESTQ	AX, AX
	JZ	child
	MOVQ	AX, ret+24(FP)
	RET
child:
	XORL	BP, BP
	SUBQ	$16, SP
	MOVQ	R12, 0(SP)
	CALL	·leafMain(SB)
	INT	$3
