package executor_test

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"steno/executor"
	"steno/journal/journaltest"
	"steno/schema"
)

// background makes a call and gives its answer when there is one.
func (n *node) background(session, id, tool string) <-chan executor.Answer {
	answer := make(chan executor.Answer, 1)
	go func() {
		a, err := n.client.Call(within(n.t), session, request(id, tool, `{}`))
		if err != nil {
			n.t.Errorf("call %s: %v", id, err)
		}
		answer <- a
	}()
	return answer
}

func (n *node) cancel(session, id, reason string) executor.Answer {
	n.t.Helper()
	a, err := n.client.Cancel(within(n.t), executor.CancelRequest{Session: session, CallID: id, By: "user ada", Reason: reason})
	if err != nil {
		n.t.Fatalf("cancel %s: %v", id, err)
	}
	return a
}

// stubborn is a tool that does not stop when it is told to.
type stubborn struct {
	begun  chan string
	let    chan struct{} // closed to let it return
	answer executor.Result
}

func (s *stubborn) tool(timeout time.Duration) executor.Tool {
	t := toolOf("stubborn", func(_ context.Context, c *executor.Invocation) (executor.Result, error) {
		s.begun <- c.CallID
		<-s.let
		return s.answer, nil
	})
	t.Timeout = timeout
	return t
}

func newStubborn() *stubborn {
	return &stubborn{begun: make(chan string, 10), let: make(chan struct{}), answer: executor.Result{OK: true, Output: "at last"}}
}

func TestT23ACancelledCallSaysByWhomAndWhy(t *testing.T) {
	p := newPlace(t, journaltest.NATSOptions{})
	held := newCounter(true)
	n := p.node([]executor.Tool{held.tool("held", false), echo})
	n.open("s1")
	asked := n.background("s1", "c1", "held")
	wait(t, "the tool", held.begun)
	a := n.cancel("s1", "c1", "the wrong branch")
	wantKindOfResult(t, a.Data, schema.Cancelled)
	if field[string](t, a.Data, "by") != "user ada" || field[string](t, a.Data, "reason") != "the wrong branch" || field[int](t, a.Data, "attempt") != 1 {
		t.Errorf("the result is %s", a.Data)
	}
	p.wantRecorded("s1", a)
	for what, other := range map[string]executor.Answer{
		"who asked for it": wait(t, "the answer", asked),
		"a repeat":         n.call("s1", "c1", "held", `{}`),
		"a second cancel":  n.cancel("s1", "c1", "once more"),
	} {
		if string(other.Data) != string(a.Data) {
			t.Errorf("%s gets %s, want %s", what, other.Data, a.Data)
		}
	}
	if held.of("c1") != 1 {
		t.Errorf("the tool ran %d times", held.of("c1"))
	}
	// What has a result keeps it; what is not there is said so.
	done := n.call("s1", "c2", "echo", `{}`)
	if a := n.cancel("s1", "c2", ""); string(a.Data) != string(done.Data) {
		t.Errorf("a finished call is cancelled with %s", a.Data)
	}
	_, err := n.client.Cancel(within(t), executor.CancelRequest{Session: "s1", CallID: "c3", By: "user ada"})
	wantErr(t, err, schema.NotFound)
	_, err = n.client.Cancel(within(t), executor.CancelRequest{Session: "s1", CallID: "c2"})
	wantErr(t, err, schema.InvalidArgs)
}

func TestT28ACallThatWaitsForASlotCanBeCancelled(t *testing.T) {
	p := newPlace(t, journaltest.NATSOptions{})
	held := newCounter(true)
	n := p.node([]executor.Tool{held.tool("held", false)}, func(c *executor.Config) { c.SessionCalls = 1 })
	n.open("s1")
	first := n.background("s1", "c1", "held")
	wait(t, "the tool", held.begun)
	second := n.background("s1", "c2", "held")
	eventually(t, "the cancellation of a call that waits", func() bool { // it may not have come in yet
		_, err := n.client.Cancel(within(t), executor.CancelRequest{Session: "s1", CallID: "c2", By: "user ada"})
		return err == nil
	})
	a := wait(t, "the answer", second)
	wantKindOfResult(t, a.Data, schema.Cancelled)
	p.wantRecorded("s1", a)
	c := p.read("s1").State.Call("c2")
	if len(c.Attempts) != 0 || len(c.Decisions) != 1 || c.Decisions[0].Decision != "deny" || c.Decisions[0].Gate != "cancel" || c.Decisions[0].By != "human" || held.of("c2") != 0 {
		t.Errorf("the call is recorded as %+v and ran %d times", c, held.of("c2"))
	}
	close(held.hold)
	wantKindOfResult(t, wait(t, "the answer", first).Data, "")
}

