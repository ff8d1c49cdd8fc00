package executor_test

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"steno/executor"
	"steno/journal/journaltest"

	"github.com/go-json-experiment/json/jsontext"
)

// bare takes the walls away, as on a machine that has none.
func (b *bench) bare() {
	b.t.Helper()
	for _, t := range b.reg.Tools() {
		if err := b.reg.Replace(executor.Bare(t)); err != nil {
			b.t.Fatal(err)
		}
	}
}

// walled is a bench on a machine that has walls.
func walled(t *testing.T) *bench {
	t.Helper()
	if err := executor.Walls(); err != nil {
		journaltest.Lacks(t, "walls around commands: "+err.Error())
	}
	return newBench(t)
}

func TestBashEndsWhatLeftItsGroup(t *testing.T) {
	for name, line := range map[string]string{
		"while it holds the output": "setsid sh -c 'exec 9>lifeline; echo up >&9; echo go >gate; exec sleep 1000' & read x <gate; echo done",
		"twice removed":             "setsid sh -c 'setsid sh -c \"exec 9>lifeline; echo up >&9; echo go >gate; trap : TERM HUP; sleep 1000\" >/dev/null 2>&1 &' & read x <gate; echo done",
	} {
		t.Run(name, func(t *testing.T) {
			b := walled(t)
			l := b.lifeline()
			res := b.must("bash", args{"command": "mkfifo gate; " + line})
			if !res.OK || res.Output != "done\n" || member[bool](t, res, "outlived") {
				t.Errorf("%+v, %s", res, res.Structured)
			}
			l.up()
			l.gone()
		})
	}
}

func TestBashDoesNotWaitForWhatLeftItsGroup(t *testing.T) {
	b := newBench(t)
	b.bare()
	l := b.lifeline()
	begin := time.Now()
	res := b.must("bash", args{"command": "mkfifo gate; setsid sh -c 'exec 9>lifeline; echo up >&9; echo go >gate; exec sleep 1000' & read x <gate; echo $!"})
	if took := time.Since(begin); took > time.Minute {
		t.Errorf("it took %v", took)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(res.Output))
	if err != nil || !res.OK || !member[bool](t, res, "outlived") || !strings.Contains(res.Summary, "left a process behind") {
		t.Fatalf("%+v, %s", res, res.Structured)
	}
	l.up()
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Error(err)
	}
	l.gone()
}

func TestBashKillsInTimeEvenIfSomethingLeftItsGroup(t *testing.T) {
	b := newBench(t)
	b.bare()
	_, err := b.call("bash", args{"command": "mkfifo gate; setsid sh -c 'echo $$ >pid; echo go >gate; yes' & read x <gate; sleep 1000", "timeout_s": 1})
	if err == nil || !strings.Contains(err.Error(), "timeout") {
		t.Fatalf("got %v", err)
	}
	// The flood ends by itself: nobody reads the pipe any more.
	if pid, err := strconv.Atoi(strings.TrimSpace(b.text("pid"))); err == nil {
		_ = syscall.Kill(pid, syscall.SIGKILL)
	}
}

// TestBashEndsWithItsProcess kills a second process of this test while it runs
// a command.
func TestBashEndsWithItsProcess(t *testing.T) {
	if dir := os.Getenv("STENO_TEST_WORKSPACE"); dir != "" {
		w, err := executor.OpenWorkspace(dir)
		if err != nil {
			t.Fatal(err)
		}
		r, err := executor.NewRegistry(executor.Builtin()...)
		if err != nil {
			t.Fatal(err)
		}
		bash, err := r.Get("bash")
		if err != nil {
			t.Fatal(err)
		}
		_, err = bash.Run(context.Background(), &executor.Invocation{
			Workspace: w, Args: jsontext.Value(`{"command":"exec 9>lifeline; echo up >&9; exec sleep 1000"}`),
		})
		t.Fatalf("the command came to an end: %v", err)
	}
	b := newBench(t)
	l := b.lifeline()
	again := exec.Command(os.Args[0], "-test.run=^TestBashEndsWithItsProcess$")
	again.Env = append(os.Environ(), "STENO_TEST_WORKSPACE="+b.dir)
	if err := again.Start(); err != nil {
		t.Fatal(err)
	}
	l.up()
	if err := again.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = again.Wait()
	l.gone()
}

func TestAFileWithoutWriterIsNotWaitedForInSearch(t *testing.T) {
	b := newBench(t)
	b.file("f.txt", "text")
	if err := syscall.Mkfifo(filepath.Join(b.dir, "a-pipe"), 0o600); err != nil {
		t.Fatal(err)
	}
	if res := b.must("search", args{"pattern": "text"}); res.Output != "f.txt:1: text\n" {
		t.Errorf("got %q", res.Output)
	}
}
