// Command agent is an agent, its tools and an executor for them in one process,
// which may be killed at any instant and is then started again:
//
//	agent nats://127.0.0.1:4222 STORE FOLDER SESSION
//
// The agent itself is in agent.go. Its model is a script. Its tools show the
// three ways to be safe: one reads only, one knows the key of what it did, and
// one can tell whether it did it.
package main

import (
	"bytes"
	"context"
	"fmt"
	"log"
	"os"
	"path/filepath"

	"github.com/nats-io/nats.go"

	"steno/executor"
	"steno/journal"
	"steno/lease"
)

// model says what comes next, of which it needs to know how far it is. An empty
// text is the end.
func model(turns, messages int) (typ, said string) {
	call := func(id, name, args string) string {
		return fmt.Sprintf(`{"type":"function","id":%q,"function":{"name":%q,"arguments":%q}}`, id, name, args)
	}
	say := func(text string, calls ...string) string {
		out := fmt.Sprintf(`{"content":[{"type":"text","text":%q}`, text)
		for _, c := range calls {
			out += "," + c
		}
		return out + "]}"
	}
	if messages == 0 {
		return "user_message", `{"text":"Note two ships and report how many there are."}`
	}
	return "assistant_message", append([]string{
		say("I note both.", call("note-1", "note", `{"text":"Aurora"}`), call("note-2", "note", `{"text":"Borealis"}`)),
		say("I count them.", call("count", "count", `{}`)),
		say("I report.", call("report", "report", `{"text":"two ships"}`)),
		say("Reported."),
	}, "")[turns]
}

type text struct {
	Text string `json:"text"`
}

func tools(dir string) []executor.Tool {
	notes := filepath.Join(dir, "notes")
	note := executor.Define("note", "Note a ship.", func(ctx context.Context, in text) (string, error) {
		key := executor.InvocationOf(ctx).Key
		all, err := os.ReadFile(notes)
		if err != nil && !os.IsNotExist(err) {
			return "", err
		}
		if bytes.Contains(all, []byte(key+" ")) { // an attempt before this one did it
			return "noted", nil
		}
		f, err := os.OpenFile(notes, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
		if err != nil {
			return "", err
		}
		defer f.Close()
		_, err = fmt.Fprintln(f, key, in.Text)
		return "noted", err
	})
	note.Repeatable, note.Exclusive = true, true

	count := executor.Define("count", "Count the ships.", func(ctx context.Context, _ struct{}) (int, error) {
		all, err := os.ReadFile(notes)
		return bytes.Count(all, []byte("\n")), err
	})
	count.ReadOnly, count.Repeatable = true, true

	// Twice would be wrong, so nothing says that it may run again.
	file := func(key string) string { return filepath.Join(dir, "report-"+key) }
	report := executor.Define("report", "Report to the harbour office.", func(ctx context.Context, in text) (string, error) {
		name := file(executor.InvocationOf(ctx).Key)
		if err := os.WriteFile(name+".new", []byte(in.Text), 0o600); err != nil {
			return "", err
		}
		return "reported", os.Link(name+".new", name) // whole or not at all, and never over another
	})
	report.Check = func(_ context.Context, call *executor.Invocation) (executor.Checked, error) {
		_, err := os.Stat(file(call.Key))
		if os.IsNotExist(err) {
			return executor.Checked{}, nil
		}
		return executor.Checked{Took: err == nil, Result: executor.Result{OK: true, Output: "reported"}}, err
	}
	return []executor.Tool{note, count, report}
}

func main() {
	if len(os.Args) != 5 {
		log.Fatal("usage: agent NATS-URL STORE FOLDER SESSION")
	}
	if err := run(os.Args[1], os.Args[2], os.Args[3], os.Args[4]); err != nil {
		log.Fatal(err)
	}
}

func run(url, dir, folder, session string) error {
	ctx := context.Background()
	conn, err := nats.Connect(url)
	if err != nil {
		return err
	}
	defer conn.Close()
	store, err := journal.OpenFiles(dir, true)
	if err != nil {
		return err
	}
	defer store.Close()
	registry, err := executor.NewRegistry(tools(folder)...)
	if err != nil {
		return err
	}
	x, err := executor.New(executor.Config{Conn: conn, Store: store, Tools: registry, Holder: lease.Self("agent"), Protect: []string{store.Dir()}})
	if err != nil {
		return err
	}
	if err := x.Start(ctx); err != nil {
		return err
	}
	client, err := executor.NewClient(conn, "")
	if err != nil {
		return err
	}
	if err := act(ctx, client, session); err != nil {
		return err
	}
	return x.Drain(ctx)
}
