package executor_test

import (
	"testing"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"steno/executor"
	"steno/journal/journaltest"
	"steno/replay"
	"steno/schema"
)

func TestT25AGrantIsForOneToolProgramAndTier(t *testing.T) {
	bash := executor.Builtin()[5]
	if bash.Name != "bash" {
		t.Fatal(bash.Name)
	}
	for args, want := range map[string]string{
		`{"argv":["go","test"]}`:                 "go",
		`{"argv":["/usr/bin/go","test"]}`:        "/usr/bin/go",
		`{"argv":["a b","c;d"]}`:                 "a b",
		`{"command":"go test ./..."}`:            "go",
		`{"command":"  ls *.go  "}`:              "ls",
		`{"command":"go test; rm x"}`:            "",
		`{"command":"go test && rm x"}`:          "",
		`{"command":"go test | tee x"}`:          "",
		`{"command":"go test > x"}`:              "",
		`{"command":"go test $(rm x)"}`:          "",
		`{"command":"go test $X"}`:               "",
		"{\"command\":\"go test `rm x`\"}":       "",
		`{"command":"go test\nrm x"}`:            "",
		`{"command":"\"go\" test"}`:              "",
		`{"command":"g\\o test"}`:                "",
		`{"command":"GOFLAGS=-exec=rm go test"}`: "",
		`{"command":"~/go test"}`:                "",
		`{"command":" "}`:                        "",
		`{}`:                                     "",
	} {
		if got := bash.Program(jsontext.Value(args)); got != want {
			t.Errorf("%s runs %q, want %q", args, got, want)
		}
	}
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	ask, deny := policy(t, asking), policy(t, "version: 1\nmode: ask\nrules: [{name: no-push, do: deny, argument: {matches: push}}, {name: all, do: ask}]")
	plain, high := executor.Tool{Name: "plain", Tier: 2}, bash
	high.Tier = 4
	for _, c := range []struct {
		p     *executor.Policy
		tool  executor.Tool
		args  string
		grant replay.Grant
		want  string
	}{
		{ask, bash, `{"command":"go vet"}`, replay.Grant{Tool: "bash", Program: "go", Tier: 3}, "allow grant"},
		{deny, bash, `{"command":"git pull"}`, replay.Grant{Tool: "bash", Program: "git", Tier: 3}, "allow grant"},
		{deny, bash, `{"command":"git push"}`, replay.Grant{Tool: "bash", Program: "git", Tier: 3}, "permission_denied policy"},
		{policy(t, readOnly), bash, `{"command":"go vet"}`, replay.Grant{Tool: "bash", Program: "go", Tier: 3}, "write_policy_denied policy"},
		{ask, bash, `{"command":"rm x"}`, replay.Grant{Tool: "bash", Program: "go", Tier: 3}, "approval_denied policy"},
		{ask, bash, `{"command":"go vet; rm x"}`, replay.Grant{Tool: "bash", Program: "", Tier: 3}, "approval_denied policy"},
		{ask, bash, `{"argv":["/tmp/go","vet"]}`, replay.Grant{Tool: "bash", Program: "go", Tier: 3}, "approval_denied policy"},
		{ask, bash, `{"command":"go vet"}`, replay.Grant{Tool: "bash", Program: "go", Tier: 2}, "approval_denied policy"},
		{ask, high, `{"command":"go vet"}`, replay.Grant{Tool: "bash", Program: "go", Tier: 9}, "tier_denied policy"},
		{ask, plain, `{}`, replay.Grant{Tool: "plain", Tier: 2}, "allow grant"},
		{ask, plain, `{}`, replay.Grant{Tool: "other", Tier: 2}, "approval_denied policy"},
		{ask, plain, `{}`, replay.Grant{Tool: "plain", Program: "go", Tier: 2}, "approval_denied policy"},
		{ask, plain, `{}`, replay.Grant{Tool: "plain", Tier: 2, Until: "2026-01-01T00:00:00.000001Z"}, "allow grant"},
		{ask, plain, `{}`, replay.Grant{Tool: "plain", Tier: 2, Until: "2026-01-01T00:00:00.000000Z"}, "approval_denied policy"},
		{ask, plain, `{}`, replay.Grant{Tool: "plain", Tier: 2, Until: "soon"}, "approval_denied policy"},
	} {
		if got := executor.Granted(c.p, c.tool, c.args, now, c.grant); got != c.want {
			t.Errorf("%s %s by %+v: %s, want %s", c.tool.Name, c.args, c.grant, got, c.want)
		}
	}
}

// A grant that a person gives with an answer outlives the process, and is
// recorded with each call that it lets run.
func TestAGrantSurvives(t *testing.T) {
	p := newPlace(t, journaltest.NATSOptions{})
	act, count := echo, newCounter(false)
	act.Name, act.Program = "act", func(args jsontext.Value) string { return string(args[:min(len(args), 6)]) }
	tools := []executor.Tool{act, count.tool("other", false)}
	first := p.node(tools, withPolicy(t, asking))
	first.open("s1")
	q, result := first.asked("s1", "c1", "act", `{"a":1}`)
	answer := executor.AnswerRequest{Session: "s1", CallID: "c1", ApprovalID: q.ApprovalID, Decision: "allow", Grant: &executor.GrantRequest{Until: time.Now().Add(-time.Second)}}
	_, err := first.client.Answer(within(t), answer)
	wantErr(t, err, schema.InvalidArgs) // it would have ended
	answer.Decision, answer.Grant = "deny", &executor.GrantRequest{}
	_, err = first.client.Answer(within(t), answer)
	wantErr(t, err, schema.InvalidArgs)
	answer.Decision = "allow"
	if _, err := first.client.Answer(within(t), answer); err != nil {
		t.Fatal(err)
	}
	wait(t, "the result", result)
	d, seq := p.last("s1", schema.TypeDecision)
	if got := string(field[jsontext.Value](t, d, "grant")); got != `{"tool":"act","program":"{\"a\":1","tier":0}` {
		t.Errorf("granted is %s", got)
	}
	first.stop()
	second := p.node(tools, withPolicy(t, asking))
	wantKindOfResult(t, second.call("s1", "c2", "act", `{"a":12}`).Data, "")
	if d, _ := p.last("s1", schema.TypeDecision); field[string](t, d, "call_id") != "c2" || field[string](t, d, "by") != "grant" || field[string](t, d, "gate") != "approval" {
		t.Errorf("by the grant of %d is decided %s", seq, d)
	}
	for id, tool := range map[string]string{"c3": "act", "c4": "other"} { // another program, another tool
		q, result := second.asked("s1", id, tool, `{"b":1}`)
		second.mustAnswer(q, "deny")
		wantKindOfResult(t, wait(t, "the result", result).Data, schema.ApprovalDenied)
	}
	if count.of("c4") != 0 {
		t.Error("it has run")
	}
}
