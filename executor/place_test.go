package executor_test

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/nats-io/nats.go"

	"steno/executor"
	"steno/journal"
	"steno/journal/journaltest"
	"steno/lease"
	"steno/schema"
)

// A place is a server and a store, for executors to work at. When its test
// ends every session of the store is verified.
type place struct {
	t    *testing.T
	nats *journaltest.NATS
	dir  string
}

// newPlace makes a place of a test that runs beside others.
func newPlace(t *testing.T, o journaltest.NATSOptions) *place {
	t.Helper()
	t.Parallel()
	return placeOn(t, journaltest.StartNATS(t, o), t.TempDir())
}

func placeOn(t *testing.T, n *journaltest.NATS, dir string) *place {
	t.Helper()
	store, err := journal.OpenFiles(dir, true)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for id, err := range store.Sessions(context.Background()) {
			if err != nil {
				t.Error(err)
				break
			}
			journaltest.Verify(t, store, id)
		}
		store.Close()
	})
	return &place{t, n, dir}
}

// store opens the place's store once more.
func (p *place) store() *journal.Files {
	p.t.Helper()
	store, err := journal.OpenFiles(p.dir, false)
	if err != nil {
		p.t.Fatal(err)
	}
	p.t.Cleanup(func() { store.Close() })
	return store
}

// A node is an executor of the test process, with a connection and a holder of
// its own, as if it were another process.
type node struct {
	*executor.Executor
	t      *testing.T
	conn   *nats.Conn
	store  *journal.Files
	faults *journaltest.Faults
	holder string
	log    *logs
	client *executor.Client
	drain  sync.Once
}

// node starts an executor with these tools. It is drained when the test ends.
func (p *place) node(tools []executor.Tool, change ...func(*executor.Config)) *node {
	p.t.Helper()
	n := p.idle(tools, change...)
	if err := n.Start(context.Background()); err != nil {
		p.t.Fatal(err)
	}
	return n
}

// idle makes an executor that is not started.
func (p *place) idle(tools []executor.Tool, change ...func(*executor.Config)) *node {
	p.t.Helper()
	registry, err := executor.NewRegistry(tools...)
	if err != nil {
		p.t.Fatal(err)
	}
	n := &node{t: p.t, conn: p.nats.Connect(), log: &logs{}}
	n.store, n.faults = journaltest.Faulty(p.store())
	cfg := executor.Config{Conn: n.conn, Store: n.store, Tools: registry, Holder: lease.Self("executor.test"),
		Protect: []string{p.dir}, Logger: slog.New(slog.NewTextHandler(n.log, nil)),
		Repeat: executor.RepeatGuard{Warn: -1, Refuse: -1}} // most tests repeat themselves
	for _, f := range change {
		f(&cfg)
	}
	n.holder = cfg.Holder.ID
	if n.Executor, err = executor.New(cfg); err != nil {
		p.t.Fatal(err)
	}
	p.t.Cleanup(func() { n.stop() })
	if n.client, err = executor.NewClient(p.nats.Connect(), cfg.Prefix); err != nil {
		p.t.Fatal(err)
	}
	return n
}

// stop drains the executor, if it has not been yet.
func (n *node) stop() {
	n.t.Helper()
	n.drain.Do(func() {
		ctx, cancel := context.WithTimeout(context.Background(), journaltest.Deadline)
		defer cancel()
		if err := n.Drain(ctx); err != nil {
			n.t.Errorf("drain: %v", err)
		}
		n.conn.Close()
		if n.t.Failed() {
			n.t.Logf("log of executor %s:\n%s", n.holder, n.log)
		}
	})
}

// open opens a session.
func (n *node) open(session string) {
	n.t.Helper()
	if _, err := n.client.Open(within(n.t), executor.OpenRequest{Session: session}); err != nil {
		n.t.Fatalf("open %s: %v", session, err)
	}
}

// call runs a call that must get a recorded result.
func (n *node) call(session, id, tool, args string) executor.Answer {
	n.t.Helper()
	a, err := n.client.Call(within(n.t), session, request(id, tool, args))
	if err != nil {
		n.t.Fatalf("call %s: %v", id, err)
	}
	return a
}

func request(id, tool, args string) executor.Request {
	return executor.Request{CallID: id, Name: tool, Args: jsontext.Value(args)}
}

// within is a context that bounds every wait of a test. Nothing waits for it
// to pass but a test that fails.
func within(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), journaltest.Deadline)
	t.Cleanup(cancel)
	return ctx
}

// eventually returns once ok holds.
func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(journaltest.Deadline); !ok(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not in time: %s", what)
		}
	}
}

// wait returns once c is closed or gives something.
func wait[T any](t testing.TB, what string, c <-chan T) (v T) {
	t.Helper()
	select {
	case v = <-c:
	case <-time.After(journaltest.Deadline):
		t.Fatalf("not in time: %s", what)
	}
	return v
}

