package executor_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"steno/executor"
	"steno/journal"
	"steno/journal/journaltest"
	"steno/lease"
	"steno/schema"
)

// readiness is what the service's statistics say, the same at every endpoint.
func (n *node) readiness() (ready bool, kind schema.Kind) {
	n.t.Helper()
	b, err := ask(n.t, n.conn, "$SRV.STATS.steno", "")
	if err != nil {
		n.t.Fatal(err)
	}
	for i, e := range field[[]jsontext.Value](n.t, b.Data, "endpoints") {
		data := field[jsontext.Value](n.t, e, "data")
		r, k := field[bool](n.t, data, "ready"), field[schema.ErrorBody](n.t, data, "error").Kind
		if i > 0 && (r != ready || k != kind) {
			n.t.Errorf("endpoint %d says %s", i, data)
		}
		ready, kind = r, k
	}
	return ready, kind
}

func (n *node) logged(text string) int { return strings.Count(n.log.String(), text) }

// sessionFolders are all names among the sessions.
func (p *place) sessionFolders() (names []string) {
	p.t.Helper()
	list, err := os.ReadDir(filepath.Join(p.dir, "sessions"))
	if err != nil {
		p.t.Fatal(err)
	}
	for _, e := range list {
		names = append(names, e.Name())
	}
	return names
}

// waiting runs a call whose result finds the disk full, and returns once it
// waits for room.
func (n *node) waiting(held *counter) (answer chan executor.Answer, failed chan error) {
	n.t.Helper()
	answer, failed = make(chan executor.Answer, 1), make(chan error, 1)
	go func() {
		a, err := n.Do(context.Background(), "s1", request("c1", "held", `{}`))
		if err != nil {
			failed <- err
			return
		}
		answer <- a
	}()
	wait(n.t, "the tool", held.begun)
	n.faults.Fill(100)
	close(held.hold)
	eventually(n.t, "the wait for room", func() bool { return schema.KindOf(n.Ready()) == schema.SessionRecordUnavailable })
	return answer, failed
}

func TestAFullDiskIsWaitedForAndShows(t *testing.T) {
	p := newPlace(t, journaltest.NATSOptions{})
	held := newCounter(true)
	n := p.node([]executor.Tool{held.tool("held", false), echo})
	n.open("s1")
	n.open("s2")
	before := n.call("s1", "c0", "echo", `{}`)
	if ready, kind := n.readiness(); !ready || kind != "" || n.Ready() != nil {
		t.Errorf("at first the readiness is %t %s, %v", ready, kind, n.Ready())
	}
	elsewhere := placeOn(t, journaltest.StartNATS(t, journaltest.NATSOptions{}), t.TempDir())
	other := elsewhere.node([]executor.Tool{echo})
	other.open("s1")

	answer, failed := n.waiting(held)
	if ready, kind := n.readiness(); ready || kind != schema.SessionRecordUnavailable {
		t.Errorf("the readiness is %t %s", ready, kind)
	}
	// What is recorded is answered, and nobody else is kept from anything.
	if again := n.call("s1", "c0", "echo", `{}`); string(again.Data) != string(before.Data) {
		t.Errorf("an earlier call is answered %s", again.Data)
	}
	if a, err := n.client.Get(within(t), "s1"); err != nil || len(a.Open) != 1 {
		t.Errorf("the session is %+v, %v", a, err)
	}
	other.call("s1", "c1", "echo", `{}`)
	// No id is handed out for what cannot be kept.
	folders := p.sessionFolders()
	_, err := ask(t, n.conn, "steno.v1.session.open", `{}`)
	wantErr(t, err, schema.LogWriteFailed)
	if d := schema.AsError(err).Details; d["session"] != nil {
		t.Errorf("the refusal names session %v", d["session"])
	}
	if now := p.sessionFolders(); !slices.Equal(folders, now) {
		t.Errorf("the sessions were %v and are %v", folders, now)
	}
	n.faults.Empty()
	select {
	case a := <-answer:
		p.wantRecorded("s1", a)
	case err := <-failed:
		t.Fatal(err)
	}
	if held.of("c1") != 1 {
		t.Errorf("the tool ran %d times", held.of("c1"))
	}
	if e := p.read("s1").State.Epochs; len(e) != 2 || e[1].How != schema.HowRoll {
		t.Errorf("the epochs are %+v", e)
	}
	eventually(t, "the readiness", func() bool { ready, _ := n.readiness(); return ready && n.Ready() == nil })
	eventually(t, "a word about it", func() bool { return n.logged("calls can be recorded again") == 1 })
	if k := n.logged("calls cannot be recorded now"); k != 1 {
		t.Errorf("it was logged %d times that calls cannot be recorded", k)
	}
	n.call("s2", "c1", "echo", `{}`)
}

