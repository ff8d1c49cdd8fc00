package executor_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/go-json-experiment/json/jsontext"

	"steno/executor"
	"steno/journal"
	"steno/journal/journaltest"
	"steno/schema"
)

// classes are the tools of the admission table, by their names; open1 names no
// phase, late1 only the last.
func classes() []executor.Tool {
	class := func(name string, tier int, phases ...string) executor.Tool {
		t := toolOf(name, func(context.Context, *executor.Invocation) (executor.Result, error) {
			return executor.Result{OK: true}, nil
		})
		t.Tier, t.Phases = tier, phases
		return t
	}
	up := class("escalation", 0, executor.PhaseInvestigating)
	up.Escalates = true
	return []executor.Tool{class("tier0", 0), class("tier1", 1, executor.PhaseEditing), class("tier2", 2, executor.PhaseEditing, executor.PhaseVerifying),
		class("tier3", 3), up, class("open1", 1), class("late1", 1, executor.PhaseVerifying)}
}

// staged opens a session at a stage.
func staged(t testing.TB, c *executor.Client, id, phase, task string) {
	t.Helper()
	if _, err := c.Open(within(t), executor.OpenRequest{Session: id, Phase: phase, TaskKind: task}); err != nil {
		t.Fatal(err)
	}
}

// Every cell of the admission table, by calls: what is admitted runs, what is
// not is refused and recorded with the decision. Each cell also says where the
// session is afterwards.
func TestT6AdmissionTable(t *testing.T) {
	p := newPlace(t, journaltest.NATSOptions{})
	plain := p.node(classes())
	edits := p.node(classes(), func(c *executor.Config) {
		c.Prefix, c.Policy = "edits", policy(t, "{version: 1, mode: auto, verifying_edits: true}")
	})
	inv, edit, ver := executor.PhaseInvestigating, executor.PhaseEditing, executor.PhaseVerifying
	all := []string{inv, edit, ver}
	kinds := []string{executor.TaskEdit, executor.TaskTestOnly, executor.TaskInvestigate}
	admitted := map[string]string{ // investigating, editing, verifying; each edit, test_only, investigate
		"tier0": "YYY YYY YYY", "tier1": "YYY YYY ---", "tier2": "--- YYY YYY", "tier3": "YYY YYY YYY", "escalation": "--Y --- ---",
		"tier1 by the policy": "YYY YYY YYY", "open1": "YYY YYY ---", "late1": "--- --- YYY",
	}
	for about, row := range admitted {
		name, _, optional := strings.Cut(about, " ")
		n := plain
		if optional {
			n = edits
		}
		for i, phase := range all {
			for k, kind := range kinds {
				session := strings.ReplaceAll(strings.Join([]string{about, phase, kind}, "-"), " ", "_")
				staged(t, n.client, session, phase, kind)
				a := n.call(session, "c1", name, `{}`)
				want := schema.Kind("")
				if strings.Fields(row)[i][k] == '-' {
					want = schema.PhaseDenied
				}
				if got := kindOfResult(t, a.Data); got != want {
					t.Errorf("%s: %q, want %q", session, got, want)
				}
				got, err := n.client.Get(within(t), session)
				if err != nil {
					t.Fatal(err)
				}
				wantPhase, wantKind := phase, kind
				if (name == "tier1" || name == "open1") && phase == inv && kind != executor.TaskInvestigate {
					wantPhase = edit // T7: edit intent
				}
				if name == "escalation" && want == "" {
					wantKind = executor.TaskEdit
				}
				if got.Phase != wantPhase || got.TaskKind != wantKind {
					t.Errorf("%s: the session is now in %s of a task %s", session, got.Phase, got.TaskKind)
				}
			}
		}
		session := strings.ReplaceAll(about, " ", "_") + "-free"
		open(t, n.client, session)
		wantKindOfResult(t, n.call(session, "c1", name, `{}`).Data, "") // without a phase
	}
}

// eventsOf are the types and the data of a session's events from a call on.
func eventsOf(t *testing.T, p *place, session, call string) (types []string, data []jsontext.Value) {
	t.Helper()
	for _, e := range p.read(session).Events {
		if strings.Contains(string(e.Data), `"`+call+`"`) {
			types, data = append(types, e.Type), append(data, e.Data)
		}
	}
	return types, data
}

