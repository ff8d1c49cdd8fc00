package executor_test

import (
	"context"
	"strings"
	"testing"

	"github.com/go-json-experiment/json/jsontext"

	"steno/executor"
	"steno/journal/journaltest"
	"steno/schema"
)

// whoami is a tool that answers on whose behalf it was called.
func whoami(name string) executor.Tool {
	return toolOf(name, func(_ context.Context, c *executor.Invocation) (executor.Result, error) {
		return executor.Result{OK: true, Output: c.Actor.ID + " through " + c.Actor.Via}, nil
	})
}

// actorOf is the actor of the event of a type and a call, as it is recorded.
func (p *place) actorOf(session, typ, id string) string {
	p.t.Helper()
	for _, e := range p.read(session).Events {
		if e.Type == typ && field[string](p.t, e.Data, "call_id") == id {
			return string(field[jsontext.Value](p.t, e.Data, "actor"))
		}
	}
	return "no " + typ
}

// Who makes a call comes from the request and its door, never from arguments.
func TestT17TheActorComesFromTheApplicationAndTheDoor(t *testing.T) {
	p := newPlace(t, journaltest.NATSOptions{JetStream: true})
	tools := []executor.Tool{whoami("who")}
	n := p.node(tools)
	n.open("s1")
	other := p.node(tools, func(c *executor.Config) { c.Queue = true }) // it passes on what it takes from the queue
	asked := func(id string, actor executor.Actor) executor.Request {
		r := request(id, "who", `{"actor":{"id":"the model","via":"go"},"id":"root"}`)
		r.Actor, r.Context = actor, jsontext.Value(`{"actor":{"id":"nobody"}}`)
		return r
	}
	want := func(id, actor string) {
		t.Helper()
		output := " through "
		if actor != "" {
			who := jsontext.Value(actor)
			output = field[string](t, who, "id") + " through " + field[string](t, who, "via")
		}
		if got := p.actorOf("s1", schema.TypeToolCall, id); got != actor {
			t.Errorf("call %s is recorded for %s, want %s", id, got, actor)
		}
		if got := field[string](t, p.result("s1", id), "output"); got != output {
			t.Errorf("the tool of call %s was told %q, want %q", id, got, output)
		}
	}
	for id, c := range map[string]struct {
		actor executor.Actor
		want  string
	}{
		"none":   {executor.Actor{}, ``},
		"ada":    {executor.Actor{ID: "ada"}, `{"id":"ada","via":"request"}`},
		"forged": {executor.Actor{ID: "ada \u00e9", Via: "go"}, `{"id":"ada ` + "\u00e9" + `","via":"request"}`},
		"quotes": {executor.Actor{ID: `"ada"`}, `{"id":"\"ada\"","via":"request"}`},
		"secret": {executor.Actor{ID: "password=hunter2hunter2"}, `{"id":"password=[redacted]","via":"request"}`},
	} {
		if _, err := n.client.Call(within(t), "s1", asked(id, c.actor)); err != nil {
			t.Fatal(err)
		}
		want(id, c.want)
	}
	if _, err := other.client.Call(within(t), "s1", asked("p1", executor.Actor{ID: "ada"})); err != nil {
		t.Fatal(err)
	}
	want("p1", `{"id":"ada","via":"request"}`)
	if err := n.client.Enqueue(within(t), "s1", asked("q1", executor.Actor{ID: "ada", Via: "request"})); err != nil {
		t.Fatal(err)
	}
	if _, err := n.client.Wait(within(t), "s1", "q1"); err != nil {
		t.Fatal(err)
	}
	want("q1", `{"id":"ada","via":"queue"}`)
	if _, err := n.Do(within(t), "s1", asked("g1", executor.Actor{ID: "ada", Via: "queue"})); err != nil {
		t.Fatal(err)
	}
	want("g1", `{"id":"ada","via":"go"}`)
	// Who repeats a call does not make it.
	if a, err := n.client.Call(within(t), "s1", asked("ada", executor.Actor{ID: "bob"})); err != nil || field[string](t, a.Data, "output") != "ada through request" {
		t.Errorf("the repeat gives %s, %v", a.Data, err)
	}

	events := len(p.read("s1").Events)
	for _, id := range []string{strings.Repeat("x", 257), "a\nb", "\x00", "a\x7f"} {
		_, err := n.client.Call(within(t), "s1", asked("bad", executor.Actor{ID: id}))
		wantErr(t, err, schema.InvalidArgs)
	}
	_, err := n.client.Call(within(t), "s1", asked("bad", executor.Actor{Via: "go"}))
	wantErr(t, err, schema.InvalidArgs)
	for _, actor := range []string{`"ada"`, `["ada"]`, `{"id":1}`, `{"id":"ada","role":"admin"}`, `{"id":"ada","id":"bob"}`} {
		m, err := n.conn.RequestWithContext(within(t), "steno.v1.call.s1", []byte(`{"call_id":"bad","name":"who","actor":`+actor+`}`))
		if err != nil || m.Header.Get(executor.HeaderErrorKind) != string(schema.InvalidArgs) {
			t.Errorf("actor %s: %s, %v", actor, m.Data, err)
		}
	}
	if got := len(p.read("s1").Events); got != events {
		t.Errorf("%d events were recorded of what is no actor", got-events)
	}
}

// A person is told for whom a call is, and the tool is told the same after a
// restart, whoever asks for the call then.
func TestT17TheActorOutlivesTheProcessAndTheOneWhoAnswersIsRecorded(t *testing.T) {
	p := newPlace(t, journaltest.NATSOptions{})
	first := p.node([]executor.Tool{whoami("who")}, withPolicy(t, asking))
	first.open("s1")
	req := request("c1", "who", `{}`)
	req.Actor.ID = "ada"
	gone := make(chan struct{})
	go func() {
		defer close(gone)
		_, _ = first.client.Call(within(t), "s1", req)
	}()
	first.question("s1", "c1")
	first.stop()

	second := p.node([]executor.Tool{whoami("who")}, withPolicy(t, asking))
	q := second.question("s1", "c1")
	if q.Actor != (executor.Actor{ID: "ada", Via: "request"}) {
		t.Errorf("a person is told that it is for %+v", q.Actor)
	}
	req.Actor.ID = "bob"
	result := make(chan executor.Answer, 1)
	go func() {
		a, err := second.client.Call(within(t), "s1", req)
		if err != nil {
			t.Error(err)
		}
		result <- a
	}()
	second.mustAnswer(q, "allow")
	if a := wait(t, "the result", result); field[string](t, a.Data, "output") != "ada through request" {
		t.Errorf("the tool was told %s", a.Data)
	}
	if got := p.actorOf("s1", schema.TypeDecision, "c1"); got != `{"id":"ann@example.org","via":"request"}` {
		t.Errorf("decided by %s", got)
	}
	wait(t, "the first request", gone)
}
