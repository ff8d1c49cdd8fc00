package executor_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"text/tabwriter"
	"time"

	"steno/executor"
	"steno/journal/journaltest"
	"steno/schema"
)

// crashes is the table of instants at which an executor is killed, and what
// must be there afterwards. A call that is not repeatable takes effect once at
// most, and one that can be checked takes effect once.
// toolClasses are the tools of the table: what may become of an attempt that was cut
// short depends on them.
var toolClasses = [...]string{"effect", "again", "read", "checked"} // none of the others, repeatable, read-only, checkable

var crashes = []struct {
	at    string
	snare snare // the zero snare: once the tool has taken effect
	log   string
	// afterwards, by the class of the tool
	effects, attempt [len(toolClasses)]int
	kind             schema.Kind // of a tool that is none of the others
	stored           bool        // the result was in the log
}{
	{"before the call is stored", snare{At: journaltest.Write, Line: toolCall}, "nothing",
		[...]int{1, 1, 1, 1}, [...]int{1, 1, 1, 1}, "", false},
	{"call stored, not decided", snare{At: journaltest.Write, Line: toolCall, Lines: 1}, "an open call",
		[...]int{1, 1, 1, 1}, [...]int{1, 1, 1, 1}, "", false},
	{"call stored, not started", snare{At: journaltest.Write, Line: toolCall, Lines: 2}, "an open call",
		[...]int{1, 1, 1, 1}, [...]int{1, 1, 1, 1}, "", false},
	{"started, tool not yet running", snare{At: journaltest.Checked, Line: toolCall}, "a started call",
		[...]int{0, 1, 1, 1}, [...]int{1, 2, 2, 2}, schema.Interrupted, false},
	{"started, tool running", snare{}, "a started call",
		[...]int{1, 2, 2, 1}, [...]int{1, 2, 2, 1}, schema.Interrupted, false},
	{"tool done, result not stored", snare{At: journaltest.Write, Line: toolResult}, "a started call",
		[...]int{1, 2, 2, 1}, [...]int{1, 2, 2, 1}, schema.Interrupted, false},
	{"result stored, nobody told", snare{At: journaltest.Synced, Line: toolResult}, "the result",
		[...]int{1, 1, 1, 1}, [...]int{1, 1, 1, 1}, "", true},
	{"result stored, answer or acknowledgement lost", snare{At: journaltest.Checked, Line: toolResult}, "the result",
		[...]int{1, 1, 1, 1}, [...]int{1, 1, 1, 1}, "", true},
}

const (
	toolCall   = `"type":"tool_call"`
	toolResult = `"type":"tool_result"`
)

func TestAnExecutorMayBeKilledAtAnyInstant(t *testing.T) {
	var mu sync.Mutex
	rows := map[string]string{}
	t.Run("table", func(t *testing.T) {
		for _, door := range []string{"request", "queue"} {
			for i, tool := range toolClasses {
				for _, c := range crashes {
					t.Run(strings.Join([]string{door, tool, c.at}, "/"), func(t *testing.T) {
						s := crash{newPlace(t, journaltest.NATSOptions{Listen: true, JetStream: door == "queue"}), door, tool, c.snare, nil}
						got := s.run()
						kind := c.kind
						if tool != "effect" {
							kind = ""
						}
						if got.effects != c.effects[i] || got.attempt != c.attempt[i] || got.kind != kind || (got.stored != nil) != c.stored {
							t.Errorf("afterwards: %+v", got)
						}
						mu.Lock()
						defer mu.Unlock()
						rows[t.Name()] = fmt.Sprintf("%s\t%s\t%s\t%s\t%d\t%s", c.at, door, tool, c.log, got.effects, got.outcome())
					})
				}
			}
		}
	})
	var b strings.Builder
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "killed\tdoor\ttool\tthe log has\teffects\tafterwards")
	for _, c := range crashes {
		for _, door := range []string{"request", "queue"} {
			for _, tool := range toolClasses {
				for name, row := range rows {
					if strings.HasPrefix(row, c.at+"\t"+door+"\t") && strings.Contains(name, "/"+tool+"/") {
						fmt.Fprintln(w, row)
					}
				}
			}
		}
	}
	w.Flush()
	t.Logf("\n%s", b.String())
}

// A crash is one run of the table: an executor is killed, another takes over.
type crash struct {
	*place
	door, tool string
	snare      snare
	client     *executor.Client
}

