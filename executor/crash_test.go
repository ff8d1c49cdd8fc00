package executor_test

import (
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
// most.
var crashes = []struct {
	at    string
	snare snare // the zero snare: once the tool has taken effect
	log   string
	// afterwards, of a tool that is not repeatable and of one that is
	effects, attempt [2]int
	kind             [2]schema.Kind
	stored           bool // the result was in the log
}{
	{"before the call is stored", snare{At: journaltest.Write, Line: toolCall}, "nothing",
		[2]int{1, 1}, [2]int{1, 1}, [2]schema.Kind{}, false},
	{"call stored, not decided", snare{At: journaltest.Write, Line: toolCall, Lines: 1}, "an open call",
		[2]int{1, 1}, [2]int{1, 1}, [2]schema.Kind{}, false},
	{"call stored, not started", snare{At: journaltest.Write, Line: toolCall, Lines: 2}, "an open call",
		[2]int{1, 1}, [2]int{1, 1}, [2]schema.Kind{}, false},
	{"started, tool not yet running", snare{At: journaltest.Checked, Line: toolCall}, "a started call",
		[2]int{0, 1}, [2]int{1, 2}, [2]schema.Kind{schema.Interrupted}, false},
	{"started, tool running", snare{}, "a started call",
		[2]int{1, 2}, [2]int{1, 2}, [2]schema.Kind{schema.Interrupted}, false},
	{"tool done, result not stored", snare{At: journaltest.Write, Line: toolResult}, "a started call",
		[2]int{1, 2}, [2]int{1, 2}, [2]schema.Kind{schema.Interrupted}, false},
	{"result stored, nobody told", snare{At: journaltest.Synced, Line: toolResult}, "the result",
		[2]int{1, 1}, [2]int{1, 1}, [2]schema.Kind{}, true},
	{"result stored, answer or acknowledgement lost", snare{At: journaltest.Checked, Line: toolResult}, "the result",
		[2]int{1, 1}, [2]int{1, 1}, [2]schema.Kind{}, true},
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
			for i, tool := range []string{"effect", "again"} {
				for _, c := range crashes {
					t.Run(strings.Join([]string{door, tool, c.at}, "/"), func(t *testing.T) {
						s := crash{newPlace(t, journaltest.NATSOptions{Listen: true, JetStream: door == "queue"}), door, tool, c.snare, nil}
						got := s.run()
						if got.effects != c.effects[i] || got.attempt != c.attempt[i] || got.kind != c.kind[i] || (got.stored != nil) != c.stored {
							t.Errorf("afterwards: %+v", got)
						}
						mu.Lock()
						defer mu.Unlock()
						rows[t.Name()] = fmt.Sprintf("%s\t%s\t%v\t%s\t%d\t%s", c.at, door, tool == "again", c.log, got.effects, got.outcome())
					})
				}
			}
		}
	})
	var b strings.Builder
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "killed\tdoor\trepeatable\tthe log has\teffects\tafterwards")
	for _, c := range crashes {
		for _, door := range []string{"request", "queue"} {
			for _, tool := range []string{"effect", "again"} {
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
}

func (a aftermath) outcome() string {
	switch {
	case a.kind != "":
		return string(a.kind)
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
	c := child{Effects: file, Queue: s.door == "queue", Plain: (s.door == "queue") == (s.tool == "effect"), AckWait: time.Second}
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
