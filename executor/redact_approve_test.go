package executor_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"steno/executor"
	"steno/journal/journaltest"
	"steno/schema"
)

// A person is asked about a call in which something is hidden, and decides about
// this call and no other. It runs from a request that carries what is hidden,
// which may be in a process that comes later, or in the queue; from the log alone
// it does not.
func TestT25ACallWithASecretWaitsForAPerson(t *testing.T) {
	const args, secret = `{"to":"ada","token":"hunter2-hunter2"}`, "hunter2-hunter2"
	send := func(told chan<- string) executor.Tool {
		return toolOf("send", func(_ context.Context, c *executor.Invocation) (executor.Result, error) {
			told <- string(c.Args) + string(c.Context)
			return executor.Result{OK: true, Output: "sent"}, nil
		})
	}
	start := func(t *testing.T, o journaltest.NATSOptions, change ...func(*executor.Config)) (*place, *node, chan string) {
		p, told := newPlace(t, o), make(chan string, 10)
		n := p.idle([]executor.Tool{send(told)}, append(change, withPolicy(t, asking))...)
		executor.SetRetryFirst(n.Executor, time.Minute)
		if err := n.Start(context.Background()); err != nil {
			t.Fatal(err)
		}
		n.open("s1")
		return p, n, told
	}
	// next is another process.
	next := func(p *place, n *node, told chan string) *node {
		n.stop()
		return p.node([]executor.Tool{send(told)}, withPolicy(p.t, asking))
	}
	runs := func(t *testing.T, p *place, n *node, told chan string) {
		t.Helper()
		if got := wait(t, "the tool", told); !strings.Contains(got, secret) {
			t.Errorf("the tool is told %s", got)
		}
		a, err := n.client.Wait(within(t), "s1", "c1")
		if err != nil || kindOfResult(t, a.Data) != "" || field[string](t, a.Data, "output") != "sent" {
			t.Errorf("the result is %s, %v", a.Data, err)
		}
		nowhere(t, []string{secret}, []string{p.dir}, map[string]string{"the log": n.log.String()})
	}

	t.Run("its request still waits", func(t *testing.T) {
		p, n, told := start(t, journaltest.NATSOptions{})
		q, result := n.asked("s1", "c1", "send", args)
		if string(q.Args) != `{"to":"ada","token":"[redacted]"}` || q.Redacted == "" || q.Redacted != p.read("s1").State.Call("c1").Redacted {
			t.Errorf("asked is %+v", q)
		}
		for what, change := range map[string]func(*executor.ApprovalInfo){
			"another secret": func(q *executor.ApprovalInfo) { q.Redacted = strings.Repeat("0", 64) },
			"no secret":      func(q *executor.ApprovalInfo) { q.Redacted = "" },
			"other words":    func(q *executor.ApprovalInfo) { q.ArgsSHA256 = strings.Repeat("0", 64) },
			"the secret":     func(q *executor.ApprovalInfo) { q.ArgsSHA256 = "" },
		} {
			seen := q
			change(&seen)
			if _, err := n.answer(seen, "allow"); schema.KindOf(err) != schema.CallConflict {
				t.Errorf("%s was seen, and the answer is %v", what, err)
			}
		}
		// The same id with another secret is no request of this call.
		_, err := n.client.Call(within(t), "s1", request("c1", "send", `{"to":"ada","token":"hunter3-hunter3"}`))
		wantErr(t, err, schema.CallConflict)
		n.mustAnswer(q, "allow")
		runs(t, p, n, told)
		p.wantRecorded("s1", wait(t, "the answer", result))
	})
	t.Run("its request waits for the next process", func(t *testing.T) {
		p, n, told := start(t, journaltest.NATSOptions{})
		q, result := n.asked("s1", "c1", "send", args)
		second := next(p, n, told)
		if again := second.question("s1", "c1"); again.ApprovalID != q.ApprovalID || again.Redacted != q.Redacted {
			t.Errorf("asked is %+v, before %+v", again, q)
		}
		second.mustAnswer(q, "allow")
		runs(t, p, second, told)
		p.wantRecorded("s1", wait(t, "the answer", result))
	})
	t.Run("its request is gone", func(t *testing.T) {
		p, n, told := start(t, journaltest.NATSOptions{})
		ctx, cancel := context.WithCancel(within(t))
		gone := make(chan struct{})
		go func() {
			defer close(gone)
			_, _ = n.client.Call(ctx, "s1", request("c1", "send", args))
		}()
		q := n.question("s1", "c1")
		cancel()
		wait(t, "the request", gone)
		second := next(p, n, told)
		second.mustAnswer(q, "allow")
		a, err := second.client.Wait(within(t), "s1", "c1")
		if err != nil {
			t.Fatal(err)
		}
		wantKindOfResult(t, a.Data, schema.Interrupted)
		if field[int](t, a.Data, "attempt") != 0 || len(told) != 0 {
			t.Errorf("it has run: %s", a.Data)
		}
		// Nothing took effect, and that is what is said about it.
		look, err := second.client.LookAtCall(within(t), executor.CallRequest{Session: "s1", CallID: "c1"})
		if err != nil || !strings.HasPrefix(look.Next, "it did not start, so nothing took effect; have the agent send it again under a new call id") ||
			strings.Contains(look.Next, "look whether") || strings.Contains(string(a.Data), "look whether") {
			t.Errorf("the next step is %q (%v), and of the result %s", look.Next, err, a.Data)
		}
		// Who sends it again gets that, and may send it under another id.
		if again := second.call("s1", "c1", "send", args); string(again.Data) != string(a.Data) {
			t.Errorf("the request that came back gets %s", again.Data)
		}
	})
	t.Run("it waits in the queue", func(t *testing.T) {
		p, n, told := start(t, journaltest.NATSOptions{JetStream: true}, func(c *executor.Config) { c.Queue = true })
		if err := n.client.Enqueue(within(t), "s1", request("c1", "send", args)); err != nil {
			t.Fatal(err)
		}
		n.mustAnswer(n.question("s1", "c1"), "allow")
		runs(t, p, n, told)
	})
	t.Run("it is beside the arguments", func(t *testing.T) {
		p, n, told := start(t, journaltest.NATSOptions{})
		req := request("c1", "send", `{"to":"ada"}`)
		req.Context = jsontext.Value(`{"token":"hunter2-hunter2"}`)
		result := make(chan executor.Answer, 1)
		go func() {
			a, err := n.client.Call(within(t), "s1", req)
			if err != nil {
				t.Error(err)
			}
			result <- a
		}()
		q := n.question("s1", "c1")
		if q.Redacted != "" {
			t.Errorf("asked is %+v", q)
		}
		n.mustAnswer(q, "allow")
		runs(t, p, n, told)
		wait(t, "the answer", result)
	})
}
