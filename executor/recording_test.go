package executor_test

import (
	"fmt"
	"strings"
	"testing"

	"steno/executor"
	"steno/executor/redact"
	"steno/journal/journaltest"
	"steno/replay"
	"steno/schema"
)

// An agent of a test, which is a program that may run again: ids of its calls are
// what ids says.
func agent(t *testing.T, c *executor.Client, ids string) (said []string) {
	t.Helper()
	if _, err := c.Open(within(t), executor.OpenRequest{Session: "s1"}); err != nil {
		t.Fatal(err)
	}
	note := func(e executor.AppendEvent) {
		if _, err := c.Append(within(t), "s1", e); err != nil {
			t.Fatal(err)
		}
	}
	note(event("user_message", `{"text":"go"}`))
	for i, args := range []string{`{"n":1}`, `{"n":2,"big":12345678901234567890}`, `{"n":1}`} {
		a, err := c.Call(within(t), "s1", request(fmt.Sprint(ids, i), "echo", args))
		if err != nil {
			t.Fatal(err)
		}
		said = append(said, field[string](t, a.Data, "output"))
		if got := field[string](t, a.Data, "call_id"); got != fmt.Sprint(ids, i) {
			t.Errorf("call %d is answered as %s", i, got)
		}
	}
	note(event("assistant_message", `{"text":"done"}`))
	if _, err := c.End(within(t), executor.EndRequest{Session: "s1", Outcome: "completed"}); err != nil {
		t.Fatal(err)
	}
	return said
}

// recording is a session of the agent, and its record served on a server of its
// own.
func recording(t *testing.T) (*place, *executor.Recording, *executor.Client, []string) {
	t.Helper()
	p := newPlace(t, journaltest.NATSOptions{})
	n := p.node([]executor.Tool{echo})
	said := agent(t, n.client, "c")
	n.stop()
	r, client := served(t, p)
	return p, r, client, said
}

func TestS10AProgramThatRunsAgainGetsRecordedResults(t *testing.T) {
	p, r, client, said := recording(t)
	before := p.read("s1").Head
	if got := agent(t, client, "c"); strings.Join(got, "|") != strings.Join(said, "|") {
		t.Errorf("it hears %q, and heard %q", got, said)
	}
	if r.Diverged() != 0 || p.read("s1").Head != before {
		t.Errorf("%d divergences, head %v", r.Diverged(), p.read("s1").Head)
	}
	if a, err := client.Wait(within(t), "s1", "c1"); err != nil || field[string](t, a.Data, "output") != said[1] {
		t.Errorf("%s, %v", a.Data, err)
	}
	if g, err := client.Get(within(t), "s1"); err != nil || g.Calls["ok"] != 3 {
		t.Errorf("%+v, %v", g, err)
	}
}

func TestS10AProgramWithNewIDsIsAnsweredByOrder(t *testing.T) {
	_, r, client, said := recording(t)
	if got := agent(t, client, "other-"); strings.Join(got, "|") != strings.Join(said, "|") || r.Diverged() != 0 {
		t.Errorf("it hears %q, and heard %q", got, said)
	}
	// A repeat is the same call.
	if a, err := client.Call(within(t), "s1", request("other-1", "echo", `{"n":2,"big":12345678901234567890}`)); err != nil || field[string](t, a.Data, "output") != said[1] {
		t.Errorf("%s, %v", a.Data, err)
	}
	_, err := client.Call(within(t), "s1", request("one-more", "echo", `{"n":1}`))
	wantErr(t, err, schema.ReplayDivergence)
}

func TestS10WhatIsNotInTheRecordIsADivergence(t *testing.T) {
	_, r, client, _ := recording(t)
	call := func(id, tool, args string) func() error {
		return func() error {
			_, err := client.Call(within(t), "s1", request(id, tool, args))
			return err
		}
	}
	for what, c := range map[string]struct {
		ask             func() error
		asked, recorded string
	}{
		"other arguments": {call("c0", "echo", `{"n":9}`), `c0 echo {"n":9}`, `c0 echo {"n":1}`},
		"another tool":    {call("c0", "none", `{"n":1}`), `c0 none {"n":1}`, `c0 echo {"n":1}`},
		"out of order":    {call("x", "echo", `{"n":2,"big":12345678901234567890}`), `x echo {"n":2`, `c0 echo {"n":1}`},
		"another message": {func() error {
			_, err := client.Append(within(t), "s1", event("user_message", `{"text":"stop"}`))
			return err
		}, `user_message {"text":"stop"}`, `user_message {"text":"go"}`},
		"another end": {func() error {
			_, err := client.End(within(t), executor.EndRequest{Session: "s1", Outcome: "failed"})
			return err
		}, "failed", "completed"},
		"another verb":       {func() error { _, err := client.Fork(within(t), executor.ForkRequest{Session: "s1"}); return err }, "session.fork", "<nil>"},
		"no result to await": {func() error { _, err := client.Wait(within(t), "s1", "none"); return err }, "none", "<nil>"},
	} {
		err := c.ask()
		if wantErr(t, err, schema.ReplayDivergence); err == nil {
			continue
		}
		d := schema.AsError(err).Details
		if !strings.HasPrefix(fmt.Sprint(d["asked"]), c.asked) || !strings.HasPrefix(fmt.Sprint(d["recorded"]), c.recorded) {
			t.Errorf("%s: asked is %v, recorded %v", what, d["asked"], d["recorded"])
		}
	}
	if r.Diverged() != 7 {
		t.Errorf("%d divergences", r.Diverged())
	}
	_, err := client.Call(within(t), "s2", request("c0", "echo", `{"n":1}`))
	wantErr(t, err, schema.NotFound)
	_, err = client.Call(within(t), "s1", executor.Request{CallID: "c 0", Name: "echo"})
	wantErr(t, err, schema.InvalidArgs)
}

