package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"runtime/debug"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/gofrs/flock"
	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/spf13/cobra"

	"steno/executor"
	"steno/lease"
	"steno/schema"
)

func (a *app) serveCommand() *cobra.Command {
	var listen string
	var wait time.Duration
	var sessions int
	c := &cobra.Command{
		Use: "serve", Short: "serve sessions: take calls, run tools, keep the record",
		Long: "serve starts a NATS server with a work queue on 127.0.0.1, with credentials of its own, and an executor on it.\n" +
			"With --nats it brings an executor to a server that is there. SIGTERM drains.",
		Example: "  steno serve\n  steno serve --dir /var/lib/steno --listen 127.0.0.1:4222\n  steno serve --nats nats://127.0.0.1:4222",
		Args:    exactly(),
		RunE: func(c *cobra.Command, _ []string) error {
			if !c.Flags().Changed("sessions") {
				sessions = min(sessions, lease.MaxHeld())
			}
			return a.serve(c.Context(), listen, sessions, wait)
		},
	}
	c.Flags().StringVar(&listen, "listen", "127.0.0.1:4222", "where the embedded server listens; port 0 takes a free one")
	c.Flags().IntVar(&sessions, "sessions", 1000, "how many sessions to hold; above, those that nobody uses are released, the least recently used first")
	a.logFlag(c)
	a.ownFlags(c)
	c.Flags().DurationVar(&wait, "grace", grace, "how long running tools have after SIGTERM")
	return c
}

// gcPercent is how much garbage serve lets grow beside what lives; GOGC, or a
// limit in GOMEMLIMIT, says otherwise.
const gcPercent = 400

func (a *app) serve(ctx context.Context, listen string, sessions int, wait time.Duration) (err error) {
	if sessions < 1 {
		return usage("--sessions is 1 at least; got %d", sessions)
	}
	if most := lease.MaxHeld(); sessions > most {
		return schema.Errorf(schema.InvalidConfig, "this process may have too few files open to hold %d sessions; it can hold %d", sessions, most).
			With("next", "raise the limit on open files, with ulimit -n or LimitNOFILE=, or name fewer --sessions")
	}
	o, err := listening(listen)
	if err != nil {
		return err
	}
	if os.Getenv("GOGC") == "" {
		// A call leaves some 20 KB of garbage, of which little lives long: to
		// collect less often costs memory and gives a quarter more calls.
		debug.SetGCPercent(gcPercent)
	}
	file, err := a.toolsFile()
	if err != nil {
		return err
	}
	store, err := a.store(true)
	if err != nil {
		return err
	}
	defer store.Close()
	var nc *nats.Conn
	where := a.nats
	if a.nats != "" {
		if nc, err = dial(a.nats); err != nil {
			return err
		}
	} else {
		lock, err := a.lockServer(ctx)
		if err != nil {
			return err
		}
		defer lock.Close()
		if err := a.credentials(o); err != nil {
			return err
		}
		// Until the server listens its old address leads nobody astray.
		if err := os.Remove(a.contextFile()); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return schema.Errorf(schema.LogWriteFailed, "the NATS context file cannot be written").Cause(err)
		}
		// An acknowledgement of the queue means synced: with its default the
		// server syncs every two minutes, and a power cut takes what it has
		// acknowledged since.
		o.JetStream, o.StoreDir, o.SyncAlways = true, filepath.Join(a.dir, "nats"), true
		var s *server.Server
		if s, nc, err = startServer(o); err != nil {
			return err
		}
		defer func() { s.Shutdown(); s.WaitForShutdown() }()
		where = clientURL(s)
		agent, worker := o.Users[1], o.Users[2]
		if err := savePrivate(a.workerFile(), natsContext{Description: "steno serve, for workers", URL: where, User: worker.Username, Password: worker.Password, Inbox: workerInbox}); err != nil {
			return err
		}
		if err := savePrivate(a.agentFile(), natsContext{Description: "steno serve, for agents", URL: where, User: agent.Username, Password: agent.Password, Inbox: agentInbox}); err != nil {
			return err
		}
		if err := savePrivate(a.contextFile(), natsContext{Description: "steno serve", URL: where, User: o.Username, Password: o.Password}); err != nil {
			return err
		}
	}
	defer nc.Close()
	cfg, err := a.executorConfig(nc, store, slog.LevelWarn, file.Tools...)
	if err != nil {
		return err
	}
	cfg.Queue, cfg.Sessions, cfg.Workers = true, sessions, &file.Workers
	defer startServers(ctx, file, cfg).Close()
	if a.nats != "" {
		nc.SetDisconnectErrHandler(func(_ *nats.Conn, err error) {
			if err != nil { // nil is our own close
				cfg.Logger.Warn("the NATS server is gone; nobody can ask until it is back", "err", err)
			}
		})
		nc.SetReconnectHandler(func(*nats.Conn) { cfg.Logger.Warn("the NATS server is back") })
	}
	x, err := executor.New(cfg)
	if err != nil {
		return err
	}
	if err := x.Start(ctx); err != nil {
		return err
	}
	defer a.tellStopping(ctx, wait)()
	if err := a.tellServing(store.ID(), where); err != nil {
		return err
	}
	<-ctx.Done()
	drain, cancel := context.WithTimeout(context.Background(), wait)
	defer cancel()
	return x.Drain(drain)
}

