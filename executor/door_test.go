package executor_test

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/nats-io/nats.go"

	"steno/executor"
	"steno/journal"
	"steno/journal/journaltest"
	"steno/schema"
)

// onDisk reads the events of a session's newest segment as a tool sees them
// while it runs: from the file, with nothing of ours in between.
func onDisk(dir, session string) (events []schema.Event, err error) {
	names, err := filepath.Glob(filepath.Join(dir, "sessions", session, "0*.jsonl"))
	if err != nil {
		return nil, err
	}
	b, err := os.ReadFile(names[len(names)-1])
	if err != nil {
		return nil, err
	}
	b = b[:bytes.LastIndexByte(b, '\n')+1] // a line that is being written just now is nobody's yet
	for i, line := range bytes.Split(bytes.TrimSuffix(b, []byte("\n")), []byte("\n")) {
		var e schema.Event
		if i == 0 {
			continue // the claim
		}
		if err := e.Decode(line); err != nil {
			return nil, fmt.Errorf("line %d: %w", i+1, err)
		}
		events = append(events, e)
	}
	return events, nil
}

func TestS2ACallIsOnDiskBeforeItsToolRuns(t *testing.T) {
	p := newPlace(t, journaltest.NATSOptions{})
	var seen []schema.Event
	var call *executor.Invocation
	n := p.node([]executor.Tool{toolOf("look", func(_ context.Context, c *executor.Invocation) (res executor.Result, err error) {
		call = c
		seen, err = onDisk(p.dir, c.Session)
		return executor.Result{OK: true, Output: "looked"}, err
	})})
	n.open("s1")
	req := request("c1", "look", ` { "b" : 1.50, "a" : [ 1e400 ] } `)
	req.Key, req.Context, req.Turn = "k1", []byte(`{"user":7}`), []byte(`3`)
	a, err := n.client.Call(within(t), "s1", req)
	if err != nil {
		t.Fatal(err)
	}
	if len(seen) < 3 {
		t.Fatalf("the tool saw %d events on disk: %s", len(seen), a.Data)
	}
	last := seen[len(seen)-3:]
	for i, want := range []struct{ typ, data string }{
		{schema.TypeToolCall, `{"call_id":"c1","name":"look","args":{"b":1.50,"a":[1e400]},"args_sha256":"`},
		{schema.TypeDecision, `{"call_id":"c1","decision":"allow","gate":"mode","by":"auto","args_sha256":"`},
		{schema.TypeToolStarted, `{"call_id":"c1","attempt":1,"executor":"` + n.holder + `"}`},
	} {
		if last[i].Type != want.typ || !strings.HasPrefix(string(last[i].Data), want.data) {
			t.Errorf("the tool saw %s %s on disk, want %s %s…", last[i].Type, last[i].Data, want.typ, want.data)
		}
	}
	if text := string(last[0].Data); !strings.HasSuffix(text, `,"context":{"user":7},"turn":3,"key":"k1"}`) {
		t.Errorf("the call is recorded as %s", text)
	}
	// The tool has the fencing token of its start, and the bytes of the record.
	if call.Epoch != last[2].Epoch || call.Seq != last[2].Seq || call.Key != "k1" || call.Attempt != 1 ||
		string(call.Args) != `{"b":1.50,"a":[1e400]}` || string(call.Context) != `{"user":7}` || call.DryRun {
		t.Errorf("the tool was given %+v", call)
	}
	p.wantTypes("s1", "tool_call", "permission_decision", "tool_started", "tool_result")
}

