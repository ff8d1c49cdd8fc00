package mcp

import (
	"context"
	stdjson "encoding/json" // RawMessage, as the SDK has it
	"sync"
	"sync/atomic"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
)

// An exchange is what is seen of a call while it is on its way. The SDK makes Go
// values of a result, in which large numbers, the order of keys and what it does not
// know are lost; so the result is taken as it came, and the SDK gets an empty one.
type exchange struct {
	raw    atomic.Pointer[stdjson.RawMessage] // the result
	status atomic.Int32                       // of HTTP
	long   atomic.Bool                        // the answer was longer than a message may be
}

type exchangeKey struct{}

// of is the exchange of the call that ctx is of, nil for another message.
func of(ctx context.Context) *exchange {
	seen, _ := ctx.Value(exchangeKey{}).(*exchange)
	return seen
}

// nothing is a result that says nothing.
var nothing = stdjson.RawMessage(`{"content":[]}`)

// A tap is the connection to a program. It takes results as they come, and leaves out
// what nobody waits for, before it costs anything.
type tap struct {
	sdk.Connection
	mu    sync.Mutex
	calls map[jsonrpc.ID]*exchange // that wait for their answer
}

// tapped is a transport with a tap.
type tapped struct{ sdk.Transport }

func (t tapped) Connect(ctx context.Context) (sdk.Connection, error) {
	c, err := t.Transport.Connect(ctx)
	if err != nil {
		return nil, err
	}
	return &tap{Connection: c, calls: map[jsonrpc.ID]*exchange{}}, nil
}

func (t *tap) Write(ctx context.Context, m jsonrpc.Message) error {
	r, is := m.(*jsonrpc.Request)
	if seen := of(ctx); is && r.IsCall() && seen != nil {
		t.mu.Lock()
		t.calls[r.ID] = seen
		t.mu.Unlock()
		context.AfterFunc(ctx, func() { // nobody waits for it any more
			t.mu.Lock()
			delete(t.calls, r.ID)
			t.mu.Unlock()
		})
	}
	return t.Connection.Write(ctx, m)
}

func (t *tap) Read(ctx context.Context) (jsonrpc.Message, error) {
	for {
		m, err := t.Connection.Read(ctx)
		if err != nil {
			return nil, err
		}
		switch m := m.(type) {
		case *jsonrpc.Response:
			t.mu.Lock()
			seen := t.calls[m.ID]
			delete(t.calls, m.ID)
			t.mu.Unlock()
			if seen != nil && m.Error == nil {
				raw := m.Result
				seen.raw.Store(&raw)
				m.Result = nothing
			}
		case *jsonrpc.Request:
			if !m.IsCall() && !heeded[m.Method] {
				continue
			}
		}
		return m, nil
	}
}

// heeded are the notifications that mean something here.
var heeded = map[string]bool{"notifications/progress": true, "notifications/tools/list_changed": true, "notifications/cancelled": true,
	"notifications/subscriptions/acknowledged": true}

// takeResult is what the SDK gets in place of a message, if that is a result, which
// goes to seen.
func takeResult(seen *exchange, text []byte) []byte {
	var m struct {
		Version string         `json:"jsonrpc"`
		ID      jsontext.Value `json:"id"`
		Result  jsontext.Value `json:"result"`
	}
	if json.Unmarshal(text, &m, jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true)) != nil || len(m.Result) == 0 || len(m.ID) == 0 {
		return text
	}
	raw := stdjson.RawMessage(m.Result)
	seen.raw.Store(&raw)
	m.Result = jsontext.Value(nothing)
	small, err := json.Marshal(m)
	if err != nil {
		return text
	}
	return small
}
