package executor_test

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"steno/executor"
	"steno/journal/journaltest"
	"steno/schema"
)

// What leaves an executor while a sync is held up, or left out: an answer, an
// event, an acknowledgement of the queue.
type leaks struct{ answer, event, ack bool }

// leaksOf makes a call whose result is written and whose sync waits, and says
// what was told about it meanwhile. It then lets the sync go on, and everything
// must be told. Through the queue door there is no answer. With leaveOutSync
// nothing waits, and took is how long it was until everything was told.
func leaksOf(t *testing.T, queue, leaveOutSync bool, patience time.Duration) (l leaks, took time.Duration) {
	p := placeOn(t, journaltest.StartNATS(t, journaltest.NATSOptions{JetStream: queue}), t.TempDir())
	held := newCounter(true)
	n := p.node([]executor.Tool{held.tool("held", false)}, func(c *executor.Config) { c.Queue = queue })
	n.open("s1")
	conn := p.nats.Connect()
	events, err := conn.SubscribeSync("steno.v1.event.s1.tool_result")
	if err != nil {
		t.Fatal(err)
	}
	answers, err := conn.SubscribeSync(conn.NewInbox())
	if err == nil {
		err = conn.Flush()
	}
	if err != nil {
		t.Fatal(err)
	}
	waiting := func() uint64 {
		if !queue {
			return 0
		}
		return inStream(t, conn, executor.StreamQueue)
	}
	if queue {
		err = n.client.Enqueue(within(t), "s1", request("c1", "held", `{}`))
	} else {
		err = conn.PublishRequest("steno.v1.call.s1", answers.Subject, []byte(`{"call_id":"c1","name":"held"}`))
	}
	if err != nil {
		t.Fatal(err)
	}
	wait(t, "the tool", held.begun)

	written := make(chan struct{})
	n.faults.At(journaltest.Written, 1, func() { close(written) })
	hold := n.faults.HoldSync(t)
	if leaveOutSync {
		n.faults.LeaveOutSync()
	}
	close(held.hold)
	wait(t, "the write of the result", written)
	since := time.Now()
	if p.result("s1", "c1") == nil {
		t.Fatal("the result is not in the file")
	}
	if leaveOutSync {
		eventually(t, "a leak", func() bool {
			l = leaks{!queue && pending(t, answers) > 0, pending(t, events) > 0, queue && waiting() == 0}
			return l == leaks{!queue, true, queue}
		})
		return l, time.Since(since)
	}
	wait(t, "a sync that waits", hold.Waiting())
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(2 * time.Millisecond) {
		if err := conn.Flush(); err != nil {
			t.Fatal(err)
		}
		l.answer = l.answer || pending(t, answers) > 0
		l.event = l.event || pending(t, events) > 0
		l.ack = l.ack || queue && waiting() == 0
	}
	hold.Release()
	if _, err := events.NextMsg(journaltest.Deadline); err != nil {
		t.Fatalf("after the sync there is no event: %v", err)
	}
	if queue {
		eventually(t, "the acknowledgement", func() bool { return waiting() == 0 })
	} else if m, err := answers.NextMsg(journaltest.Deadline); err != nil {
		t.Fatalf("after the sync there is no answer: %v", err)
	} else {
		p.wantRecorded("s1", executor.Answer{CallID: "c1", Data: m.Data})
	}
	return l, 0
}

func pending(t *testing.T, s *nats.Subscription) int {
	t.Helper()
	n, _, err := s.Pending()
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// inStream is how many messages are in a stream.
func inStream(t *testing.T, conn *nats.Conn, name string) uint64 {
	t.Helper()
	js, err := jetstream.New(conn)
	if err != nil {
		t.Fatal(err)
	}
	s, err := js.Stream(within(t), name)
	if err != nil {
		t.Fatal(err)
	}
	return s.CachedInfo().State.Msgs
}

func TestNothingIsToldBeforeTheSync(t *testing.T) {
	for name, queue := range map[string]bool{"request door": false, "queue door": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			// The check notices if the sync is left out, and that takes so long.
			l, took := leaksOf(t, queue, true, 0)
			if l != (leaks{answer: !queue, event: true, ack: queue}) {
				t.Errorf("without the sync the check found only %+v", l)
			}
			// Nobody can see that nothing comes, so what may come has five times
			// as long.
			if l, _ := leaksOf(t, queue, false, 5*took); l != (leaks{}) {
				t.Errorf("before the sync: %+v", l)
			}
		})
	}
}

