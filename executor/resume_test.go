package executor_test

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"steno/executor"
	"steno/journal"
	"steno/journal/journaltest"
	"steno/schema"
)

func said(text string) journal.Entry {
	var o schema.Object
	return journal.Entry{Type: schema.TypeUserMessage, Data: o.Text("text", text).Bytes()}
}

// edit changes the first segment of a session until the test ends.
func (p *place) edit(session, old, text string) {
	p.t.Helper()
	file := filepath.Join(p.dir, "sessions", session, "000001.jsonl")
	b, err := os.ReadFile(file)
	if err != nil {
		p.t.Fatal(err)
	}
	p.t.Cleanup(func() {
		if err := os.WriteFile(file, b, 0o600); err != nil {
			p.t.Error(err)
		}
	})
	if err := os.WriteFile(file, []byte(strings.Replace(string(b), old, text, 1)), 0o600); err != nil {
		p.t.Fatal(err)
	}
}

// Twice changes nothing, whoever does it, but the epochs.
func TestS7AResumeSettlesOnceAndGivesTheMessages(t *testing.T) {
	p := newPlace(t, journaltest.NATSOptions{})
	p.leave("s1", said("go"), journaltest.Call("had", "once", `{}`), journaltest.Started("had", 1), journaltest.Result("had", 1, `"kept"`),
		journaltest.Call("started", "once", `{}`), journaltest.Started("started", 1),
		journaltest.Call("again", "again", `{}`), journaltest.Started("again", 1), journaltest.Call("recorded", "once", `{}`))
	var first []string
	for round := range 3 {
		c := newCounter(false)
		n := p.node([]executor.Tool{c.tool("once", false), c.tool("again", true)})
		for range 2 {
			a, err := n.client.Resume(within(t), executor.ResumeRequest{Session: "s1", Format: "anthropic"})
			if err != nil {
				t.Fatal(err)
			}
			if len(a.Open) != 1 || a.Open[0].CallID != "started" || a.Open[0].State != "interrupted" || a.Open[0].Kind != schema.Interrupted || !strings.Contains(a.Open[0].Next, "steno calls resolve s1 started --reason WHY") || a.Calls["ok"] != 3 || a.Epoch != uint64(round+2) {
				t.Errorf("round %d: %+v", round, a)
			}
			b, _ := json.Marshal(a.Messages)
			if first = append(first, string(b)); first[0] != string(b) || strings.Count(string(b), `"tool_result"`) != 4 || !strings.Contains(string(b), "kept") || !strings.Contains(string(b), "again, attempt 2") {
				t.Errorf("round %d: the messages are %s", round, b)
			}
		}
		if want := map[int]int{0: 1, 1: 0, 2: 0}[round]; c.of("again") != want || c.of("recorded") != want || c.of("started") != 0 || c.of("had") != 0 {
			t.Errorf("round %d: the tools ran %v", round, c.runs)
		}
		n.stop()
	}
	for typ, want := range map[string]int{schema.TypeToolResult: 4, schema.TypeToolStarted: 5} {
		if got := strings.Count(strings.Join(p.types("s1"), " "), typ); got != want {
			t.Errorf("there are %d of %s, want %d", got, typ, want)
		}
	}
}

func TestS7AResumeGoesToTheHolder(t *testing.T) {
	p := newPlace(t, journaltest.NATSOptions{})
	c := newCounter(true)
	a, b := p.node([]executor.Tool{c.tool("once", false)}), p.node([]executor.Tool{c.tool("once", false)})
	a.open("s1")
	done := make(chan error, 1)
	go func() {
		_, err := a.client.Call(within(t), "s1", request("a", "once", `{}`))
		done <- err
	}()
	wait(t, "the start of the call", c.begun)
	holder := p.read("s1").State.Epochs
	got, err := ask(t, b.conn, "steno.v1.session.resume", `{"session":"s1"}`)
	if err != nil || !strings.Contains(string(got.Data), `"state":"running"`) {
		t.Errorf("%s, %v", got.Data, err)
	}
	close(c.hold)
	if err := wait(t, "the call", done); err != nil {
		t.Error(err)
	}
	r, err := b.client.Resume(within(t), executor.ResumeRequest{Session: "s1"})
	if err != nil || len(r.Open) != 0 || r.How != "new" || r.Messages != nil || len(p.read("s1").State.Epochs) != len(holder) {
		t.Errorf("%+v, %v", r, err)
	}
	for body, kind := range map[string]schema.Kind{`{"session":"none"}`: schema.NotFound, `{"session":"s1","format":"x"}`: schema.InvalidArgs, `{"session":"s1","after":-1}`: schema.InvalidArgs,
		`{"session":"s1","format":"openai","as_of":99}`: schema.NotFound} {
		_, err := ask(t, b.conn, "steno.v1.session.resume", body)
		wantErr(t, err, kind)
	}
}

