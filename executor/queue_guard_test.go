package executor_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"steno/executor"
	"steno/journal/journaltest"
	"steno/replay"
	"steno/schema"
)

// remote is a connection that comes back when its server is started anew.
func (p *place) remote() *nats.Conn {
	p.t.Helper()
	conn, err := nats.Connect(p.nats.URL(), nats.MaxReconnects(-1), nats.ReconnectWait(10*time.Millisecond))
	if err != nil {
		p.t.Fatal(err)
	}
	p.t.Cleanup(conn.Close)
	return conn
}

// remoteNode is a queueNode with such connections.
func (p *place) remoteNode(tools []executor.Tool, change ...func(*executor.Config)) *node {
	p.t.Helper()
	conn := p.remote()
	n := p.queueNode(tools, time.Minute, append(change, func(c *executor.Config) { c.Conn = conn })...)
	client, err := executor.NewClient(p.remote(), "")
	if err != nil {
		p.t.Fatal(err)
	}
	n.client = client
	return n
}

// there says whether the queue is there, with its consumer.
func there(js jetstream.JetStream) bool {
	for _, name := range []string{executor.StreamQueue, executor.StreamDead} {
		if _, err := js.Stream(context.Background(), name); err != nil {
			return false
		}
	}
	_, err := js.Consumer(context.Background(), executor.StreamQueue, "STENO_EXECUTORS")
	return err == nil
}

// Streams and the consumer that vanish while an executor runs are made again, and
// calls are taken as before. One that runs over it has its result.
func TestWhatVanishesOfTheQueueIsMadeAgain(t *testing.T) {
	for what, vanish := range map[string]func(*place, jetstream.JetStream) error{
		"stream deleted": func(_ *place, js jetstream.JetStream) error { return js.DeleteStream(within(t), executor.StreamQueue) },
		"dead deleted":   func(_ *place, js jetstream.JetStream) error { return js.DeleteStream(within(t), executor.StreamDead) },
		"consumer deleted": func(_ *place, js jetstream.JetStream) error {
			return js.DeleteConsumer(within(t), executor.StreamQueue, "STENO_EXECUTORS")
		},
		"server restarted":      func(p *place, _ jetstream.JetStream) error { p.nats.Restart(""); return nil },
		"server lost its store": func(p *place, _ jetstream.JetStream) error { p.nats.Restart(t.TempDir()); return nil },
	} {
		t.Run(what, func(t *testing.T) {
			p := newPlace(t, journaltest.NATSOptions{JetStream: true, Listen: true})
			held := newCounter(true)
			n := p.remoteNode([]executor.Tool{echo, held.tool("held", false)})
			n.open("s1")
			js, err := jetstream.New(p.remote())
			if err != nil {
				t.Fatal(err)
			}
			works := func(id string) {
				t.Helper()
				eventually(t, "the queue to be there", func() bool { return there(js) })
				n.enqueueThere("s1", id, "echo", `{}`)
				a, err := n.client.Wait(within(t), "s1", id)
				if err != nil || kindOfResult(t, a.Data) != "" {
					t.Errorf("%s gives %s, %v", id, a.Data, err)
				}
			}
			works("before")
			n.enqueueThere("s1", "long", "held", `{}`)
			wait(t, "the tool", held.begun)
			if err := vanish(p, js); err != nil {
				t.Fatal(err)
			}
			works("after")
			close(held.hold)
			a, err := n.client.Wait(within(t), "s1", "long")
			if err != nil || kindOfResult(t, a.Data) != "" || held.of("long") != 1 {
				t.Errorf("the call that ran over it has %s, %v, and ran %d times", a.Data, err, held.of("long"))
			}
		})
	}
}

// enqueueThere queues a call while the queue may be made anew, as a publisher does
// who hears that it is not there now.
func (n *node) enqueueThere(session, id, tool, args string) {
	n.t.Helper()
	eventually(n.t, "the call to be queued", func() bool {
		err := n.client.Enqueue(within(n.t), session, request(id, tool, args))
		if err != nil && !errors.Is(err, schema.Unavailable) {
			n.t.Fatal(err)
		}
		return err == nil
	})
}

