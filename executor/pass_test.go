package executor_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"

	"github.com/nats-io/nats.go"

	"steno/executor"
	"steno/journal"
	"steno/journal/journaltest"
	"steno/lease"
	"steno/schema"
)

// ask sends a request and returns the answer and the error that it carries.
func ask(t testing.TB, c *nats.Conn, subject, body string, header ...string) (*nats.Msg, error) {
	t.Helper()
	msg := nats.NewMsg(subject)
	msg.Data = []byte(body)
	for i := 0; i+1 < len(header); i += 2 {
		msg.Header.Set(header[i], header[i+1])
	}
	m, err := c.RequestMsgWithContext(within(t), msg)
	if err != nil {
		t.Fatalf("%s: %v", subject, err)
	}
	return m, schema.ParseEnvelope(m.Data)
}

func TestACallIsPassedToTheHolder(t *testing.T) {
	p := newPlace(t, journaltest.NATSOptions{})
	holder := p.node([]executor.Tool{echo})
	holder.open("s1")
	p.node([]executor.Tool{echo})
	c := p.nats.Connect()
	// Which of the two gets a request is up to the server. One that has been
	// passed on often enough is refused by the one that would pass it on, and
	// done by the holder; that shows that each has had its share.
	refused, done := 0, 0
	for i := 0; refused == 0 || done == 0 || i < 20; i++ {
		if i == 1000 {
			t.Fatalf("of %d requests %d were refused", i, refused)
		}
		body := fmt.Sprintf(`{"call_id":"c%d","name":"echo"}`, i)
		m, err := ask(t, c, "steno.v1.call.s1", body, "Steno-Hops", "2")
		switch schema.KindOf(err) {
		case "":
			done++
		case schema.Unavailable:
			refused++
			if p.result("s1", fmt.Sprint("c", i)) != nil {
				t.Error("a refused call was run")
			}
			if got := m.Header.Get("Nats-Service-Error-Code"); got != "503" {
				t.Errorf("the error code is %q", got)
			}
		default:
			t.Fatal(err)
		}
		for _, hops := range []string{"", "1", "-7", "many"} {
			m, err = ask(t, c, "steno.v1.call.s1", body, "Steno-Hops", hops)
			if err != nil || m.Header.Get("Steno-Executor") != holder.holder || m.Header.Get("Steno-Call") != fmt.Sprint("c", i) {
				t.Fatalf("with %q hops: %v, answered by %s", hops, err, m.Header.Get("Steno-Executor"))
			}
			p.wantRecorded("s1", executor.Answer{CallID: fmt.Sprint("c", i), Data: m.Data})
		}
	}
	if n := len(p.read("s1").State.Epochs); n != 1 {
		t.Errorf("the session has %d epochs", n)
	}
}