func TestAnAnswerIsTheRecordedResult(t *testing.T) {
	p := newPlace(t, journaltest.NATSOptions{})
	n := p.node([]executor.Tool{echo})
	n.open("s1")
	c := p.nats.Connect()
	for range 2 { // the second time from the record
		m, err := c.RequestWithContext(within(t), "steno.v1.call.s1", []byte(`{"call_id":"c1","name":"echo","args":{"a":"ü"}}`))
		if err != nil {
			t.Fatal(err)
		}
		p.wantRecorded("s1", executor.Answer{CallID: "c1", Data: m.Data})
		if got := field[string](t, m.Data, "output"); got != `{"a":"ü"}` || !field[bool](t, m.Data, "ok") {
			t.Errorf("the answer is %s", m.Data)
		}
		head, err := schema.ParseHead(m.Header.Get("Steno-Head"))
		if err != nil {
			t.Fatal(err)
		}
		if log := p.read("s1"); head != log.Events[len(log.Events)-1].Head() {
			t.Errorf("the answer's head is %s, the log's %s", head, log.Head)
		}
		for name, want := range map[string]string{"Steno-Session": "s1", "Steno-Call": "c1", "Steno-Executor": n.holder, "Steno-Error-Kind": "",
			"Nats-Service-Error-Code": ""} {
			if got := m.Header.Get(name); got != want {
				t.Errorf("header %s is %q, want %q", name, got, want)
			}
		}
	}
	p.wantTypes("s1", "tool_call", "permission_decision", "tool_started", "tool_result")
}

func TestEventsArePublishedInOrder(t *testing.T) {
	p := newPlace(t, journaltest.NATSOptions{})
	n := p.node([]executor.Tool{echo})
	c := p.nats.Connect()
	sub, err := c.SubscribeSync("steno.v1.event.>")
	if err == nil {
		err = c.Flush()
	}
	if err != nil {
		t.Fatal(err)
	}
	n.open("s1")
	for i := range 20 {
		n.call("s1", fmt.Sprint("c", i), "echo", `{}`)
	}
	if _, err := n.client.Append(within(t), "s1", executor.AppendEvent{Type: "x.own.type", Data: []byte(`{"a":1}`)}); err != nil {
		t.Fatal(err)
	}
	n.stop()
	log := p.read("s1")
	for i, e := range log.Events {
		m, err := sub.NextMsg(journaltest.Deadline)
		if err != nil {
			t.Fatalf("event %d: %v", i+1, err)
		}
		var got schema.Event
		if err := got.Decode(m.Data); err != nil {
			t.Fatal(err)
		}
		if m.Subject != "steno.v1.event.s1."+e.Type || got.Head() != e.Head() {
			t.Fatalf("event %d came as %s on %s, want %s on its type", i+1, got.Head(), m.Subject, e.Head())
		}
	}
	if m, err := sub.NextMsg(1); err != nats.ErrTimeout {
		t.Errorf("one event too many: %v %v", m, err)
	}
}

func TestAnEventIsPublishedOnlyAfterItIsInTheFile(t *testing.T) {
	p := newPlace(t, journaltest.NATSOptions{})
	n := p.node([]executor.Tool{echo})
	n.open("s1")
	var mu sync.Mutex
	var early []string
	var seen int
	c := p.nats.Connect()
	_, err := c.Subscribe("steno.v1.event.>", func(m *nats.Msg) {
		events, err := onDisk(p.dir, "s1")
		there := slices.ContainsFunc(events, func(e schema.Event) bool {
			var got schema.Event
			return got.Decode(m.Data) == nil && got.Head() == e.Head()
		})
		mu.Lock()
		defer mu.Unlock()
		if seen++; err != nil || !there {
			early = append(early, fmt.Sprint(m.Subject, " ", err))
		}
	})
	if err == nil {
		err = c.Flush()
	}
	if err != nil {
		t.Fatal(err)
	}
	for i := range 20 {
		n.call("s1", fmt.Sprint("c", i), "echo", `{}`)
	}
	eventually(t, "80 events", func() bool { mu.Lock(); defer mu.Unlock(); return seen == 80 })
	if len(early) > 0 {
		t.Errorf("events that were not in the file: %q", early)
	}
}

