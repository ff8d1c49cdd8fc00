package executor_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/go-json-experiment/json/jsontext"

	"steno/executor"
	"steno/journal"
	"steno/journal/journaltest"
	"steno/schema"
)

const (
	readOnly = "version: 1\nmode: read_only\n"
	noTwos   = "version: 1\nmode: auto\nrules: [{name: no-two, do: deny, argument: {pointer: /n, matches: '^2$'}}]\n"
)

func withPolicy(t *testing.T, text string) func(*executor.Config) {
	return func(c *executor.Config) { c.Policy = policy(t, text) }
}

// last gives the data of the newest event of a type, and its seq.
func (p *place) last(session, typ string) (data []byte, seq uint64) {
	p.t.Helper()
	for _, e := range p.read(session).Events {
		if e.Type == typ {
			data, seq = e.Data, e.Seq
		}
	}
	return data, seq
}

// A session goes by the policy that is recorded in it, in whatever process,
// until one brings another, which is recorded before the first call.
func TestAProcessWithoutAPolicyGoesByTheRecordedOne(t *testing.T) {
	p := newPlace(t, journaltest.NATSOptions{})
	tools := []executor.Tool{echo}
	first := p.node(tools, withPolicy(t, readOnly))
	first.open("s1")
	hash := policy(t, readOnly).Hash()
	if started, _ := p.last("s1", schema.TypeSessionStarted); string(field[jsontext.Value](t, started, "posture")) != `{"mode":"read_only","policy_hash":"`+hash+`"}` {
		t.Errorf("it began with %s", started)
	}
	wantKindOfResult(t, first.call("s1", "c1", "echo", `{}`).Data, schema.WritePolicyDenied)
	first.stop()

	second := p.node(tools)
	wantKindOfResult(t, second.call("s1", "c2", "echo", `{}`).Data, schema.WritePolicyDenied)
	if d, _ := p.last("s1", schema.TypeDecision); field[string](t, d, "policy_hash") != hash {
		t.Errorf("a process without a policy decided %s", d)
	}
	second.open("s2")
	wantKindOfResult(t, second.call("s2", "c1", "echo", `{}`).Data, "") // there nothing is recorded
	second.stop()

	third := p.node(tools, withPolicy(t, noTwos))
	for _, id := range []string{"s1", "s2"} {
		wantKindOfResult(t, third.call(id, "c3", "echo", `{}`).Data, "")
		wantKindOfResult(t, third.call(id, "c4", "echo", `{"n":2}`).Data, schema.PermissionDenied)
		changed, seq := p.last(id, schema.TypePostureChanged)
		st := p.read(id).State
		if c := st.Call("c3"); seq == 0 || c.Seq < seq || st.Posture.Seq != seq || st.Posture.PolicyHash != policy(t, noTwos).Hash() || st.Posture.Mode != "auto" {
			t.Errorf("%s goes by %+v since %d, and c3 came at %d", id, st.Posture, seq, c.Seq)
		}
		from := map[string]string{"s1": `{"mode":"read_only","policy_hash":"` + hash + `"}`, "s2": `{}`}[id]
		if got := string(field[jsontext.Value](t, changed, "from")); got != from {
			t.Errorf("%s went by %s before, want %s", id, got, from)
		}
	}
	if n := count(p.types("s1"), schema.TypePostureChanged); n != 1 {
		t.Errorf("%d changes are recorded", n)
	}
}

func count(list []string, what string) (n int) {
	for _, s := range list {
		if s == what {
			n++
		}
	}
	return n
}