func TestT6ARefusalIsRecordedWithItsDecision(t *testing.T) {
	p := newPlace(t, journaltest.NATSOptions{})
	never := classes()[0]
	never.Name, never.Tier = "never", 4
	n := p.node(append(classes(), never))
	staged(t, n.client, "s1", executor.PhaseVerifying, executor.TaskEdit)
	for tool, want := range map[string]struct{ gate, kind string }{"tier1": {"phase", "phase_denied"}, "never": {"tier", "tier_denied"}} {
		a := n.call("s1", tool, tool, `{}`)
		wantKindOfResult(t, a.Data, schema.Kind(want.kind))
		types, data := eventsOf(t, p, "s1", tool)
		if !slices.Equal(types, []string{schema.TypeToolCall, schema.TypeDecision, schema.TypeToolResult}) {
			t.Fatalf("%s: recorded were %q", tool, types)
		}
		if field[string](t, data[1], "decision") != "deny" || field[string](t, data[1], "gate") != want.gate {
			t.Errorf("%s: the decision is %s", tool, data[1])
		}
		if field[int](t, data[2], "attempt") != 0 {
			t.Errorf("%s: the result is %s", tool, data[2])
		}
		if tool == "tier1" && (field[int](t, data[0], "tier") != 1 || field[string](t, data[0], "phase") != executor.PhaseVerifying) {
			t.Errorf("the call is %s", data[0])
		}
	}
}

// The change of phase stands in the write of the start that brought it about,
// and there is one, however many calls begin to edit at once.
func TestT7AnEditMovesThePhaseOnce(t *testing.T) {
	p := newPlace(t, journaltest.NATSOptions{})
	n := p.node(classes())
	staged(t, n.client, "s1", executor.PhaseInvestigating, executor.TaskTestOnly)
	if a, err := n.client.Call(within(t), "s1", executor.Request{CallID: "dry", Name: "tier1", DryRun: true}); err != nil || kindOfResult(t, a.Data) != "" {
		t.Fatalf("the dry run: %s, %v", a.Data, err)
	}
	if got, _ := n.client.Get(within(t), "s1"); got.Phase != executor.PhaseInvestigating {
		t.Errorf("a dry run has moved the phase to %s", got.Phase)
	}
	var calls sync.WaitGroup
	for i := range 8 {
		calls.Go(func() { n.call("s1", fmt.Sprint("c", i), "tier1", `{}`) })
	}
	calls.Wait()
	n.call("s1", "done", "tier2", `{}`) // which is not admitted before
	var types []string
	moves, mover := 0, ""
	for _, e := range p.read("s1").Events {
		types = append(types, e.Type)
		if e.Type == schema.TypePhaseChanged {
			moves++
			mover = field[map[string]string](t, e.Data, "trigger")["call_id"]
			if field[string](t, e.Data, "from") != executor.PhaseInvestigating || field[string](t, e.Data, "to") != executor.PhaseEditing {
				t.Errorf("the change is %s", e.Data)
			}
		}
	}
	at := slices.Index(types, schema.TypePhaseChanged)
	if moves != 1 || types[at-1] != schema.TypeDecision || types[at+1] != schema.TypeToolStarted {
		t.Errorf("the phase changed %d times: %q", moves, types)
	}
	if !strings.HasPrefix(mover, "c") {
		t.Errorf("it was moved by %q", mover)
	}
}

func TestT7ATaskIsEscalatedOnce(t *testing.T) {
	p := newPlace(t, journaltest.NATSOptions{})
	var both sync.WaitGroup // calls that run at the same time
	both.Add(2)
	tools := classes()
	up := &tools[4]
	run := up.Run
	up.Run = func(ctx context.Context, c *executor.Invocation) (executor.Result, error) {
		if strings.HasPrefix(c.CallID, "both") {
			both.Done()
			both.Wait()
		}
		r, err := run(ctx, c)
		r.OK = c.CallID != "no"
		return r, err
	}
	n := p.node(tools)
	staged(t, n.client, "s1", executor.PhaseInvestigating, executor.TaskInvestigate)
	n.call("s1", "no", "escalation", `{}`) // it did not succeed
	if _, err := n.client.Call(within(t), "s1", executor.Request{CallID: "dry", Name: "escalation", DryRun: true}); err != nil {
		t.Fatal(err)
	}
	if got, _ := n.client.Get(within(t), "s1"); got.TaskKind != executor.TaskInvestigate {
		t.Errorf("the task is escalated to %s", got.TaskKind)
	}
	var calls sync.WaitGroup
	for i := range 2 {
		calls.Go(func() { wantKindOfResult(t, n.call("s1", fmt.Sprint("both", i), "escalation", `{}`).Data, "") })
	}
	calls.Wait()
	var types []string
	for _, e := range p.read("s1").Events {
		types = append(types, e.Type)
	}
	at := slices.Index(types, schema.TypePhaseChanged)
	if n := len(slices.DeleteFunc(slices.Clone(types), func(typ string) bool { return typ != schema.TypePhaseChanged })); n != 1 || types[at-1] != schema.TypeToolResult {
		t.Errorf("the task was escalated %d times: %q", n, types)
	}
	// Whoever makes it an investigation again does not get another one.
	if _, err := n.client.Phase(within(t), executor.PhaseRequest{Session: "s1", Phase: executor.PhaseInvestigating, TaskKind: executor.TaskInvestigate}); err != nil {
		t.Fatal(err)
	}
	wantKindOfResult(t, n.call("s1", "again", "escalation", `{}`).Data, schema.PhaseDenied)
}

