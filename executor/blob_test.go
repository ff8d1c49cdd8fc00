package executor_test

import (
	"context"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/go-json-experiment/json/jsontext"

	"steno/executor"
	"steno/journal"
	"steno/journal/journaltest"
	"steno/schema"
)

// largeArgs are arguments that do not fit their line.
func largeArgs(number uint64) string {
	var o schema.Object
	return string(o.Raw("n", []byte("1e400")).Text("a", journaltest.Large(number, 400_000)).Bytes())
}

// blobs are the files that the session's blobs lie in.
func (p *place) blobs(session string) (paths []string) {
	p.t.Helper()
	paths, err := filepath.Glob(filepath.Join(p.dir, "sessions", session, "blobs", "*"))
	if err != nil {
		p.t.Fatal(err)
	}
	return paths
}

// A call that a dead executor left runs with all of its arguments, or not at
// all: never with what its line has of them.
func TestACallGoesOnWithItsWholeArgumentsOrEnds(t *testing.T) {
	for what, c := range map[string]struct {
		change func([]byte) []byte // of the blob's file, which keeps its length
		left   bool                // started
		kind   schema.Kind
		runs   int
	}{
		"whole":               {nil, false, "", 1},
		"whole and started":   {nil, true, "", 1}, // it is repeatable
		"changed":             {func(b []byte) []byte { b[1000]++; return b }, false, schema.CorruptLogLine, 0},
		"changed and started": {func(b []byte) []byte { b[1000]++; return b }, true, schema.Interrupted, 0},
	} {
		t.Run(what, func(t *testing.T) {
			p := newPlace(t, journaltest.NATSOptions{})
			j := journaltest.OpenWith(t, p.store(), "s1", journaltest.Options())
			entries := []journal.Entry{journaltest.Call("c1", "again", largeArgs(1)), decided("c1", "allow")}
			if c.left {
				entries = append(entries, journaltest.Started("c1", 1))
			}
			journaltest.Append(t, j, entries...)
			if err := j.Close(); err != nil {
				t.Fatal(err)
			}
			files := p.blobs("s1")
			if len(files) != 1 {
				t.Fatalf("the blobs are %q", files)
			}
			whole, err := os.ReadFile(files[0])
			if err != nil {
				t.Fatal(err)
			}
			if c.change != nil {
				if err := os.WriteFile(files[0], c.change(slices.Clone(whole)), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			var got []string
			again := toolOf("again", func(_ context.Context, call *executor.Invocation) (executor.Result, error) {
				got = append(got, string(call.Args))
				return executor.Result{OK: true}, nil
			})
			again.Repeatable = true
			n := p.node([]executor.Tool{again})
			a := n.call("s1", "c1", "again", largeArgs(1))
			n.stop()
			p.wantRecorded("s1", a)
			wantKindOfResult(t, a.Data, c.kind)
			if len(got) != c.runs || c.runs > 0 && got[0] != largeArgs(1) {
				t.Errorf("it ran %d times, with %.60q", len(got), got)
			}
			if err := os.WriteFile(files[0], whole, 0o600); err != nil { // so that the log verifies
				t.Fatal(err)
			}
		})
	}
}

// A large call and its large result: what is recorded, answered and repeated.
func TestALargeCallIsAnsweredWithTheSameBytesEachTime(t *testing.T) {
	p := newPlace(t, journaltest.NATSOptions{})
	tools := []executor.Tool{toolOf("say", func(_ context.Context, call *executor.Invocation) (executor.Result, error) {
		return executor.Result{OK: true, Output: field[string](t, call.Args, "a") + "!", Structured: call.Args}, nil
	})}
	n := p.node(tools)
	n.open("s1")
	a := n.call("s1", "c1", "say", largeArgs(2))
	whole := p.whole("s1", a.Data)
	if field[string](t, whole, "output") != journaltest.Large(2, 400_000)+"!" || string(field[jsontext.Value](t, whole, "structured")) != largeArgs(2) {
		t.Error("the result is not what the tool gave")
	}
	if files := p.blobs("s1"); len(files) != 2 { // the arguments, which are the structured answer too, and the output
		t.Errorf("the blobs are %q", files)
	}
	if len(a.Data) > 200<<10 {
		t.Errorf("the answer has %d bytes", len(a.Data))
	}
	if again := n.call("s1", "c1", "say", largeArgs(2)); string(again.Data) != string(a.Data) {
		t.Error("the second answer is another")
	}
	_, err := n.client.Call(within(t), "s1", request("c1", "say", largeArgs(4)))
	wantErr(t, err, schema.CallConflict)
	n.stop()
	n = p.node(tools)
	if again := n.call("s1", "c1", "say", largeArgs(2)); string(again.Data) != string(a.Data) {
		t.Error("the answer after a restart is another")
	}
	// What an agent appends is kept the same way.
	text := journaltest.Large(6, 600_000)
	var o schema.Object
	e := executor.AppendEvent{ID: "01J00000000000000000000001", Type: schema.TypeAssistantMessage, Data: o.Text("text", text).Bytes()}
	for range 2 {
		if _, err := n.client.Append(within(t), "s1", e); err != nil {
			t.Fatal(err)
		}
	}
	l := p.read("s1")
	last := l.Events[len(l.Events)-1]
	if got := field[string](t, p.whole("s1", last.Data), "text"); got != text {
		t.Errorf("the message has %d bytes", len(got))
	}
	_, err = n.client.Append(within(t), "s1", executor.AppendEvent{Type: "x.mine", Data: jsontext.Value(`{"blobs":["/text"],"text":{}}`)})
	wantErr(t, err, schema.InvalidArgs)
}

// A result as large as it may be is recorded without making it larger: whatever
// it holds, JSON would take up to six times as much.
func TestALargeResultTakesLittleMemoryBesideItself(t *testing.T) {
	// Beside no other test: all memory of the process is counted.
	p := &place{t, journaltest.StartNATS(t, journaltest.NATSOptions{}), journaltest.Files(t).Dir()}
	out := strings.Repeat("\x00\n", executor.MaxOutput/2)
	n := p.node([]executor.Tool{toolOf("say", func(context.Context, *executor.Invocation) (executor.Result, error) {
		return executor.Result{OK: true, Output: out}, nil
	})})
	n.open("s1")
	n.call("s1", "c0", "none", `{}`)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	a := n.call("s1", "c1", "say", `{}`)
	runtime.ReadMemStats(&after)
	if used := after.TotalAlloc - before.TotalAlloc; used > 24<<20 {
		t.Errorf("it took %d bytes", used)
	}
	if field[map[string]jsontext.Value](t, a.Data, "output")["ref"] == nil {
		t.Errorf("the output is %.200s", a.Data)
	}
}
