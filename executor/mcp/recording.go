package mcp

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/go-json-experiment/json/jsontext"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"steno/executor"
	"steno/journal"
	"steno/schema"
)

// A Recorded session answers a host of the Model Context Protocol: its tools are
// those of the record, and calls of them get what was recorded. No tool is called.
type recorded struct {
	recording *executor.Recording
	whole     func(ctx context.Context, data []byte) ([]byte, error)
	tools     []jsontext.Value
	names     map[string]string // in the log, by what the host calls them
	unknown   []string          // names in the log of tools that there were not
	calls     atomic.Uint64
}

// ServeRecording answers what comes by transport from the record of a session, up
// to event asOf, all of it if that is 0, until the host goes or ctx ends.
//
// tools/list has the tools as the server of a gateway has said them. Of other
// sessions the log has no definitions, so there each tool that was called is named,
// and takes any object. tools/call gives the recorded result, by steno/call_id of
// _meta or else by order, as [executor.Recording] does; what the record does not have
// is an answer with isError, and the error of kind replay_divergence with both sides
// is its text.
func ServeRecording(ctx context.Context, store journal.Store, session string, asOf uint64, r *executor.Recording, transport sdk.Transport) error {
	listing, err := Recorded(ctx, store, session, asOf)
	if err != nil {
		return err
	}
	s := &recorded{recording: r, names: map[string]string{}, whole: func(ctx context.Context, data []byte) ([]byte, error) {
		return journal.Whole(ctx, store, session, data)
	}}
	for _, d := range listing.Content {
		s.names[d.original()] = d.Name
		s.tools = append(s.tools, d.Tool)
	}
	for _, name := range r.Tools() {
		if slices.ContainsFunc(listing.Content, func(d Definition) bool { return d.Name == name }) {
			continue
		}
		if len(listing.Content) > 0 { // a call of a tool that the server did not have
			s.unknown = append(s.unknown, name)
			continue
		}
		s.names[name] = name
		var o schema.Object
		s.tools = append(s.tools, o.Text("name", name).Text("description", "Recorded answers of "+name+". Its definition is not in the record.").
			Raw("inputSchema", []byte(`{"type":"object"}`)).Bytes())
	}
	var hello struct {
		ServerInfo   *sdk.Implementation `json:"serverInfo"`
		Instructions string              `json:"instructions"`
		Meta         struct {
			ServerInfo *sdk.Implementation `json:"io.modelcontextprotocol/serverInfo"`
		} `json:"_meta"`
	}
	_ = json.Unmarshal(listing.Server, &hello) // there may be none
	if hello.ServerInfo == nil {
		hello.ServerInfo = cmp.Or(hello.Meta.ServerInfo, &sdk.Implementation{Name: "steno replay", Version: executor.Version})
	}
	server := sdk.NewServer(hello.ServerInfo, &sdk.ServerOptions{Instructions: hello.Instructions, Capabilities: &sdk.ServerCapabilities{Tools: &sdk.ToolCapabilities{}}})
	server.AddReceivingMiddleware(s.answers)
	err = server.Run(ctx, transport)
	if ctx.Err() != nil { // which is the way to end it
		return nil
	}
	return err
}

// answers takes the requests that are about tools.
func (s *recorded) answers(next sdk.MethodHandler) sdk.MethodHandler {
	return func(ctx context.Context, method string, req sdk.Request) (sdk.Result, error) {
		switch p := req.GetParams().(type) {
		case *sdk.ListToolsParams:
			list := &rawList{raw: listOf(s.tools)}
			list.CacheScope = "public" // as servers say by themselves
			return list, nil
		case *sdk.CallToolParamsRaw:
			return s.call(ctx, p)
		}
		return next(ctx, method, req)
	}
}

func (s *recorded) call(ctx context.Context, p *sdk.CallToolParamsRaw) (sdk.Result, error) {
	req := executor.Request{Name: p.Name, Args: jsontext.Value(p.Arguments)}
	if name, known := s.names[p.Name]; known {
		req.Name = name
	} else if i := slices.IndexFunc(s.unknown, func(name string) bool { return strings.HasSuffix(name, unknownSuffix(p.Name)) }); i >= 0 {
		req.Name = s.unknown[i]
	}
	if len(req.Args) == 0 {
		req.Args = jsontext.Value("{}")
	}
	if id, given := p.Meta[MetaCallID].(string); given {
		req.CallID = id
	} else {
		req.CallID = fmt.Sprintf("host.%d", s.calls.Add(1))
	}
	a, err := s.recording.Answer(req)
	if err != nil {
		return &rawAnswer{raw: failure(err)}, nil
	}
	whole, err := s.whole(ctx, a.Data)
	if err != nil {
		return &rawAnswer{raw: failure(err)}, nil
	}
	result, err := given(whole)
	if e, is := errors.AsType[*rpcError](err); is {
		return nil, e
	}
	if err != nil {
		return nil, err
	}
	return &rawAnswer{raw: result}, nil
}

// Answers that are JSON already.
type (
	rawAnswer struct {
		sdk.CallToolResult
		raw json.RawMessage
	}
	rawList struct {
		sdk.ListToolsResult
		raw json.RawMessage
	}
)

func (r *rawAnswer) MarshalJSON() ([]byte, error) { return r.raw, nil }

// MarshalJSON has what the SDK says beside the tools.
func (r *rawList) MarshalJSON() ([]byte, error) {
	b, err := json.Marshal(r.ListToolsResult)
	if err != nil {
		return nil, err
	}
	var o object
	if err := json.Unmarshal(b, &o); err != nil {
		return nil, err
	}
	o["tools"] = r.raw
	return o.text(), nil
}
