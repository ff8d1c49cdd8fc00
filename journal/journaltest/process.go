package journaltest

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"steno/journal"
	"steno/schema"
)

// roleEnv selects what a child process is. Its argument is JSON, in argEnv.
const (
	roleEnv = "STENO_TEST_ROLE"
	argEnv  = "STENO_TEST_ARG"
)

// Deadline bounds every wait for another process or for the kernel. Nothing
// waits for it to pass but a test that fails. The race detector makes all that
// computes many times slower.
const Deadline = 30 * time.Second * slower

// Main is for TestMain. It runs the tests, or, in a child process that Start
// has made of the same binary, the role it was started for. The roles "writer",
// "stormer" and "viewer" are always there.
func Main(m interface{ Run() int }, roles map[string]func(arg []byte) error) {
	role := os.Getenv(roleEnv)
	if role == "" {
		os.Exit(m.Run())
	}
	f := roles[role]
	if own := map[string]func([]byte) error{"writer": writer, "stormer": stormer, "viewer": viewer}[role]; own != nil {
		f = own
	}
	if f == nil {
		fmt.Fprintln(os.Stderr, "no such role:", role)
		os.Exit(2)
	}
	// A test that is killed cannot end its children; they notice it themselves.
	parent := os.Getppid()
	go func() {
		for range time.Tick(time.Second) {
			if os.Getppid() != parent {
				os.Exit(4)
			}
		}
	}()
	if err := f([]byte(os.Getenv(argEnv))); err != nil {
		Say("error %s", schema.Envelope(err))
	}
	os.Exit(0)
}

// Say writes a line to the parent, at once: what was said before a kill has
// arrived.
func Say(format string, args ...any) {
	if _, err := fmt.Fprintf(os.Stdout, format+"\n", args...); err != nil {
		os.Exit(3) // nobody listens any more
	}
}

// Writer is what a child process of role "writer" does: it opens a session,
// appends notes, and says "open HEAD", "ack HEAD" for each append that was
// acknowledged, "error ENVELOPE" for what ended it, or "released".
type Writer struct {
	Dir     string // of the store
	Session string
	Force   bool
	Entries int    // how many notes; it then releases. 0 goes on until it is killed
	Bytes   int    // of further text in each note
	Step    bool   // wait for a line on stdin before each append and before the release
	KillAt  string // a point at which the process kills itself
	KillNth int    // the n-th time it is there
	NoSync  bool
	NoCheck bool
	Plain   bool // without a commit log
}

func writer(arg []byte) error {
	var w Writer
	if err := json.Unmarshal(arg, &w); err != nil {
		return err
	}
	f, err := journal.OpenFiles(w.Dir, false)
	if err != nil {
		return err
	}
	store, faults := FaultyEither(f, !w.Plain)
	if w.NoSync {
		faults.LeaveOutSync()
	}
	if w.NoCheck {
		faults.LeaveOutCheck()
	}
	if w.KillAt != "" {
		faults.At(w.KillAt, w.KillNth, func() {
			_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
			select {} // until the signal is there
		})
	}
	opt := Options()
	opt.Force, opt.Reason = w.Force, "the test says so"
	ctx := context.Background()
	j, err := journal.Open(ctx, store, w.Session, opt)
	if err != nil {
		return err
	}
	Say("open %s", j.Head())
	in := bufio.NewReader(os.Stdin)
	step := func() {
		if w.Step {
			if _, err := in.ReadString('\n'); err != nil {
				os.Exit(3) // the parent is gone
			}
		}
	}
	for n := 1; w.Entries == 0 || n <= w.Entries; n++ {
		step()
		text := fmt.Sprintf("%d of %s", n, opt.Holder.ID)
		if w.Bytes > 0 {
			text += Large(uint64(n), w.Bytes)
		}
		if _, err := j.Append(ctx, Note(text)); err != nil {
			return err
		}
		Say("ack %s", j.Head())
	}
	step()
	if err := j.Release(ctx, "done"); err != nil {
		return err
	}
	Say("released")
	return nil
}

// A Process is a child that Start made.
type Process struct {
	t     testing.TB
	cmd   *exec.Cmd
	stdin io.WriteCloser

	mu    sync.Mutex
	moved *sync.Cond
	lines []string
	stamp func() int64 // taken of each line as it arrives
	at    []int64
	eof   bool
	ended bool // waited for
}

// Start runs the test binary as a child in a role. It is killed at the latest
// when the test ends.
func Start(t testing.TB, role string, arg any) *Process {
	t.Helper()
	return StartIn(t, nil, role, arg)
}

// StartIn is Start with what the kernel is to do before the child begins, such
// as to give it a namespace of its own.
func StartIn(t testing.TB, attr *syscall.SysProcAttr, role string, arg any) *Process {
	t.Helper()
	return start(t, attr, role, arg, func() int64 { return 0 })
}

