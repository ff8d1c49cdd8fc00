package mcp

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"runtime"
	"sync"
	"syscall"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"steno/executor"
)

// endPause is how long a program has to end before it gets the next signal.
const endPause = 2 * time.Second

// Named gives connections with a server as a tools file names it, or one that is
// reached by HTTP: each is made as executors make theirs.
func Named(cfg executor.MCPServer, o Options) func(context.Context) (sdk.Connection, error) {
	all := &Servers{opts: o, wait: usual}
	return func(ctx context.Context) (sdk.Connection, error) {
		to, err := newServer(all, cfg).dial()
		if err != nil {
			return nil, err
		}
		var conn sdk.Connection
		if web, is := to.Transport.(*sdk.StreamableClientTransport); is {
			conn, err = overHTTP(ctx, web)
		} else {
			conn, err = to.Connect(ctx)
		}
		if err != nil {
			return nil, errors.Join(err, to.end())
		}
		return &startedConn{conn, func() { _ = to.end() }, to.over}, nil // how it ended is seen where it is missed
	}
}

// Vouched says of a tool of a server what executors would say of it that have the
// server as their own.
func Vouched(cfg executor.MCPServer, definition []byte, t *executor.Tool) {
	var said sdk.Tool
	if json.Unmarshal(definition, &said) == nil {
		vouch(cfg, &said, t)
	}
}

// Command gives connections with a program that a gateway stands before: each
// starts it anew, with the environment, the folder and the rights that it would
// have without the gateway, and standard error as its own.
func Command(argv []string, stderr io.Writer, log *slog.Logger) func(context.Context) (sdk.Connection, error) {
	return func(ctx context.Context) (sdk.Connection, error) {
		toRead, toWrite, err := os.Pipe()
		if err != nil {
			return nil, err
		}
		fromRead, fromWrite, err := os.Pipe()
		if err != nil {
			return nil, errors.Join(err, toRead.Close(), toWrite.Close())
		}
		cmd := exec.Command(argv[0], argv[1:]...)
		cmd.Stdin, cmd.Stdout, cmd.Stderr = toRead, fromWrite, stderr
		cmd.WaitDelay = endPause                              // a grandchild may hold its standard error
		cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // what it starts ends with it
		endWithUs(cmd.SysProcAttr)
		started, ended := make(chan error), make(chan struct{})
		go func() {
			// The kernel ends it with the thread that has started it.
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			err := cmd.Start()
			started <- err
			if err == nil {
				_ = cmd.Wait() // how it ended is seen where it is missed
			}
			close(ended)
		}()
		err = <-started
		err = errors.Join(err, toRead.Close(), fromWrite.Close())
		if err != nil {
			return nil, errors.Join(err, toWrite.Close(), fromRead.Close())
		}
		odd := 0
		out := newLines(fromRead, func(text []byte) {
			if odd++; odd <= maxOdd {
				log.Warn("the MCP server prints what is no message; it is left out", "text", words(text))
			}
		})
		end := sync.OnceFunc(func() {
			for _, s := range []syscall.Signal{0, syscall.SIGTERM, syscall.SIGKILL} {
				if s != 0 {
					_ = syscall.Kill(-cmd.Process.Pid, s) // its group may be gone
				}
				select {
				case <-ended:
					_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) // what it has left
					return
				case <-time.After(endPause):
				}
			}
		})
		conn, err := (&sdk.IOTransport{Reader: out, Writer: patientWriter{toWrite, writeWait}}).Connect(ctx)
		if err != nil {
			end()
			return nil, err
		}
		return &startedConn{conn, func() {}, end}, nil
	}
}

// A startedConn ends what was started for it.
type startedConn struct {
	sdk.Connection
	before, after func()
}

func (c *startedConn) Close() error {
	c.before()
	err := c.Connection.Close()
	c.after()
	return err
}
