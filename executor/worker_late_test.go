package executor_test

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/micro"

	"steno/executor"
	"steno/journal/journaltest"
	"steno/schema"
)

// superseded waits until the open result of a call is superseded by a late one.
func (n *node) superseded(p *place, session, id string) []byte {
	n.t.Helper()
	eventually(n.t, "a late result of "+id, func() bool { return field[string](n.t, p.result(session, id), "reason") == "late" })
	return p.result(session, id)
}

// Who answers when nobody waits any more is heard: the result takes the place of
// the open one, with all that it says, and a further one is nothing.
func TestAnAnswerThatComesAfterTheDeadlineIsALateResult(t *testing.T) {
	p := newPlace(t, journaltest.NATSOptions{MaxPayload: 4 << 20})
	n := p.node(nil, withWorkers())
	n.open("s1")
	requests, stops := make(chan micro.Request, 4), p.nats.Listen("steno.tool.slow.cancel")
	p.raw("slow", `{"description":"slow","inputSchema":{"type":"object"},"outputSchema":{"type":"object","properties":{"n":{"type":"integer"}},"required":["n"]},"timeout_ms":50}`,
		func(_ *nats.Conn, r micro.Request) { requests <- r })
	open := n.call("s1", "c1", "slow", `{}`)
	wantKindOfResult(t, open.Data, schema.Timeout)
	stop, err := stops.NextMsg(journaltest.Deadline)
	if err != nil || stop.Header.Get("Steno-Session") != "s1" || stop.Header.Get("Steno-Call") != "c1" || stop.Header.Get("Steno-Attempt") != "1" || string(stop.Data) != `{"reason":"timeout"}` {
		t.Fatalf("it is told to stop with %+v, %v", stop, err)
	}
	r := wait(t, "the request", requests)
	for range 2 {
		if err := r.Respond([]byte(`{"ok":true,"output":"` + strings.Repeat("a", 1<<20) + `","structured":{"n":7}}`)); err != nil {
			t.Fatal(err)
		}
	}
	late := n.superseded(p, "s1", "c1")
	if whole := p.whole("s1", late); len(field[string](t, whole, "output")) != 1<<20 || !strings.Contains(string(whole), `"structured":{"n":7}`) {
		t.Errorf("the late result is %.300s", whole)
	}
	// By the other way too, as if the executor were gone: it changes nothing more.
	if _, err := ask(t, n.conn, nats.Header(r.Headers()).Get("Steno-Result-To"), `{"ok":false,"output":"another"}`); err != nil {
		t.Error(err)
	}
	if now := n.call("s1", "c1", "slow", `{}`); string(now.Data) != string(late) {
		t.Errorf("the result has become %.300s", now.Data)
	}
	if st := p.read("s1").State; st.Notes != 1 || len(st.Call("c1").Superseded) != 1 {
		t.Errorf("%d notes, and the call is %+v", st.Notes, st.Call("c1"))
	}
	// What does not fit is no better for being late.
	n.call("s1", "c2", "slow", `{}`)
	if err := wait(t, "the request", requests).Respond([]byte(`{"ok":true,"output":"","structured":{"n":"x"}}`)); err != nil {
		t.Fatal(err)
	}
	wantKindOfResult(t, n.superseded(p, "s1", "c2"), schema.ToolFailed)
}

// Without the ticket of the attempt nothing is recorded.
func TestALateResultOfAWorkerNeedsItsTicket(t *testing.T) {
	p, other := newPlace(t, journaltest.NATSOptions{}), placeOn(t, journaltest.StartNATS(t, journaltest.NATSOptions{}), t.TempDir())
	requests := make(chan micro.Request, 4)
	tickets := map[*place]string{}
	def := `{"description":"slow","inputSchema":{"type":"object"},"timeout_ms":50}`
	var n *node
	for _, at := range []*place{other, p} {
		n = at.node(nil, withWorkers())
		n.open("s1")
		at.raw("slow", def, func(_ *nats.Conn, r micro.Request) { requests <- r })
		wantKindOfResult(t, n.call("s1", "c1", "slow", `{}`).Data, schema.Timeout)
		tickets[at] = nats.Header(wait(t, "the request", requests).Headers()).Get("Steno-Result-To")
	}
	before := p.result("s1", "c1")
	good := tickets[p]
	at := strings.LastIndexByte(good, '.') + 1
	for what, subject := range map[string]string{
		"another store's": tickets[other],
		"a made one":      good[:at] + strings.Repeat("A", len(good)-at),
		"a changed one":   good[:len(good)-1] + string('A'+(good[len(good)-1]-'A'+4)%26),
		"a cut one":       good[:at+20],
		"no":              good[:at] + "x",
	} {
		if _, err := ask(t, n.conn, subject, `{"ok":true,"output":"forged"}`); schema.KindOf(err) != schema.NotAuthenticated {
			t.Errorf("with %s ticket: %v", what, err)
		}
	}
	for _, body := range []string{``, `hello`, `{"output":"a"}`, `{"ok":false,"error":{"kind":"timeout","message":"m","details":{}}}`} {
		if _, err := ask(t, n.conn, good, body); schema.KindOf(err) != schema.InvalidArgs {
			t.Errorf("%q: %v", body, err)
		}
	}
	if now := p.result("s1", "c1"); string(now) != string(before) {
		t.Fatalf("the result has become %s", now)
	}
	if _, err := ask(t, n.conn, good, `{"ok":true,"output":"it took effect"}`); err != nil {
		t.Fatal(err)
	}
	if late := n.superseded(p, "s1", "c1"); field[string](t, late, "output") != "it took effect" {
		t.Errorf("the late result is %s", late)
	}
}

