package mcp

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"strings"
	"time"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/modelcontextprotocol/go-sdk/jsonrpc"

	"steno/executor"
	"steno/journal"
	"steno/schema"
)

// TypeServer is the event by which a gateway records what a server says of
// itself and of its tools, before the host hears of it. Of several the last one
// counts.
const TypeServer = "x.mcp_server"

// A Listing is what a server has said of itself.
type Listing struct {
	// Server is its answer to initialize, or server/discover; nil if nobody has asked.
	Server jsontext.Value `json:"server,omitzero"`
	// Content are its tools, a list of Definition.
	Content []Definition `json:"content"`
}

// A Definition is a tool of a server, and the name that its calls have in the log.
type Definition struct {
	Name string         `json:"name"`
	Tool jsontext.Value `json:"tool"` // as the server says it
}

// maxHello bounds what is recorded of what a server says of itself.
const maxHello = 64 << 10

func (l *Listing) data() []byte {
	list := []byte{'['}
	for i, d := range l.Content {
		if i > 0 {
			list = append(list, ',')
		}
		var o schema.Object
		list = append(list, o.Text("name", d.Name).Raw("tool", d.Tool).Bytes()...)
	}
	var o schema.Object
	if n := len(l.Server); n > 0 && n <= maxHello {
		o.Raw("server", l.Server)
	}
	return o.Raw(keyContent, append(list, ']')).Bytes()
}

// sum tells listings apart.
func (l *Listing) sum() string {
	sum := sha256.Sum256(l.data())
	return hex.EncodeToString(sum[:])
}

// original is the name that the server has for a tool.
func (d Definition) original() string {
	var v struct {
		Name string `json:"name"`
	}
	if json.Unmarshal(d.Tool, &v) != nil || v.Name == "" {
		return d.Name
	}
	return v.Name
}

// Recorded is what a session has of its server, up to event asOf, all of it if
// that is 0; the zero Listing if there is nothing. It stops at damage.
func Recorded(ctx context.Context, store journal.Store, session string, asOf uint64) (l Listing, err error) {
	var last []byte
	for it, err := range journal.NewScan(store, session, journal.ScanOptions{Strict: true}).Items(ctx) {
		if err != nil {
			return l, err
		}
		e := it.Event
		if e == nil {
			continue
		}
		if asOf > 0 && e.Seq > asOf {
			break
		}
		if e.Type == TypeServer {
			last = append(last[:0], e.Data...)
		}
	}
	if last == nil {
		return l, nil
	}
	whole, err := journal.Whole(ctx, store, session, last)
	if err != nil {
		return l, err
	}
	if err := schema.Unmarshal(whole, &l); err != nil { // somebody else's event of that name
		return Listing{}, nil
	}
	return l, nil
}

// listed looks at an answer to tools/list before the host gets it: the tools are
// recorded, and those that cannot be called now are left out.
func (g *Gateway) listed(r *jsonrpc.Request, m *jsonrpc.Response) {
	g.listing.Lock()
	defer g.listing.Unlock()
	var asked struct {
		Cursor string `json:"cursor"`
	}
	_ = json.Unmarshal(r.Params, &asked) // the server has taken it
	members, err := members(jsontext.Value(m.Result))
	if err != nil {
		g.tell(m)
		return
	}
	var tools []jsontext.Value
	next := ""
	for _, f := range members {
		switch f.key {
		case "tools":
			err = json.Unmarshal(f.value, &tools)
		case "nextCursor":
			if f.value.Kind() == '"' {
				err = json.Unmarshal(f.value, &next)
			}
		}
	}
	if err != nil {
		g.tell(m)
		return
	}
	if g.inOrder = asked.Cursor == "" || g.inOrder && asked.Cursor == g.next; asked.Cursor == "" {
		g.pages = nil
	}
	page := g.definitions(tools)
	g.pages, g.next = append(g.pages, page...), next
	if endless(g.pages) {
		g.pages, g.inOrder = nil, false
		g.tell(&jsonrpc.Response{ID: m.ID, Error: protocolError(schema.Errorf(schema.ToolFailed, "the server's list of tools is longer than any that has an end"))})
		return
	}
	if next == "" && g.inOrder {
		g.prune(g.pages)
	}
	g.learn(page, true)
	if next == "" {
		if err := g.record(g.pages); err != nil {
			g.tell(&jsonrpc.Response{ID: m.ID, Error: protocolError(err)})
			return
		}
	}
	admitted, err := g.admitted()
	if err != nil {
		g.tell(&jsonrpc.Response{ID: m.ID, Error: protocolError(err)})
		return
	}
	var left []jsontext.Value
	for i, d := range page {
		if admitted[d.Name] && g.callable(d.Name, d.original()) {
			left = append(left, tools[i])
		}
	}
	if len(left) == len(tools) {
		g.tell(m)
		return
	}
	var o schema.Object
	for _, f := range members {
		if f.key == "tools" {
			f.value = listOf(left)
		}
		o.Raw(f.key, f.value)
	}
	g.tell(&jsonrpc.Response{ID: m.ID, Result: o.Bytes()})
}