func TestT23WhatAToolHasDoneStandsWhenItIsCancelled(t *testing.T) {
	p := newPlace(t, journaltest.NATSOptions{})
	begun := make(chan struct{}, 2)
	n := p.node([]executor.Tool{toolOf("done", func(ctx context.Context, _ *executor.Invocation) (executor.Result, error) {
		begun <- struct{}{}
		<-ctx.Done()
		return executor.Result{OK: true, Output: "made it"}, nil
	}), toolOf("failed", func(ctx context.Context, _ *executor.Invocation) (executor.Result, error) {
		begun <- struct{}{}
		<-ctx.Done()
		return executor.Result{}, schema.Errorf(schema.NoMatch, "it is not there")
	})})
	n.open("s1")
	for tool, kind := range map[string]schema.Kind{"done": "", "failed": schema.NoMatch} {
		asked := n.background("s1", tool, tool)
		wait(t, "the tool", begun)
		a := n.cancel("s1", tool, "")
		wantKindOfResult(t, a.Data, kind)
		if by := field[string](t, a.Data, "by"); by != "" {
			t.Errorf("the tool's own result is by %s", by)
		}
		if other := wait(t, "the answer", asked); string(other.Data) != string(a.Data) {
			t.Errorf("who asked for it gets %s", other.Data)
		}
	}
}

// A tool that does not stop keeps its slot, and nobody waits for it. What it says
// in the end takes the place of the open result.
func TestT23AToolThatIgnoresItsDeadline(t *testing.T) {
	for _, why := range []schema.Kind{schema.Timeout, schema.Cancelled} {
		t.Run(string(why), func(t *testing.T) {
			p := newPlace(t, journaltest.NATSOptions{})
			s, timeout := newStubborn(), time.Duration(0)
			if why == schema.Timeout {
				timeout = 20 * time.Millisecond
			}
			n := p.idle([]executor.Tool{s.tool(timeout), echo}, func(c *executor.Config) { c.SessionCalls = 1 })
			executor.SetStopWait(n.Executor, 20*time.Millisecond)
			if err := n.Start(context.Background()); err != nil {
				t.Fatal(err)
			}
			n.open("s1")
			asked := n.background("s1", "c1", "stubborn")
			wait(t, "the tool", s.begun)
			if why == schema.Cancelled {
				n.cancel("s1", "c1", "enough")
			}
			a := wait(t, "the answer", asked)
			wantKindOfResult(t, a.Data, why)
			if d := field[schema.ErrorBody](t, a.Data, "error").Details["detached"]; d != true {
				t.Errorf("the result is %s", a.Data)
			}
			p.wantRecorded("s1", a)
			// Its slot is taken until it returns.
			next := n.background("s1", "c2", "echo")
			if again := n.call("s1", "c1", "stubborn", `{}`); string(again.Data) != string(a.Data) {
				t.Errorf("a repeat gets %s", again.Data)
			}
			if c := p.read("s1").State.Call("c2"); c != nil {
				t.Errorf("a call runs beside a tool that has the only slot: %+v", c)
			}
			close(s.let)
			wantKindOfResult(t, wait(t, "the next answer", next).Data, "")
			l := p.read("s1")
			c := l.State.Call("c1")
			if !c.Result.OK || len(c.Superseded) != 1 || len(c.Attempts) != 1 || c.Result.Open() {
				t.Errorf("the call ends as %+v with %+v", c, c.Result)
			}
			late := n.call("s1", "c1", "stubborn", `{}`)
			if field[string](t, late.Data, "output") != "at last" || field[string](t, late.Data, "reason") != "late" || field[uint64](t, late.Data, "supersedes") != c.Superseded[0] {
				t.Errorf("the late result is %s", late.Data)
			}
		})
	}
}

