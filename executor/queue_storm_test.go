package executor_test

import (
	"context"
	"fmt"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"steno/executor"
	"steno/journal"
	"steno/journal/journaltest"
	"steno/replay"
	"steno/schema"
)

// Calls are queued while their executors, processes of their own, are killed and
// their server is started anew, at any instant. Each call has one result in the
// end, and a tool that may not run twice has taken effect once at most: not at
// all, or with a result that says that nobody knows.
func TestQueuedCallsStorm(t *testing.T) {
	calls := journaltest.Amount(300, 1000, 10_000)
	const sessions = 10
	seed := journaltest.Seed(t)
	p := newPlace(t, journaltest.NATSOptions{JetStream: true, Listen: true})
	file := filepath.Join(t.TempDir(), "effects")
	c := child{Queue: true, Effects: file, AckWait: time.Second, RetryFirst: 10 * time.Millisecond, StopWait: 100 * time.Millisecond}
	executors := make([]*process, 3)
	for i := range executors {
		executors[i] = p.child(c)
	}
	client, err := executor.NewClient(p.remote(), "")
	if err != nil {
		t.Fatal(err)
	}
	session := func(i int) string { return fmt.Sprint("s", i%sessions) }
	for i := range sessions {
		open(t, client, session(i))
	}
	tools := []string{"effect", "again", "echo"}
	var queued atomic.Int64
	var work sync.WaitGroup
	for from := range 4 {
		work.Go(func() {
			for i := from; i < calls; i += 4 {
				for { // until the server has it; it may have it twice
					ctx, cancel := context.WithTimeout(t.Context(), time.Second)
					err := client.Enqueue(ctx, session(i), request(fmt.Sprint("c", i), tools[i%3], fmt.Sprintf(`{"pause":10,"n":%d}`, i)))
					if cancel(); err == nil {
						break
					}
					if t.Context().Err() != nil {
						return
					}
				}
				queued.Add(1)
			}
		})
	}
	kills, restarts := 0, 0
	rnd := journaltest.Rand(seed, "storm")
	// Something happens after each so many calls.
	every := max(20, calls/journaltest.Amount(8, 20, 150))
	for next := every; next < calls; next += every/2 + rnd.IntN(every) {
		eventually(t, fmt.Sprint(next, " calls are queued"), func() bool { return queued.Load() >= int64(next) })
		if rnd.IntN(4) == 0 {
			p.nats.Restart("")
			restarts++
			continue
		}
		i := rnd.IntN(len(executors))
		executors[i].Kill()
		executors[i] = p.child(c)
		kills++
	}
	work.Wait()
	results := finished(t, p, client, calls, sessions)
	counts := map[string]int{}
	for _, line := range effects(t, file) {
		counts[line]++
	}
	unknown, twice := 0, 0
	for i := range calls {
		id, tool := fmt.Sprint("c", i), tools[i%3]
		switch r := results[id]; {
		case r.results != 1:
			t.Errorf("call %s has %d results", id, r.results)
		case r.state == replay.Interrupted && tool != "again":
			if unknown++; counts[id] > 1 {
				t.Errorf("call %s is interrupted and took effect %d times", id, counts[id])
			}
		case r.state != replay.OK:
			t.Errorf("call %s of %s is %s", id, tool, r.state)
		case tool == "effect" && counts[id] != 1, tool == "again" && counts[id] < 1:
			t.Errorf("call %s of %s took effect %d times", id, tool, counts[id])
		}
		if tool == "again" && counts[id] > 1 {
			twice++
		}
	}
	js, err := jetstream.New(p.remote())
	if err != nil {
		t.Fatal(err)
	}
	cons, err := js.Consumer(within(t), executor.StreamQueue, "STENO_EXECUTORS")
	if err != nil {
		t.Fatal(err)
	}
	q, err := client.Queue(within(t))
	if err != nil || q.Dead+q.Parked != 0 {
		t.Errorf("dead are %d, parked %d, %v", q.Dead, q.Parked, err)
	}
	again := int(cons.CachedInfo().Delivered.Consumer) - calls
	journaltest.Tried("%d queued calls, %d kills of executors, %d restarts of the server, %d deliveries that came again: %d results, %d of them interrupted, %d effects repeated of tools that may be, %d dead letters, %d parked (seed %d)",
		calls, kills, restarts, max(0, again), len(results), unknown, twice, q.Dead, q.Parked, seed)
	for _, e := range executors {
		e.Kill()
	}
}

type finishedCall struct {
	state   replay.CallState
	results int
}

// finished waits until nothing is queued and every call has a result, and gives
// what the logs have of them.
func finished(t *testing.T, p *place, client *executor.Client, calls, sessions int) map[string]finishedCall {
	t.Helper()
	for i := range calls { // each in its own time: a long storm is worked off for minutes
		if _, err := client.Wait(within(t), fmt.Sprint("s", i%sessions), fmt.Sprint("c", i)); err != nil {
			t.Fatalf("call %d: %v", i, err)
		}
	}
	js, err := jetstream.New(p.remote())
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, "the queue to be empty", func() bool {
		s, err := js.Stream(within(t), executor.StreamQueue)
		return err == nil && s.CachedInfo().State.Msgs == 0
	})
	all := map[string]finishedCall{}
	for i := range sessions {
		l, err := journaltest.Read(p.store(), fmt.Sprint("s", i), journal.ScanOptions{})
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range l.Events {
			if e.Type == schema.TypeToolResult {
				id := field[string](t, e.Data, "call_id")
				all[id] = finishedCall{l.State.Call(id).State, all[id].results + 1}
			}
		}
	}
	return all
}