func listOf(values []jsontext.Value) []byte {
	list := []byte{'['}
	for i, v := range values {
		if i > 0 {
			list = append(list, ',')
		}
		list = append(list, v...)
	}
	return append(list, ']')
}

// definitions gives tools their names in the log. What is no tool has none.
func (g *Gateway) definitions(tools []jsontext.Value) []Definition {
	list := make([]Definition, len(tools))
	for i, t := range tools {
		text, _, err := schema.Compact(nil, t, 4)
		if err != nil {
			continue
		}
		list[i].Tool = text
		if original := list[i].original(); original != "" {
			list[i].Name = g.cfg.Name(original)
		}
	}
	return list
}

// learn makes the tools callable. What they take is for the server to judge, so
// that the host gets the same answer as from the server alone. said is whether the
// server itself says so, and not the record.
func (g *Gateway) learn(list []Definition, said bool) {
	for _, d := range list {
		now := named{original: d.original()}
		original, says := now.original, d.Tool
		if said {
			now.said = string(d.Tool)
		} else {
			var o schema.Object
			says = o.Text("name", original).Bytes()
		}
		if d.Name == "" {
			continue
		}
		g.mu.Lock()
		is, known := g.names[d.Name]
		g.mu.Unlock()
		if known && is == now {
			continue
		}
		if known && is.original != original {
			g.cfg.Log.Warn("two tools of the server have one name in the log; the second cannot be called", "name", d.Name, "first", is.original, "second", original)
			continue
		}
		t := executor.Tool{Name: d.Name, Description: d.description(), Input: jsontext.Value(`{"type":"object"}`), Tier: 3, Timeout: maxCall}
		if original != d.Name {
			t.Original = original
		}
		g.cfg.Over(says, &t)
		t.Run = func(ctx context.Context, call *executor.Invocation) (executor.Result, error) {
			return g.run(ctx, call, original)
		}
		if err := g.cfg.Tools.Replace(t); err != nil {
			g.cfg.Log.Warn("a tool of the server cannot be called", "tool", original, "err", err)
			continue
		}
		g.mu.Lock()
		g.names[d.Name] = now
		g.mu.Unlock()
	}
}

// maxCall is how long a call may take where the operator says nothing else: hosts
// have limits of their own.
const maxCall = time.Hour

func (d Definition) description() string {
	var v struct {
		Title       string `json:"title"`
		Description string `json:"description"`
	}
	_ = json.Unmarshal(d.Tool, &v) // then it has none
	if text := strings.TrimSpace(cmp.Or(v.Description, v.Title)); text != "" {
		return text
	}
	return "A tool of an MCP server, which says nothing of it."
}

// record notes what the server says of itself, where it is new.
func (g *Gateway) record(tools []Definition) error {
	g.mu.Lock()
	now := Listing{g.known.Server, nil}
	for _, d := range tools {
		if d.Name != "" {
			now.Content = append(now.Content, d)
		}
	}
	same := now.sum() == g.recorded
	g.mu.Unlock()
	if same {
		return nil
	}
	ctx, cancel := context.WithTimeout(g.life, executor.Patience)
	defer cancel()
	_, err := g.cfg.Client.Append(ctx, g.cfg.Session, executor.AppendEvent{Type: TypeServer, Data: now.data()})
	if err == nil {
		g.mu.Lock()
		g.recorded = now.sum()
		g.mu.Unlock()
	}
	return err
}

