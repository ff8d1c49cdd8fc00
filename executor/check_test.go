package executor_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"steno/executor"
	"steno/journal"
	"steno/journal/journaltest"
	"steno/schema"
)

// asking starts an executor that asks checks soon.
func (p *place) asking(tools ...executor.Tool) *node {
	p.t.Helper()
	return p.askingWith(func(*executor.Config) {}, tools...)
}

func (p *place) askingWith(change func(*executor.Config), tools ...executor.Tool) *node {
	p.t.Helper()
	n := p.idle(tools, change)
	executor.SetStopWait(n.Executor, time.Millisecond)
	if err := n.Start(context.Background()); err != nil {
		p.t.Fatal(err)
	}
	return n
}

func TestAToolIsAskedWhatBecameOfAnAttempt(t *testing.T) {
	type checked = executor.Checked
	did := executor.Result{OK: true, Output: "one mail"}
	for what, c := range map[string]struct {
		check            func() (checked, error)
		readOnly, dryRun bool
		runs, attempt    int
		kind             schema.Kind
		output, by       string
	}{
		"it took effect":     {check: func() (checked, error) { return checked{true, did}, nil }, attempt: 1, output: "one mail", by: "check"},
		"it did not":         {check: func() (checked, error) { return checked{}, nil }, runs: 1, attempt: 2, output: "c1, attempt 2"},
		"it cannot tell":     {check: func() (checked, error) { return checked{true, did}, errors.New("who knows") }, attempt: 1, kind: schema.Interrupted},
		"it panics":          {check: func() (checked, error) { panic("no") }, attempt: 1, kind: schema.Interrupted},
		"there is none":      {attempt: 1, kind: schema.Interrupted},
		"it reads only":      {readOnly: true, runs: 1, attempt: 2, output: "c1, attempt 2"},
		"it was a dry run":   {check: func() (checked, error) { panic("it is not asked") }, dryRun: true, runs: 1, attempt: 2, output: "c1, attempt 2"},
		"reads, and is told": {check: func() (checked, error) { return checked{true, did}, nil }, readOnly: true, attempt: 1, output: "one mail", by: "check"},
	} {
		t.Run(what, func(t *testing.T) {
			p := newPlace(t, journaltest.NATSOptions{})
			call := journaltest.Call("c1", "once", `{"to":"ada"}`)
			if c.dryRun {
				var o schema.Object
				call = journal.Entry{Type: schema.TypeToolCall, Data: o.Text("call_id", "c1").Text("name", "once").Raw("args", []byte(`{"to":"ada"}`)).
					Text("args_sha256", field[string](t, call.Data, "args_sha256")).Bool("dry_run", true).Bytes()}
			}
			p.leave("s1", call, decided("c1", "allow"), journaltest.Started("c1", 1))
			count := newCounter(false)
			tool := count.tool("once", false)
			tool.ReadOnly, tool.DryRun = c.readOnly, c.dryRun
			if c.check != nil {
				tool.Check = func(_ context.Context, inv *executor.Invocation) (checked, error) {
					if inv.Attempt != 1 || inv.Key != "c1" || string(inv.Args) != `{"to":"ada"}` || inv.Epoch != 1 || inv.Seq == 0 {
						t.Errorf("the check is told %+v", inv)
					}
					return c.check()
				}
			}
			n := p.asking(tool)
			a, err := n.client.Call(within(t), "s1", executor.Request{CallID: "c1", Name: "once", Args: []byte(`{"to":"ada"}`), DryRun: c.dryRun})
			if err != nil {
				t.Fatal(err)
			}
			p.wantRecorded("s1", a)
			wantKindOfResult(t, a.Data, c.kind)
			if count.of("c1") != c.runs || field[int](t, a.Data, "attempt") != c.attempt || field[string](t, a.Data, "output") != c.output || field[string](t, a.Data, "by") != c.by {
				t.Errorf("the tool ran %d times and the call is answered with %s", count.of("c1"), a.Data)
			}
			if starts := p.steps("s1", 0); slices.Contains(starts, "tool_started c1 2") != (c.attempt == 2) {
				t.Errorf("the log has %q", starts)
			}
		})
	}
}

