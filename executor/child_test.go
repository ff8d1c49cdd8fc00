package executor_test

import (
	"bytes"
	"context"
	"encoding/json"
	"log/slog"
	"os"
	"os/signal"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"steno/executor"
	"steno/journal"
	"steno/journal/journaltest"
	"steno/lease"
	"steno/schema"
)

// child says what an executor in a process of its own does.
type child struct {
	URL     string // of the server
	Dir     string // of the store
	Queue   bool
	Plain   bool          // without a commit log
	AckWait time.Duration // the product's if zero
	Effects string        // file in which each run of a tool leaves a line
	Grace   time.Duration // of the drain after SIGTERM
	// StopWait is how long a tool has to stop, the product's if zero; checks are
	// asked no sooner than that after a take-over.
	StopWait   time.Duration
	RetryFirst time.Duration // of the queue, the product's if zero
	Policy     string        // the document, or none
	Workers    bool          // it calls the tools of workers
	MCP        string        // folder of its MCP servers; none if empty
}

// A snare kills a child at a point of an append, with SIGKILL, without a
// chance to do anything more.
type snare struct {
	At    string // journaltest.Write, Written, Synced, Checked
	Line  string // text that the lines of the append must hold
	Lines int    // at Write: how many of its lines reach the file
}

// snares stand between a child and the kernel.
type snares struct {
	mu    sync.Mutex
	armed *snare
	lines []byte // of the append that is on its way
}

func (s *snares) faults() *lease.Faults {
	return &lease.Faults{
		Write: func(f *os.File, b []byte) (int, error) {
			if !strings.HasSuffix(f.Name(), ".jsonl") && !strings.Contains(f.Name(), ".claim-") { // the commit log
				return f.Write(b)
			}
			s.mu.Lock()
			s.lines = b
			s.mu.Unlock()
			if armed := s.due(journaltest.Write); armed != nil {
				head := b
				for range armed.Lines {
					head = head[bytes.IndexByte(head, '\n')+1:]
				}
				if n := len(b) - len(head); n > 0 {
					_, _ = f.Write(b[:n])
				}
				die()
			}
			return f.Write(b)
		},
		At: func(point string) {
			if s.due(point) != nil {
				die()
			}
		},
	}
}

func (s *snares) due(point string) *snare {
	s.mu.Lock()
	defer s.mu.Unlock()
	if a := s.armed; a != nil && a.At == point && bytes.Contains(s.lines, []byte(a.Line)) {
		return a
	}
	return nil
}

func die() {
	_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
	select {} // until the signal is there
}

// childExecutor is what a child process of role "executor" does. It says
// "serving HOLDER", "effect CALL ATTEMPT" when a tool has left its line, and
// "drained" in the end.
func childExecutor(arg []byte) error {
	var c child
	if err := json.Unmarshal(arg, &c); err != nil {
		return err
	}
	terminated := make(chan os.Signal, 1)
	signal.Notify(terminated, syscall.SIGTERM)
	conn, err := nats.Connect(c.URL, nats.MaxReconnects(-1), nats.ReconnectWait(20*time.Millisecond))
	if err != nil {
		return err
	}
	store, err := journal.OpenFiles(c.Dir, false)
	if err != nil {
		return err
	}
	if c.Plain {
		store = store.WithoutLog()
	}
	var traps snares
	read, checked := effect("read", false, c.Effects, journaltest.Say), effect("checked", false, c.Effects, journaltest.Say)
	read.ReadOnly, checked.Check = true, looksUp(c.Effects)
	registry, err := executor.NewRegistry(echo, effect("effect", false, c.Effects, journaltest.Say), effect("again", true, c.Effects, journaltest.Say), read, checked)
	if err != nil {
		return err
	}
	if c.MCP != "" {
		servers, err := childMCP(registry, c.MCP)
		if err != nil {
			return err
		}
		defer servers.Close()
	}
	holder := lease.Self("executor.test")
	var policy *executor.Policy
	if c.Policy != "" {
		if policy, err = executor.ParsePolicy([]byte(c.Policy)); err != nil {
			return err
		}
	}
	var workers *executor.Workers
	if c.Workers {
		workers = &executor.Workers{}
	}
	x, err := executor.New(executor.Config{Workers: workers, Policy: policy, Conn: conn, Store: store.WithFaults(traps.faults()), Tools: registry, Holder: holder,
		Queue: c.Queue, Logger: slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelError + 1}))})
	if err != nil {
		return err
	}
	if c.AckWait > 0 {
		executor.SetAckWait(x, c.AckWait)
	}
	if c.RetryFirst > 0 {
		executor.SetRetryFirst(x, c.RetryFirst)
	}
	if c.StopWait > 0 {
		executor.SetStopWait(x, c.StopWait)
	}
	_, err = conn.Subscribe("test.arm."+holder.ID, func(m *nats.Msg) {
		var s snare
		if err := json.Unmarshal(m.Data, &s); err != nil {
			panic(err)
		}
		traps.mu.Lock()
		traps.armed = &s
		traps.mu.Unlock()
		if err := m.Respond(nil); err != nil {
			panic(err)
		}
	})
	if err != nil {
		return err
	}
	if err := x.Start(context.Background()); err != nil {
		return err
	}
	journaltest.Say("serving %s", holder.ID)
	<-terminated
	ctx, cancel := context.WithTimeout(context.Background(), c.Grace)
	defer cancel()
	if err := x.Drain(ctx); err != nil {
		return err
	}
	journaltest.Say("drained")
	return nil
}

