package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"steno/executor"
)

func TestMain(m *testing.M) {
	executor.Helper() // the commands of scripts confine theirs by this test binary
	testscript.Main(m, commands)
}

// commands are the programs that this test binary is, by their names. They have no
// terminal but one that a test gives them: the person at that of go test is not to
// be asked.
var commands = map[string]func(){"steno": func() {
	_, _ = syscall.Setsid() // which fails for one that leads its session already
	main()
}, "mcp-server": testServer}

// root is the folder of the module.
func root(t testing.TB) string {
	dir, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

// patience bounds what a test waits for; nothing is expected to take it.
const patience = time.Minute

func TestScripts(t *testing.T) {
	cache, err := exec.Command("go", "env", "GOCACHE").Output()
	if err != nil {
		t.Fatal(err)
	}
	testscript.Run(t, testscript.Params{
		Dir:                 "testdata/script",
		RequireExplicitExec: true,
		RequireUniqueNames:  true,
		Setup: func(e *testscript.Env) error {
			e.Setenv("ROOT", root(t))
			e.Setenv("GOCACHE", strings.TrimSpace(string(cache)))
			e.Setenv("GOTOOLCHAIN", "local")
			e.Setenv("GOCOVERDIR", os.Getenv("GOCOVERDIR"))
			return nil
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"exit":     exitCmd,
			"json":     jsonCmd,
			"waitfor":  waitforCmd,
			"term":     termCmd,
			"change":   changeCmd,
			"readonly": readonlyCmd,
			"freeze":   freezeCmd,
			"thaw":     thawCmd,
		},
	})
}

// exit CODE PROGRAM ARG... runs a program that must exit with that code.
func exitCmd(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: exit CODE PROGRAM ARG...")
	}
	want, err := strconv.Atoi(args[0])
	ts.Check(err)
	wantExit(ts, want, ts.Exec(args[1], args[2:]...))
}

func wantExit(ts *testscript.TestScript, want int, err error) {
	code := 0
	if e, ok := errors.AsType[*exec.ExitError](err); ok {
		code = e.ExitCode()
	} else if err != nil {
		ts.Fatalf("%v", err)
	}
	if code != want {
		ts.Fatalf("exit %d, want %d", code, want)
	}
}

// json FILE[:LINE] POINTER VALUE compares a place in JSON with a value. The
// pointer is as in RFC 6901; a value that is not JSON is a string without its
// quotes.
func jsonCmd(ts *testscript.TestScript, neg bool, args []string) {
	if len(args) != 3 {
		ts.Fatalf("usage: [!] json FILE[:LINE] POINTER VALUE")
	}
	file, line, numbered := strings.Cut(args[0], ":")
	text := ts.ReadFile(file)
	if numbered {
		n, err := strconv.Atoi(line)
		ts.Check(err)
		lines := strings.Split(text, "\n")
		if n > len(lines) {
			ts.Fatalf("%s has %d lines", file, len(lines))
		}
		text = lines[n-1]
	}
	got, err := at(text, args[1])
	ts.Check(err)
	var want any
	if json.Unmarshal([]byte(args[2]), &want) != nil {
		ts.Check(json.Unmarshal([]byte(`"`+args[2]+`"`), &want))
	}
	if reflect.DeepEqual(got, want) == neg {
		b, _ := json.Marshal(got)
		ts.Fatalf("%s of %s is %s", args[1], args[0], b)
	}
}

// at gives the value at a pointer, nil where there is none.
func at(text, pointer string) (any, error) {
	var v any
	if err := json.Unmarshal([]byte(text), &v); err != nil {
		return nil, fmt.Errorf("%w in %.300q", err, text)
	}
	for _, key := range strings.Split(pointer, "/")[1:] {
		switch in := v.(type) {
		case map[string]any:
			v = in[key]
		case []any:
			n, err := strconv.Atoi(key)
			if err != nil || n >= len(in) {
				return nil, fmt.Errorf("no element %s", key)
			}
			v = in[n]
		default:
			return nil, fmt.Errorf("nothing at %s", pointer)
		}
	}
	return v, nil
}

// waitfor FILE waits until a file is there and holds something.
func waitforCmd(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 {
		ts.Fatalf("usage: waitfor FILE")
	}
	if !eventually(func() bool { fi, err := os.Stat(ts.MkAbs(args[0])); return err == nil && fi.Size() > 0 }) {
		ts.Fatalf("%s does not come", args[0])
	}
}

func eventually(f func() bool) bool {
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		if f() {
			return true
		}
	}
	return false
}

// term sends SIGTERM to the one command in the background.
func termCmd(ts *testscript.TestScript, neg bool, args []string) {
	cmds := ts.BackgroundCmds()
	if neg || len(args) != 0 || len(cmds) != 1 {
		ts.Fatalf("usage: term, with one command in the background")
	}
	ts.Check(cmds[0].Process.Signal(syscall.SIGTERM))
}

// change FILE OLD NEW replaces the first OLD in place, as a disk or a hand
// would, without asking.
func changeCmd(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 3 || len(args[1]) != len(args[2]) {
		ts.Fatalf("usage: change FILE OLD NEW, of the same length")
	}
	ts.Check(change(ts.MkAbs(args[0]), args[1], args[2]))
}

func change(file, old, text string) error {
	b, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	i := bytes.Index(b, []byte(old))
	if i < 0 {
		return fmt.Errorf("%s does not hold %q", file, old)
	}
	f, err := os.OpenFile(file, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteAt([]byte(text), int64(i))
	return errors.Join(err, f.Close())
}

// withoutWrite takes the right to write off a folder and what is in it, and
// gives back what undoes that.
func withoutWrite(ts *testscript.TestScript, dir string) (undo func()) {
	modes := map[string]os.FileMode{}
	ts.Check(filepath.Walk(dir, func(path string, fi os.FileInfo, err error) error {
		if err == nil {
			modes[path] = fi.Mode()
		}
		return err
	}))
	for path, mode := range modes {
		ts.Check(os.Chmod(path, mode&^0o222))
	}
	return func() {
		for path, mode := range modes {
			ts.Check(os.Chmod(path, mode))
		}
	}
}
