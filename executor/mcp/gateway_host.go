package mcp

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"strconv"
	"strings"
	"sync"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"steno/schema"
)

// Host is the connection with a host of the Model Context Protocol by its standard
// streams, one message a line. What is no message is answered with an error of
// JSON-RPC 2.0 (section 5.1), and the next line is read; ids come back as they came,
// byte for byte. It is a connection once. Reading is ended by the end of in, out is
// not closed.
type Host struct {
	In  io.Reader
	Out io.Writer
}

// Connect begins to read.
func (h Host) Connect(context.Context) (sdk.Connection, error) {
	c := &hostConn{out: h.Out, heard: make(chan jsonrpc.Message), closed: make(chan struct{})}
	go c.read(bufio.NewReaderSize(h.In, 64<<10))
	return c, nil
}

type hostConn struct {
	heard  chan jsonrpc.Message
	end    error // why nothing more is heard; set before heard is closed
	closed chan struct{}
	once   sync.Once

	mu  sync.Mutex // held while a line is written
	out io.Writer
}

func (c *hostConn) SessionID() string { return "" }

func (c *hostConn) Close() error {
	c.once.Do(func() { close(c.closed) })
	return nil
}

func (c *hostConn) Read(ctx context.Context) (jsonrpc.Message, error) {
	select {
	case m, more := <-c.heard:
		if !more {
			return nil, c.end
		}
		return m, nil
	case <-c.closed:
		return nil, io.EOF
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// read hears the host to its end.
func (c *hostConn) read(in *bufio.Reader) {
	defer close(c.heard)
	for first := true; ; first = false {
		line, long, err := readLine(in, nil)
		if first {
			line = bytes.TrimPrefix(line, []byte("\ufeff")) // RFC 8259, section 8.1: it may be ignored
		}
		if line = bytes.TrimSpace(line); len(line) > 0 {
			m, refusal := decodeHost(line, long)
			if refusal != nil {
				if c.end = c.print(refusal); c.end != nil {
					return
				}
			} else {
				select {
				case c.heard <- m:
				case <-c.closed:
					return
				}
			}
		}
		if err != nil {
			c.end = err
			return
		}
	}
}

// readLine appends a line to held. Of one that is longer than maxMessage it gives
// the beginning.
func readLine(in *bufio.Reader, held []byte) (line []byte, long bool, err error) {
	for {
		part, err := in.ReadSlice('\n')
		if long = long || len(held)+len(part) > maxMessage; !long {
			held = append(held, part...)
		}
		if err != bufio.ErrBufferFull {
			return held, long, err
		}
	}
}

const parseError = -32700

// decodeHost makes a message of a line, or the answer that refuses it.
func decodeHost(line []byte, long bool) (m jsonrpc.Message, refusal []byte) {
	refuse := func(code int, why string) (jsonrpc.Message, []byte) {
		id := idOf(line)
		if id == nil {
			id = jsontext.Value("null")
		}
		var e, o schema.Object
		e.Raw("code", strconv.AppendInt(nil, int64(code), 10)).Text("message", why)
		return nil, o.Text("jsonrpc", "2.0").Raw("id", id).Raw("error", e.Bytes()).Bytes()
	}
	if long {
		line = line[:min(len(line), 4<<10)]
		return refuse(invalidRequest, fmt.Sprintf("the message has more than %d MiB", maxMessage>>20))
	}
	if line[0] == '[' {
		return refuse(invalidRequest, "batches are not taken, as the protocol has none from 2025-06-18 on: send each message on a line of its own")
	}
	// What decodes messages leaves out what stands behind one.
	if !jsontext.Value(line).IsValid(jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true)) {
		return refuse(parseError, "the line is no JSON, or more than one message, or nested too deep: send each message on a line of its own")
	}
	m, err := jsonrpc.DecodeMessage(line)
	if err != nil {
		return refuse(invalidRequest, "the line is no message of JSON-RPC 2.0: "+err.Error())
	}
	r, is := m.(*jsonrpc.Request)
	if !is {
		return m, nil
	}
	if id := idOf(line); r.IsCall() && id != nil {
		r.ID = hostID(id)
	}
	if r.Method == "notifications/cancelled" {
		var p object
		if json.Unmarshal(r.Params, &p) == nil {
			id := jsontext.Value(p["requestId"])
			if name, is := hostID(id).Raw().(string); is && (id.Kind() == '0' || id.Kind() == '"') {
				p["requestId"] = raw(name)
				r.Params = p.text()
			}
		}
	}
	return m, nil
}

// asItCame begins the ids that stand for those of the host which would not come
// back as they are: numbers that are no small integers, texts that may be written
// in several ways, and what begins like an id of ours. What follows is the id.
const asItCame = ours + "host:"

// hostID is the id of a request of the host as it goes on from here.
func hostID(id jsontext.Value) jsonrpc.ID {
	text := string(bytes.TrimSpace(id))
	var v any = asItCame + text
	switch id.Kind() {
	case '0':
		if n, err := strconv.ParseInt(text, 10, 64); err == nil && strconv.FormatInt(n, 10) == text && -1<<53 < n && n < 1<<53 {
			v = float64(n)
		}
	case '"':
		if s := text[1 : len(text)-1]; !strings.HasPrefix(s, ours) && !strings.ContainsFunc(s, func(r rune) bool {
			return r <= ' ' || r > '~' || strings.ContainsRune(`"\<>&`, r)
		}) {
			v = s
		}
	}
	made, err := jsonrpc.MakeID(v)
	if err != nil { // of a type that it takes
		return jsonrpc.ID{}
	}
	return made
}

// idText is the id of a request of the host as it came.
func idText(id jsonrpc.ID) jsontext.Value {
	if name, is := id.Raw().(string); is {
		if text, is := strings.CutPrefix(name, asItCame); is {
			return jsontext.Value(text)
		}
	}
	text, err := json.Marshal(id.Raw())
	if err != nil { // a number or a text
		return jsontext.Value("null")
	}
	return text
}

func (c *hostConn) Write(_ context.Context, m jsonrpc.Message) error {
	r, is := m.(*jsonrpc.Response)
	if !is {
		line, err := jsonrpc.EncodeMessage(m)
		if err != nil {
			return err
		}
		return c.print(line)
	}
	// With a number that it knows how to write, in whose place the id comes.
	id := r.ID
	answer := *r
	var err error
	if answer.ID, err = jsonrpc.MakeID(float64(math.MaxInt32)); err != nil {
		return err
	}
	line, err := jsonrpc.EncodeMessage(&answer)
	if err != nil {
		return err
	}
	return c.print(bytes.Replace(line, []byte(`"id":`+strconv.Itoa(math.MaxInt32)), append([]byte(`"id":`), idText(id)...), 1))
}

// print writes a line.
func (c *hostConn) print(line []byte) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	_, err := c.out.Write(append(line, '\n'))
	return err
}

