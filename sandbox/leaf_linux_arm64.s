#include "textflag.h"

// func cloneOnto(flags uintptr, stack unsafe.Pointer, c *child, main uintptr) int
//
// The new process has this one's memory and a stack of its own, on which it
// calls main, which does not return, as compiled code calls it (the file for
// amd64 says why).
TEXT ·cloneOnto(SB),NOSPLIT|NOFRAME,$0-40
	MOVD	flags+0(FP), R0
	MOVD	stack+8(FP), R1
	MOVD	c+16(FP), R9
	MOVD	main+24(FP), R10
	MOVD	$0, R2
	MOVD	$0, R3
	MOVD	$0, R4
	MOVD	$220, R8 // clone
	SVC
	CBZ	R0, child
	MOVD	R0, ret+32(FP)
	RET
child:
	MOVD	$0, R29
	MOVD	$0, g
	SUB	$32, RSP
	MOVD	R9, R0
	CALL	(R10)
	BRK
