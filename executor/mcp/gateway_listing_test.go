package mcp

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"steno/schema"
)

// What a whole list of the server has no more can be called no more.
func TestAToolThatLeavesTheListIsTakenAway(t *testing.T) {
	t.Parallel()
	g, _, _ := waitingGateway(t, func(context.Context, *Gateway, string) {})
	g.learn(g.definitions([]jsontext.Value{jsontext.Value(`{"name":"stays"}`)}), true)
	list := g.definitions([]jsontext.Value{jsontext.Value(`{"name":"stays"}`), jsontext.Value(`{"name":"new"}`)})
	g.prune(list)
	g.learn(list, true)
	for name, want := range map[string]bool{"act": false, "stays": true, "new": true} {
		if _, err := g.cfg.Tools.Get(name); (err == nil) != want || g.callable(name, name) != want {
			t.Errorf("%s: %v, want it there %t", name, err, want)
		}
	}
}

// Pages that a host follows have an end, and take nothing away before it.
func TestAListThatAHostFollowsHasAnEnd(t *testing.T) {
	t.Parallel()
	g, host, _ := waitingGateway(t, func(context.Context, *Gateway, string) {})
	g.pages, g.next, g.inOrder = make([]Definition, maxListed), "c", true
	g.listed(&jsonrpc.Request{ID: rpcID(t, 1), Method: "tools/list", Params: []byte(`{"cursor":"c"}`)},
		&jsonrpc.Response{ID: rpcID(t, 1), Result: []byte(`{"tools":[{"name":"more"}],"nextCursor":"d"}`)})
	r := (<-host.said).(*jsonrpc.Response)
	if r.Error == nil || !strings.Contains(r.Error.Error(), "longer") || len(g.pages) != 0 || g.inOrder {
		t.Errorf("the host hears %+v, and %d tools are kept", r, len(g.pages))
	}
	if _, err := g.cfg.Tools.Get("more"); schema.KindOf(err) != schema.UnknownTool || !g.callable("act", "act") {
		t.Errorf("more: %v", err)
	}
}

// A list of empty pages that has no end is given up, and what it does not have is no
// tool: the executor says so, and records it.
func TestAListOfToolsThatDoesNotEndHoldsUpNoCall(t *testing.T) {
	t.Parallel()
	g, host, ids := waitingGateway(t, func(context.Context, *Gateway, string) {})
	g.recorded = (&Listing{}).sum() // the list has no tool, so there is nothing to record
	g.cfg.Whole = func(context.Context, []byte) ([]byte, error) { return nil, errGone }
	toServer, server := sdk.NewInMemoryTransports()
	g.cfg.Connect = toServer.Connect
	far, err := server.Connect(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	pages := make(chan int, 1)
	go func() {
		n := 0
		for {
			m, err := far.Read(context.Background())
			if err != nil {
				pages <- n
				return
			}
			n++
			_ = far.Write(context.Background(), &jsonrpc.Response{ID: m.(*jsonrpc.Request).ID, Result: fmt.Appendf(nil, `{"tools":[],"nextCursor":"%d"}`, n)})
		}
	}()
	g.callTool(context.Background(), &jsonrpc.Request{ID: rpcID(t, 1), Method: "tools/call", Params: []byte(`{"name":"new","arguments":{}}`)})
	<-host.said
	if all := ids(); len(all) != 1 {
		t.Errorf("the executor gets %v", all)
	}
	if err := far.Close(); err != nil {
		t.Fatal(err)
	}
	if n := <-pages; n != maxPages {
		t.Errorf("%d pages were asked for", n)
	}
}

// A call of a tool that nobody knows, because the server cannot be asked, comes to
// the executor all the same: it refuses it as unavailable, and that is recorded.
func TestACallIsRecordedWhereTheServerCannotBeAskedForItsTools(t *testing.T) {
	t.Parallel()
	g, host, ids := waitingGateway(t, func(context.Context, *Gateway, string) {})
	g.cfg.Whole = func(context.Context, []byte) ([]byte, error) { return nil, errGone }
	g.callTool(context.Background(), &jsonrpc.Request{ID: rpcID(t, 1), Method: "tools/call", Params: []byte(`{"name":"new","arguments":{}}`)})
	<-host.said
	if all := ids(); len(all) != 1 {
		t.Errorf("the executor gets %v", all)
	}
	tool, err := g.cfg.Tools.Get("new" + unknownSuffix("new"))
	if err != nil {
		t.Fatal(err)
	}
	if err := tool.Ready(); schema.KindOf(err) != schema.Unavailable {
		t.Errorf("it may be called: %v", err)
	}
	g.prune(nil) // a list that the server gives later
	if _, err := g.cfg.Tools.Get(tool.Name); err == nil {
		t.Error("it stays for ever")
	}
}
