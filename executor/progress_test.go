package executor_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/go-json-experiment/json/jsontext"

	"steno/executor"
	"steno/journal/journaltest"
	"steno/schema"
)

// progress is what is told of a call while it runs.
type progress struct {
	CallID  string `json:"call_id"`
	Attempt int    `json:"attempt"`
	N       int    `json:"n"`
	Text    string `json:"text"`
	Dropped int    `json:"dropped"`
}

func TestS13ProgressIsToldLiveAndIsInNoLog(t *testing.T) {
	p := newPlace(t, journaltest.NATSOptions{})
	n := p.node([]executor.Tool{toolOf("say", func(_ context.Context, c *executor.Invocation) (executor.Result, error) {
		c.Progress("half\xff")
		c.Progress("")
		c.Progress(strings.Repeat("a", 1<<20))
		return executor.Result{OK: true}, nil
	})})
	n.open("s1")
	events := p.nats.Listen("steno.v1.event.s1.tool_progress")
	n.call("s1", "c1", "say", `{}`)
	for i := 1; i <= 2; i++ {
		m, err := events.NextMsg(journaltest.Deadline)
		if err != nil {
			t.Fatal(err)
		}
		if field[string](t, m.Data, "session") != "s1" || field[string](t, m.Data, "type") != "tool_progress" || field[int](t, m.Data, "v") != schema.Version || field[string](t, m.Data, "ts") == "" {
			t.Errorf("the event is %.300s", m.Data)
		}
		got := field[progress](t, m.Data, "data")
		if got.CallID != "c1" || got.Attempt != 1 || got.N != i || got.Dropped != 0 || len(got.Text) > 5<<10 {
			t.Errorf("told is %.300s", m.Data)
		}
		if i == 1 && (got.Text != "half\uFFFD" || field[int](t, field[jsontext.Value](t, m.Data, "data"), "replaced") != 1) || i == 2 && !strings.Contains(got.Text, "bytes left out") {
			t.Errorf("told is %.300s", m.Data)
		}
	}
	p.wantTypes("s1", schema.TypeToolCall, schema.TypeDecision, schema.TypeToolStarted, schema.TypeToolResult)
}

// What cannot be sent is shed, whoever waits for the answer does not notice, and
// the next event says how much is missing.
func TestS13ProgressIsShedAndSaysSo(t *testing.T) {
	p := newPlace(t, journaltest.NATSOptions{})
	const more = 7
	n := p.node([]executor.Tool{toolOf("flood", func(_ context.Context, c *executor.Invocation) (executor.Result, error) {
		for i := range executor.MaxLive + more {
			c.Progress(fmt.Sprint(i))
		}
		return executor.Result{OK: true}, nil
	}), toolOf("say", func(_ context.Context, c *executor.Invocation) (executor.Result, error) {
		c.Progress("again")
		return executor.Result{OK: true}, nil
	})})
	release := executor.HoldLive(n.Executor)
	defer release()
	n.open("s1")
	events := p.nats.Listen("steno.v1.event.s1.tool_progress")
	n.call("s1", "c1", "flood", `{}`) // nothing can be sent, and it is answered
	release()
	next := func() progress {
		m, err := events.NextMsg(journaltest.Deadline)
		if err != nil {
			t.Fatal(err)
		}
		return field[progress](t, m.Data, "data")
	}
	for i := range executor.MaxLive {
		if got := next(); got.N != i+1 || got.Text != fmt.Sprint(i) || got.Dropped != 0 {
			t.Fatalf("event %d is %+v", i, got)
		}
	}
	eventually(t, "nothing is on its way", func() bool { return executor.Loaded(n.Executor) == 0 })
	for i, want := range []int{more, 0} {
		n.call("s1", fmt.Sprint("d", i), "say", `{}`)
		if got := next(); got.Text != "again" || got.Dropped != want || got.N != executor.MaxLive+more+1+i {
			t.Errorf("afterwards comes %+v, want %d dropped", got, want)
		}
	}
}

// What a command says on its standard error while it runs, by whole lines; what is
// longer than a line may be is left out, since half a line may hold half a secret.
func TestTheStandardErrorOfACommandToolIsItsProgress(t *testing.T) {
	p := newPlace(t, journaltest.NATSOptions{})
	dir := t.TempDir()
	list, _, err := executor.ParseTools([]byte("version: 1\ntools:\n"+
		shell("steps", `echo one >&2; printf t >&2; sleep 0; echo wo >&2; head -c 100000 /dev/zero | tr "\0" x >&2; echo >&2; echo API_TOKEN=abcdefg123456 >&2; printf rest >&2; echo '{"n":1}'`, "    output: {type: object}")+
		shell("plain", "echo one >&2")), dir)
	if err != nil {
		t.Fatal(err)
	}
	n := p.node(list)
	if _, err := n.client.Open(within(t), executor.OpenRequest{Session: "s1", Workspace: dir}); err != nil {
		t.Fatal(err)
	}
	events := p.nats.Listen("steno.v1.event.s1.tool_progress")
	n.call("s1", "c0", "plain", `{}`)
	n.call("s1", "c1", "steps", `{}`)
	for i, want := range []string{"one", "two", "API_TOKEN=[redacted]"} {
		m, err := events.NextMsg(journaltest.Deadline)
		if err != nil {
			t.Fatal(err)
		}
		if got := field[progress](t, m.Data, "data"); got.CallID != "c1" || got.Text != want || got.N != i+1 {
			t.Errorf("told is %.300s, want %s", m.Data, want)
		}
	}
}
