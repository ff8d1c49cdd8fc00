package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/synadia-io/orbit.go/natscontext"

	"steno/executor"
	"steno/executor/mcp"
	"steno/journal"
	"steno/lease"
	"steno/schema"
)

// connectTimeout bounds a first connection.
const connectTimeout = 2 * time.Second

// dial connects to a server: by URL, by the path of a NATS context file, or by
// the name of a context that the nats command knows.
func dial(target string) (*nats.Conn, error) {
	opts := []nats.Option{nats.Name("steno"), nats.Timeout(connectTimeout), nats.MaxReconnects(-1), nats.ReconnectWait(250 * time.Millisecond)}
	var nc *nats.Conn
	var err error
	shown := withoutSecrets(target)
	if strings.Contains(target, "://") {
		nc, err = nats.Connect(target, opts...)
	} else {
		// The library takes an absolute path for a file and all else for a name.
		if abs, e := filepath.Abs(target); e == nil {
			if _, e := os.Stat(abs); e == nil {
				target = abs
			}
		}
		shown = "the server of context " + target
		nc, _, err = natscontext.Connect(target, opts...)
	}
	switch {
	case err == nil:
		return nc, nil
	case errors.Is(err, nats.ErrAuthorization):
		return nil, schema.Errorf(schema.NotAuthenticated, "%s does not accept these credentials", shown).Cause(err)
	case errors.Is(err, nats.ErrNoServers), errors.Is(err, nats.ErrTimeout):
		return nil, schema.Errorf(schema.Unavailable, "no NATS server answers: %s", shown).
			With("next", "check --nats, or start one with: steno serve").Cause(err)
	}
	return nil, schema.Errorf(schema.InvalidConfig, "--nats cannot be used: %s", shown).
		With("next", "give a URL, the path of a NATS context file, or the name of a NATS context").Cause(err)
}

// withoutSecrets is a list of server URLs as it may be shown: the hosts, and
// whatever else might hold a secret left out.
func withoutSecrets(raw string) string {
	var shown []string
	for part := range strings.SplitSeq(raw, ",") {
		u, err := url.Parse(strings.TrimSpace(part))
		if err != nil || u.Host == "" {
			return "that address"
		}
		shown = append(shown, (&url.URL{Scheme: u.Scheme, Host: u.Host}).String())
	}
	return strings.Join(shown, ",")
}

// startServer starts an embedded server and connects to it inside the process.
func startServer(o *server.Options) (*server.Server, *nats.Conn, error) {
	o.NoSigs = true
	if err := portIsFree(o); err != nil {
		return nil, nil, err
	}
	s, err := server.NewServer(o)
	if err != nil {
		return nil, nil, schema.Errorf(schema.Unavailable, "the embedded NATS server cannot be made").Cause(err)
	}
	s.SetLogger(serverLog{}, false, false)
	s.Start()
	if !s.ReadyForConnections(10 * time.Second) {
		s.Shutdown()
		return nil, nil, schema.Errorf(schema.Unavailable, "the embedded NATS server does not start").
			With("next", "try another port: steno serve --listen 127.0.0.1:0")
	}
	nc, err := nats.Connect("", nats.InProcessServer(s), nats.Name("steno"), nats.UserInfo(o.Username, o.Password))
	if err != nil {
		s.Shutdown()
		return nil, nil, schema.Errorf(schema.Unavailable, "the embedded NATS server cannot be reached").Cause(err)
	}
	return s, nc, nil
}

// serverLog passes on what the embedded server cannot do, such as writing to a
// disk that is full, and nothing else.
type serverLog struct{}

func (serverLog) Noticef(string, ...any) {}
func (serverLog) Warnf(string, ...any)   {}
func (serverLog) Debugf(string, ...any)  {}
func (serverLog) Tracef(string, ...any)  {}
func (serverLog) Errorf(format string, v ...any) {
	slog.New(slog.NewTextHandler(os.Stderr, nil)).Error("NATS server", "err", fmt.Sprintf(format, v...))
}
func (l serverLog) Fatalf(format string, v ...any) { l.Errorf(format, v...) }

