package executor_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"steno/executor"
	"steno/journal/journaltest"
	"steno/lease"
	"steno/schema"
)

// js is JetStream as an operator sees it.
func (p *place) js() jetstream.JetStream {
	p.t.Helper()
	js, err := jetstream.New(p.nats.Connect())
	if err != nil {
		p.t.Fatal(err)
	}
	return js
}

// executors gives what the server says of their consumer.
func (p *place) executors(js jetstream.JetStream) *jetstream.ConsumerInfo {
	p.t.Helper()
	c, err := js.Consumer(within(p.t), executor.StreamQueue, "STENO_EXECUTORS")
	if err != nil {
		p.t.Fatal(err)
	}
	return c.CachedInfo()
}

// Two executors have two calls each, and ask for no more until one has ended:
// what waits, waits at the server.
func TestNobodyFetchesMoreThanThereIsRoomFor(t *testing.T) {
	p := newPlace(t, journaltest.NATSOptions{JetStream: true})
	held := newCounter(true)
	two := func(c *executor.Config) { c.MaxCalls = 2 }
	tools := []executor.Tool{held.tool("held", false)}
	a := p.queueNode(tools, time.Minute, two)
	p.queueNode(tools, time.Minute, two)
	sessions := make([]string, 12)
	for i := range sessions {
		sessions[i] = fmt.Sprint("s", i)
		p.leave(sessions[i])
		a.enqueue(sessions[i], "c1", "held", `{}`)
	}
	js := p.js()
	for range 4 {
		wait(t, "a call", held.begun)
	}
	// Nobody asks for more, so nobody can get it.
	eventually(t, "no executor asks", func() bool { i := p.executors(js); return i.NumWaiting == 0 && i.NumAckPending == 4 })
	if n := p.executors(js); n.NumAckPending != 4 || n.NumPending != 8 {
		t.Errorf("%d are fetched, %d wait", n.NumAckPending, n.NumPending)
	}
	close(held.hold)
	a.emptied()
	for _, s := range sessions {
		wantKindOfResult(t, p.result(s, "c1"), "")
	}
	if n := len(held.begun); n != 8 || len(a.dead()) != 0 {
		t.Errorf("%d calls ran after the first four", n)
	}
}

// Two executors with a slot each have calls that take longer than a delivery may
// be silent, and one that takes much longer.
func TestCallsSlowerThanADeliverysPatienceRunOnce(t *testing.T) {
	p := newPlace(t, journaltest.NATSOptions{JetStream: true})
	const ackWait = 400 * time.Millisecond
	count := newCounter(false)
	slow := func(name string, d time.Duration) executor.Tool {
		counted := count.tool(name, false)
		run := counted.Run
		counted.Run = func(ctx context.Context, c *executor.Invocation) (executor.Result, error) {
			select {
			case <-time.After(d):
			case <-ctx.Done():
			}
			return run(ctx, c)
		}
		return counted
	}
	tools := []executor.Tool{slow("slow", ackWait/4), slow("slower", 3*ackWait)}
	one := func(c *executor.Config) { c.MaxCalls = 1 }
	a := p.queueNode(tools, ackWait, one)
	a.open("s1")
	p.queueNode(tools, ackWait, one)
	for i := range 10 {
		a.enqueue("s1", fmt.Sprint("c", i), "slow", `{}`)
	}
	a.enqueue("s1", "c10", "slower", `{}`)
	a.emptied()
	l := p.read("s1")
	for i := range 11 {
		if n := count.of(fmt.Sprint("c", i)); n != 1 {
			t.Errorf("call %d ran %d times", i, n)
		}
	}
	results := 0
	for _, e := range l.Events {
		if e.Type == schema.TypeToolResult {
			results++
		}
	}
	if results != 11 || len(l.Findings) != 0 || p.executors(p.js()).NumAckPending != 0 || len(a.dead()) != 0 {
		t.Errorf("%d results, findings %v, %d unacknowledged", results, l.Findings, p.executors(p.js()).NumAckPending)
	}
}

// A session whose calls are slow has many of them in the queue. Those of others
// behind them are done meanwhile.
func TestASlowSessionLeavesRoomForOthers(t *testing.T) {
	p := newPlace(t, journaltest.NATSOptions{JetStream: true})
	held := newCounter(true)
	n := p.queueNode([]executor.Tool{held.tool("held", false), echo}, time.Minute)
	n.open("slow")
	n.open("fast")
	for i := range 100 {
		n.enqueue("slow", fmt.Sprint("c", i), "held", `{}`)
	}
	wait(t, "a slow call", held.begun)
	for i := range 20 {
		n.enqueue("fast", fmt.Sprint("c", i), "echo", `{}`)
	}
	eventually(t, "the fast calls", func() bool { l := p.read("fast"); return len(l.State.Calls) == 20 && len(l.State.Open()) == 0 })
	if len(p.read("slow").State.Open()) == 0 {
		t.Error("no slow call runs")
	}
	close(held.hold)
	n.emptied()
	for i := range 100 {
		if got := held.of(fmt.Sprint("c", i)); got != 1 {
			t.Errorf("call %d ran %d times", i, got)
		}
	}
	if len(n.dead()) != 0 {
		t.Errorf("%d are parked", len(n.dead()))
	}
}