// admitted are the names of the tools that the session admits now.
func (g *Gateway) admitted() (map[string]bool, error) {
	ctx, cancel := context.WithTimeout(g.life, executor.Patience)
	defer cancel()
	a, err := g.cfg.Client.Tools(ctx, executor.ToolsRequest{Session: g.cfg.Session, Format: executor.FormatAnthropic})
	if err != nil {
		return nil, err
	}
	names := map[string]bool{}
	for _, t := range a.Tools {
		var v struct {
			Name string `json:"name"`
		}
		if err := schema.Unmarshal(t, &v); err != nil {
			return nil, schema.Errorf(schema.Internal, "a tool cannot be read").Cause(err)
		}
		names[v.Name] = true
	}
	return names, nil
}

// callable reports whether a tool of the server is the one that has that name in
// the log.
func (g *Gateway) callable(name, original string) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	is, known := g.names[name]
	return known && is.original == original
}

// current reports whether it is so by what the server says now.
func (g *Gateway) current(c *call) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	is := g.names[c.name]
	return is.original == c.original && is.said != ""
}

// knows asks the server for its tools where it has not named the one that is called,
// or may say something else of it by now: a host may know them from before. Where the
// server cannot be asked, a tool that is known is called by what the operator says of it:
// its call may be recorded already.
func (g *Gateway) knows(ctx context.Context, c *call) error {
	if g.current(c) {
		return nil
	}
	g.listing.Lock()
	defer g.listing.Unlock()
	if g.current(c) {
		return nil
	}
	err := g.ask(ctx, c)
	if err == nil || g.callable(c.name, c.original) {
		return nil
	}
	if ctx.Err() != nil { // the host has let it go
		return err
	}
	// Nobody knows whether there is such a tool. The executor says so, and records it.
	c.name = unknownName(c)
	why := protocolError(err).Message
	t := executor.Tool{Name: c.name, Description: "A tool of an MCP server that cannot be asked.", Input: jsontext.Value(`{"type":"object"}`),
		Ready: func() error {
			return schema.Errorf(schema.Unavailable, "the MCP server cannot be asked for its tools: %s", why).Cause(err)
		},
		Run: func(context.Context, *executor.Invocation) (executor.Result, error) { return executor.Result{}, err }}
	if err := g.cfg.Tools.Replace(t); err != nil {
		return err
	}
	g.mu.Lock()
	g.names[c.name] = named{original: c.original} // a whole list takes it away
	g.mu.Unlock()
	return nil
}

// ask is for whoever holds listing.
func (g *Gateway) ask(ctx context.Context, c *call) error {
	ctx, cancel := context.WithTimeout(ctx, initWait)
	defer cancel()
	l, err := g.connected(ctx)
	if err != nil {
		return g.down(err)
	}
	var all []Definition
	for page, cursor := 1, ""; ; page++ {
		p := object{}
		if cursor != "" {
			p["cursor"] = raw(cursor)
		}
		g.mu.Lock()
		if g.meta != nil {
			p["_meta"] = g.meta
		}
		g.mu.Unlock()
		answer, _, err := l.request(ctx, "tools/list", p.text())
		if err != nil {
			return g.down(err)
		}
		var list struct {
			Tools []jsontext.Value `json:"tools"`
			Next  string           `json:"nextCursor"`
		}
		if err := json.Unmarshal(answer, &list); err != nil {
			return schema.Errorf(schema.ToolFailed, "the server's list of tools cannot be read").Cause(err)
		}
		all = append(all, g.definitions(list.Tools)...)
		if cursor = list.Next; cursor == "" || page == maxPages || endless(all) {
			break
		}
	}
	g.prune(all)
	g.learn(all, true)
	if err := g.record(all); err != nil {
		return err
	}
	if !g.callable(c.name, c.original) { // the executor says that there is none, in the log too
		c.name = unknownName(c)
	}
	return nil
}

// maxListed bounds a list that has no end.
const maxListed = 10_000

// endless reports whether a list is longer than any that is read.
func endless(list []Definition) bool {
	n := 0
	for _, d := range list {
		n += len(d.Tool)
	}
	return len(list) > maxListed || n > maxMessage
}

// prune takes the tools away that a whole list of the server has no more.
func (g *Gateway) prune(list []Definition) {
	has := map[string]string{}
	for _, d := range list {
		if _, there := has[d.Name]; !there { // the second cannot be called
			has[d.Name] = d.original()
		}
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	for name, is := range g.names {
		if has[name] != is.original {
			delete(g.names, name)
			g.cfg.Tools.Remove(name)
		}
	}
}
