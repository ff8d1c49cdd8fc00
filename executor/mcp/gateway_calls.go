package mcp

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"strings"
	"time"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/modelcontextprotocol/go-sdk/jsonrpc"

	"steno/executor"
	"steno/schema"
)

// MetaCallID is the key of _meta by which a host gives a call its id. A call that
// is made again under the same id, by whoever has that session then, gets the
// recorded answer.
const MetaCallID = "steno/call_id"

// What the server is told of a call beside its arguments, in _meta.
const (
	metaSession = "steno/session"
	metaCall    = "steno/call"
	metaKey     = "steno/key"
	metaAttempt = "steno/attempt"
	metaEpoch   = "steno/epoch"
	metaSeq     = "steno/seq"
)

// callTool answers a request tools/call, when its result is recorded.
func (g *Gateway) callTool(ctx context.Context, r *jsonrpc.Request) {
	var p object
	var name string
	var meta struct {
		CallID *string         `json:"steno/call_id"`
		Token  json.RawMessage `json:"progressToken"`
	}
	if json.Unmarshal(r.Params, &p) != nil || json.Unmarshal(p["name"], &name) != nil || name == "" ||
		len(p["_meta"]) > 0 && json.Unmarshal(p["_meta"], &meta) != nil {
		g.tell(&jsonrpc.Response{ID: r.ID, Error: &rpcError{Code: invalidParams, Message: "tools/call takes a name, and arguments that are an object"}})
		return
	}
	args := p["arguments"]
	if len(args) == 0 || jsontext.Value(args).Kind() == 'n' {
		args = json.RawMessage("{}")
	}
	c := &call{name: g.cfg.Name(name), original: name, meta: p["_meta"], waits: make(chan chan struct{}, 1)}
	if sum, err := schema.ArgsSHA256(args); err == nil {
		c.key = c.name + " " + sum
	}
	ctx, c.cancel = context.WithCancel(context.WithoutCancel(ctx))
	g.mu.Lock()
	g.notesMeta(r.Params)
	g.made++
	left := g.left[c.key]
	switch {
	case meta.CallID != nil:
		c.id = *meta.CallID
	case len(left) > 0:
		if c.id = left[0]; len(left) == 1 {
			delete(g.left, c.key)
		} else {
			g.left[c.key] = left[1:]
		}
	default:
		c.id = fmt.Sprintf("%s.%d", g.id, g.made)
	}
	g.calls[r.ID], g.byID[c.id] = c, c
	if g.waiting[c.id] {
		c.asked()
	}
	g.mu.Unlock()
	before := g.last // what the host has said before the server hears before
	req := executor.Request{CallID: c.id, Name: c.name, Args: jsontext.Value(args), Actor: g.cfg.Actor, Context: contextOf(p, r.ID)}
	g.do(func() {
		defer c.cancel()
		select {
		case <-before:
		case <-ctx.Done():
		case <-g.life.Done():
		}
		g.begin.Do(func() { close(g.ready) })
		answer := g.answer(ctx, c, req, meta.Token)
		g.mu.Lock()
		if g.calls[r.ID] == c {
			delete(g.calls, r.ID)
		}
		if g.byID[c.id] == c {
			delete(g.byID, c.id)
		}
		given := c.given
		g.mu.Unlock()
		if answer.ID = r.ID; !given {
			g.tell(answer)
		}
	})
}

const invalidParams = -32602

// contextOf is what is recorded of a call beside its name and arguments: the id of
// its request, and what else the request says.
func contextOf(p object, id jsonrpc.ID) jsontext.Value {
	var o, all schema.Object
	o.Raw("request", idText(id))
	rest := object{}
	for key, v := range p {
		if key != "name" && key != "arguments" {
			rest[key] = v
		}
	}
	if len(rest) > 0 {
		o.Raw("params", rest.text())
	}
	return all.Raw("mcp", o.Bytes()).Bytes()
}

