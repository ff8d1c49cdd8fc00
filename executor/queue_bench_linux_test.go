package executor_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"steno/executor"
	"steno/journal"
	"steno/journal/journaltest"
	"steno/lease"
)

// BenchmarkQueue is a call through the work queue, on a server in this process
// that syncs each message: published and acknowledged, recorded, run, and its
// result heard of as an event, with 64 callers on sessions of their own. Beside it
// stands the same way over two streams of JetStream alone, call, worker and
// result, which records no more than these. They take turns, and ratio is what
// the queue door makes of it.
func BenchmarkQueue(b *testing.B) {
	const callers = 64
	steno, stop := queueCaller(b, callers)
	defer stop()
	raw, stopRaw := rawCaller(b, callers)
	defer stopRaw()
	turn := func(call func(caller, n int) error, base, n int) time.Duration {
		began := time.Now()
		var next atomic.Int64
		var work sync.WaitGroup
		for i := range callers {
			work.Go(func() {
				for k := next.Add(1); k <= int64(n); k = next.Add(1) {
					if err := call(i, base+int(k)); err != nil {
						b.Error(err)
						return
					}
				}
			})
		}
		work.Wait()
		return time.Since(began)
	}
	turn(steno, 0, callers)
	turn(raw, 0, callers)
	const turns = 10
	var ours, theirs time.Duration
	n, base := max(1, b.N/turns), callers
	b.ResetTimer()
	for i := range turns {
		for k := range 2 {
			if (i+k)%2 == 0 {
				ours += turn(steno, base, n)
			} else {
				b.StopTimer()
				theirs += turn(raw, base, n)
				b.StartTimer()
			}
		}
		base += n
	}
	b.StopTimer()
	rate := func(d time.Duration) float64 { return float64(turns*n) / d.Seconds() }
	b.ReportMetric(rate(ours), "ops/s")
	b.ReportMetric(rate(theirs), "jetstream-ops/s")
	b.ReportMetric(rate(ours)/rate(theirs), "ratio")
}

const benchWait = 20 * time.Second

// queueCaller makes calls through the queue.
func queueCaller(b *testing.B, callers int) (call func(caller, n int) error, stop func()) {
	b.Helper()
	n := journaltest.StartNATS(b, journaltest.NATSOptions{JetStream: true})
	store, err := journal.OpenFiles(b.TempDir(), true)
	if err != nil {
		b.Fatal(err)
	}
	output := strings.Repeat("r", 1<<10)
	registry, err := executor.NewRegistry(toolOf("trivial", func(context.Context, *executor.Invocation) (executor.Result, error) {
		return executor.Result{OK: true, Output: output}, nil
	}))
	if err != nil {
		b.Fatal(err)
	}
	x, err := executor.New(executor.Config{Conn: n.Connect(), Store: store, Tools: registry, Holder: lease.Self("bench"), Queue: true, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		b.Fatal(err)
	}
	ctx := context.Background()
	if err := x.Start(ctx); err != nil {
		b.Fatal(err)
	}
	conn := n.Connect()
	client, err := executor.NewClient(conn, "")
	if err != nil {
		b.Fatal(err)
	}
	done := make([]chan struct{}, callers)
	for i := range done {
		done[i] = make(chan struct{}, 1)
		open(b, client, fmt.Sprint("s", i))
	}
	_, err = conn.Subscribe("steno.v1.event.*.tool_result", func(m *nats.Msg) {
		if i, err := strconv.Atoi(strings.Split(m.Subject, ".")[3][1:]); err == nil {
			done[i] <- struct{}{}
		}
	})
	if err == nil {
		err = conn.Flush()
	}
	if err != nil {
		b.Fatal(err)
	}
	args := `{"text":"` + strings.Repeat("a", 180-len(`{"text":""}`)) + `%020d"}`
	return func(caller, n int) error {
			if err := client.Enqueue(ctx, fmt.Sprint("s", caller), request(fmt.Sprint("c", n), "trivial", fmt.Sprintf(args, n))); err != nil {
				return err
			}
			select {
			case <-done[caller]:
				return nil
			case <-time.After(benchWait):
				return errors.New("no result")
			}
		}, func() {
			if err := errors.Join(x.Drain(ctx), store.Close()); err != nil {
				b.Error(err)
			}
		}
}

// rawCaller does the same over two streams.
func rawCaller(b *testing.B, callers int) (call func(caller, n int) error, stop func()) {
	b.Helper()
	n := journaltest.StartNATS(b, journaltest.NATSOptions{JetStream: true})
	conn, worker := n.Connect(), n.Connect()
	ctx := context.Background()
	must := func(err error) {
		b.Helper()
		if err != nil {
			b.Fatal(err)
		}
	}
	js, err := jetstream.New(conn)
	must(err)
	workerJS, err := jetstream.New(worker)
	must(err)
	_, err = js.CreateStream(ctx, jetstream.StreamConfig{Name: "CALLS", Subjects: []string{"calls.>"}, Retention: jetstream.WorkQueuePolicy})
	must(err)
	_, err = js.CreateStream(ctx, jetstream.StreamConfig{Name: "RESULTS", Subjects: []string{"results.>"}})
	must(err)
	c, err := workerJS.CreateConsumer(ctx, "CALLS", jetstream.ConsumerConfig{Durable: "workers", AckPolicy: jetstream.AckExplicitPolicy, MaxAckPending: 4096})
	must(err)
	result := []byte(strings.Repeat("r", 1<<10))
	consuming, err := c.Consume(func(m jetstream.Msg) {
		go func() {
			if _, err := workerJS.Publish(ctx, "results."+m.Headers().Get("C"), result); err == nil {
				_ = m.Ack() // else it comes again
				_ = worker.Publish(m.Headers().Get("R"), result)
			}
		}()
	}, jetstream.PullMaxMessages(512))
	must(err)
	inbox := conn.NewInbox()
	done := make([]chan struct{}, callers)
	for i := range done {
		done[i] = make(chan struct{}, 1)
	}
	_, err = conn.Subscribe(inbox+".*", func(m *nats.Msg) {
		if i, err := strconv.Atoi(m.Subject[len(inbox)+1:]); err == nil {
			done[i] <- struct{}{}
		}
	})
	must(err)
	must(conn.Flush())
	payload := []byte(strings.Repeat("a", 200))
	return func(caller, n int) error {
		_, err := js.PublishMsg(ctx, &nats.Msg{Subject: "calls.echo", Data: payload,
			Header: nats.Header{"C": {fmt.Sprint("c-", caller, "-", n)}, "R": {inbox + "." + strconv.Itoa(caller)}}})
		if err != nil {
			return err
		}
		select {
		case <-done[caller]:
			return nil
		case <-time.After(benchWait):
			return errors.New("no result")
		}
	}, consuming.Stop
}