// An executor dies while a worker is at work. Whoever has the session next has its
// result recorded, in the place of the one that says that nobody knows.
func TestAWorkerOutlivesItsExecutor(t *testing.T) {
	p := newPlace(t, journaltest.NATSOptions{Listen: true})
	a := p.child(child{Workers: true})
	client := p.client()
	open(t, client, "s1")
	c := newCounter(true)
	p.hosts(c.tool("held", false))
	asked := make(chan executor.Answer, 1)
	go func() {
		answer, err := client.Call(within(t), "s1", request("c1", "held", `{}`))
		if err != nil {
			t.Error(err)
		}
		asked <- answer
	}()
	wait(t, "the tool runs", c.begun)
	n := p.node(nil, withWorkers())
	a.Kill()
	wantKindOfResult(t, wait(t, "the answer", asked).Data, schema.Interrupted)
	close(c.hold)
	if late := n.superseded(p, "s1", "c1"); field[string](t, late, "output") != "c1, attempt 1" || c.of("c1") != 1 {
		t.Errorf("the late result is %s, after %d runs", late, c.of("c1"))
	}
}

// A repeatable tool, for which the operator vouches, runs again where its executor
// died: what the first attempt says then is kept as a note.
func TestAVouchedToolRunsAgainAfterItsExecutorDied(t *testing.T) {
	p := newPlace(t, journaltest.NATSOptions{Listen: true})
	a := p.child(child{Workers: true})
	client := p.client()
	open(t, client, "s1")
	begun, hold := make(chan string, 4), make(chan struct{})
	p.hosts(toolOf("twice", func(_ context.Context, c *executor.Invocation) (executor.Result, error) {
		begun <- c.CallID
		if c.Attempt == 1 {
			<-hold
		}
		return executor.Result{OK: true, Output: fmt.Sprint("attempt ", c.Attempt)}, nil
	}))
	asked := make(chan executor.Answer, 1)
	go func() {
		answer, err := client.Call(within(t), "s1", request("c1", "twice", `{}`))
		if err != nil {
			t.Error(err)
		}
		asked <- answer
	}()
	wait(t, "the tool runs", begun)
	n := p.node(nil, withWorkers(executor.Vouched{Name: "twice", Repeatable: true}))
	a.Kill()
	answer := wait(t, "the answer", asked)
	if field[string](t, answer.Data, "output") != "attempt 2" {
		t.Errorf("the result is %s", answer.Data)
	}
	close(hold)
	eventually(t, "the first attempt is noted", func() bool { return p.read("s1").State.Notes == 1 })
	if now := n.call("s1", "c1", "twice", `{}`); string(now.Data) != string(answer.Data) {
		t.Errorf("the result has become %s", now.Data)
	}
}

// A worker that dies in the middle of a call leaves an open outcome, once it is
// seen that nobody is left who could answer; the call need not wait for its deadline.
func TestAWorkerThatDiesLeavesAnOpenOutcome(t *testing.T) {
	p := newPlace(t, journaltest.NATSOptions{})
	n := p.node(nil, withWorkers())
	executor.SetWorkerGrace(n.Executor, 10*time.Millisecond)
	n.open("s1")
	begun := make(chan struct{}, 1)
	_, c := p.raw("dies", rawDefinition, func(*nats.Conn, micro.Request) { begun <- struct{}{} })
	asked := n.background("s1", "c1", "dies")
	wait(t, "the tool runs", begun)
	c.Close()
	eventually(t, "it is seen to be gone", func() bool { tools, _ := n.hosted(); return len(tools) == 0 })
	a := wait(t, "the answer", asked)
	wantKindOfResult(t, a.Data, schema.OutcomeUnknown)
	if r := p.read("s1").State.Call("c1").Result; !r.Open() {
		t.Errorf("the outcome is not open: %s", a.Data)
	}
}

