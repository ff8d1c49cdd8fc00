package mcp

import (
	"context"
	"strings"
	"testing"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/modelcontextprotocol/go-sdk/jsonrpc"

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