func TestAPhaseIsTheApplicationsToChange(t *testing.T) {
	p := newPlace(t, journaltest.NATSOptions{})
	tools := classes()
	a, b := p.node(tools), p.node(tools)
	staged(t, a.client, "s1", executor.PhaseEditing, "")
	wantKindOfResult(t, a.call("s1", "c1", "tier1", `{}`).Data, "") // no kind of task is as edit
	req := executor.PhaseRequest{Session: "s1", Phase: executor.PhaseVerifying, TaskKind: executor.TaskTestOnly, Trigger: []byte(`{"by":"ann"}`)}
	first, err := b.client.Phase(within(t), req)
	if err != nil || !first.Changed || first.Phase != executor.PhaseVerifying || first.TaskKind != executor.TaskTestOnly {
		t.Fatalf("the session is in %+v, %v", first, err)
	}
	if again, err := b.client.Phase(within(t), req); err != nil || again.Changed || again.Head != first.Head {
		t.Errorf("the same once more: %+v, %v", again, err)
	}
	wantKindOfResult(t, a.call("s1", "c2", "tier1", `{}`).Data, schema.PhaseDenied)
	events := p.read("s1").Events
	if e := events[slices.IndexFunc(events, func(e schema.Event) bool { return e.Type == schema.TypePhaseChanged })]; field[jsontext.Value](t, e.Data, "trigger").String() != `{"by":"ann"}` {
		t.Errorf("recorded is %s", e.Data)
	}
	for name, bad := range map[string]string{"no phase": `{"session":"s1"}`, "a phase that is none": `{"session":"s1","phase":"plan"}`,
		"a kind that is none": `{"session":"s1","phase":"editing","task_kind":"x"}`, "an unknown key": `{"session":"s1","phase":"editing","why":1}`} {
		if _, err := ask(t, a.conn, "steno.v1.session.phase", bad); schema.KindOf(err) != schema.InvalidArgs {
			t.Errorf("%s: %v", name, err)
		}
	}
	for _, bad := range []executor.OpenRequest{{Session: "s2", Phase: "plan"}, {Session: "s2", TaskKind: "review"}} {
		if _, err := a.client.Open(within(t), bad); schema.KindOf(err) != schema.InvalidArgs {
			t.Errorf("%+v: %v", bad, err)
		}
	}
	if _, err := a.client.Phase(within(t), executor.PhaseRequest{Session: "none", Phase: executor.PhaseEditing}); schema.KindOf(err) != schema.NotFound {
		t.Errorf("a session that is not there: %v", err)
	}
	if _, err := a.client.End(within(t), executor.EndRequest{Session: "s1", Outcome: "completed"}); err != nil {
		t.Fatal(err)
	}
	if _, err := a.client.Phase(within(t), executor.PhaseRequest{Session: "s1", Phase: executor.PhaseEditing}); schema.KindOf(err) != schema.SessionEnded {
		t.Errorf("a session that has ended: %v", err)
	}
}

// What a dead process left is admitted anew: the phase may have changed since.
func TestAnOpenCallIsAdmittedAnew(t *testing.T) {
	p := newPlace(t, journaltest.NATSOptions{})
	n := p.node(classes())
	p.leave("s1", journal.Entry{Type: schema.TypePhaseChanged, Data: []byte(`{"from":"none","to":"editing"}`)},
		journaltest.Call("c1", "tier1", `{}`),
		journal.Entry{Type: schema.TypePhaseChanged, Data: []byte(`{"from":"editing","to":"verifying"}`)})
	wantKindOfResult(t, n.call("s1", "c1", "tier1", `{}`).Data, schema.PhaseDenied)
}

func TestT6ToolsDeclareTheirPhases(t *testing.T) {
	change := func(f func(*executor.Tool)) executor.Tool {
		x := tool("x", `{"type":"object"}`)
		f(&x)
		return x
	}
	for name, x := range map[string]executor.Tool{
		"a phase that is none":           change(func(x *executor.Tool) { x.Phases = []string{"plan"} }),
		"an escalation in another phase": change(func(x *executor.Tool) { x.Escalates, x.Phases = true, []string{executor.PhaseEditing} }),
	} {
		if _, err := executor.NewRegistry(x); schema.KindOf(err) != schema.InvalidConfig {
			t.Errorf("%s: %v", name, err)
		}
	}
	for _, x := range executor.Builtin() {
		if edits := x.Tier == 1; edits != slices.Equal(x.Phases, []string{executor.PhaseEditing}) || !edits && x.Phases != nil {
			t.Errorf("%s is for the phases %q", x.Name, x.Phases)
		}
	}
}

