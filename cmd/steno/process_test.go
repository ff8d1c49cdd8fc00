package main

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// A child is a steno that runs beside a test.
type child struct {
	t        *testing.T
	cmd      *exec.Cmd
	in       io.WriteCloser
	out, err output
	ended    chan struct{}
}

// output is what a process has written so far.
type output struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.buf.Write(p)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.buf.String()
}

// launch starts steno in a folder. It is killed at the end of the test, if it
// has not ended by then.
func launch(t *testing.T, dir string, args ...string) *child {
	t.Helper()
	return launchWith(t, nil, dir, args...)
}

// launchWith is launch with more of an environment.
func launchWith(t *testing.T, env []string, dir string, args ...string) *child {
	t.Helper()
	p := &child{t: t, cmd: exec.Command("steno", args...), ended: make(chan struct{})}
	p.cmd.Dir, p.cmd.Stdout, p.cmd.Stderr = dir, &p.out, &p.err
	p.cmd.Env = append(append(os.Environ(), "STENO_DIR="), env...)
	var err error
	if p.in, err = p.cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() { _ = p.cmd.Wait(); close(p.ended) }()
	t.Cleanup(func() {
		_ = p.cmd.Process.Kill()
		<-p.ended
		if t.Failed() {
			t.Logf("steno %s\nstdout: %s\nstderr: %s", strings.Join(args, " "), &p.out, &p.err)
		}
	})
	return p
}

func (p *child) signal(s syscall.Signal) {
	p.t.Helper()
	if err := p.cmd.Process.Signal(s); err != nil {
		p.t.Fatal(err)
	}
}

// exit waits for the end and gives the exit code, -1 for a death by signal.
func (p *child) exit() int {
	p.t.Helper()
	select {
	case <-p.ended:
	case <-time.After(patience):
		p.t.Fatal("the process does not end")
	}
	return p.cmd.ProcessState.ExitCode()
}

// says waits until the process has written a text on standard output.
func (p *child) says(text string) {
	p.t.Helper()
	p.until("it does not say "+text, func() bool { return strings.Contains(p.out.String(), text) })
}

// until waits until f is true, and no longer than the process lives.
func (p *child) until(what string, f func() bool) {
	p.t.Helper()
	if !eventually(func() bool {
		select {
		case <-p.ended:
			return true
		default:
			return f()
		}
	}) || !f() {
		p.t.Fatal(what)
	}
}

// steno runs a command to its end.
func steno(t *testing.T, dir string, args ...string) (stdout, stderr string, code int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, "steno", args...)
	var out, errOut bytes.Buffer
	cmd.Dir, cmd.Stdout, cmd.Stderr = dir, &out, &errOut
	cmd.Env = append(os.Environ(), "STENO_DIR=")
	err := cmd.Run()
	if e, ok := errors.AsType[*exec.ExitError](err); ok {
		code = e.ExitCode()
	} else if err != nil {
		t.Fatal(err)
	}
	return out.String(), errOut.String(), code
}

// good is steno that must exit 0.
func good(t *testing.T, dir string, args ...string) string {
	t.Helper()
	out, errOut, code := steno(t, dir, args...)
	if code != 0 {
		t.Fatalf("steno %s: exit %d\n%s%s", strings.Join(args, " "), code, out, errOut)
	}
	return out
}

// pick gives the value at a pointer of a JSON text.
func pick(t *testing.T, text, pointer string) any {
	t.Helper()
	v, err := at(text, pointer)
	if err != nil {
		t.Fatal(err)
	}
	return v
}
