package mcp_test

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-json-experiment/json/jsontext"
	"go.uber.org/goleak"

	"steno/executor"
	"steno/executor/mcp"
	"steno/executor/redact"
	"steno/schema"
)

func TestMain(m *testing.M) {
	executor.Helper()
	if len(os.Args) == 4 && os.Args[1] == "raw-mcp" {
		if err := rawServer(os.Args[2], os.Args[3]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	goleak.VerifyTestMain(m)
}

// deadline is for what is expected to happen at once.
const deadline = time.Minute

// A bench has one server, called raw, and what is registered of it.
type bench struct {
	t   *testing.T
	dir string // where the server notes what it was asked
	reg *executor.Registry
	all *mcp.Servers
	log *logs
}

// logs is a log that can be read while it is written.
type logs struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *logs) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *logs) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// idle makes a bench whose server has not been started.
func idle(t *testing.T, tools ...executor.Tool) *bench {
	t.Helper()
	reg, err := executor.NewRegistry(tools...)
	if err != nil {
		t.Fatal(err)
	}
	return &bench{t: t, dir: t.TempDir(), reg: reg, log: &logs{}}
}

// start starts the raw server in this mode, and waits until it is connected or has
// failed once.
func (b *bench) start(mode string, change ...func(*executor.MCPServer)) *bench {
	b.t.Helper()
	self, err := os.Executable()
	if err != nil {
		b.t.Fatal(err)
	}
	cfg := executor.MCPServer{Name: "raw", Argv: []string{self, "raw-mcp", mode, b.dir}, Dir: b.dir}
	return b.startAs(cfg, change...)
}

func (b *bench) startAs(cfg executor.MCPServer, change ...func(*executor.MCPServer)) *bench {
	b.t.Helper()
	for _, f := range change {
		f(&cfg)
	}
	wait := deadline
	if len(cfg.Argv) > 2 && cfg.Argv[2] == "silent" {
		wait = 200 * time.Millisecond
	}
	secret := filepath.Join(b.dir, "store")
	if err := os.MkdirAll(filepath.Join(secret, "sessions"), 0o700); err != nil {
		b.t.Fatal(err)
	}
	redactor, err := redact.New(nil, redact.Rules{})
	if err != nil {
		b.t.Fatal(err)
	}
	b.all = mcp.StartQuick(b.reg, []executor.MCPServer{cfg}, mcp.Options{Protect: []string{secret}, Redact: redactor, Logger: slog.New(redactor.Handler(slog.NewTextHandler(b.log, nil)))}, wait)
	b.t.Cleanup(b.all.Close)
	ctx, cancel := context.WithTimeout(b.t.Context(), deadline)
	defer cancel()
	b.all.Wait(ctx)
	if ctx.Err() != nil {
		b.t.Fatalf("the server does not come: %v\n%s", b.all.Status(), b.log)
	}
	return b
}

// call calls a tool of the server.
func (b *bench) call(ctx context.Context, name, args string) (executor.Result, error) {
	b.t.Helper()
	tool, err := b.reg.Get("raw_" + name)
	if err != nil {
		b.t.Fatalf("%v\n%s", err, b.log)
	}
	return tool.Run(ctx, &executor.Invocation{Session: "s1", CallID: "c-" + name, Key: "k", Attempt: 1, Epoch: 2, Seq: 3, Args: jsontext.Value(args)})
}

func (b *bench) want(name, args, output string) {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.t.Context(), deadline)
	defer cancel()
	if res, err := b.call(ctx, name, args); err != nil || !res.OK || res.Output != output {
		b.t.Errorf("%s gives %.200q, %v; want %q\n%s", name, res.Output, err, output, b.log)
	}
}

func (b *bench) wantKind(name string, kind schema.Kind) *schema.Error {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.t.Context(), deadline)
	defer cancel()
	res, err := b.call(ctx, name, `{}`)
	if schema.KindOf(err) != kind {
		b.t.Fatalf("%s gives %.200q, %v; want %s\n%s", name, res.Output, err, kind, b.log)
	}
	return schema.AsError(err)
}

// back waits until the server is there.
func (b *bench) back() {
	b.t.Helper()
	b.eventually("the server is there", func() bool { return b.all.Status()[0].Connected })
}

func (b *bench) eventually(what string, f func() bool) {
	b.t.Helper()
	for end := time.Now().Add(deadline); !f(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(end) {
			b.t.Fatalf("it does not come about that %s\n%v\n%s", what, b.all.Status(), b.log)
		}
	}
}

// notes are what the server has noted, a line each.
func (b *bench) notes() []string {
	text, err := os.ReadFile(filepath.Join(b.dir, "notes"))
	if err != nil {
		return nil
	}
	return strings.Split(strings.TrimSpace(string(text)), "\n")
}

// noted is how often it has noted this.
func (b *bench) noted(line string) (n int) {
	for _, is := range b.notes() {
		if is == line {
			n++
		}
	}
	return n
}
