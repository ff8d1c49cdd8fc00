package executor_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/go-json-experiment/json/jsontext"

	"steno/executor"
	"steno/journal/journaltest"
	"steno/schema"
)

func policy(t testing.TB, text string) *executor.Policy {
	t.Helper()
	p, err := executor.ParsePolicy([]byte(text))
	if err != nil {
		t.Fatalf("%v in\n%s", err, text)
	}
	return p
}

func TestT26APolicyAllowsAndDeniesByToolAndArgument(t *testing.T) {
	bash := executor.Tool{Name: "bash", Tier: 3}
	read := executor.Tool{Name: "read", ReadOnly: true}
	edit := executor.Tool{Name: "edit", Tier: 1}
	const (
		push  = `{name: push, do: deny, tool: bash, argument: {matches: 'git +push'}}`
		ask   = `{name: ask, do: ask, tool: bash}`
		all   = `{name: all, do: allow}`
		looks = `{name: looks, do: allow, tool: '*', tier: 0}`
		tests = `{name: tests, do: allow, tool: bash, argument: {pointer: /argv, matches: 'go (test|vet) [a-z./]+'}}`
		port  = `{name: port, do: deny, argument: {pointer: /to/port, matches: '^22$'}}`
		heavy = `{name: heavy, do: deny, tier: 3}`
		edits = `{name: edits, do: deny, tool: 'e[a-z]*'}`
	)
	for _, c := range []struct {
		mode, rules string
		tool        executor.Tool
		args        string
		want        string
	}{
		{"auto", "", bash, `{}`, "allow mode policy"},
		{"read_only", "", bash, `{}`, "write_policy_denied mode policy"},
		{"read_only", all, edit, `{}`, "write_policy_denied mode policy"},
		{"read_only", "", read, `{}`, "allow mode policy"},
		{"ask", "", bash, `{}`, "approval_denied approval policy unattended"},
		{"ask", "", read, `{}`, "allow mode policy"},
		{"ask", "", executor.Tool{Name: "look", ReadOnly: true, Tier: 3}, `{}`, "approval_denied approval policy unattended"},
		{"ask", all, bash, `{}`, "allow policy policy all"},
		// The order of rules does not matter: deny, ask, allow.
		{"auto", all + "," + push + "," + ask, bash, `{"command":"git push"}`, "permission_denied policy policy push"},
		{"auto", all + "," + ask, bash, `{}`, "approval_denied approval policy unattended"},
		{"auto", ask + "," + all, edit, `{}`, "allow policy policy all"},
		// Where something is allowed, the rest is not.
		{"auto", looks, read, `{}`, "allow policy policy looks"},
		{"auto", looks, edit, `{}`, "permission_denied policy policy no_match"},
		{"ask", looks, edit, `{}`, "permission_denied policy policy no_match"},
		{"auto", push, edit, `{}`, "allow mode policy"},
		{"auto", edits, edit, `{}`, "permission_denied policy policy edits"},
		{"auto", edits, bash, `{}`, "allow mode policy"},
		// The tier of a deny is the lowest, of an allow the highest.
		{"auto", heavy, bash, `{}`, "permission_denied policy policy heavy"},
		{"auto", heavy, edit, `{}`, "allow mode policy"},
		// A deny finds its text wherever it stands, and in a list as a whole.
		{"auto", push, bash, `{"argv":["git","push","-f"]}`, "permission_denied policy policy push"},
		{"auto", push, bash, `{"a":[{"b":"x; git  push"}]}`, "permission_denied policy policy push"},
		{"auto", push, bash, `{"command":"git \u0070ush"}`, "permission_denied policy policy push"},
		{"auto", push, bash, `{"git push":"git pull"}`, "allow mode policy"},
		{"auto", port, bash, `{"to":{"port":22}}`, "permission_denied policy policy port"},
		{"auto", port, bash, `{"to":{"port":2.2e1}}`, "permission_denied policy policy port"},
		{"auto", port, bash, `{"to":{"port":[80,22.0]}}`, "permission_denied policy policy port"},
		{"auto", port, bash, `{"to":{"port":2222}}`, "allow mode policy"},
		{"auto", port, bash, `{"port":22}`, "allow mode policy"},
		{"auto", port, bash, `{"to":[{"port":22}]}`, "allow mode policy"},
		// An allow must fit all there is, from end to end.
		{"auto", tests, bash, `{"argv":["go","test","./..."]}`, "allow policy policy tests"},
		{"auto", tests, bash, `{"argv":["rm","go test x"]}`, "permission_denied policy policy no_match"},
		{"auto", tests, bash, `{"argv":["go","test","./...","-exec","rm"]}`, "permission_denied policy policy no_match"},
		{"auto", tests, bash, `{"argv":["go","test","x\nrm"]}`, "permission_denied policy policy no_match"},
		{"auto", tests, bash, `{"argv":[["go test x"],["rm"]]}`, "permission_denied policy policy no_match"},
		{"auto", tests, bash, `{"argv":[]}`, "permission_denied policy policy no_match"},
		{"auto", tests, bash, `{"command":"go test x"}`, "permission_denied policy policy no_match"},
		// Nothing grants tier 4.
		{"auto", all, executor.Tool{Name: "launch", Tier: 4}, `{}`, "tier_denied tier policy"},
	} {
		p := policy(t, "version: 1\nmode: "+c.mode+"\nrules: ["+c.rules+"]")
		for range 2 { // the second time by what it has kept
			if got := executor.Decide(p, c.tool, c.args); got != c.want {
				t.Errorf("%s [%s] says of %s %s: %s, want %s", c.mode, c.rules, c.tool.Name, c.args, got, c.want)
			}
		}
	}
	if got := executor.Decide(nil, bash, `{}`); got != "allow mode auto" {
		t.Errorf("without a policy: %s", got)
	}
	if got := executor.Decide(nil, executor.Tool{Name: "launch", Tier: 9}, `{}`); got != "tier_denied tier auto" {
		t.Errorf("tier 9 without a policy: %s", got)
	}
}