// maxPass is how much of what the host says may wait until the server takes it.
const maxPass = 256

// passes has f passed on behind what the host has said before; false if too much
// waits for that.
func (g *Gateway) passes(f func()) bool {
	done := make(chan struct{})
	select {
	case g.pass <- func() { defer close(done); f() }:
		g.last = done
		return true
	default:
		return false
	}
}

// passOn passes on what the host says, until the gateway ends.
func (g *Gateway) passOn() {
	for {
		select {
		case f := <-g.pass:
			f()
		case <-g.life.Done():
			return
		}
	}
}

// fromHost takes what the host says.
func (g *Gateway) fromHost(ctx context.Context, m jsonrpc.Message) {
	r, is := m.(*jsonrpc.Request)
	if !is {
		g.answerOfHost(m.(*jsonrpc.Response))
		return
	}
	g.mu.Lock()
	c := g.calls[r.ID]
	inUse := r.IsCall() && c != nil && !c.given
	g.mu.Unlock()
	switch {
	case inUse:
		g.tell(&jsonrpc.Response{ID: r.ID, Error: errInUse})
		return
	case r.Method == "tools/call" && r.IsCall():
		g.callTool(ctx, r)
		return
	case r.Method == "tools/call": // a server might run it, and nobody could be told what came of it
		g.cfg.Log.Warn("a tools/call without an id was not passed on")
		return
	case r.Method == "notifications/cancelled" && g.cancelled(r):
		return
	}
	g.mu.Lock()
	switch r.Method {
	case "initialize":
		g.init, g.meta = r.Params, nil // what it has tried before does not hold
	case "notifications/initialized":
		g.inited = true
	default:
		g.notesMeta(r.Params)
	}
	g.mu.Unlock()
	passed := g.passes(func() {
		l, err := g.connected(ctx)
		if err == nil {
			if r.IsCall() {
				err = l.relay(ctx, r)
			} else {
				err = l.write(ctx, r)
			}
		}
		if r.Method != "initialize" { // from then on the server may be asked
			g.begin.Do(func() { close(g.ready) })
		}
		if err != nil && r.IsCall() {
			g.tell(&jsonrpc.Response{ID: r.ID, Error: protocolError(g.down(err))})
		}
	})
	switch {
	case passed:
	case r.IsCall():
		g.tell(&jsonrpc.Response{ID: r.ID, Error: protocolError(schema.Errorf(schema.Backpressure, "the server has not taken %d messages", maxPass))})
	default:
		g.cfg.Log.Warn("a message of the host was left out, since the server does not read", "method", words([]byte(r.Method)))
	}
}

// notesMeta keeps what a request says of the protocol, for requests of our own.
// The caller holds mu.
func (g *Gateway) notesMeta(params json.RawMessage) {
	if g.init != nil {
		return // it was agreed on in the beginning
	}
	var v struct {
		Meta object `json:"_meta"`
	}
	if json.Unmarshal(params, &v) != nil || len(v.Meta) == 0 {
		return
	}
	delete(v.Meta, "progressToken")
	if len(v.Meta) > 0 {
		g.meta = v.Meta.text()
	}
}

// answerOfHost passes an answer on to the server that has asked.
func (g *Gateway) answerOfHost(r *jsonrpc.Response) {
	id, _ := r.ID.Raw().(string)
	g.mu.Lock()
	a, ok := g.asks[id]
	delete(g.asks, id)
	g.mu.Unlock()
	if !ok {
		return
	}
	g.passes(func() {
		_ = a.by.write(context.Background(), &jsonrpc.Response{ID: a.id, Result: r.Result, Error: r.Error}) // one that has ended asks no more
	})
}
