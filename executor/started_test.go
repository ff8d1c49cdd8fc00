package executor_test

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"steno/executor"
	"steno/journal"
	"steno/journal/journaltest"
	"steno/lease"
	"steno/replay"
	"steno/schema"
)

// Damage may take session_started. The session is there all the same, its
// results are answered, and whoever opens it next says what it is.
func TestASessionThatHasLostItsBeginningIsServed(t *testing.T) {
	for _, how := range []string{"a damaged line", "a missing segment"} {
		t.Run(how, func(t *testing.T) {
			p := newPlace(t, journaltest.NATSOptions{})
			count := newCounter(false)
			tools := []executor.Tool{count.tool("once", false)}
			n := p.node(tools)
			if _, err := n.client.Open(within(t), executor.OpenRequest{Session: "s1", Workspace: t.TempDir()}); err != nil {
				t.Fatal(err)
			}
			first := n.call("s1", "c1", "once", `{}`)
			n.stop()
			n = p.node(tools)
			second := n.call("s1", "c2", "once", `{}`)
			n.stop()
			p.loseBeginning("s1", how == "a missing segment")

			n = p.node(tools, withPolicy(t, "{version: 1, mode: auto}"))
			if got, err := n.client.Get(within(t), "s1"); err != nil || !got.Started.IsZero() {
				t.Errorf("nobody holds it: %+v, %v", got, err)
			}
			if how == "a damaged line" {
				if a := n.call("s1", "c1", "once", `{}`); !bytes.Equal(a.Data, first.Data) {
					t.Errorf("a recorded result is %s, it was %s", a.Data, first.Data)
				}
			}
			if a := n.call("s1", "c2", "once", `{}`); !bytes.Equal(a.Data, second.Data) || count.of("c2") != 1 {
				t.Errorf("a recorded result is %s, it was %s", a.Data, second.Data)
			}
			n.call("s1", "c3", "once", `{}`)
			if _, err := n.client.Append(within(t), "s1", event("note", `{}`)); err != nil {
				t.Error(err)
			}
			n.open("s1") // says nothing, so nothing is recorded
			workspace := t.TempDir()
			for _, dir := range []string{workspace, t.TempDir()} {
				a, err := n.client.Open(within(t), executor.OpenRequest{Session: "s1", Workspace: dir})
				if err != nil || a.Created || a.Workspace != workspace {
					t.Errorf("it is opened with %s: %+v, %v", dir, a, err)
				}
			}
			n.stop()
			if got := p.read("s1").State.Started; got == nil || got.Workspace != workspace {
				t.Errorf("the session was started with %+v", got)
			}
		})
	}
}

