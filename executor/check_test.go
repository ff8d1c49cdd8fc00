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
	n := p.idle(tools)
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
