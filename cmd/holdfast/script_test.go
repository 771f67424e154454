package main

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"strconv"

	"github.com/rogpeppe/go-internal/testscript"
)

// scriptExits is "exits CODE holdfast ARGS...": the exact exit code, with
// standard output and error left in the files out and err.
func scriptExits(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: exits CODE holdfast ARGS...")
	}
	want, err := strconv.Atoi(args[0])
	ts.Check(err)
	if args[1] != "holdfast" {
		ts.Fatalf("exits runs holdfast, not %s", args[1])
	}
	var out, errs bytes.Buffer
	c := exec.Command("/proc/self/exe", args[2:]...)
	c.Dir = ts.Getenv("WORK")
	for _, name := range []string{"HOME", "HOLDFAST_HOME", "PATH", "TMPDIR"} {
		c.Env = append(c.Env, name+"="+ts.Getenv(name))
	}
	c.Stdout, c.Stderr = &out, &errs
	got := 0
	if err := c.Run(); err != nil {
		var exit *exec.ExitError
		if !errors.As(err, &exit) {
			ts.Fatalf("%v", err)
		}
		got = exit.ExitCode()
	}
	ts.Check(os.WriteFile(ts.MkAbs("out"), out.Bytes(), 0o644))
	ts.Check(os.WriteFile(ts.MkAbs("err"), errs.Bytes(), 0o644))
	if got != want {
		ts.Fatalf("exit %d, want %d\n%s%s", got, want, out.String(), errs.String())
	}
}

// scriptFlip is "flip FILE OFFSET": changes one byte.
func scriptFlip(ts *testscript.TestScript, _ bool, args []string) {
	if len(args) != 2 {
		ts.Fatalf("usage: flip FILE OFFSET")
	}
	at, err := strconv.Atoi(args[1])
	ts.Check(err)
	raw, err := os.ReadFile(ts.MkAbs(args[0]))
	ts.Check(err)
	raw[at] ^= 0xff
	ts.Check(os.WriteFile(ts.MkAbs(args[0]), raw, 0o600))
}