// Whatever is decided about a call whose tool still runs stands; what the tool
// says then is noted.
func TestALateResultOfAGenuineOneIsANote(t *testing.T) {
	p := newPlace(t, journaltest.NATSOptions{})
	s := newStubborn()
	n := p.idle([]executor.Tool{s.tool(time.Millisecond), echo}, func(c *executor.Config) { c.SessionCalls = 1 })
	executor.SetStopWait(n.Executor, time.Millisecond)
	if err := n.Start(context.Background()); err != nil {
		t.Fatal(err)
	}
	n.open("s1")
	wantKindOfResult(t, n.call("s1", "c1", "stubborn", `{}`).Data, schema.Timeout)
	a := n.resolve("s1", "c1", executor.AsFailed, "nothing came")
	wantKindOfResult(t, a.Data, schema.ToolFailed)
	close(s.let)
	n.call("s1", "c2", "echo", `{}`) // it has the slot
	if again := n.call("s1", "c1", "stubborn", `{}`); string(again.Data) != string(a.Data) {
		t.Errorf("the decision has become %s", again.Data)
	}
	notes := 0
	for _, e := range p.read("s1").Events {
		if e.Type == schema.TypeNote {
			notes++
			if r := field[jsontext.Value](t, e.Data, "result"); field[string](t, r, "output") != "at last" || field[string](t, e.Data, "call_id") != "c1" {
				t.Errorf("the note is %s", e.Data)
			}
		}
	}
	if notes != 1 {
		t.Errorf("%d notes", notes)
	}
}

// Whichever executor gets it, a cancellation comes to the holder.
func TestACancellationIsPassedOnToTheHolder(t *testing.T) {
	p := newPlace(t, journaltest.NATSOptions{})
	held := newCounter(true)
	tools := []executor.Tool{held.tool("held", false)}
	a, b := p.node(tools), p.node(tools)
	for i := range 8 {
		session := fmt.Sprint("s", i)
		a.open(session)
		asked := a.background(session, "c1", "held")
		wait(t, "the tool", held.begun)
		answer := b.cancel(session, "c1", "")
		wantKindOfResult(t, answer.Data, schema.Cancelled)
		wait(t, "the answer", asked)
		resolved := b.resolve(session, "c1", executor.AsSucceeded, "it is there")
		if !field[bool](t, resolved.Data, "ok") {
			t.Errorf("it is resolved as %s", resolved.Data)
		}
	}
}

// Calls of exclusive tools do not overlap, and those that wait for each other
// hold no slot.
func TestT20ExclusiveToolsDoNotOverlap(t *testing.T) {
	p := newPlace(t, journaltest.NATSOptions{})
	var running, most atomic.Int32
	begun, let := make(chan string, 10), make(chan struct{})
	alone := func(name string) executor.Tool {
		tool := toolOf(name, func(_ context.Context, c *executor.Invocation) (executor.Result, error) {
			most.Store(max(most.Load(), running.Add(1)))
			defer running.Add(-1)
			begun <- c.CallID
			<-let
			return executor.Result{OK: true}, nil
		})
		tool.Exclusive = true
		return tool
	}
	n := p.node([]executor.Tool{alone("one"), alone("two"), echo}, func(c *executor.Config) { c.SessionCalls = 2 })
	n.open("s1")
	n.open("s2")
	first := n.background("s1", "c1", "one")
	wait(t, "the first", begun)
	var others []<-chan executor.Answer
	for i, tool := range []string{"one", "two", "two"} {
		others = append(others, n.background("s1", fmt.Sprint("d", i), tool))
	}
	// Others run beside it, and so does another session.
	for i := range 5 {
		n.call("s1", fmt.Sprint("e", i), "echo", `{}`)
	}
	beside := n.background("s2", "c1", "two")
	if id := wait(t, "the other session", begun); id != "c1" || most.Load() != 2 {
		t.Errorf("%s has begun, and %d run at once", id, most.Load())
	}
	// One that waits can be cancelled.
	eventually(t, "the cancellation of a call that waits", func() bool { // it may not have come in yet
		_, err := n.client.Cancel(within(t), executor.CancelRequest{Session: "s1", CallID: "d0", By: "user ada"})
		return err == nil
	})
	wantKindOfResult(t, wait(t, "the cancelled one", others[0]).Data, schema.Cancelled)
	close(let)
	for _, a := range append(others[1:], first, beside) {
		wantKindOfResult(t, wait(t, "an answer", a).Data, "")
	}
	if most.Load() != 2 { // one of each session
		t.Errorf("%d ran at once", most.Load())
	}
}
