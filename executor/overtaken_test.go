package executor_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"steno/executor"
	"steno/journal/journaltest"
	"steno/schema"
)

// Who repeats a call that waits does not make it: the tool gets the key and the
// context that were recorded and decided about. Where those are hidden in the
// record, a repeat with others is another call.
func TestT17ARepeatChangesNothingOfACallThatWaits(t *testing.T) {
	for what, c := range map[string]struct {
		args, key, context string // of the call
		otherKey, other    string // of the repeat
		kind               schema.Kind
	}{
		"plain":                {args: `{"a":1}`, key: "k1", context: `{"user":"alice"}`, otherKey: "k2", other: `{"user":"eve"}`},
		"none in the repeat":   {args: `{"a":1}`, key: "k1", context: `{"user":"alice"}`},
		"with a secret":        {args: `{"password":"hunter2hunter2"}`, key: "k1", context: `{"user":"alice"}`, otherKey: "k2", other: `{"user":"eve"}`},
		"a hidden context":     {args: `{"a":1}`, key: "k1", context: `{"token":"hunter2hunter2"}`, otherKey: "k1", other: `{"token":"hunter2hunter3"}`, kind: schema.CallConflict},
		"around what is there": {args: `{"a":1}`, key: "k1", context: `{"user":"alice","token":"hunter2hunter2"}`, otherKey: "k1", other: `{"user":"eve","token":"hunter2hunter2"}`, kind: schema.CallConflict},
		"a hidden key":         {args: `{"a":1}`, key: madeKey, context: `{"user":"alice"}`, otherKey: madeKey + "x", other: `{"user":"alice"}`, kind: schema.CallConflict},
		"the same, all hidden": {args: `{"password":"hunter2hunter2"}`, key: madeKey, context: `{"token":"hunter2hunter2"}`, otherKey: madeKey, other: `{"token":"hunter2hunter2"}`},
	} {
		t.Run(what, func(t *testing.T) {
			p := newPlace(t, journaltest.NATSOptions{})
			got := make(chan string, 4)
			act := toolOf("act", func(_ context.Context, c *executor.Invocation) (executor.Result, error) {
				got <- c.Key + string(c.Context) + string(c.Args)
				return executor.Result{OK: true}, nil
			})
			n := p.node([]executor.Tool{act}, withPolicy(t, asking))
			n.open("s1")
			r := request("c1", "act", c.args)
			r.Key, r.Context = c.key, jsontext.Value(c.context)
			ctx, stop := context.WithCancel(within(t))
			gone := make(chan struct{})
			go func() { n.client.Call(ctx, "s1", r); close(gone) }()
			q := n.question("s1", "c1")
			stop()
			<-gone
			n.stop()
			n = p.node([]executor.Tool{act}, withPolicy(t, asking))
			if r.Key, r.Context = c.otherKey, nil; c.other != "" {
				r.Context = jsontext.Value(c.other)
			}
			n.mustAnswer(q, "allow")
			a, err := n.client.Call(within(t), "s1", r)
			if c.kind != "" {
				// Without what is hidden it never ran from the record; with another value neither.
				if err == nil && kindOfResult(t, a.Data) == "" || err != nil && !errors.Is(err, c.kind) || len(got) > 0 {
					t.Errorf("it is answered with %s, %v", a.Data, err)
				}
				return
			}
			if err != nil || kindOfResult(t, a.Data) != "" {
				t.Fatalf("it is answered with %s, %v", a.Data, err)
			}
			if now := <-got; now != c.key+c.context+c.args {
				t.Errorf("the tool got %s", now)
			}
		})
	}
}

// An attempt whose call has got a genuine result meanwhile is answered with that,
// and what it says itself is kept.
func TestARetryThatIsOvertakenIsNoted(t *testing.T) {
	p := newPlace(t, journaltest.NATSOptions{})
	begun, first, second := make(chan struct{}, 2), make(chan struct{}), make(chan struct{})
	act := toolOf("act", func(_ context.Context, c *executor.Invocation) (executor.Result, error) {
		begun <- struct{}{}
		if c.Attempt == 1 {
			<-first
		} else {
			<-second
		}
		return executor.Result{OK: true, Output: fmt.Sprint("from attempt ", c.Attempt)}, nil
	})
	act.Timeout = 2 * time.Second
	n := p.asking(act)
	n.open("s1")
	wantKindOfResult(t, n.call("s1", "c1", "act", `{}`).Data, schema.Timeout)
	type answer struct {
		executor.Answer
		err error
	}
	retried := make(chan answer, 1)
	go func() {
		a, err := n.client.Resolve(within(t), executor.ResolveRequest{Session: "s1", CallID: "c1", As: "retry", By: "ada", Reason: "r"})
		retried <- answer{a, err}
	}()
	<-begun
	<-begun
	close(first)
	eventually(t, "the late result", func() bool { return strings.Contains(string(p.result("s1", "c1")), "from attempt 1") })
	close(second)
	if a := <-retried; a.err != nil || field[string](t, a.Data, "output") != "from attempt 1" {
		t.Errorf("the retry is answered with %s, %v", a.Data, a.err)
	}
	if note, _ := p.last("s1", schema.TypeNote); !strings.Contains(string(note), "from attempt 2") {
		t.Errorf("of the retry stays %s", note)
	}
}

