package executor_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"steno/executor"
	"steno/journal"
	"steno/journal/journaltest"
	"steno/lease"
	"steno/schema"
)

func withQueue(c *executor.Config) { c.Queue = true }

// queueNode starts an executor at both doors whose queue is quick to try again.
func (p *place) queueNode(tools []executor.Tool, ackWait time.Duration, change ...func(*executor.Config)) *node {
	p.t.Helper()
	n := p.idle(tools, append(change, withQueue)...)
	executor.SetAckWait(n.Executor, ackWait)
	executor.SetRetryFirst(n.Executor, 5*time.Millisecond)
	if err := n.Start(context.Background()); err != nil {
		p.t.Fatal(err)
	}
	return n
}

// enqueue puts a call into the queue.
func (n *node) enqueue(session, id, tool, args string) {
	n.t.Helper()
	if err := n.client.Enqueue(within(n.t), session, request(id, tool, args)); err != nil {
		n.t.Fatal(err)
	}
}

// emptied returns once nothing is in the queue any more.
func (n *node) emptied() {
	n.t.Helper()
	eventually(n.t, "the queue to be empty", func() bool { return inStream(n.t, n.conn, executor.StreamQueue) == 0 })
}

// dead are the messages in STENO_DEAD.
func (n *node) dead() (list []*jetstream.RawStreamMsg) {
	n.t.Helper()
	js, err := jetstream.New(n.conn)
	if err != nil {
		n.t.Fatal(err)
	}
	s, err := js.Stream(within(n.t), executor.StreamDead)
	if err != nil {
		n.t.Fatal(err)
	}
	for seq := range s.CachedInfo().State.LastSeq {
		m, err := s.GetMsg(within(n.t), seq+1)
		if errors.Is(err, jetstream.ErrMsgNotFound) {
			continue
		}
		if err != nil {
			n.t.Fatal(err)
		}
		list = append(list, m)
	}
	return list
}

func TestTheQueueHoldsCallsWhileNobodyServes(t *testing.T) {
	p := newPlace(t, journaltest.NATSOptions{JetStream: true})
	n := p.queueNode([]executor.Tool{echo}, time.Minute)
	n.open("s1")
	n.enqueue("s1", "c0", "echo", `{}`)
	n.emptied()
	n.stop()
	client := p.client()
	for i := range 20 {
		if err := client.Enqueue(within(t), "s1", request(fmt.Sprint("c", i), "echo", `{}`)); err != nil {
			t.Fatal(err)
		}
	}
	first := p.result("s1", "c0")
	n = p.queueNode([]executor.Tool{echo}, time.Minute)
	n.emptied()
	l := p.read("s1")
	if len(l.State.Calls) != 20 || len(l.State.Open()) != 0 {
		t.Errorf("%d calls are recorded", len(l.State.Calls))
	}
	// The same call through the queue again, and through the other door.
	if again := p.result("s1", "c0"); string(again) != string(first) {
		t.Errorf("the result has become %s", again)
	}
	if a := n.call("s1", "c0", "echo", `{}`); string(a.Data) != string(first) {
		t.Errorf("the request door answers %s", a.Data)
	}
	if d := n.dead(); len(d) != 0 {
		t.Errorf("%d dead letters", len(d))
	}
}

func TestADeliveryIsKeptAliveWhileItsToolRuns(t *testing.T) {
	p := newPlace(t, journaltest.NATSOptions{JetStream: true})
	held := newCounter(true)
	const ackWait = 600 * time.Millisecond
	n := p.queueNode([]executor.Tool{held.tool("held", false)}, ackWait)
	n.open("s1")
	acks, err := n.conn.SubscribeSync("$JS.ACK." + executor.StreamQueue + ".>")
	if err != nil {
		t.Fatal(err)
	}
	n.enqueue("s1", "c1", "held", `{}`)
	wait(t, "the tool", held.begun)
	last, gap := time.Now(), time.Duration(0)
	for range 5 { // more than ackWait, at three for each
		m, err := acks.NextMsg(journaltest.Deadline)
		if err != nil || string(m.Data) != "+WPI" {
			t.Fatalf("the delivery was told %v, %v", m, err)
		}
		last, gap = time.Now(), max(gap, time.Since(last))
	}
	js, err := jetstream.New(n.conn)
	if err != nil {
		t.Fatal(err)
	}
	c, err := js.Consumer(within(t), executor.StreamQueue, "STENO_EXECUTORS")
	if err != nil {
		t.Fatal(err)
	}
	// A machine that stood still for all of ackWait may have delivered it again.
	if info := c.CachedInfo(); info.NumRedelivered > 0 && gap < ackWait*2/3 || info.NumAckPending != 1 {
		t.Errorf("of %d pending %d have come again", info.NumAckPending, info.NumRedelivered)
	}
	close(held.hold)
	n.emptied()
	wantKindOfResult(t, p.result("s1", "c1"), "")
	if n := held.of("c1"); n != 1 {
		t.Errorf("the tool ran %d times", n)
	}
}