func TestTheSameCallAtOnceRunsOnce(t *testing.T) {
	p := newPlace(t, journaltest.NATSOptions{})
	count := newCounter(true)
	tools := []executor.Tool{count.tool("count", false)}
	a, b := p.node(tools), p.node(tools)
	a.open("s1")
	conns := []*nats.Conn{p.nats.Connect(), p.nats.Connect()}
	answers := make(chan string, 50)
	for i := range 50 {
		c := conns[i%2]
		go func() {
			m, err := c.RequestWithContext(within(t), "steno.v1.call.s1", []byte(`{"call_id":"c1","name":"count","args":{"n":1}}`))
			if err != nil {
				answers <- err.Error()
				return
			}
			answers <- string(m.Data)
		}()
	}
	wait(t, "the tool", count.begun)
	close(count.hold)
	first := wait(t, "an answer", answers)
	for range 49 {
		if next := wait(t, "an answer", answers); next != first {
			t.Errorf("the answers differ:\n%s\n%s", first, next)
		}
	}
	if n := count.of("c1"); n != 1 {
		t.Errorf("the tool ran %d times", n)
	}
	p.wantRecorded("s1", executor.Answer{CallID: "c1", Data: []byte(first)})

	// After a restart, through the other executor, and after a restart of all.
	a.stop()
	if again := b.call("s1", "c1", "count", `{"n":1}`); string(again.Data) != first {
		t.Errorf("the other executor answers\n%s\nnot\n%s", again.Data, first)
	}
	b.stop()
	if again := p.node(tools).call("s1", "c1", "count", `{ "n" : 1 }`); string(again.Data) != first {
		t.Errorf("after a restart the answer is\n%s\nnot\n%s", again.Data, first)
	}
	if n := count.of("c1"); n != 1 {
		t.Errorf("the tool ran %d times", n)
	}
	p.wantTypes("s1", "tool_call", "permission_decision", "tool_started", "tool_result")
}

func TestARestartOfEverythingKeepsEveryAcknowledgedLine(t *testing.T) {
	p := newPlace(t, journaltest.NATSOptions{JetStream: true})
	n := p.node([]executor.Tool{echo}, func(c *executor.Config) { c.Queue = true })
	acknowledged := map[string][]schema.Head{}
	answers := map[string]string{}
	for i := range 10 {
		session := fmt.Sprint("s", i%3)
		n.open(session)
		a := n.call(session, fmt.Sprint("c", i), "echo", fmt.Sprintf(`{"i":%d}`, i))
		acknowledged[session] = append(acknowledged[session], a.Head)
		answers[a.CallID] = string(a.Data)
	}
	n.stop()
	p.nats.Stop()
	p.nats = journaltest.StartNATS(t, journaltest.NATSOptions{JetStream: true, Dir: p.nats.Dir()})
	n = p.node([]executor.Tool{echo}, func(c *executor.Config) { c.Queue = true })
	for session, heads := range acknowledged {
		if lost := p.read(session).Missing(heads); len(lost) > 0 {
			t.Errorf("session %s has lost %v", session, lost)
		}
	}
	for i := range 10 {
		a := n.call(fmt.Sprint("s", i%3), fmt.Sprint("c", i), "echo", fmt.Sprintf(`{"i":%d}`, i))
		if string(a.Data) != answers[a.CallID] {
			t.Errorf("call %s is answered\n%s\nand was\n%s", a.CallID, a.Data, answers[a.CallID])
		}
	}
}

func TestACallIDMeansOneCall(t *testing.T) {
	p := newPlace(t, journaltest.NATSOptions{})
	count := newCounter(false)
	held := newCounter(true)
	n := p.node([]executor.Tool{count.tool("count", false), count.tool("other", false), held.tool("held", false)})
	n.open("s1")
	const args = `{"a":9007199254740993,"b":[1,2]}`
	first := n.call("s1", "c1", "count", args)
	for _, same := range []string{`{"b":[1,2],"a":9007199254740993}`, " {\n\t\"b\" : [ 1 , 2 ] , \"a\" : 9007199254740993 } ", `{"\u0062":[1,2],"a":9007199254740993}`} {
		if a := n.call("s1", "c1", "count", same); !bytes.Equal(a.Data, first.Data) {
			t.Errorf("the same arguments as %s are answered %s", same, a.Data)
		}
	}
	for what, req := range map[string]executor.Request{
		"a big number that a float cannot tell": request("c1", "count", `{"a":9007199254740992,"b":[1,2]}`),
		"a number written in another way":       request("c1", "count", `{"a":9007199254740993.0,"b":[1,2]}`),
		"another order in an array":             request("c1", "count", `{"a":9007199254740993,"b":[2,1]}`),
		"no arguments":                          {CallID: "c1", Name: "count"},
		"another tool":                          request("c1", "other", args),
		"a tool that is not there":              request("c1", "none", args),
		"a dry run":                             {CallID: "c1", Name: "count", Args: []byte(args), DryRun: true},
	} {
		_, err := n.client.Call(within(t), "s1", req)
		if schema.KindOf(err) != schema.CallConflict {
			t.Errorf("%s: %v, want a conflict", what, err)
		}
	}
	// Also while the first call is on its way.
	done := make(chan error, 1)
	go func() {
		_, err := n.client.Call(within(t), "s1", request("c2", "held", `{"a":1}`))
		done <- err
	}()
	wait(t, "the tool", held.begun)
	_, err := n.client.Call(within(t), "s1", request("c2", "held", `{"a":2}`))
	wantErr(t, err, schema.CallConflict)
	close(held.hold)
	if err := wait(t, "the answer", done); err != nil {
		t.Error(err)
	}
	if n := count.of("c1"); n != 1 {
		t.Errorf("the tool ran %d times", n)
	}
	p.wantTypes("s1", "tool_call", "permission_decision", "tool_started", "tool_result",
		"tool_call", "permission_decision", "tool_started", "tool_result")
}

