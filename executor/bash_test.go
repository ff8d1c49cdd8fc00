package executor_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
	"unicode/utf8"

	"steno/executor"
	"steno/schema"
)

// A lifeline shows whether a process lives: it is a named pipe in the workspace
// that the process holds open for writing for as long as it exists.
type lifeline struct {
	t    *testing.T
	r, w *os.File
}

// The commands of these tests hold the lifeline by "exec 9>lifeline", say so by
// "echo up >&9", and go on in the same process by exec.
func (b *bench) lifeline() *lifeline {
	b.t.Helper()
	path := filepath.Join(b.dir, "lifeline")
	if err := syscall.Mkfifo(path, 0o600); err != nil {
		b.t.Fatal(err)
	}
	r, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(func() { r.Close() })
	// A writer of our own, so that reading waits until the other one is there.
	w, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		b.t.Fatal(err)
	}
	return &lifeline{b.t, r, w}
}

// up waits until the process says that it is there.
func (l *lifeline) up() {
	l.t.Helper()
	l.r.SetReadDeadline(time.Now().Add(time.Minute))
	buf := make([]byte, 16)
	if n, err := l.r.Read(buf); err != nil || string(buf[:n]) != "up\n" {
		l.t.Fatalf("the process says %q, %v", buf[:n], err)
	}
	l.w.Close()
}

// gone fails if the process is there and stays. A process that is killed is gone
// a moment later, so it waits, for much longer than that takes.
func (l *lifeline) gone() {
	l.t.Helper()
	l.r.SetReadDeadline(time.Now().Add(20 * time.Second))
	buf := make([]byte, 16)
	if n, err := l.r.Read(buf); err != io.EOF {
		l.t.Errorf("the process is still there: %q, %v", buf[:n], err)
	}
}

func TestT16ANonZeroExitIsAResult(t *testing.T) {
	b := newBench(t)
	for _, c := range []struct {
		a       args
		code    int
		summary string
	}{
		{args{"command": "true"}, 0, "exit 0, 0 bytes of output"},
		{args{"command": "echo hello; exit 7"}, 7, "exit 7, 6 bytes of output"},
		{args{"argv": []string{"false"}}, 1, "exit 1, 0 bytes of output"},
		{args{"command": "kill -TERM $$"}, 143, "ended by signal 15 (terminated), exit 143, 0 bytes of output"},
		{args{"command": "kill -KILL $$"}, 137, "ended by signal 9 (killed), exit 137, 0 bytes of output"},
	} {
		res := b.must("bash", c.a)
		if res.ExitCode == nil || *res.ExitCode != c.code || res.OK != (c.code == 0) {
			t.Errorf("%v: %+v", c.a, res)
		}
		if res.Summary != c.summary {
			t.Errorf("%v: summary %q, want %q", c.a, res.Summary, c.summary)
		}
	}
}

func TestBashKeepsTheOrderOfBothStreams(t *testing.T) {
	b := newBench(t)
	res := b.must("bash", args{"command": "echo 1; echo 2 >&2; echo 3; echo 4 >&2"})
	if res.Output != "1\n2\n3\n4\n" {
		t.Errorf("got %q", res.Output)
	}
}

func TestBashRunsInTheWorkspaceWithoutInput(t *testing.T) {
	b := newBench(t)
	if got := b.must("bash", args{"command": "pwd -P; echo $PWD; cat"}).Output; got != b.dir+"\n"+b.dir+"\n" {
		t.Errorf("got %q, want %s", got, b.dir)
	}
	script := b.file("bin/run", "#!/bin/sh\necho ran $1\n")
	if err := os.Chmod(script, 0o755); err != nil {
		t.Fatal(err)
	}
	if got := b.must("bash", args{"command": "./bin/run it"}).Output; got != "ran it\n" {
		t.Errorf("got %q", got)
	}
}

func TestT29BashRunsArgvWithoutAShell(t *testing.T) {
	b := newBench(t)
	if got := b.must("bash", args{"argv": []string{"echo", "$HOME", "*", "a  b;", "`id`"}}).Output; got != "$HOME * a  b; `id`\n" {
		t.Errorf("got %q", got)
	}
}

func TestBashWithoutAProgramIsRefused(t *testing.T) {
	b := newBench(t)
	for _, c := range []struct {
		a    args
		want schema.Kind
	}{
		{args{}, schema.InvalidArgs},
		{args{"command": "true", "argv": []string{"true"}}, schema.InvalidArgs},
		{args{"argv": []string{}}, schema.InvalidArgs},
		{args{"argv": []string{""}}, schema.InvalidArgs},
		{args{"command": "echo a\x00b"}, schema.InvalidArgs},
		{args{"argv": []string{"echo", "\x00"}}, schema.InvalidArgs},
		{args{"argv": []string{"no-such-program-anywhere"}}, schema.CommandFailed},
		{args{"argv": []string{"./gone"}}, schema.CommandFailed},
		{args{"argv": []string{"./state"}}, schema.CommandFailed},
	} {
		_, err := b.do(context.Background(), "bash", c.a, nil)
		if e := wantKind(t, err, c.want); strings.Contains(e.Message, b.dir) {
			t.Errorf("the message shows a path of the machine: %s", e.Message)
		}
	}
	for _, a := range []string{`{}`, `{"command":""}`, `{"argv":[]}`, `{"argv":["a"],"command":"b"}`, `{"command":"a","timeout_s":0}`, `{"command":"a","timeout_s":3601}`, `{"command":"a","cwd":"/"}`} {
		wantKind(t, b.reg.Validate("bash", []byte(a)), schema.InvalidArgs)
	}
}

