package executor_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"steno/executor"
	"steno/journal/journaltest"
	"steno/schema"
)

// notes are words that tools leave, in their order.
type notes struct {
	mu   sync.Mutex
	list []string
}

func (n *notes) add(format string, args ...any) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.list = append(n.list, fmt.Sprintf(format, args...))
}

func (n *notes) all() []string {
	n.mu.Lock()
	defer n.mu.Unlock()
	return slices.Clone(n.list)
}

// counting is a tool whose instances count the calls of their session.
func counting(name string, said *notes) executor.Tool {
	t := tool(name, `{"type":"object"}`)
	t.Run = nil
	t.Bind = func(_ context.Context, s executor.Session) (executor.Instance, error) {
		said.add("%s made for %s in %s", name, s.ID, s.Phase)
		var mu sync.Mutex
		n := 0
		return executor.Instance{
			Run: func(_ context.Context, c *executor.Invocation) (executor.Result, error) {
				mu.Lock()
				defer mu.Unlock()
				n++
				return executor.Result{OK: c.Session == s.ID, Output: fmt.Sprint(n)}, nil
			},
			Close: func() error {
				said.add("%s closed for %s", name, s.ID)
				if name == "bad" {
					return errors.New("it hangs on")
				}
				return nil
			},
		}, nil
	}
	return t
}

func TestT31AnInstanceIsMadeForEachSession(t *testing.T) {
	p := newPlace(t, journaltest.NATSOptions{})
	var said notes
	n := p.node([]executor.Tool{counting("first", &said), counting("bad", &said)})
	staged(t, n.client, "s1", executor.PhaseEditing, "")
	open(t, n.client, "s2")
	var calls sync.WaitGroup
	for i := range 8 { // one instance, also for calls that come at once
		calls.Go(func() { n.call("s1", fmt.Sprint("c", i), "first", `{}`) })
	}
	calls.Wait()
	for _, c := range []struct{ session, tool, want string }{{"s1", "bad", "1"}, {"s1", "first", "9"}, {"s2", "first", "1"}, {"s2", "first", "2"}} {
		if a := n.call(c.session, c.tool+c.want, c.tool, `{}`); field[string](t, a.Data, "output") != c.want || !field[bool](t, a.Data, "ok") {
			t.Errorf("%s in %s: %s, want %s", c.tool, c.session, a.Data, c.want)
		}
	}
	if got := said.all(); !slices.Equal(got, []string{"first made for s1 in editing", "bad made for s1 in editing", "first made for s2 in "}) {
		t.Errorf("%q", got)
	}
	// T21: the newest first, once, when the session is given back; what fails is told.
	n.drain.Do(func() {
		if err := n.Drain(within(t)); err == nil || !strings.Contains(err.Error(), "it hangs on") {
			t.Errorf("the drain: %v", err)
		}
	})
	var closed []string
	for _, s := range said.all() {
		if strings.HasSuffix(s, "closed for s1") {
			closed = append(closed, s)
		}
	}
	if !slices.Equal(closed, []string{"bad closed for s1", "first closed for s1"}) || len(said.all()) != 6 {
		t.Errorf("%q", said.all())
	}
	if log := n.log.String(); !strings.Contains(log, "it hangs on") {
		t.Errorf("the log does not tell of it: %s", log)
	}
}

func TestT31ABindThatFailsIsTriedAgain(t *testing.T) {
	p := newPlace(t, journaltest.NATSOptions{})
	tries := 0
	x := tool("x", `{"type":"object"}`)
	run := x.Run
	x.Run, x.Bind = nil, func(context.Context, executor.Session) (executor.Instance, error) {
		switch tries++; tries {
		case 1:
			return executor.Instance{}, schema.Errorf(schema.Unavailable, "not yet")
		case 2:
			panic("not yet")
		case 3:
			return executor.Instance{}, nil // it has no Run
		}
		return executor.Instance{Run: run}, nil
	}
	n := p.node([]executor.Tool{x})
	open(t, n.client, "s1")
	for i, want := range []schema.Kind{schema.Unavailable, schema.ToolFailed, schema.ToolFailed, "", ""} {
		wantKindOfResult(t, n.call("s1", fmt.Sprint("c", i), "x", `{}`).Data, want)
	}
	if tries != 4 {
		t.Errorf("it was bound %d times", tries)
	}
	both := tool("x", `{"type":"object"}`)
	both.Bind = x.Bind
	if _, err := executor.NewRegistry(both); schema.KindOf(err) != schema.InvalidConfig {
		t.Errorf("both Run and Bind: %v", err)
	}
}