// resuming is an agent that keeps nothing: it asks for its messages, does what is
// open and lets its model, a script, say what comes next. It gives what it was told
// each time.
func resuming(t *testing.T, c *executor.Client) (told []string) {
	t.Helper()
	script := []executor.AppendEvent{
		event("user_message", `{"text":"go"}`),
		event("assistant_message", `{"content":[{"type":"function","id":"a","function":{"name":"echo","arguments":"{\"n\":1}"}},{"type":"function","id":"b","function":{"name":"echo","arguments":"{\"n\":2}"}}]}`),
		event("assistant_message", `{"content":[{"type":"function","id":"c","function":{"name":"echo","arguments":"{\"n\":3}"}}]}`),
		event("assistant_message", `{"text":"`+strings.Repeat("large ", 60_000)+`"}`),
	}
	turns := [][]executor.Request{nil, {request("a", "echo", `{"n":1}`), request("b", "echo", `{"n":2}`)}, {request("c", "echo", `{"n":3}`)}, nil}
	if _, err := c.Open(within(t), executor.OpenRequest{Session: "s1"}); err != nil {
		t.Fatal(err)
	}
	for range 20 {
		at, err := c.Resume(within(t), executor.ResumeRequest{Session: "s1", Format: replay.FormatOpenAI})
		if err != nil {
			t.Fatal(err)
		}
		text, said := "", 0
		for _, m := range at.Messages {
			text += string(m) + "\n"
			if role := field[string](t, m, "role"); role == "user" || role == "assistant" {
				said++
			}
		}
		told = append(told, fmt.Sprintf("%s %v\n%s", at.Outcome, at.Calls, text))
		switch {
		case at.Outcome != "":
			return told
		case strings.Contains(text, `\"synthetic\":true`):
			for _, r := range turns[said-1] {
				if _, err := c.Call(within(t), "s1", r); err != nil {
					t.Fatal(err)
				}
			}
		case said == len(script):
			if _, err := c.End(within(t), executor.EndRequest{Session: "s1", Outcome: "completed"}); err != nil {
				t.Fatal(err)
			}
		default:
			if _, err := c.Append(within(t), "s1", script[said]); err != nil {
				t.Fatal(err)
			}
		}
	}
	t.Fatalf("it does not end: %q", told)
	return nil
}

// served is a recording on a server of its own.
func served(t *testing.T, p *place, tools ...executor.Tool) (*executor.Recording, *executor.Client) {
	t.Helper()
	store := p.store()
	secret, err := store.Secret()
	if err != nil {
		t.Fatal(err)
	}
	redactor, err := redact.New(secret, redact.Rules{})
	if err != nil {
		t.Fatal(err)
	}
	r, err := executor.OpenRecording(t.Context(), store, "s1", 0, redactor, tools...)
	if err != nil {
		t.Fatal(err)
	}
	alone := journaltest.StartNATS(t, journaltest.NATSOptions{})
	stop, err := r.Serve(alone.Connect(), "")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := stop(); err != nil {
			t.Error(err)
		}
	})
	client, err := executor.NewClient(alone.Connect(), "")
	if err != nil {
		t.Fatal(err)
	}
	return r, client
}

// An agent that goes on from its session runs again from the beginning: it is told
// how far it has come, and not how it ended.
func TestS10AnAgentThatResumesRunsAgain(t *testing.T) {
	p := newPlace(t, journaltest.NATSOptions{})
	n := p.node([]executor.Tool{echo})
	told := resuming(t, n.client)
	n.stop()
	before := p.read("s1").Head
	r, client := served(t, p)
	again := resuming(t, client)
	// What a user said is said when it begins: whoever runs again need not be who said it.
	if len(told) != 8 || strings.Join(again, "|") != strings.Join(told[1:], "|") || r.Diverged() != 0 {
		t.Errorf("%d divergences; it was told %.3000q\nand is told %.3000q", r.Diverged(), told, again)
	}
	if p.read("s1").Head != before {
		t.Error("the session has changed")
	}
}

