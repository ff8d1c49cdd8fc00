package executor_test

import (
	"context"
	"fmt"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	"steno/executor"
	"steno/journal/journaltest"
	"steno/lease"
	"steno/schema"
)

// wantLease checks the state of a session's lease.
func (p *place) wantLease(session string, want lease.State) {
	p.t.Helper()
	if st, err := p.store().Lease(context.Background(), session); err != nil || st.State != want {
		p.t.Errorf("the lease of %s is %s, %v; want %s", session, st.State, err, want)
	}
}

func TestSessionsThatNobodyUsesAreReleasedAboveTheLimit(t *testing.T) {
	p := newPlace(t, journaltest.NATSOptions{})
	held := newCounter(true)
	n := p.node([]executor.Tool{echo, held.tool("held", false)}, func(c *executor.Config) { c.Sessions = 3 })
	n.open("busy") // the least recently used, but used
	done := make(chan executor.Answer, 1)
	go func() { done <- n.call("busy", "c1", "held", `{}`) }()
	wait(t, "the tool", held.begun)
	// An answer may be there a moment before its session is idle.
	idle := func(id string) {
		eventually(t, id+" idle", func() bool { return executor.Idle(n.Executor, id) })
	}
	for i := range 5 {
		n.open(fmt.Sprint("s", i))
		idle(fmt.Sprint("s", i))
		n.call("s0", fmt.Sprint("c", i), "echo", `{}`) // s0 is used again and again
		idle("s0")
	}
	store := p.store()
	state := func(id string) lease.State {
		st, err := store.Lease(context.Background(), id)
		if err != nil {
			t.Fatal(err)
		}
		return st.State
	}
	eventually(t, "the release of three sessions", func() bool {
		return state("s1") == lease.Available && state("s2") == lease.Available && state("s3") == lease.Available
	})
	for _, id := range []string{"busy", "s0", "s4"} {
		p.wantLease(id, lease.Active)
	}
	close(held.hold)
	p.wantRecorded("busy", wait(t, "the answer", done))
	n.call("s1", "c1", "echo", `{}`)
	if e := p.read("s1").State.Epochs; len(e) != 2 || !e[0].Released || e[1].How != schema.HowResumed {
		t.Errorf("the epochs of s1 are %+v", e)
	}
}

func TestAReleaseIsNoErrorOfACall(t *testing.T) {
	p := newPlace(t, journaltest.NATSOptions{})
	n := p.node([]executor.Tool{echo}, func(c *executor.Config) { c.Sessions = 2 })
	for i := range 6 {
		n.open(fmt.Sprint("s", i))
	}
	var callers sync.WaitGroup
	for i := range 6 {
		callers.Go(func() {
			for k := range 15 {
				session, id := fmt.Sprint("s", (i+k)%6), fmt.Sprintf("c%d-%d", i, k)
				if _, err := n.Do(within(t), session, request(id, "echo", `{}`)); err != nil {
					t.Errorf("call %s: %v", id, err)
				}
			}
		})
	}
	callers.Wait()
	calls := 0
	for i := range 6 {
		st := p.read(fmt.Sprint("s", i)).State
		calls += len(st.Calls)
		for k, e := range st.Epochs {
			if k > 0 && e.How != schema.HowResumed {
				t.Errorf("epoch %d of s%d was not released: %+v", k, i, st.Epochs)
			}
		}
	}
	if calls != 6*15 {
		t.Errorf("%d calls are recorded", calls)
	}
}