// portIsFree asks for the port itself. A server that does not get it has no
// way to say so: it would be waited for in vain.
func portIsFree(o *server.Options) error {
	if o.DontListen || o.Port == server.RANDOM_PORT {
		return nil
	}
	address := net.JoinHostPort(o.Host, strconv.Itoa(o.Port))
	l, err := net.Listen("tcp", address)
	if err != nil {
		return schema.Errorf(schema.Unavailable, "the embedded NATS server cannot listen on %s", address).
			With("next", "try another port: steno serve --listen 127.0.0.1:0").Cause(err)
	}
	return l.Close()
}

// listening are the options of a server that others in this machine may reach.
func listening(address string) (*server.Options, error) {
	host, port, err := net.SplitHostPort(address)
	n, err2 := strconv.Atoi(port)
	if err != nil || err2 != nil || n < 0 || n > 65535 {
		return nil, usage("--listen is HOST:PORT; got %q", address)
	}
	if n == 0 {
		n = server.RANDOM_PORT
	}
	return &server.Options{Host: host, Port: n, Username: "steno", Password: rand.Text()}, nil
}

// clientURL is where clients reach a listening server.
func clientURL(s *server.Server) string {
	u, err := url.Parse(s.ClientURL())
	if err != nil {
		return s.ClientURL()
	}
	u.User = nil
	return u.String()
}

// A backend is an executor to send requests to: somebody else's, or one in
// this process.
type backend struct {
	client *executor.Client
	// calls is for requests. It outlives a signal by the grace where the tools
	// run in this process; elsewhere they go on without us.
	calls  context.Context
	cancel context.CancelFunc
	conn   *nats.Conn
	exec   *executor.Executor // nil if it is somebody else's
	tools  *executor.Registry // of exec
	mcp    *mcp.Servers       // of exec; nil if it has none
	server *server.Server
	store  *journal.Files
	// terminal is where a person is asked, nil if that cannot be.
	terminal *terminal
}

// backend connects to the server that --nats names, or to the serve that runs
// on this store, or makes an executor in this process on a server without a
// listener. create makes the store if it is not there.
func (a *app) backend(ctx context.Context, create bool) (*backend, error) {
	b := &backend{}
	var err error
	if a.nats != "" {
		b.conn, err = dial(a.nats)
	} else {
		b.conn, err = a.throughServe(ctx)
	}
	if err != nil {
		return nil, err
	}
	wait := time.Duration(0)
	if b.conn != nil {
		if err := a.notElsewhere(); err != nil {
			return nil, errors.Join(err, b.close())
		}
		a.tellLoss(b.conn)
		if err := a.someoneServes(ctx, b.conn); err != nil {
			return nil, errors.Join(err, b.close())
		}
	} else {
		if err := a.ownExecutor(ctx, b, create); err != nil {
			return nil, errors.Join(err, b.close())
		}
		wait = grace
	}
	b.calls, b.cancel = outliving(ctx, wait)
	b.client, err = executor.NewClient(b.conn, "")
	return b, err
}

// withBackend does something by way of an executor, within timeout; 0 is for
// ever.
func (a *app) withBackend(ctx context.Context, timeout time.Duration, f func(wait context.Context, b *backend) error) (err error) {
	b, err := a.backend(ctx, false)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.close()) }()
	wait := b.calls
	if timeout > 0 {
		var cancel context.CancelFunc
		wait, cancel = context.WithTimeout(wait, timeout)
		defer cancel()
	}
	return f(wait, b)
}

// tellLoss says at once that the server of somebody else is gone, and that it is
// back. Requests wait for it for a while by themselves.
func (a *app) tellLoss(nc *nats.Conn) {
	nc.SetDisconnectErrHandler(func(_ *nats.Conn, err error) {
		if err != nil { // nil is our own close
			fmt.Fprintf(a.err, "the server is gone; waits up to %s for it to come back\n", executor.Patience)
		}
	})
	nc.SetReconnectHandler(func(*nats.Conn) { fmt.Fprintln(a.err, "the server is back") })
}