// Where it is not kept alive, it comes again, joins, and is done once.
func TestADeliveryThatComesAgainJoins(t *testing.T) {
	p := newPlace(t, journaltest.NATSOptions{JetStream: true})
	held := newCounter(true)
	n := p.queueNode([]executor.Tool{held.tool("held", false)}, time.Minute)
	n.open("s1")
	for range 3 {
		n.enqueue("s1", "c1", "held", `{}`)
	}
	wait(t, "the tool", held.begun)
	eventually(t, "all deliveries", func() bool { return pendingAcks(t, n.conn) == 3 })
	close(held.hold)
	n.emptied()
	if n := held.of("c1"); n != 1 {
		t.Errorf("the tool ran %d times", n)
	}
	p.wantTypes("s1", "tool_call", "permission_decision", "tool_started", "tool_result")
}

func TestWhatCanNeverWorkEndsAsADeadLetter(t *testing.T) {
	p := newPlace(t, journaltest.NATSOptions{JetStream: true})
	tools := []executor.Tool{echo}
	n := p.queueNode(tools, time.Minute)
	n.open("s1")
	n.open("ended")
	n.call("s1", "c1", "echo", `{}`)
	if _, err := n.client.End(within(t), executor.EndRequest{Session: "ended", Outcome: "completed"}); err != nil {
		t.Fatal(err)
	}
	js, err := jetstream.New(n.conn)
	if err != nil {
		t.Fatal(err)
	}
	p.anySize(js)
	long := `{"call_id":"long","name":"echo","context":"` + strings.Repeat("a", 1<<20-len(`{"call_id":"long","name":"echo","context":""}`)) + `"}`
	cases := []struct {
		session, body string
		kind          schema.Kind
		callID        string // as the log has it
		logged        bool
	}{
		{"s1", `{"call_id":"c2"`, schema.PoisonMessage, "", true},
		{"s1", "\xff\x00", schema.PoisonMessage, "", true},
		{"s1", `{"call_id":"c3","name":""}`, schema.InvalidArgs, "c3", true},
		{"s1", `{"call_id":"c1","name":"echo","args":{"a":1}}`, schema.CallConflict, "c1", true},
		{"s1", long, schema.PayloadTooLarge, "long", true},
		{"ended", `{"call_id":"c4","name":"echo"}`, schema.SessionEnded, "c4", true},
		{"nobody", `{"call_id":"c5","name":"echo"}`, schema.NotFound, "c5", false},
		{"_odd", `{"call_id":"c6","name":"echo"}`, schema.InvalidArgs, "c6", false},
	}
	for i, c := range cases {
		if _, err := js.Publish(within(t), "steno.v1.queue."+c.session, []byte(c.body)); err != nil {
			t.Fatal(err)
		}
		n.emptied() // in this order
		letters := n.dead()
		if len(letters) != i+1 {
			t.Fatalf("%.60q: %d dead letters", c.body, len(letters))
		}
		m := letters[i]
		subject := "steno.v1.dead." + strings.Replace(c.session, "_odd", "_", 1)
		if m.Subject != subject || m.Header.Get("Steno-Error-Kind") != string(c.kind) || m.Header.Get("Steno-Error") == "" || m.Header.Get("Steno-Deliveries") != "1" {
			t.Errorf("%.60q is dead on %s with %v, want %s", c.body, m.Subject, m.Header, c.kind)
		}
		if !strings.HasPrefix(c.body, string(m.Data)) || len(m.Data) < len(c.body) && m.Header.Get("Steno-Bytes") != strconv.Itoa(len(c.body)) {
			t.Errorf("%.60q is kept as %.60q", c.body, m.Data)
		}
		if !c.logged {
			continue
		}
		l := p.read(c.session)
		e := l.Events[len(l.Events)-1]
		if e.Type != schema.TypeDeadLetter || field[string](t, e.Data, "reason") != string(c.kind) || field[string](t, e.Data, "call_id") != c.callID ||
			field[int](t, e.Data, "deliveries") != 1 || len(e.Data) > 8<<10 {
			t.Errorf("%.60q ends in the log as %s %.200s", c.body, e.Type, e.Data)
		}
	}
	// A refused call is none of these: it has a result.
	n.enqueue("s1", "c7", "no_such_tool", `{}`)
	n.emptied()
	wantKindOfResult(t, p.result("s1", "c7"), schema.UnknownTool)
	if len(n.dead()) != len(cases) {
		t.Error("a refused call is a dead letter")
	}
	if names := slices.Collect(sessions(t, n.store)); !slices.Equal(names, []string{"ended", "s1"}) {
		t.Errorf("the sessions are %q", names)
	}
}

