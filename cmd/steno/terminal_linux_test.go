package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// A pty is a terminal with a person at it, who is this test. It is for one program:
// its end hangs up.
type pty struct {
	t      *testing.T
	master *os.File
	slave  *os.File
	shown  output
}

func newPTY(t *testing.T) *pty {
	t.Helper()
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR|syscall.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	p := &pty{t: t, master: master}
	n := 0
	raw, err := master.SyscallConn()
	if err == nil {
		err = raw.Control(func(fd uintptr) {
			if err = unix.IoctlSetPointerInt(int(fd), unix.TIOCSPTLCK, 0); err == nil {
				n, err = unix.IoctlGetInt(int(fd), unix.TIOCGPTN)
			}
		})
	}
	if err == nil {
		p.slave, err = os.OpenFile("/dev/pts/"+strconv.Itoa(n), os.O_RDWR|syscall.O_NOCTTY, 0)
	}
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		b := make([]byte, 4096)
		for {
			n, err := master.Read(b)
			_, _ = p.shown.Write(b[:n])
			if err != nil {
				return
			}
		}
	}()
	t.Cleanup(func() { _, _ = p.slave.Close(), p.master.Close() })
	return p
}

// run starts a program at the terminal; wait gives its output and exit code.
func (p *pty) run(dir string, words ...string) (cmd *exec.Cmd, wait func() (string, int)) {
	p.t.Helper()
	cmd = exec.Command(words[0], words[1:]...)
	var out output
	cmd.Dir, cmd.Stdin, cmd.Stdout, cmd.Stderr = dir, p.slave, &out, p.slave
	cmd.Env = append(os.Environ(), "STENO_DIR=")
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true, Ctty: 0}
	if err := cmd.Start(); err != nil {
		p.t.Fatal(err)
	}
	p.t.Cleanup(func() { _ = cmd.Process.Kill() })
	return cmd, func() (string, int) {
		p.t.Helper()
		_ = cmd.Wait()
		return out.String(), cmd.ProcessState.ExitCode()
	}
}

// asked waits until the terminal has shown so many questions.
func (p *pty) asked(n int) {
	p.t.Helper()
	if !eventually(func() bool { return strings.Count(p.shown.String(), "allow it once? [y/N] ") >= n }) {
		p.t.Fatalf("no question %d: %q", n, p.shown.String())
	}
}

func (p *pty) types(text string) {
	p.t.Helper()
	if _, err := p.master.WriteString(text); err != nil {
		p.t.Fatal(err)
	}
}

