package executor_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/go-json-experiment/json/jsontext"

	"steno/executor"
	"steno/journal/journaltest"
	"steno/schema"
)

func TestT4ASpecificationIsToldInEveryFormat(t *testing.T) {
	x := tool("t", `{"type":"object", "properties":{"n":{"maximum":123456789012345678901234567890}}}`)
	x.Output = jsontext.Value(`{"type":"object"}`)
	const input = `{"type":"object","properties":{"n":{"maximum":123456789012345678901234567890}}}`
	for format, want := range map[string]string{
		executor.FormatMCP: `{"name":"t","description":"does nothing","inputSchema":` + input + `,"outputSchema":{"type":"object"},` +
			`"annotations":{"readOnlyHint":false,"destructiveHint":true,"idempotentHint":false,"openWorldHint":true}}`,
		executor.FormatAnthropic: `{"name":"t","description":"does nothing","input_schema":` + input + `}`,
		executor.FormatOpenAI:    `{"type":"function","function":{"name":"t","description":"does nothing","parameters":` + input + `}}`,
		executor.FormatResponses: `{"type":"function","name":"t","description":"does nothing","parameters":` + input + `,"strict":false}`,
		"": `{"name":"t","description":"does nothing","tier":0,"read_only":false,"repeatable":false,"idempotent":false,` +
			`"destructive":true,"open_world":true,"input":` + input + `,"output":{"type":"object"}}`,
	} {
		if got, err := x.Spec(format); err != nil || string(got) != want {
			t.Errorf("%q: %s (%v), want %s", format, got, err, want)
		}
	}
	_, err := x.Spec("xml")
	wantKind(t, err, schema.InvalidArgs)
	// What says nothing of itself is shown as the worse; what reads destroys nothing.
	x.ReadOnly, x.OpenWorld = true, new(false)
	if got, _ := x.Spec(executor.FormatMCP); !strings.Contains(string(got), `{"readOnlyHint":true,"destructiveHint":false,"idempotentHint":true,"openWorldHint":false}`) {
		t.Errorf("a tool that reads is %s", got)
	}
}

// The tools that a session advertises are the ones that it runs.
func TestT6WhatIsAdvertisedRuns(t *testing.T) {
	p := newPlace(t, journaltest.NATSOptions{})
	never := classes()[0]
	never.Name, never.Tier = "never", 4
	tools := append(classes(), never)
	a, b := p.node(tools), p.node(tools)
	for i, phase := range []string{"", executor.PhaseInvestigating, executor.PhaseEditing, executor.PhaseVerifying} {
		for k, kind := range []string{"", executor.TaskEdit, executor.TaskTestOnly, executor.TaskInvestigate} {
			session := string(rune('a'+i)) + string(rune('a'+k))
			staged(t, a.client, session, phase, kind)
			told, err := b.client.Tools(within(t), executor.ToolsRequest{Session: session, Format: executor.FormatAnthropic})
			if err != nil || told.Phase != phase || told.TaskKind != kind {
				t.Fatalf("%s %s: %+v, %v", phase, kind, told, err)
			}
			var names []string
			for _, spec := range told.Tools {
				names = append(names, field[string](t, spec, "name"))
			}
			for _, x := range tools {
				// A dry run is admitted as the call is, and moves nothing.
				answer, err := a.client.Call(within(t), session, executor.Request{CallID: x.Name, Name: x.Name, DryRun: true})
				if err != nil {
					t.Fatal(err)
				}
				if runs := kindOfResult(t, answer.Data) == ""; runs != slices.Contains(names, x.Name) {
					t.Errorf("%s %s: %s runs: %v; advertised are %q", phase, kind, x.Name, runs, names)
				}
			}
		}
	}
	reader := p.node(append(executor.Builtin(), tools...), func(c *executor.Config) { c.Prefix = "reader" }, withPolicy(t, readOnly))
	open(t, reader.client, "reads")
	told, err := reader.client.Tools(within(t), executor.ToolsRequest{Session: "reads"})
	if err != nil {
		t.Fatal(err)
	}
	for _, spec := range told.Tools {
		if !field[bool](t, spec, "read_only") {
			t.Errorf("a session that may change nothing is told of %s", spec)
		}
	}
	if len(told.Tools) != 3 {
		t.Errorf("it is told of %d tools", len(told.Tools))
	}
	if _, err := a.client.Tools(within(t), executor.ToolsRequest{Session: "aa", Format: "xml"}); schema.KindOf(err) != schema.InvalidArgs {
		t.Errorf("a format that is none: %v", err)
	}
}