// aftermath is what is there in the end.
type aftermath struct {
	effects, attempt int
	kind             schema.Kind
	stored           []byte // the result that the killed executor has stored
	checked          bool   // the result is what the tool said when it was asked
}

func (a aftermath) outcome() string {
	switch {
	case a.kind != "":
		return string(a.kind)
	case a.checked:
		return "the tool says what it did"
	case a.stored != nil:
		return "the same bytes, tool untouched"
	case a.attempt > 1:
		return fmt.Sprintf("runs again, attempt %d", a.attempt)
	}
	return "runs normally"
}

func (s *crash) run() (got aftermath) {
	file := filepath.Join(s.t.TempDir(), "effects")
	// Each instant comes with a commit log and without.
	plain := (s.door == "queue") == (s.tool == "effect" || s.tool == "checked")
	c := child{Effects: file, Queue: s.door == "queue", Plain: plain, AckWait: time.Second, StopWait: 10 * time.Millisecond}
	a := s.child(c)
	s.client = s.place.client()
	open(s.t, s.client, "s1")
	args := `{}`
	if s.snare == (snare{}) {
		args = `{"wait":true}`
	} else {
		a.arm(s.nats.Connect(), s.snare)
	}
	asked := make(chan executor.Answer, 1)
	if s.door == "queue" {
		if err := s.client.Enqueue(within(s.t), "s1", request("c1", s.tool, args)); err != nil {
			s.t.Fatal(err)
		}
	} else {
		go func() { asked <- s.call(args) }()
	}
	if s.snare == (snare{}) {
		a.WaitFor("effect", 1)
		a.Kill()
	}
	a.wantKilled()
	got.stored = s.result("s1", "c1")
	before := countEffects(s.t, file, "c1")

	b := s.child(c)
	var answer executor.Answer
	if s.door == "queue" {
		conn := s.nats.Connect()
		eventually(s.t, "the acknowledgement", func() bool { return inStream(s.t, conn, executor.StreamQueue) == 0 })
		if n := inStream(s.t, conn, executor.StreamDead); n != 0 {
			s.t.Errorf("%d dead letters", n)
		}
		if s.result("s1", "c1") == nil {
			s.t.Error("the delivery is acknowledged and there is no result")
		}
		answer = s.call(args) // the same through the other door
	} else {
		answer = wait(s.t, "the answer", asked)
	}
	s.wantRecorded("s1", answer)
	if got.stored != nil {
		if string(answer.Data) != string(got.stored) {
			s.t.Errorf("the answer is\n%s\nand was stored as\n%s", answer.Data, got.stored)
		}
		if n := countEffects(s.t, file, "c1"); n != before {
			s.t.Errorf("the tool was run %d times after its result was stored", n-before)
		}
	}
	got.effects = countEffects(s.t, file, "c1")
	got.attempt = field[int](s.t, answer.Data, "attempt")
	got.kind = kindOfResult(s.t, answer.Data)
	got.checked = field[string](s.t, answer.Data, "by") == "check"
	if got.checked && s.tool != "checked" {
		s.t.Errorf("nobody could be asked, and the answer is %s", answer.Data)
	}
	s.wantSound(got)

	// Another restart changes nothing but the epochs.
	b.Kill()
	digest := s.read("s1").State.Calls[0]
	s.child(c)
	if again := s.call(args); string(again.Data) != string(answer.Data) {
		s.t.Errorf("the answer has become %s", again.Data)
	}
	l := s.read("s1")
	if len(l.State.Calls) != 1 || fmt.Sprintf("%+v", l.State.Calls[0].Attempts) != fmt.Sprintf("%+v", digest.Attempts) || len(l.State.Epochs) != 3 {
		s.t.Errorf("another restart has changed the call: %+v", l.State.Calls[0])
	}
	return got
}

func (s *crash) call(args string) executor.Answer {
	a, err := s.client.Call(within(s.t), "s1", request("c1", s.tool, args))
	if err != nil {
		s.t.Errorf("the call: %v", err)
	}
	return a
}

