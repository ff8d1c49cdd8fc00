package executor_test

import (
	"context"
	"strings"
	"testing"

	"steno/executor"
	"steno/journal/journaltest"
	"steno/schema"
)

// asksOnce is a tool that may not run again, and asks a person in its first attempt.
func asksOnce(did *notes) executor.Tool {
	return toolOf("asks", func(_ context.Context, c *executor.Invocation) (executor.Result, error) {
		if c.Attempt == 1 {
			return executor.Result{}, &executor.Question{Text: "Delete all? The key is API_TOKEN=abcdefg123456 " + strings.Repeat("x", 2000)}
		}
		did.add("%s %d", c.CallID, c.Attempt)
		return executor.Result{OK: true, Output: "deleted"}, nil
	})
}

func TestT25AToolAsksAPerson(t *testing.T) {
	p := newPlace(t, journaltest.NATSOptions{})
	var did notes
	n := p.node([]executor.Tool{asksOnce(&did)})
	n.open("s1")
	q, result := n.asked("s1", "c1", "asks", `{}`)
	if !strings.HasPrefix(q.Reason, "the tool asks: Delete all?") || strings.Contains(q.Reason, "abcdefg123456") || len(q.Reason) > 1100 {
		t.Errorf("asked is %q", q.Reason)
	}
	n.mustAnswer(q, "allow")
	a := wait(t, "the result", result)
	p.wantRecorded("s1", a)
	wantKindOfResult(t, a.Data, "")
	if got := field[int](t, a.Data, "attempt"); got != 2 || len(did.all()) != 1 {
		t.Errorf("it ran in attempt %d, and did %q", got, did.all())
	}
	p.wantTypes("s1", schema.TypeToolCall, schema.TypeDecision, schema.TypeToolStarted, schema.TypeApprovalRequested, schema.TypeDecision, schema.TypeToolStarted, schema.TypeToolResult)

	q, result = n.asked("s1", "c2", "asks", `{}`)
	n.mustAnswer(q, "deny")
	wantKindOfResult(t, wait(t, "the result", result).Data, schema.ApprovalDenied)
	if len(did.all()) != 1 {
		t.Errorf("it did %q", did.all())
	}
}

// The question waits whatever becomes of the executor, and its answer counts.
func TestT25AToolsQuestionOutlivesItsExecutor(t *testing.T) {
	p := newPlace(t, journaltest.NATSOptions{})
	var did notes
	n := p.node([]executor.Tool{asksOnce(&did)})
	n.open("s1")
	client, over := p.client(), make(chan executor.Answer, 1)
	go func() {
		a, err := client.Call(within(t), "s1", request("c1", "asks", `{}`)) // it does not care who has the session
		if err != nil {
			t.Error(err)
		}
		over <- a
	}()
	q := n.question("s1", "c1")
	n.stop()
	m := p.node([]executor.Tool{asksOnce(&did)})
	if again := m.question("s1", "c1"); again.ApprovalID != q.ApprovalID {
		t.Errorf("asked is %+v, before %+v", again, q)
	}
	m.mustAnswer(q, "allow")
	a := wait(t, "the answer", over)
	if wantKindOfResult(t, a.Data, ""); field[int](t, a.Data, "attempt") != 2 || len(did.all()) != 1 {
		t.Errorf("the result is %s; it did %q", a.Data, did.all())
	}
}

func TestT25AToolThatAsksNobody(t *testing.T) {
	p := newPlace(t, journaltest.NATSOptions{})
	var did notes
	n := p.node([]executor.Tool{asksOnce(&did)}, func(c *executor.Config) { c.DenyUnattended = true })
	n.open("s1")
	a := n.call("s1", "c1", "asks", `{}`)
	if wantKindOfResult(t, a.Data, schema.ApprovalDenied); field[int](t, a.Data, "attempt") != 1 || len(did.all()) != 0 {
		t.Errorf("the result is %s; it did %q", a.Data, did.all())
	}
}
