package main

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"steno/journal"
	"steno/journal/journaltest"
	"steno/schema"
)

// ran is a call with its decision, as an executor records it.
func ran(id, name, args, output string) []journal.Entry {
	return []journal.Entry{journaltest.Call(id, name, args), entry("permission_decision", fmt.Sprintf(`{"call_id":%q,"decision":"allow","gate":"policy","by":"auto"}`, id)),
		journaltest.Started(id, 1), journaltest.Result(id, 1, output)}
}

func joined(parts ...[]journal.Entry) (all []journal.Entry) {
	for _, p := range parts {
		all = append(all, p...)
	}
	return all
}

func TestS15ADiffComparesWhatHappenedAndNotHow(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	end := []journal.Entry{entry("session_ended", `{"outcome":"completed"}`)}
	said := func(id, text string) []journal.Entry {
		return []journal.Entry{entry("assistant_message", fmt.Sprintf(`{"content":[{"type":"text","text":%q},{"type":"tool_use","id":%q,"name":"read","input":{"a":1,"b":2}}]}`, text, id))}
	}
	written(t, dir, "one", false, joined(said("c1", "é"), ran("c1", "read", `{"a":1,"b":2}`, `"x"`), ran("c2", "list", `{}`, `"y"`), end))
	// The same with other ids, in two epochs, interrupted and run again, beside each
	// other, with notes and keys in another order.
	written(t, dir, "two", true,
		joined([]journal.Entry{entry("assistant_message", `{"content":[{"text":"\u00e9","type":"text"},{"type":"tool_use","name":"read","id":"zz","input":{"b":2,"a":1}}],"turn":7}`)},
			ran("zz", "read", `{"b":2,"a":1}`, `"x"`)[:3]),
		joined([]journal.Entry{journaltest.Started("zz", 2), journaltest.Note("slow")}, ran("c1", "list", `{}`, `"y"`),
			[]journal.Entry{journaltest.Result("zz", 2, `"x"`)}, end))
	if out := good(t, dir, "diff", "one", "two"); out != "one and two mean the same: 4 steps\n" {
		t.Error(out)
	}
	// What happened in another way, and what only one has.
	written(t, dir, "three", false, joined(said("c1", "é"), ran("c1", "read", `{"a":1,"b":2}`, `"x"`), ran("c9", "bash", `{"command":"rm \u001b[2J"}`, `""`), ran("c2", "list", `{}`, `"other"`),
		[]journal.Entry{entry("session_ended", `{"outcome":"failed"}`)}))
	out, errOut, code := steno(t, dir, "diff", "one", "three")
	if code != schema.ExitDivergence || pick(t, errOut, "/error/kind") != "replay_divergence" || pick(t, errOut, "/error/details/b_seq") != 8.0 {
		t.Errorf("exit %d, %s", code, errOut)
	}
	want := []string{"first divergence: only in three\n+      8  tool_call  c9  bash {\"command\":\"rm \\u001b[2J\"}", "\nresult\n-      8  tool_call  c2  list {}\n", "tool_result  c2  ok=true  y\n", "tool_result  c2  ok=true  other\n",
		"\ncontent\n-     12  session_ended  completed\n+     16  session_ended  failed\n", "- is one, + is three; 2 steps both have\n"}
	for _, w := range want {
		if !strings.Contains(out, w) {
			t.Errorf("there is no %q in\n%s", w, out)
		}
	}
	out, _, code = steno(t, dir, "diff", "three", "latest", "-o", "json")
	if code != 0 || pick(t, out, "/equal") != true || pick(t, out, "/first") != nil {
		t.Errorf("a session and itself: exit %d, %s", code, out)
	}
	out, _, code = steno(t, dir, "diff", "one", "three", "-o", "json")
	if code != 9 || pick(t, out, "/first/differs/0") != "missing" || pick(t, out, "/differences/1/a/result") == "" || pick(t, out, "/differences/1/differs/0") != "result" || pick(t, out, "/same") != 2.0 {
		t.Errorf("exit %d, %s", code, out)
	}
	if out, _, code := steno(t, dir, "diff", "one", "three", "-o", "jsonl"); code != 9 || strings.Count(out, "\n") != 3 {
		t.Errorf("exit %d, %s", code, out)
	}
	if out := good(t, dir, "diff", "one", "three", "--as-of", "7"); !strings.Contains(out, "2 steps") {
		t.Error(out)
	}
	if _, errOut, code := steno(t, dir, "diff", "one", "three", "--as-of", "99"); code != 3 {
		t.Errorf("exit %d, %s", code, errOut)
	}
	// Damage is named, also where what is left means the same.
	must(t, change(filepath.Join(dir, ".steno/sessions/two/000002.jsonl"), `"slow"`, `"SLOW"`))
	out, errOut, code = steno(t, dir, "diff", "one", "two")
	if code != 4 || !strings.Contains(out, "mean the same") || pick(t, errOut, "/error/kind") != "corrupt_log_line" {
		t.Errorf("exit %d, %s%s", code, out, errOut)
	}
}

