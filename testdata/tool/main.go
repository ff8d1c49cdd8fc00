// Command tool is an executor with a tool of its own beside the built-in ones.
// It serves the calls that come in over NATS until it is interrupted or told to end:
//
//	tool nats://127.0.0.1:4222 STORE OUTBOX
//
// Beside a serve it has a prefix of its own, and the user of that server:
//
//	NATS_USER=… NATS_PASSWORD=… tool nats://127.0.0.1:4222 STORE OUTBOX PREFIX
package main

import (
	"bytes"
	"context"
	"fmt"
	"log"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/nats-io/nats.go"

	"steno/executor"
	"steno/journal"
	"steno/lease"
)

// SendNotice is what the model fills in.
type SendNotice struct {
	To   string `json:"to" jsonschema:"who gets the notice"`
	Text string `json:"text" jsonschema:"one line"`
}

// Sent is what it gets.
type Sent struct {
	Notices int `json:"notices"` // how many there are now
}

func sendNotice(outbox string) executor.Tool {
	send := func(ctx context.Context, in SendNotice) (Sent, error) {
		f, err := os.OpenFile(outbox, os.O_CREATE|os.O_RDWR|os.O_APPEND, 0o600)
		if err != nil {
			return Sent{}, err // the model is told its class; the log of this program has all of it
		}
		defer f.Close()
		// The key stays the same whenever the call is repeated.
		if _, err := fmt.Fprintln(f, executor.InvocationOf(ctx).Key, in.To, in.Text); err != nil {
			return Sent{}, err
		}
		all, err := os.ReadFile(outbox)
		return Sent{bytes.Count(all, []byte("\n"))}, err
	}
	t := executor.Define("", "Send one notice. Use it once for each person.", send) // the name is send_notice
	t.Tier = 3                                                                      // what it does cannot be undone
	t.Timeout = 10 * time.Second
	return t
}

func main() {
	executor.Helper() // bash is among the tools, and a process of this program confines each command
	if len(os.Args) != 4 && len(os.Args) != 5 {
		log.Fatal("usage: tool NATS-URL STORE OUTBOX [PREFIX]")
	}
	prefix := "" // of the subjects; that is steno
	if len(os.Args) == 5 {
		prefix = os.Args[4]
	}
	if err := serve(os.Args[1], prefix, os.Args[2], os.Args[3]); err != nil {
		log.Fatal(err)
	}
}

func serve(url, prefix, dir, outbox string) error {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	conn, err := nats.Connect(url, nats.UserInfo(os.Getenv("NATS_USER"), os.Getenv("NATS_PASSWORD")))
	if err != nil {
		return err
	}
	defer conn.Close()
	store, err := journal.OpenFiles(dir, true)
	if err != nil {
		return err
	}
	defer store.Close()

	tools, err := executor.NewRegistry(append(executor.Builtin(), sendNotice(outbox))...)
	if err != nil {
		return err
	}
	defer tools.Close() // those that have something to close
	x, err := executor.New(executor.Config{Conn: conn, Prefix: prefix, Store: store, Tools: tools, Holder: lease.Self("tool"), Protect: []string{store.Dir()}})
	if err != nil {
		return err
	}
	if err := x.Start(ctx); err != nil {
		return err
	}
	fmt.Println("serving")
	<-ctx.Done()
	return x.Drain(context.Background()) // running calls end first
}