// credentials gives the server the users and passwords that it had before, and
// makes them once: clients keep theirs over a restart, also over one that is
// killed. One user may do everything, the others what an agent and a worker need.
func (a *app) credentials(o *server.Options) error {
	path := filepath.Join(a.dir, "nats", "credentials.json")
	var c struct {
		User     string `json:"user"`
		Password string `json:"password"`
		Agent    string `json:"agent_password"`
		Worker   string `json:"worker_password"`
	}
	b, err := readPlain(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err == nil && json.Unmarshal(b, &c) == nil && c.User != "" && c.Password != "" {
		o.Username, o.Password = c.User, c.Password
	} else {
		c.User, c.Password, c.Agent, c.Worker = o.Username, o.Password, "", ""
	}
	made := false
	for _, password := range []*string{&c.Agent, &c.Worker} {
		if *password == "" {
			*password, made = rand.Text(), true
		}
	}
	o.Users = []*server.User{{Username: o.Username, Password: o.Password}, {Username: agentUser, Password: c.Agent, Permissions: agentMay()},
		{Username: workerUser, Password: c.Worker, Permissions: workerMay()}}
	if !made {
		return nil
	}
	return savePrivate(path, c)
}

// The user for agents. Its answers come where nobody else's do.
const (
	agentUser  = "agent"
	agentInbox = "_INBOX_AGENT"
)

// agentMay is what an agent needs: it makes calls and keeps its session. It opens
// none, since whoever does chooses the workspace and the phase; it answers no question about its own calls, moves no phase, changes no mode, settles no outcome
// and speaks to no holder directly.
func agentMay() *server.Permissions {
	const p = "steno.v1."
	return &server.Permissions{
		Publish: &server.SubjectPermission{Allow: []string{p + "call.*", p + "queue.*", p + "session.get", p + "session.list", p + "session.append",
			p + "session.end", p + "session.resume", p + "session.tools", p + "calls.wait", "$SRV.PING.>", "$SRV.INFO.>"}},
		Subscribe: &server.SubjectPermission{Allow: []string{agentInbox + ".>", p + "event.>"}},
	}
}

// The user for workers.
const (
	workerUser  = "worker"
	workerInbox = "_INBOX_WORKER"
)

// workerMay is what a worker needs: it takes calls of tools, answers what it was
// asked, as often as it has progress to tell, and brings results that came too
// late. It makes no calls and reads no session.
func workerMay() *server.Permissions {
	return &server.Permissions{
		Publish:   &server.SubjectPermission{Allow: []string{"steno.v1.calls.result.*"}},
		Subscribe: &server.SubjectPermission{Allow: []string{"steno.tool.>", "$SRV.>", workerInbox + ".>"}},
		Response:  &server.ResponsePermission{MaxMsgs: -1, Expires: 2 * time.Hour},
	}
}

// lockWait is how long another process may be seen with the lock before it is
// taken for a serve.
const lockWait = 500 * time.Millisecond

// lockServer takes the lock that keeps two servers from one queue folder,
// where they would lose messages that they have acknowledged.
func (a *app) lockServer(ctx context.Context) (*flock.Flock, error) {
	failed := func(err error) error {
		return schema.Errorf(schema.LogWriteFailed, "the server's folder cannot be written").Cause(err)
	}
	if err := os.MkdirAll(filepath.Join(a.dir, "nats"), 0o700); err != nil {
		return nil, failed(err)
	}
	if _, err := readPlain(filepath.Join(a.dir, "nats", "lock")); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	f, err := os.OpenFile(filepath.Join(a.dir, "nats", "lock"), os.O_CREATE|os.O_RDWR|syscall.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, failed(err)
	}
	f.Close()
	l := a.serveLock()
	// Another command may look at the lock just now, which holds it for an
	// instant.
	wait, cancel := context.WithTimeout(ctx, lockWait)
	defer cancel()
	ok, err := l.TryLockContext(wait, 20*time.Millisecond)
	if err != nil && wait.Err() == nil {
		return nil, failed(err)
	}
	if !ok {
		var c natsContext
		if b, err := readPlain(a.contextFile()); err == nil {
			_ = json.Unmarshal(b, &c) // an unreadable address is left out of the message
		}
		e := schema.Errorf(schema.Unavailable, "another serve runs on this store").
			With("next", "use that one: run and call with the same --dir go through it; if it does not answer, end "+a.server())
		if c.URL != "" {
			e.Message += ", at " + withoutSecrets(c.URL)
			e.With("address", withoutSecrets(c.URL))
		}
		return nil, e
	}
	// Whoever cannot reach this server is told which process to end.
	if err := os.WriteFile(l.Path(), fmt.Appendln(nil, os.Getpid()), 0o600); err != nil {
		return nil, errors.Join(failed(err), l.Close())
	}
	return l, nil
}

func (a *app) tellServing(store, where string) error {
	v := struct {
		Store   string `json:"store"`
		URL     string `json:"url,omitzero"`
		Context string `json:"context,omitzero"`
		Agent   string `json:"agent,omitzero"`
		Worker  string `json:"worker,omitzero"`
	}{Store: store}
	switch {
	case a.nats == "":
		v.URL, v.Context, v.Agent, v.Worker = where, a.contextFile(), a.agentFile(), a.workerFile()
	case strings.Contains(a.nats, "://"):
		v.URL = withoutSecrets(a.nats)
	default:
		v.Context = a.nats
	}
	if a.format == "json" || a.format == "jsonl" {
		return a.json(v)
	}
	if _, err := fmt.Fprintf(a.out, "serving store %s\n", v.Store); err != nil {
		return err
	}
	if v.URL != "" {
		if _, err := fmt.Fprintf(a.out, "nats     %s\n", v.URL); err != nil {
			return err
		}
	}
	if v.Context == "" {
		return nil
	}
	if v.Agent != "" {
		if _, err := fmt.Fprintf(a.out, "agents   %s\nworkers  %s\n", v.Agent, v.Worker); err != nil {
			return err
		}
	}
	_, err := fmt.Fprintf(a.out, "context  %s\ntry      nats --context %s micro info steno\n", v.Context, v.Context)
	return err
}

// natsContext is a NATS context file as serve leaves it, in the form of the
// nats command.
type natsContext struct {
	Description string `json:"description"`
	URL         string `json:"url"`
	User        string `json:"user"`
	Password    string `json:"password"`
	Inbox       string `json:"inbox_prefix,omitzero"`
}

// savePrivate leaves v as JSON in a file that its owner only may read, whole or
// not at all.
func savePrivate(path string, v any) error {
	failed := func(err error) error {
		return schema.Errorf(schema.LogWriteFailed, "%s cannot be written", filepath.Base(path)).Cause(err)
	}
	b, err := json.Marshal(v, jsontext.WithIndent("  "))
	if err != nil {
		return failed(err)
	}
	f, err := os.CreateTemp(filepath.Dir(path), ".new-") // 0600
	if err != nil {
		return failed(err)
	}
	_, err = f.Write(append(b, '\n'))
	err = errors.Join(err, f.Sync(), f.Close())
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		_ = os.Remove(f.Name()) // a leftover harms nobody
		return failed(err)
	}
	return nil
}