// Who says what a user says is no matter: it may be the program itself.
func TestS10AProgramMayRepeatWhatItWasTold(t *testing.T) {
	_, r, client, said := recording(t)
	if a, err := client.Resume(within(t), executor.ResumeRequest{Session: "s1", Format: replay.FormatSteno}); err != nil || len(a.Messages) != 1 || len(a.Calls) != 0 || a.Epoch != 1 || a.How != "new" {
		t.Errorf("%+v, %v", a, err)
	}
	if got := agent(t, client, "c"); strings.Join(got, "|") != strings.Join(said, "|") || r.Diverged() != 0 {
		t.Errorf("it hears %q, and heard %q; %d divergences", got, said, r.Diverged())
	}
	a, err := client.Resume(within(t), executor.ResumeRequest{Session: "s1", Format: replay.FormatSteno})
	if err != nil || a.Outcome != "completed" || a.Calls["ok"] != 3 || len(a.Messages) != 8 {
		t.Errorf("%+v, %v", a, err)
	}
}

// Whatever a program may ask of its session is answered from the record as far as
// the run has come, and changes nothing.
func TestS10ARecordAnswersWhatAClientAsks(t *testing.T) {
	p := newPlace(t, journaltest.NATSOptions{})
	tool := echo
	tool.Description = "Says it again."
	n := p.node([]executor.Tool{tool})
	n.open("s1")
	phase := func(c *executor.Client) (executor.PhaseAnswer, error) {
		return c.Phase(within(t), executor.PhaseRequest{Session: "s1", Phase: executor.PhaseVerifying})
	}
	posture := func(c *executor.Client) (executor.PostureAnswer, error) {
		return c.Posture(within(t), executor.PostureRequest{Session: "s1", Mode: "ask", By: "ada", Reason: "r"})
	}
	was := n.call("s1", "a", "echo", `{"n":1}`)
	if _, err := phase(n.client); err != nil {
		t.Fatal(err)
	}
	n.call("s1", "b", "none", `{}`)
	if _, err := posture(n.client); err != nil {
		t.Fatal(err)
	}
	n.stop()
	r, c := served(t, p, tool)
	calls := func() string {
		a, err := c.Calls(within(t), executor.CallsRequest{Session: "s1"})
		if err != nil {
			t.Fatal(err)
		}
		var ids []string
		for _, i := range a.Calls {
			ids = append(ids, i.CallID+" "+i.State)
		}
		return strings.Join(ids, ", ")
	}
	tools, err := c.Tools(within(t), executor.ToolsRequest{Session: "s1"})
	if err != nil || len(tools.Tools) != 1 || tools.Phase != "" || field[string](t, tools.Tools[0], "description") != "Says it again." {
		t.Errorf("%s, %v", tools.Tools, err)
	}
	if got := calls(); got != "" {
		t.Errorf("at the beginning there are the calls %s", got)
	}
	_, err = c.LookAtCall(within(t), executor.CallRequest{Session: "s1", CallID: "a"})
	wantErr(t, err, schema.NotFound)
	if l, err := c.List(within(t), executor.ListRequest{}); err != nil || len(l.Sessions) != 1 || l.Sessions[0].Session != "s1" || l.More {
		t.Errorf("%+v, %v", l, err)
	}
	// By way of the queue, as by request.
	if err := c.Enqueue(within(t), "s1", request("a", "echo", `{"n":1}`)); err != nil {
		t.Error(err)
	}
	if a, err := c.Wait(within(t), "s1", "a"); err != nil || string(a.Data) != string(was.Data) {
		t.Errorf("%s, %v", a.Data, err)
	}
	if is, err := c.LookAtCall(within(t), executor.CallRequest{Session: "s1", CallID: "a"}); err != nil || is.Call == nil || is.Open || len(is.Events) != 4 {
		t.Errorf("%+v, %v", is, err)
	}
	if err := c.Enqueue(within(t), "s1", request("z", "echo", `{"n":9}`)); err == nil || r.Diverged() != 1 {
		t.Errorf("what is not in the record is queued: %v, %d divergences", err, r.Diverged())
	}
	if a, err := phase(c); err != nil || !a.Changed || a.Phase != executor.PhaseVerifying {
		t.Errorf("%+v, %v", a, err)
	}
	if a, err := phase(c); err != nil || a.Changed || a.Phase != executor.PhaseVerifying {
		t.Errorf("again: %+v, %v", a, err)
	}
	_, err = c.Phase(within(t), executor.PhaseRequest{Session: "s1", Phase: executor.PhaseEditing})
	wantErr(t, err, schema.ReplayDivergence)
	if got := calls(); got != "a ok" {
		t.Errorf("there are the calls %s", got)
	}
	if a, err := c.Cancel(within(t), executor.CancelRequest{Session: "s1", CallID: "b", By: "ada"}); err != nil || field[bool](t, a.Data, "ok") {
		t.Errorf("%s, %v", a.Data, err)
	}
	if got := calls(); got != "a ok, b unknown_tool" {
		t.Errorf("there are the calls %s", got)
	}
	if a, err := posture(c); err != nil || !a.Changed || a.Mode != "ask" {
		t.Errorf("%+v, %v", a, err)
	}
	if a, err := c.Resume(within(t), executor.ResumeRequest{Session: "s1"}); err != nil || a.Mode != "ask" || a.Phase != executor.PhaseVerifying || a.Calls["ok"] != 1 {
		t.Errorf("%+v, %v", a, err)
	}
	_, err = c.Posture(within(t), executor.PostureRequest{Session: "s1", Mode: "auto", By: "ada", Reason: "r"})
	wantErr(t, err, schema.ReplayDivergence)
	_, err = c.Resolve(within(t), executor.ResolveRequest{Session: "s1", CallID: "z", As: executor.AsFailed, By: "ada", Reason: "r"})
	wantErr(t, err, schema.ReplayDivergence)
	_, err = c.Approvals(within(t), executor.ApprovalsRequest{Session: "s1"})
	wantErr(t, err, schema.ReplayDivergence)
	if r.Diverged() != 5 {
		t.Errorf("%d divergences", r.Diverged())
	}
	for what, err := range map[string]error{
		"resume": func() error { _, err := c.Resume(within(t), executor.ResumeRequest{Session: "s2"}); return err }(),
		"tools":  func() error { _, err := c.Tools(within(t), executor.ToolsRequest{Session: "s2"}); return err }(),
		"calls":  func() error { _, err := c.Calls(within(t), executor.CallsRequest{Session: "s2"}); return err }(),
	} {
		if schema.KindOf(err) != schema.NotFound {
			t.Errorf("%s of another session: %v", what, err)
		}
	}
	_, err = c.Tools(within(t), executor.ToolsRequest{Session: "s1", Format: "x"})
	wantErr(t, err, schema.InvalidArgs)
	// A tool that nobody knows any more has its name.
	_, c = served(t, p)
	if tools, err := c.Tools(within(t), executor.ToolsRequest{Session: "s1", Format: executor.FormatAnthropic}); err != nil || len(tools.Tools) != 1 || field[string](t, tools.Tools[0], "name") != "echo" {
		t.Errorf("%s, %v", tools.Tools, err)
	}
}