func sessions(t *testing.T, store *journal.Files) func(func(string) bool) {
	return func(yield func(string) bool) {
		for id, err := range store.Sessions(context.Background()) {
			if err != nil {
				t.Fatal(err)
			}
			if !yield(id) {
				return
			}
		}
	}
}

// The dead letter goes into the log where the session is held.
func TestADeadLetterIsRecordedByTheHolder(t *testing.T) {
	p := newPlace(t, journaltest.NATSOptions{JetStream: true})
	holder := p.node(nil) // has no queue
	holder.open("s1")
	n := p.queueNode(nil, time.Minute)
	js, err := jetstream.New(n.conn)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := js.Publish(within(t), "steno.v1.queue.s1", []byte(`{"call_id":"c1"}`)); err != nil {
		t.Fatal(err)
	}
	n.emptied()
	l := p.read("s1")
	if len(l.State.Dead) != 1 || len(n.dead()) != 1 || len(l.State.Epochs) != 1 {
		t.Errorf("the log has %d dead letters in %d epochs", len(l.State.Dead), len(l.State.Epochs))
	}
}

// A session that cannot be written is tried again, with pauses, and in the end
// parked. It holds nothing else up.
func TestWhatCannotBeDoneNowIsParkedInTheEnd(t *testing.T) {
	p := newPlace(t, journaltest.NATSOptions{JetStream: true})
	n := p.queueNode([]executor.Tool{echo}, time.Minute)
	n.open("s1")
	p.leave("odd")
	claim := filepath.Join(p.dir, "sessions", "odd", "000002.jsonl") // nobody can tell whose
	if err := os.WriteFile(claim, []byte("{}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	n.enqueue("odd", "c1", "echo", `{"a":1}`)
	for i := range 5 {
		n.enqueue("s1", fmt.Sprint("c", i), "echo", `{}`)
	}
	eventually(t, "the calls of another session", func() bool { return len(p.read("s1").State.Calls) == 5 && len(p.read("s1").State.Open()) == 0 })
	n.emptied()
	letters := n.dead()
	if len(letters) != 1 {
		t.Fatalf("%d dead letters", len(letters))
	}
	m := letters[0]
	if m.Subject != "steno.v1.dead.odd.parked" || m.Header.Get("Steno-Error-Kind") != string(schema.SessionWriterAmbiguous) || m.Header.Get("Steno-Deliveries") != "10" ||
		string(m.Data) != `{"call_id":"c1","name":"echo","args":{"a":1}}` {
		t.Errorf("parked is %s %s with %v", m.Subject, m.Data, m.Header)
	}
	// It can be sent back.
	if err := os.Remove(claim); err != nil {
		t.Fatal(err)
	}
	js, err := jetstream.New(n.conn)
	if err == nil {
		_, err = js.Publish(within(t), "steno.v1.queue.odd", m.Data)
	}
	if err != nil {
		t.Fatal(err)
	}
	n.emptied()
	wantKindOfResult(t, p.result("odd", "c1"), "")
}

// The holder of a session stands still. Calls of others run, those for it are
// parked, and run once when the session can be written again.
func TestCallsForAHolderThatStandsStillAreParked(t *testing.T) {
	p := newPlace(t, journaltest.NATSOptions{JetStream: true, Listen: true})
	a := p.child(child{Effects: filepath.Join(t.TempDir(), "effects")})
	open(t, p.client(), "stuck")
	p.leave("free")
	a.Stop()
	journaltest.Silence(t, p.store(), "stuck")
	count := newCounter(false)
	n := p.queueNode([]executor.Tool{count.tool("count", false)}, time.Minute)
	calls := []string{"c1", "c2", "c3"}
	for _, id := range calls {
		n.enqueue("stuck", id, "count", `{"of":"stuck"}`)
		n.enqueue("free", "f"+id, "count", `{}`)
	}
	n.emptied()
	for _, id := range calls {
		if wantKindOfResult(t, p.result("free", "f"+id), ""); count.of("f"+id) != 1 || count.of(id) != 0 {
			t.Errorf("call %s ran %d times, its like for the holder that stands still %d times", id, count.of("f"+id), count.of(id))
		}
	}
	parked := n.dead()
	if len(parked) != len(calls) {
		t.Fatalf("%d are parked", len(parked))
	}
	a.Kill()
	if killed, err := a.Wait(); !killed {
		t.Fatalf("the holder was not killed: %v", err)
	}
	for _, m := range parked {
		if k := m.Header.Get("Steno-Error-Kind"); m.Subject != "steno.v1.dead.stuck.parked" || k != string(schema.SessionWriterAmbiguous) {
			t.Errorf("parked is %s, %s", m.Subject, k)
		}
	}
	back, err := n.client.Requeue(within(t), executor.RequeueRequest{DeadRequest: executor.DeadRequest{Session: "stuck", Parked: true}, By: "ada"})
	if err != nil || back.Requeued != len(calls) || len(n.dead()) != 0 {
		t.Fatalf("sent back are %+v, %v; %d are left", back, err, len(n.dead()))
	}
	n.emptied()
	for _, id := range calls {
		if wantKindOfResult(t, p.result("stuck", id), ""); count.of(id) != 1 {
			t.Errorf("call %s ran %d times", id, count.of(id))
		}
	}
}

func TestADeliveryIsDoneOverAFailureOfTheDisk(t *testing.T) {
	p := newPlace(t, journaltest.NATSOptions{JetStream: true})
	count := newCounter(false)
	n := p.queueNode([]executor.Tool{count.tool("count", false)}, time.Minute)
	n.open("s1")
	n.faults.FailSync(1, journaltest.ErrDisk) // of the start
	n.enqueue("s1", "c1", "count", `{}`)
	n.emptied()
	n.faults.FailSync(2, journaltest.ErrDisk) // of the result
	n.enqueue("s1", "c2", "count", `{}`)
	n.emptied()
	wantKindOfResult(t, p.result("s1", "c1"), "")
	wantKindOfResult(t, p.result("s1", "c2"), "")
	if count.of("c1") != 1 || count.of("c2") != 1 || len(n.dead()) != 0 {
		t.Errorf("the tools ran %d and %d times, %d dead letters", count.of("c1"), count.of("c2"), len(n.dead()))
	}
}

func TestTheQueueWaitsForRoomAndRequestsDoNot(t *testing.T) {
	p := newPlace(t, journaltest.NATSOptions{JetStream: true})
	held := newCounter(true)
	n := p.queueNode([]executor.Tool{held.tool("held", false), echo}, time.Minute, func(c *executor.Config) { c.MaxCalls = 1 })
	n.open("s1")
	n.call("s1", "c0", "echo", `{}`) // a queue that only waits takes no room
	n.enqueue("s1", "c1", "held", `{}`)
	wait(t, "the tool", held.begun)
	for i := range 5 {
		n.enqueue("s1", fmt.Sprint("d", i), "echo", `{}`)
	}
	_, err := n.client.Call(within(t), "s1", request("c2", "echo", `{}`))
	wantErr(t, err, schema.Backpressure)
	if k := pendingAcks(t, n.conn); k != 1 {
		t.Errorf("%d deliveries were fetched, and one has room", k)
	}
	close(held.hold)
	n.emptied()
	if l := p.read("s1"); len(l.State.Calls) != 7 || len(n.dead()) != 0 {
		t.Errorf("%d calls are recorded", len(l.State.Calls))
	}
}

func TestAFullQueueSaysSo(t *testing.T) {
	p := newPlace(t, journaltest.NATSOptions{JetStream: true})
	n := p.queueNode([]executor.Tool{echo}, time.Minute)
	n.open("s1")
	n.stop()
	client := p.client()
	js, err := jetstream.New(p.nats.Connect())
	if err != nil {
		t.Fatal(err)
	}
	s, err := js.Stream(within(t), executor.StreamQueue)
	if err != nil {
		t.Fatal(err)
	}
	cfg := s.CachedInfo().Config
	cfg.MaxMsgs = 2 // an operator's limit
	if _, err := js.UpdateStream(within(t), cfg); err != nil {
		t.Fatal(err)
	}
	for i := range 3 {
		err := client.Enqueue(within(t), "s1", request(fmt.Sprint("c", i), "echo", `{}`))
		if want := []schema.Kind{"", "", schema.Backpressure}[i]; schema.KindOf(err) != want {
			t.Errorf("call %d: %v", i, err)
		}
	}
	n = p.queueNode([]executor.Tool{echo}, time.Minute) // the limit stays
	n.emptied()
	if l := p.read("s1"); len(l.State.Calls) != 2 {
		t.Errorf("%d calls are recorded", len(l.State.Calls))
	}
	wantErr(t, client.Enqueue(within(t), "../s1", request("c1", "echo", `{}`)), schema.InvalidArgs)
}

func TestAServiceHasOneStore(t *testing.T) {
	p := newPlace(t, journaltest.NATSOptions{JetStream: true})
	a := p.node(nil)
	other := placeOn(t, p.nats, t.TempDir())
	start := func(change ...func(*executor.Config)) (*node, error) {
		n := other.idle(nil, change...)
		return n, n.Start(within(t))
	}
	_, err := start() // the other executor says that it has another store
	wantErr(t, err, schema.InvalidConfig)
	if d := schema.AsError(err).Details; d["next"] == nil || !strings.Contains(err.Error(), a.store.ID()) {
		t.Errorf("the refusal is %v with %v", err, d)
	}
	if _, err := start(func(c *executor.Config) { c.Prefix = "elsewhere" }); err != nil {
		t.Errorf("behind another prefix: %v", err)
	}
	p.node(nil) // the same store is welcome
	q := p.node(nil, withQueue)
	q.stop()
	a.stop()
	// The queue outlives its executors and remembers their store.
	_, err = start(withQueue, func(c *executor.Config) { c.Prefix = "another" })
	wantErr(t, err, schema.InvalidConfig)
	if !strings.Contains(err.Error(), executor.StreamQueue) {
		t.Errorf("the refusal is %v", err)
	}
	// One store behind two prefixes cannot share the streams' names.
	n := p.idle(nil, withQueue, func(c *executor.Config) { c.Prefix = "third" })
	wantErr(t, n.Start(within(t)), schema.InvalidConfig)
	// What was refused serves nothing.
	c := p.nats.Connect()
	if m, err := c.RequestWithContext(within(t), "another.v1.session.list", nil); err != nats.ErrNoResponders {
		t.Errorf("a refused executor answers %v, %v", m, err)
	}
}

func TestSettingsThatCannotBeUsedAreRefused(t *testing.T) {
	p := newPlace(t, journaltest.NATSOptions{})
	n := p.node(nil)
	good := executor.Config{Conn: n.conn, Store: n.store, Tools: &executor.Registry{}, Holder: lease.Self("test")}
	for what, change := range map[string]func(*executor.Config){
		"no connection":  func(c *executor.Config) { c.Conn = nil },
		"no store":       func(c *executor.Config) { c.Store = nil },
		"no tools":       func(c *executor.Config) { c.Tools = nil },
		"no holder":      func(c *executor.Config) { c.Holder = schema.Holder{} },
		"a wildcard":     func(c *executor.Config) { c.Prefix = "steno.*" },
		"an empty token": func(c *executor.Config) { c.Prefix = "steno." },
		"a space":        func(c *executor.Config) { c.Prefix = "st eno" },
		"MaxCalls":       func(c *executor.Config) { c.MaxCalls = -1 },
		"SessionCalls":   func(c *executor.Config) { c.SessionCalls = -1 },
		"Sessions":       func(c *executor.Config) { c.Sessions = -1 },
	} {
		cfg := good
		change(&cfg)
		if _, err := executor.New(cfg); schema.KindOf(err) != schema.InvalidConfig {
			t.Errorf("%s: %v", what, err)
		}
	}
	if _, err := executor.New(good); err != nil {
		t.Error(err)
	}
	if _, err := executor.NewClient(n.conn, "a..b"); schema.KindOf(err) != schema.InvalidConfig {
		t.Errorf("a client of a..b: %v", err)
	}
	// Without JetStream there is no queue.
	q := p.idle(nil, withQueue)
	wantErr(t, q.Start(within(t)), schema.Unavailable)
	wantErr(t, n.client.Enqueue(within(t), "s1", request("c1", "echo", `{}`)), schema.Unavailable)
}

func TestEveryKindHasADisposition(t *testing.T) {
	if got := executor.Disposition(""); got != "ack" {
		t.Errorf("a recorded result is %s", got)
	}
	never := []schema.Kind{schema.PoisonMessage, schema.InvalidArgs, schema.NotFound, schema.CallConflict, schema.DuplicateCall, schema.PayloadTooLarge, schema.UnsafeStatePath,
		schema.UnsupportedSchemaVersion, schema.LineTooLong, schema.SessionEnded, schema.LeaseStoreUnsupported, schema.CorruptLogLine, schema.TailSuspect}
	for _, k := range schema.Kinds() {
		want := "again" // with pauses, and parked in the end
		if slices.Contains(never, k.Kind) {
			want = "dead"
		}
		if got := executor.Disposition(k.Kind); got != want {
			t.Errorf("%s is %s, want %s", k.Kind, got, want)
		}
	}
}
