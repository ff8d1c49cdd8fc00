package main

import (
	"context"
	"crypto/rand"
	"errors"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/gofrs/flock"
	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/synadia-io/orbit.go/natscontext"

	"steno/executor"
	"steno/journal"
	"steno/lease"
	"steno/schema"
)

// natsContext is a NATS context file as serve leaves it, in the form of the
// nats command.
type natsContext struct {
	Description string `json:"description"`
	URL         string `json:"url"`
	User        string `json:"user"`
	Password    string `json:"password"`
}

// connectTimeout bounds a first connection.
const connectTimeout = 5 * time.Second

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
		if abs, e := filepath.Abs(target); e == nil && fileExists(abs) {
			target = abs
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

// withoutSecrets is a URL as it may be shown.
func withoutSecrets(raw string) string {
	u, err := url.Parse(raw)
	if err != nil {
		return "that address"
	}
	u.User = nil
	return u.Redacted()
}

// startServer starts an embedded server and connects to it inside the process.
func startServer(o *server.Options) (*server.Server, *nats.Conn, error) {
	o.NoSigs, o.NoLog = true, true
	s, err := server.NewServer(o)
	if err != nil {
		return nil, nil, schema.Errorf(schema.Unavailable, "the embedded NATS server cannot be made").Cause(err)
	}
	s.Start()
	if !s.ReadyForConnections(10 * time.Second) {
		s.Shutdown()
		return nil, nil, schema.Errorf(schema.Unavailable, "the embedded NATS server does not start; is its port in use?").
			With("next", "try another port: steno serve --listen 127.0.0.1:0")
	}
	nc, err := nats.Connect("", nats.InProcessServer(s), nats.Name("steno"), nats.UserInfo(o.Username, o.Password))
	if err != nil {
		s.Shutdown()
		return nil, nil, schema.Errorf(schema.Unavailable, "the embedded NATS server cannot be reached").Cause(err)
	}
	return s, nc, nil
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

// saveContext leaves the context file of a server, readable by its owner only.
func saveContext(path string, c natsContext) error {
	b, err := json.Marshal(c, jsontext.WithIndent("  "))
	if err != nil {
		return err
	}
	tmp := path + ".new"
	if err := os.WriteFile(tmp, append(b, '\n'), 0o600); err != nil {
		return schema.Errorf(schema.LogWriteFailed, "the NATS context file cannot be written").Cause(err)
	}
	if err := errors.Join(os.Chmod(tmp, 0o600), os.Rename(tmp, path)); err != nil {
		return schema.Errorf(schema.LogWriteFailed, "the NATS context file cannot be written").Cause(err)
	}
	return nil
}

func (a *app) contextFile() string { return filepath.Join(a.dir, "nats", "context.json") }

// serveLock gives the lock that a serve on this store holds.
func (a *app) serveLock() *flock.Flock {
	return flock.New(filepath.Join(a.dir, "nats", "lock"), flock.SetFlag(os.O_RDONLY))
}

// served reports whether a serve holds the store's queue.
func (a *app) served() (bool, error) {
	l := a.serveLock()
	ok, err := l.TryRLock()
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, schema.Errorf(schema.LogReadFailed, "the store's server lock cannot be looked at").Cause(err)
	}
	return !ok, l.Close()
}

// A backend is an executor to send requests to: somebody else's, or one in
// this process.
type backend struct {
	client *executor.Client
	conn   *nats.Conn
	exec   *executor.Executor // nil if it is somebody else's
	server *server.Server
	store  *journal.Files
}

// backend connects to the server that --nats names, or to the serve that runs
// on this store, or makes an executor in this process on a server without a
// listener.
func (a *app) backend(ctx context.Context) (*backend, error) {
	target := a.nats
	if target == "" {
		served, err := a.served()
		if err != nil {
			return nil, err
		}
		if served {
			target = a.contextFile()
		}
	}
	if target != "" {
		nc, err := dial(target)
		if err != nil {
			return nil, err
		}
		client, err := executor.NewClient(nc, "")
		return &backend{client: client, conn: nc}, err
	}
	store, err := a.store(true)
	if err != nil {
		return nil, err
	}
	b := &backend{store: store}
	if b.server, b.conn, err = startServer(&server.Options{DontListen: true}); err != nil {
		return nil, errors.Join(err, b.close())
	}
	if b.exec, err = a.newExecutor(b.conn, store, executor.Builtin(), false); err == nil {
		err = b.exec.Start(ctx)
	}
	if err != nil {
		return nil, errors.Join(err, b.close())
	}
	b.client, err = executor.NewClient(b.conn, "")
	return b, err
}

// newExecutor makes an executor on a store.
func (a *app) newExecutor(nc *nats.Conn, store *journal.Files, tools []executor.Tool, queue bool) (*executor.Executor, error) {
	reg, err := executor.NewRegistry(tools...)
	if err != nil {
		return nil, err
	}
	log := slog.New(slog.NewTextHandler(a.logTo(), &slog.HandlerOptions{Level: slog.LevelWarn}))
	return executor.New(executor.Config{Conn: nc, Store: store, Tools: reg, Holder: lease.Self("steno " + executor.Version),
		Queue: queue, Protect: []string{store.Dir()}, Logger: log})
}

func (a *app) logTo() io.Writer { return a.err }

// grace is how long running tools have after a signal.
const grace = 10 * time.Second

// close drains an executor of this process and ends its server.
func (b *backend) close() error {
	var errs []error
	if b.exec != nil {
		ctx, cancel := context.WithTimeout(context.Background(), grace)
		defer cancel()
		errs = append(errs, b.exec.Drain(ctx))
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
	return errors.Join(errs...)
}
