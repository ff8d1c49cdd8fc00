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
		c.Progress("half\xff\n")
		c.Progress("")
		c.Progress(strings.Repeat("a", 1<<20) + "\n")
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
			c.Progress(fmt.Sprintln(i))
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

// What is secret may come in pieces. No piece of it goes out, wherever the borders
// are, and what is around it does.
func TestS13ASecretInTwoTextsOfProgressIsRedacted(t *testing.T) {
	const pem = "-----BEGIN RSA PRIVATE KEY-----\nMIIBVgIBADAN\nBgkqhkiG9w0B\n-----END RSA PRIVATE KEY-----"
	p := newPlace(t, journaltest.NATSOptions{})
	texts := make(chan []string, 1)
	tool := toolOf("say", func(_ context.Context, c *executor.Invocation) (executor.Result, error) {
		for _, text := range <-texts {
			c.Progress(text)
		}
		return executor.Result{OK: true}, nil
	})
	last := toolOf("last", func(_ context.Context, c *executor.Invocation) (executor.Result, error) {
		c.Progress("that was all\n")
		return executor.Result{OK: true}, nil
	})
	n := p.node([]executor.Tool{tool, last})
	n.open("s1")
	events := p.nats.Listen("steno.v1.event.s1.tool_progress")
	calls := 0
	// told is what goes out of these texts, with | between the events.
	told := func(says ...string) string {
		t.Helper()
		calls++
		texts <- says
		n.call("s1", fmt.Sprint("c", calls), "say", `{}`)
		n.call("s1", fmt.Sprint("l", calls), "last", `{}`)
		var list []string
		for {
			m, err := events.NextMsg(journaltest.Deadline)
			if err != nil {
				t.Fatal(err)
			}
			got := field[progress](t, m.Data, "data")
			if got.Text == "that was all" {
				return strings.Join(list, "|")
			}
			list = append(list, got.Text)
		}
	}
	text := "begin " + madeKey + " end"
	for at := range len(text) { // one text and then the other
		if got := told(text[:at], text[at:]+"\n"); got != "begin [redacted] end" {
			t.Errorf("cut at %d, told is %q", at, got)
		}
	}
	for _, c := range []struct {
		want string
		says []string
	}{
		{"one|two|three", []string{"one\n", "t", "wo\r", "three"}},
		{"one\ntwo|three", []string{"one\ntwo\nthr", "ee\n"}},
		{"password=[redacted] x", []string{"pass", "word=hunter2", "-hunter2 x"}},
		{"\u00e9", []string{"\xc3", "\xa9"}},
		{"key:|[redacted]|done", []string{"key:\n", pem + "\n", "done\n"}},
		{"a|[redacted]| after|b", append(append([]string{"a\n"}, strings.SplitAfter(pem+" after\n", "\n")...), "b\n")},
		{"a [redacted]|x", []string{"a " + pem[:40] + "\n", "AKQw\n", pem[:20], pem[20:], "\nx\n"}},
		{"[redacted]", []string{pem[:36] + "\n", "AKQw\n", "more\n"}}, // it never ends
		{"a|[a line of more than 8192 bytes is left out]|b", []string{"a\n", strings.Repeat("x", 8000), strings.Repeat("x", 180) + madeKey[:13], madeKey[13:], strings.Repeat("y", 9000), "\nb\n"}},
		{"-----BEGIN CERTIFICATE-----|MIIB|-----END CERTIFICATE-----", []string{"-----BEGIN CERTIFICATE-----\n", "MIIB\n", "-----END CERTIFICATE-----\n"}},
	} {
		if got := told(c.says...); got != c.want {
			t.Errorf("of %.200q is told %q, want %q", c.says, got, c.want)
		}
	}
	// The middle of what is long is cut where nothing secret is any more.
	long := strings.Repeat("x", 1630)
	for at := range 24 {
		if got := told(long[at:] + " " + madeKey + " " + strings.Repeat("y", 4000) + " " + madeKey + "\n"); strings.Contains(got, "A1b2") || strings.Contains(got, madeKey[:6]) {
			t.Errorf("told is %q", got)
		}
	}
}
