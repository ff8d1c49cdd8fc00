package replay_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"steno/replay"
)

func compactedFrom(from, to int, summary string) entry {
	return entry{"history_compaction", fmt.Sprintf(`{"range":{"from_seq":%d,"to_seq":%d},"summary":%q,"strategy":"s","tail":{"from_seq":%d}}`, from, to, summary, to+1)}
}

// What stands before the range of a compaction is in nobody's summary, so it
// stays, or the summary of an earlier one stands for it.
func TestS8ACompactionStandsForItsRangeOnly(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		events []entry
		want   string
	}{
		"the task stays":       {[]entry{said("task"), said("old"), compactedFrom(2, 2, "sum"), said("new")}, "u task sum new"},
		"two in a row":         {[]entry{said("1"), said("2"), compactedFrom(1, 2, "one"), said("4"), compactedFrom(3, 4, "two"), said("new")}, "u one two new"},
		"the later is wider":   {[]entry{said("1"), said("2"), compactedFrom(2, 2, "one"), said("4"), compactedFrom(1, 4, "two"), said("new")}, "u two new"},
		"they overlap":         {[]entry{said("1"), said("2"), compactedFrom(1, 2, "one"), said("4"), compactedFrom(2, 4, "two"), said("new")}, "u one two new"},
		"the later is undone":  {[]entry{said("1"), said("2"), compactedFrom(1, 1, "one"), said("4"), compactedFrom(2, 4, "two"), rewound(4), said("new")}, "u one 2 4 new"},
		"a call between":       {[]entry{said("task"), call("a"), compactedFrom(2, 2, "sum"), output("a", "1", ""), said("new")}, "u task sum | a ?a | u !a=1 new"},
		"a call before it":     {[]entry{call("a"), said("old"), compactedFrom(2, 2, "sum"), output("a", "1", "")}, "u [no message of a user is recorded before this] | a ?a | u !a=1 sum"},
		"a range of no events": {[]entry{said("1"), compactedFrom(9, 12, "sum")}, "u 1 sum"},
	} {
		var l log
		if g := gist(t, messages(t, l.add(c.events...), replay.Projection{Format: "anthropic"})); g != c.want {
			t.Errorf("%s:\n%s\nand not\n%s", name, g, c.want)
		}
	}
}

// TestS7AProviderTakesWhatItIsGiven gives sessions that hold what providers refuse, or
// what only another one knows.
func TestS7AProviderTakesWhatItIsGiven(t *testing.T) {
	t.Parallel()
	use := func(id string) string { return `{"type":"tool_use","id":"` + id + `","name":"read","input":{}}` }
	user := func(content string) entry { return entry{"user_message", `{"content":` + content + `}`} }
	result := func(data string) entry {
		return entry{"tool_result", `{"call_id":"a","attempt":1,"duration_us":5,` + data + `}`}
	}
	const imageBlock = `{"type":"image","source":{"type":"base64","media_type":"image/png","data":"AA"}}`
	for name, c := range map[string]struct {
		events            []entry
		anthropic, openai string // all messages, without spaces between
	}{
		"white space": {[]entry{said(" \n"), answered(`[{"type":"text","text":" "}]`), said("x")},
			`{"role":"user","content":[{"type":"text","text":"x"}]}`, `{"role":"user","content":"x"}`},
		"a failure without a word": {[]entry{said("go"), call("a"), result(`"ok":false,"output":""`)},
			`"content":"[it failed, and said nothing]","is_error":true`, `"tool_call_id":"a","content":""`},
		"a result of blocks": {[]entry{said("go"), call("a"), result(`"ok":true,"output":"","content":[{"type":"text","text":"look"},{"type":"image","data":"AAAA","mimeType":"image/png"}]`)},
			`"content":"look\n[image, which is not shown here]"`, `"content":"look\n[image, which is not shown here]"`},
		"a message of OpenAI": {[]entry{said("go"), answered(`{"role":"assistant","content":"I look","tool_calls":[{"id":"a","type":"function","function":{"name":"read","arguments":"{}"}}]}`), call("a"), output("a", "1", "")},
			`{"role":"assistant","content":[{"type":"text","text":"I look"},{"type":"tool_use","id":"a","name":"read","input":{}}]}`,
			`{"role":"assistant","content":"I look","tool_calls":[{"id":"a"`},
		"texts of OpenAI": {[]entry{user(`[{"type":"input_text","text":"hey"}]`), answered(`[{"type":"output_text","text":"ho"}]`)},
			`{"role":"user","content":[{"type":"text","text":"hey"}]}{"role":"assistant","content":[{"type":"text","text":"ho"}]}`,
			`{"role":"user","content":"hey"}{"role":"assistant","content":"ho"}`},
		"content that is none": {[]entry{user(`[5,null,"","x"]`), answered(`[null,"y"]`)},
			`{"role":"user","content":[{"type":"text","text":"5"},{"type":"text","text":"x"}]}{"role":"assistant","content":[{"type":"text","text":"y"}]}`,
			`{"role":"user","content":[{"type":"text","text":"5"},{"type":"text","text":"x"}]}{"role":"assistant","content":"y"}`},
		"answers of blocks": {[]entry{said("go"), answered("[" + use("a") + "," + use("b") + "," + use("c") + "]"), user(`[{"type":"tool_result","tool_use_id":"a","content":[` + imageBlock + `]},` +
			`{"type":"tool_result","tool_use_id":"b","content":null},{"type":"tool_result","tool_use_id":"c","content":{"x":1}}]`)},
			`"tool_use_id":"a","content":[` + imageBlock + `]},{"type":"tool_result","tool_use_id":"b","content":""},{"type":"tool_result","tool_use_id":"c","content":"{\"x\":1}"}]`,
			`"tool_call_id":"a","content":"[image, which is not shown here]"}{"role":"tool","tool_call_id":"b","content":""}{"role":"tool","tool_call_id":"c","content":"{\"x\":1}"}`},
		"calls that are none": {[]entry{said("go"), answered(`[{"type":"tool_use","id":"","name":"read","input":{}},{"type":"tool_use","name":"read"},{"type":"tool_use","id":"a","name":"read","input":"x"}]`)},
			`{"role":"assistant","content":[{"type":"tool_use","id":"a","name":"read","input":{}}]}`, `"tool_calls":[{"id":"a","type":"function","function":{"name":"read","arguments":"{}"}}]}`},
		"the name of no tool": {[]entry{said("go"), {"tool_call", `{"call_id":"a","name":"server.read file","args":{},"args_sha256":"44"}`}, output("a", "1", "")},
			`"name":"server_read_file"`, `"name":"server_read_file"`},
	} {
		for format, want := range map[string]string{"anthropic": c.anthropic, "openai": c.openai} {
			var l log
			got := strings.Join(messages(t, l.add(c.events...), replay.Projection{Format: format}), "")
			if !strings.Contains(got, want) {
				t.Errorf("%s, %s:\n%s\nand not\n%s", name, format, got, want)
			}
		}
	}
}