// An instance whose call does not end with the session is closed when it ends.
func TestT31AnInstanceIsNotClosedUnderItsCall(t *testing.T) {
	p := newPlace(t, journaltest.NATSOptions{})
	var said notes
	began, end, closed := make(chan struct{}), make(chan struct{}), make(chan struct{})
	x := tool("x", `{"type":"object"}`)
	x.Run, x.Bind = nil, func(context.Context, executor.Session) (executor.Instance, error) {
		return executor.Instance{Run: func(context.Context, *executor.Invocation) (executor.Result, error) {
			close(began)
			<-end // it does not listen
			said.add("returned")
			return executor.Result{}, nil
		}, Close: func() error {
			said.add("closed")
			close(closed)
			return nil
		}}, nil
	}
	n := p.idle([]executor.Tool{x})
	executor.SetStopWait(n.Executor, 20*time.Millisecond)
	if err := n.Start(context.Background()); err != nil {
		t.Fatal(err)
	}
	n.open("s1")
	done := make(chan error, 1)
	go func() {
		_, err := n.Do(context.Background(), "s1", request("c1", "x", `{}`))
		done <- err
	}()
	wait(t, "the tool", began)
	n.drain.Do(func() {}) // not by the cleanup
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	wantErr(t, n.Drain(ctx), schema.Detached) // the session is given back
	said.add("given back")
	close(end)
	wait(t, "the close", closed)
	wait(t, "the end of the tool", done)
	if err := n.Drain(within(t)); err != nil {
		t.Error(err)
	}
	if got := said.all(); !slices.Equal(got, []string{"given back", "returned", "closed"}) {
		t.Errorf("%q", got)
	}
}

func TestT21ToolsAreClosedInReverseOrderOnce(t *testing.T) {
	var said notes
	closing := func(name string, f func() error) executor.Tool {
		x := tool(name, `{"type":"object"}`)
		x.Close = func() error { said.add("%s", name); return f() }
		return x
	}
	fine := func() error { return nil }
	r, err := executor.NewRegistry(closing("a", fine), closing("b", func() error { return errors.New("b hangs") }), closing("c", func() error { panic("c is broken") }), tool("d", `{"type":"object"}`))
	if err != nil {
		t.Fatal(err)
	}
	if err := r.Replace(closing("a", fine)); err != nil { // the old one is closed too
		t.Fatal(err)
	}
	err = r.Close()
	if err == nil || !strings.Contains(err.Error(), "b hangs") || !strings.Contains(err.Error(), "c is broken") {
		t.Errorf("what fails is not told: %v", err)
	}
	if err := r.Close(); err != nil || !slices.Equal(said.all(), []string{"a", "c", "b", "a"}) {
		t.Errorf("%q, %v", said.all(), err)
	}
}

func TestT19AToolThatIsNotAvailableIsNeitherToldNorRun(t *testing.T) {
	p := newPlace(t, journaltest.NATSOptions{})
	var runs notes
	x := toolOf("deploy", func(context.Context, *executor.Invocation) (executor.Result, error) {
		runs.add("run")
		return executor.Result{OK: true}, nil
	})
	x.Available = func(s executor.Session) bool {
		if string(s.Labels) == `{"team":"broken"}` {
			panic("no such team")
		}
		return string(s.State()) == `{"built":true}` && s.ID != "" && s.Workspace != ""
	}
	n := p.node([]executor.Tool{x, echo})
	dir := t.TempDir()
	for _, session := range []string{"s1", "s2"} {
		labels := map[string]string{"s1": `{"team":"a"}`, "s2": `{"team":"broken"}`}[session]
		if _, err := n.client.Open(within(t), executor.OpenRequest{Session: session, Workspace: dir, Labels: []byte(labels)}); err != nil {
			t.Fatal(err)
		}
	}
	told := func(session string) (names []string) {
		a, err := n.client.Tools(within(t), executor.ToolsRequest{Session: session})
		if err != nil {
			t.Fatal(err)
		}
		for _, spec := range a.Tools {
			names = append(names, field[string](t, spec, "name"))
		}
		return names
	}
	for _, session := range []string{"s1", "s2"} {
		a := n.call(session, "c1", "deploy", `{}`)
		wantKindOfResult(t, a.Data, schema.PhaseDenied)
		types, data := eventsOf(t, p, session, "c1")
		if len(types) != 3 || field[string](t, data[1], "gate") != "available" || field[string](t, data[1], "decision") != "deny" {
			t.Errorf("recorded are %q %s", types, data)
		}
		if got := told(session); !slices.Equal(got, []string{"echo"}) {
			t.Errorf("%s is told of %q", session, got)
		}
	}
	if _, err := n.client.Append(within(t), "s1", event(schema.TypeStateChanged, `{"patch":{"built":true}}`)); err != nil {
		t.Fatal(err)
	}
	if got := told("s1"); !slices.Equal(got, []string{"deploy", "echo"}) {
		t.Errorf("it is told of %q", got)
	}
	wantKindOfResult(t, n.call("s1", "c2", "deploy", `{}`).Data, "")
	if len(runs.all()) != 1 {
		t.Errorf("it ran %d times", len(runs.all()))
	}
}

