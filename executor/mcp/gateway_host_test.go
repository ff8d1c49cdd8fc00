package mcp

import (
	"bufio"
	"context"
	"io"
	"strings"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
)

// Whatever a host writes, each line gets an answer or is a message, the next one is
// read, and ids come back as they came.
func TestWhatAHostWritesIsAMessageOrRefused(t *testing.T) {
	t.Parallel()
	toUs, in := io.Pipe()
	out, fromUs := io.Pipe()
	c, err := Host{In: toUs, Out: fromUs}.Connect(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	defer in.Close()
	answers := bufio.NewReader(out)
	said := func(line string) string {
		t.Helper()
		go io.WriteString(in, line+"\n")
		answer, err := answers.ReadString('\n')
		if err != nil {
			t.Fatal(err)
		}
		return strings.TrimSuffix(answer, "\n")
	}
	// Every request is answered with an empty result.
	go func() {
		for {
			m, err := c.Read(t.Context())
			if err != nil {
				return
			}
			if r, is := m.(*jsonrpc.Request); is && r.IsCall() {
				_ = c.Write(t.Context(), &jsonrpc.Response{ID: r.ID, Result: []byte(`{"id":0}`)})
			} else if is {
				_ = c.Write(t.Context(), &jsonrpc.Request{Method: r.Method, Params: r.Params})
			}
		}
	}()
	for line, want := range map[string]string{
		`{"jsonrpc":"2.0","id":{"a":1},"method":"ping"}`:                                     `"id":null,"error":{"code":-32600`,
		`{"id":8,"method":"ping"}`:                                                           `"id":8,"error":{"code":-32600`,
		`{"jsonrpc":"1.0","id":9,"method":"ping"}`:                                           `"id":9,"error":{"code":-32600`,
		`{"jsonrpc":"2.0","id":12,"method":"ping"}{"jsonrpc":"2.0","id":13,"method":"ping"}`: `"id":12,"error":{"code":-32700`,
		`{"jsonrpc":"2.0","id":25,"method":"ping","params":{"x":` + strings.Repeat("[", 30000) + strings.Repeat("]", 30000) + `}}`: `"id":25,"error":{"code":-32700`,
		`[{"jsonrpc":"2.0","id":2,"method":"ping"}]`: `"id":null,"error":{"code":-32600`,
		`hello`: `"id":null,"error":{"code":-32700`,
		`{"jsonrpc":"2.0","id":1,"method":"ping","params":{"x":"` + strings.Repeat("x", maxMessage) + `"}}`: `"id":1,"error":{"code":-32600`,
		`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}`:                     `"params":{"requestId":1}`,
		`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1e2}}`:                   `"params":{"requestId":"steno:host:1e2"}`,
	} {
		if answer := said(line); !strings.Contains(answer, want) {
			t.Errorf("%.80s is answered with %.200s, want %s", line, answer, want)
		}
	}
	for _, id := range []string{`0`, `1`, `-7`, `1.5`, `1e2`, `12345678901234567890123`, `9007199254740993`, `"a"`, `""`, `"a\u0062"`, `"<b>"`, `"steno:1"`, `"steno:host:1"`, `"ü"`} {
		if answer, want := said(`{"jsonrpc":"2.0","id":`+id+`,"method":"ping"}`), `{"jsonrpc":"2.0","id":`+id+`,"result":{"id":0}}`; answer != want {
			t.Errorf("the id %s comes back in %s", id, answer)
		}
	}
}

// A byte order mark before the first message is not a part of it.
func TestAHostMayBeginWithAByteOrderMark(t *testing.T) {
	t.Parallel()
	c, err := Host{In: strings.NewReader("\ufeff" + `{"jsonrpc":"2.0","id":1,"method":"ping"}`), Out: io.Discard}.Connect(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if m, err := c.Read(t.Context()); err != nil || m.(*jsonrpc.Request).Method != "ping" {
		t.Errorf("it is heard as %v, %v", m, err)
	}
	if _, err := c.Read(t.Context()); err != io.EOF {
		t.Errorf("then %v", err)
	}
}

// While a server takes nothing, the host is heard all the same, and hears itself
// that too much waits.
func TestAServerThatDoesNotReadHoldsUpNoHost(t *testing.T) {
	t.Parallel()
	g, host, _ := waitingGateway(t, func(context.Context, *Gateway, string) {})
	asked, release := make(chan struct{}), make(chan struct{})
	g.cfg.Connect = func(context.Context) (sdk.Connection, error) { // it does not even start
		asked <- struct{}{}
		<-release
		return nil, errGone
	}
	ping := func(id int) {
		g.fromHost(t.Context(), &jsonrpc.Request{ID: rpcID(t, id), Method: "ping"})
	}
	ping(0)
	<-asked
	for id := range maxPass + 1 {
		ping(1 + id)
	}
	r, is := (<-host.said).(*jsonrpc.Response)
	if !is || r.ID != rpcID(t, 1+maxPass) || r.Error == nil || !strings.Contains(r.Error.Error(), "has not taken") {
		t.Errorf("the host hears %+v", r)
	}
	go func() {
		for range asked { // of the others
		}
	}()
	close(release)
	for range 1 + maxPass {
		if r, is := (<-host.said).(*jsonrpc.Response); !is || r.Error == nil {
			t.Errorf("the host hears %+v", r)
		}
	}
	close(asked)
}