// wantSound checks the log after a crash.
func (s *crash) wantSound(got aftermath) {
	s.t.Helper()
	l := s.read("s1")
	results, starts := 0, 0
	for _, e := range l.Events {
		switch e.Type {
		case schema.TypeToolResult:
			results++
			if field[bool](s.t, e.Data, "synthetic") != (got.kind == schema.Interrupted) {
				s.t.Errorf("the result is %s", e.Data)
			}
		case schema.TypeToolStarted:
			starts++
			want := 0
			if starts == 2 {
				want = 1 // the first attempt may go on somewhere
			}
			if n := field[int](s.t, e.Data, "possibly_running"); n != want {
				s.t.Errorf("start %d is %s", starts, e.Data)
			}
		}
	}
	if results != 1 || starts != got.attempt || l.FirstError != nil {
		s.t.Errorf("the log has %d results, %d starts, %v", results, starts, l.FirstError)
	}
	if l.State.Epochs[1].How != schema.HowTakeover {
		s.t.Errorf("the session was come by as %s", l.State.Epochs[1].How)
	}
	if fi, err := os.Stat(filepath.Join(s.dir, "sessions", "s1", "000001.jsonl")); err != nil || fi.Size() == 0 {
		s.t.Error("the segment of the killed executor is gone")
	}
}

// Whoever settles an outcome may be killed too: while the tool is asked, the
// next holder asks it again; in a retry that somebody has decided, the open
// result stands and nothing runs by itself.
func TestAnExecutorMayBeKilledWhileAnOutcomeIsSettled(t *testing.T) {
	for _, door := range []string{"request", "queue"} {
		for _, tool := range []string{"checked", "effect"} {
			t.Run(door+"/"+tool, func(t *testing.T) {
				p := newPlace(t, journaltest.NATSOptions{Listen: true, JetStream: door == "queue"})
				file := filepath.Join(t.TempDir(), "effects")
				c := child{Effects: file, Queue: door == "queue", AckWait: time.Second, StopWait: 10 * time.Millisecond}
				a := p.child(c)
				client := p.client()
				open(t, client, "s1")
				args := `{"wait":true,"stall":true}`
				caller := make(chan struct{})
				if door == "queue" {
					close(caller)
					if err := client.Enqueue(within(t), "s1", request("c1", tool, args)); err != nil {
						t.Fatal(err)
					}
				} else {
					go func() {
						defer close(caller)
						if _, err := client.Call(within(t), "s1", request("c1", tool, args)); err != nil {
							t.Error(err)
						}
					}()
				}
				a.WaitFor("effect", 1)
				a.Kill()
				a.wantKilled()

				b := p.child(c)
				if tool == "effect" {
					answer, err := client.Wait(within(t), "s1", "c1")
					if err != nil {
						t.Fatal(err)
					}
					wantKindOfResult(t, answer.Data, schema.Interrupted)
					b.arm(p.nats.Connect(), snare{At: journaltest.Write, Line: toolResult})
				}
				again, cancel := context.WithCancel(within(t))
				asked := make(chan struct{})
				go func() {
					defer close(asked)
					if tool == "effect" {
						_, _ = client.Resolve(again, executor.ResolveRequest{Session: "s1", CallID: "c1", As: executor.AsRetry, By: "ada", Reason: "why"})
					} else {
						_, _ = client.Wait(again, "s1", "c1")
					}
				}()
				if tool == "checked" {
					b.WaitFor("checks", 1)
					b.Kill()
				}
				b.wantKilled()
				cancel() // who decided does not ask again
				wait(t, "the request", asked)
				touch(t, file+".go-on")

				p.child(c)
				answer, err := client.Wait(within(t), "s1", "c1")
				if err != nil {
					t.Fatal(err)
				}
				p.wantRecorded("s1", answer)
				wait(t, "who called", caller)
				l := p.read("s1")
				want, effects := schema.Kind(""), 1
				if tool == "effect" {
					want, effects = schema.Interrupted, 2 // the first, and the one that was decided
				}
				if wantKindOfResult(t, answer.Data, want); countEffects(t, file, "c1") != effects || len(l.State.Calls[0].Superseded) != 0 || len(l.State.Calls[0].Attempts) != effects {
					t.Errorf("%d effects, and the call is %+v", countEffects(t, file, "c1"), l.State.Calls[0])
				}
			})
		}
	}
}

