package executor_test

import (
	"testing"

	"steno/executor"
	"steno/journal"
	"steno/journal/journaltest"
	"steno/schema"
)

func (n *node) resolve(session, id, as, reason string) executor.Answer {
	n.t.Helper()
	a, err := n.client.Resolve(within(n.t), executor.ResolveRequest{Session: session, CallID: id, As: as, By: "user ada", Reason: reason})
	if err != nil {
		n.t.Fatalf("resolve %s: %v", id, err)
	}
	return a
}

// leaveStarted leaves calls that started and have no result.
func (p *place) leaveStarted(ids ...string) {
	p.t.Helper()
	var left []journal.Entry
	for _, id := range ids {
		left = append(left, journaltest.Call(id, "once", `{}`), decided(id, "allow"), journaltest.Started(id, 1))
	}
	p.leave("s1", left...)
}

func TestAnOpenOutcomeIsResolvedOnceByWhomAndWhy(t *testing.T) {
	p := newPlace(t, journaltest.NATSOptions{})
	p.leaveStarted("good", "bad", "again")
	count := newCounter(false)
	tools := []executor.Tool{count.tool("once", false)}
	n := p.node(tools)
	for _, c := range []struct {
		id, as  string
		kind    schema.Kind
		attempt int
		runs    int
	}{
		{"good", executor.AsSucceeded, "", 1, 0},
		{"bad", executor.AsFailed, schema.ToolFailed, 1, 0},
		{"again", executor.AsRetry, "", 2, 1},
	} {
		before := n.call("s1", c.id, "once", `{}`)
		wantKindOfResult(t, before.Data, schema.Interrupted)
		open := p.read("s1").State.Call(c.id).Result
		a := n.resolve("s1", c.id, c.as, "looked it up")
		wantKindOfResult(t, a.Data, c.kind)
		p.wantRecorded("s1", a)
		if field[string](t, a.Data, "by") != "user ada" || field[string](t, a.Data, "reason") != "looked it up" ||
			field[uint64](t, a.Data, "supersedes") != open.Seq || field[int](t, a.Data, "attempt") != c.attempt || field[bool](t, a.Data, "synthetic") {
			t.Errorf("%s is resolved as %s", c.id, a.Data)
		}
		if count.of(c.id) != c.runs {
			t.Errorf("the tool of %s ran %d times", c.id, count.of(c.id))
		}
		// Whoever asks again in the same way had no answer; in another it is too late.
		if again := n.resolve("s1", c.id, c.as, "looked it up"); string(again.Data) != string(a.Data) {
			t.Errorf("asked again: %s", again.Data)
		}
		_, err := n.client.Resolve(within(t), executor.ResolveRequest{Session: "s1", CallID: c.id, As: executor.AsRetry, By: "user bob", Reason: "not sure"})
		wantErr(t, err, schema.ResultConflict)
		if now := n.call("s1", c.id, "once", `{}`); string(now.Data) != string(a.Data) {
			t.Errorf("the call is answered with %s", now.Data)
		}
	}
	c := p.read("s1").State.Call("again")
	if d := c.Decisions[len(c.Decisions)-1]; d.Gate != "resolve" || d.By != "human" || d.Decision != "allow" || len(c.Attempts) != 2 || d.Seq+1 != c.Attempts[1].Seq {
		t.Errorf("the retry is decided by %+v and recorded as %+v", d, c)
	}
	n.stop()
	// It stays so for the next holder.
	n = p.node(tools)
	n.call("s1", "new", "once", `{}`)
	if count.of("again") != 1 || count.of("good") != 0 {
		t.Error("a call that is settled has run again")
	}
}