// Steps are put beside each other without crossing.
func TestADiffAlignsWhatIsThere(t *testing.T) {
	of := func(names string) (all []*point) {
		for i, n := range strings.Split(names, "") {
			p := &point{seq: uint64(i), typ: schema.TypeToolCall, call: &called{id: n, tool: n}}
			p.mean[0] = n[0]
			all = append(all, p)
		}
		return all
	}
	for _, c := range []string{"abc abc aa bb cc", "abc axbc aa -x bb cc", "abc ac aa b- cc", "abcd adbc aa -d bb cc d-", "aab ab aa a- bb", "ab xy ax by", "aaa a aa a- a-", "abc cab -c aa bb c-"} {
		f := strings.Fields(c)
		got := f[0] + " " + f[1]
		for _, p := range align(of(f[0]), of(f[1])) {
			got += " "
			for _, s := range p {
				if s == nil {
					got += "-"
				} else {
					got += s.call.id
				}
			}
		}
		if got != c {
			t.Errorf("it aligns %s, want %s", got, c)
		}
	}
}

// What looks alike and is not.
func TestS15ADiffTellsWhatOnlyLooksAlike(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	user := func(text string) journal.Entry { return entry("user_message", fmt.Sprintf(`{"text":%q}`, text)) }
	sides := map[string][2]string{
		"numbers in a list":     {`state_changed {"patch":{"x":[1,2]}}`, `state_changed {"patch":{"x":[12]}}`},
		"lists in a list":       {`state_changed {"patch":{"x":[[1],[]]}}`, `state_changed {"patch":{"x":[[1,[]]]}}`},
		"an id in arguments":    {`assistant_message {"content":[{"type":"tool_use","id":"a","name":"t","input":{"id":1}}]}`, `assistant_message {"content":[{"type":"tool_use","id":"a","name":"t","input":{"id":2}}]}`},
		"an id in a result":     {`user_message {"content":[{"type":"tool_result","tool_use_id":"a","content":{"id":"customer-1"}}]}`, `user_message {"content":[{"type":"tool_result","tool_use_id":"a","content":{"id":"customer-2"}}]}`},
		"what is redacted":      {`user_message {"text":"[redacted]","redacted":[{"pointer":"/text","rule":"r","hash":"11"}]}`, `user_message {"text":"[redacted]","redacted":[{"pointer":"/text","rule":"r","hash":"22"}]}`},
		"a mode":                {`posture_changed {"from":{"mode":"ask"},"to":{"mode":"auto"},"by":"ann","reason":"r"}`, `posture_changed {"from":{"mode":"ask"},"to":{"mode":"read_only"},"by":"ann","reason":"r"}`},
		"a rewind of two":       {`history_rewind {"to_seq":4}`, `history_rewind {"to_seq":3}`},
		"a rewind":              {`history_rewind {"to_seq":4}`, `note {}`},
		"a compaction's words":  {`history_compaction {"range":{"from_seq":1,"to_seq":4},"summary":"all is well","strategy":"s","tail":5}`, `history_compaction {"range":{"from_seq":1,"to_seq":4},"summary":"forget it","strategy":"s","tail":5}`},
		"what a compaction has": {`history_compaction {"range":{"from_seq":1,"to_seq":4},"summary":"s","strategy":"s","tail":5}`, `history_compaction {"range":{"from_seq":1,"to_seq":3},"summary":"s","strategy":"s","tail":4}`},
	}
	n := 0
	for name, side := range sides {
		n++
		for i, s := range side {
			typ, data, _ := strings.Cut(s, " ")
			written(t, dir, fmt.Sprintf("s%d_%d", n, i), false, []journal.Entry{user("one"), user("two"), user("three"), entry(typ, data)})
		}
		if out, errOut, code := steno(t, dir, "diff", fmt.Sprintf("s%d_0", n), fmt.Sprintf("s%d_1", n)); code != schema.ExitDivergence {
			t.Errorf("%s: exit %d, %s%s", name, code, out, errOut)
		}
	}
	// The same history under other numbers, and calls under other ids, mean the same.
	same := func(id string) []journal.Entry {
		return []journal.Entry{entry("assistant_message", fmt.Sprintf(`{"content":{"role":"assistant","content":null,"tool_calls":[{"id":%q,"type":"function","function":{"name":"t","arguments":"{}"}}]}}`, id)), user("two"), user("three")}
	}
	rest := func(to int) []journal.Entry {
		return []journal.Entry{entry("history_rewind", fmt.Sprintf(`{"to_seq":%d}`, to)), entry("history_compaction", fmt.Sprintf(`{"range":{"from_seq":1,"to_seq":%d},"summary":"s","strategy":"s","tail":%d}`, to, to+1))}
	}
	written(t, dir, "plain", false, same("a"), rest(4))
	written(t, dir, "noted", false, joined([]journal.Entry{journaltest.Note("n")}, same("b")), rest(5))
	good(t, dir, "diff", "plain", "noted")
}