// What a worker says while it works is told as of any tool; however much it is,
// the answer finds its way.
func TestAWorkerTellsItsProgress(t *testing.T) {
	p := newPlace(t, journaltest.NATSOptions{})
	n := p.node(nil, withWorkers())
	n.open("s1")
	events := p.nats.Listen("steno.v1.event.s1.tool_progress")
	p.hosts(toolOf("say", func(_ context.Context, c *executor.Invocation) (executor.Result, error) {
		c.Progress("half done, password=hunter2")
		return executor.Result{OK: true}, nil
	}), toolOf("flood", func(_ context.Context, c *executor.Invocation) (executor.Result, error) {
		for range 10_000 {
			c.Progress("again")
		}
		return executor.Result{OK: true, Output: "done"}, nil
	}))
	n.call("s1", "c1", "say", `{}`)
	m, err := events.NextMsg(journaltest.Deadline)
	if err != nil {
		t.Fatal(err)
	}
	if got := field[progress](t, m.Data, "data"); got.CallID != "c1" || got.Text != "half done, password=[redacted]" {
		t.Errorf("told is %+v", got)
	}
	if a := n.call("s1", "c2", "flood", `{}`); field[string](t, a.Data, "output") != "done" {
		t.Errorf("the answer is %s", a.Data)
	}
}

// A call that is cancelled stops where it runs.
func TestAWorkerIsToldThatACallIsCancelled(t *testing.T) {
	p := newPlace(t, journaltest.NATSOptions{})
	n := p.node(nil, withWorkers())
	n.open("s1")
	c := newCounter(true)
	p.hosts(c.tool("held", false))
	asked := n.background("s1", "c1", "held")
	other := n.background("s1", "c2", "held")
	wait(t, "a call runs", c.begun)
	wait(t, "another call runs", c.begun)
	a := n.cancel("s1", "c1", "enough")
	wantKindOfResult(t, a.Data, schema.Cancelled)
	wantKindOfResult(t, wait(t, "the answer", asked).Data, schema.Cancelled)
	close(c.hold)
	wantKindOfResult(t, wait(t, "the other answer", other).Data, "")
}

// Services that flood discovery do not keep a worker from being called.
func TestAFloodOfServicesHidesNoWorker(t *testing.T) {
	p := newPlace(t, journaltest.NATSOptions{})
	n := p.node(nil, withWorkers())
	n.open("s1")
	c := newCounter(false)
	p.hosts(c.tool("count", false))
	n.call("s1", "c1", "count", `{}`)
	flood := p.nats.Connect()
	for subject, answer := range map[string]nats.MsgHandler{
		"$SRV.PING": func(m *nats.Msg) {
			for i := range 3000 {
				_ = flood.Publish(m.Reply, fmt.Appendf(nil, `{"type":"io.nats.micro.v1.ping_response","name":"flood","id":"F%d"}`, i))
			}
		},
		"$SRV.INFO.flood.*": func(m *nats.Msg) {
			_, id, _ := strings.Cut(m.Subject, "flood.")
			_ = flood.Publish(m.Reply, fmt.Appendf(nil, `{"type":"io.nats.micro.v1.info_response","name":"flood","id":"%s","endpoints":[{"name":"x","subject":"steno.tool.f%s","queue_group":"q","metadata":{"steno_tool":"{}"}}]}`, id, id))
		},
	} {
		if _, err := flood.Subscribe(subject, answer); err != nil {
			t.Fatal(err)
		}
	}
	if err := flood.Flush(); err != nil {
		t.Fatal(err)
	}
	for i := range 4 {
		if tools, refused := n.hosted(); len(tools) != 1 || len(refused) > 256 {
			t.Errorf("hosted are %v, and %d are refused", tools, len(refused))
		}
		n.call("s1", fmt.Sprint("d", i), "count", `{}`)
	}
}

