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

// A call that a model has made goes in as its provider gives it, and the answer
// comes back in the same format, under the provider's id.
func TestT4CallsAndAnswersOfProviders(t *testing.T) {
	p := newPlace(t, journaltest.NATSOptions{})
	code := 3
	tools := []executor.Tool{echo,
		toolOf("fails", func(context.Context, *executor.Invocation) (executor.Result, error) {
			return executor.Result{}, schema.Errorf(schema.NotFound, "no such thing")
		}),
		toolOf("exits", func(context.Context, *executor.Invocation) (executor.Result, error) {
			return executor.Result{Output: "broken\n", ExitCode: &code}, nil
		}),
		toolOf("data", func(context.Context, *executor.Invocation) (executor.Result, error) {
			return executor.Result{OK: true, Structured: jsontext.Value(`{"n":1}`), Content: jsontext.Value(`[{"type":"text","text":"block"}]`)}, nil
		}),
		toolOf("long", func(context.Context, *executor.Invocation) (executor.Result, error) {
			return executor.Result{OK: true, Output: strings.Repeat("ä", 20_000)}, nil
		}),
	}
	n := p.node(tools)
	open(t, n.client, "s1")
	const failed = `{\"kind\":\"not_found\",\"message\":\"no such thing\"`
	for i, c := range []struct{ format, call, want string }{
		{executor.FormatAnthropic, `{"type":"tool_use","id":"toolu_1","name":"echo","input":{ "text": "hi" },"caller":{"type":"direct"}}`,
			`{"type":"tool_result","tool_use_id":"toolu_1","content":"{\"text\":\"hi\"}"}`},
		{executor.FormatAnthropic, `{"type":"tool_use","id":"toolu_2","name":"fails","input":{}}`, `{"type":"tool_result","tool_use_id":"toolu_2","content":"` + failed},
		{executor.FormatAnthropic, `{"type":"tool_use","id":"toolu_3","name":"exits","input":{}}`,
			`{"type":"tool_result","tool_use_id":"toolu_3","content":"broken\nexit code 3","is_error":true}`},
		{executor.FormatOpenAI, `{"id":"call_1","type":"function","function":{"name":"echo","arguments":"{ \"text\" : 1e400 }"}}`,
			`{"role":"tool","tool_call_id":"call_1","content":"{\"text\":1e400}"}`},
		{executor.FormatOpenAI, `{"id":"fc_1","type":"function_call","call_id":"call_2","name":"echo","arguments":"","status":"completed"}`,
			`{"type":"function_call_output","call_id":"call_2","output":"{}"}`},
		{executor.FormatMCP, `{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"data","arguments":{},"_meta":{}}}`,
			`{"jsonrpc":"2.0","id":7,"result":{"content":[{"type":"text","text":"block"}],"structuredContent":{"n":1},"isError":false}}`},
		{executor.FormatMCP, `{"jsonrpc":"2.0","id":"a","method":"tools/call","params":{"name":"fails"}}`, `{"jsonrpc":"2.0","id":"a","result":{"content":[{"type":"text","text":"` + failed},
		{executor.FormatOpenAI, `{"id":"call_3","type":"function","function":{"name":"data","arguments":"{}"}}`, `{"role":"tool","tool_call_id":"call_3","content":"{\"n\":1}"}`},
	} {
		calls, list, err := executor.ReadModelCalls(c.format, []byte(c.call), "")
		if err != nil || list || len(calls) != 1 || calls[0].Bad != nil {
			t.Fatalf("%d: %+v, %v", i, calls, err)
		}
		a, err := n.client.Call(within(t), "s1", calls[0].Request)
		if err != nil {
			t.Fatalf("%d: %v", i, err)
		}
		got, err := calls[0].Answer(a.Data)
		if err != nil || string(got) != c.want && !(strings.HasSuffix(c.want, `"no such thing\"`) && strings.HasPrefix(string(got), c.want)) {
			t.Errorf("%d: %s (%v), want %s", i, got, err, c.want)
		}
	}
	// A model gets a bounded part of it, the log has all.
	calls, _, err := executor.ReadModelCalls(executor.FormatAnthropic, []byte(`{"type":"tool_use","id":"l","name":"long","input":{}}`), "")
	if err != nil {
		t.Fatal(err)
	}
	a, err := n.client.Call(within(t), "s1", calls[0].Request)
	if err != nil {
		t.Fatal(err)
	}
	got, err := calls[0].Answer(a.Data)
	if text := field[string](t, got, "content"); err != nil || len(text) > executor.ModelText || len(text) < executor.ModelText-10 || !strings.Contains(text, "40000") {
		t.Errorf("a model is given %d bytes, %v", len(text), err)
	}
	if len(field[string](t, a.Data, "output")) != 40_000 {
		t.Error("the record does not have all of the output")
	}
}