// Where nobody holds it, the workspace is there before what was left open is
// settled.
func TestALostBeginningIsSuppliedBeforeCallsAreSettled(t *testing.T) {
	p := newPlace(t, journaltest.NATSOptions{})
	p.leave("s1", journaltest.Call("c1", "once", `{}`))
	p.loseBeginning("s1", false)
	n := p.node([]executor.Tool{newCounter(false).tool("once", false)}, withPolicy(t, "{version: 1, mode: auto}"))
	if _, err := n.client.Open(within(t), executor.OpenRequest{Session: "s1", Workspace: t.TempDir()}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the call is settled", func() bool { return p.read("s1").State.Call("c1").Result != nil })
	n.stop()
	p.wantTypes("s1", schema.TypeToolCall, schema.TypePostureChanged, schema.TypeDecision, schema.TypeToolStarted, schema.TypeToolResult)
	l := p.read("s1")
	if call := l.State.Call("c1"); call.Attempts[0].Seq < l.State.Started.Seq {
		t.Errorf("the session is started at %d, the call at %d", l.State.Started.Seq, call.Attempts[0].Seq)
	}
}

// What makes a session strict may be among what damage has taken: without a word
// from whoever may give one, nothing runs but what runs in any case.
func TestS5DamageMakesNoSessionLessStrict(t *testing.T) {
	changed := func(to string) journal.Entry {
		return journal.Entry{Type: schema.TypePostureChanged, Data: []byte(`{"from":{},"to":{"mode":"` + to + `"},"by":"a person","reason":"a test"}`)}
	}
	for name, lose := range map[string]struct {
		lost string
		was  []journal.Entry
	}{
		"the beginning":              {schema.TypeSessionStarted, nil},
		"a change":                   {schema.TypePostureChanged, []journal.Entry{changed("read_only")}},
		"a change of what is there":  {schema.TypeNote, []journal.Entry{changed("auto"), {Type: schema.TypeNote, Data: []byte(`{"text":"or a change"}`)}}},
		"nothing that says anything": {schema.TypeNote, []journal.Entry{{Type: schema.TypeNote, Data: []byte(`{"text":"or a change"}`)}}},
	} {
		t.Run(name, func(t *testing.T) {
			p := newPlace(t, journaltest.NATSOptions{})
			p.leave("s1", lose.was...)
			p.leave("s1", journaltest.Call("left", "echo", `{}`))
			p.lose("s1", lose.lost)

			n := p.node([]executor.Tool{echo})
			for _, id := range []string{"left", "c1"} {
				_, err := n.client.Call(within(t), "s1", request(id, "echo", `{}`))
				wantErr(t, err, schema.ResumePolicyUnavailable)
			}
			// Whoever opens it moves nothing by that.
			if _, err := n.client.Open(within(t), executor.OpenRequest{Session: "s1", Phase: executor.PhaseEditing, TaskKind: executor.TaskEdit}); err != nil {
				t.Fatal(err)
			}
			_, err := n.client.Call(within(t), "s1", request("c1", "echo", `{}`))
			wantErr(t, err, schema.ResumePolicyUnavailable)
			n.stop()

			n = p.node([]executor.Tool{echo}, withPolicy(t, readOnly)) // one of its own is recorded, and counts
			wantKindOfResult(t, n.call("s1", "c2", "echo", `{}`).Data, schema.WritePolicyDenied)
			n.stop()
			n = p.node([]executor.Tool{echo})
			wantKindOfResult(t, n.call("s1", "c3", "echo", `{}`).Data, schema.WritePolicyDenied)
			if _, err := n.client.Posture(within(t), executor.PostureRequest{Session: "s1", Mode: "auto", By: "a person", Reason: "looked at"}); err != nil {
				t.Fatal(err)
			}
			wantKindOfResult(t, n.call("s1", "c4", "echo", `{}`).Data, "")
		})
	}
}

// A person's word ends it too, and so does what their word is of: a mode that
// seems to be in force already is recorded.
func TestAModeIsSaidAnewBehindDamage(t *testing.T) {
	p := newPlace(t, journaltest.NATSOptions{})
	p.leave("s1", journal.Entry{Type: schema.TypePostureChanged, Data: []byte(`{"from":{},"to":{"mode":"auto"},"by":"a person","reason":"a test"}`)},
		journal.Entry{Type: schema.TypeNote, Data: []byte(`{"text":"or a change"}`)})
	p.leave("s1", journaltest.Call("left", "none", `{}`))
	p.lose("s1", schema.TypeNote)
	n := p.node([]executor.Tool{echo})
	for _, changed := range []bool{true, false} {
		a, err := n.client.Posture(within(t), executor.PostureRequest{Session: "s1", Mode: "auto", By: "a person", Reason: "looked at"})
		if err != nil || a.Changed != changed {
			t.Errorf("the mode is said: %+v, %v; want changed %t", a, err, changed)
		}
	}
	wantKindOfResult(t, n.call("s1", "c1", "echo", `{}`).Data, "")
}

// In a phase that may be lost runs what runs in every one, until it is said.
func TestS5DamageMovesNoSessionToAnotherPhase(t *testing.T) {
	p := newPlace(t, journaltest.NATSOptions{})
	auto := withPolicy(t, "{version: 1, mode: auto}")
	n := p.node(classes(), auto)
	staged(t, n.client, "s1", executor.PhaseVerifying, executor.TaskInvestigate)
	n.stop()
	p.loseBeginning("s1", false)
	n = p.node(classes(), auto)
	if _, err := n.client.Open(within(t), executor.OpenRequest{Session: "s1", Workspace: t.TempDir(), Phase: executor.PhaseEditing}); err != nil {
		t.Fatal(err)
	}
	call := 0
	want := func(runs string, stays ...string) {
		t.Helper()
		wantKindOfResult(t, n.call("s1", fmt.Sprint("c", call), runs, `{}`).Data, "")
		for _, name := range stays {
			call++
			wantKindOfResult(t, n.call("s1", fmt.Sprint("c", call), name, `{}`).Data, schema.PhaseDenied)
		}
		call++
	}
	want("tier0", "tier1", "tier2", "escalation", "open1", "late1")
	want("tier3")
	if a, err := n.client.Phase(within(t), executor.PhaseRequest{Session: "s1", Phase: executor.PhaseVerifying}); err != nil || !a.Changed {
		t.Fatalf("the phase is said: %+v, %v", a, err)
	}
	want("tier2", "tier1", "open1")
	// What the session was opened with comes later than the word of the person,
	// where the beginning is supplied then.
	if got := p.read("s1").State; got.Phase != executor.PhaseVerifying || got.TaskKind != "" || got.Started == nil {
		t.Errorf("the session is %+v", got)
	}
}

// loseBeginning damages session_started, or the whole first segment, and
// repairs the session.
func (p *place) loseBeginning(session string, all bool) {
	p.t.Helper()
	if !all {
		p.lose(session, schema.TypeSessionStarted)
		return
	}
	if err := os.Remove(filepath.Join(p.dir, "sessions", session, "000001.jsonl")); err != nil {
		p.t.Fatal(err)
	}
	p.repair(session)
}

// lose damages the first event of a type, and repairs the session.
func (p *place) lose(session, typ string) {
	p.t.Helper()
	segment := filepath.Join(p.dir, "sessions", session, "000001.jsonl")
	b, err := os.ReadFile(segment)
	if err == nil {
		err = os.WriteFile(segment, bytes.Replace(b, []byte(`"`+typ+`"`), []byte(`"damaged"`), 1), 0o600)
	}
	if err != nil {
		p.t.Fatal(err)
	}
	p.repair(session)
}

func (p *place) repair(session string) {
	p.t.Helper()
	got, err := journal.Repair(within(p.t), p.store(), session, journal.RepairOptions{Holder: lease.Self("executor.test"),
		NewState: func() journal.State { return replay.New() }, Reason: "the test says so"})
	if err != nil || len(got.Skipped) == 0 {
		p.t.Fatalf("repaired: %+v, %v", got, err)
	}
}

// Whoever edits a line can sum it anew. The chain then breaks at the line behind
// it, and what is left out by a repair must not be all that is doubted: what the
// edited one allows counts no more.
func TestS5ALineThatWasEditedAllowsNothing(t *testing.T) {
	p := newPlace(t, journaltest.NATSOptions{})
	n := p.node([]executor.Tool{echo}, withPolicy(t, readOnly))
	n.open("s1")
	n.call("s1", "c1", "echo", `{}`)
	n.stop()
	segment := filepath.Join(p.dir, "sessions", "s1", "000001.jsonl")
	b, err := os.ReadFile(segment)
	if err != nil {
		t.Fatal(err)
	}
	edited := 0
	lines := bytes.Split(b, []byte("\n"))
	for i, line := range lines {
		if now := bytes.Replace(line, []byte(`"mode":"read_only"`), []byte(`"mode":"auto"`), 1); !bytes.Equal(now, line) {
			now = now[:bytes.LastIndex(now, []byte(`,"sum":"`))]
			sum := sha256.Sum256(now)
			lines[i] = fmt.Appendf(now, `,"sum":"%x"}`, sum)
			edited++
		}
	}
	if err := os.WriteFile(segment, bytes.Join(lines, []byte("\n")), 0o600); err != nil || edited != 1 {
		t.Fatalf("%d lines are edited, %v", edited, err)
	}
	p.repair("s1")
	n = p.node([]executor.Tool{echo})
	_, err = n.client.Call(within(t), "s1", request("c2", "echo", `{}`))
	wantErr(t, err, schema.ResumePolicyUnavailable)
	_, err = n.client.Fork(within(t), executor.ForkRequest{Session: "s1", To: "f1"})
	wantErr(t, err, schema.ResumePolicyUnavailable)
}