func TestADrainLetsRunningCallsFinish(t *testing.T) {
	p := newPlace(t, journaltest.NATSOptions{Listen: true, JetStream: true})
	dir := t.TempDir()
	file, until := filepath.Join(dir, "effects"), filepath.Join(dir, "until")
	c := child{Effects: file, Queue: true}
	a := p.child(c)
	client := p.client()
	open(t, client, "s1")
	open(t, client, "s2")
	answers := make(chan executor.Answer, 8)
	for i := range 8 { // as many as run side by side
		go func() {
			answer, err := client.Call(within(t), "s1", request(fmt.Sprint("c", i), "effect", `{"until":"`+until+`"}`))
			if err != nil {
				t.Error(err)
			}
			answers <- answer
		}()
	}
	a.WaitFor("effect", 8)
	// These wait for a slot, one at each door.
	conn := p.nats.Connect()
	waits, err := conn.SubscribeSync(conn.NewInbox())
	if err != nil {
		t.Fatal(err)
	}
	if err := conn.PublishRequest("steno.v1.call.s1", waits.Subject, []byte(`{"call_id":"w1","name":"effect"}`)); err != nil {
		t.Fatal(err)
	}
	if err := client.Enqueue(within(t), "s1", request("w2", "effect", `{}`)); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the delivery", func() bool { return pendingAcks(t, conn) == 1 })
	if err := syscall.Kill(a.PID(), syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	// They are handed back at once, while the others still run.
	m, err := waits.NextMsg(journaltest.Deadline)
	if err != nil || m.Header.Get("Steno-Error-Kind") != string(schema.Unavailable) {
		t.Fatalf("the call that waits is answered %v, %v", m, err)
	}
	b := p.child(c)
	// The queue gives the one that it had to the other executor, which cannot
	// take the session yet.
	touch(t, until)
	for range 8 {
		p.wantRecorded("s1", wait(t, "a running call", answers))
	}
	a.WaitFor("drained", 1)
	if _, err := a.Wait(); err != nil {
		t.Errorf("the drained executor ended with %v", err)
	}
	eventually(t, "the delivery that was handed back", func() bool { return inStream(t, conn, executor.StreamQueue) == 0 })
	if p.result("s1", "w2") == nil || p.result("s1", "w1") != nil {
		t.Error("the queued call has no result, or the refused one has")
	}
	p.wantLease("s2", lease.Available)
	l := p.read("s1")
	if !l.State.Epochs[0].Released || l.State.Epochs[1].How != schema.HowResumed || len(l.State.Open()) != 0 {
		t.Errorf("the session has the epochs %+v", l.State.Epochs)
	}
	for _, call := range l.State.Calls {
		if n := countEffects(t, file, call.ID); n != 1 {
			t.Errorf("call %s took effect %d times", call.ID, n)
		}
	}
	if b.holder == a.holder {
		t.Error("two processes are one holder")
	}
}

func TestADrainStopsWhatOutlivesItsGrace(t *testing.T) {
	p := newPlace(t, journaltest.NATSOptions{Listen: true})
	file := filepath.Join(t.TempDir(), "effects")
	a := p.child(child{Effects: file, Grace: 50 * time.Millisecond})
	client := p.client()
	open(t, client, "s1")
	type outcome struct {
		tool   string
		answer executor.Answer
		err    error
	}
	outcomes := make(chan outcome, 2)
	for _, tool := range []string{"effect", "again"} {
		go func() {
			answer, err := client.Call(within(t), "s1", request(tool, tool, `{"wait":true}`))
			outcomes <- outcome{tool, answer, err}
		}()
	}
	a.WaitFor("effect", 2)
	if err := syscall.Kill(a.PID(), syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	a.WaitFor("drained", 1)
	if _, err := a.Wait(); err != nil {
		t.Errorf("the drained executor ended with %v", err)
	}
	// The outcome is open, and is neither a result nor a failure.
	l := p.read("s1")
	if open := l.State.Open(); len(open) != 2 || !l.State.Epochs[0].Released {
		t.Errorf("%d calls are open, the epochs %+v", len(open), l.State.Epochs)
	}
	p.wantLease("s1", lease.Available)
	p.child(child{Effects: file})
	for range 2 {
		o := wait(t, "an answer", outcomes)
		if o.err != nil {
			t.Fatal(o.err)
		}
		p.wantRecorded("s1", o.answer)
		want, effects := schema.Interrupted, 1
		if o.tool == "again" {
			want, effects = "", 2
		}
		wantKindOfResult(t, o.answer.Data, want)
		if n := countEffects(t, file, o.tool); n != effects {
			t.Errorf("call %s took effect %d times", o.tool, n)
		}
	}
}

// A tool that does not stop cannot keep the process. Its session is not
// released in good order, since it may still be at work.
func TestADrainGivesUpOnAToolThatDoesNotStop(t *testing.T) {
	p := newPlace(t, journaltest.NATSOptions{})
	begun, end := make(chan struct{}), make(chan struct{})
	n := p.idle([]executor.Tool{echo, toolOf("deaf", func(context.Context, *executor.Invocation) (executor.Result, error) {
		close(begun)
		<-end
		return executor.Result{OK: true}, nil
	})})
	executor.SetStopWait(n.Executor, 20*time.Millisecond)
	if err := n.Start(context.Background()); err != nil {
		t.Fatal(err)
	}
	n.open("s1")
	n.open("s2")
	done := make(chan error, 1)
	go func() {
		_, err := n.Do(context.Background(), "s1", request("c1", "deaf", `{}`))
		done <- err
	}()
	wait(t, "the tool", begun)
	n.drain.Do(func() {}) // not by the cleanup
	ctx, cancel := context.WithTimeout(context.Background(), time.Millisecond)
	defer cancel()
	wantErr(t, n.Drain(ctx), schema.Detached)
	p.wantLease("s1", lease.Stale)
	p.wantLease("s2", lease.Available)
	close(end)
	wantErr(t, wait(t, "the end of the tool", done), schema.SessionWriterLost)
	if p.result("s1", "c1") != nil {
		t.Error("a result was recorded after the session was given back")
	}
	if err := n.Drain(within(t)); err != nil {
		t.Error(err)
	}
}

func TestNothingIsTakenWhileDraining(t *testing.T) {
	p := newPlace(t, journaltest.NATSOptions{})
	n := p.node([]executor.Tool{echo})
	n.open("s1")
	n.stop()
	if err := n.Drain(within(t)); err == nil { // the connection is closed
		t.Error("a drain without a connection says nothing")
	}
	_, err := n.Do(within(t), "s1", request("c1", "echo", `{}`))
	wantErr(t, err, schema.Unavailable)
	p.wantLease("s1", lease.Available)
}
