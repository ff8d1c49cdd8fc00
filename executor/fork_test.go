package executor_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/go-json-experiment/json/jsontext"

	"steno/executor"
	"steno/journal"
	"steno/journal/journaltest"
	"steno/replay"
	"steno/schema"
)

func TestS9AForkGoesOnByItself(t *testing.T) {
	p := newPlace(t, journaltest.NATSOptions{})
	c := newCounter(false)
	n := p.node([]executor.Tool{c.tool("once", false)})
	n.open("s1")
	large := strings.Repeat("large ", 60_000)
	if _, err := n.client.Append(within(t), "s1", event("user_message", `{"text":"`+large+`"}`)); err != nil {
		t.Fatal(err)
	}
	first := n.call("s1", "a", "once", `{}`)
	at := p.read("s1").Head.Seq
	n.call("s1", "b", "once", `{}`)

	a, err := n.client.Fork(within(t), executor.ForkRequest{Session: "s1", At: at, To: "s2"})
	if err != nil || !a.OK || !a.Created || a.Session != "s2" || a.Parent != "s1" || a.At != at {
		t.Fatalf("%+v, %v", a, err)
	}
	l := p.read("s2")
	if a.Head != l.Head.String() || l.State.Call("a") == nil || l.State.Call("b") != nil {
		t.Errorf("the fork is %+v", l.State)
	}
	text := ""
	for _, e := range l.Events {
		if e.Type == schema.TypeUserMessage {
			text = field[string](t, p.whole("s2", e.Data), "text")
		}
	}
	if text != large {
		t.Errorf("the blob of the fork has %d bytes", len(text))
	}
	// It is answered from its own record, and its other calls are its own.
	if got := n.call("s2", "a", "once", `{}`); c.of("a") != 1 || field[string](t, got.Data, "output") != field[string](t, first.Data, "output") {
		t.Errorf("the copied call ran again, or was answered with %s", got.Data)
	}
	n.call("s2", "b", "once", `{}`)
	if c.of("b") != 2 {
		t.Error("call b of the fork did not run")
	}
	// The same again is answered alike; another of that name is not made.
	if again, err := n.client.Fork(within(t), executor.ForkRequest{Session: "s1", At: at, To: "s2"}); err != nil || again.Created || again.At != at {
		t.Errorf("again: %+v, %v", again, err)
	}
	for _, req := range []executor.ForkRequest{{Session: "s1", At: at - 1, To: "s2"}, {Session: "s2", To: "s1"}} {
		_, err := n.client.Fork(within(t), req)
		wantErr(t, err, schema.AlreadyExists)
	}
	for req, kind := range map[executor.ForkRequest]schema.Kind{{Session: "s1", At: 99}: schema.NotFound, {Session: "none"}: schema.NotFound,
		{Session: "s1", To: "a/b"}: schema.InvalidArgs} {
		_, err := n.client.Fork(within(t), req)
		wantErr(t, err, kind)
	}
	var all []replay.Kin
	for id, err := range p.store().Sessions(t.Context()) {
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, replay.ReadKin(id, func(yield func(*schema.Event, error) bool) {
			for it, err := range journal.NewScan(p.store(), id, journal.ScanOptions{}).Items(t.Context()) {
				if it.Event != nil && !yield(it.Event, err) {
					return
				}
			}
		}))
	}
	if tree := replay.Family(all); len(tree) != 1 || len(tree[0].Children) != 1 || tree[0].Children[0].Session != "s2" {
		t.Errorf("the tree is %+v", tree)
	}
}

// A call that runs is not taken over, and the one that runs it is not disturbed.
func TestS9AForkBesideARunningCall(t *testing.T) {
	p := newPlace(t, journaltest.NATSOptions{})
	c := newCounter(true)
	n := p.node([]executor.Tool{c.tool("once", false)})
	n.open("s1")
	done := make(chan executor.Answer)
	go func() {
		a, err := n.client.Call(within(t), "s1", request("a", "once", `{}`))
		if err != nil {
			t.Error(err)
		}
		done <- a
	}()
	wait(t, "the start of the call", c.begun)
	a, err := n.client.Fork(within(t), executor.ForkRequest{Session: "s1"})
	if err != nil {
		t.Fatal(err)
	}
	if p.read(a.Session).State.Call("a") != nil {
		t.Error("the running call is copied")
	}
	close(c.hold)
	if got := wait(t, "the result", done); !field[bool](t, got.Data, "ok") {
		t.Errorf("the call ended in %s", got.Data)
	}
}