// A write or sync that fails is nobody's business but the log's: the same call
// is answered from what is recorded, whether the disk had it or it was written
// again, and a start that was found runs now, as the same attempt.
func TestCallsGoOnOverAFailureOfTheLog(t *testing.T) {
	fails := map[string]func(f *journaltest.Faults, n int){
		"a sync fails":               func(f *journaltest.Faults, n int) { f.FailSync(n, journaltest.ErrDisk) },
		"a sync loses what it had":   func(f *journaltest.Faults, n int) { f.LoseSync(n, journaltest.ErrDisk) },
		"a write fails":              func(f *journaltest.Faults, n int) { f.FailWrite(n, journaltest.ErrDisk) },
		"a write stores a part":      func(f *journaltest.Faults, n int) { f.ShortWrite(n, 500, journaltest.ErrDisk) },
		"a write stores all of them": func(f *journaltest.Faults, n int) { f.ShortWrite(n, 1<<20, journaltest.ErrDisk) },
	}
	for name, arm := range fails {
		for n, what := range []string{1: "start", 2: "result"} {
			if n == 0 {
				continue
			}
			t.Run(name+", of the "+what, func(t *testing.T) {
				p := newPlace(t, journaltest.NATSOptions{})
				var tokens []schema.Head
				x := p.node([]executor.Tool{toolOf("token", func(_ context.Context, c *executor.Invocation) (executor.Result, error) {
					tokens = append(tokens, schema.Head{Epoch: c.Epoch, Seq: c.Seq})
					return executor.Result{OK: true, Output: fmt.Sprint("attempt ", c.Attempt)}, nil
				})})
				x.open("s1")
				events, err := x.conn.SubscribeSync("steno.v1.event.s1.>")
				if err != nil {
					t.Fatal(err)
				}
				arm(x.faults, n)
				a := x.call("s1", "c1", "token", `{}`)
				p.wantRecorded("s1", a)
				if got := field[string](t, a.Data, "output"); got != "attempt 1" || len(tokens) != 1 {
					t.Fatalf("the tool ran %d times; the last said %s", len(tokens), got)
				}
				l := p.read("s1")
				at := l.State.Call("c1").Attempts[0]
				if tokens[0].Epoch != at.Epoch || tokens[0].Seq != at.Seq || len(l.State.Epochs) != 2 || l.State.Epochs[1].How != schema.HowRoll {
					t.Errorf("the tool got the token %v, recorded is %+v; the epochs are %+v", tokens[0], at, l.State.Epochs)
				}
				if a.Head != l.Head {
					t.Errorf("the answer's head is %v, the log's %v", a.Head, l.Head)
				}
				// Everything is told of once, in order: call, decision, start and
				// result, and the seal between them.
				for _, e := range l.Events[2:] {
					if m, err := events.NextMsg(journaltest.Deadline); err != nil || field[uint64](t, m.Data, "seq") != e.Seq {
						t.Fatalf("of event %d was told %v, %v", e.Seq, m, err)
					}
				}
			})
		}
	}
}