// One session is damaged, one has a claim that nobody can read, one is not there,
// and the disk is full for one. Thirty others are none the worse.
func TestABadSessionHoldsUpNoOther(t *testing.T) {
	p := newPlace(t, journaltest.NATSOptions{JetStream: true})
	for _, s := range []string{"damaged", "odd", "full"} {
		p.leave(s, journaltest.Note("one"), journaltest.Note("two"))
	}
	log := filepath.Join(p.dir, "sessions", "damaged", "000001.jsonl")
	b, err := os.ReadFile(log)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(log, []byte(strings.Replace(string(b), `"one"`, `"eno"`, 1)), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(p.dir, "sessions", "odd", "000002.jsonl"), []byte("{}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	var full, tried atomic.Bool
	store := p.store().WithoutLog().WithFaults(&lease.Faults{Write: func(f *os.File, b []byte) (int, error) {
		if full.Load() && strings.Contains(string(b), `"session":"full"`) && strings.Contains(string(b), `"type":"tool_call"`) {
			tried.Store(true)
			return 0, syscall.ENOSPC
		}
		return f.Write(b)
	}})
	n := p.queueNode([]executor.Tool{echo}, time.Minute, func(c *executor.Config) { c.Store = store })
	n.open("full")
	full.Store(true)
	good := make([]string, 30)
	for i := range good {
		good[i] = fmt.Sprint("good", i)
		n.open(good[i])
	}
	for i, s := range good {
		for _, bad := range []string{"damaged", "odd", "full", "nobody"} {
			n.enqueue(bad, fmt.Sprint("c", i), "echo", `{}`)
		}
		n.enqueue(s, "c1", "echo", `{}`)
	}
	for _, s := range good {
		eventually(t, "the call of "+s, func() bool { return p.result(s, "c1") != nil })
	}
	eventually(t, "the full disk", tried.Load)
	if p.result("full", "c0") != nil {
		t.Error("a call is recorded on a full disk")
	}
	full.Store(false)
	n.emptied()
	for i := range good {
		id := fmt.Sprint("c", i)
		wantKindOfResult(t, p.result("full", id), "")
	}
	kinds := map[string]int{}
	for _, m := range n.dead() {
		kinds[m.Subject+" "+m.Header.Get(executor.HeaderErrorKind)]++
	}
	for _, want := range []string{"steno.v1.dead.damaged tail_suspect", "steno.v1.dead.odd.parked session_writer_ambiguous", "steno.v1.dead.nobody not_found"} {
		if kinds[want] != len(good) {
			t.Errorf("%s: %d times", want, kinds[want])
		}
	}
	if len(kinds) != 3 {
		t.Errorf("dead and parked are %v", kinds)
	}
	// The files go back to what they can be verified as.
	n.stop()
	if err := errors.Join(os.WriteFile(log, b, 0o600), os.Remove(filepath.Join(p.dir, "sessions", "odd", "000002.jsonl"))); err != nil {
		t.Fatal(err)
	}
}

// What is too large is found before it is queued, and before anything runs.
func TestWhatIsTooLargeForTheQueueIsRefused(t *testing.T) {
	p := newPlace(t, journaltest.NATSOptions{JetStream: true})
	count := newCounter(false)
	tools := []executor.Tool{count.tool("count", false)}
	holder := p.node(tools) // has no queue
	holder.open("s1")
	n := p.queueNode(tools, time.Minute)
	args := func(size int) string { return `{"a":"` + strings.Repeat("a", size-len(`{"a":""}`)) + `"}` }
	for what, c := range map[string]struct {
		req  executor.Request
		kind schema.Kind
	}{
		"more than a message":      {request("c1", "count", args(1<<20)), schema.PayloadTooLarge},
		"no room for a reason":     {request("c1", "count", args(1<<20-1000)), schema.PayloadTooLarge},
		"a context that is a line": {executor.Request{CallID: "c1", Name: "count", Context: []byte(`"` + strings.Repeat("a", 980<<10) + `"`)}, schema.PayloadTooLarge},
		"no id":                    {request("a b", "count", `{}`), schema.InvalidArgs},
		"no name":                  {request("c1", "", `{}`), schema.InvalidArgs},
	} {
		if err := n.client.Enqueue(within(t), "s1", c.req); schema.KindOf(err) != c.kind {
			t.Errorf("%s: %v, want %s", what, err, c.kind)
		}
	}
	if m := p.executors(p.js()); m.Delivered.Consumer != 0 {
		t.Errorf("%d were queued", m.Delivered.Consumer)
	}
	// It fits into a message, and not with what says that it is passed on, or parked. The
	// queue takes it where its operator has it so.
	js := p.js()
	body := `{"call_id":"c2","name":"count","args":`
	large := []byte(body + args(1<<20-len(body)-1-16) + "}")
	if _, err := js.Publish(within(t), "steno.v1.queue.s1", large); err == nil {
		t.Error("what could not be parked whole is queued")
	}
	p.anySize(js)
	if _, err := js.Publish(within(t), "steno.v1.queue.s1", large); err != nil {
		t.Fatal(err)
	}
	n.emptied()
	if d := n.dead(); len(d) != 1 || d[0].Header.Get(executor.HeaderErrorKind) != string(schema.PayloadTooLarge) || d[0].Header.Get("Steno-Bytes") == "" {
		t.Errorf("dead are %d: %v", len(d), d)
	}
	n.enqueue("s1", "c3", "count", args(1<<20-9<<10))
	n.emptied()
	wantKindOfResult(t, p.result("s1", "c3"), "")
	if count.of("c1")+count.of("c2") != 0 || count.of("c3") != 1 {
		t.Error("something too large has run")
	}
}

// anySize makes the queue one whose operator takes messages of any size.
func (p *place) anySize(js jetstream.JetStream) {
	p.t.Helper()
	s, err := js.Stream(within(p.t), executor.StreamQueue)
	if err != nil {
		p.t.Fatal(err)
	}
	cfg := s.CachedInfo().Config
	cfg.MaxMsgSize = -1
	if _, err := js.UpdateStream(within(p.t), cfg); err != nil {
		p.t.Fatal(err)
	}
}

// A stream that an executor makes has limits. Those of its operator stay, and so
// do those of its consumer.
func TestLimitsOfTheQueue(t *testing.T) {
	p := newPlace(t, journaltest.NATSOptions{JetStream: true, MaxStore: 64 << 20})
	n := p.queueNode([]executor.Tool{echo}, time.Minute)
	n.open("s1")
	js := p.js()
	config := func() jetstream.StreamConfig {
		s, err := js.Stream(within(t), executor.StreamQueue)
		if err != nil {
			t.Fatal(err)
		}
		return s.CachedInfo().Config
	}
	cfg := config()
	if cfg.MaxMsgs != 1_000_000 || cfg.MaxBytes != -1 || cfg.Discard != jetstream.DiscardNew || cfg.MaxAge != 0 { // a disk that is smaller reserves nothing
		t.Errorf("the queue is made as %+v", cfg)
	}
	cfg.MaxBytes = 4 << 10
	if _, err := js.UpdateStream(within(t), cfg); err != nil {
		t.Fatal(err)
	}
	c := p.executors(js).Config
	c.MaxDeliver, c.AckWait = 7, 50*time.Second
	if _, err := js.UpdateConsumer(within(t), executor.StreamQueue, c); err != nil {
		t.Fatal(err)
	}
	n.stop()
	client := p.client()
	if err := client.Enqueue(within(t), "s1", request("c1", "echo", `{"a":"`+strings.Repeat("a", 3<<10)+`"}`)); err != nil {
		t.Fatal(err)
	}
	err := client.Enqueue(within(t), "s1", request("c2", "echo", `{"a":"`+strings.Repeat("a", 3<<10)+`"}`))
	if wantErr(t, err, schema.Backpressure); schema.AsError(err).Details["next"] == nil {
		t.Error("nothing says what to do")
	}
	n = p.queueNode([]executor.Tool{echo}, time.Minute)
	n.emptied()
	if err := js.DeleteStream(within(t), executor.StreamQueue); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the stream is made again, with its consumer", func() bool {
		_, err := js.Consumer(within(t), executor.StreamQueue, "STENO_EXECUTORS")
		return err == nil
	})
	if got := config().MaxBytes; got != 4<<10 {
		t.Errorf("the queue has now %d bytes", got)
	}
	n.enqueue("s1", "c3", "echo", `{}`)
	n.emptied()
	wantKindOfResult(t, p.result("s1", "c3"), "")
	other := placeOn(t, journaltest.StartNATS(t, journaltest.NATSOptions{JetStream: true}), t.TempDir())
	m := other.queueNode(nil, time.Minute)
	d, err := other.js().Stream(within(t), executor.StreamDead)
	if err != nil || d.CachedInfo().Config.MaxBytes != 1<<30 {
		t.Errorf("STENO_DEAD is made as %+v, %v", d.CachedInfo().Config, err)
	}
	// A consumer that executors cannot work with is refused.
	m.stop()
	if err := other.js().DeleteConsumer(within(t), executor.StreamQueue, "STENO_EXECUTORS"); err != nil {
		t.Fatal(err)
	}
	s, err := other.js().Stream(within(t), executor.StreamQueue)
	if err == nil {
		_, err = s.CreatePushConsumer(within(t), jetstream.ConsumerConfig{Durable: "STENO_EXECUTORS", AckPolicy: jetstream.AckExplicitPolicy, DeliverSubject: "somewhere"})
	}
	if err != nil {
		t.Fatal(err)
	}
	refused := other.idle(nil, withQueue)
	wantErr(t, refused.Start(within(t)), schema.InvalidConfig)
}