func TestT18AToolReadsAndPatchesTheWorkingState(t *testing.T) {
	p := newPlace(t, journaltest.NATSOptions{})
	x := toolOf("remember", func(_ context.Context, c *executor.Invocation) (executor.Result, error) {
		return executor.Result{OK: true, Output: string(c.State()), Patch: field[jsontext.Value](t, c.Args, "patch")}, nil
	})
	x.DryRun = true
	restored := executor.Tool{Name: "restored", Description: "says it", Input: jsontext.Value(`{"type":"object"}`),
		Bind: func(_ context.Context, s executor.Session) (executor.Instance, error) {
			return executor.Instance{Run: func(context.Context, *executor.Invocation) (executor.Result, error) {
				return executor.Result{OK: s.Restored, Output: string(s.State())}, nil
			}}, nil
		}}
	tools := []executor.Tool{x, restored}
	n := p.node(tools)
	open(t, n.client, "s1")
	if a := n.call("s1", "new", "restored", `{}`); field[bool](t, a.Data, "ok") || field[string](t, a.Data, "output") != "" {
		t.Errorf("a new session is %s", a.Data)
	}
	for i, c := range []struct {
		args, sees string
		dry        bool
		want       schema.Kind
	}{
		{`{"patch":{"n":123456789012345678901234567890,"to":{"a":1}}}`, ``, false, ""},
		{`{"patch":{"to":{"a":null,"b":2}}}`, `{"n":123456789012345678901234567890,"to":{"a":1}}`, false, ""},
		{`{"patch":{"n":null}}`, `{"n":123456789012345678901234567890,"to":{"b":2}}`, true, ""}, // a dry run changes nothing
		{`{}`, `{"n":123456789012345678901234567890,"to":{"b":2}}`, false, ""},
		{`{"patch":{"big":"` + strings.Repeat("a", 300<<10) + `"}}`, `{"n":123456789012345678901234567890,"to":{"b":2}}`, false, ""}, // a blob
	} {
		req := executor.Request{CallID: fmt.Sprint("c", i), Name: "remember", Args: []byte(c.args), DryRun: c.dry}
		a, err := n.client.Call(within(t), "s1", req)
		if err != nil {
			t.Fatal(err)
		}
		wantKindOfResult(t, a.Data, c.want)
		if got := field[string](t, a.Data, "output"); got != c.sees {
			t.Errorf("%d: it sees %s, want %s", i, got, c.sees)
		}
	}
	var types []string
	for _, e := range p.read("s1").Events {
		types = append(types, e.Type)
	}
	for i, typ := range types {
		if typ == schema.TypeStateChanged && types[i-1] != schema.TypeToolResult {
			t.Errorf("the patch stands behind %s", types[i-1])
		}
	}
	// What it is goes on in the next process, which is told so.
	n.stop()
	n = p.node(tools)
	a := n.call("s1", "old", "restored", `{}`)
	if got := field[string](t, p.whole("s1", a.Data), "output"); !field[bool](t, a.Data, "ok") || !strings.HasPrefix(got, `{"big":"aaa`) || !strings.HasSuffix(got, `"to":{"b":2}}`) {
		t.Errorf("a session that was taken up is told as %.100s", a.Data)
	}
}