// Calls that were open together come in any order; others do not.
func TestS10CallsSideBySideMayComeInAnyOrder(t *testing.T) {
	p := newPlace(t, journaltest.NATSOptions{})
	p.leave("s1", journaltest.Call("a", "echo", `{"n":1}`), journaltest.Call("b", "echo", `{"n":2}`), journaltest.Result("b", 1, `"two"`), journaltest.Result("a", 1, `"one"`),
		journaltest.Call("c", "echo", `{"n":3}`), journaltest.Result("c", 1, `"three"`), journaltest.Call("open", "echo", `{"n":4}`))
	store := p.store()
	secret, err := store.Secret()
	if err != nil {
		t.Fatal(err)
	}
	redactor, err := redact.New(secret, redact.Rules{})
	if err != nil {
		t.Fatal(err)
	}
	for order, want := range map[string]string{"1 2 3": "one two three", "2 1 3": "two one three", "3 1 2": "- one two", "2 3 1": "two - one", "1 2 3 4": "one two three -"} {
		r, err := executor.OpenRecording(t.Context(), store, "s1", 0, redactor)
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for i, n := range strings.Fields(order) {
			a, err := r.Answer(request(fmt.Sprint("new", i), "echo", `{"n":`+n+`}`))
			if got = append(got, "-"); err == nil {
				got[i] = field[string](t, a.Data, "output")
			} else if schema.KindOf(err) != schema.ReplayDivergence {
				t.Error(err)
			}
		}
		if strings.Join(got, " ") != want {
			t.Errorf("in the order %s the answers are %q, want %s", order, got, want)
		}
	}
	for asOf, kind := range map[uint64]schema.Kind{99: schema.NotFound} {
		if _, err := executor.OpenRecording(t.Context(), store, "s1", asOf, redactor); schema.KindOf(err) != kind {
			t.Errorf("as of %d: %v", asOf, err)
		}
	}
	if _, err := executor.OpenRecording(t.Context(), store, "none", 0, redactor); schema.KindOf(err) != schema.NotFound {
		t.Error(err)
	}
}
