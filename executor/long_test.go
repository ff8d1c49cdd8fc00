package executor_test

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"testing"

	"github.com/go-json-experiment/json"

	"steno/executor"
	"steno/journal"
	"steno/journal/journaltest"
	"steno/schema"
)

// A call that was over long before a session was opened is answered from the
// record as any other, by an executor that has gone on from a checkpoint and has
// not read its lines: the same bytes, the same conflict, the same end of a
// question, and nothing runs again.
func TestALongSessionGoesOnFromItsCheckpoint(t *testing.T) {
	p := newPlace(t, journaltest.NATSOptions{})
	count := newCounter(false)
	start := func() *node { return p.node([]executor.Tool{count.tool("act", false)}, withPolicy(t, asking)) }
	n := start()
	n.open("s1")
	allowed, result := n.asked("s1", "allowed", "act", `{"a":1}`)
	n.mustAnswer(allowed, "allow")
	wait(t, "the result", result)
	denied, result := n.asked("s1", "denied", "act", `{}`)
	n.mustAnswer(denied, "deny")
	wait(t, "the result", result)
	callSeq := p.read("s1").State.Call("allowed").Seq
	n.stop()
	long := func() {
		j, err := journal.Open(t.Context(), p.store(), "s1", journaltest.Options())
		if err != nil {
			t.Fatal(err)
		}
		for from := 0; from < 1500; from += 250 {
			var entries []journal.Entry
			for i := from; i < from+250; i++ {
				id := fmt.Sprint("f", i)
				entries = append(entries, journaltest.Call(id, "act", fmt.Sprintf(`{"n":%d}`, i)), journaltest.Started(id, 1), journaltest.Result(id, 1, fmt.Sprintf(`"output %d"`, i)))
			}
			journaltest.Append(t, j, entries...)
		}
		journaltest.Append(t, j, journaltest.Call("unknown", "act", `{}`), journaltest.Started("unknown", 1))
		if err := j.Close(); err != nil {
			t.Fatal(err)
		}
	}
	long()

	// asked says all that clients hear of the session, but for heads.
	asked := func(n *node) (said []string) {
		say := func(what string, v any, err error) {
			if err != nil {
				e := schema.AsError(err)
				v = []any{e.Kind, e.Message, e.Details}
			}
			b, err := json.Marshal(v, json.Deterministic(true))
			if err != nil {
				t.Fatal(err)
			}
			said = append(said, what+" "+string(b))
		}
		for _, id := range []string{"allowed", "f0", "f7", "f1499", "denied"} {
			args := map[string]string{"allowed": `{"a":1}`, "f0": `{"n":0}`, "f7": `{"n":7}`, "f1499": `{"n":1499}`, "denied": `{}`}[id]
			a, err := n.client.Call(within(t), "s1", request(id, "act", args))
			say("call "+id, a.Data, err)
			if err == nil && !bytes.Equal(a.Data, p.result("s1", id)) {
				t.Errorf("call %s is answered by %s", id, a.Data)
			}
			_, err = n.client.Call(within(t), "s1", request(id, "act", `{"other":true}`))
			wantErr(t, err, schema.CallConflict)
			say("conflict "+id, nil, err)
			a, err = n.client.Wait(within(t), "s1", id)
			say("wait "+id, a.Data, err)
			a, err = n.client.Cancel(within(t), executor.CancelRequest{Session: "s1", CallID: id, By: "ann", Reason: "r"})
			say("cancel "+id, a.Data, err)
			a, err = n.client.Resolve(within(t), executor.ResolveRequest{Session: "s1", CallID: id, As: executor.AsFailed, By: "ann", Reason: "r"})
			say("resolve "+id, a.Data, err)
		}
		for _, q := range []executor.ApprovalInfo{allowed, denied} {
			for _, decision := range []string{"allow", "deny"} {
				a, err := n.answer(q, decision)
				a.Head = ""
				say(decision+" "+q.CallID, a, err)
			}
		}
		_, err := n.client.Cancel(within(t), executor.CancelRequest{Session: "s1", CallID: "nobodys", By: "ann", Reason: "r"})
		wantErr(t, err, schema.NotFound)
		say("no call", nil, err)
		_, err = n.client.Append(within(t), "s1", event("history_rewind", fmt.Sprintf(`{"to_seq":%d}`, callSeq)))
		wantErr(t, err, schema.InvalidArgs)
		say("into a call", nil, err)
		get, err := n.client.Get(within(t), "s1")
		get.Head, get.Epochs = "", 0
		say("get", get, err)
		r, err := n.client.Resume(within(t), executor.ResumeRequest{Session: "s1"})
		say("resume", []any{r.Calls, r.Open, r.Mode, r.Policy, r.Phase}, err)
		return said
	}
	n = start()
	whole := asked(n)
	n.stop()
	if _, err := os.Stat(filepath.Join(p.dir, "sessions", "s1", "checkpoint")); err != nil {
		t.Fatal(err)
	}
	// Whoever reads the old lines meets damage.
	name := filepath.Join(p.dir, "sessions", "s1", "000002.jsonl")
	sound, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	damaged := bytes.Clone(sound)
	damaged[bytes.Index(damaged, []byte("output 3"))] ^= 1
	if err := os.WriteFile(name, damaged, 0o600); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := os.WriteFile(name, sound, 0o600); err != nil {
			t.Error(err)
		}
	}()
	n = start()
	again := asked(n)
	if !reflect.DeepEqual(again, whole) {
		for i := range whole {
			if i < len(again) && again[i] != whole[i] {
				t.Errorf("with a checkpoint\n%s\nand without\n%s", again[i], whole[i])
			}
		}
	}
	_, err = n.client.Call(within(t), "s1", request("f3", "act", `{"n":3}`))
	wantErr(t, err, schema.CorruptLogLine)
	n.stop()
	if runs := count.of("f0") + count.of("f3") + count.of("denied"); runs > 0 || count.of("allowed") != 1 {
		t.Errorf("something has run again: %d, %d", runs, count.of("allowed"))
	}
}