func TestAPolicyWithAnUnknownKeyIsRefused(t *testing.T) {
	const head = "version: 1\nmode: auto\n"
	for text, want := range map[string]string{
		head + "rulez: []\n": "line 3, column 1: ",
		head + "rules:\n  - {name: a, do: deny, tools: bash}\n":          "line 4, column 25: ",
		head + "rules:\n  - {name: a, do: deny, argument: {match: x}}\n": "line 4, column 36: ",
		head + "mode: ask\n": "line 3, column 1: ",
		head + "rules:\n  - {name: a, do: deny, do: allow}\n": "line 4, column 25: ",
		head + "rules: &a []\n":                               "line 3",
		head + "---\nversion: 1\nmode: ask\n":                 "line 4",
		"mode: auto\n":                                        "version must be 1",
		"version: 2\nmode: auto\n":                            "version must be 1",
		"version: 1\n":                                        "mode must be",
		"version: 1\nmode: AUTO\n":                            "mode must be",
		"version: 1\nmode: [auto]\n":                          "line 2",
		"":                                                    "empty",
		head + "rules:\n  - {do: deny}\n":                     "rule 1: a rule has a name",
		head + "rules:\n  - {name: no_match, do: deny}\n":     "rule 1 (no_match): ",
		head + "rules:\n  - {name: a, do: deny}\n  - {name: a, do: allow}\n":                    "rule 2 (a): another rule",
		head + "rules:\n  - {name: a, do: forbid}\n":                                            "do must be",
		head + "rules:\n  - {name: a, do: deny, tier: 4}\n":                                     "tier must be",
		head + "rules:\n  - {name: a, do: deny, tool: '['}\n":                                   "tool is no pattern",
		head + "rules:\n  - {name: a, do: deny, argument: {matches: '(a)\\1'}}\n":               "no RE2",
		head + "rules:\n  - {name: a, do: allow, argument: {matches: 'a)|(?:.*'}}\n":            "no RE2",
		head + "rules:\n  - {name: a, do: deny, argument: {pointer: path, matches: x}}\n":       "JSON pointer",
		head + "rules:\n  - {name: a, do: deny, argument: {pointer: /path}}\n":                  "matches is missing",
		head + "rules:\n" + strings.Repeat("  - {name: a, do: deny}\n", 1<<16) + "# too long\n": "longer than",
	} {
		_, err := executor.ParsePolicy([]byte(text))
		wantErr(t, err, schema.InvalidConfig)
		if !strings.Contains(fmt.Sprint(err), want) {
			t.Errorf("%.200s\nis refused with %v, want %s", text, err, want)
		}
	}
}

