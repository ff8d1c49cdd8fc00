package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/nats-io/nats.go"
	"github.com/oklog/ulid/v2"
	"github.com/spf13/cobra"

	"steno/executor"
	"steno/executor/mcp"
	"steno/journal"
	"steno/schema"
)

// A gateway is what the command line says of one.
type gateway struct {
	session   string
	workspace string
	name, url string   // of the server, in place of argv
	argv      []string // of its program
	wait      time.Duration
}

const sessionAuto = "auto"

func (a *app) mcpCommand() *cobra.Command {
	var g gateway
	c := &cobra.Command{
		Use: "mcp -- COMMAND ARGS…", Short: "stand before an MCP server: record each call, hold what needs an answer",
		Long: "mcp stands in the place of an MCP server in the configuration of a host. It starts the server, or connects to it, and\n" +
			"passes on all that both say, as it is, but for calls of tools: each is recorded before the server hears of it, and its\n" +
			"result before the host does. What a policy wants a person to be asked about waits until steno approvals allow, or deny.\n\n" +
			"With --session auto each host has a session of its own. Another ID is gone on with, or made. A call whose _meta has\n" +
			"steno/call_id gets the recorded answer when it is made again. Standard output belongs to the protocol.",
		Example: "  steno mcp -- npx some-server ./data\n  steno mcp --session notes --policy policy.yaml -- npx some-server\n" +
			"  steno mcp --url http://127.0.0.1:8080/mcp\n  steno mcp --tools tools.yaml --name files",
		RunE: func(c *cobra.Command, words []string) error {
			ways := 0
			for _, given := range []bool{len(words) > 0, g.url != "", g.name != ""} {
				if given {
					ways++
				}
			}
			switch {
			case ways != 1:
				return usage("name one server: a command behind --, --url, or --name with --tools").With("next", "run: steno mcp --help")
			case (g.name != "") != (a.tools != ""):
				return usage("--name is of a server in the file of --tools").With("next", "run: steno mcp --help")
			case a.nats != "":
				return usage("a gateway keeps its record itself, in --dir; leave --nats out")
			case g.wait <= 0:
				return usage("--wait is how long a host is kept waiting for a person's answer")
			}
			g.argv = words
			return a.gateway(c.Context(), g)
		},
	}
	f := c.Flags()
	f.StringVar(&g.session, "session", sessionAuto, "the session to record in, made if it is not there; auto makes a new one for each host")
	f.StringVar(&g.workspace, "workspace", ".", "the folder that the session is about; recorded when it is made")
	f.StringVar(&g.url, "url", "", "the server is reached by HTTP (streamable) here; headers are for --name")
	f.StringVar(&g.name, "name", "", "the server is this one of mcpServers in the file of --tools")
	f.DurationVar(&g.wait, "wait", 50*time.Second, "how long a host is kept waiting for a person; then it may make the same call again, which gets the answer")
	a.logFlag(c)
	a.ownFlags(c)
	return c
}