// effect is a tool whose effect can be counted: each run leaves a line, which
// is there whatever becomes of the process. With "wait" in its arguments it
// then waits, in its first attempt, until it is stopped; with "until", until
// that file is there; with "pause" it takes its time.
func effect(name string, repeatable bool, file string, say func(string, ...any)) executor.Tool {
	t := toolOf(name, func(ctx context.Context, c *executor.Invocation) (executor.Result, error) {
		var args struct {
			Wait  bool
			Until string
			Pause int // in milliseconds, behind its effect
		}
		if err := json.Unmarshal(c.Args, &args); err != nil {
			return executor.Result{}, err
		}
		f, err := os.OpenFile(file, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
		if err != nil {
			return executor.Result{}, err
		}
		defer f.Close()
		if _, err := f.WriteString(c.CallID + "\n"); err != nil {
			return executor.Result{}, err
		}
		if say != nil {
			say("effect %s %d", c.CallID, c.Attempt)
		}
		if args.Pause > 0 {
			select {
			case <-time.After(time.Duration(args.Pause) * time.Millisecond):
			case <-ctx.Done():
				return executor.Result{}, ctx.Err()
			}
		}
		for there := false; args.Until != "" && !there; {
			_, err := os.Stat(args.Until)
			if there = err == nil; !there {
				select {
				case <-time.After(5 * time.Millisecond):
				case <-ctx.Done():
					return executor.Result{}, ctx.Err()
				}
			}
		}
		if args.Wait && c.Attempt == 1 {
			<-ctx.Done()
			return executor.Result{}, ctx.Err()
		}
		return executor.Result{OK: true, Output: "it took effect"}, nil
	})
	t.Repeatable = repeatable
	return t
}

// looksUp is the check of an effect: it is there if the call has left its line.
// It says "checks CALL" first; with "stall" in the arguments it then waits, until
// a file of the name of the effects and ".go-on" is there.
func looksUp(file string) func(context.Context, *executor.Invocation) (executor.Checked, error) {
	return func(ctx context.Context, c *executor.Invocation) (executor.Checked, error) {
		journaltest.Say("checks %s", c.CallID)
		for stall := bytes.Contains(c.Args, []byte(`"stall"`)); stall; {
			if _, err := os.Stat(file + ".go-on"); err == nil {
				break
			}
			select {
			case <-time.After(5 * time.Millisecond):
			case <-ctx.Done():
				return executor.Checked{}, ctx.Err()
			}
		}
		b, err := os.ReadFile(file)
		if err != nil && !os.IsNotExist(err) {
			return executor.Checked{}, err
		}
		took := slices.Contains(strings.Fields(string(b)), c.CallID)
		return executor.Checked{Took: took, Result: executor.Result{OK: true, Output: "it had taken effect"}}, nil
	}
}

// A process is a child executor.
type process struct {
	*journaltest.Process
	t      *testing.T
	holder string
}

// child starts an executor in a process of its own and returns when it serves.
func (p *place) child(c child) *process {
	p.t.Helper()
	c.URL, c.Dir = p.nats.URL(), p.dir
	if c.Grace == 0 {
		c.Grace = journaltest.Deadline
	}
	child := journaltest.Start(p.t, "executor", c)
	return &process{child, p.t, child.WaitFor("serving", 1)}
}

// arm sets a snare.
func (c *process) arm(conn *nats.Conn, s snare) {
	c.t.Helper()
	b, err := json.Marshal(s)
	if err == nil {
		_, err = conn.Request("test.arm."+c.holder, b, journaltest.Deadline)
	}
	if err != nil {
		c.t.Fatal(err)
	}
}

// wantKilled returns when the child has been killed.
func (c *process) wantKilled() {
	c.t.Helper()
	if killed, err := c.Wait(); !killed {
		c.t.Fatalf("the child was not killed: %v", err)
	}
}

// open opens a session through a client.
func open(t testing.TB, c *executor.Client, session string) {
	t.Helper()
	if _, err := c.Open(within(t), executor.OpenRequest{Session: session}); err != nil {
		t.Fatalf("open %s: %v", session, err)
	}
}

// client is a client of the executors at a place.
func (p *place) client() *executor.Client {
	p.t.Helper()
	c, err := executor.NewClient(p.nats.Connect(), "")
	if err != nil {
		p.t.Fatal(err)
	}
	return c
}

// countEffects is how many runs of a call have left their line.
func countEffects(t testing.TB, file, id string) (n int) {
	t.Helper()
	for _, line := range effects(t, file) {
		if line == id {
			n++
		}
	}
	return n
}

// wantKindOfResult checks the kind of a recorded result, "" for one without an
// error.
func wantKindOfResult(t testing.TB, data []byte, want schema.Kind) {
	t.Helper()
	if got := kindOfResult(t, data); got != want {
		t.Errorf("the result is %s, want kind %q", data, want)
	}
}
