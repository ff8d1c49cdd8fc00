package executor_test

import (
	"strings"
	"testing"

	"steno/executor"
	"steno/journal"
	"steno/journal/journaltest"
	"steno/schema"
)

// A next step has the ids of the session and the call in it, so that it can be
// pasted into a shell, whatever the call is called.
func TestNextStepsNameTheSessionAndTheCall(t *testing.T) {
	p := newPlace(t, journaltest.NATSOptions{})
	called := map[string]string{"plain": "plain", "toolu_1.2:a@b": "toolu_1.2:a@b", "it's;$(rm)": `'it'\''s;$(rm)'`, "a|b": "'a|b'", `"x"`: `'"x"'`, "--failed": "CALL"}
	var ids []string
	for id := range called {
		ids = append(ids, id)
	}
	p.leaveStarted(ids...)
	n := p.node([]executor.Tool{newCounter(false).tool("once", false)})
	for id, word := range called {
		want := "look whether the tool took effect, then run: steno calls resolve s1 " + word + " --reason WHY with --succeeded, --failed or --retry"
		a := n.call("s1", id, "once", `{}`)
		wantKindOfResult(t, a.Data, schema.Interrupted)
		if next := field[schema.ErrorBody](t, a.Data, "error").Details["next"]; next != want {
			t.Errorf("the result of %s says: %s", id, next)
		}
		look, err := n.client.LookAtCall(within(t), executor.CallRequest{Session: "s1", CallID: id})
		if err != nil || look.Next != want {
			t.Errorf("of %s is said: %s (%v)", id, look.Next, err)
		}
		settled := n.resolve("s1", id, executor.AsFailed, "looked")
		if next := field[schema.ErrorBody](t, settled.Data, "error").Details["next"]; strings.Contains(next.(string), "log") || !strings.Contains(next.(string), "new call id") {
			t.Errorf("what a person has settled says: %s", next)
		}
		_, err = n.client.Resolve(within(t), executor.ResolveRequest{Session: "s1", CallID: id, As: executor.AsRetry, By: "user bob", Reason: "not sure"})
		if bad := wantKind(t, err, schema.ResultConflict); bad.Details["next"] != "run: steno calls show s1 "+word {
			t.Errorf("a second answer about %s is told: %s", id, bad.Details["next"])
		}
	}
}

// Whoever leaves out who asks is told so, and what to put in.
func TestWhoAsksMustBeNamed(t *testing.T) {
	p := newPlace(t, journaltest.NATSOptions{})
	n := p.node([]executor.Tool{echo})
	n.open("s1")
	n.call("s1", "c1", "echo", `{}`)
	for subject, body := range map[string]string{
		"calls.cancel":    `{"session":"s1","call_id":"c1"}`,
		"calls.resolve":   `{"session":"s1","call_id":"c1","as":"failed","reason":"x"}`,
		"session.posture": `{"session":"s1","mode":"ask","reason":"x"}`,
	} {
		m, err := n.conn.RequestWithContext(within(t), "steno.v1."+subject, []byte(body))
		if err != nil {
			t.Fatal(err)
		}
		bad := wantKind(t, schema.ParseEnvelope(m.Data), schema.InvalidArgs)
		if !strings.Contains(bad.Message, "by is missing") || !strings.Contains(bad.Details["next"].(string), `"by":"NAME"`) {
			t.Errorf("%s: %s", subject, m.Data)
		}
	}
}

// Of a call that has been let through and whose outcome nobody knows, calls ls
// names who let it through, and not what keeps it from running again.
func TestCallsNameWhoLetThemThrough(t *testing.T) {
	p := newPlace(t, journaltest.NATSOptions{})
	by := func(id, decision, gate, by string) journal.Entry {
		var o schema.Object
		return journal.Entry{Type: schema.TypeDecision, Data: o.Text("call_id", id).Text("decision", decision).Text("gate", gate).Text("by", by).Bytes()}
	}
	p.leave("s1",
		journaltest.Call("allowed", "once", `{}`), by("allowed", "allow", "approval", "human"), journaltest.Started("allowed", 1),
		journaltest.Call("never", "once", `{}`), by("never", "allow", "approval", "human"))
	left := p.read("s1").Head.Seq
	n := p.node([]executor.Tool{newCounter(false).tool("once", false)}, withPolicy(t, readOnly))
	wantKindOfResult(t, n.call("s1", "allowed", "once", `{}`).Data, schema.Interrupted)
	wantKindOfResult(t, n.call("s1", "never", "once", `{}`).Data, schema.WritePolicyDenied)
	denied := 0
	for _, step := range p.steps("s1", left) {
		if strings.HasPrefix(step, schema.TypeDecision) {
			denied++
		}
	}
	list, err := n.client.Calls(within(t), executor.CallsRequest{Session: "s1"})
	if err != nil || len(list.Calls) != 2 || list.Calls[0].By != "human" || list.Calls[1].By != "policy" || denied != 2 {
		t.Errorf("listed are %+v (%v), after %d denials", list.Calls, err, denied)
	}
}