// answer makes a call, and waits for what is recorded of it.
func (g *Gateway) answer(ctx context.Context, c *call, req executor.Request, token json.RawMessage) *jsonrpc.Response {
	failed := func(err error) *jsonrpc.Response {
		e := *schema.AsError(err)
		if next, ok := schema.Body(&e).Details["next"].(string); ok {
			e.Details = maps.Clone(e.Details)
			e.With("next", g.cfg.Here(next))
		}
		return &jsonrpc.Response{Result: failure(&e)}
	}
	if err := g.knows(ctx, c); err != nil {
		return failed(err)
	}
	g.mu.Lock()
	gone := c.given
	g.mu.Unlock()
	if gone { // the host has cancelled it meanwhile
		return failed(schema.Errorf(schema.Cancelled, "the host has cancelled it before it was recorded"))
	}
	req.Name = c.name
	done := make(chan struct{})
	defer close(done)
	g.work.Go(func() { g.patience(c, token, done) })
	a, err := g.cfg.Do(ctx, g.cfg.Session, req)
	if err != nil {
		g.mu.Lock()
		waits := c.held && ctx.Err() != nil
		if waits { // nobody waits for it now; it waits for its person, or has just been answered about
			g.left[c.key] = append(g.left[c.key], c.id)
		}
		g.mu.Unlock()
		if waits {
			err = schema.Errorf(schema.Unavailable, "call %s waits for a person's answer", c.id).With("session", g.cfg.Session).With("call_id", c.id).
				With("next", "when it is answered (steno approvals allow "+g.cfg.Session+" "+c.id+", or deny), make the same call again: it gets the result")
		}
		return failed(err)
	}
	whole, err := g.cfg.Whole(context.WithoutCancel(ctx), a.Data)
	if err != nil {
		return failed(err)
	}
	result, err := given(whole)
	if e, ok := errors.AsType[*rpcError](err); ok {
		return &jsonrpc.Response{Error: e}
	}
	if err != nil {
		return failed(err)
	}
	return &jsonrpc.Response{Result: result}
}

// tellAgain is how often a host hears that a call waits for a person.
const tellAgain = 5 * time.Second

// patience keeps the host waiting while a person is asked about a call, and lets
// it go when that takes too long. What runs may take as long as it takes.
func (g *Gateway) patience(c *call, token json.RawMessage, done <-chan struct{}) {
	for {
		select {
		case answered := <-c.waits:
			if g.keeps(c, token, answered, done) {
				return
			}
		case <-done:
			return
		}
	}
}

// keeps waits for a person; true if nobody waits with it any more.
func (g *Gateway) keeps(c *call, token json.RawMessage, answered, done <-chan struct{}) bool {
	next := g.cfg.Here("steno approvals allow " + g.cfg.Session + " " + c.id)
	g.cfg.Log.Warn("a call waits for a person", "call", c.id, "tool", c.original, "next", next+", or deny")
	end := time.NewTimer(g.cfg.Wait)
	defer end.Stop()
	again := time.NewTicker(tellAgain)
	defer again.Stop()
	for n := 1; ; n++ {
		if len(token) > 0 {
			// It is to grow, and the server has not begun to count.
			g.tell(&jsonrpc.Request{Method: "notifications/progress", Params: object{"progressToken": token,
				"progress": json.RawMessage(fmt.Sprintf("%.6f", float64(n)/1e6)), "message": raw("waits for a person: " + next)}.text()})
		}
		select {
		case <-again.C:
		case <-answered:
			return false
		case <-end.C:
			select {
			case <-answered:
				return false
			default:
			}
			c.cancel()
			return true
		case <-done:
			return true
		}
	}
}

// Asked says that a person is asked about a call.
func (g *Gateway) Asked(callID string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.waiting[callID] = true
	if c := g.byID[callID]; c != nil {
		c.asked()
	}
}

// asked notes that a person is asked about the call. The caller holds Gateway.mu.
func (c *call) asked() {
	if c.asks {
		return
	}
	c.asks, c.held, c.answered = true, true, make(chan struct{})
	select {
	case <-c.waits: // a question that nobody has looked at, and that is answered
	default:
	}
	c.waits <- c.answered
}

// Left says that a call of the session waits for a person since before this
// gateway: the same call joins it.
func (g *Gateway) Left(callID, tool, argsSHA256 string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	key := tool + " " + argsSHA256
	g.left[key], g.waiting[callID] = append(g.left[key], callID), true
}

// Answered says that a person has answered about a call.
func (g *Gateway) Answered(callID string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.waiting, callID)
	if c := g.byID[callID]; c != nil && c.asks {
		c.asks = false
		close(c.answered)
	}
}