func TestADrainDoesNotWaitForRoom(t *testing.T) {
	p := newPlace(t, journaltest.NATSOptions{})
	held := newCounter(true)
	tools := []executor.Tool{held.tool("held", false)}
	n := p.node(tools)
	n.open("s1")
	_, failed := n.waiting(held)
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	n.drain.Do(func() { _ = n.Drain(ctx) }) // it cannot say that the session is released
	err := wait(t, "the call", failed)
	wantErr(t, err, schema.ToolResultRecordFailed)
	if got := schema.AsError(err).Details["outcome"]; got != "not_stored" {
		t.Errorf("the outcome is %v", got)
	}
	wantErr(t, n.Ready(), schema.Unavailable)
	p.wantLease("s1", lease.Stale)
	a := p.node(tools).call("s1", "c1", "held", `{}`)
	wantKindOfResult(t, a.Data, schema.Interrupted)
	p.wantRecorded("s1", a)
}

// A store that is moved while it is served is noticed before anything is
// acknowledged, and nothing is begun in it.
func TestAMovedStoreIsNotServed(t *testing.T) {
	p := newPlace(t, journaltest.NATSOptions{})
	count := newCounter(false)
	n := p.node([]executor.Tool{count.tool("count", false), echo})
	n.open("s1")
	n.call("s1", "c0", "echo", `{}`)
	moved := p.dir + "-moved"
	if err := os.Rename(p.dir, moved); err != nil {
		t.Fatal(err)
	}
	for _, id := range []string{"c1", "c2"} {
		_, err := n.Do(within(t), "s1", request(id, "count", `{}`))
		if k := schema.KindOf(err); k != schema.SessionWriterLost && k != schema.LogWriteFailed {
			t.Errorf("call %s: %v", id, err)
		}
	}
	_, err := n.Do(within(t), "s1", request("c2", "count", `{}`))
	wantErr(t, err, schema.LogWriteFailed)
	if count.of("c1") != 0 || count.of("c2") != 0 {
		t.Error("a tool has run")
	}
	eventually(t, "the next look", func() bool { return schema.KindOf(n.Ready()) == schema.SessionRecordUnavailable })
	if list, err := filepath.Glob(filepath.Join(moved, "sessions", "s1", "*")); err != nil || len(list) != 1 {
		t.Errorf("in the moved store are %v, %v", list, err)
	}
	if err := os.Rename(moved, p.dir); err != nil {
		t.Fatal(err)
	}
	n.call("s1", "c2", "count", `{}`)
	eventually(t, "the readiness", func() bool { return n.Ready() == nil })
}

// standing is a store whose disk may not answer a look at it, or be broken.
type standing struct {
	journal.Store
	mu     sync.Mutex
	hold   chan struct{} // a look waits for it, if it is not nil
	broken bool
	looks  []time.Time
}