func TestS8NoCompactionOrRewindSplitsACall(t *testing.T) {
	p := newPlace(t, journaltest.NATSOptions{})
	c := newCounter(false)
	n := p.node([]executor.Tool{c.tool("once", false)})
	n.open("s1")
	n.call("s1", "a", "once", `{}`)
	l, before := p.read("s1"), p.types("s1")
	call, result := l.State.Call("a").Seq, l.State.Call("a").Result.Seq
	compaction := func(from, to any) executor.AppendEvent {
		return event("history_compaction", fmt.Sprintf(`{"range":{"from_seq":%v,"to_seq":%v},"summary":"s","strategy":"x","tail":[]}`, from, to))
	}
	for what, e := range map[string]executor.AppendEvent{
		"inside a call":        compaction(1, call),
		"just before its end":  compaction(1, result-1),
		"beyond the end":       compaction(1, result+1),
		"the wrong way round":  compaction(3, 2),
		"from nothing":         compaction(0, result),
		"no numbers":           compaction(`"a"`, `"b"`),
		"a rewind into a call": event("history_rewind", fmt.Sprintf(`{"to_seq":%d}`, call)),
		"a rewind forwards":    event("history_rewind", `{"to_seq":99}`),
	} {
		_, err := n.client.Append(within(t), "s1", event("note", `{}`), e)
		if wantErr(t, err, schema.InvalidArgs); !strings.HasPrefix(fmt.Sprint(schema.AsError(err).Details["pointer"]), "/data/") {
			t.Errorf("%s: %v", what, err)
		}
	}
	p.wantTypes("s1", before...)
	for _, e := range []executor.AppendEvent{compaction(1, call-1), compaction(1, result), event("history_rewind", fmt.Sprintf(`{"to_seq":%d}`, call-1)), event("history_rewind", `{"to_seq":0}`)} {
		if _, err := n.client.Append(within(t), "s1", e); err != nil {
			t.Errorf("%s: %v", e.Data, err)
		}
	}
}

// A fork may do no more than its parent: where damage may have taken what is
// stricter, somebody says it first. As it was before the damage it can be forked.
func TestS9AForkOfARepairedSessionIsNoLessStrict(t *testing.T) {
	p := newPlace(t, journaltest.NATSOptions{})
	n := p.node([]executor.Tool{echo}, withPolicy(t, readOnly))
	n.open("s1")
	n.call("s1", "c1", "echo", `{}`)
	n.stop()
	p.loseBeginning("s1", false)
	n = p.node([]executor.Tool{echo})
	fork := func(to string) error {
		_, err := n.client.Fork(within(t), executor.ForkRequest{Session: "s1", To: to})
		return err
	}
	wantErr(t, fork("f1"), schema.ResumePolicyUnavailable)
	if _, err := n.client.Posture(within(t), executor.PostureRequest{Session: "s1", Mode: "auto", By: "ada", Reason: "r"}); err != nil {
		t.Fatal(err)
	}
	wantErr(t, fork("f1"), schema.ResumePolicyUnavailable)
	if _, err := n.client.Phase(within(t), executor.PhaseRequest{Session: "s1", Phase: executor.PhaseEditing}); err != nil {
		t.Fatal(err)
	}
	if err := fork("f1"); err != nil {
		t.Fatal(err)
	}
	if st := p.read("f1").State; st.Phase != executor.PhaseEditing || st.Posture == nil || st.Posture.Mode != "auto" {
		t.Errorf("the fork has %q, %+v", st.Phase, st.Posture)
	}
}

// An old event brings back no mode that was tightened since, nor rules of before;
// what was relaxed since stays as strict as it was.
func TestS9AForkOfAnEarlyEventIsAsStrictAsItsParentIsNow(t *testing.T) {
	p := newPlace(t, journaltest.NATSOptions{})
	n := p.node([]executor.Tool{echo})
	n.open("s1")
	n.call("s1", "c1", "echo", `{"n":1}`)
	early := p.read("s1").Head.Seq
	fork := func(to string, at uint64) {
		t.Helper()
		if _, err := n.client.Fork(within(t), executor.ForkRequest{Session: "s1", At: at, To: to}); err != nil {
			t.Fatal(err)
		}
	}
	mode := func(mode string) {
		t.Helper()
		if _, err := n.client.Posture(within(t), executor.PostureRequest{Session: "s1", Mode: mode, By: "ada", Reason: "r"}); err != nil {
			t.Fatal(err)
		}
	}
	fork("before", early)
	wantKindOfResult(t, n.call("before", "c2", "echo", `{"n":2}`).Data, "")
	mode("read_only")
	strict := p.read("s1").Head.Seq
	fork("tightened", early)
	wantKindOfResult(t, n.call("tightened", "c2", "echo", `{"n":2}`).Data, schema.WritePolicyDenied)
	if d, _ := p.last("tightened", schema.TypePostureChanged); string(field[jsontext.Value](t, d, "to")) != `{"mode":"read_only"}` || !strings.Contains(field[string](t, d, "reason"), "its parent") {
		t.Errorf("it says %s", d)
	}
	mode("auto")
	fork("relaxed", early)
	wantKindOfResult(t, n.call("relaxed", "c2", "echo", `{"n":2}`).Data, "")
	if st := p.read("relaxed").State; st.Posture != nil {
		t.Errorf("it goes by %+v", st.Posture)
	}
	fork("strict", strict)
	wantKindOfResult(t, n.call("strict", "c2", "echo", `{"n":2}`).Data, schema.WritePolicyDenied)
	// Rules too, and those of now.
	n.stop()
	n = p.node([]executor.Tool{echo}, withPolicy(t, noTwos))
	n.call("s1", "c3", "echo", `{"n":3}`)
	n.stop()
	n = p.node([]executor.Tool{echo})
	fork("ruled", early)
	wantKindOfResult(t, n.call("ruled", "c2", "echo", `{"n":2}`).Data, schema.PermissionDenied)
	wantKindOfResult(t, n.call("ruled", "c4", "echo", `{"n":4}`).Data, "")
	fork("both", strict)
	wantKindOfResult(t, n.call("both", "c4", "echo", `{"n":4}`).Data, schema.WritePolicyDenied)
	if is := p.read("both").State.Posture; is == nil || is.Mode != "read_only" || is.PolicyHash != policy(t, noTwos).Hash() {
		t.Errorf("it goes by %+v", is)
	}
}