// readPlain reads a small file of the server's folder. What is no plain file is
// UnsafeStatePath: a FIFO there must not hang us, a link not lead us away.
func readPlain(path string) ([]byte, error) {
	fi, err := os.Lstat(path)
	if err != nil {
		return nil, err
	}
	if !fi.Mode().IsRegular() || fi.Size() > 1<<20 {
		return nil, schema.Errorf(schema.UnsafeStatePath, "%s in the store's nats folder is no plain file", filepath.Base(path))
	}
	return os.ReadFile(path)
}

func (a *app) agentFile() string { return filepath.Join(a.dir, "nats", "agent.json") }

func (a *app) workerFile() string { return filepath.Join(a.dir, "nats", "worker.json") }

func (a *app) contextFile() string { return filepath.Join(a.dir, "nats", "context.json") }

// serveLock gives the lock that a serve on this store holds. It is asked for
// read-only, so that looking at it works on a store that cannot be written.
func (a *app) serveLock() *flock.Flock {
	return flock.New(filepath.Join(a.dir, "nats", "lock"), flock.SetFlag(os.O_RDONLY|syscall.O_NONBLOCK))
}

// server names the process that runs serve on this store.
func (a *app) server() string {
	b, err := readPlain(filepath.Join(a.dir, "nats", "lock"))
	if pid, e := strconv.Atoi(strings.TrimSpace(string(b))); err == nil && e == nil && pid > 0 {
		return fmt.Sprintf("process %d", pid)
	}
	return "that process"
}

// served reports whether a serve holds the store's queue.
func (a *app) served() (bool, error) {
	if err := a.checkDir(); err != nil {
		return false, err
	}
	if _, err := readPlain(filepath.Join(a.dir, "nats", "lock")); errors.Is(err, fs.ErrNotExist) {
		return false, nil
	} else if errors.Is(err, schema.UnsafeStatePath) {
		return false, err
	}
	l := a.serveLock()
	ok, err := l.TryRLock()
	if err != nil {
		return false, schema.Errorf(schema.LogReadFailed, "the store's server lock cannot be looked at").Cause(err)
	}
	return !ok, l.Close()
}