// cancelled takes a host's word that it does not want an answer; false if it is
// about no call. One that waits for a person goes on waiting, since hosts say the
// same when they have waited for too long.
func (g *Gateway) cancelled(r *jsonrpc.Request) bool {
	var v struct {
		RequestID any    `json:"requestId"`
		Reason    string `json:"reason"`
	}
	if json.Unmarshal(r.Params, &v) != nil {
		return false
	}
	id, err := jsonrpc.MakeID(v.RequestID)
	if err != nil {
		return false
	}
	g.mu.Lock()
	c := g.calls[id]
	asks := false
	if c != nil {
		c.given, asks = true, c.asks
	}
	g.mu.Unlock()
	switch {
	case c == nil:
		return false
	case asks:
		c.cancel()
	default:
		g.do(func() {
			reason, _ := schema.Truncate("the host has cancelled it: "+v.Reason, 1<<10)
			ctx, cancel := context.WithTimeout(g.life, executor.Patience)
			defer cancel()
			var err error
			for again := true; again; again = errors.Is(err, schema.NotFound) && g.underWay(ctx, c) { // it may be on its way into the log
				_, err = g.cfg.Client.Cancel(ctx, executor.CancelRequest{Session: g.cfg.Session, CallID: c.id, By: g.cfg.Actor.ID, Reason: reason})
			}
			if err != nil && !errors.Is(err, schema.NotFound) {
				g.cfg.Log.Warn("a call could not be cancelled", "call", c.id, "err", err)
			}
		})
	}
	return true
}

// underWay reports, after a moment, whether a call has not ended by then.
func (g *Gateway) underWay(ctx context.Context, c *call) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(20 * time.Millisecond):
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.byID[c.id] == c
}

// run asks the server, for one attempt at a call. It is asked once more only where
// it cannot have got the call.
func (g *Gateway) run(ctx context.Context, call *executor.Invocation, original string) (executor.Result, error) {
	select {
	case <-g.ready: // of an earlier process's call: the host must have begun
	case <-ctx.Done():
		return executor.Result{}, ctx.Err()
	}
	params := g.params(call, original)
	for try := 0; ; try++ {
		l, err := g.connected(ctx)
		if err != nil {
			if errors.Is(err, errGone) {
				err = schema.Errorf(schema.CommandFailed, "the MCP server does not start; the call was not made").Cause(err)
			}
			return executor.Result{}, err
		}
		raw, sent, err := l.request(ctx, "tools/call", params.text())
		e, _ := errors.AsType[*rpcError](err)
		switch {
		case e != nil && e.Code == codeLong:
			return executor.Result{}, schema.Errorf(schema.PayloadTooLarge, "the tool ran, and its answer is longer than %d MiB", maxMessage>>20).
				With("next", "look whether it took effect; have it answer less, or by a file")
		case e != nil:
			return executor.Result{}, refused(e)
		case err == nil:
			return taken(raw)
		case !errors.Is(err, errGone):
			return executor.Result{}, err
		case sent:
			return executor.Result{}, schema.Errorf(schema.Interrupted, "the MCP server ended before it answered; whether the tool took effect is not known").Cause(err)
		case try == maxTries:
			return executor.Result{}, schema.Errorf(schema.ToolFailed, "the MCP server ended %d times before it answered", try+1).Cause(err)
		}
	}
}

// maxTries is how often more a server is asked that ends before it gets a call.
const maxTries = 2

// params are those of tools/call for an attempt.
func (g *Gateway) params(inv *executor.Invocation, original string) object {
	p, meta := object{}, object{}
	var told struct {
		MCP struct {
			Params object `json:"params"`
		} `json:"mcp"`
	}
	if len(inv.Context) > 0 {
		_ = json.Unmarshal(inv.Context, &told) // of another door's call it says nothing
	}
	for key, v := range told.MCP.Params {
		p[key] = v
	}
	_ = json.Unmarshal(p["_meta"], &meta)
	for key := range meta { // what steno says of a call nobody else says
		if strings.HasPrefix(key, "steno/") {
			delete(meta, key)
		}
	}
	g.mu.Lock()
	if c := g.byID[inv.CallID]; c == nil || len(c.meta) == 0 {
		delete(meta, "progressToken") // nobody listens to it any more
	}
	g.mu.Unlock()
	for key, v := range map[string]string{metaSession: inv.Session, metaCall: inv.CallID, metaKey: inv.Key} {
		meta[key] = raw(v)
	}
	for key, v := range map[string]uint64{metaAttempt: uint64(inv.Attempt), metaEpoch: inv.Epoch, metaSeq: inv.Seq} {
		meta[key] = json.RawMessage(fmt.Sprint(v))
	}
	p["name"], p["arguments"] = raw(original), json.RawMessage(inv.Args)
	p["_meta"] = meta.text()
	return p
}

func unknownName(c *call) string { return c.name[:min(len(c.name), 48)] + unknownSuffix(c.original) }

// unknownSuffix ends the name in the log of a tool that the server does not have, by
// which nobody else has a tool either.
func unknownSuffix(original string) string {
	sum := sha256.Sum256([]byte(original))
	return "_" + hex.EncodeToString(sum[:4])
}
