#include "textflag.h"

// func cloneOnto(flags uintptr, stack unsafe.Pointer, c *child, main uintptr) int
//
// The new process has this one's memory and a stack of its own, on which it
// calls main, which does not return, as compiled code calls it: by name it would
// be called through a wrapper of the compiler's, which looks at what the thread
// keeps as its own and, under the race detector, tells that of the call.
TEXT ·cloneOnto(SB),NOSPLIT|NOFRAME,$0-40
	MOVQ	flags+0(FP), DI
	MOVQ	stack+8(FP), SI
	MOVQ	c+16(FP), R12
	MOVQ	main+24(FP), R13
	XORL	DX, DX
	XORL	R10, R10
	XORL	R8, R8
	XORL	R9, R9
	MOVL	$56, AX // clone
	SYSCALL
	TESTQ	AX, AX
	JZ	child
	MOVQ	AX, ret+32(FP)
	RET
child:
	XORL	BP, BP
	XORL	R14, R14   // no goroutine
	XORPS	X15, X15   // zero, as compiled code has it
	SUBQ	$32, SP    // room for the argument, should it be spilled
	MOVQ	R12, AX
	CALL	R13
	INT	$3