// Where a policy asks and nobody serves, run and call ask the person at their
// terminal. Only a yes lets a call run, and what was typed before is none.
func TestThePersonAtTheTerminalIsAsked(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	policy := filepath.Join(dir, "ask.yaml")
	if err := os.WriteFile(policy, []byte("version: 1\nmode: auto\nrules: [{name: careful, do: ask, tool: bash}]\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	good(t, dir, "run", os.DevNull, "--session", "s1", "--policy", policy)
	call := func(p *pty, id, command string) (*exec.Cmd, func() (string, int)) {
		return p.run(dir, "steno", "call", "bash", "--session", "s1", "--call-id", id, "--args", `{"argv":["sh","-c","`+command+`"]}`)
	}
	for _, c := range []struct{ id, typed, kind, by string }{
		{"yes", "y\n", "", "human"}, {"word", "YES\n", "", "human"},
		{"no", "n\n", "approval_denied", "human"}, {"nothing", "\n", "approval_denied", "human"}, {"maybe", "yes please\n", "approval_denied", "human"},
		{"end", "\x04", "approval_denied", "human"},
	} {
		p := newPTY(t)
		p.types("y\n") // before anything is asked
		_, wait := call(p, c.id, "echo ran >>"+c.id+"; true </dev/tty || echo no terminal")
		p.asked(1)
		p.types(c.typed)
		out, code := wait()
		kind := ""
		if v, err := at(out, "/error/kind"); err == nil {
			kind = v.(string)
		}
		_, err := os.Stat(filepath.Join(dir, c.id))
		if code != 0 || kind != c.kind || (err == nil) != (c.kind == "") {
			t.Errorf("%s: exit %d, %s", c.id, code, out)
		}
		if c.kind == "" && !strings.Contains(out, "no terminal") {
			t.Errorf("the command has the terminal: %s", out)
		}
		shown := good(t, dir, "calls", "show", "s1", c.id, "-o", "jsonl")
		if !strings.Contains(shown, `"by":"`+c.by+`"`) || !strings.Contains(shown, "approval_requested") || !strings.Contains(shown, `"actor":{"id":"user `) {
			t.Errorf("recorded is %s", shown)
		}
		if text := p.shown.String(); !strings.Contains(text, "call "+c.id+" of session s1 wants bash, tier 3") ||
			!strings.Contains(text, "rule careful of the policy asks a person") || !strings.Contains(text, `echo ran >>`+c.id) {
			t.Errorf("shown is %q", text)
		}
	}

	// What could act on the terminal is shown escaped, and a question is one at a time.
	calls := filepath.Join(dir, "calls.jsonl")
	if err := os.WriteFile(calls, []byte(`{"call_id":"a","name":"bash","args":{"argv":["echo","\u001b[2J\u202egnp.exe"]}}`+"\n"+
		`{"call_id":"b","name":"bash","args":{"argv":["echo","b"]}}`+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	q := newPTY(t)
	_, wait := q.run(dir, "steno", "run", calls, "--session", "s1", "--parallel", "2")
	for n := 1; n <= 2; n++ {
		q.asked(n)
		if got := strings.Count(q.shown.String(), "[y/N]"); got != n {
			t.Errorf("%d questions stand at once", got)
		}
		q.types("y\n")
	}
	if out, code := wait(); code != 0 || strings.Count(out, `"ok":true`) != 2 {
		t.Errorf("exit %d, %s", code, out)
	}
	if text := q.shown.String(); strings.ContainsAny(text, "\x1b\u202e") || !strings.Contains(text, `\u001b[2J\u202egnp.exe`) {
		t.Errorf("shown is %q", text)
	}

	// A signal is no answer: the call goes on to wait, and is asked about again.
	r := newPTY(t)
	cmd, wait := call(r, "later", "echo ran >>later")
	r.asked(1)
	_ = cmd.Process.Signal(syscall.SIGINT)
	if out, code := wait(); code != 130 || out != "" {
		t.Errorf("exit %d, %s", code, out)
	}
	if list := good(t, dir, "approvals", "ls", "-o", "jsonl"); pick(t, list, "/call_id") != "later" {
		t.Errorf("waiting are %s", list)
	}
	r = newPTY(t)
	_, wait = call(r, "later", "echo ran >>later")
	r.asked(1)
	r.types("y\n")
	if out, code := wait(); code != 0 || pick(t, out, "/ok") != true {
		t.Errorf("exit %d, %s", code, out)
	}

	// Whose calls are typed there is not asked beside them.
	l := newPTY(t)
	_, wait = l.run(dir, "steno", "run", "-", "--session", "s1")
	l.types(`{"call_id":"typed","name":"bash","args":{"argv":["echo","b"]}}` + "\n\x04")
	if out, code := wait(); code != 0 || pick(t, out, "/error/details/rule") != "unattended" || strings.Contains(l.shown.String(), "[y/N]") {
		t.Errorf("exit %d, %s; shown is %q", code, out, l.shown.String())
	}

	// In the background, and without a terminal, nobody is asked: it is denied.
	b := newPTY(t)
	_, wait = b.run(dir, "sh", "-c", `set -m; steno call bash --session s1 --call-id behind --args '{"command":"true"}' & wait`)
	if out, code := wait(); code != 0 || pick(t, out, "/error/kind") != "approval_denied" || pick(t, out, "/error/details/rule") != "unattended" {
		t.Errorf("exit %d, %s", code, out)
	}
	if out := good(t, dir, "call", "bash", "--session", "s1", "--args", `{"command":"true"}`); pick(t, out, "/error/details/rule") != "unattended" {
		t.Error(out)
	}
	if strings.Contains(b.shown.String(), "[y/N]") {
		t.Errorf("who is in the background asks: %q", b.shown.String())
	}
}