func TestT18APatchThatCannotBeRecorded(t *testing.T) {
	p := newPlace(t, journaltest.NATSOptions{})
	patches := func(name, patch string) executor.Tool {
		return toolOf(name, func(context.Context, *executor.Invocation) (executor.Result, error) {
			return executor.Result{OK: true, Patch: jsontext.Value(patch)}, nil
		})
	}
	n := p.node([]executor.Tool{patches("broken", `{"a":`), patches("huge", `{"a":"`+strings.Repeat("x", schema.MaxPatch)+`"}`)})
	open(t, n.client, "s1")
	for _, name := range []string{"broken", "huge"} {
		wantKindOfResult(t, n.call("s1", name, name, `{}`).Data, schema.ToolFailed)
	}
}

// A patch may be too long only once what is secret in it is replaced. The tool
// has taken effect, so its result is recorded, and says that something was left
// out.
func TestT18APatchThatRedactionMakesTooLong(t *testing.T) {
	p := newPlace(t, journaltest.NATSOptions{})
	var b strings.Builder
	for i := 0; b.Len() < schema.MaxPatch-64; i++ {
		fmt.Fprintf(&b, `,"%d":{"password":"abc123"}`, i)
	}
	patch := jsontext.Value("{" + b.String()[1:] + "}")
	n := p.node([]executor.Tool{toolOf("patches", func(context.Context, *executor.Invocation) (executor.Result, error) {
		return executor.Result{OK: true, Output: "done", Patch: patch}, nil
	})})
	open(t, n.client, "s1")
	data := n.call("s1", "c1", "patches", `{}`).Data
	if field[string](t, data, "output") != "done" || !strings.Contains(string(data), `"policy":"left_out"`) {
		t.Errorf("the result is %.300s", data)
	}
	if types := p.types("s1"); slices.Contains(types, schema.TypeStateChanged) {
		t.Errorf("the log has %v", types)
	}
}

func TestT12ADryRunOfAToolThatKnowsNone(t *testing.T) {
	p := newPlace(t, journaltest.NATSOptions{})
	var runs notes
	x := toolOf("launch", func(context.Context, *executor.Invocation) (executor.Result, error) {
		runs.add("run")
		return executor.Result{OK: true}, nil
	})
	n := p.node([]executor.Tool{x, counting("count", &runs)})
	open(t, n.client, "s1")
	for _, name := range []string{"launch", "count"} {
		a, err := n.client.Call(within(t), "s1", executor.Request{CallID: name, Name: name, Args: []byte(`{ "at": 1e400 }`), DryRun: true})
		if err != nil {
			t.Fatal(err)
		}
		if got := string(field[jsontext.Value](t, a.Data, "structured")); got != `{"tool":"`+name+`","args":{"at":1e400}}` ||
			field[string](t, a.Data, "output") != "would call "+name+` with {"at":1e400}` || !field[bool](t, a.Data, "ok") {
			t.Errorf("the plan is %s", a.Data)
		}
	}
	if slices.Contains(runs.all(), "run") {
		t.Error("it ran")
	}
}

func TestT10ArtifactsAreRecorded(t *testing.T) {
	p := newPlace(t, journaltest.NATSOptions{})
	makes := func(name, artifacts string) executor.Tool {
		return toolOf(name, func(context.Context, *executor.Invocation) (executor.Result, error) {
			return executor.Result{OK: true, Artifacts: jsontext.Value(artifacts)}, nil
		})
	}
	n := p.node([]executor.Tool{makes("some", `[ {"uri":"file:///a"} ]`), makes("huge", `["`+strings.Repeat("x", 65<<10)+`"]`)})
	open(t, n.client, "s1")
	if a := n.call("s1", "c1", "some", `{}`); string(field[jsontext.Value](t, a.Data, "artifacts")) != `[{"uri":"file:///a"}]` {
		t.Errorf("recorded is %s", a.Data)
	}
	if a := n.call("s1", "c2", "huge", `{}`); field[jsontext.Value](t, a.Data, "artifacts") != nil || field[map[string]any](t, a.Data, "truncated")["policy"] != "left_out" {
		t.Errorf("recorded is %s", a.Data)
	}
}
