package main

import (
	"os"
	"strconv"

	"github.com/rogpeppe/go-internal/testscript"
)

// readonly CODE FOLDER PROGRAM ARG... runs a program for which a folder cannot
// be written, and which must exit with that code. For root that takes a mount;
// it is made in a name space of the program's own and ends with it.
func readonlyCmd(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 3 {
		ts.Fatalf("usage: readonly CODE FOLDER PROGRAM ARG...")
	}
	code, err := strconv.Atoi(args[0])
	ts.Check(err)
	dir := ts.MkAbs(args[1])
	if os.Getuid() != 0 {
		defer withoutWrite(ts, dir)()
		wantExit(ts, code, ts.Exec(args[2], args[3:]...))
		return
	}
	script := `mount --bind "$1" "$1" && mount -o remount,ro,bind "$1" && shift && exec "$@"`
	wantExit(ts, code, ts.Exec("unshare", append([]string{"--mount", "sh", "-c", script, "sh", dir}, args[2:]...)...))
}
