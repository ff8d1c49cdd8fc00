package mcp_test

import (
	"context"
	"encoding/json" // of the SDK's values
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"steno/executor"
	"steno/schema"
)

// web is an MCP server by HTTP, made with the official SDK.
type web struct {
	*httptest.Server
	mcp     *sdk.Server
	handler http.Handler
	calls   atomic.Int32
	auth    atomic.Value // of the last request
	refuse  atomic.Int32 // the status of every answer, 0 for its own
	entered chan struct{}
	left    chan struct{} // a call was told to end
	stop    chan struct{}
}

func newWeb() *web {
	w := &web{mcp: sdk.NewServer(&sdk.Implementation{Name: "web", Version: "1"}, nil), entered: make(chan struct{}, 9), left: make(chan struct{}, 9), stop: make(chan struct{})}
	w.auth.Store("")
	add := func(name string, do func(ctx context.Context, req *sdk.CallToolRequest) (*sdk.CallToolResult, error)) {
		w.mcp.AddTool(&sdk.Tool{Name: name, Description: "Does " + name + ".", InputSchema: json.RawMessage(rawInput)},
			func(ctx context.Context, req *sdk.CallToolRequest) (*sdk.CallToolResult, error) {
				w.calls.Add(1)
				return do(ctx, req)
			})
	}
	say := func(s string) (*sdk.CallToolResult, error) {
		return &sdk.CallToolResult{Content: []sdk.Content{&sdk.TextContent{Text: s}}}, nil
	}
	add("echo", func(_ context.Context, req *sdk.CallToolRequest) (*sdk.CallToolResult, error) {
		return say(string(req.Params.Arguments))
	})
	add("long", func(context.Context, *sdk.CallToolRequest) (*sdk.CallToolResult, error) {
		return say(strings.Repeat("0123456789abcdef", 4<<20))
	})
	add("hang", func(ctx context.Context, _ *sdk.CallToolRequest) (*sdk.CallToolResult, error) {
		w.entered <- struct{}{}
		<-ctx.Done()
		w.left <- struct{}{}
		return nil, ctx.Err()
	})
	add("break", func(ctx context.Context, _ *sdk.CallToolRequest) (*sdk.CallToolResult, error) {
		go w.CloseClientConnections()
		<-w.stop
		return nil, errors.New("stopped")
	})
	w.handler = sdk.NewStreamableHTTPHandler(func(*http.Request) *sdk.Server { return w.mcp }, nil)
	w.Server = httptest.NewServer(http.HandlerFunc(func(out http.ResponseWriter, req *http.Request) {
		w.auth.Store(req.Header.Get("Authorization"))
		if status := int(w.refuse.Load()); status >= 300 && status < 400 {
			http.Redirect(out, req, "http://example.invalid/", status)
		} else if status != 0 {
			http.Error(out, "refused", status)
		} else {
			w.handler.ServeHTTP(out, req)
		}
	}))
	return w
}

// end ends it, with the sessions that it has.
func (w *web) end() {
	w.Listener.Close()
	w.CloseClientConnections()
	w.Close()
	for s := range w.mcp.Sessions() {
		_ = s.Close()
	}
}

func TestAnMCPServerByHTTP(t *testing.T) {
	t.Parallel()
	w := newWeb()
	defer w.end()
	b := idle(t)
	defer func() { b.all.Close() }()
	defer close(w.stop)
	b.startAs(executor.MCPServer{Name: "raw", URL: w.URL, Headers: map[string]string{"Authorization": "Bearer abc-123456"}})
	b.want("echo", `{"n":12345678901234567890}`, `{"n":12345678901234567890}`)
	if got := w.auth.Load(); got != "Bearer abc-123456" {
		t.Errorf("it is asked with %q", got)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		_, err := b.call(ctx, "hang", `{}`)
		done <- err
	}()
	<-w.entered
	cancel()
	if err := <-done; err != context.Canceled {
		t.Errorf("a call that is cancelled ends with %v", err)
	}
	<-w.left
	b.wantKind("long", schema.PayloadTooLarge)
	b.back()
	before := w.calls.Load()
	b.wantKind("break", schema.Interrupted)
	if n := w.calls.Load() - before; n != 1 {
		t.Errorf("the call reached it %d times", n)
	}
	b.back()
	b.want("echo", `{}`, `{}`)

	w.mcp.AddTool(&sdk.Tool{Name: "added", Description: "Added.", InputSchema: json.RawMessage(rawInput)},
		func(context.Context, *sdk.CallToolRequest) (*sdk.CallToolResult, error) {
			return &sdk.CallToolResult{}, nil
		})
	b.eventually("a tool has come", func() bool { _, err := b.reg.Get("raw_added"); return err == nil })
}

func TestAnMCPServerByHTTPThatRefuses(t *testing.T) {
	t.Parallel()
	for _, status := range []int32{http.StatusUnauthorized, http.StatusTemporaryRedirect, http.StatusInternalServerError} {
		w := newWeb()
		defer w.end()
		w.refuse.Store(status)
		b := idle(t).startAs(executor.MCPServer{Name: "raw", URL: w.URL, Headers: map[string]string{"Authorization": "Bearer abc-123456"}})
		if s := b.all.Status()[0]; s.Connected || strings.Contains(b.log.String(), "abc-123456") {
			t.Errorf("%d: it stands as %+v\n%s", status, s, b.log)
		}
		w.refuse.Store(0)
		b.back()
		b.want("echo", `{}`, `{}`)
		b.all.Close()
	}
}

func TestAnMCPServerByHTTPThatGoesAway(t *testing.T) {
	t.Parallel()
	w := newWeb()
	b := idle(t).startAs(executor.MCPServer{Name: "raw", URL: w.URL})
	b.want("echo", `{}`, `{}`)
	addr := w.Listener.Addr().String()
	w.end()
	tool, err := b.reg.Get("raw_echo")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := b.call(t.Context(), "echo", `{}`); schema.KindOf(err) != schema.Unavailable && schema.KindOf(err) != schema.Interrupted {
		t.Errorf("a call is %v", err)
	}
	b.eventually("it is known to be away", func() bool { return tool.Ready() != nil })
	b.wantKind("echo", schema.Unavailable)
	if b.reg.Remove("raw_none"); len(b.reg.Tools()) == 0 {
		t.Error("its tools are forgotten")
	}
	again, err := net.Listen("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	h := httptest.NewUnstartedServer(w.handler)
	h.Listener.Close()
	h.Listener = again
	h.Start()
	defer func() {
		h.Close()
		w.end()
	}()
	defer b.all.Close()
	b.back()
	b.want("echo", `{}`, `{}`)
}

// What stands between may have passed the call on before it said so.
func TestAnMCPServerByHTTPWhoseGatewayFails(t *testing.T) {
	t.Parallel()
	for _, status := range []int32{http.StatusGatewayTimeout, http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusInternalServerError} {
		w := newWeb()
		b := idle(t).startAs(executor.MCPServer{Name: "raw", URL: w.URL})
		b.want("echo", `{}`, `{}`)
		w.refuse.Store(status)
		if _, err := b.call(t.Context(), "echo", `{}`); schema.KindOf(err) != schema.Interrupted {
			t.Errorf("%d: %v", status, err)
		}
		b.all.Close()
		w.end()
	}
}