// gateway serves one host.
func (a *app) gateway(ctx context.Context, how gateway) (err error) {
	workspace, err := filepath.Abs(how.workspace)
	if err != nil {
		return schema.Errorf(schema.InvalidConfig, "--workspace has no absolute form").Cause(err)
	}
	id := ulid.Make().String()
	session := how.session
	if session == sessionAuto {
		session = id
	}
	if err := schema.CheckSession(session); err != nil {
		return err
	}
	server := executor.MCPServer{Name: "server", URL: how.url}
	if how.name != "" {
		if server, err = a.find(how.name); err != nil {
			return err
		}
	}
	b := &backend{}
	defer func() { err = errors.Join(err, b.close()) }()
	cfg, forget, err := a.gatewayExecutor(ctx, b)
	if err != nil {
		return err
	}
	defer forget()
	log := slog.New(cfg.Redact.Handler(slog.NewTextHandler(a.err, &slog.HandlerOptions{Level: slog.LevelWarn})))
	connect := mcp.Command(how.argv, a.err, log)
	if len(how.argv) == 0 {
		connect = mcp.Named(server, mcp.Options{Protect: cfg.Protect, Redact: cfg.Redact, Logger: log})
	}
	known, err := mcp.Recorded(ctx, b.store, session, 0)
	if err != nil && !errors.Is(err, schema.NotFound) {
		return err
	}
	host, err := mcp.Host{In: a.in, Out: a.out}.Connect(ctx)
	if err != nil {
		return err
	}
	g := mcp.NewGateway(mcp.GatewayConfig{Host: host, Connect: connect, Session: session, Client: b.client, Tools: cfg.Tools, Do: b.exec.Do,
		Whole: func(ctx context.Context, data []byte) ([]byte, error) {
			return journal.Whole(ctx, b.store, session, data)
		},
		Known: known, Name: how.toolName,
		Over: func(definition jsontext.Value, t *executor.Tool) { mcp.Vouched(server, definition, t) }, Actor: executor.Actor{ID: byUser()}, Wait: how.wait, Here: a.here, Log: log}, id)
	if err := g.Connect(ctx); err != nil {
		return err
	}
	defer func() {
		// Calls that run have their grace, and their answers are given.
		err = errors.Join(err, b.drain())
		g.Close()
	}()
	opened, err := b.client.Open(ctx, executor.OpenRequest{Session: session, Workspace: workspace})
	if err == nil {
		err = b.exec.Take(ctx, session)
	}
	if errors.Is(err, schema.SessionWriterActive) {
		return schema.Errorf(schema.SessionWriterActive, "another process holds session %s, and one gateway has a session at a time", session).With("session", session).
			With("holder", schema.AsError(err).Details["holder"]).Cause(err).With("next", "give each host a session of its own, with --session auto; or have the holder let go of it: steno lease release "+session)
	}
	if err != nil {
		return err
	}
	if !opened.Created {
		waiting, err := executor.Approvals(ctx, b.store, session)
		if err != nil {
			return err
		}
		for _, q := range waiting {
			g.Left(q.CallID, q.Tool, q.ArgsSHA256)
		}
	}
	stop, err := tellQuestions(b.conn, session, g)
	if err != nil {
		return err
	}
	defer stop()
	fmt.Fprintf(a.err, "session %s\nlog     %s\n", session, filepath.Join(a.dir, "sessions", session))
	defer a.tellStopping(ctx, grace)()
	return g.Serve(ctx)
}

// tellQuestions has the gateway know when a person is asked about a call, and has
// answered.
func tellQuestions(nc *nats.Conn, session string, g *mcp.Gateway) (stop func(), err error) {
	var subs []*nats.Subscription
	for typ, tell := range map[string]func(string){schema.TypeApprovalRequested: g.Asked, schema.TypeDecision: g.Answered} {
		sub, err := nc.Subscribe("steno.v1.event."+session+"."+typ, func(m *nats.Msg) {
			var e struct {
				Data struct {
					CallID string `json:"call_id"`
				} `json:"data"`
			}
			if json.Unmarshal(m.Data, &e) == nil {
				tell(e.Data.CallID)
			}
		})
		if err != nil {
			return nil, schema.Errorf(schema.Unavailable, "the embedded NATS server does not answer").Cause(err)
		}
		subs = append(subs, sub)
	}
	return func() {
		for _, sub := range subs {
			_ = sub.Unsubscribe() // the connection may have gone
		}
	}, nil
}

// find looks for the server in the file of --tools.
func (a *app) find(name string) (executor.MCPServer, error) {
	file, err := a.toolsFile()
	if err != nil {
		return executor.MCPServer{}, err
	}
	var names []string
	for _, s := range file.Servers {
		if s.Name == name {
			return s, nil
		}
		names = append(names, s.Name)
	}
	return executor.MCPServer{}, schema.Errorf(schema.InvalidConfig, "the file %s has no MCP server %q", a.tools, name).With("known", names).
		With("next", "name one of them, or add it to mcpServers")
}