func TestCallsBeyondTheLimitAreRefusedAndNotRecorded(t *testing.T) {
	p := newPlace(t, journaltest.NATSOptions{})
	held := newCounter(true)
	n := p.node([]executor.Tool{held.tool("held", false), echo}, func(c *executor.Config) { c.MaxCalls = 2 })
	n.open("s1")
	done := make(chan error, 2)
	for i := range 2 {
		go func() {
			_, err := n.client.Call(within(t), "s1", request(fmt.Sprint("c", i), "held", `{}`))
			done <- err
		}()
		wait(t, "the tool", held.begun)
	}
	_, err := n.client.Call(within(t), "s1", request("c2", "echo", `{}`))
	wantErr(t, err, schema.Backpressure)
	_, err = n.Do(within(t), "s1", request("c2", "echo", `{}`))
	wantErr(t, err, schema.Backpressure)
	// Verbs that are no calls have their own room.
	if _, err := n.client.Append(within(t), "s1", executor.AppendEvent{Type: schema.TypeNote, Data: []byte(`{}`)}); err != nil {
		t.Error(err)
	}
	close(held.hold)
	for range 2 {
		if err := wait(t, "an answer", done); err != nil {
			t.Error(err)
		}
	}
	if p.result("s1", "c2") != nil || slices.Contains(p.types("s1")[6:], "tool_call") {
		t.Error("a refused call is in the log")
	}
	n.call("s1", "c2", "echo", `{}`)
}

func TestOneSessionDoesNotTakeEverySlot(t *testing.T) {
	const most = 128
	p := newPlace(t, journaltest.NATSOptions{})
	held := newCounter(true)
	n := p.node([]executor.Tool{held.tool("held", false), echo}, func(c *executor.Config) { c.SessionCalls = most })
	n.open("s1")
	n.open("s2")
	done := make(chan error, most)
	for i := range most {
		go func() {
			_, err := n.Do(within(t), "s1", request(fmt.Sprint("c", i), "held", `{}`))
			done <- err
		}()
	}
	for range most {
		wait(t, "the tool", held.begun)
	}
	_, err := n.Do(within(t), "s1", request("more", "echo", `{}`))
	wantErr(t, err, schema.Backpressure)
	n.call("s2", "c1", "echo", `{}`)
	close(held.hold)
	for range most {
		if err := wait(t, "an answer", done); err != nil {
			t.Error(err)
		}
	}
	if p.result("s1", "more") != nil {
		t.Error("a refused call is in the log")
	}
	n.call("s1", "more", "echo", `{}`)
}

