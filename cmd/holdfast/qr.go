package main

import (
	"io"
	"strings"
	"unicode/utf8"

	"github.com/mdp/qrterminal/v3"
)

const (
	terminalWide = 80 // columns that a terminal has unless somebody made it wider
	quietMost    = 4  // modules of white that the standard asks for around a code
)

// writeQR draws code, one column and half a line a module, so that a module is
// about square. The white margin is the four modules of the standard, and less
// only where a line would otherwise be longer than a terminal's.
func writeQR(w io.Writer, code string) {
	var b strings.Builder
	drawQR(&b, code, 1)
	first, _, _ := strings.Cut(b.String(), "\n")
	modules := utf8.RuneCountInString(first) - 2
	drawQR(w, code, min(quietMost, max(1, (terminalWide-modules)/2)))
}

func drawQR(w io.Writer, code string, quiet int) {
	qrterminal.GenerateWithConfig(code, qrterminal.Config{
		Level: qrterminal.L, Writer: w, HalfBlocks: true, QuietZone: quiet,
		BlackChar: qrterminal.BLACK_BLACK, WhiteBlackChar: qrterminal.WHITE_BLACK,
		WhiteChar: qrterminal.WHITE_WHITE, BlackWhiteChar: qrterminal.BLACK_WHITE,
	})
}
