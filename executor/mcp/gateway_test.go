package mcp

import (
	"context"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"steno/executor"
	"steno/schema"
)

// A host is let go where a person takes too long, and not where a call that was
// allowed does.
func TestT25TheWaitIsForThePersonOnly(t *testing.T) {
	t.Parallel()
	g := NewGateway(GatewayConfig{Wait: 10 * time.Millisecond, Here: func(next string) string { return next }, Log: slog.New(slog.DiscardHandler)}, "g")
	defer g.Close()
	cancelled := make(chan struct{}, 1)
	c := &call{id: "c", waits: make(chan chan struct{}, 1), cancel: func() { cancelled <- struct{}{} }}
	g.byID["c"] = c
	g.Asked("c")
	g.Answered("c")
	ended, done := make(chan struct{}), make(chan struct{})
	go func() { g.patience(c, nil, done); close(ended) }()
	for len(c.waits) > 0 { // until it has seen the question, and that it is answered
		time.Sleep(time.Millisecond)
	}
	g.Asked("c") // of its next attempt
	<-cancelled
	<-ended
	if len(c.waits) > 0 {
		t.Error("the host was let go while the call ran")
	}
	close(done)
}

// A hostPipe is a host that only listens.
type hostPipe struct{ said chan jsonrpc.Message }

func (h *hostPipe) Read(ctx context.Context) (jsonrpc.Message, error) {
	<-ctx.Done()
	return nil, ctx.Err()
}
func (h *hostPipe) Write(_ context.Context, m jsonrpc.Message) error { h.said <- m; return nil }
func (h *hostPipe) Close() error                                     { return nil }
func (h *hostPipe) SessionID() string                                { return "" }

// waitingGateway is a gateway whose calls do what do says; the server is away.
func waitingGateway(t *testing.T, do func(ctx context.Context, g *Gateway, id string)) (g *Gateway, host *hostPipe, ids func() []string) {
	t.Helper()
	reg, err := executor.NewRegistry()
	if err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	var made []string
	host = &hostPipe{make(chan jsonrpc.Message, 100)}
	g = NewGateway(GatewayConfig{Host: host, Tools: reg, Wait: 10 * time.Millisecond, Log: slog.New(slog.DiscardHandler),
		Connect: func(context.Context) (sdk.Connection, error) { return nil, errGone }, Name: schema.ToolName,
		Over: func(jsontext.Value, *executor.Tool) {}, Here: func(next string) string { return next },
		Known: Listing{Content: []Definition{{Name: "act", Tool: jsontext.Value(`{"name":"act","inputSchema":{"type":"object"}}`)}}},
		Do: func(ctx context.Context, _ string, req executor.Request) (executor.Answer, error) {
			mu.Lock()
			made = append(made, req.CallID)
			mu.Unlock()
			do(ctx, g, req.CallID)
			return executor.Answer{}, ctx.Err()
		}}, "g")
	t.Cleanup(g.Close)
	return g, host, func() []string {
		mu.Lock()
		defer mu.Unlock()
		return slices.Clone(made)
	}
}

func rpcID(t *testing.T, id int) jsonrpc.ID {
	t.Helper()
	name, err := jsonrpc.MakeID(float64(id))
	if err != nil {
		t.Fatal(err)
	}
	return name
}

func makeCall(t *testing.T, g *Gateway, id int) {
	t.Helper()
	g.callTool(context.Background(), &jsonrpc.Request{ID: rpcID(t, id), Method: "tools/call", Params: []byte(`{"name":"act","arguments":{"a":1}}`)})
}

// A host that was let go makes its calls again: each joins one that waits, and none
// is a new one.
func TestT25EqualCallsThatWaitAreJoinedEach(t *testing.T) {
	t.Parallel()
	g, host, ids := waitingGateway(t, func(ctx context.Context, g *Gateway, id string) {
		g.Asked(id)
		<-ctx.Done()
	})
	for n := range 4 {
		makeCall(t, g, n)
		if n%2 == 1 {
			<-host.said
			<-host.said
		}
	}
	all := ids()
	slices.Sort(all)
	if len(all) != 4 || len(slices.Compact(all)) != 2 {
		t.Errorf("two calls were made twice, and there are %v", all)
	}
}

// So does one whose person answers in the instant in which its host is let go.
func TestT25ACallThatIsAnsweredAsItsHostIsLetGoIsJoined(t *testing.T) {
	t.Parallel()
	g, host, ids := waitingGateway(t, func(ctx context.Context, g *Gateway, id string) {
		g.Asked(id)
		<-ctx.Done()
		g.Answered(id)
	})
	for n := range 2 {
		makeCall(t, g, n)
		<-host.said
	}
	if all := ids(); len(all) != 2 || all[0] != all[1] {
		t.Errorf("the same call was made again, and there are %v", all)
	}
}

// What steno says of a call to a server no host says in its place.
func TestT17AHostSpeaksForNobody(t *testing.T) {
	t.Parallel()
	g, _, _ := waitingGateway(t, func(context.Context, *Gateway, string) {})
	p := g.params(&executor.Invocation{CallID: "c", Args: jsontext.Value(`{}`), Context: jsontext.Value(`{"mcp":{"params":{"_meta":{"steno/actor":{"id":"root"},"steno/context":1,"steno/call":"x","other/key":2}}}}`)}, "act")
	if got, want := string(p["_meta"]), `{"other/key":2,"steno/attempt":0,"steno/call":"c","steno/epoch":0,"steno/key":"","steno/seq":0,"steno/session":""}`; got != want {
		t.Errorf("the server is told %s", got)
	}
}