// While a tool is asked what became of an attempt, that attempt's own result may
// come: then it counts, and nothing runs again, whatever the tool says.
func TestALateResultCountsBesideACheck(t *testing.T) {
	p := newPlace(t, journaltest.NATSOptions{})
	p.leave("s1", journaltest.Call("c1", "once", `{}`), decided("c1", "allow"), journaltest.Started("c1", 1))
	at := p.read("s1").State.Call("c1").Attempts[0]
	count, asked, told := newCounter(false), make(chan struct{}), make(chan struct{})
	tool := count.tool("once", false)
	tool.Check = func(context.Context, *executor.Invocation) (executor.Checked, error) {
		close(asked)
		<-told
		return executor.Checked{}, nil // it did nothing
	}
	n := p.asking(tool)
	result := make(chan executor.Answer, 1)
	go func() { result <- n.call("s1", "c1", "once", `{}`) }()
	wait(t, "the check", asked)
	_, err := ask(t, n.conn, "steno.v1.to."+n.holder+".result.s1", fmt.Sprintf(`{"session":"s1","call_id":"c1","attempt":1,"epoch":%d,"seq":%d,"data":`+
		`{"call_id":"c1","attempt":1,"ok":true,"output":"it took effect","duration_us":7}}`, at.Epoch, at.Seq))
	if err != nil {
		t.Fatal(err)
	}
	close(told)
	if a := <-result; field[string](t, a.Data, "output") != "it took effect" || count.of("c1") != 0 {
		t.Errorf("it ran %d times and is answered with %s", count.of("c1"), a.Data)
	}
}

// What is cancelled before it began has done nothing, so there is nothing to
// settle, and its id stays taken.
func TestWhatIsCancelledBeforeItBeganIsSettled(t *testing.T) {
	p := newPlace(t, journaltest.NATSOptions{})
	n := p.node([]executor.Tool{newCounter(false).tool("act", false)}, withPolicy(t, asking))
	n.open("s1")
	_, result := n.asked("s1", "c1", "act", `{}`)
	n.cancel("s1", "c1", "not needed")
	a := <-result
	wantKindOfResult(t, a.Data, schema.Cancelled)
	if next := string(a.Data); !strings.Contains(next, "new call id") || p.read("s1").State.Call("c1").Result.Open() {
		t.Errorf("the result is %s", next)
	}
	if _, err := n.client.Resolve(within(t), executor.ResolveRequest{Session: "s1", CallID: "c1", As: "retry", By: "ada", Reason: "r"}); !errors.Is(err, schema.ResultConflict) {
		t.Errorf("to settle it gives %v", err)
	}
}

// What a session admits is told by the policy that its next call would go by.
func TestT6ToolsAreToldByThePolicyThatIsBrought(t *testing.T) {
	p := newPlace(t, journaltest.NATSOptions{})
	act := newCounter(false).tool("act", false)
	n := p.node([]executor.Tool{act}, withPolicy(t, "version: 1\nmode: read_only\n"))
	n.open("s1")
	names := func() int {
		a, err := n.client.Tools(within(t), executor.ToolsRequest{Session: "s1"})
		if err != nil {
			t.Fatal(err)
		}
		return len(a.Tools)
	}
	wantKindOfResult(t, n.call("s1", "c1", "act", `{}`).Data, schema.WritePolicyDenied)
	before := names()
	n.stop()
	n = p.node([]executor.Tool{act}, withPolicy(t, "version: 1\nmode: auto\n"))
	now := names()
	wantKindOfResult(t, n.call("s1", "c2", "act", `{}`).Data, "")
	if now != 1 || names() != 1 || before > 1 {
		t.Errorf("%d tools were told before, then %d, and %d after a call", before, now, names())
	}
}

// A dry run of a tool that knows none makes nothing for it.
func TestT12ADryRunBindsNothing(t *testing.T) {
	p := newPlace(t, journaltest.NATSOptions{})
	tool := newCounter(false).tool("act", false)
	tool.Run = nil
	tool.Bind = func(context.Context, executor.Session) (executor.Instance, error) {
		t.Error("it is bound")
		return executor.Instance{}, errors.New("no")
	}
	n := p.node([]executor.Tool{tool})
	n.open("s1")
	r := request("c1", "act", `{}`)
	r.DryRun = true
	a, err := n.client.Call(within(t), "s1", r)
	if err != nil || !strings.Contains(field[string](t, a.Data, "output"), "would call act") {
		t.Errorf("it is answered with %s, %v", a.Data, err)
	}
}