// Instants around what a person decides: an executor is killed while a call waits
// for an answer, once it is allowed and before it starts, and while it runs again
// because somebody has said so. No call takes effect without an allow, none more
// often than was decided, and none has two genuine results.
func TestAnExecutorMayBeKilledAroundADecision(t *testing.T) {
	for _, at := range []string{"waiting for approval", "allowed, not started", "resolve --retry started"} {
		for _, door := range []string{"request", "queue"} {
			for _, tool := range toolClasses {
				t.Run(strings.Join([]string{at, door, tool}, "/"), func(t *testing.T) {
					p := newPlace(t, journaltest.NATSOptions{Listen: true, JetStream: door == "queue"})
					file := filepath.Join(t.TempDir(), "effects")
					c := child{Effects: file, Queue: door == "queue", AckWait: time.Second, StopWait: 10 * time.Millisecond, RetryFirst: 20 * time.Millisecond}
					args, effects := `{"wait":true}`, 2
					if at != "resolve --retry started" {
						args, effects, c.Policy = `{}`, 1, "version: 1\nmode: auto\nrules: [{name: all, do: ask}]\n"
					}
					a := p.child(c)
					client, conn := p.client(), p.nats.Connect()
					open(t, client, "s1")
					asked := make(chan executor.Answer, 1)
					if door == "queue" {
						if err := client.Enqueue(within(t), "s1", request("c1", tool, args)); err != nil {
							t.Fatal(err)
						}
					} else {
						go func() {
							answer, err := client.Call(within(t), "s1", request("c1", tool, args))
							if err != nil {
								t.Error(err)
							}
							asked <- answer
						}()
					}
					decided := make(chan struct{})
					decide := func(q executor.ApprovalInfo) {
						_, err := client.Answer(within(t), executor.AnswerRequest{Session: "s1", CallID: "c1", ApprovalID: q.ApprovalID, Decision: "allow", ArgsSHA256: q.ArgsSHA256})
						if err != nil {
							t.Error(err)
						}
						close(decided)
					}
					var q executor.ApprovalInfo
					if c.Policy != "" {
						q = questionOf(t, client, "s1", "c1")
					}
					switch at {
					case "waiting for approval":
						a.Kill()
					case "allowed, not started":
						a.arm(conn, snare{At: journaltest.Write, Line: `"type":"tool_started"`})
						go decide(q)
					default:
						a.WaitFor("effect", 1)
						answer, err := client.Cancel(within(t), executor.CancelRequest{Session: "s1", CallID: "c1", By: "ada"})
						if err != nil {
							t.Fatal(err)
						}
						wantKindOfResult(t, answer.Data, schema.Cancelled)
						a.arm(conn, snare{At: journaltest.Write, Line: toolResult})
						again, cancel := context.WithCancel(within(t))
						go func() {
							defer close(decided)
							_, _ = client.Resolve(again, executor.ResolveRequest{Session: "s1", CallID: "c1", As: executor.AsRetry, By: "ada", Reason: "why"})
						}()
						a.wantKilled()
						cancel() // who decided does not ask again
						wait(t, "the decision", decided)
					}
					a.wantKilled()
					if n := countEffects(t, file, "c1"); (c.Policy != "") != (n == 0) {
						t.Errorf("%d effects when it is killed", n)
					}

					p.child(c)
					if at == "waiting for approval" {
						if again := questionOf(t, client, "s1", "c1"); again.ApprovalID != q.ApprovalID || countEffects(t, file, "c1") != 0 {
							t.Errorf("after the restart it waits for %+v, before for %+v", again, q)
						}
						decide(q)
					}
					wait(t, "the decision", decided)
					answer, err := client.Wait(within(t), "s1", "c1")
					if err != nil {
						t.Fatal(err)
					}
					p.wantRecorded("s1", answer)
					if door == "queue" {
						eventually(t, "the acknowledgement", func() bool { return inStream(t, conn, executor.StreamQueue) == 0 })
						if n := inStream(t, conn, executor.StreamDead); n != 0 {
							t.Errorf("%d dead letters", n)
						}
					} else if got := wait(t, "the answer", asked); c.Policy != "" && string(got.Data) != string(answer.Data) {
						t.Errorf("who called has the answer %s", got.Data)
					}
					if c.Policy == "" { // nothing has run by itself, and it may still be settled
						wantKindOfResult(t, answer.Data, schema.Cancelled)
						if answer, err = client.Resolve(within(t), executor.ResolveRequest{Session: "s1", CallID: "c1", As: executor.AsSucceeded, By: "ada", Reason: "looked"}); err != nil {
							t.Fatal(err)
						}
					}
					wantKindOfResult(t, answer.Data, "")
					genuine := 0
					l := p.read("s1")
					for _, e := range l.Events {
						if e.Type == schema.TypeToolResult && kindOfResult(t, e.Data) == "" {
							genuine++
						}
					}
					is := l.State.Calls[0]
					if n := countEffects(t, file, "c1"); n != effects || len(is.Attempts) != effects || genuine != 1 || l.FirstError != nil {
						t.Errorf("%d effects, %d genuine results, %v, and the call is %+v", n, genuine, l.FirstError, is)
					}
				})
			}
		}
	}
}