// Without the document nothing runs and nothing is refused for good: whoever
// puts it back goes on where the log ends.
func TestACallWaitsForThePolicyThatIsRecorded(t *testing.T) {
	p := newPlace(t, journaltest.NATSOptions{})
	tools := []executor.Tool{echo}
	n := p.node(tools, withPolicy(t, noTwos))
	n.open("s1")
	n.stop()
	p.leave("s1", journaltest.Call("left", "echo", `{"n":2}`))
	file := filepath.Join(p.dir, "policies", policy(t, noTwos).Hash()+".yaml")
	fi, err := os.Stat(file)
	if err != nil || fi.Mode().Perm() != 0o600 {
		t.Fatalf("the policy is kept as %v, %v", fi, err)
	}
	for what, spoil := range map[string]func() error{
		"gone":    func() error { return os.Remove(file) },
		"changed": func() error { return os.WriteFile(file, []byte(readOnly), 0o600) },
	} {
		if err := spoil(); err != nil {
			t.Fatal(err)
		}
		n := p.node(tools)
		before := p.types("s1")
		_, err := n.client.Call(within(t), "s1", request("c1", "echo", `{}`))
		wantErr(t, err, schema.ResumePolicyUnavailable)
		_, err = n.client.Call(within(t), "s1", request("left", "echo", `{"n":2}`))
		wantErr(t, err, schema.ResumePolicyUnavailable)
		if got, err := n.client.Get(within(t), "s1"); err != nil || fmt.Sprint(got.Open) != "[left]" {
			t.Errorf("%s: the session is %+v, %v", what, got, err)
		}
		n.stop()
		if after := p.types("s1"); !slices.Equal(before, after) {
			t.Errorf("%s: recorded is %q", what, after)
		}
	}
	if err := p.store().KeepPolicy([]byte(noTwos)); err != nil { // in place of the wrong one
		t.Fatal(err)
	}
	n = p.node(tools)
	wantKindOfResult(t, n.call("s1", "c1", "echo", `{}`).Data, "")
	wantKindOfResult(t, n.call("s1", "left", "echo", `{"n":2}`).Data, schema.PermissionDenied)
}

// A posture need not have a document, and a mode may be recorded that nobody
// knows.
func TestAModeAloneIsAPosture(t *testing.T) {
	p := newPlace(t, journaltest.NATSOptions{})
	n := p.node([]executor.Tool{echo}, func(c *executor.Config) { c.DenyUnattended = true })
	for mode, want := range map[string]schema.Kind{"auto": "", "ask": schema.ApprovalDenied, "read_only": schema.WritePolicyDenied} {
		change := journal.Entry{Type: schema.TypePostureChanged, Data: []byte(`{"from":{},"to":{"mode":"` + mode + `"},"by":"a person","reason":"a test"}`)}
		p.leave(mode, change)
		wantKindOfResult(t, n.call(mode, "c1", "echo", `{}`).Data, want)
	}
	p.leave("odd", journal.Entry{Type: schema.TypePostureChanged, Data: []byte(`{"from":{},"to":{"mode":"lenient"},"by":"a person","reason":"a test"}`)})
	_, err := n.client.Call(within(t), "odd", request("c1", "echo", `{}`))
	wantErr(t, err, schema.ResumePolicyUnavailable)
}

// What a person has allowed runs also where the policy in force would ask, and
// not where it denies.
func TestThePolicyInForceIsAskedAgain(t *testing.T) {
	human := func(id string) []journal.Entry {
		var ask, allow schema.Object
		return []journal.Entry{
			{Type: schema.TypeApprovalRequested, Data: ask.Text("call_id", id).Text("approval_id", "a-"+id).Text("reason", "a test").Bytes()},
			{Type: schema.TypeDecision, Data: allow.Text("call_id", id).Text("decision", "allow").Text("gate", "approval").Text("by", "human").Text("approval_id", "a-"+id).Bytes()},
		}
	}
	for mode, wants := range map[string]map[string]schema.Kind{
		"mode: ask\n":       {"asked": "", "two": schema.PermissionDenied, "once": schema.Interrupted},
		"mode: read_only\n": {"asked": schema.WritePolicyDenied, "two": schema.WritePolicyDenied, "once": schema.Interrupted},
	} {
		t.Run(mode, func(t *testing.T) {
			p := newPlace(t, journaltest.NATSOptions{})
			entries := slices.Concat(
				[]journal.Entry{journaltest.Call("asked", "once", `{}`)}, human("asked"),
				[]journal.Entry{journaltest.Call("two", "once", `{"n":2}`)}, human("two"),
				[]journal.Entry{journaltest.Call("once", "once", `{}`)}, human("once"), []journal.Entry{journaltest.Started("once", 1)})
			p.leave("s1", entries...)
			count := newCounter(false)
			n := p.node([]executor.Tool{count.tool("once", false)}, withPolicy(t, "version: 1\n"+mode+"rules: [{name: no-two, do: deny, argument: {pointer: /n, matches: '^2$'}}]\n"))
			for id, want := range wants {
				args := `{}`
				if id == "two" {
					args = `{"n":2}`
				}
				wantKindOfResult(t, n.call("s1", id, "once", args).Data, want)
				if ran := count.of(id); (ran == 1) != (want == "") {
					t.Errorf("%s ran %d times", id, ran)
				}
			}
			c := p.read("s1").State.Call("asked")
			if mode == "mode: ask\n" && (len(c.Decisions) != 1 || c.Decisions[0].By != "human") {
				t.Errorf("beside the person's word stands %+v", c.Decisions)
			}
		})
	}
}

