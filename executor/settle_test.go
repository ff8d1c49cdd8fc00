package executor_test

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"steno/executor"
	"steno/journal"
	"steno/journal/journaltest"
	"steno/replay"
	"steno/schema"
)

// leave writes what an executor that died has left of a session.
func (p *place) leave(session string, entries ...journal.Entry) {
	p.t.Helper()
	j := journaltest.OpenWith(p.t, p.store(), session, journaltest.Options())
	journaltest.Append(p.t, j, entries...)
	if err := j.Close(); err != nil { // without a word
		p.t.Fatal(err)
	}
}

// decided is the permission of a call.
func decided(id, decision string) journal.Entry {
	var o schema.Object
	return journal.Entry{Type: schema.TypeDecision, Data: o.Text("call_id", id).Text("decision", decision).Text("gate", "mode").Text("by", "auto").Bytes()}
}

// steps are the events of calls behind a seq, as "type call attempt kind".
func (p *place) steps(session string, after uint64) (steps []string) {
	p.t.Helper()
	for _, e := range p.read(session).Events {
		if id := field[string](p.t, e.Data, "call_id"); id != "" && e.Seq > after {
			step := fmt.Sprint(e.Type, " ", id)
			if e.Type == schema.TypeToolStarted || e.Type == schema.TypeToolResult {
				step += fmt.Sprint(" ", field[int](p.t, e.Data, "attempt"))
			}
			if k := field[schema.ErrorBody](p.t, e.Data, "error").Kind; k != "" {
				step += " " + string(k)
			}
			steps = append(steps, step)
		}
	}
	return steps
}

func TestOpenCallsAreSettledInOrderBeforeNewOnes(t *testing.T) {
	p := newPlace(t, journaltest.NATSOptions{})
	p.leave("s1",
		journaltest.Call("answered", "once", `{}`), journaltest.Started("answered", 1), journaltest.Result("answered", 1, `"kept"`),
		journaltest.Call("started", "once", `{}`), decided("started", "allow"), journaltest.Started("started", 1),
		journaltest.Call("repeatable", "again", `{}`), decided("repeatable", "allow"), journaltest.Started("repeatable", 1), journaltest.Started("repeatable", 2),
		journaltest.Call("recorded", "once", `{}`),
		journaltest.Call("decided", "again", `{}`), decided("decided", "allow"),
		journaltest.Call("unknown", "none", `{}`),
		journaltest.Call("unknown-started", "none", `{}`), journaltest.Started("unknown-started", 1),
		journaltest.Call("invalid", "strict", `{"a":"x"}`),
	)
	left := p.read("s1").Head.Seq
	count := newCounter(false)
	strict := count.tool("strict", false)
	strict.Input = []byte(`{"type":"object","properties":{"a":{"type":"integer"}}}`)
	tools := []executor.Tool{count.tool("once", false), count.tool("again", true), strict}
	n := p.node(tools)
	n.call("s1", "new", "once", `{}`)
	n.stop()

	// The settlement of each call begins before that of the next; the tools run
	// side by side, so their results come as they finish.
	steps := p.steps("s1", left)
	var begun []string
	for _, s := range steps {
		if s != "tool_result repeatable 3" && s != "tool_result recorded 1" && s != "tool_result decided 1" {
			begun = append(begun, s)
		}
	}
	want := []string{
		"tool_result started 1 interrupted",
		"tool_started repeatable 3",
		"permission_decision recorded", "tool_started recorded 1",
		"tool_started decided 1",
		"tool_result invalid 0 invalid_args",
		"tool_call new", "permission_decision new", "tool_started new 1", "tool_result new 1",
	}
	if !slices.Equal(begun, want) || len(steps) != len(want)+3 {
		t.Errorf("the calls were settled by\n%q\nwant\n%q", begun, want)
	}
	l := p.read("s1")
	if open := l.State.Open(); len(open) != 2 || open[0].ID != "unknown" || open[1].ID != "unknown-started" {
		t.Errorf("%d calls are still open", len(open))
	}
	for id, runs := range map[string]int{"answered": 0, "started": 0, "repeatable": 1, "recorded": 1, "decided": 1, "unknown": 0, "invalid": 0, "new": 1} {
		if got := count.of(id); got != runs {
			t.Errorf("the tool of %s ran %d times, want %d", id, got, runs)
		}
	}
	for _, e := range l.Events {
		if e.Type == schema.TypeToolStarted && field[int](t, e.Data, "attempt") == 3 && field[int](t, e.Data, "possibly_running") != 2 {
			t.Errorf("the third attempt is %s", e.Data)
		}
		if e.Type == schema.TypeToolResult && field[string](t, e.Data, "call_id") == "started" {
			next, _ := field[schema.ErrorBody](t, e.Data, "error").Details["next"].(string)
			if !field[bool](t, e.Data, "synthetic") || !strings.Contains(next, "steno calls resolve s1 started --reason WHY") {
				t.Errorf("the interrupted call has the result %s", e.Data)
			}
		}
	}

	// Doing it again changes nothing but the epochs.
	calls := marshal(t, l.State.Calls)
	for range 2 {
		n = p.node(tools)
		n.call("s1", "new", "once", `{}`)
		n.stop()
	}
	again := p.read("s1")
	if got := marshal(t, again.State.Calls); got != calls {
		t.Errorf("settling again has changed the calls to\n%s\nfrom\n%s", got, calls)
	}
	if got, want := len(again.State.Epochs), len(l.State.Epochs)+2; got != want {
		t.Errorf("%d epochs, want %d", got, want)
	}
	if a := p.result("s1", "answered"); field[string](t, a, "output") != "kept" {
		t.Errorf("an answered call has the result %s", a)
	}
}