func TestTheCallsOfASessionRunSideBySideUpToALimit(t *testing.T) {
	p := newPlace(t, journaltest.NATSOptions{})
	held := newCounter(true)
	n := p.node([]executor.Tool{held.tool("held", false)}, func(c *executor.Config) { c.SessionCalls = 3 })
	n.open("s1")
	n.open("s2")
	done := make(chan error, 10)
	call := func(session, id string) {
		go func() {
			_, err := n.Do(within(t), session, request(id, "held", `{}`))
			done <- err
		}()
	}
	for i := range 5 {
		call("s1", fmt.Sprint("c", i))
	}
	for range 3 {
		wait(t, "a call", held.begun)
	}
	call("s2", "other") // another session is not held up
	if id := wait(t, "a call of the other session", held.begun); id != "other" {
		t.Errorf("call %s runs beyond the limit", id)
	}
	close(held.hold)
	for range 6 {
		if err := wait(t, "a result", done); err != nil {
			t.Error(err)
		}
	}
	journaltest.Verify(t, n.store, "s1")
	if c := p.read("s1").State.Calls; len(c) != 5 {
		t.Errorf("%d calls are recorded", len(c))
	}
}

// Do is the same room for a caller in the process.
func TestDoJoinsTheRequestDoor(t *testing.T) {
	p := newPlace(t, journaltest.NATSOptions{})
	held := newCounter(true)
	n := p.node([]executor.Tool{held.tool("held", false)})
	n.open("s1")
	ctx, cancel := context.WithCancel(within(t))
	gone := make(chan error, 1)
	go func() {
		_, err := n.Do(ctx, "s1", request("c1", "held", `{}`))
		gone <- err
	}()
	wait(t, "the tool", held.begun)
	cancel() // the call goes on without the one who asked
	wantErr(t, wait(t, "the end of the context", gone), schema.Cancelled)
	joined := make(chan executor.Answer, 1)
	go func() { joined <- n.call("s1", "c1", "held", `{}`) }()
	close(held.hold)
	p.wantRecorded("s1", wait(t, "the answer", joined))
	if n := held.of("c1"); n != 1 {
		t.Errorf("the tool ran %d times", n)
	}
	_, err := n.Do(within(t), "s2", request("c1", "held", `{}`))
	wantErr(t, err, schema.NotFound)
	_, err = n.Do(within(t), "s1", request("c 2", "held", `{}`))
	wantErr(t, err, schema.InvalidArgs)
	_, err = n.Do(within(t), "s1", request("c2", "held", `{"a":1,"a":2}`))
	wantErr(t, err, schema.InvalidArgs)
	if _, err := journal.OpenFiles(filepath.Join(p.dir, "sessions", "s2"), false); schema.KindOf(err) != schema.NotFound {
		t.Errorf("a call has made a session: %v", err)
	}
}

// Whoever asks for a session first and goes away does not take the others with
// it.
func TestAnOpeningOutlivesTheOneWhoAskedForIt(t *testing.T) {
	p := newPlace(t, journaltest.NATSOptions{})
	p.leave("s1")
	n := p.node([]executor.Tool{echo})
	hold := n.faults.HoldSync(t)
	ctx, cancel := context.WithCancel(within(t))
	first, second := make(chan error, 1), make(chan error, 1)
	go func() {
		_, err := n.Do(ctx, "s1", request("c1", "echo", `{}`))
		first <- err
	}()
	wait(t, "the claim", hold.Waiting())
	go func() {
		_, err := n.Do(within(t), "s1", request("c2", "echo", `{}`))
		second <- err
	}()
	cancel()
	wantErr(t, wait(t, "the first", first), schema.Cancelled)
	hold.Release()
	if err := wait(t, "the second", second); err != nil {
		t.Error(err)
	}
}

func TestAnAnswerThatTheServerDoesNotTakeIsSaidToBeThere(t *testing.T) {
	p := newPlace(t, journaltest.NATSOptions{MaxPayload: 4 << 10})
	n := p.node([]executor.Tool{toolOf("long", func(context.Context, *executor.Invocation) (executor.Result, error) {
		return executor.Result{OK: true, Output: strings.Repeat("a", 8<<10)}, nil
	})})
	n.open("s1")
	for range 2 {
		_, err := n.client.Call(within(t), "s1", request("c1", "long", `{}`))
		wantErr(t, err, schema.PayloadTooLarge)
	}
	if got := field[string](t, p.result("s1", "c1"), "output"); len(got) != 8<<10 {
		t.Errorf("recorded are %d bytes", len(got))
	}
}