func TestS7TheMessagesOfALongSessionComeInPages(t *testing.T) {
	p := newPlace(t, journaltest.NATSOptions{})
	var entries []journal.Entry
	for i := range 300 {
		entries = append(entries, said(fmt.Sprint(i, " ", strings.Repeat("m", 5000))))
	}
	p.leave("s1", entries...)
	n := p.node(nil)
	a, err := n.client.Resume(within(t), executor.ResumeRequest{Session: "s1", Format: "openai"})
	if err != nil || len(a.Messages) != 300 || a.More {
		t.Fatalf("%d messages, %v", len(a.Messages), err)
	}
	for i, m := range a.Messages {
		if got := field[string](t, m, "content"); !strings.HasPrefix(got, fmt.Sprint(i, " m")) {
			t.Errorf("message %d is %.20s", i, got)
		}
	}
	if _, err := n.client.Append(within(t), "s1", event("user_message", `{"text":"`+strings.Repeat("x", 900_000)+`"}`)); err != nil {
		t.Fatal(err)
	}
	_, err = n.client.Resume(within(t), executor.ResumeRequest{Session: "s1", Format: "openai"})
	wantErr(t, err, schema.PayloadTooLarge)
	if e := schema.AsError(err); !strings.Contains(e.Message, "is taken and settled") || e.Details["head"] == nil || !strings.Contains(fmt.Sprint(e.Details["next"]), "steno export s1 --format openai") {
		t.Errorf("it says %v, %v", err, e.Details)
	}
}

func TestS7OfADamagedLogAResumeSaysHowFarItIsSound(t *testing.T) {
	p := newPlace(t, journaltest.NATSOptions{})
	p.leave("s1", said("one"), said("two"), said("three"), said("four"))
	p.leave("s1", said("five"))
	p.edit("s1", "three", "thre3")
	n := p.node(nil)
	_, err := n.client.Resume(within(t), executor.ResumeRequest{Session: "s1"})
	wantErr(t, err, schema.CorruptLogLine)
	d := schema.AsError(err).Details
	if fmt.Sprint(d["last_good_seq"]) != "4" || !strings.HasPrefix(fmt.Sprint(d["last_good_head"]), "1.4.") {
		t.Errorf("it says %v", d)
	}
	// Up to there it can be forked.
	if a, err := n.client.Fork(within(t), executor.ForkRequest{Session: "s1", At: 4}); err != nil || a.At != 4 {
		t.Errorf("%+v, %v", a, err)
	}
}

// What a session goes by is never less strict because its document is gone.
func TestS12AResumeRestoresThePosture(t *testing.T) {
	p := newPlace(t, journaltest.NATSOptions{})
	strict, err := executor.ParsePolicy([]byte("version: 1\nmode: read_only\n"))
	if err != nil {
		t.Fatal(err)
	}
	c := newCounter(false)
	tools := []executor.Tool{c.tool("once", false)}
	n := p.node(tools, func(cfg *executor.Config) { cfg.Policy = strict })
	n.open("s1")
	n.stop()
	n = p.node(tools)
	a, err := n.client.Resume(within(t), executor.ResumeRequest{Session: "s1"})
	if err != nil || a.Mode != "read_only" || a.Policy == "" {
		t.Errorf("%+v, %v", a, err)
	}
	if got := n.call("s1", "a", "once", `{}`); field[bool](t, got.Data, "ok") || c.of("a") != 0 {
		t.Errorf("a call ended in %s", got.Data)
	}
	n.stop()
	if err := os.Remove(filepath.Join(p.dir, "policies", a.Policy+".yaml")); err != nil {
		t.Fatal(err)
	}
	n = p.node(tools)
	_, err = n.client.Resume(within(t), executor.ResumeRequest{Session: "s1"})
	wantErr(t, err, schema.ResumePolicyUnavailable)
	// An edited log does not raise them either: it is damaged.
	n.stop()
	p.edit("s1", `"mode":"read_only"`, `"mode":"auto"`)
	_, err = p.node(tools).client.Resume(within(t), executor.ResumeRequest{Session: "s1"})
	wantErr(t, err, schema.CorruptLogLine)
}