func TestBashDoesNotRunWhereTheWorkspaceWas(t *testing.T) {
	b := newBench(t)
	if err := errors.Join(os.Rename(b.dir, b.dir+"-moved"), os.Mkdir(b.dir, 0o755)); err != nil {
		t.Fatal(err)
	}
	_, err := b.call("bash", args{"command": "touch made"})
	wantKind(t, err, schema.CommandFailed)
	if list, err := os.ReadDir(b.dir); err != nil || len(list) > 0 {
		t.Errorf("it ran: %v, %v", list, err)
	}
	if err := os.Remove(b.dir); err != nil {
		t.Fatal(err)
	}
	_, err = b.call("bash", args{"command": "true"})
	wantKind(t, err, schema.CommandFailed)
}

func TestBashDoesNotHandOnTheEnvironment(t *testing.T) {
	t.Setenv("NATS_CREDS", "leak-1")
	t.Setenv("STENO_TOKEN", "leak-2")
	t.Setenv("AWS_SECRET_ACCESS_KEY", "leak-3")
	t.Setenv("GOPROXY", "https://user:leak-4@proxy.example")
	t.Setenv("BASH_ENV", "leak-5")
	t.Setenv("TZ", "Europe/Berlin")
	b := newBench(t)
	res := b.must("bash", args{"argv": []string{"env"}})
	if strings.Contains(res.Output, "leak") {
		t.Errorf("a secret is in the environment:\n%s", res.Output)
	}
	allowed := []string{
		"PATH", "HOME", "USER", "LANG", "LC_ALL", "TZ", "TMPDIR", "PWD",
		"GOCACHE", "GOPATH", "GOMODCACHE", "GOFLAGS", "GOTOOLCHAIN", "GOPROXY", "GOSUMDB",
		"STENO_SESSION", "STENO_CALL_ID", "STENO_KEY", "STENO_ATTEMPT", "STENO_EPOCH", "STENO_SEQ", "STENO_ACTOR", "STENO_ACTOR_VIA",
	}
	got := lines(res.Output)
	for _, v := range got {
		if name, _, _ := strings.Cut(v, "="); !slices.Contains(allowed, name) {
			t.Errorf("%s is in the environment", name)
		}
	}
	for _, want := range []string{
		"TZ=Europe/Berlin", "STENO_SESSION=01J00000000000000000000000", "STENO_CALL_ID=call-1",
		"STENO_KEY=key-1", "STENO_ATTEMPT=2", "STENO_EPOCH=3", "STENO_SEQ=44", "STENO_ACTOR=ada", "STENO_ACTOR_VIA=queue",
	} {
		if !slices.Contains(got, want) {
			t.Errorf("%s is not in the environment:\n%s", want, res.Output)
		}
	}
}

func TestBashReplacesInvalidText(t *testing.T) {
	b := newBench(t)
	if got := b.must("bash", args{"command": `printf 'a\377\303\050b'`}).Output; got != "a\uFFFD(b" {
		t.Errorf("got %q", got)
	}
}

func TestBashBoundsAFloodOfOutput(t *testing.T) {
	b := newBench(t)
	// The numbers are such that what is kept begins and ends within an ä.
	const flood = 100_000_005
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	res := b.must("bash", args{"command": fmt.Sprintf("echo first!; yes äää | head -c %d; echo last!", flood)})
	runtime.ReadMemStats(&after)
	res.Output, _ = executor.CutText(res.Output, res.Bytes, executor.MaxOutput) // as it is recorded
	if len(res.Output) > executor.MaxOutput || len(res.Output) < executor.MaxOutput*9/10 {
		t.Errorf("%d bytes of output", len(res.Output))
	}
	if !utf8.ValidString(res.Output) || strings.Contains(res.Output, "\uFFFD") {
		t.Error("characters were cut through")
	}
	if !strings.HasPrefix(res.Output, "first!\näää\n") || !strings.HasSuffix(res.Output, "\nlast!\n") {
		t.Errorf("begins with %.20q, ends with %q", res.Output, res.Output[len(res.Output)-20:])
	}
	if n := member[int](t, res, "bytes"); n != flood+13 {
		t.Errorf("%d bytes counted", n)
	}
	dropped := member[int](t, res, "dropped")
	_, rest, _ := strings.Cut(res.Output, "\n[… ")
	marker, _, ok := strings.Cut(rest, " …]\n")
	if !ok {
		t.Fatal("there is no marker")
	}
	if kept := len(res.Output) - len("\n[… "+marker+" …]\n"); kept+dropped != flood+13 {
		t.Errorf("%d kept and %d dropped are not all", kept, dropped)
	}
	if used := after.TotalAlloc - before.TotalAlloc; used > 3*executor.MaxOutput+16<<20 {
		t.Errorf("it took %d bytes of memory", used)
	}
}