// Whenever the success of a tool that escalates is known, and from whom, the task
// is escalated, once.
func TestT7ALateSuccessEscalatesToo(t *testing.T) {
	for what, settle := range map[string]func(t *testing.T, p *place, up executor.Tool) *node{
		"a crash came between them": func(t *testing.T, p *place, up executor.Tool) *node {
			j := journaltest.OpenWith(t, p.store(), "s1", journaltest.Options())
			journaltest.Append(t, j, journaltest.Result("c1", 1, `""`))
			j.Close()
			n := p.node(append(classes(), up))
			n.call("s1", "c2", "open1", `{}`)
			n.stop()
			n = p.node(append(classes(), up)) // and once is enough
			n.call("s1", "c3", "open1", `{}`)
			return n
		},
		"the tool is asked": func(t *testing.T, p *place, up executor.Tool) *node {
			up.Check = func(context.Context, *executor.Invocation) (executor.Checked, error) {
				return executor.Checked{Took: true, Result: executor.Result{OK: true}}, nil
			}
			n := p.asking(append(classes(), up)...)
			wantKindOfResult(t, n.call("s1", "c1", "up", `{}`).Data, "")
			return n
		},
		"a person knows": func(t *testing.T, p *place, up executor.Tool) *node {
			n := p.node(append(classes(), up))
			wantKindOfResult(t, n.call("s1", "c1", "up", `{}`).Data, schema.Interrupted)
			if _, err := n.client.Resolve(within(t), executor.ResolveRequest{Session: "s1", CallID: "c1", As: executor.AsSucceeded, By: "ada", Reason: "why"}); err != nil {
				t.Fatal(err)
			}
			return n
		},
		"another writer says so": func(t *testing.T, p *place, up executor.Tool) *node {
			n := p.node(append(classes(), up))
			wantKindOfResult(t, n.call("s1", "c1", "up", `{}`).Data, schema.Interrupted)
			at := p.read("s1").State.Call("c1").Attempts[0]
			for range 2 { // the answer may be lost
				if _, err := ask(t, n.conn, "steno.v1.to."+n.holder+".result.s1", fmt.Sprintf(
					`{"session":"s1","call_id":"c1","attempt":1,"epoch":%d,"seq":%d,"data":{"call_id":"c1","attempt":1,"ok":true,"output":"","duration_us":7}}`, at.Epoch, at.Seq)); err != nil {
					t.Fatal(err)
				}
			}
			return n
		},
		"it was not waited for": func(t *testing.T, p *place, up executor.Tool) *node {
			hold, runs := make(chan struct{}), make(chan struct{})
			up.Run = func(context.Context, *executor.Invocation) (executor.Result, error) {
				close(runs)
				<-hold
				return executor.Result{OK: true}, nil
			}
			n := p.asking(append(classes(), up)...)
			wantKindOfResult(t, n.call("s1", "c1", "up", `{}`).Data, schema.Interrupted)
			answered := make(chan struct{})
			go func() {
				defer close(answered)
				a, err := n.client.Call(within(t), "s1", request("c2", "up", `{}`))
				if err != nil || kindOfResult(t, a.Data) != schema.Cancelled {
					t.Errorf("%s, %v", a.Data, err)
				}
			}()
			wait(t, "the tool", runs)
			wantKindOfResult(t, n.cancel("s1", "c2", "too long").Data, schema.Cancelled)
			wait(t, "who called", answered)
			close(hold)
			eventually(t, "the late result", func() bool {
				got, err := n.client.Get(within(t), "s1")
				return err == nil && got.TaskKind == executor.TaskEdit
			})
			return n
		},
	} {
		t.Run(what, func(t *testing.T) {
			p := newPlace(t, journaltest.NATSOptions{})
			p.leave("s1", journal.Entry{Type: schema.TypePhaseChanged, Data: []byte(`{"from":"none","to":"investigating","task_kind":"investigate"}`)},
				journaltest.Call("c1", "up", `{}`), decided("c1", "allow"), journaltest.Started("c1", 1))
			up := classes()[4]
			up.Name = "up"
			n := settle(t, p, up)
			got, err := n.client.Get(within(t), "s1")
			if err != nil || got.TaskKind != executor.TaskEdit {
				t.Errorf("the task is %s, %v", got.TaskKind, err)
			}
			moves := 0
			for _, e := range p.read("s1").Events {
				if e.Type == schema.TypePhaseChanged && field[string](t, e.Data, "task_kind") == executor.TaskEdit {
					moves++
				}
			}
			if moves != 1 {
				t.Errorf("the task was escalated %d times", moves)
			}
		})
	}
}