func (s *standing) Writable(ctx context.Context) error {
	s.mu.Lock()
	s.looks = append(s.looks, time.Now())
	hold, broken := s.hold, s.broken
	s.mu.Unlock()
	if hold != nil {
		<-hold
	}
	if broken {
		return schema.Errorf(schema.LogWriteFailed, "the disk is broken")
	}
	return s.Store.Writable(ctx)
}

func (s *standing) set(hold chan struct{}, broken bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.hold, s.broken = hold, broken
}

func (p *place) standingNode(tools ...executor.Tool) (*node, *standing) {
	s := &standing{}
	return p.node(tools, func(c *executor.Config) { s.Store, c.Store = c.Store, s }), s
}

// A store that does not answer keeps nobody waiting who asks how things are, nor
// other requests, nor the end.
func TestStatisticsDoNotWaitForTheStore(t *testing.T) {
	p := newPlace(t, journaltest.NATSOptions{})
	n, store := p.standingNode(echo)
	n.open("s1")
	hold := make(chan struct{})
	defer close(hold)
	store.set(hold, false)
	quick := func(what string, do func()) {
		t.Helper()
		began := time.Now()
		do()
		if took := time.Since(began); took > 10*time.Second { // thirteen endpoints of two seconds each are more
			t.Errorf("%s took %s", what, took)
		}
	}
	eventually(t, "a word that the store does not answer", func() (unready bool) {
		quick("the statistics", func() {
			ready, kind := n.readiness()
			unready = !ready && kind == schema.SessionRecordUnavailable
		})
		for range 2 {
			quick("a look at the lease", func() {
				if _, err := ask(t, n.conn, "steno.v1.lease.get", `{"session":"s1"}`); err != nil {
					t.Error(err)
				}
			})
		}
		return unready
	})
	quick("the readiness", func() { wantErr(t, n.Ready(), schema.SessionRecordUnavailable) })
	n.call("s1", "c1", "echo", `{}`) // the log itself can be written
	quick("the drain", n.stop)
}

// However much is asked and recorded meanwhile, the store is tried once a
// second, and the log hears when it has recovered.
func TestTheStoreIsTriedOnceASecond(t *testing.T) {
	p := newPlace(t, journaltest.NATSOptions{})
	n, store := p.standingNode(echo)
	n.open("s1")
	store.set(nil, true)
	eventually(t, "a look at the broken disk", func() bool { return schema.KindOf(n.Ready()) == schema.SessionRecordUnavailable })
	for i := range 100 {
		n.call("s1", fmt.Sprint("c", i), "echo", `{}`)
	}
	store.set(nil, false)
	n.call("s1", "c", "echo", `{}`)
	eventually(t, "a word that it has recovered", func() bool { return n.logged("calls can be recorded again") == 1 })
	store.mu.Lock()
	defer store.mu.Unlock()
	for i := 1; i < len(store.looks); i++ {
		if d := store.looks[i].Sub(store.looks[i-1]); d < time.Second/2 { // each may have begun a little late
			t.Errorf("look %d came %s after the one before", i, d)
		}
	}
}

// An end that waits for room has not ended the session: who calls meanwhile is
// told to wait, so the queue keeps its call.
func TestASessionThatIsEndingIsNotEnded(t *testing.T) {
	p := newPlace(t, journaltest.NATSOptions{JetStream: true})
	n := p.queueNode([]executor.Tool{echo}, time.Minute)
	n.open("s1")
	n.call("s1", "c0", "echo", `{}`)
	n.faults.Fill(0)
	ended := make(chan error, 1)
	go func() {
		_, err := n.client.End(within(t), executor.EndRequest{Session: "s1", Outcome: "completed"})
		ended <- err
	}()
	eventually(t, "the wait for room", func() bool { return schema.KindOf(n.Ready()) == schema.SessionRecordUnavailable })
	n.enqueue("s1", "c1", "echo", `{}`)
	_, err := n.client.Call(within(t), "s1", request("c2", "echo", `{}`))
	wantErr(t, err, schema.Backpressure)
	eventually(t, "the delivery", func() bool { return pendingAcks(t, n.conn) == 1 })
	if len(n.dead()) != 0 {
		t.Error("a call of a session that has not ended is a dead letter")
	}
	n.faults.Empty()
	if err := wait(t, "the end", ended); err != nil {
		t.Fatal(err)
	}
	_, err = n.client.Call(within(t), "s1", request("c2", "echo", `{}`))
	wantErr(t, err, schema.SessionEnded)
	eventually(t, "the dead letter", func() bool { return len(n.dead()) == 1 })
}