func TestBashKeepsOutputThatFits(t *testing.T) {
	b := newBench(t)
	for _, n := range []int{1 << 20, executor.MaxOutput - 1, executor.MaxOutput, executor.MaxOutput + 1, executor.MaxOutput + 1<<20} {
		b.file("f.txt", strings.Repeat("0123456789abcde\n", n/16+1)[:n])
		res := b.must("bash", args{"command": "cat f.txt"})
		want, dropped := schema.Truncate(b.text("f.txt"), executor.MaxOutput)
		if got, _ := executor.CutText(res.Output, res.Bytes, executor.MaxOutput); got != want || member[int](t, res, "dropped") != dropped {
			t.Errorf("of %d bytes: %d bytes, %s", n, len(res.Output), res.Structured)
		}
	}
}

func TestBashEndsAtItsTimeout(t *testing.T) {
	b := newBench(t)
	_, err := b.call("bash", args{"command": "echo before; sleep 1000", "timeout_s": 1})
	e := wantKind(t, err, schema.Timeout)
	if fmt.Sprint(e.Details["output"]) != "before\n" || !strings.Contains(e.Message, "1 s") {
		t.Errorf("%v, %v", e, e.Details)
	}
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Error("it is not a deadline to package context")
	}
}

func TestBashEndsAtItsContextsDeadline(t *testing.T) {
	b := newBench(t)
	ctx, cancel := context.WithTimeout(context.Background(), 200*time.Millisecond)
	defer cancel()
	_, err := b.do(ctx, "bash", args{"command": "sleep 1000"}, nil)
	wantKind(t, err, schema.Timeout)
}

// cancelled runs a command that holds the lifeline, cancels it once it is up, and
// gives back what the tool returns.
func (b *bench) cancelled(l *lifeline, command string) error {
	b.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	done := make(chan error, 1)
	go func() {
		_, err := b.do(ctx, "bash", args{"command": command}, nil)
		done <- err
	}()
	l.up()
	cancel()
	return <-done
}

func TestBashKillsTheProcessGroup(t *testing.T) {
	b := newBench(t)
	l := b.lifeline()
	// The lifeline is held by a grandchild; the shell waits for it.
	err := b.cancelled(l, "(exec 9>lifeline; echo up >&9; exec sleep 1000) & wait")
	wantKind(t, err, schema.Cancelled)
	l.gone()
}

func TestBashKillsWhatIgnoresSignals(t *testing.T) {
	b := newBench(t)
	l := b.lifeline()
	err := b.cancelled(l, "trap '' HUP INT QUIT TERM PIPE; exec 9>lifeline; echo up >&9; while :; do sleep 1000; done")
	wantKind(t, err, schema.Cancelled)
	l.gone()
}

func TestBashLeavesNothingOfItsGroupRunning(t *testing.T) {
	for name, where := range map[string]string{"holding its output": "", "not holding its output": ">/dev/null 2>&1"} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			l := b.lifeline()
			// The shell ends by itself, but only when the other process is there.
			res := b.must("bash", args{"command": "mkfifo gate; (exec 9>lifeline; echo up >&9; echo go >gate; exec sleep 1000) " + where + " & read x <gate; echo done"})
			if !res.OK || res.Output != "done\n" || member[bool](t, res, "outlived") {
				t.Errorf("%+v, %s", res, res.Structured)
			}
			l.up()
			l.gone()
		})
	}
}

// TestBashHandsOnNoDescriptors runs a second process of this test, which is
// started with a descriptor that is not close-on-exec, as a supervisor does it.
func TestBashHandsOnNoDescriptors(t *testing.T) {
	if os.Getenv("STENO_TEST_INHERITS") != "" {
		b := newBench(t)
		if got := b.must("bash", args{"command": "echo leak >&3 || echo closed"}).Output; !strings.Contains(got, "closed\n") {
			t.Errorf("the command has it: %q", got)
		}
		return
	}
	f, err := os.Create(filepath.Join(t.TempDir(), "f"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	again := exec.Command(os.Args[0], "-test.run=^TestBashHandsOnNoDescriptors$")
	again.Env = append(os.Environ(), "STENO_TEST_INHERITS=1")
	again.ExtraFiles = []*os.File{f}
	if out, err := again.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
	if text, err := os.ReadFile(f.Name()); err != nil || len(text) > 0 {
		t.Errorf("written to it: %q, %v", text, err)
	}
}
