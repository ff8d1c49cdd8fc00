package executor_test

import (
	"bytes"
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

			n = p.node(tools)
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
	n := p.node([]executor.Tool{newCounter(false).tool("once", false)})
	if _, err := n.client.Open(within(t), executor.OpenRequest{Session: "s1", Workspace: t.TempDir()}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the call is settled", func() bool { return p.read("s1").State.Call("c1").Result != nil })
	n.stop()
	p.wantTypes("s1", schema.TypeToolCall, schema.TypeDecision, schema.TypeToolStarted, schema.TypeToolResult)
	l := p.read("s1")
	if call := l.State.Call("c1"); call.Attempts[0].Seq < l.State.Started.Seq {
		t.Errorf("the session is started at %d, the call at %d", l.State.Started.Seq, call.Attempts[0].Seq)
	}
}

// loseBeginning damages session_started, or the whole first segment, and
// repairs the session.
func (p *place) loseBeginning(session string, all bool) {
	p.t.Helper()
	segment := filepath.Join(p.dir, "sessions", session, "000001.jsonl")
	b, err := os.ReadFile(segment)
	if err == nil && all {
		err = os.Remove(segment)
	} else if err == nil {
		err = os.WriteFile(segment, bytes.Replace(b, []byte(`"session_started"`), []byte(`"session_startee"`), 1), 0o600)
	}
	if err != nil {
		p.t.Fatal(err)
	}
	got, err := journal.Repair(within(p.t), p.store(), session, journal.RepairOptions{Holder: lease.Self("executor.test"),
		NewState: func() journal.State { return replay.New() }, Reason: "the test says so"})
	if err != nil || len(got.Skipped) == 0 {
		p.t.Fatalf("repaired: %+v, %v", got, err)
	}
}