func TestAppendsAndTheEndArePassedToTheHolder(t *testing.T) {
	p := newPlace(t, journaltest.NATSOptions{})
	holder := p.node(nil)
	holder.open("s1")
	other := p.node(nil)
	for i := range 20 {
		if _, err := other.client.Append(within(t), "s1", executor.AppendEvent{Type: schema.TypeNote, Data: []byte(fmt.Sprintf(`{"i":%d}`, i))}); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := other.client.End(within(t), executor.EndRequest{Session: "s1", Outcome: "completed"}); err != nil {
		t.Fatal(err)
	}
	if l := p.read("s1"); l.State.Notes != 20 || l.State.Ended == nil || len(l.State.Epochs) != 1 {
		t.Errorf("the session has %d notes, the end %v and %d epochs", l.State.Notes, l.State.Ended, len(l.State.Epochs))
	}
}

func TestAHolderRefusesASessionThatItDoesNotHold(t *testing.T) {
	p := newPlace(t, journaltest.NATSOptions{})
	holder := p.node([]executor.Tool{echo})
	holder.open("s1")
	other := p.node([]executor.Tool{echo})
	c := p.nats.Connect()
	for what, body := range map[string]string{
		"call":   `{"call_id":"c1","name":"echo"}`,
		"append": `{"session":"s1","events":[{"type":"note","data":{}}]}`,
		"end":    `{"session":"s1","outcome":"completed"}`,
	} {
		m, err := ask(t, c, "steno.v1.to."+other.holder+"."+what+".s1", body)
		wantErr(t, err, schema.SessionWriterLost)
		if m.Header.Get("Steno-Head") != "" {
			t.Errorf("a refused %s has a head", what)
		}
	}
	if l := p.read("s1"); len(l.State.Calls) != 0 || l.State.Notes != 0 || l.State.Ended != nil {
		t.Error("a holder has written a session that it does not hold")
	}
	// A session that nobody holds is not taken either.
	holder.stop()
	_, err := ask(t, c, "steno.v1.to."+other.holder+".call.s1", `{"call_id":"c1","name":"echo"}`)
	wantErr(t, err, schema.SessionWriterLost)
	if st, err := p.store().Lease(context.Background(), "s1"); err != nil || st.State != lease.Available {
		t.Errorf("the lease is %v, %v", st.State, err)
	}
	// And one that it does hold is done.
	other.call("s1", "c1", "echo", `{}`)
	m, err := ask(t, c, "steno.v1.to."+other.holder+".call.s1", `{"call_id":"c1","name":"echo"}`)
	if err != nil {
		t.Fatal(err)
	}
	p.wantRecorded("s1", executor.Answer{CallID: "c1", Data: m.Data})
}

func TestASessionHeldElsewhereIsActive(t *testing.T) {
	p := newPlace(t, journaltest.NATSOptions{})
	n := p.node([]executor.Tool{echo}, func(c *executor.Config) { c.Queue = false })
	opt := journaltest.Options()
	j := journaltest.OpenWith(t, p.store(), "s1", opt)
	_, err := n.client.Call(within(t), "s1", request("c1", "echo", `{}`))
	wantErr(t, err, schema.SessionWriterActive)
	if got := schema.AsError(err).Details["holder"]; got != opt.Holder.ID {
		t.Errorf("the holder is said to be %v, not %s", got, opt.Holder.ID)
	}
	_, err = n.client.Append(within(t), "s1", executor.AppendEvent{Type: schema.TypeNote, Data: []byte(`{}`)})
	wantErr(t, err, schema.SessionWriterActive)
	_, err = n.client.End(within(t), executor.EndRequest{Session: "s1", Outcome: "completed"})
	wantErr(t, err, schema.SessionWriterActive)
	// Reading needs no lease.
	if _, err := n.client.Get(within(t), "s1"); err != nil {
		t.Error(err)
	}
	if a, err := n.client.Open(within(t), executor.OpenRequest{Session: "s1"}); err != nil || a.Created {
		t.Errorf("open says %+v, %v", a, err)
	}
	journaltest.Release(t, j)
	n.call("s1", "c1", "echo", `{}`)
}

func TestOfTwoExecutorsThatDoNotMeetOneWins(t *testing.T) {
	p := newPlace(t, journaltest.NATSOptions{})
	held := newCounter(true)
	tools := []executor.Tool{held.tool("held", false)}
	first := p.node(tools)
	p.nats = journaltest.StartNATS(t, journaltest.NATSOptions{})
	second := p.node(tools)
	first.open("s1")
	first.stop() // released: both may have it
	p.nats = journaltest.StartNATS(t, journaltest.NATSOptions{})
	first = p.node(tools)
	type outcome struct {
		node *node
		err  error
	}
	outcomes := make(chan outcome, 2)
	for _, n := range []*node{first, second} {
		go func() {
			_, err := n.client.Call(within(t), "s1", request("c1", "held", `{}`))
			outcomes <- outcome{n, err}
		}()
	}
	wait(t, "the winner's tool", held.begun)
	o := wait(t, "the loser's answer", outcomes)
	wantErr(t, o.err, schema.SessionWriterActive)
	close(held.hold)
	if won := wait(t, "the winner's answer", outcomes); won.err != nil || won.node == o.node {
		t.Errorf("the winner got %v", won.err)
	}
	if n := held.of("c1"); n != 1 {
		t.Errorf("the tool ran %d times", n)
	}
}

func TestACallWhoseHolderDiesIsSettledByTheOther(t *testing.T) {
	for _, tool := range []string{"effect", "again"} {
		t.Run(tool, func(t *testing.T) {
			p := newPlace(t, journaltest.NATSOptions{Listen: true})
			file := filepath.Join(t.TempDir(), "effects")
			a := p.child(child{Effects: file})
			client := p.client()
			open(t, client, "s1")
			// The other serves in this process; as many of the callers as come
			// to it are passed on and wait for the holder.
			n := p.node([]executor.Tool{effect("effect", false, file, nil), effect("again", true, file, nil)})
			answers := make(chan executor.Answer, 6)
			for range cap(answers) {
				go func() {
					answer, err := client.Call(within(t), "s1", request("c1", tool, `{"wait":true}`))
					if err != nil {
						t.Error(err)
					}
					answers <- answer
				}()
			}
			a.WaitFor("effect", 1)
			a.Kill()
			first := wait(t, "an answer", answers)
			for range cap(answers) - 1 {
				if next := wait(t, "an answer", answers); string(next.Data) != string(first.Data) {
					t.Errorf("the answers differ:\n%s\n%s", next.Data, first.Data)
				}
			}
			p.wantRecorded("s1", first)
			want, runs, attempt := schema.Kind(""), 2, 2
			if tool == "effect" {
				want, runs, attempt = schema.Interrupted, 1, 1
			}
			wantKindOfResult(t, first.Data, want)
			if got := countEffects(t, file, "c1"); got != runs {
				t.Errorf("the tool took effect %d times, want %d", got, runs)
			}
			if got := field[int](t, first.Data, "attempt"); got != attempt {
				t.Errorf("the result is of attempt %d", got)
			}
			if how := p.read("s1").State.Epochs[1].How; how != schema.HowTakeover {
				t.Errorf("executor %s came by the session as %s", n.holder, how)
			}
		})
	}
}

func TestAHolderThatWasPausedAcknowledgesNothing(t *testing.T) {
	p := newPlace(t, journaltest.NATSOptions{Listen: true})
	dir := t.TempDir()
	file, until := filepath.Join(dir, "effects"), filepath.Join(dir, "until")
	a := p.child(child{Effects: file})
	client := p.client()
	open(t, client, "s1")
	events := p.nats.Listen("steno.v1.event.s1.tool_result")
	answers := make(chan executor.Answer, 1)
	go func() {
		answer, err := client.Call(within(t), "s1", request("c1", "effect", `{"until":"`+until+`"}`))
		if err != nil {
			t.Error(err)
		}
		answers <- answer
	}()
	a.WaitFor("effect", 1)
	a.Stop()
	// The lock is held, so without force nobody gets the session.
	store := p.store()
	opt := journaltest.Options()
	opt.Create = false
	_, err := journal.Open(within(t), store, "s1", opt)
	wantErr(t, err, schema.SessionWriterActive)
	opt.Force, opt.By, opt.Reason = true, "the test", "the holder stands still"
	j, err := journal.Open(within(t), store, "s1", opt)
	if err != nil {
		t.Fatal(err)
	}
	journaltest.Release(t, j)
	b := p.node([]executor.Tool{effect("effect", false, file, nil)})
	first := wait(t, "the answer of the new holder", answers)
	wantKindOfResult(t, first.Data, schema.Interrupted)

	// The old holder wakes up and its tool ends. It has lost the session: what
	// it writes is surplus, and what its tool has said it delivers to the new
	// one, which records it in the place of the open result.
	if err := os.WriteFile(until, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	a.Continue()
	eventually(t, "the late result", func() bool {
		again, err := client.Call(within(t), "s1", request("c1", "effect", `{"until":"`+until+`"}`))
		if err != nil || string(again.Data) != string(first.Data) && field[string](t, again.Data, "reason") != "late" {
			t.Fatalf("%s, %v", again.Data, err)
		}
		late := string(again.Data) != string(first.Data)
		if late {
			wantKindOfResult(t, again.Data, "")
			first = again
		}
		return late
	})
	for range 20 {
		again, err := client.Call(within(t), "s1", request("c1", "effect", `{"until":"`+until+`"}`))
		if err != nil || string(again.Data) != string(first.Data) {
			t.Fatalf("%s, %v", again.Data, err)
		}
	}
	// Once it has gone on it knows, and holds nothing.
	conn := p.nats.Connect()
	_, err = ask(t, conn, "steno.v1.to."+a.holder+".call.s1", `{"call_id":"c1","name":"effect","args":{"until":"`+until+`"}}`)
	wantErr(t, err, schema.SessionWriterLost)
	b.call("s1", "c2", "effect", `{}`)
	l := p.read("s1")
	if l.State.Epochs[1].How != schema.HowForced || l.Count(schema.Surplus) != 1 {
		t.Errorf("the epochs are %+v, the findings %+v", l.State.Epochs, l.Findings)
	}
	for _, want := range []string{"c1", "c1", "c2"} {
		m, err := events.NextMsg(journaltest.Deadline)
		if err != nil {
			t.Fatal(err)
		}
		var e schema.Event
		if err := e.Decode(m.Data); err != nil || field[string](t, e.Data, "call_id") != want {
			t.Errorf("the event is %s, %v", m.Data, err)
		}
	}
	if n := countEffects(t, file, "c1"); n != 1 {
		t.Errorf("the tool took effect %d times", n)
	}
}

// While a holder drains, others cannot take its sessions yet. That is no error
// of whoever asks: it is for a moment.
func TestACallForASessionOfADrainingHolderIsPutOff(t *testing.T) {
	p := newPlace(t, journaltest.NATSOptions{})
	held := newCounter(true)
	tools := []executor.Tool{held.tool("held", false), echo}
	a := p.node(tools)
	a.open("s1")
	running := make(chan executor.Answer, 1)
	go func() { running <- a.call("s1", "c1", "held", `{}`) }()
	wait(t, "the tool", held.begun)
	b := p.node(tools)
	drained := make(chan struct{})
	go func() { a.stop(); close(drained) }()
	c := p.nats.Connect()
	eventually(t, "the drain to begin", func() bool {
		m, err := c.RequestWithContext(within(t), "steno.v1.to."+a.holder+".call.s1", []byte(`{"call_id":"c0","name":"none"}`))
		return err == nil && m.Header.Get("Steno-Error-Kind") == string(schema.Unavailable)
	})
	for range 10 {
		_, err := ask(t, c, "steno.v1.call.s1", `{"call_id":"c2","name":"echo"}`)
		wantErr(t, err, schema.Unavailable)
	}
	later := make(chan executor.Answer, 1)
	go func() { later <- b.call("s1", "c2", "echo", `{}`) }()
	close(held.hold)
	p.wantRecorded("s1", wait(t, "the running call", running))
	wait(t, "the drain", drained)
	p.wantRecorded("s1", wait(t, "the call that was put off", later))
}

// Requests that share an answer's place are told apart.
func TestRequestsWithOneReplySubjectAreAllAnswered(t *testing.T) {
	p := newPlace(t, journaltest.NATSOptions{})
	held := newCounter(true)
	n := p.node([]executor.Tool{held.tool("held", false)})
	n.open("s1")
	c := p.nats.Connect()
	answers, err := c.SubscribeSync(c.NewInbox())
	if err != nil {
		t.Fatal(err)
	}
	for i := range 3 {
		for range 2 { // a repeat is answered once
			if err := c.PublishRequest("steno.v1.call.s1", answers.Subject, []byte(fmt.Sprintf(`{"call_id":"c%d","name":"held"}`, i))); err != nil {
				t.Fatal(err)
			}
		}
	}
	for i := range 3 { // nobody waits for these
		if err := c.Publish("steno.v1.call.s1", []byte(fmt.Sprintf(`{"call_id":"d%d","name":"held"}`, i))); err != nil {
			t.Fatal(err)
		}
	}
	for range 6 {
		wait(t, "a tool", held.begun)
	}
	close(held.hold) // the last has begun, so the repeats before it have arrived
	seen := map[string]bool{}
	for range 3 {
		m, err := answers.NextMsg(journaltest.Deadline)
		if err != nil {
			t.Fatal(err)
		}
		seen[m.Header.Get("Steno-Call")] = true
	}
	if len(seen) != 3 {
		t.Errorf("only %v were answered", seen)
	}
	n.stop()
	if k := pending(t, answers); k > 0 {
		t.Errorf("%d answers too many", k)
	}
	if l := p.read("s1"); len(l.State.Calls) != 6 || len(l.State.Open()) != 0 {
		t.Errorf("%d calls are recorded, %d open", len(l.State.Calls), len(l.State.Open()))
	}
}

// A call that waits at its holder takes up room here too.
func TestCallsThatArePassedOnCountAsCalls(t *testing.T) {
	p := newPlace(t, journaltest.NATSOptions{})
	opt := journaltest.Options()
	journaltest.OpenWith(t, p.store(), "s1", opt)
	c := p.nats.Connect()
	passed, err := c.SubscribeSync("steno.v1.to." + opt.Holder.ID + ".>") // a holder that never answers
	if err == nil {
		err = c.Flush()
	}
	if err != nil {
		t.Fatal(err)
	}
	n := p.node([]executor.Tool{echo}, func(c *executor.Config) { c.MaxCalls = 1 })
	if err := c.PublishRequest("steno.v1.call.s1", c.NewInbox(), []byte(`{"call_id":"c1","name":"echo"}`)); err != nil {
		t.Fatal(err)
	}
	if m, err := passed.NextMsg(journaltest.Deadline); err != nil || m.Header.Get("Steno-Hops") != "1" {
		t.Fatalf("the holder got %v, %v", m, err)
	}
	_, err = ask(t, c, "steno.v1.call.s1", `{"call_id":"c2","name":"echo"}`)
	wantErr(t, err, schema.Backpressure)
	n.stop() // what waits for another holder is given up at once
}

// A holder that loses the session while it appends does not know whether the
// lines count. It asks the log, which knows the events by their ids, also where
// the caller gave none.
func TestAnAppendWhoseOutcomeIsUnknownIsRecordedOnce(t *testing.T) {
	p := newPlace(t, journaltest.NATSOptions{})
	n := p.node(nil)
	n.open("s1")
	for _, included := range []bool{true, false} {
		point := journaltest.Synced
		if !included {
			point = journaltest.Write // the successor is there before the lines are
		}
		before := p.read("s1").State.Notes
		n.faults.At(point, 1, func() {
			journaltest.Release(t, journaltest.Force(t, p.store(), "s1"))
		})
		m, err := ask(t, n.conn, "steno.v1.session.append", `{"session":"s1","events":[{"type":"note","data":{"a":"\ud800"}},{"id":"","type":"note","data":{}}]}`)
		if err != nil {
			t.Fatal(err)
		}
		l := p.read("s1")
		if l.State.Notes != before+2 {
			t.Errorf("%d notes are recorded, want 2", l.State.Notes-before)
		}
		var answer executor.AppendAnswer
		if err := json.Unmarshal(m.Data, &answer); err != nil {
			t.Fatal(err)
		}
		for _, a := range answer.Events {
			if e := l.Events[a.Seq-1]; e.ID.String() != a.ID || e.Sum != a.Sum {
				t.Errorf("the answer names %+v, the log has %s", a, e.ID)
			}
		}
		if e := l.Events[answer.Events[0].Seq-1]; string(e.Data) != `{"a":"\ufffd","replaced":1}` {
			t.Errorf("recorded is %s", e.Data)
		}
	}
}

// A call whose session is lost at an instant is answered by what the record
// then has.
func TestACallWhoseSessionIsTakenMeanwhile(t *testing.T) {
	p := newPlace(t, journaltest.NATSOptions{})
	count := newCounter(false)
	n := p.node([]executor.Tool{count.tool("once", false), count.tool("again", true)})
	for _, c := range []struct {
		tool  string
		point string
		nth   int // 1 is the start, 2 the result
		kind  schema.Kind
		runs  int
	}{
		{"once", journaltest.Write, 1, "", 1},
		{"again", journaltest.Write, 1, "", 1},
		{"once", journaltest.Synced, 1, schema.Interrupted, 0},
		{"again", journaltest.Synced, 1, "", 1},
		{"once", journaltest.Write, 2, "", 1}, // delivered to the next holder
		{"again", journaltest.Write, 2, "", 2},
		{"once", journaltest.Synced, 2, "", 1},
		{"again", journaltest.Synced, 2, "", 1},
	} {
		session := fmt.Sprint(c.tool, "-", c.point, "-", c.nth)
		n.open(session)
		n.faults.At(c.point, c.nth, func() {
			journaltest.Release(t, journaltest.Force(t, p.store(), session))
		})
		a := n.call(session, session, c.tool, `{}`)
		p.wantRecorded(session, a)
		wantKindOfResult(t, a.Data, c.kind)
		if got := count.of(session); got != c.runs {
			t.Errorf("%s: the tool ran %d times, want %d", session, got, c.runs)
		}
		late := c.tool == "once" && c.point == journaltest.Write && c.nth == 2
		if got := field[string](t, a.Data, "reason") == "late"; got != late || len(p.read(session).State.Call(session).Superseded) > 0 != late {
			t.Errorf("%s is answered with %s", session, a.Data)
		}
		if notes := p.read(session).State.Notes; c.tool == "once" && notes != 0 {
			t.Errorf("%s has %d notes", session, notes)
		}
	}
}

// What another process holds is passed on without reading its log.
func TestASessionOfAnotherIsNotRead(t *testing.T) {
	p := newPlace(t, journaltest.NATSOptions{})
	journaltest.OpenWith(t, p.store(), "s1", journaltest.Options())
	store := &countingStore{Store: p.store()}
	n := p.node(nil, func(c *executor.Config) { c.Store = store })
	_, err := n.Do(within(t), "s1", request("c1", "none", `{}`))
	wantErr(t, err, schema.SessionWriterActive)
	if k := store.reads.Load(); k > 0 {
		t.Errorf("the log was read %d times", k)
	}
}

type countingStore struct {
	journal.Store
	reads atomic.Int32
}

func (s *countingStore) Read(ctx context.Context, session string, epoch uint64, offset int64) (io.ReadCloser, error) {
	s.reads.Add(1)
	return s.Store.Read(ctx, session, epoch, offset)
}

// What is not yet durable is not told, by no executor. A session that is being
// made is one that somebody else may open, once it is there.
func TestNoExecutorTellsOfWhatIsNotSynced(t *testing.T) {
	p := newPlace(t, journaltest.NATSOptions{})
	holder := p.node([]executor.Tool{echo})
	holder.open("s1")
	holder.call("s1", "c1", "echo", `{}`)
	before := p.read("s1").Head.String()
	other := p.node(nil)
	// Both answer alike, whoever is asked.
	for range 10 {
		if a, err := other.client.Get(within(t), "s1"); err != nil || a.Head != before || a.Calls["ok"] != 1 {
			t.Fatalf("the session is %+v, %v", a, err)
		}
	}
	hold := holder.faults.HoldSync(t)
	done := make(chan executor.Answer, 1)
	go func() {
		a, err := holder.Do(within(t), "s1", request("c2", "echo", `{}`))
		if err != nil {
			t.Error(err)
		}
		done <- a
	}()
	wait(t, "a sync that waits", hold.Waiting())
	if p.read("s1").Head.String() == before {
		t.Fatal("nothing is written")
	}
	// Whoever asks meanwhile hears of what is durable and of nothing else, and
	// need not wait.
	sub, err := other.conn.SubscribeSync(other.conn.NewInbox())
	if err == nil {
		err = other.conn.PublishRequest("steno.v1.to."+holder.holder+".get.s1", sub.Subject, []byte(`{"session":"s1"}`))
	}
	if err != nil {
		t.Fatal(err)
	}
	for range 4 {
		if a, err := other.client.Get(within(t), "s1"); err != nil || a.Head != before || a.Calls["ok"] != 1 || len(a.Open) > 0 {
			t.Errorf("before the sync the session is %+v, %v", a, err)
		}
	}
	if m, err := sub.NextMsg(journaltest.Deadline); err != nil || field[string](t, m.Data, "head") != before {
		t.Errorf("before the sync the holder says %v, %v", m, err)
	}
	hold.Release()
	head := wait(t, "the call", done).Head
	if a, err := other.client.Get(within(t), "s1"); err != nil || a.Head != head.String() {
		t.Errorf("after it the session is %+v, %v", a, err)
	}
	_, err = ask(t, other.conn, "steno.v1.to."+other.holder+".get.s1", `{"session":"s1"}`)
	wantErr(t, err, schema.SessionWriterLost)
}

// A session of a holder that died while it made it may not be on the disk.
func TestOpenTakesASessionThatNobodyHolds(t *testing.T) {
	p := newPlace(t, journaltest.NATSOptions{})
	p.leave("s1")
	n := p.node(nil)
	a, err := n.client.Open(within(t), executor.OpenRequest{Session: "s1"})
	if err != nil || a.Created {
		t.Errorf("open says %+v, %v", a, err)
	}
	if e := p.read("s1").State.Epochs; len(e) != 2 || e[1].How != schema.HowTakeover {
		t.Errorf("the epochs are %+v", e)
	}
}