// A provider that begins its ids anew in each turn gets the same call again, and
// a conflict where it is another one, unless the turn tells them apart.
func TestT30IdsOfATurn(t *testing.T) {
	p := newPlace(t, journaltest.NATSOptions{})
	n := p.node([]executor.Tool{echo})
	open(t, n.client, "s1")
	ask := func(text, turn string) error {
		t.Helper()
		calls, _, err := executor.ReadModelCalls(executor.FormatOpenAI, fmt.Appendf(nil, `{"id":"call_0","type":"function","function":{"name":"echo","arguments":"{\"text\":\"%s\"}"}}`, text), turn)
		if err != nil {
			t.Fatal(err)
		}
		a, err := n.client.Call(within(t), "s1", calls[0].Request)
		if out, told := calls[0].Answer(a.Data); err == nil && (told != nil || field[string](t, out, "tool_call_id") != "call_0") {
			t.Errorf("the answer is %s, %v", out, told)
		}
		return err
	}
	for _, c := range []struct {
		text, turn string
		want       schema.Kind
	}{{"a", "", ""}, {"a", "", ""}, {"b", "", schema.CallConflict}, {"b", "2", ""}, {"c", "3", ""}, {"c", "2", schema.CallConflict}} {
		if err := ask(c.text, c.turn); (err == nil) != (c.want == "") || err != nil && schema.KindOf(err) != c.want {
			t.Errorf("%s in turn %q: %v, want %q", c.text, c.turn, err, c.want)
		}
	}
	for _, e := range p.read("s1").Events {
		if e.Type == schema.TypeToolCall && strings.HasPrefix(field[string](t, e.Data, "call_id"), "2.") && string(field[jsontext.Value](t, e.Data, "turn")) != `"2"` {
			t.Errorf("the turn is not recorded: %s", e.Data)
		}
	}

	const call = `{"type":"tool_use","id":"a","name":"echo","input":{}}`
	if _, _, err := executor.ReadModelCalls(executor.FormatAnthropic, []byte(`[`+call+`,`+call+`]`), ""); schema.KindOf(err) != schema.DuplicateCall {
		t.Errorf("two calls with one id: %v", err)
	}
}

func TestT4WhatIsNoCallOfAProvider(t *testing.T) {
	for _, c := range []struct{ format, text string }{
		{executor.FormatAnthropic, `{"type":"text","text":"hello"}`},
		{executor.FormatAnthropic, `{"type":"tool_use","name":"echo","input":{}}`},
		{executor.FormatAnthropic, `{"type":"tool_use","id":7,"name":"echo","input":{}}`},
		{executor.FormatAnthropic, `{"type":"tool_use","id":"a b","name":"echo","input":{}}`},
		{executor.FormatAnthropic, `{"type":"tool_use","id":"a","input":{}}`},
		{executor.FormatAnthropic, `"tool_use"`}, {executor.FormatAnthropic, `{`}, {executor.FormatAnthropic, ``}, {executor.FormatAnthropic, `[[]]`},
		{executor.FormatOpenAI, `{"id":"a","type":"custom","custom":{}}`},
		{executor.FormatOpenAI, `{"id":"a","type":"function_call","name":"echo","arguments":"{}"}`},
		{executor.FormatMCP, `{"jsonrpc":"2.0","id":1,"method":"tools/list"}`},
		{executor.FormatMCP, `{"jsonrpc":"2.0","method":"tools/call","params":{"name":"echo"}}`},
		{executor.FormatMCP, `{"jsonrpc":"2.0","id":null,"method":"tools/call","params":{"name":"echo"}}`},
		{"xml", `{}`},
	} {
		if _, _, err := executor.ReadModelCalls(c.format, []byte(c.text), ""); schema.KindOf(err) != schema.InvalidArgs {
			t.Errorf("%s %s: %v", c.format, c.text, err)
		}
	}
	if calls, list, err := executor.ReadModelCalls(executor.FormatAnthropic, []byte(` [ ]`), ""); err != nil || !list || len(calls) != 0 {
		t.Errorf("an empty list is %+v, %v", calls, err)
	}
	// Arguments that are no JSON are the model's mistake, which it is told of.
	calls, _, err := executor.ReadModelCalls(executor.FormatOpenAI, []byte(`{"id":"a","type":"function","function":{"name":"echo","arguments":"{\"a\":"}}`), "")
	if err != nil || schema.KindOf(calls[0].Bad) != schema.InvalidArgs {
		t.Fatalf("%+v, %v", calls, err)
	}
	out, err := calls[0].Refuse(calls[0].Bad)
	if err != nil || field[string](t, out, "tool_call_id") != "a" || !strings.Contains(field[string](t, out, "content"), `"kind":"invalid_args"`) {
		t.Errorf("the answer is %s, %v", out, err)
	}
}
