package mcp

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"steno/executor"
	"steno/schema"
)

// GatewayConfig says what stands on both sides of a gateway, and where it keeps
// its record.
type GatewayConfig struct {
	// Host is the connection with the program that makes the calls.
	Host sdk.Connection
	// Connect begins a connection with the server, and does so again when one has
	// ended. The server's standard error is its own.
	Connect func(ctx context.Context) (sdk.Connection, error)
	// Session is where the calls are recorded; Client speaks to the executor that
	// has Tools, and Do is its Do.
	Session string
	Client  *executor.Client
	Tools   *executor.Registry
	Do      func(ctx context.Context, session string, req executor.Request) (executor.Answer, error)
	// Whole puts back what a result has beside the log.
	Whole func(ctx context.Context, data []byte) ([]byte, error)
	// Known is what the session has of the server already.
	Known Listing
	// Name gives a tool of the server its name in the log, and Over what the
	// operator says of it.
	Name func(original string) string
	Over func(definition jsontext.Value, t *executor.Tool)
	// Actor is on whose behalf calls are made.
	Actor executor.Actor
	// Wait is how long a request is held for a call that waits for a person; then
	// the host is told so, and the same call joins it later.
	Wait time.Duration
	// Here makes of a next step one that can be typed anywhere, as with the store's
	// folder in it.
	Here func(next string) string
	// Log gets what people need to know.
	Log *slog.Logger
}

// A Gateway stands between a host and a server of the Model Context Protocol. It
// passes on whatever they say to each other as it is, but for calls of tools:
// those go through an executor, which records each before the server hears of it,
// and its result before the host does.
type Gateway struct {
	cfg GatewayConfig
	id  string // of this connection; begins the ids of its calls

	life  context.Context // of what is asked beside the calls
	end   context.CancelFunc
	ready chan struct{} // closed once the server may be asked
	begin sync.Once
	work  sync.WaitGroup // answers that are still to be given

	// What the host says to the server, in its order: one that does not read must
	// not keep us from reading what the host says.
	pass chan func()
	last chan struct{} // closed once the last of them is passed on; of whoever reads the host

	connecting sync.Mutex // held while a connection is made
	listing    sync.Mutex // held while the tools are listed

	mu       sync.Mutex // guards the rest
	ending   bool       // no more work begins
	closed   bool
	wire     *wire
	init     json.RawMessage // what the host has said in initialize
	inited   bool            // it has said that it is ready
	meta     json.RawMessage // what its last request said of the protocol, nil if nothing
	made     uint64          // calls
	calls    map[jsonrpc.ID]*call
	byID     map[string]*call    // those that are under way, by call id
	waiting  map[string]bool     // calls of the session that wait for a person, by their ids
	left     map[string][]string // calls that wait for a person and for which nobody waits: their ids
	asked    uint64              // requests of servers that the host was asked
	asks     map[string]asked
	known    Listing          // but for its Content
	recorded string           // the sum of what the session has of it
	names    map[string]named // of tools that can be called, by their names in the log

	// Of a list that is being read; guarded by listing.
	pages   []Definition
	next    string // the cursor of the page behind them
	inOrder bool   // they are all there is before it
}

// named is a tool of the server. What the record says of it has been appended to
// the session by whoever may, so only what the server itself has said counts.
type named struct {
	original string
	said     string // its definition, "" if this server has not said it, or may say another
}

// asked is a request of a server that the host has.
type asked struct {
	by *wire
	id jsonrpc.ID
}

// A call is one that the host waits for.
type call struct {
	id, name, original string
	key                string // stands for the tool and the arguments
	meta               json.RawMessage
	cancel             context.CancelFunc
	waits              chan chan struct{} // gets answered when a person is asked
	asks               bool               // a person is asked; guarded by Gateway.mu
	held               bool               // a person is or was asked; guarded by Gateway.mu
	answered           chan struct{}      // closed when the person has; guarded by Gateway.mu
	given              bool               // the host does not want an answer; guarded by Gateway.mu
}

// NewGateway makes a gateway, which works until Close. id begins the ids of the
// calls that the host gives none.
func NewGateway(cfg GatewayConfig, id string) *Gateway {
	g := &Gateway{cfg: cfg, id: id, ready: make(chan struct{}), pass: make(chan func(), maxPass), last: make(chan struct{}), calls: map[jsonrpc.ID]*call{}, byID: map[string]*call{}, waiting: map[string]bool{}, left: map[string][]string{},
		asks: map[string]asked{}, names: map[string]named{}, known: Listing{Server: cfg.Known.Server}, recorded: cfg.Known.sum()}
	close(g.last)
	g.life, g.end = context.WithCancel(context.Background())
	g.learn(cfg.Known.Content, false)
	g.work.Go(g.passOn)
	return g
}

// Connect begins the first connection with the server.
func (g *Gateway) Connect(ctx context.Context) error {
	_, err := g.connected(ctx)
	return err
}

// Serve passes on what the host says, until it goes or ctx ends. Answers to calls
// that are under way are given as long as there is a connection.
func (g *Gateway) Serve(ctx context.Context) error {
	said := make(chan error, 1)
	go func() {
		for {
			m, err := g.cfg.Host.Read(context.WithoutCancel(ctx))
			if err != nil {
				said <- err
				return
			}
			if ctx.Err() != nil {
				return // no call begins any more
			}
			g.fromHost(ctx, m)
		}
	}()
	select {
	case <-ctx.Done():
		return nil
	case err := <-said:
		select { // its last words
		case <-g.last:
		case <-ctx.Done():
		}
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrClosedPipe) {
			return nil
		}
		return schema.Errorf(schema.StdinError, "what the host says cannot be read").Cause(err)
	}
}