// Where the last holder may live its tool may be at work, whatever a check says.
func TestNoToolIsAskedAfterAForcedTakeOver(t *testing.T) {
	p := newPlace(t, journaltest.NATSOptions{})
	first := journaltest.OpenWith(t, p.store(), "s1", journaltest.Options())
	journaltest.Append(t, first, journaltest.Call("c1", "once", `{}`), decided("c1", "allow"), journaltest.Started("c1", 1))
	opt := journaltest.Options()
	opt.Force, opt.By, opt.Reason = true, "user ada", "it hangs"
	journaltest.Release(t, journaltest.OpenWith(t, p.store(), "s1", opt))
	first.Close()
	tool := newCounter(false).tool("once", false)
	tool.Check = func(context.Context, *executor.Invocation) (executor.Checked, error) {
		t.Error("it is asked")
		return executor.Checked{}, nil
	}
	n := p.asking(tool)
	wantKindOfResult(t, n.call("s1", "c1", "once", `{}`).Data, schema.Interrupted)
}

// A check holds up nobody but its own call, and can be given up.
func TestNewCallsDoNotWaitForACheck(t *testing.T) {
	p := newPlace(t, journaltest.NATSOptions{})
	p.leave("s1", journaltest.Call("c1", "once", `{}`), decided("c1", "allow"), journaltest.Started("c1", 1))
	count, asked := newCounter(false), make(chan struct{})
	tool := count.tool("once", false)
	tool.Check = func(ctx context.Context, _ *executor.Invocation) (executor.Checked, error) {
		close(asked)
		<-ctx.Done()
		return executor.Checked{}, ctx.Err()
	}
	n := p.asking(tool, echo)
	n.call("s1", "c2", "echo", `{}`)
	wait(t, "the check", asked)
	a := n.cancel("s1", "c1", "no time")
	wantKindOfResult(t, a.Data, schema.Cancelled)
	if field[int](t, a.Data, "attempt") != 1 || count.of("c1") != 0 {
		t.Errorf("the call is answered with %s and ran %d times", a.Data, count.of("c1"))
	}
	p.wantRecorded("s1", a)
}

// What a person allows is one attempt of a tool that must not run twice, whatever
// the tool says of that one.
func TestAnAllowIsForOneAttempt(t *testing.T) {
	p := newPlace(t, journaltest.NATSOptions{})
	count := newCounter(false)
	tools := []executor.Tool{count.tool("once", false), count.tool("again", true)}
	tools[0].Check = func(context.Context, *executor.Invocation) (executor.Checked, error) { return executor.Checked{}, nil }
	var left []journal.Entry
	for id, tool := range map[string]string{"allowed": "once", "denied": "once", "repeatable": "again"} {
		var ask, d schema.Object
		left = append(left, journaltest.Call(id, tool, `{}`),
			journal.Entry{Type: schema.TypeApprovalRequested, Data: ask.Text("call_id", id).Text("approval_id", "first-"+id).Text("reason", "t").Bytes()},
			journal.Entry{Type: schema.TypeDecision, Data: d.Text("call_id", id).Text("decision", "allow").Text("gate", "approval").Text("by", "human").Text("approval_id", "first-"+id).Bytes()},
			journaltest.Started(id, 1))
	}
	p.leave("s1", left...)
	n := p.askingWith(withPolicy(t, asking), tools...)
	for _, id := range []string{"allowed", "denied"} {
		n.call("s1", "repeatable", "again", `{}`) // it was allowed, and asks nobody
		q := n.question("s1", id)
		if count.of(id) != 0 || q.ApprovalID == "first-"+id {
			t.Errorf("%s has run %d times, and %s is asked", id, count.of(id), q.ApprovalID)
		}
		n.mustAnswer(q, map[string]string{"allowed": "allow", "denied": "deny"}[id])
	}
	wantKindOfResult(t, n.call("s1", "allowed", "once", `{}`).Data, "")
	wantKindOfResult(t, n.call("s1", "denied", "once", `{}`).Data, schema.ApprovalDenied)
	for id, runs := range map[string]int{"allowed": 1, "denied": 0, "repeatable": 1} {
		if count.of(id) != runs {
			t.Errorf("%s has run %d times, want %d", id, count.of(id), runs)
		}
	}
}
