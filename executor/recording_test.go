package executor_test

import (
	"fmt"
	"strings"
	"testing"

	"steno/executor"
	"steno/journal/journaltest"
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
	store := p.store()
	secret, err := store.Secret()
	if err != nil {
		t.Fatal(err)
	}
	redact, err := executor.NewRedactor(secret, executor.Redaction{})
	if err != nil {
		t.Fatal(err)
	}
	r, err := executor.OpenRecording(t.Context(), store, "s1", 0, redact)
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
	redact, err := executor.NewRedactor(secret, executor.Redaction{})
	if err != nil {
		t.Fatal(err)
	}
	for order, want := range map[string]string{"1 2 3": "one two three", "2 1 3": "two one three", "3 1 2": "- one two", "2 3 1": "two - one", "1 2 3 4": "one two three -"} {
		r, err := executor.OpenRecording(t.Context(), store, "s1", 0, redact)
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
		if _, err := executor.OpenRecording(t.Context(), store, "s1", asOf, redact); schema.KindOf(err) != kind {
			t.Errorf("as of %d: %v", asOf, err)
		}
	}
	if _, err := executor.OpenRecording(t.Context(), store, "none", 0, redact); schema.KindOf(err) != schema.NotFound {
		t.Error(err)
	}
}
