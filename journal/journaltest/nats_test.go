package journaltest_test

import (
	"context"
	"strings"
	"testing"

	"github.com/nats-io/nats.go/jetstream"

	"steno/journal/journaltest"
)

func TestAServerKeepsItsStreamsOverARestart(t *testing.T) {
	ctx := context.Background()
	first := journaltest.StartNATS(t, journaltest.NATSOptions{Listen: true, JetStream: true})
	if !strings.HasPrefix(first.URL(), "nats://127.0.0.1:") {
		t.Fatalf("the server is at %s", first.URL())
	}
	js, err := jetstream.New(first.Connect())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := js.CreateStream(ctx, jetstream.StreamConfig{Name: "S", Subjects: []string{"s"}}); err != nil {
		t.Fatal(err)
	}
	if _, err := js.Publish(ctx, "s", []byte("kept")); err != nil {
		t.Fatal(err)
	}
	first.Stop()
	second := journaltest.StartNATS(t, journaltest.NATSOptions{JetStream: true, Dir: first.Dir()})
	if js, err = jetstream.New(second.Connect()); err != nil {
		t.Fatal(err)
	}
	s, err := js.Stream(ctx, "S")
	if err != nil {
		t.Fatal(err)
	}
	m, err := s.GetMsg(ctx, 1)
	if err != nil || string(m.Data) != "kept" {
		t.Fatalf("the message is gone: %v", err)
	}
}

func TestAServerWithoutAListenerServesItsOwnProcess(t *testing.T) {
	n := journaltest.StartNATS(t, journaltest.NATSOptions{})
	sub := n.Listen("a")
	if err := n.Connect().Publish("a", []byte("b")); err != nil {
		t.Fatal(err)
	}
	if m, err := sub.NextMsg(journaltest.Deadline); err != nil || string(m.Data) != "b" {
		t.Fatal(err)
	}
}