// What may have run is never said not to have.
func TestS7NoModelIsToldThatACallDidNotRunThatMay(t *testing.T) {
	t.Parallel()
	use := answered(`[{"type":"tool_use","id":"a","name":"pay","input":{}}]`)
	asked := entry{"approval_requested", `{"call_id":"a","approval_id":"p","reason":"r"}`}
	for name, c := range map[string]struct {
		events []entry
		hole   int // the event that is not there
		want   string
	}{
		"the call lies in a hole":  {[]entry{said("go"), use, call("a"), started("a", 1), output("a", "paid", ""), said("and")}, 3, "whether it ran is not known"},
		"a hole before it":         {[]entry{said("go"), said("on"), use, said("and")}, 2, "which did not run"},
		"open in the parent":       {[]entry{said("go"), {"assistant_message", `{"content":[{"type":"tool_use","id":"a","name":"pay","input":{}}],"origin":{"session":"s0","seq":3}}`}, said("and")}, 0, "only the log of its parent tells"},
		"made in the fork":         {[]entry{{"user_message", `{"text":"go","origin":{"session":"s0","seq":3}}`}, use, said("and")}, 0, "which did not run"},
		"it waits for a person":    {[]entry{said("go"), call("a"), asked}, 0, "waits until a person allows or denies it"},
		"a person has answered it": {[]entry{said("go"), call("a"), asked, {"permission_decision", `{"call_id":"a","decision":"allow","gate":"approval","by":"human","approval_id":"p"}`}}, 0, "the call has not started"},
	} {
		for _, format := range []string{"anthropic", "openai", ""} {
			var l log
			events := l.add(c.events...)
			if c.hole > 0 {
				events = append(events[:c.hole-1:c.hole-1], events[c.hole:]...)
			}
			if got := strings.Join(messages(t, events, replay.Projection{Format: format}), ""); strings.Count(got, c.want) != 1 {
				t.Errorf("%s, %s:\n%s\nand not\n%s", name, format, got, c.want)
			}
		}
	}
}

// What the fold refuses is no message either.
func TestS7WhatIsRefusedIsNoMessage(t *testing.T) {
	t.Parallel()
	var l log
	events := l.add(said("go"), ended, said("after the end"))
	if got := strings.Join(messages(t, events, replay.Projection{}), ""); strings.Contains(got, "after the end") {
		t.Error(got)
	}
}

// The answers to the calls of a turn stand in one message, directly behind it,
// however large they are.
func TestS7LargeAnswersOfATurnStandTogether(t *testing.T) {
	t.Parallel()
	const calls = 40
	events := []entry{said("go")}
	for n := range calls {
		events = append(events, call(fmt.Sprint("c", n)))
	}
	for n := range calls {
		events = append(events, output(fmt.Sprint("c", n), strings.Repeat("x", 15_900), ""))
	}
	var l log
	got := messages(t, l.add(append(events, said("and"))...), replay.Projection{Format: "anthropic"})
	var last struct {
		Content []struct{ Type string }
	}
	if err := json.Unmarshal([]byte(got[len(got)-1]), &last); err != nil || len(got) != 3 || len(last.Content) != calls+1 {
		t.Errorf("%d messages, the last of %d blocks; %v", len(got), len(last.Content), err)
	}
}