// Calls that wait for an executor outlive a restart of their server. What an
// empty one has lost of them may be queued again.
func TestCallsThatWaitOutliveTheirServer(t *testing.T) {
	p := newPlace(t, journaltest.NATSOptions{JetStream: true, Listen: true})
	held := newCounter(true)
	n := p.remoteNode([]executor.Tool{held.tool("held", false)}, func(c *executor.Config) { c.MaxCalls = 1 })
	n.open("s1")
	n.open("s2")
	for i := range 20 {
		n.enqueueThere("s1", fmt.Sprint("c", i), "held", `{}`)
	}
	wait(t, "the tool", held.begun)
	p.nats.Restart("")
	close(held.hold)
	eventually(t, "all calls", func() bool { l := p.read("s1"); return len(l.State.Calls) == 20 && len(l.State.Open()) == 0 })
	for i := range 20 {
		wantKindOfResult(t, p.result("s1", fmt.Sprint("c", i)), "")
		if k := held.of(fmt.Sprint("c", i)); k != 1 {
			t.Errorf("call %d ran %d times", i, k)
		}
	}
}

// What the logs have as open is offered again, at the start and when the queue
// has lost it, also where nobody asks for the session.
func TestOpenCallsAreOfferedAgain(t *testing.T) {
	for _, how := range []string{"start", "stream deleted", "purged"} {
		t.Run(how, func(t *testing.T) {
			p := newPlace(t, journaltest.NATSOptions{JetStream: true, Listen: true})
			count := newCounter(false)
			tools := []executor.Tool{count.tool("once", false), count.tool("again", true)}
			leave := func() {
				p.leave("s1", journaltest.Call("never", "once", `{}`), decided("never", "allow"),
					journaltest.Call("cut", "once", `{}`), decided("cut", "allow"), journaltest.Started("cut", 1),
					journaltest.Call("repeat", "again", `{}`), decided("repeat", "allow"), journaltest.Started("repeat", 1))
				p.leave("s2", journaltest.Note("nothing is open here"))
			}
			js := p.js()
			if how == "start" {
				leave()
			}
			if how == "purged" { // something waits, and nobody has room for it
				n := p.queueNode(tools, time.Minute)
				n.stop()
			}
			var n *node
			switch how {
			case "start":
				p.queueNode(tools, time.Minute)
			case "stream deleted":
				n = p.queueNode(tools, time.Minute)
				n.open("other")
				leave()
				if err := js.DeleteStream(within(t), executor.StreamQueue); err != nil {
					t.Fatal(err)
				}
			case "purged":
				held := newCounter(true)
				n = p.queueNode(append(tools, held.tool("held", false)), time.Minute, func(c *executor.Config) { c.MaxCalls = 1 })
				n.open("other")
				n.enqueue("other", "h1", "held", `{}`)
				wait(t, "the tool", held.begun)
				for i := range 20 {
					n.enqueue("other", fmt.Sprint("w", i), "held", `{}`)
				}
				looks := p.nats.Listen("$JS.API.CONSUMER.INFO." + executor.StreamQueue + ".>")
				for range 7 { // three in each look: it has seen them
					if _, err := looks.NextMsg(journaltest.Deadline); err != nil {
						t.Fatal(err)
					}
				}
				leave()
				s, err := js.Stream(within(t), executor.StreamQueue)
				if err == nil {
					err = s.Purge(within(t))
				}
				if err != nil {
					t.Fatal(err)
				}
				defer close(held.hold)
			}
			eventually(t, "open calls are settled", func() bool {
				l := p.read("s1")
				return len(l.State.Open()) == 0
			})
			l := p.read("s1")
			for id, want := range map[string]replay.CallState{"never": replay.OK, "cut": replay.Interrupted, "repeat": replay.OK} {
				if c := l.State.Call(id); c.State != want {
					t.Errorf("%s is %s, want %s", id, c.State, want)
				}
			}
			if count.of("never") != 1 || count.of("cut") != 0 || count.of("repeat") != 1 {
				t.Errorf("they ran %d, %d and %d times", count.of("never"), count.of("cut"), count.of("repeat"))
			}
			if e := p.read("s2").State.Epochs; len(e) != 1 {
				t.Errorf("a session with nothing open was taken: %d epochs", len(e))
			}
		})
	}
}

