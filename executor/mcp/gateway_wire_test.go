package mcp

import (
	"context"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
)

// unread is a connection with a program that neither reads nor says anything.
func unread(t *testing.T) (sdk.Connection, error) {
	t.Helper()
	fromRead, fromWrite, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	toRead, toWrite, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	t.Cleanup(func() { _, _ = fromWrite.Close(), toRead.Close() })
	return (&sdk.IOTransport{Reader: fromRead, Writer: patientWriter{toWrite, 20 * time.Millisecond}}).Connect(t.Context())
}

// A server that does not read any more is given up, and started again for what is asked
// of it next.
func TestAServerThatReadsNothingIsStartedAgain(t *testing.T) {
	t.Parallel()
	g, host, _ := waitingGateway(t, func(context.Context, *Gateway, string) {})
	started := 0
	g.cfg.Connect = func(context.Context) (sdk.Connection, error) { started++; return unread(t) }
	for n, method := range []string{"resources/list", "notifications/roots/list_changed", "resources/list"} {
		m := &jsonrpc.Request{Method: method, Params: []byte(`{"t":"` + strings.Repeat("x", 1<<20) + `"}`)}
		if !strings.HasPrefix(method, "notifications/") {
			m.ID = rpcID(t, n)
		}
		g.fromHost(t.Context(), m)
		<-g.last
		if m.IsCall() {
			if r, is := (<-host.said).(*jsonrpc.Response); !is || r.Error == nil || r.ID != m.ID {
				t.Fatalf("the host hears %v", r)
			}
		}
		g.mu.Lock()
		l := g.wire
		g.mu.Unlock()
		<-l.dead
		if started != n+1 {
			t.Fatalf("it was started %d times, want %d", started, n+1)
		}
		if l.why == nil || !strings.Contains(l.why.Error(), "does not read") {
			t.Errorf("the connection has ended since %v", l.why)
		}
	}
}

// The id of a request that has no answer yet is taken, whatever is asked under it.
func TestAnIDThatIsInUseIsRefused(t *testing.T) {
	t.Parallel()
	began, end := make(chan struct{}, 3), make(chan struct{})
	g, host, ids := waitingGateway(t, func(context.Context, *Gateway, string) { began <- struct{}{}; <-end })
	toServer, server := sdk.NewInMemoryTransports()
	g.cfg.Connect = toServer.Connect
	far, err := server.Connect(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer far.Close()
	ask := func(id int, method string) {
		g.fromHost(t.Context(), &jsonrpc.Request{ID: rpcID(t, id), Method: method, Params: []byte(`{"name":"act"}`)})
	}
	refused := func(id int) {
		t.Helper()
		if r, is := (<-host.said).(*jsonrpc.Response); !is || r.Error != error(errInUse) || r.ID != rpcID(t, id) {
			t.Errorf("the host hears %+v", r)
		}
	}
	g.cfg.Whole = func(context.Context, []byte) ([]byte, error) { return nil, errGone }
	g.names["act"] = named{original: "act", said: "{}"}
	ask(1, "tools/call")
	<-began
	ask(1, "tools/call")
	refused(1)
	ask(1, "ping")
	refused(1)
	ask(2, "ping")
	if m, err := far.Read(t.Context()); err != nil || m.(*jsonrpc.Request).ID != rpcID(t, 2) {
		t.Fatalf("the server hears %v, %v", m, err)
	}
	ask(2, "ping")
	refused(2)
	if err := far.Write(t.Context(), &jsonrpc.Response{ID: rpcID(t, 2), Result: []byte("{}")}); err != nil {
		t.Fatal(err)
	}
	if r := (<-host.said).(*jsonrpc.Response); r.ID != rpcID(t, 2) || r.Error != nil {
		t.Errorf("the host hears %+v", r)
	}
	close(end)
	<-host.said // of the first call
	g.mu.Lock()
	g.names["act"] = named{original: "act", said: "{}"} // it is not asked again what it has
	g.mu.Unlock()
	ask(1, "tools/call")
	<-host.said
	if all := ids(); len(all) != 2 {
		t.Errorf("these calls were made: %v", all)
	}
}