// read reads a session from the disk.
func (p *place) read(session string) *journaltest.Log {
	p.t.Helper()
	l, err := journaltest.Read(p.store(), session, journal.ScanOptions{})
	if err != nil {
		p.t.Fatalf("read %s: %v", session, err)
	}
	return l
}

// types are those of a session's events, without the ones of its writers.
func (p *place) types(session string) (types []string) {
	p.t.Helper()
	for _, e := range p.read(session).Events {
		switch e.Type {
		case schema.TypeWriterOpened, schema.TypeWriterReleased, schema.TypeSessionStarted:
		default:
			types = append(types, e.Type)
		}
	}
	return types
}

// wantTypes compares the events of a session with what they must be.
func (p *place) wantTypes(session string, want ...string) {
	p.t.Helper()
	if got := p.types(session); !slices.Equal(got, want) {
		p.t.Errorf("session %s has the events\n%q, want\n%q", session, got, want)
	}
}

// result is the data of the newest tool_result of a call, as it stands on the
// disk; nil if there is none.
func (p *place) result(session, id string) (data jsontext.Value) {
	p.t.Helper()
	for _, e := range p.read(session).Events {
		if e.Type == schema.TypeToolResult && field[string](p.t, e.Data, "call_id") == id {
			data = e.Data
		}
	}
	return data
}

// wantRecorded checks that an answer is the recorded result, byte for byte.
func (p *place) wantRecorded(session string, a executor.Answer) {
	p.t.Helper()
	if on := p.result(session, a.CallID); !bytes.Equal(on, a.Data) {
		p.t.Errorf("the answer to %s is\n%s\nand the record has\n%s", a.CallID, a.Data, on)
	}
}

// whole is recorded data with its blobs in their places.
func (p *place) whole(session string, data []byte) []byte {
	p.t.Helper()
	whole, err := journal.Whole(context.Background(), p.store(), session, data)
	if err != nil {
		p.t.Fatalf("a blob of %s: %v", session, err)
	}
	return whole
}

// field reads one member of a JSON object; the zero value if it is not there.
func field[T any](t testing.TB, object []byte, name string) (v T) {
	t.Helper()
	var m map[string]jsontext.Value
	if err := schema.Unmarshal(object, &m); err != nil {
		t.Fatalf("%s: %v", object, err)
	}
	if len(m[name]) > 0 {
		if err := schema.Unmarshal(m[name], &v); err != nil {
			t.Fatalf("%s of %s: %v", name, object, err)
		}
	}
	return v
}

// kindOfResult is the kind of a recorded error, "" for a result without one.
func kindOfResult(t testing.TB, data []byte) schema.Kind {
	t.Helper()
	return field[schema.ErrorBody](t, data, "error").Kind
}

// wantErr checks the kind of an error.
func wantErr(t testing.TB, err error, want schema.Kind) {
	t.Helper()
	if schema.KindOf(err) != want {
		t.Errorf("the error is %v, want %s", err, want)
	}
}

// logs collects what an executor tells its operator.
type logs struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (l *logs) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(b)
}

func (l *logs) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.String()
}

// anyArgs is a schema that every object fits.
const anyArgs = `{"type":"object"}`

// toolOf makes a tool from a function.
func toolOf(name string, run func(context.Context, *executor.Invocation) (executor.Result, error)) executor.Tool {
	return executor.Tool{Name: name, Description: "a tool of a test", Input: jsontext.Value(anyArgs), Run: run}
}

// echo is a tool that answers with its arguments.
var echo = toolOf("echo", func(_ context.Context, c *executor.Invocation) (executor.Result, error) {
	return executor.Result{OK: true, Output: string(c.Args)}, nil
})

// counter is a tool that counts how often it has run, and waits while it is
// held.
type counter struct {
	mu    sync.Mutex
	runs  map[string]int
	begun chan string   // gets the id of each call that has begun
	hold  chan struct{} // nil, or closed to let calls end
}

func newCounter(held bool) *counter {
	c := &counter{runs: map[string]int{}, begun: make(chan string, 1000)}
	if held {
		c.hold = make(chan struct{})
	}
	return c
}

func (c *counter) tool(name string, repeatable bool) executor.Tool {
	t := toolOf(name, func(ctx context.Context, call *executor.Invocation) (executor.Result, error) {
		c.mu.Lock()
		c.runs[call.CallID]++
		c.mu.Unlock()
		c.begun <- call.CallID
		if c.hold != nil {
			select {
			case <-c.hold:
			case <-ctx.Done():
				return executor.Result{}, ctx.Err()
			}
		}
		return executor.Result{OK: true, Output: fmt.Sprintf("%s, attempt %d", call.CallID, call.Attempt)}, nil
	})
	t.Repeatable = repeatable
	return t
}

func (c *counter) of(id string) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.runs[id]
}

// effects reads a file in which each run of a tool has left a line.
func effects(t testing.TB, path string) []string {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	return strings.Fields(string(b))
}

// touch makes an empty file.
func touch(t testing.TB, path string) {
	t.Helper()
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
}
