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

func guarded(c *executor.Config) { c.Repeat = executor.RepeatGuard{} }

// told is a tool that answers what its arguments say, and a poll whose answer
// changes each time.
func told(runs *counter) []executor.Tool {
	say := toolOf("say", func(_ context.Context, c *executor.Invocation) (executor.Result, error) {
		runs.mu.Lock()
		defer runs.mu.Unlock()
		runs.runs[c.CallID]++
		if strings.Contains(string(c.Args), "fail") {
			return executor.Result{}, schema.Errorf(schema.CommandFailed, "it does not work")
		}
		return executor.Result{OK: true, Output: "so it is", Structured: jsontext.Value(`{"duration_us":1,"ok":true}`)}, nil
	})
	n := 0
	poll := toolOf("poll", func(context.Context, *executor.Invocation) (executor.Result, error) {
		n++
		return executor.Result{OK: true, Output: fmt.Sprint(n)}, nil
	})
	return []executor.Tool{say, poll}
}

// repeatOf is what a result says about repeats: "" if nothing.
func repeatOf(t *testing.T, a executor.Answer) string {
	return string(field[jsontext.Value](t, a.Data, "repeat"))
}

func TestT24TheSameCallWithTheSameResultIsWarnedAndThenRefused(t *testing.T) {
	p := newPlace(t, journaltest.NATSOptions{})
	runs := newCounter(false)
	n := p.node(told(runs), guarded)
	n.open("s1")
	say := func(id, args string, warned string, kind schema.Kind) {
		t.Helper()
		a := n.call("s1", id, "say", args)
		if got := repeatOf(t, a); got != warned || kindOfResult(t, a.Data) != kind {
			t.Errorf("call %s gives %s", id, a.Data)
		}
		if ran := runs.of(id) == 1; ran != (kind != schema.RepeatLimit) {
			t.Errorf("call %s has run: %t", id, ran)
		}
	}
	const third, fourth = `{"count":3,"warn":3,"refuse":5}`, `{"count":4,"warn":3,"refuse":5}`
	say("a1", `{"a":1,"b":2}`, "", "")
	say("a2", `{"b":2,"a":1}`, "", "") // the same, in another order
	say("a3", `{"a":1,"b":2}`, third, "")
	say("a2", `{"a":1,"b":2}`, "", "") // a repeated request is the same call
	say("a4", `{"a":1,"b":2}`, fourth, "")
	say("a5", `{"a":1,"b":2}`, "", schema.RepeatLimit)
	say("a6", `{"a":1,"b":2}`, "", schema.RepeatLimit) // as long as nothing else comes
	p.wantTypes("s1", strings.Fields(strings.Repeat("tool_call permission_decision tool_started tool_result ", 4)+
		strings.Repeat("tool_call permission_decision tool_result ", 2))...)
	d, _ := p.last("s1", schema.TypeDecision)
	if field[string](t, d, "decision") != "deny" || field[string](t, d, "gate") != "repeat" || field[string](t, d, "by") != "auto" {
		t.Errorf("the refusal is decided as %s", d)
	}
	p.wantRecorded("s1", n.call("s1", "a6", "say", `{"a":1,"b":2}`))

	// Another call begins anew; one that does not run is none.
	wantKindOfResult(t, n.call("s1", "x1", "no-such-tool", `{}`).Data, schema.UnknownTool)
	say("a7", `{"a":1,"b":2}`, "", schema.RepeatLimit)
	dry := request("x2", "say", `{"c":1}`)
	dry.DryRun = true
	if _, err := n.client.Call(within(t), "s1", dry); err != nil {
		t.Fatal(err)
	}
	say("a8", `{"a":1,"b":2}`, "", schema.RepeatLimit)
	say("x3", `{"c":1}`, "", "")
	say("a9", `{"a":1,"b":2}`, "", "")
	// And so does what the user says.
	say("b1", `{}`, "", "")
	say("b2", `{}`, "", "")
	say("b3", `{}`, third, "")
	if _, err := n.client.Append(within(t), "s1", executor.AppendEvent{Type: schema.TypeUserMessage, Data: jsontext.Value(`{"text":"once more"}`)}); err != nil {
		t.Fatal(err)
	}
	say("b4", `{}`, "", "")
	// What fails alike is a result too.
	for i, warned := range []string{"", "", third, fourth} {
		say(fmt.Sprint("f", i), `{"fail":1}`, warned, schema.CommandFailed)
	}
	say("f5", `{"fail":1}`, "", schema.RepeatLimit)
	// A poll whose answer changes goes on for ever.
	for i := range 8 {
		if a := n.call("s1", fmt.Sprint("p", i), "poll", `{}`); repeatOf(t, a) != "" || kindOfResult(t, a.Data) != "" {
			t.Errorf("poll %d gives %s", i, a.Data)
		}
	}
	// A dry run is no repeat, however often.
	for i := range 6 {
		dry.CallID = fmt.Sprint("d", i)
		if a, err := n.client.Call(within(t), "s1", dry); err != nil || repeatOf(t, a) != "" || kindOfResult(t, a.Data) != "" {
			t.Errorf("dry run %d gives %s (%v)", i, a.Data, err)
		}
	}
}