func TestWhatCannotBeResolved(t *testing.T) {
	p := newPlace(t, journaltest.NATSOptions{})
	p.leave("s1", journaltest.Call("gone", "nowhere", `{}`), journaltest.Started("gone", 1),
		journal.Entry{Type: schema.TypeToolCall, Data: redactedCall("secret", "once")}, journaltest.Started("secret", 1))
	held := newCounter(true)
	n := p.node([]executor.Tool{held.tool("once", false), echo, held.tool("nowhere", false)})
	n.call("s1", "fine", "echo", `{}`)
	n.stop()
	n = p.node([]executor.Tool{held.tool("once", false), echo})
	asked := n.background("s1", "runs", "once")
	wait(t, "the tool", held.begun)
	for _, c := range []struct {
		id, as, reason, output string
		kind                   schema.Kind
	}{
		{"none", executor.AsFailed, "why", "", schema.NotFound},
		{"fine", executor.AsFailed, "why", "", schema.ResultConflict},
		{"runs", executor.AsRetry, "why", "", schema.ResultConflict},
		{"gone", executor.AsRetry, "why", "", schema.UnknownTool},
		{"secret", executor.AsRetry, "why", "", schema.InvalidArgs},
		{"gone", executor.AsFailed, "", "", schema.InvalidArgs},
		{"gone", "maybe", "why", "", schema.InvalidArgs},
		{"gone", executor.AsRetry, "why", "text", schema.InvalidArgs},
	} {
		_, err := n.client.Resolve(within(t), executor.ResolveRequest{Session: "s1", CallID: c.id, As: c.as, Output: c.output, By: "user ada", Reason: c.reason})
		if schema.KindOf(err) != c.kind {
			t.Errorf("%s as %s: %v, want %s", c.id, c.as, err, c.kind)
		}
	}
	close(held.hold)
	wait(t, "the answer", asked)
	if c := p.read("s1").State.Call("gone"); !c.Result.Open() || len(c.Attempts) != 1 {
		t.Errorf("what was refused has changed the call to %+v", c)
	}
	n.resolve("s1", "secret", executor.AsFailed, "sent it anew")
}

// redactedCall is a recorded call of which a value was replaced.
func redactedCall(id, tool string) []byte {
	var o schema.Object
	return o.Text("call_id", id).Text("name", tool).Raw("args", []byte(`{"key":"[redacted]"}`)).Text("args_sha256", "0").
		Raw("redacted", []byte(`[{"pointer":"/args/key","rule":"key:key","hash":"hmac-sha256:00"}]`)).Bytes()
}

// A retry that a crash cuts short leaves the open result as it was, and nothing
// runs again by itself.
func TestARetryThatIsCutShortIsNotRepeated(t *testing.T) {
	p := newPlace(t, journaltest.NATSOptions{})
	p.leave("s1", journaltest.Call("c1", "once", `{}`), decided("c1", "allow"), journaltest.Started("c1", 1))
	count := newCounter(false)
	tools := []executor.Tool{count.tool("once", false)}
	n := p.node(tools)
	before := n.call("s1", "c1", "once", `{}`)
	n.stop()
	p.leave("s1", decided("c1", "allow"), journaltest.Started("c1", 2)) // and no result
	n = p.node(tools)
	if a := n.call("s1", "c1", "once", `{}`); string(a.Data) != string(before.Data) || count.of("c1") != 0 {
		t.Errorf("the call is answered with %s and ran %d times", a.Data, count.of("c1"))
	}
	if a := n.resolve("s1", "c1", executor.AsRetry, "it did nothing"); field[int](t, a.Data, "attempt") != 3 || count.of("c1") != 1 {
		t.Errorf("it is resolved as %s after %d runs", a.Data, count.of("c1"))
	}
}

func TestWaitGivesTheResultOfACallThatIsNotThereYet(t *testing.T) {
	p := newPlace(t, journaltest.NATSOptions{})
	held := newCounter(true)
	n := p.node([]executor.Tool{held.tool("held", false)})
	n.open("s1")
	waited := make(chan executor.Answer, 1)
	go func() {
		a, err := n.client.Wait(within(t), "s1", "c1")
		if err != nil {
			t.Error(err)
		}
		waited <- a
	}()
	asked := n.background("s1", "c1", "held")
	wait(t, "the tool", held.begun)
	close(held.hold)
	a := wait(t, "the answer", asked)
	if w := wait(t, "who waits", waited); string(w.Data) != string(a.Data) {
		t.Errorf("who waits gets %s, want %s", w.Data, a.Data)
	}
	if again, err := n.client.Wait(within(t), "s1", "c1"); err != nil || string(again.Data) != string(a.Data) {
		t.Errorf("who comes later gets %s, %v", again.Data, err)
	}
	_, err := n.client.Wait(within(t), "s2", "c1")
	wantErr(t, err, schema.NotFound)
}

// A provider that begins its ids anew in each turn gives two calls one id: the
// refusal says which call has it, and what to do.
func TestACallConflictIsExplained(t *testing.T) {
	p := newPlace(t, journaltest.NATSOptions{})
	n := p.node([]executor.Tool{echo})
	n.open("s1")
	n.call("s1", "call_0", "echo", `{"turn":1}`)
	_, err := n.client.Call(within(t), "s1", request("call_0", "echo", `{"turn":2}`))
	wantErr(t, err, schema.CallConflict)
	d := schema.AsError(err).Details
	c := p.read("s1").State.Call("call_0")
	if d["tool"] != "echo" || d["differs"] != "other arguments" || d["seq"] != float64(c.Seq) || d["args_sha256"] != c.ArgsSHA256 {
		t.Errorf("the details are %v", d)
	}
}