// Where the log cannot go on either, nothing is acknowledged, the session is
// given back, and whoever has it next settles what is open.
func TestWhatCannotBeRecordedIsNotAcknowledged(t *testing.T) {
	for name, c := range map[string]struct {
		arm        func(*journaltest.Faults)
		repeatable bool
		want       schema.Kind
		outcome    string
		after      schema.Kind // of the result that is recorded afterwards
		runs       int
	}{
		"start of a call":            {func(f *journaltest.Faults) { f.FailSync(1, journaltest.ErrDisk); f.FailSync(2, journaltest.ErrDisk) }, false, schema.SyncFailed, "unknown", schema.Interrupted, 0},
		"start of a repeatable call": {func(f *journaltest.Faults) { f.FailSync(1, journaltest.ErrDisk); f.FailSync(2, journaltest.ErrDisk) }, true, schema.SyncFailed, "unknown", "", 1},
		"start that is not stored":   {func(f *journaltest.Faults) { f.FailWrite(1, journaltest.ErrDisk); f.FailWrite(2, journaltest.ErrDisk) }, false, schema.LogWriteFailed, "not_stored", "", 1},
		"result of a call":           {func(f *journaltest.Faults) { f.FailSync(2, journaltest.ErrDisk); f.FailSync(3, journaltest.ErrDisk) }, false, schema.ToolResultRecordFailed, "unknown", "", 1},
		"result, and nothing is there": {func(f *journaltest.Faults) {
			f.ShortWrite(2, 100, journaltest.ErrDisk)
			f.FailWrite(3, journaltest.ErrDisk)
		},
			false, schema.ToolResultRecordFailed, "not_stored", schema.Interrupted, 1},
	} {
		t.Run(name, func(t *testing.T) {
			p := newPlace(t, journaltest.NATSOptions{})
			count := newCounter(false)
			tools := []executor.Tool{count.tool("count", c.repeatable), echo}
			n := p.node(tools)
			n.open("s1")
			n.open("s2")
			before := n.call("s1", "before", "echo", `{"a":1}`)
			events, err := n.conn.SubscribeSync("steno.v1.event.s1.>")
			if err != nil {
				t.Fatal(err)
			}
			c.arm(n.faults)
			_, err = n.Do(within(t), "s1", request("c1", "count", `{}`))
			wantErr(t, err, c.want)
			if got := schema.AsError(err).Details["outcome"]; got != c.outcome {
				t.Errorf("the outcome is %v, want %s", got, c.outcome)
			}
			// The service is up, other sessions are not touched. The answer goes out
			// behind the events.
			n.call("s2", "c1", "echo", `{}`)
			if err := n.conn.Flush(); err != nil {
				t.Fatal(err)
			}
			want := 0
			if c.want == schema.ToolResultRecordFailed {
				want = 3
			}
			if got := pending(t, events); got != want {
				t.Errorf("%d events were published, want %d", got, want)
			}
			// It is given back at once, so that others need not wait for somebody
			// to ask this executor for it.
			st, err := p.store().Lease(context.Background(), "s1")
			if err != nil || st.Kind != schema.SessionWriterStale {
				t.Errorf("the lease is %+v, %v", st, err)
			}
			// The next request opens the session again and settles. It may come
			// through an executor that did not hold it.
			other := p.node(tools)
			a, err := other.client.Call(within(t), "s1", request("c1", "count", `{}`))
			if err != nil {
				t.Fatal(err)
			}
			wantKindOfResult(t, a.Data, c.after)
			p.wantRecorded("s1", a)
			if got := count.of("c1"); got != c.runs {
				t.Errorf("the tool ran %d times, want %d", got, c.runs)
			}
			if again := n.call("s1", "before", "echo", `{"a":1}`); string(again.Data) != string(before.Data) {
				t.Errorf("an earlier call is answered %s", again.Data)
			}
			if len(p.read("s1").State.Epochs) != 2 {
				t.Errorf("the session has the epochs %+v", p.read("s1").State.Epochs)
			}
		})
	}
}

// Many calls at once over a log that fails again and again: each is answered,
// and what runs meanwhile is not stopped. Where a roll fails too the session is
// opened again while others still use it, and nobody hears that another process
// holds it: it is this one.
func TestManyCallsGoOnOverFailures(t *testing.T) {
	for _, twice := range []bool{false, true} {
		t.Run(fmt.Sprintf("twice %t", twice), func(t *testing.T) { manyCalls(t, twice) })
	}
}

func manyCalls(t *testing.T, twice bool) {
	p := newPlace(t, journaltest.NATSOptions{})
	n := p.node([]executor.Tool{echo})
	n.open("s1")
	var failed atomic.Int32
	var callers sync.WaitGroup
	for i := range 8 {
		callers.Go(func() {
			for k := range 40 {
				if i == 0 && k%4 == 0 {
					n.faults.FailSync(1, journaltest.ErrDisk)
					if twice {
						n.faults.FailSync(2, journaltest.ErrDisk)
					}
				}
				req := request(fmt.Sprintf("c%d-%d", i, k), "echo", `{}`)
				for {
					_, err := n.Do(within(t), "s1", req)
					if err == nil {
						break
					}
					failed.Add(1)
					switch schema.KindOf(err) {
					case schema.SyncFailed, schema.ToolResultRecordFailed, schema.SessionWriterLost:
					default:
						t.Errorf("call %s: %v", req.CallID, err)
						return
					}
				}
			}
		})
	}
	callers.Wait()
	log := p.read("s1")
	if len(log.State.Calls) != 8*40 || twice != (failed.Load() > 0) || len(log.State.Epochs) < 3 {
		t.Errorf("%d calls are recorded in %d epochs, %d failed", len(log.State.Calls), len(log.State.Epochs), failed.Load())
	}
	for _, e := range log.State.Epochs[1:] {
		if !twice && e.How != schema.HowRoll {
			t.Errorf("epoch %d was come by as %s", e.Epoch, e.How)
		}
	}
}

// pendingAcks is how many deliveries of the queue are with executors.
func pendingAcks(t *testing.T, conn *nats.Conn) int {
	t.Helper()
	js, err := jetstream.New(conn)
	if err != nil {
		t.Fatal(err)
	}
	c, err := js.Consumer(within(t), executor.StreamQueue, "STENO_EXECUTORS")
	if err != nil {
		t.Fatal(err)
	}
	return c.CachedInfo().NumAckPending
}