// What decided is on disk, with the document's hash and the rule, before a tool
// runs; a call that is denied is recorded in one write, and nothing runs.
func TestEveryDecisionIsDurableBeforeTheRun(t *testing.T) {
	p := newPlace(t, journaltest.NATSOptions{})
	rules := policy(t, "version: 1\nmode: auto\nrules: [{name: looks, do: allow, tool: look}, {name: no-two, do: deny, argument: {pointer: /n, matches: '^2$'}}]")
	var runs []string
	look := toolOf("look", func(_ context.Context, c *executor.Invocation) (executor.Result, error) {
		seen, err := onDisk(p.dir, c.Session)
		for _, e := range seen {
			if e.Type == schema.TypeDecision && field[string](t, e.Data, "call_id") == c.CallID {
				runs = append(runs, string(e.Data))
			}
		}
		return executor.Result{OK: true}, err
	})
	n := p.node([]executor.Tool{look, echo}, func(c *executor.Config) { c.Policy = rules })
	n.open("s1")
	n.call("s1", "allowed", "look", `{"n":1}`)
	want := []string{`{"call_id":"allowed","decision":"allow","gate":"policy","by":"policy","args_sha256":"` + sumOf(t, `{"n":1}`) + `","rule":"looks","policy_hash":"` + rules.Hash() + `"}`}
	if !slices.Equal(runs, want) {
		t.Fatalf("when it ran the decisions on disk were\n%q, want\n%q", runs, want)
	}
	for id, c := range map[string]struct{ tool, args, rule string }{"denied": {"look", `{"n":2}`, "no-two"}, "none": {"echo", `{}`, "no_match"}} {
		before := n.faults.Seen(journaltest.Written)
		a := n.call("s1", id, c.tool, c.args)
		if writes := n.faults.Seen(journaltest.Written) - before; writes != 1 {
			t.Errorf("%s took %d writes", id, writes)
		}
		wantKindOfResult(t, a.Data, schema.PermissionDenied)
		p.wantRecorded("s1", a)
		l := p.read("s1")
		last := l.Events[len(l.Events)-3:]
		if d := last[1].Data; last[0].Type != schema.TypeToolCall || last[1].Type != schema.TypeDecision || last[2].Type != schema.TypeToolResult ||
			field[string](t, d, "decision") != "deny" || field[string](t, d, "rule") != c.rule || field[string](t, d, "policy_hash") != rules.Hash() {
			t.Errorf("%s is recorded as %s %s, %s %s, %s %s", id, last[0].Type, last[0].Data, last[1].Type, d, last[2].Type, last[2].Data)
		}
		if e := field[schema.ErrorBody](t, a.Data, "error"); e.Details["rule"] != c.rule || e.Details["policy_hash"] != rules.Hash() || field[int](t, a.Data, "attempt") != 0 {
			t.Errorf("%s is answered %s", id, a.Data)
		}
		if again := n.call("s1", id, c.tool, c.args); string(again.Data) != string(a.Data) {
			t.Errorf("again: %s", again.Data)
		}
	}
	if len(runs) != 1 {
		t.Errorf("what is denied has run: %q", runs)
	}
}

func sumOf(t testing.TB, args string) string {
	t.Helper()
	sum, err := schema.ArgsSHA256([]byte(args))
	if err != nil {
		t.Fatal(err)
	}
	return sum
}

// A call that an earlier process left is asked about again before it runs, and
// a denial that is recorded stands.
func TestAPolicyIsAskedAgainAboutCallsThatWereLeft(t *testing.T) {
	p := newPlace(t, journaltest.NATSOptions{})
	p.leave("s1",
		journaltest.Call("fresh", "again", `{}`), decided("fresh", "allow"),
		journaltest.Call("started", "again", `{}`), decided("started", "allow"), journaltest.Started("started", 1),
		journaltest.Call("now-denied", "again", `{"n":2}`), decided("now-denied", "allow"),
		journaltest.Call("started-and-denied", "again", `{"n":2}`), decided("started-and-denied", "allow"), journaltest.Started("started-and-denied", 1),
		journaltest.Call("denied", "again", `{}`), decided("denied", "deny"),
	)
	left := p.read("s1").Head.Seq
	count := newCounter(false)
	n := p.node([]executor.Tool{count.tool("again", true)}, func(c *executor.Config) {
		c.Policy = policy(t, "version: 1\nmode: auto\nrules: [{name: no-two, do: deny, argument: {pointer: /n, matches: '^2$'}}]")
	})
	n.call("s1", "new", "again", `{}`)
	n.stop()
	got := map[string][]string{}
	for _, s := range p.steps("s1", left) {
		step := strings.Fields(s)
		got[step[1]] = append(got[step[1]], strings.Join(slices.Delete(step, 1, 2), " "))
	}
	for id, want := range map[string][]string{
		"fresh":              {"permission_decision", "tool_started 1", "tool_result 1"},
		"started":            {"permission_decision", "tool_started 2", "tool_result 2"},
		"now-denied":         {"permission_decision", "tool_result 0 permission_denied"},
		"started-and-denied": {"permission_decision", "tool_result 1 interrupted"},
		"denied":             {"tool_result 0 write_policy_denied"},
		"new":                {"tool_call", "permission_decision", "tool_started 1", "tool_result 1"},
	} {
		if !slices.Equal(got[id], want) {
			t.Errorf("%s: %q, want %q", id, got[id], want)
		}
	}
}

