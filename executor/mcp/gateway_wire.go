package mcp

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"steno/schema"
)

// ours begins the ids of requests that the gateway makes itself. Those of the host
// go on to the server as they are.
const ours = "steno:"

// A wire is one connection with the server: a process that runs, or a session of
// HTTP. When it ends, all that waits for an answer of it is told.
type wire struct {
	conn sdk.Connection
	hear func(*wire, jsonrpc.Message) // what is no answer to a request of ours, in the order in which it comes
	dead chan struct{}                // closed when it has ended

	mu      sync.Mutex // guards the rest
	made    uint64     // requests of ours
	waiting map[string]chan *jsonrpc.Response
	relayed map[jsonrpc.ID]*jsonrpc.Request // requests of the host that the server has
	ended   bool
	why     error
}

// errGone says that the server has ended. What it had been asked for may have
// taken effect.
var errGone = errors.New("the MCP server has ended")

func newWire(conn sdk.Connection, hear func(*wire, jsonrpc.Message)) *wire {
	return &wire{conn: conn, hear: hear, dead: make(chan struct{}), waiting: map[string]chan *jsonrpc.Response{}, relayed: map[jsonrpc.ID]*jsonrpc.Request{}}
}

// read hears what the server says, until it ends, and gives the requests of the
// host that have no answer then.
func (l *wire) read(ctx context.Context) (unanswered []*jsonrpc.Request) {
	var err error
	for err == nil {
		var m jsonrpc.Message
		if m, err = l.conn.Read(ctx); err != nil {
			break
		}
		r, is := m.(*jsonrpc.Response)
		if !is {
			l.hear(l, m)
			continue
		}
		id, _ := r.ID.Raw().(string)
		l.mu.Lock()
		answer, mine := l.waiting[id]
		delete(l.waiting, id)
		l.mu.Unlock()
		switch {
		case mine:
			answer <- r // it has room for one, and gets one
		case strings.HasPrefix(id, ours): // nobody waits for it any more
		default:
			l.hear(l, m)
		}
	}
	l.mu.Lock()
	l.ended, l.why = true, cmp.Or(l.why, err)
	for _, r := range l.relayed {
		unanswered = append(unanswered, r)
	}
	l.mu.Unlock()
	close(l.dead)
	return unanswered
}

// write says something to the server. One that does not take it is of no use any more:
// its connection ends, so that it is started again.
func (l *wire) write(ctx context.Context, m jsonrpc.Message) error {
	err := l.conn.Write(ctx, m)
	if !errors.Is(err, errUnread) {
		return err
	}
	l.mu.Lock()
	l.why = cmp.Or(l.why, err)
	l.mu.Unlock()
	go func() {
		if !errors.Is(err, os.ErrDeadlineExceeded) { // it may have ended, and its last answers be on their way
			select {
			case <-l.dead:
			case <-time.After(endPause):
			}
		}
		_ = l.conn.Close() // why it is closed counts
	}()
	return err
}

// relay passes a request of the host on.
func (l *wire) relay(ctx context.Context, r *jsonrpc.Request) error {
	l.mu.Lock()
	if l.ended {
		l.mu.Unlock()
		return errGone
	}
	if l.relayed[r.ID] != nil {
		l.mu.Unlock()
		return errInUse
	}
	l.relayed[r.ID] = r
	l.mu.Unlock()
	err := l.write(ctx, r)
	if err == nil {
		return nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ended {
		return nil // whoever has seen the end answers for it
	}
	delete(l.relayed, r.ID)
	return errors.Join(errGone, err)
}

// relayedFor takes out the request of the host that an answer is for.
func (l *wire) relayedFor(id jsonrpc.ID) *jsonrpc.Request {
	l.mu.Lock()
	defer l.mu.Unlock()
	r := l.relayed[id]
	delete(l.relayed, id)
	return r
}

// request asks the server for something. sent says whether it may have heard of
// it, where there is an error.
func (l *wire) request(ctx context.Context, method string, params json.RawMessage) (result json.RawMessage, sent bool, err error) {
	answer := make(chan *jsonrpc.Response, 1)
	l.mu.Lock()
	if l.ended {
		l.mu.Unlock()
		return nil, false, errGone
	}
	l.made++
	name := ours + strconv.FormatUint(l.made, 10)
	l.waiting[name] = answer
	l.mu.Unlock()
	id, err := jsonrpc.MakeID(name)
	if err != nil {
		return nil, false, err
	}
	defer func() {
		l.mu.Lock()
		delete(l.waiting, name)
		l.mu.Unlock()
	}()
	if err := l.write(ctx, &jsonrpc.Request{ID: id, Method: method, Params: params}); err != nil {
		return nil, true, errors.Join(errGone, err)
	}
	select {
	case r := <-answer:
		return r.Result, true, r.Error
	default:
	}
	select {
	case r := <-answer:
		return r.Result, true, r.Error
	case <-l.dead:
		select { // it came before the end
		case r := <-answer:
			return r.Result, true, r.Error
		default:
		}
		return nil, true, errGone
	case <-ctx.Done():
		l.notify("notifications/cancelled", object{"requestId": raw(name), "reason": raw(ctx.Err().Error())})
		return nil, true, ctx.Err()
	}
}

// notify tells the server something that has no answer.
func (l *wire) notify(method string, params object) {
	// Of a server that does not take it the connection ends.
	_ = l.write(context.Background(), &jsonrpc.Request{Method: method, Params: params.text()})
}

// protocolError is an error as the protocol has it.
func protocolError(err error) *rpcError {
	if e, ok := errors.AsType[*rpcError](err); ok {
		return e
	}
	const internal = -32603
	return &rpcError{Code: internal, Message: schema.AsError(err).Message}
}

// errInUse refuses a request: what is said of its id would mean another one too.
var errInUse = &rpcError{Code: invalidRequest, Message: "the id is that of a request that has no answer yet; give each request its own"}

type rpcError = jsonrpc.Error
