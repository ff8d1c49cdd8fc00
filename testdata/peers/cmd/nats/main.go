// Command nats measures what can be built on an embedded nats-server: requests
// that nobody records, JetStream that syncs every message, and a request door
// that records what steno's contract asks for and does nothing else.
package main

import (
	"context"
	"errors"
	"os"
	"strconv"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"peers/harness"
)

const wait = 20 * time.Second

func main() {
	measure("core request/reply inproc", func(s *server.Server, name, _ string) {
		client, worker := dial(s), dial(s)
		_, err := worker.QueueSubscribe("tool", "workers", func(m *nats.Msg) {
			go func() { _ = m.Respond(harness.Tool(m.Data)) }()
		})
		harness.Must(err)
		harness.Must(worker.Flush())
		harness.All(name, func(caller, n int) error {
			_, err := client.Request("tool", harness.Args(caller, n), wait)
			return err
		})
	})
	measure("JetStream sync=always inproc", jetStream)
	measure("contract+core inproc", func(s *server.Server, name, dir string) {
		client, worker := dial(s), dial(s)
		stop := contractDoor(worker, dir)
		defer stop()
		harness.All(name, func(caller, n int) error {
			id := strconv.Itoa(caller)
			_, err := client.RequestMsg(&nats.Msg{Subject: "tool", Data: harness.Args(caller, n),
				Header: nats.Header{"C": {"c-" + id + "-" + strconv.Itoa(n)}, "S": {id}}}, wait)
			return err
		})
	})
}

func measure(name string, run func(s *server.Server, name, dir string)) {
	if !harness.Want(name) {
		return
	}
	dir := harness.Dir()
	defer os.RemoveAll(dir)
	s, err := server.NewServer(&server.Options{NoLog: true, NoSigs: true, DontListen: true, JetStream: true, StoreDir: dir,
		SyncAlways: true, SyncInterval: 2 * time.Minute, JetStreamMaxStore: 8 << 30, JetStreamMaxMemory: 1 << 30})
	harness.Must(err)
	s.Start()
	if !s.ReadyForConnections(10 * time.Second) {
		harness.Must(errors.New("the server does not start"))
	}
	run(s, name, dir)
	for _, c := range dialled {
		c.Close()
	}
	dialled = nil
	s.Shutdown()
	s.WaitForShutdown()
}

var dialled []*nats.Conn

func dial(s *server.Server) *nats.Conn {
	c, err := nats.Connect("", nats.InProcessServer(s), nats.MaxReconnects(0))
	harness.Must(err)
	dialled = append(dialled, c)
	return c
}

// jetStream is the way over two streams. The caller publishes the call to CALLS
// and waits for the acknowledgement; a worker gets it, publishes the result to
// RESULTS and waits for that acknowledgement, then acknowledges the call and
// answers: both are recorded before the caller has the result.
func jetStream(s *server.Server, name, _ string) {
	ctx := context.Background()
	client, worker := dial(s), dial(s)
	js, err := jetstream.New(client)
	harness.Must(err)
	workerJS, err := jetstream.New(worker)
	harness.Must(err)
	stream := func(name, subject string, retention jetstream.RetentionPolicy) {
		_, err := js.CreateStream(ctx, jetstream.StreamConfig{Name: name, Subjects: []string{subject}, Retention: retention, MaxBytes: 2 << 30})
		harness.Must(err)
	}
	stream("CALLS", "calls.>", jetstream.WorkQueuePolicy)
	stream("RESULTS", "results.>", jetstream.LimitsPolicy)
	cons, err := workerJS.CreateConsumer(ctx, "CALLS", jetstream.ConsumerConfig{Durable: "workers", AckPolicy: jetstream.AckExplicitPolicy, MaxAckPending: 4096})
	harness.Must(err)
	consuming, err := cons.Consume(func(m jetstream.Msg) {
		go func() {
			result := harness.Tool(m.Data())
			if _, err := workerJS.Publish(ctx, "results."+m.Headers().Get("C"), result); err == nil {
				_ = m.Ack()
				_ = worker.Publish(m.Headers().Get("R"), result)
			}
		}()
	}, jetstream.PullMaxMessages(512))
	harness.Must(err)
	defer consuming.Stop()
	inbox := client.NewInbox()
	answers := make([]chan struct{}, 256)
	for i := range answers {
		answers[i] = make(chan struct{}, 1)
	}
	_, err = client.Subscribe(inbox+".*", func(m *nats.Msg) {
		if i, err := strconv.Atoi(m.Subject[len(inbox)+1:]); err == nil {
			answers[i] <- struct{}{}
		}
	})
	harness.Must(err)
	harness.Must(client.Flush())
	harness.All(name, func(caller, n int) error {
		id := strconv.Itoa(caller)
		_, err := js.PublishMsg(ctx, &nats.Msg{Subject: "calls.echo", Data: harness.Args(caller, n),
			Header: nats.Header{"C": {"c-" + id + "-" + strconv.Itoa(n)}, "R": {inbox + "." + id}}})
		if err != nil {
			return err
		}
		select {
		case <-answers[caller]:
			return nil
		case <-time.After(wait):
			return errors.New("no result")
		}
	})
}