// An attempt that is over before its worker has room for it is not made.
func TestAWorkerBeginsNoAttemptThatIsOver(t *testing.T) {
	p := newPlace(t, journaltest.NATSOptions{})
	n := p.node(nil, withWorkers(executor.Vouched{Name: "hosted", Timeout: time.Second}))
	n.open("s1")
	var ran atomic.Int32
	hold := make(chan struct{})
	hosted := tool("hosted", `{"type":"object"}`)
	hosted.Run = func(context.Context, *executor.Invocation) (executor.Result, error) {
		ran.Add(1)
		<-hold
		return executor.Result{OK: true}, nil
	}
	w, err := executor.HostTools(p.nats.Connect(), executor.HostOptions{MaxCalls: 1, Logger: slog.New(slog.DiscardHandler)}, hosted)
	if err != nil {
		t.Fatal(err)
	}
	first := n.background("s1", "one", "hosted")
	eventually(t, "the first call runs", func() bool { return ran.Load() == 1 })
	if kind := kindOfResult(t, n.call("s1", "two", "hosted", `{}`).Data); kind != schema.Timeout && kind != schema.Unavailable { // who says so first
		t.Errorf("the second call ends in %s", kind)
	}
	close(hold)
	wait(t, "the first call's answer", first)
	if err := w.Stop(within(t)); err != nil {
		t.Error(err)
	}
	if n := ran.Load(); n != 1 {
		t.Errorf("%d attempts were made", n)
	}
}

// A worker's answer is a result, whatever kind its error claims to be of. What
// leaves an outcome open, so that it may be settled again, is only that the worker
// itself does not know, or was stopped.
func TestAWorkerGivesItsErrorNoKindOfStenos(t *testing.T) {
	p := newPlace(t, journaltest.NATSOptions{})
	n := p.node(nil, withWorkers())
	n.open("s1")
	answers := make(chan schema.Kind, 1)
	p.raw("liar", rawDefinition, func(_ *nats.Conn, r micro.Request) {
		_ = r.Respond(fmt.Appendf(nil, `{"ok":false,"error":{"kind":%q,"message":"m","details":{"session":"other"}}}`, <-answers))
	})
	for _, kind := range schema.Kinds() {
		answers <- kind.Kind
		id := string(kind.Kind)
		data := n.call("s1", id, "liar", `{}`).Data
		got := kindOfResult(t, data)
		open := p.read("s1").State.Call(id).Result.Open()
		switch kind.Kind {
		case schema.OutcomeUnknown, schema.Timeout, schema.Cancelled:
			if got != kind.Kind || !open {
				t.Errorf("%s: the result is %s", id, data)
			}
		case schema.InvalidArgs, schema.NotFound, schema.NoMatch, schema.Unavailable, schema.RateLimited:
			if got != kind.Kind || open {
				t.Errorf("%s: the result is %s", id, data)
			}
		case schema.Interrupted, schema.Detached, schema.PermissionDenied, schema.ApprovalDenied, schema.SessionWriterLost, schema.CorruptLogLine,
			schema.Internal, schema.RepeatLimit, schema.UnknownTool, schema.CallConflict, schema.PoisonMessage, schema.CorruptAuth:
			if got != schema.ToolFailed || open || !strings.Contains(string(data), `"kind":"`+id+`"`) {
				t.Errorf("%s: the result is %s", id, data)
			}
		default:
			if open {
				t.Errorf("%s leaves the outcome open: %s", id, data)
			}
		}
		if strings.Contains(string(data), `"other"`) {
			t.Errorf("%s: the worker says which session it is: %s", id, data)
		}
	}
}

// A late result of a call that has a genuine one is kept as a note, once, however
// often it is sent; the recorded one once more is no news.
func TestALateResultOfAWorkerBesideAGenuineOneIsNotedOnce(t *testing.T) {
	p := newPlace(t, journaltest.NATSOptions{})
	n := p.node(nil, withWorkers())
	n.open("s1")
	to := make(chan string, 1)
	large := strings.Repeat("all of it. ", 2000)
	p.raw("talks", rawDefinition, func(_ *nats.Conn, r micro.Request) {
		to <- nats.Header(r.Headers()).Get("Steno-Result-To")
		_ = r.Respond([]byte(`{"ok":true,"output":"` + large + `","structured":{"n":1}}`))
	})
	data := n.call("s1", "c1", "talks", `{}`).Data
	late := wait(t, "the request", to)
	tell := func(notes int, answer string) {
		t.Helper()
		if _, err := ask(t, n.conn, late, answer); err != nil {
			t.Fatal(err)
		}
		if l := p.read("s1"); l.State.Notes != notes {
			t.Errorf("%d notes after %.60s; %d expected", l.State.Notes, answer, notes)
		}
	}
	tell(0, `{"ok":true,"output":"`+large+`","structured":{"n":1}}`)
	for range 3 {
		tell(1, `{"ok":false,"output":"another"}`)
	}
	tell(2, `{"ok":true,"output":"`+large+`","structured":{"n":2}}`)
	tell(3, `{"ok":false,"error":{"kind":"no_match","message":"m","details":{}}}`)
	if now := n.call("s1", "c1", "talks", `{}`).Data; string(now) != string(data) {
		t.Errorf("the result has become %.200s", now)
	}
}