// gatewayExecutor is an executor of this process that others on the store can
// reach, to answer questions and to stop calls. forget takes its address away.
func (a *app) gatewayExecutor(ctx context.Context, b *backend) (cfg executor.Config, forget func(), err error) {
	if b.store, err = a.store(true); err != nil {
		return cfg, nil, err
	}
	o, err := listening("127.0.0.1:0")
	if err != nil {
		return cfg, nil, err
	}
	o.MaxPayload = executor.MaxRequest
	if b.server, b.conn, err = startServer(o); err != nil {
		return cfg, nil, err
	}
	cfg, err = a.executorConfig(b.conn, b.store, slog.LevelError)
	if err != nil {
		return cfg, nil, err
	}
	// The host decides what it makes of a call that repeats itself, and how many
	// it makes at a time, as it does without a gateway.
	cfg.Repeat, cfg.SessionCalls = executor.RepeatGuard{Warn: -1, Refuse: -1}, sideBySide
	x, err := executor.New(cfg)
	if err != nil {
		return cfg, nil, err
	}
	if err := x.Start(ctx); err != nil {
		return cfg, nil, err
	}
	b.exec = x
	b.calls, b.cancel = outliving(ctx, grace)
	if b.client, err = executor.NewClient(b.conn, ""); err != nil {
		return cfg, nil, err
	}
	forget, err = a.leaveAddress(cfg.Holder.ID, natsContext{Description: "steno mcp", URL: clientURL(b.server), User: o.Username, Password: o.Password})
	return cfg, forget, err
}

// sideBySide is how many calls of a host run at a time.
const sideBySide = 256

// Holders that listen for nobody but those who may write the store leave their
// address there.
func (a *app) addresses() string { return filepath.Join(a.dir, "nats", "holders") }

func (a *app) leaveAddress(holder string, at natsContext) (forget func(), err error) {
	if err := os.MkdirAll(a.addresses(), 0o700); err != nil {
		return nil, schema.Errorf(schema.LogWriteFailed, "the server's folder cannot be written").Cause(err)
	}
	left, err := os.ReadDir(a.addresses())
	if err != nil {
		return nil, schema.Errorf(schema.LogReadFailed, "the server's folder cannot be read").Cause(err)
	}
	for _, e := range left { // by those that were killed
		old := filepath.Join(a.addresses(), e.Name())
		if nc, err := dial(old); err == nil {
			nc.Close()
		} else if errors.Is(err, schema.Unavailable) || errors.Is(err, schema.NotAuthenticated) {
			_ = os.Remove(old) // the next one tries again
		}
	}
	path := filepath.Join(a.addresses(), holder+".json")
	return func() { _ = os.Remove(path) }, savePrivate(path, at) // as above
}

// reach connects to a holder by the address that it has left; nil if it cannot be
// reached.
func (a *app) reach(holder string) *nats.Conn {
	if !schema.ValidSession(holder) { // it becomes part of a path
		return nil
	}
	path := filepath.Join(a.addresses(), holder+".json")
	if _, err := readPlain(path); err != nil {
		return nil
	}
	nc, err := dial(path)
	if err != nil {
		return nil
	}
	return nc
}

// connectTo is connect for what is asked about a session whose holder may have left
// an address of its own.
func (a *app) connectTo(ctx context.Context, session string) (*nats.Conn, error) {
	if a.nats == "" {
		store, err := a.store(false)
		if err != nil {
			return nil, err
		}
		st, err := store.Lease(ctx, session)
		_ = store.Close() // nothing was written
		if err == nil && st.Holder != nil {
			if nc := a.reach(st.Holder.ID); nc != nil {
				return nc, nil
			}
		}
	}
	return a.connect(ctx)
}

// toolName is the name of a tool in the log. A server of a tools file has the names
// that executors give it, so that a policy is about the same tools. No name is one that
// an executor has for a tool of its own: whoever takes the session over would run that
// in its place.
func (how *gateway) toolName(original string) string {
	return schema.ToolName(cmp.Or(how.name, executor.GatewayServer) + "_" + original)
}