// Whatever a document says: it is refused or can be asked, nothing runs that one
// of its rules denies or asks about, and the order of its rules changes nothing.
func FuzzPolicy(f *testing.F) {
	f.Add("version: 1\nmode: auto\nrules: [{name: a, do: deny, tool: 'b*', argument: {matches: x}}, {name: b, do: allow}]", `{"a":["x",1.5,{"b":null}]}`)
	f.Add("version: 1\nmode: ask\nrules:\n  - {name: a, do: ask, tier: 1}\n", `{}`)
	f.Add("version: 1\nmode: read_only\n", `{"command":"git push"}`)
	f.Fuzz(func(t *testing.T, text, args string) {
		p, err := executor.ParsePolicy([]byte(text))
		if err != nil {
			if schema.KindOf(err) != schema.InvalidConfig {
				t.Fatalf("%v", err)
			}
			return
		}
		if a, _, err := schema.Compact(nil, jsontext.Value(args), 2); err != nil || a[0] != '{' {
			args = `{}`
		} else {
			args = string(a)
		}
		for tier := range 5 {
			tool := executor.Tool{Name: "bash", Tier: tier, ReadOnly: tier%2 == 0}
			got := executor.Decide(p, tool, args)
			if allowed := strings.HasPrefix(got, "allow "); allowed && (tier > 3 || executor.Fits(p, "deny", tool, args) || executor.Fits(p, "ask", tool, args)) {
				t.Errorf("tier %d: %s", tier, got)
			}
			back, _, _ := strings.Cut(executor.Decide(executor.Backwards(p), tool, args), " ")
			if word, _, _ := strings.Cut(got, " "); word != back {
				t.Errorf("tier %d: %s, and with the rules in the other order %s", tier, got, back)
			}
		}
	})
}

// A tool's tier is recorded with each call, and one of tier 4 or above runs for
// nobody: no mode, no rule and no person lets it.
func TestT8NobodyGrantsATierAbove3(t *testing.T) {
	p := newPlace(t, journaltest.NATSOptions{})
	count := newCounter(false)
	var tools []executor.Tool
	for tier := range 7 {
		tool := count.tool(fmt.Sprint("t", tier), false)
		tool.Tier = tier
		tools = append(tools, tool)
	}
	for i, text := range []string{"", "version: 1\nmode: auto\n", "version: 1\nmode: auto\nrules:\n  - {name: all, do: allow, tool: '*'}\n", "version: 1\nmode: auto\nrules:\n  - {name: ask, do: ask, tool: 't[4-9]'}\n"} {
		n := p.node(tools, func(c *executor.Config) {
			if text != "" {
				c.Policy = policy(t, text)
			}
		})
		session := fmt.Sprint("s", i)
		n.open(session)
		for tier := range 7 {
			id := fmt.Sprint(session, "c", tier)
			a := n.call(session, id, fmt.Sprint("t", tier), `{}`)
			want, runs := schema.Kind(""), 1
			if tier >= 4 {
				want, runs = schema.TierDenied, 0
			}
			wantKindOfResult(t, a.Data, want)
			if count.of(id) != runs {
				t.Errorf("with %q a tool of tier %d ran %d times", text, tier, count.of(id))
			}
			if data, _ := p.last(session, schema.TypeToolCall); tier > 0 && field[int](t, data, "tier") != tier {
				t.Errorf("recorded is %s", data)
			}
		}
		if a, err := n.client.Tools(within(t), executor.ToolsRequest{Session: session}); err != nil || len(a.Tools) != 4 {
			t.Errorf("with %q %d tools are told, %v", text, len(a.Tools), err)
		}
		n.stop()
	}
}