// A consumer with a limit on deliveries leaves what has reached it in the queue,
// and gives it to nobody. It is parked, whether somebody heard of it or not.
func TestWhatNobodyGetsAnyMoreIsParked(t *testing.T) {
	p := newPlace(t, journaltest.NATSOptions{JetStream: true})
	free := p.ambiguous("s1")
	p.leave("s2")
	n := p.queueNode([]executor.Tool{echo}, time.Minute)
	js := p.js()
	limit := p.executors(js).Config
	limit.MaxDeliver = 2
	if _, err := js.UpdateConsumer(within(t), executor.StreamQueue, limit); err != nil {
		t.Fatal(err)
	}
	n.enqueue("s1", "heard", "echo", `{}`)
	n.emptied()
	if d := n.dead(); len(d) != 1 || d[0].Subject != "steno.v1.dead.s1.parked" || d[0].Header.Get(executor.HeaderErrorKind) != string(schema.PoisonMessage) || d[0].Header.Get("Steno-Call") != "heard" {
		t.Fatalf("parked are %v", d)
	}
	n.stop()
	// Nobody hears of these, since nobody runs.
	client := p.client()
	if err := client.Enqueue(within(t), "s2", request("unheard", "echo", `{"a":1}`)); err != nil {
		t.Fatal(err)
	}
	if _, err := js.Publish(within(t), "steno.v1.queue.s2", []byte("{")); err != nil {
		t.Fatal(err)
	}
	c, err := js.Consumer(within(t), executor.StreamQueue, "STENO_EXECUTORS")
	if err != nil {
		t.Fatal(err)
	}
	for range 4 {
		m, err := c.Next(jetstream.FetchMaxWait(journaltest.Deadline))
		if err == nil {
			err = m.Nak()
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if m, err := c.Next(jetstream.FetchMaxWait(100 * time.Millisecond)); err == nil {
		t.Fatalf("there is still %s", m.Data())
	}
	n = p.queueNode([]executor.Tool{echo}, time.Minute)
	n.emptied()
	if d := n.dead(); len(d) != 3 {
		t.Errorf("%d are parked", len(d))
	}
	if p.executors(js).Config.MaxDeliver != 2 {
		t.Error("the operator's limit is gone")
	}
	var reasons []string
	for _, ref := range p.read("s2").State.Dead {
		e := p.read("s2").Events[ref.Seq-1]
		reasons = append(reasons, field[string](t, e.Data, "reason"))
	}
	if strings.Join(reasons, " ") != "poison_message poison_message" {
		t.Errorf("the log has %q", reasons)
	}
	free()
	if _, err := n.client.Requeue(within(t), executor.RequeueRequest{By: "ada"}); err != nil {
		t.Fatal(err)
	}
	n.emptied()
	wantKindOfResult(t, p.result("s1", "heard"), "")
	wantKindOfResult(t, p.result("s2", "unheard"), "")
}

// Anybody may say that the consumer gives a message to nobody any more.
func TestAForgedAdvisoryTakesNothingOutOfTheQueue(t *testing.T) {
	p := newPlace(t, journaltest.NATSOptions{JetStream: true})
	gate := make(chan struct{})
	slow := tool("slow", `{"type":"object"}`)
	slow.Run = func(ctx context.Context, _ *executor.Invocation) (executor.Result, error) {
		select {
		case <-gate:
		case <-ctx.Done():
		}
		return executor.Result{OK: true}, nil
	}
	n := p.queueNode([]executor.Tool{slow}, time.Minute)
	n.open("s1")
	const calls = 20
	for i := range calls {
		n.enqueue("s1", fmt.Sprint("c", i), "slow", `{}`)
	}
	c := p.nats.Connect()
	for look := range 3 { // each has it look again
		for i := range calls {
			if err := c.Publish("$JS.EVENT.ADVISORY.CONSUMER.MAX_DELIVERIES.STENO_QUEUE.x", fmt.Appendf(nil, `{"stream_seq":%d}`, i+1)); err != nil {
				t.Fatal(err)
			}
		}
		if err := c.Flush(); err != nil {
			t.Fatal(err)
		}
		if look == 0 {
			close(gate)
		}
	}
	eventually(t, "all calls have their results", func() bool { return inStream(t, n.conn, executor.StreamQueue) == 0 })
	if d := n.dead(); len(d) > 0 {
		t.Errorf("%d healthy calls were taken out of the queue", len(d))
	}
}