// A full disk fills the room for what writes, and nothing else.
func TestAFullDiskKeepsNobodyFromLooking(t *testing.T) {
	const sessions, each = 8, 128 // all the room there is
	p := newPlace(t, journaltest.NATSOptions{})
	held := newCounter(true)
	n := p.node([]executor.Tool{echo, held.tool("held", false)}, func(c *executor.Config) { c.MaxCalls = 2 })
	before := map[string]executor.Answer{}
	for s := range sessions + 1 {
		id := fmt.Sprint("s", s)
		n.open(id)
		before[id] = n.call(id, "c0", "echo", `{}`)
	}
	var calls, appends sync.WaitGroup
	for c := range 2 {
		calls.Go(func() { n.call("s0", fmt.Sprint("w", c), "held", `{}`) })
		wait(t, "the tool", held.begun)
	}
	n.faults.Fill(0)
	close(held.hold)
	note := func(session string) error {
		_, err := n.client.Append(within(t), session, executor.AppendEvent{Type: schema.TypeNote, Data: []byte(`{}`)})
		return err
	}
	var refused atomic.Int32
	for s := range sessions {
		for range each + 1 {
			appends.Go(func() {
				err := note(fmt.Sprint("s", s))
				if schema.KindOf(err) == schema.Backpressure {
					refused.Add(1)
				} else if err != nil {
					t.Error(err)
				}
			})
		}
		eventually(t, "the append that finds no room", func() bool { return refused.Load() == int32(s+1) })
	}
	wantErr(t, note("s8"), schema.Backpressure)

	for id, a := range before { // what is recorded is answered, at each door
		if again := n.call(id, "c0", "echo", `{}`); string(again.Data) != string(a.Data) {
			t.Errorf("the call of %s is answered %s", id, again.Data)
		}
		if again, err := n.Do(within(t), id, request("c0", "echo", `{}`)); err != nil || string(again.Data) != string(a.Data) {
			t.Errorf("the call of %s is answered %s, %v", id, again.Data, err)
		}
	}
	_, err := n.client.Call(within(t), "s1", request("c0", "echo", `{"other":1}`))
	wantErr(t, err, schema.CallConflict)
	_, err = n.client.Call(within(t), "s1", request("new", "echo", `{}`))
	wantErr(t, err, schema.Backpressure)
	_, err = n.client.Call(within(t), "nobody", request("c0", "echo", `{}`))
	wantErr(t, err, schema.Backpressure)
	for subject, body := range map[string]string{"session.get": `{"session":"s1"}`, "session.list": `{}`, "lease.get": `{"session":"s1"}`, "lease.list": `{}`} {
		if _, err := ask(t, n.conn, "steno.v1."+subject, body); err != nil {
			t.Errorf("%s: %v", subject, err)
		}
	}
	_, err = n.client.Release(within(t), n.holder, executor.ReleaseRequest{Session: "s1"})
	if wantErr(t, err, schema.Backpressure); schema.AsError(err).Details["session"] != "s1" { // it came as far as that
		t.Errorf("a release is refused with %v", err)
	}
	n.faults.Empty()
	appends.Wait()
	calls.Wait()
	for s := range sessions {
		if l := p.read(fmt.Sprint("s", s)); l.State.Notes != each {
			t.Errorf("session s%d has %d notes", s, l.State.Notes)
		}
	}
}
