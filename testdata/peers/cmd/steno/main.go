// Command steno measures steno itself: durable calls of an executor with an
// embedded nats-server, chain, lease check, decision and schema validation on,
// each caller with a session of its own.
//
//   - steno door inproc: the NATS request as any client sends it
//   - steno client inproc: the same by executor.Client, which repeats requests
//   - steno without transport: executor.Do
package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"golang.org/x/sys/unix"

	"peers/harness"
	"steno/executor"
	"steno/journal"
	"steno/lease"
)

const wait = 20 * time.Second

const input = `{"type":"object","required":["worker","seq","path","mode","query"],"additionalProperties":false,"properties":{
	"worker":{"type":"integer"},"seq":{"type":"integer"},"path":{"type":"string","minLength":1},
	"mode":{"enum":["read","write"]},"query":{"type":"string"}}}`

func main() {
	measure("steno door inproc", func(r *room) caller {
		return func(session, id string, args []byte) error {
			body := fmt.Appendf(nil, `{"call_id":%q,"name":"echo","args":%s}`, id, args)
			m, err := r.client.Request("steno.v1.call."+session, body, wait)
			if err == nil && m.Header.Get(executor.HeaderErrorKind) != "" {
				err = errors.New(string(m.Data))
			}
			return err
		}
	})
	measure("steno client inproc", func(r *room) caller {
		c, err := executor.NewClient(r.client, "")
		harness.Must(err)
		return func(session, id string, args []byte) error {
			_, err := c.Call(context.Background(), session, executor.Request{CallID: id, Name: "echo", Args: args})
			return err
		}
	})
	measure("steno without transport", func(r *room) caller {
		return func(session, id string, args []byte) error {
			_, err := r.executor.Do(context.Background(), session, executor.Request{CallID: id, Name: "echo", Args: args})
			return err
		}
	})
}

// A room is an executor with its server and a client's connection to it.
type room struct {
	executor *executor.Executor
	client   *nats.Conn
}

type caller func(session, id string, args []byte) error

func measure(name string, door func(*room) caller) {
	if !harness.Want(name) {
		return
	}
	dir := harness.Dir()
	defer os.RemoveAll(dir)
	s, err := server.NewServer(&server.Options{NoLog: true, NoSigs: true, DontListen: true})
	harness.Must(err)
	s.Start()
	defer s.Shutdown()
	files, err := journal.OpenFiles(filepath.Join(dir, "store"), true)
	harness.Must(err)
	defer files.Close()
	var syncs atomic.Int64
	store := files.WithFaults(&lease.Faults{Sync: func(f *os.File) error {
		syncs.Add(1)
		return unix.Fdatasync(int(f.Fd()))
	}})
	tools, err := executor.NewRegistry(executor.Tool{Name: "echo", Description: "Echoes.", Input: []byte(input),
		Run: func(_ context.Context, call *executor.Invocation) (executor.Result, error) {
			return executor.Result{OK: true, Output: string(harness.Tool(call.Args))}, nil
		}})
	harness.Must(err)
	conn := dial(s)
	defer conn.Close()
	x, err := executor.New(executor.Config{Conn: conn, Store: store, Tools: tools, Holder: lease.Self("peers"), Logger: slog.New(slog.DiscardHandler)})
	harness.Must(err)
	ctx := context.Background()
	harness.Must(x.Start(ctx))
	r := &room{x, dial(s)}
	defer r.client.Close()
	c, err := executor.NewClient(r.client, "")
	harness.Must(err)
	for i := range 256 {
		_, err := c.Open(ctx, executor.OpenRequest{Session: session(i)})
		harness.Must(err)
	}
	call := door(r)
	for _, callers := range harness.Levels() {
		prefix := "c" + strconv.Itoa(callers) + "-"
		harness.Emit(harness.Run(name, callers, func(caller, n int) error {
			return call(session(caller), prefix+strconv.Itoa(n), harness.Args(caller, n))
		}, func() (int64, int64) { return syncs.Load(), written() }))
	}
	harness.Must(x.Drain(ctx))
}

func session(caller int) string { return "s-" + strconv.Itoa(caller) }

func dial(s *server.Server) *nats.Conn {
	c, err := nats.Connect("", nats.InProcessServer(s))
	harness.Must(err)
	return c
}

// written is how many bytes this process has written so far, by any call. The
// connections in it do without.
func written() int64 {
	b, err := os.ReadFile("/proc/self/io")
	harness.Must(err)
	for line := range strings.Lines(string(b)) {
		if v, is := strings.CutPrefix(line, "wchar: "); is {
			n, err := strconv.ParseInt(strings.TrimSpace(v), 10, 64)
			harness.Must(err)
			return n
		}
	}
	return 0
}
