package mcp

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
)

// Headers of the protocol over HTTP. The transport sets them for a client of its own
// package, which has made the beginning itself; a gateway passes on what the host
// has said, so they are set here.
const (
	headerVersion = "Mcp-Protocol-Version"
	headerSession = "Mcp-Session-Id"
)

// A webConn is a connection by HTTP.
type webConn struct {
	sdk.Connection
	client   *http.Client
	endpoint string
	version  atomic.Pointer[string] // that was agreed on, nil before
	heard    chan jsonrpc.Message
	end      chan error
	life     context.Context
	cancel   context.CancelFunc

	mu    sync.Mutex
	hello jsonrpc.ID // of initialize
}

// overHTTP begins a connection by HTTP. The transport's client is its own.
func overHTTP(ctx context.Context, t *sdk.StreamableClientTransport) (sdk.Connection, error) {
	w := &webConn{endpoint: t.Endpoint, heard: make(chan jsonrpc.Message), end: make(chan error, 1)}
	client := *t.HTTPClient
	client.Transport = versioned{cmp.Or[http.RoundTripper](client.Transport, http.DefaultTransport), &w.version}
	w.client, t.HTTPClient = &client, &client
	var err error
	if w.Connection, err = t.Connect(ctx); err != nil {
		return nil, err
	}
	w.life, w.cancel = context.WithCancel(context.Background())
	go func() {
		for {
			m, err := w.Connection.Read(w.life)
			if err != nil {
				w.fail(err)
				return
			}
			w.notes(m)
			if !w.hears(m) {
				return
			}
		}
	}()
	return w, nil
}

func (w *webConn) hears(m jsonrpc.Message) bool {
	select {
	case w.heard <- m:
		return true
	case <-w.life.Done():
		return false
	}
}

func (w *webConn) Read(ctx context.Context) (jsonrpc.Message, error) {
	select {
	case m := <-w.heard:
		return m, nil
	case err := <-w.end:
		w.end <- err
		return nil, err
	case <-w.life.Done():
		return nil, io.EOF
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// Write sends a message. What has an answer is not waited for: a server may send
// nothing at all before it has it. What the server refuses is answered so; where it
// cannot be reached, the connection has ended.
func (w *webConn) Write(ctx context.Context, m jsonrpc.Message) error {
	r, is := m.(*jsonrpc.Request)
	if !is || !r.IsCall() {
		return w.Connection.Write(ctx, m)
	}
	if r.Method == "initialize" {
		w.mu.Lock()
		w.hello = r.ID
		w.mu.Unlock()
	}
	go func() {
		var status atomic.Int32
		err := w.Connection.Write(context.WithValue(w.life, statusKey{}, &status), m)
		if n := status.Load(); err != nil && n >= 400 && n < 500 && n != http.StatusNotFound { // which is what a lost session gets
			w.hears(&jsonrpc.Response{ID: r.ID, Error: &rpcError{Code: invalidRequest, Message: err.Error()}})
		} else if err != nil {
			w.fail(err)
		}
	}()
	return nil
}

type statusKey struct{}

const invalidRequest = -32600

// fail ends the connection.
func (w *webConn) fail(err error) {
	select {
	case w.end <- err:
	default: // it has ended before
	}
}

func (w *webConn) Close() error {
	w.cancel()
	return w.Connection.Close()
}

// notes looks for the answer to initialize. From then on requests name the version,
// and what the server says of itself is listened to.
func (w *webConn) notes(m jsonrpc.Message) {
	r, is := m.(*jsonrpc.Response)
	w.mu.Lock()
	hello := is && r.ID == w.hello && w.hello.IsValid()
	w.mu.Unlock()
	var v struct {
		Version string `json:"protocolVersion"`
	}
	if !hello || r.Error != nil || json.Unmarshal(r.Result, &v) != nil {
		return
	}
	if w.version.Swap(&v.Version) == nil {
		go w.listen()
	}
}

// listenAgain is the pause before a stream that has ended is opened again.
const listenAgain = 2 * time.Second

// listen hears what the server says outside of answers, where it offers that.
func (w *webConn) listen() {
	last := ""
	for {
		if !w.stream(&last) {
			return
		}
		select {
		case <-time.After(listenAgain):
		case <-w.life.Done():
			return
		}
	}
}

// stream hears one stream to its end; false if there is none to be had.
func (w *webConn) stream(last *string) bool {
	req, err := http.NewRequestWithContext(w.life, http.MethodGet, w.endpoint, nil)
	if err != nil {
		return false
	}
	req.Header.Set("Accept", "text/event-stream")
	if id := w.SessionID(); id != "" {
		req.Header.Set(headerSession, id)
	}
	if *last != "" {
		req.Header.Set("Last-Event-ID", *last)
	}
	res, err := w.client.Do(req)
	if err != nil {
		return w.life.Err() == nil
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK || !strings.HasPrefix(res.Header.Get("Content-Type"), "text/event-stream") {
		return false
	}
	lines := bufio.NewReader(res.Body)
	var data []byte
	for {
		line, err := lines.ReadBytes('\n')
		if err != nil {
			return true
		}
		line = bytes.TrimRight(line, "\r\n")
		field, value, _ := bytes.Cut(line, []byte(":"))
		value = bytes.TrimPrefix(value, []byte(" "))
		switch {
		case len(line) == 0:
			m, err := jsonrpc.DecodeMessage(data)
			if data = nil; err == nil && !w.hears(m) {
				return false
			}
		case string(field) == "data" && len(data)+len(value) < maxMessage:
			data = append(append(data, value...), '\n')
		case string(field) == "id":
			*last = string(value)
		}
	}
}

// versioned sets the version that was agreed on, where a request does not say its
// own.
type versioned struct {
	base    http.RoundTripper
	version *atomic.Pointer[string]
}

func (v versioned) RoundTrip(req *http.Request) (*http.Response, error) {
	if agreed := v.version.Load(); agreed != nil && req.Header.Get(headerVersion) == "" {
		req = req.Clone(req.Context())
		req.Header.Set(headerVersion, *agreed)
	}
	res, err := v.base.RoundTrip(req)
	if status, asks := req.Context().Value(statusKey{}).(*atomic.Int32); asks && err == nil {
		status.Store(int32(res.StatusCode))
	}
	return res, err
}
