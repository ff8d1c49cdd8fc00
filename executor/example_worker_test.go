package executor_test

import (
	"context"
	"log"
	"os"
	"os/signal"
	"syscall"

	"github.com/synadia-io/orbit.go/natscontext"

	"steno/executor"
)

// Greeting is what the model fills in.
type Greeting struct {
	Who string `json:"who" jsonschema:"who is greeted"`
}

// A worker is a process of its own, which hosts tools for the executors of a
// server.
func ExampleHostTools() {
	conn, _, err := natscontext.Connect(os.Args[1]) // nats/worker.json
	if err != nil {
		log.Fatal(err)
	}
	w, err := executor.HostTools(conn, executor.HostOptions{}, executor.Define("greet", "Greet somebody.",
		func(ctx context.Context, in Greeting) (string, error) { return "Hello, " + in.Who, nil }))
	if err != nil {
		log.Fatal(err)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	<-ctx.Done()
	if err := w.Stop(context.Background()); err != nil { // calls that run end first
		log.Fatal(err)
	}
}
