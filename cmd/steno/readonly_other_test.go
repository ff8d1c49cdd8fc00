//go:build !linux

package main

import (
	"strconv"

	"github.com/rogpeppe/go-internal/testscript"
)

// readonly CODE FOLDER PROGRAM ARG... runs a program for which a folder cannot
// be written, and which must exit with that code.
func readonlyCmd(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 3 {
		ts.Fatalf("usage: readonly CODE FOLDER PROGRAM ARG...")
	}
	code, err := strconv.Atoi(args[0])
	ts.Check(err)
	defer withoutWrite(ts, ts.MkAbs(args[1]))()
	wantExit(ts, code, ts.Exec(args[2], args[3:]...))
}