// someoneServes looks for an executor on the server that --nats names: without
// one a request would wait for as long as its caller does. One that has just
// started gets a moment.
func (a *app) someoneServes(ctx context.Context, nc *nats.Conn) error {
	if a.nats == "" {
		return nil // a serve is there, and its lock says so
	}
	for try := 0; ; try++ {
		_, err := nc.Request("$SRV.PING.steno", nil, 2*time.Second)
		if err == nil {
			return nil
		}
		if try == pingTries {
			return schema.Errorf(schema.Unavailable, "no executor serves on that NATS server").
				With("next", "start one on it: steno serve --nats URL").Cause(err)
		}
		select {
		case <-time.After(serveRetry):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// pingTries is how often an executor is looked for.
const pingTries = 20

// throughServe connects to the serve that runs on this store; nil if none
// does. One that has just started may not have left its address yet.
func (a *app) throughServe(ctx context.Context) (*nats.Conn, error) {
	for until := time.Now().Add(serveWait); ; {
		served, err := a.served()
		if err != nil || !served {
			return nil, err
		}
		nc, err := dial(a.contextFile())
		if err == nil {
			return nc, nil
		}
		if time.Now().After(until) {
			return nil, schema.Errorf(schema.Unavailable, "a serve runs on this store and cannot be reached").
				With("next", "end "+a.server()+", with SIGKILL if it hangs; then try again").Cause(err)
		}
		select {
		case <-time.After(serveRetry):
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

// How long a serve is waited for that holds the lock and does not answer yet.
const (
	serveWait  = 5 * time.Second
	serveRetry = 100 * time.Millisecond
)

func (a *app) ownExecutor(ctx context.Context, b *backend, create bool) (err error) {
	file, err := a.toolsFile()
	if err != nil {
		return err
	}
	if b.store, err = a.store(create); err != nil {
		return err
	}
	if b.server, b.conn, err = startServer(&server.Options{DontListen: true, MaxPayload: executor.MaxRequest}); err != nil {
		return err
	}
	cfg, err := a.executorConfig(b.conn, b.store, slog.LevelError, file.Tools...)
	if err != nil {
		return err
	}
	if a.asks {
		b.terminal = openTerminal()
	}
	cfg.Attended = b.terminal != nil
	cfg.DenyUnattended = !cfg.Attended // nobody could reach this process to answer
	b.tools, b.mcp = cfg.Tools, startServers(ctx, file, cfg)
	x, err := executor.New(cfg)
	if err != nil {
		return err
	}
	if err := x.Start(ctx); err != nil {
		return err
	}
	b.exec = x
	return nil
}

// outliving gives a context that ends wait after ctx does.
func outliving(ctx context.Context, wait time.Duration) (context.Context, context.CancelFunc) {
	out, cancel := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() {
		if wait == 0 {
			cancel()
			return
		}
		t := time.AfterFunc(wait, cancel)
		context.AfterFunc(out, func() { t.Stop() })
	})
	return out, func() { stop(); cancel() }
}

// executorConfig is what every executor of this command works with. What is
// logged below level is left out: a command that makes a few calls answers for
// each by itself.
func (a *app) executorConfig(nc *nats.Conn, store *journal.Files, level slog.Level, tools ...executor.Tool) (executor.Config, error) {
	reg, err := executor.NewRegistry(tools...)
	if err != nil {
		return executor.Config{}, err
	}
	policy, err := a.readPolicy()
	if err != nil {
		return executor.Config{}, err
	}
	redact, err := a.redactor(store)
	log := slog.New(slog.NewTextHandler(a.err, &slog.HandlerOptions{Level: level}))
	return executor.Config{Conn: nc, Store: store, Tools: reg, Holder: lease.Self("steno " + executor.Version),
		Policy: policy, Redact: redact, Reach: a.reach, Protect: []string{store.Dir()}, Logger: log}, err
}

// grace is how long running tools have after a signal.
const grace = 10 * time.Second

// drain ends the work of an executor of this process.
func (b *backend) drain() error {
	x := b.exec
	if b.exec = nil; x == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(b.calls, grace) // after a signal what is left of it
	defer cancel()
	return x.Drain(ctx)
}

// close drains an executor of this process and ends its server.
func (b *backend) close() error {
	errs := []error{b.drain()}
	b.mcp.Close()
	if b.cancel != nil {
		b.cancel()
	}
	if b.conn != nil {
		b.conn.Close()
	}
	if b.server != nil {
		b.server.Shutdown()
		b.server.WaitForShutdown()
	}
	if b.store != nil {
		errs = append(errs, b.store.Close())
	}
	if b.terminal != nil {
		_ = b.terminal.f.Close()
	}
	return errors.Join(errs...)
}