// The count is in the log, so the next holder goes on with it.
func TestT24TheCountOutlivesItsHolder(t *testing.T) {
	p := newPlace(t, journaltest.NATSOptions{})
	for i, want := range []string{"", "", `{"count":3,"warn":3,"refuse":5}`, `{"count":4,"warn":3,"refuse":5}`, "refused"} {
		n := p.node(told(newCounter(false)), guarded)
		n.open("s1")
		a := n.call("s1", fmt.Sprint("c", i), "say", `{"token":"hunter2hunter2"}`)
		if got := repeatOf(t, a); got != want && (want != "refused" || kindOfResult(t, a.Data) != schema.RepeatLimit) {
			t.Errorf("call %d gives %s", i, a.Data)
		}
		if want == "refused" { // another secret is another call
			wantKindOfResult(t, n.call("s1", "other", "say", `{"token":"hunter3hunter3"}`).Data, "")
		}
		n.stop()
	}
	// A message of the user behind the last result counts for the next holder too.
	n := p.node(told(newCounter(false)), guarded)
	for i := range 4 {
		n.call("s1", fmt.Sprint("d", i), "say", `{}`)
	}
	if _, err := n.client.Append(within(t), "s1", executor.AppendEvent{Type: schema.TypeUserMessage, Data: jsontext.Value(`{"text":"once more"}`)}); err != nil {
		t.Fatal(err)
	}
	n.stop()
	n = p.node(told(newCounter(false)), guarded)
	if a := n.call("s1", "d5", "say", `{}`); repeatOf(t, a) != "" || kindOfResult(t, a.Data) != "" {
		t.Errorf("behind a message: %s", a.Data)
	}
}

// The policy has the last word on how often is too often.
func TestT24TheLimitsAreSettings(t *testing.T) {
	p := newPlace(t, journaltest.NATSOptions{})
	for name, c := range map[string]struct {
		policy  string
		config  executor.RepeatGuard
		refused int // which call; 0 is none of ten
		warned  int
	}{
		"policy": {"version: 1\nmode: auto\nrepeat: {warn: 2, refuse: 3}\n", executor.RepeatGuard{}, 3, 2},
		"warned": {"version: 1\nmode: auto\nrepeat: {refuse: 0}\n", executor.RepeatGuard{}, 0, 3},
		"never":  {"version: 1\nmode: auto\nrepeat: {warn: 0, refuse: 0}\n", executor.RepeatGuard{}, 0, 0},
		"config": {"version: 1\nmode: auto\n", executor.RepeatGuard{Warn: 4, Refuse: 6}, 6, 4},
		"off":    {"", executor.RepeatGuard{Warn: -1, Refuse: -1}, 0, 0},
		"quiet":  {"", executor.RepeatGuard{Warn: -1}, 5, 0},
	} {
		t.Run(name, func(t *testing.T) {
			n := p.node(told(newCounter(false)), func(cfg *executor.Config) {
				if cfg.Repeat = c.config; c.policy != "" {
					cfg.Policy = policy(t, c.policy)
				}
			})
			defer n.stop()
			session := "s-" + name
			n.open(session)
			refused, warned := 0, 0
			for i := 1; i <= 10 && refused == 0; i++ {
				a := n.call(session, fmt.Sprint("c", i), "say", `{}`)
				if repeatOf(t, a) != "" && warned == 0 {
					warned = i
				}
				if kindOfResult(t, a.Data) == schema.RepeatLimit {
					refused = i
				}
			}
			if refused != c.refused || warned != c.warned {
				t.Errorf("warned at %d, refused at %d", warned, refused)
			}
			d, _ := p.last(session, schema.TypeDecision)
			if by := field[string](t, d, "by"); refused > 0 && (by == "policy") != (name == "policy") {
				t.Errorf("decided by %s", d)
			}
		})
	}
	for _, bad := range []string{"{warn: 1}", "{refuse: 101}", "{refuse: -5}", "off", "{refuse: 3, often: 2}"} {
		_, err := executor.ParsePolicy([]byte("version: 1\nmode: auto\nrepeat: " + bad + "\n"))
		wantErr(t, err, schema.InvalidConfig)
	}
}

// Whatever the form of the answer, the model is told.
func TestT24AModelIsToldThatItRepeatsItself(t *testing.T) {
	for format, call := range map[string]string{
		executor.FormatMCP:       `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"say","arguments":{}}}`,
		executor.FormatAnthropic: `{"type":"tool_use","id":"1","name":"say","input":{}}`,
		executor.FormatOpenAI:    `{"type":"function_call","call_id":"1","name":"say","arguments":"{}"}`,
	} {
		calls, _, err := executor.ReadModelCalls(format, []byte(call), "")
		if err != nil {
			t.Fatal(err)
		}
		for content, blocks := range map[string]string{"": "", `"content":[],`: `{"type":"text","text":"[steno`, `"content":[{"type":"text","text":"hi"}],`: `{"type":"text","text":"hi"},{"type":"text","text":"[steno`} {
			got, err := calls[0].Answer(jsontext.Value(`{"call_id":"1","attempt":1,"ok":true,"output":"so it is",` + content + `"duration_us":1,"repeat":{"count":3,"warn":3,"refuse":5}}`))
			if err != nil || !strings.Contains(string(got), "[steno: the same call, 3 times in a row, with the same result]") || format == executor.FormatMCP && !strings.Contains(string(got), blocks) {
				t.Errorf("%s: %s, %v", format, got, err)
			}
		}
	}
}