func marshal(t *testing.T, calls []*replay.Call) string {
	t.Helper()
	b, err := json.Marshal(calls)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func TestASettledCallCanBeAskedForWhileItRuns(t *testing.T) {
	p := newPlace(t, journaltest.NATSOptions{})
	p.leave("s1", journaltest.Call("c1", "held", `{}`), journaltest.Started("c1", 1))
	held := newCounter(true)
	n := p.node([]executor.Tool{held.tool("held", true), echo})
	n.call("s1", "other", "echo", `{}`) // c1 has started again by then
	answer := make(chan executor.Answer, 1)
	go func() { answer <- n.call("s1", "c1", "held", `{}`) }()
	_, err := n.client.Call(within(t), "s1", request("c1", "held", `{"a":1}`))
	wantErr(t, err, schema.CallConflict)
	close(held.hold)
	a := wait(t, "the answer", answer)
	p.wantRecorded("s1", a)
	if held.of("c1") != 1 || field[int](t, a.Data, "attempt") != 2 {
		t.Errorf("the tool ran %d times and answered %s", held.of("c1"), a.Data)
	}
}

// There may be more open calls than may run side by side, and the end may come
// while they wait. What was not begun stays open for the next holder.
func TestADrainEndsASettlementInItsMiddle(t *testing.T) {
	p := newPlace(t, journaltest.NATSOptions{})
	var left []journal.Entry
	for i := range 6 {
		left = append(left, journaltest.Call(fmt.Sprint("c", i), "held", `{}`))
	}
	p.leave("s1", left...)
	held := newCounter(true)
	few := func(c *executor.Config) { c.SessionCalls = 2 }
	n := p.node([]executor.Tool{held.tool("held", false)}, few)
	type outcome struct {
		what string
		err  error
	}
	asked := make(chan outcome, 2)
	go func() {
		_, err := n.Do(within(t), "s1", request("new", "held", `{}`))
		asked <- outcome{"a new call", err}
	}()
	go func() {
		_, err := ask(t, n.conn, "steno.v1.session.end", `{"session":"s1","outcome":"completed"}`)
		asked <- outcome{"the end of the session", err}
	}()
	for range 2 {
		wait(t, "a settled call", held.begun)
	}
	drained := make(chan struct{})
	go func() { n.stop(); close(drained) }()
	for range 2 {
		o := wait(t, "what waits for the settlement", asked)
		if schema.KindOf(o.err) != schema.Unavailable {
			t.Errorf("%s: %v", o.what, o.err)
		}
	}
	close(held.hold)
	wait(t, "the drain", drained)
	if open := p.read("s1").State.Open(); len(open) != 4 || open[0].ID != "c2" || len(open[0].Attempts) != 0 {
		t.Errorf("%d calls are open", len(open))
	}
	n = p.node([]executor.Tool{held.tool("held", false)}, few)
	n.call("s1", "new", "held", `{}`)
	for i := range 6 {
		if held.of(fmt.Sprint("c", i)) != 1 {
			t.Errorf("call c%d ran %d times", i, held.of(fmt.Sprint("c", i)))
		}
	}
}

func TestAnEndedSessionIsNotSettled(t *testing.T) {
	p := newPlace(t, journaltest.NATSOptions{})
	var o schema.Object
	p.leave("s1", journaltest.Call("c1", "echo", `{}`), journaltest.Started("c1", 1),
		journal.Entry{Type: schema.TypeSessionEnded, Data: o.Text("outcome", "failed").Bytes()})
	n := p.node([]executor.Tool{echo})
	_, err := n.client.Call(within(t), "s1", request("c2", "echo", `{}`))
	wantErr(t, err, schema.SessionEnded)
	_, err = n.client.Call(within(t), "s1", request("c1", "echo", `{}`))
	wantErr(t, err, schema.SessionEnded)
	if open := p.read("s1").State.Open(); len(open) != 1 {
		t.Errorf("%d calls are open", len(open))
	}
}

// Not known here is not the same as not repeatable: who recorded the calls had
// their tools, and comes back.
func TestS7ACallWhoseToolIsNotKnownHereStaysAsItIs(t *testing.T) {
	p := newPlace(t, journaltest.NATSOptions{})
	p.leave("s1",
		journaltest.Call("recorded", "once", `{}`),
		journaltest.Call("allowed", "once", `{}`), decided("allowed", "allow"),
		journaltest.Call("started", "once", `{}`), decided("started", "allow"), journaltest.Started("started", 1),
		journaltest.Call("slow", "again", `{}`), decided("slow", "allow"), journaltest.Started("slow", 1), journaltest.Started("slow", 2),
		journaltest.Call("closed", "again", `{}`), journaltest.Started("closed", 1),
	)
	left := p.read("s1").Head.Seq
	n := p.node([]executor.Tool{echo})
	a, err := n.client.Resume(within(t), executor.ResumeRequest{Session: "s1"})
	if err != nil {
		t.Fatal(err)
	}
	var open []string
	for _, o := range a.Open {
		open = append(open, o.CallID+" "+o.State)
		if o.Kind != schema.UnknownTool || !strings.Contains(o.Next, "--tools") || !strings.Contains(o.Next, "steno calls cancel s1 "+o.CallID) {
			t.Errorf("of call %s it says %+v", o.CallID, o)
		}
	}
	if want := []string{"recorded pending", "allowed pending", "started unknown", "slow unknown", "closed unknown"}; !slices.Equal(open, want) {
		t.Errorf("open are %q, want %q", open, want)
	}
	for id, tool := range map[string]string{"recorded": "once", "slow": "again"} {
		_, err := n.client.Call(within(t), "s1", request(id, tool, `{}`))
		wantErr(t, err, schema.UnknownTool)
		if e := schema.AsError(err); !strings.Contains(fmt.Sprint(e.Details["next"]), "--tools") {
			t.Errorf("call %s is refused with %v", id, e.Details)
		}
	}
	if steps := p.steps("s1", left); len(steps) > 0 {
		t.Errorf("the calls have moved: %q", steps)
	}
	wantKindOfResult(t, n.cancel("s1", "closed", "its tool does not come back").Data, schema.Cancelled)
	n.stop()

	count := newCounter(false)
	n = p.node([]executor.Tool{count.tool("once", false), count.tool("again", true)})
	if a, err = n.client.Resume(within(t), executor.ResumeRequest{Session: "s1"}); err != nil {
		t.Fatal(err)
	}
	if len(a.Open) != 2 || a.Open[0].CallID != "started" || a.Open[0].Kind != schema.Interrupted || a.Open[1].CallID != "closed" {
		t.Errorf("with the tools open are %+v", a.Open)
	}
	for id, runs := range map[string]int{"recorded": 1, "allowed": 1, "started": 0, "slow": 1, "closed": 0} {
		if got := count.of(id); got != runs {
			t.Errorf("the tool of %s ran %d times, want %d", id, got, runs)
		}
	}
}