// The mode of a session is changed with a reason, recorded, and holds for the next
// process too. It is beside the rules, and an override of it is as visible.
func TestS12TheModeIsChangedWithAReasonAndRestored(t *testing.T) {
	p := newPlace(t, journaltest.NATSOptions{})
	count := newCounter(false)
	tools := []executor.Tool{count.tool("act", false), echo}
	posture := func(n *node, session, mode, reason string) (executor.PostureAnswer, error) {
		return n.client.Posture(within(t), executor.PostureRequest{Session: session, Mode: mode, By: "ann", Reason: reason})
	}
	first := p.node(tools)
	first.open("s1")
	wantKindOfResult(t, first.call("s1", "c1", "act", `{}`).Data, "")
	a, err := posture(first, "s1", "read_only", "it deletes too much")
	if err != nil || !a.Changed || a.Mode != "read_only" || a.PolicyHash != "" {
		t.Fatalf("%+v, %v", a, err)
	}
	d, seq := p.last("s1", schema.TypePostureChanged)
	if string(d) != `{"from":{},"to":{"mode":"read_only"},"by":"ann","reason":"it deletes too much"}` {
		t.Errorf("recorded is %s", d)
	}
	if again, err := posture(first, "s1", "read_only", "once more"); err != nil || again.Changed || again.Head != a.Head {
		t.Errorf("the same again: %+v, %v", again, err)
	}
	wantKindOfResult(t, first.call("s1", "c2", "act", `{}`).Data, schema.WritePolicyDenied)
	first.stop()

	second := p.node(tools)
	wantKindOfResult(t, second.call("s1", "c3", "act", `{}`).Data, schema.WritePolicyDenied)
	if now, _ := p.last("s1", schema.TypePostureChanged); string(now) != string(d) {
		t.Errorf("a take-over has changed it: %s", now)
	}
	for _, bad := range []executor.PostureRequest{
		{Session: "s1", Mode: "auto", By: "ann"}, {Session: "s1", Mode: "auto", Reason: "why"}, {Session: "s1", Mode: "yolo", By: "ann", Reason: "why"}, {Session: "s1", By: "ann", Reason: "why"},
	} {
		_, err := second.client.Posture(within(t), bad)
		wantErr(t, err, schema.InvalidArgs)
	}
	if _, now := p.last("s1", schema.TypePostureChanged); now != seq {
		t.Error("a bad request is recorded")
	}
	// What waits is asked about again when it is allowed.
	if _, err := posture(second, "s1", "ask", "a person looks"); err != nil {
		t.Fatal(err)
	}
	q, result := second.asked("s1", "c4", "act", `{}`)
	if _, err := posture(second, "s1", "read_only", "nothing more"); err != nil {
		t.Fatal(err)
	}
	second.mustAnswer(q, "allow")
	wantKindOfResult(t, wait(t, "the result", result).Data, schema.WritePolicyDenied)
	second.stop()

	// A process with a policy of its own: the rules stay, whatever the mode.
	third := p.node(tools, withPolicy(t, noTwos))
	third.open("s2")
	if a, err = posture(third, "s2", "read_only", "why"); err != nil || a.PolicyHash != policy(t, noTwos).Hash() {
		t.Fatalf("%+v, %v", a, err)
	}
	wantKindOfResult(t, third.call("s2", "c1", "act", `{"n":1}`).Data, schema.WritePolicyDenied)
	if _, err = posture(third, "s2", "auto", "why"); err != nil {
		t.Fatal(err)
	}
	wantKindOfResult(t, third.call("s2", "c2", "act", `{"n":1}`).Data, "")
	wantKindOfResult(t, third.call("s2", "c3", "act", `{"n":2}`).Data, schema.PermissionDenied)
	// And it takes the place of what a session went by before, mode and all.
	if a, err = posture(third, "s1", "ask", "why"); err != nil || a.PolicyHash != policy(t, noTwos).Hash() {
		t.Fatalf("%+v, %v", a, err)
	}
	if count.of("c1") != 1 || count.of("c2") != 1 || count.of("c3")+count.of("c4") != 0 {
		t.Error("another call has run")
	}
	// Without its rules nothing is changed.
	if err := os.Remove(filepath.Join(p.dir, "policies", policy(t, noTwos).Hash()+".yaml")); err != nil {
		t.Fatal(err)
	}
	third.stop()
	_, err = posture(p.node(tools), "s2", "ask", "why")
	wantErr(t, err, schema.ResumePolicyUnavailable)
}