func start(t testing.TB, attr *syscall.SysProcAttr, role string, arg any, stamp func() int64) *Process {
	t.Helper()
	b, err := json.Marshal(arg)
	if err != nil {
		t.Fatal(err)
	}
	p := &Process{t: t, stamp: stamp, cmd: exec.Command(os.Args[0], "-test.run=^$")}
	p.moved = sync.NewCond(&p.mu)
	p.cmd.Env = append(os.Environ(), roleEnv+"="+role, argEnv+"="+string(b))
	p.cmd.Stderr, p.cmd.SysProcAttr = os.Stderr, attr
	if p.stdin, err = p.cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go p.listen(out)
	t.Cleanup(func() { p.Kill() })
	return p
}

// StartWriter starts a child of role "writer".
func StartWriter(t testing.TB, w Writer) *Process {
	t.Helper()
	return Start(t, "writer", w)
}

// listen collects whole lines. The last one of a killed child may be half; it
// was not said then.
func (p *Process) listen(out io.Reader) {
	in := bufio.NewReader(out)
	for {
		line, err := in.ReadString('\n')
		at := p.stamp()
		p.mu.Lock()
		if err == nil {
			p.at = append(p.at, at)
			p.lines = append(p.lines, strings.TrimSuffix(line, "\n"))
		} else {
			p.eof = true
		}
		p.moved.Broadcast()
		p.mu.Unlock()
		if err != nil {
			return
		}
	}
}

// wait returns once ok holds, and fails the test if that cannot come any more.
func (p *Process) wait(what string, ok func() bool) {
	p.t.Helper()
	late := false
	timer := time.AfterFunc(Deadline, func() {
		p.mu.Lock()
		late = true
		p.moved.Broadcast()
		p.mu.Unlock()
	})
	defer timer.Stop()
	p.mu.Lock()
	defer p.mu.Unlock()
	for !ok() {
		if p.eof || late {
			p.t.Fatalf("the child has not said %s; at last it said %q", what, p.lines[max(0, len(p.lines)-20):])
		}
		p.moved.Wait()
	}
}

// Lines is what the child has said so far.
func (p *Process) Lines() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.lines)
}

// WaitFor returns the n-th line that begins with a word, without the word.
func (p *Process) WaitFor(word string, n int) (rest string) {
	p.t.Helper()
	p.wait(fmt.Sprintf("%q %d times", word, n), func() bool {
		seen := 0
		for _, line := range p.lines {
			if first, tail, _ := strings.Cut(line, " "); first == word {
				if seen++; seen == n {
					rest = tail
					return true
				}
			}
		}
		return false
	})
	return rest
}

// WaitForEither returns the first word of these with which a line begins.
func (p *Process) WaitForEither(words ...string) (word string) {
	p.t.Helper()
	p.wait(fmt.Sprintf("any of %q", words), func() bool {
		for _, line := range p.lines {
			if first, _, _ := strings.Cut(line, " "); slices.Contains(words, first) {
				word = first
				return true
			}
		}
		return false
	})
	return word
}

// Acknowledged gives the heads that the child was told are recorded, those of
// its seals too.
func (p *Process) Acknowledged() []schema.Head {
	p.t.Helper()
	return p.Heads("open", "ack")
}

// Err waits for the error that ended the child.
func (p *Process) Err() error {
	p.t.Helper()
	return schema.ParseEnvelope([]byte(p.WaitFor("error", 1)))
}

// Step lets a child of role "writer" take n steps.
func (p *Process) Step(n int) {
	p.t.Helper()
	if _, err := io.WriteString(p.stdin, strings.Repeat("\n", n)); err != nil {
		p.t.Fatal(err)
	}
}

// Tell writes a line to the child's standard input.
func (p *Process) Tell(line string) {
	p.t.Helper()
	if _, err := io.WriteString(p.stdin, line+"\n"); err != nil {
		p.t.Fatal(err)
	}
}

// PID is the process id of the child.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// Stop stops the child and returns when the kernel says that it stands.
func (p *Process) Stop() {
	p.t.Helper()
	if err := p.cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		p.t.Fatal(err)
	}
	for {
		var status syscall.WaitStatus
		_, err := syscall.Wait4(p.PID(), &status, syscall.WUNTRACED, nil)
		if err == syscall.EINTR {
			continue
		}
		if err != nil || !status.Stopped() {
			p.t.Fatalf("the child did not stop: %v, status %#x", err, status)
		}
		return
	}
}

// Continue lets a stopped child go on.
func (p *Process) Continue() {
	p.t.Helper()
	if err := p.cmd.Process.Signal(syscall.SIGCONT); err != nil {
		p.t.Fatal(err)
	}
}

// Kill kills the child, and returns when it is gone and all it said has
// arrived.
func (p *Process) Kill() {
	p.t.Helper()
	_ = p.cmd.Process.Kill() // it may be gone already
	_, _ = p.Wait()
}

// Wait returns when the child is gone and all it said has arrived. killed is
// true for a child that ended by SIGKILL.
func (p *Process) Wait() (killed bool, err error) {
	p.t.Helper()
	p.mu.Lock()
	for !p.eof {
		p.moved.Wait()
	}
	ended := p.ended
	p.ended = true
	p.mu.Unlock()
	if !ended {
		err = p.cmd.Wait()
	}
	status, ok := p.cmd.ProcessState.Sys().(syscall.WaitStatus)
	return ok && status.Signaled() && status.Signal() == syscall.SIGKILL, err
}