// Close ends the connection with the server, once the answers are given that the
// executor still had.
func (g *Gateway) Close() {
	g.end()
	g.mu.Lock()
	g.ending = true
	g.mu.Unlock()
	g.work.Wait()
	g.mu.Lock()
	g.closed = true
	l := g.wire
	g.mu.Unlock()
	g.begin.Do(func() { close(g.ready) })
	if l != nil {
		_ = l.conn.Close() // of a program that has ended by then
		<-l.dead
	}
}

// do begins work that Close waits for, unless that waits already.
func (g *Gateway) do(f func()) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.ending {
		g.work.Go(f)
	}
}

// fromServer takes what the server says that is no answer to a request of ours.
func (g *Gateway) fromServer(l *wire, m jsonrpc.Message) {
	switch m := m.(type) {
	case *jsonrpc.Response:
		r := l.relayedFor(m.ID)
		switch {
		case r == nil:
		case r.Method == "tools/list" && m.Error == nil:
			g.do(func() { g.listed(r, m) }) // which records them
		default:
			if (r.Method == "initialize" || r.Method == "server/discover") && m.Error == nil {
				g.mu.Lock()
				if text, _, err := schema.Compact(nil, m.Result, 2); err == nil {
					g.known.Server = text
				}
				g.mu.Unlock()
			}
			g.tell(m)
		}
	case *jsonrpc.Request:
		if !m.IsCall() {
			if m.Method == "notifications/tools/list_changed" {
				g.forget()
			}
			g.tell(m)
			return
		}
		g.mu.Lock()
		if len(g.asks) >= maxAsks {
			g.mu.Unlock()
			// Not from here: a server that does not read must not keep us from reading.
			g.do(func() {
				_ = l.write(context.Background(), &jsonrpc.Response{ID: m.ID, Error: protocolError(schema.Errorf(schema.Backpressure, "the host has not answered %d requests", maxAsks))})
			})
			return
		}
		g.asked++
		name := fmt.Sprintf("%s%d", ours, g.asked)
		g.asks[name] = asked{l, m.ID}
		g.mu.Unlock()
		id, err := jsonrpc.MakeID(name)
		if err == nil {
			g.tell(&jsonrpc.Request{ID: id, Method: m.Method, Params: m.Params})
		}
	}
}

// maxAsks bounds the requests of servers that a host has not answered.
const maxAsks = 256

// tell says something to the host. One that has gone is noticed where it is read.
func (g *Gateway) tell(m jsonrpc.Message) { _ = g.cfg.Host.Write(context.Background(), m) }

// connected gives the connection with the server, a new one if the last has ended.
func (g *Gateway) connected(ctx context.Context) (*wire, error) {
	g.connecting.Lock()
	defer g.connecting.Unlock()
	g.mu.Lock()
	l, closed, init, inited := g.wire, g.closed, g.init, g.inited
	g.mu.Unlock()
	if closed {
		return nil, errGone
	}
	if l != nil {
		select {
		case <-l.dead:
		default:
			return l, nil
		}
	}
	again := l != nil
	conn, err := g.cfg.Connect(ctx)
	if err != nil {
		return nil, schema.Errorf(schema.CommandFailed, "the MCP server cannot be reached").Cause(err).With("cause", err.Error())
	}
	l = newWire(conn, g.fromServer)
	go g.follow(l)
	if again && init != nil {
		// The host has said this once, and need not know that it is said again.
		wait, cancel := context.WithTimeout(ctx, initWait)
		defer cancel()
		if _, _, err := l.request(wait, "initialize", init); err != nil {
			return nil, errors.Join(errGone, err, conn.Close())
		}
		if inited {
			l.notify("notifications/initialized", object{})
		}
	}
	g.forget()
	g.mu.Lock()
	g.wire = l
	g.mu.Unlock()
	return l, nil
}

// forget has the server asked for its tools before the next call: it may say
// something else of them now.
func (g *Gateway) forget() {
	var all []Definition
	g.mu.Lock()
	for name, is := range g.names {
		if is.said != "" {
			all = append(all, Definition{name, jsontext.Value(is.said)})
		}
	}
	g.mu.Unlock()
	g.learn(all, false)
}

// initWait is how long a server that was started again may take to begin.
const initWait = time.Minute

// follow hears a connection to its end, and answers for it then.
func (g *Gateway) follow(l *wire) {
	unanswered := l.read(context.Background())
	defer l.conn.Close()
	g.mu.Lock()
	closed := g.closed
	for name, a := range g.asks {
		if a.by == l {
			delete(g.asks, name)
		}
	}
	g.mu.Unlock()
	if closed {
		return
	}
	g.cfg.Log.Warn("the MCP server has ended; it is started again when it is asked for something", "why", l.why)
	for _, r := range unanswered {
		g.tell(&jsonrpc.Response{ID: r.ID, Error: protocolError(g.down(errGone))})
	}
}

// down is why the server does not answer.
func (g *Gateway) down(err error) error {
	if errors.Is(err, errGone) {
		return schema.Errorf(schema.Unavailable, "the MCP server has ended before it answered; ask again").Cause(err)
	}
	return err
}

// object is params of a request as members.
type object map[string]json.RawMessage

// text has the members as they are: encoding/json would write some anew.
func (o object) text() json.RawMessage {
	var b schema.Object
	for _, key := range slices.Sorted(maps.Keys(o)) {
		b.Raw(key, o[key])
	}
	return b.Bytes()
}

// raw is text as JSON.
func raw(text string) json.RawMessage {
	b, _ := jsontext.AppendQuote(nil, text) // an error only says that text was replaced
	return json.RawMessage(b)
}
