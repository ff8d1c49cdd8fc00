package executor_test

import (
	"context"
	"encoding/json" // of the SDK's values
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/go-json-experiment/json/jsontext"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"steno/executor"
	"steno/executor/mcp"
	"steno/journal/journaltest"
	"steno/schema"
)

// contractMCP is an MCP server, made with the official SDK, whose tools do what
// play does. It knows sessions by what it is told of them, and leaves what has
// reached it in a folder of each below dir. die is how it dies.
func contractMCP(dir string, die func()) *sdk.Server {
	s := sdk.NewServer(&sdk.Implementation{Name: "contract", Version: "1"}, nil)
	for _, does := range append(slices.Clone(contractWords), "waits", "asks", "tells") {
		like := contractTool(does)
		tool := &sdk.Tool{Name: does, Description: like.Description, InputSchema: json.RawMessage(like.Input)}
		if like.Output != nil {
			tool.OutputSchema = json.RawMessage(like.Output)
		}
		s.AddTool(tool, func(ctx context.Context, req *sdk.CallToolRequest) (*sdk.CallToolResult, error) {
			c, err := contractCall(req.Params)
			if err != nil {
				return nil, err
			}
			at := filepath.Join(dir, c.Session)
			if err := os.MkdirAll(at, 0o700); err != nil {
				return nil, err
			}
			do := does
			switch do {
			case "tells": // how far it is, until somebody has heard it
				if err := req.Session.NotifyProgress(ctx, &sdk.ProgressNotificationParams{ProgressToken: req.Params.GetProgressToken(), Progress: 1, Total: 4}); err != nil {
					return nil, err
				}
				for {
					if _, err := os.Stat(filepath.Join(dir, "heard")); err == nil {
						break
					}
					select {
					case <-time.After(5 * time.Millisecond):
					case <-ctx.Done():
						return nil, ctx.Err()
					}
				}
				do = "echo"
			case "asks":
				if req.Params.InputResponses == nil {
					return &sdk.CallToolResult{RequestState: "half way", InputRequests: sdk.InputRequestMap{"sure": &sdk.ElicitParams{Mode: "form", Message: "Delete all?",
						RequestedSchema: json.RawMessage(`{"type":"object","properties":{"sure":{"type":"boolean"},"why":{"type":"string"}},"required":["sure"]}`)}}}, nil
				}
				if r, is := req.Params.InputResponses["sure"].(*sdk.ElicitResult); !is || r.Action != "accept" || r.Content["sure"] != true || req.Params.RequestState != "half way" {
					return nil, fmt.Errorf("the answer is %+v", req.Params.InputResponses["sure"])
				}
				do = "echo"
			case "dies":
				defer die()
				do = "echo"
			case "waits": // in its first attempt
				if do = "echo"; c.Attempt == 1 {
					do = "slow"
				}
			}
			res, err := play(ctx, do, at, c)
			if err != nil {
				return nil, err
			}
			answer := &sdk.CallToolResult{Content: []sdk.Content{&sdk.TextContent{Text: res.Output}}, IsError: !res.OK}
			if res.Structured != nil {
				answer.StructuredContent = json.RawMessage(res.Structured)
			}
			return answer, nil
		})
	}
	return s
}

// contractCall is what an MCP server is told of a call.
func contractCall(p *sdk.CallToolParamsRaw) (*executor.Invocation, error) {
	text, err := json.Marshal(p.Meta)
	if err != nil {
		return nil, err
	}
	var told struct {
		Session string          `json:"steno/session"`
		Call    string          `json:"steno/call"`
		Key     string          `json:"steno/key"`
		Attempt int             `json:"steno/attempt"`
		Epoch   uint64          `json:"steno/epoch"`
		Seq     uint64          `json:"steno/seq"`
		Actor   executor.Actor  `json:"steno/actor"`
		Context json.RawMessage `json:"steno/context"`
	}
	if err := json.Unmarshal(text, &told); err != nil {
		return nil, err
	}
	if told.Session == "" || strings.ContainsAny(told.Session, "/.") {
		return nil, errors.New("it is not told of which session the call is")
	}
	return &executor.Invocation{Session: told.Session, CallID: told.Call, Key: told.Key, Attempt: told.Attempt, Epoch: told.Epoch, Seq: told.Seq,
		Args: jsontext.Value(p.Arguments), Context: jsontext.Value(told.Context), Actor: told.Actor}, nil
}

// contractProgramMCP is contractMCP as a program of its own, this one.
func contractProgramMCP(dir string) error {
	held, err := os.OpenFile(filepath.Join(dir, "held"), os.O_CREATE|os.O_RDWR, 0o600)
	if err == nil { // as long as it lives
		err = syscall.Flock(int(held.Fd()), syscall.LOCK_SH)
	}
	if err != nil {
		return err
	}
	defer held.Close()
	s := contractMCP(dir, func() { _ = syscall.Kill(os.Getpid(), syscall.SIGKILL) })
	return s.Run(context.Background(), &sdk.StdioTransport{})
}

// mcpLacks are the words that no MCP server can do: it has no kinds of errors of
// its own, knows no dry runs and nothing of a session's state, and lives longer
// than what is made for a session.
var mcpLacks = []string{"declared", "unexpected", "plans", "state", "close"}

// mcpTool is a tool of a server as it is registered, under the name of what it does.
func mcpTool(t *testing.T, server executor.MCPServer, does string) executor.Tool {
	tier := 2
	server.Name, server.Trust, server.Tools = "srv", true, map[string]executor.MCPTool{does: {Tier: &tier}}
	reg, err := executor.NewRegistry()
	if err != nil {
		t.Fatal(err)
	}
	all := mcp.Start(reg, []executor.MCPServer{server}, mcp.Options{Logger: slog.New(slog.DiscardHandler)})
	t.Cleanup(all.Close)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	all.Wait(ctx)
	tool, err := reg.Get("srv_" + does)
	if err != nil {
		t.Fatalf("%v; %v", err, all.Status())
	}
	tool.Name = does
	return tool
}

func TestT1ContractOfAToolOfAnMCPServer(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	testContract(t, contractKind{died: schema.Interrupted, lacks: mcpLacks, reached: dir, tool: func(t *testing.T, does string, _ func(string)) executor.Tool {
		return mcpTool(t, executor.MCPServer{Argv: []string{self, "contract-mcp", dir}, Dir: dir}, does)
	}})
}

func TestT1ContractOfAToolOfAnMCPServerByHTTP(t *testing.T) {
	dir := t.TempDir()
	testContract(t, contractKind{died: schema.Interrupted, lacks: mcpLacks, reached: dir, tool: func(t *testing.T, does string, _ func(string)) executor.Tool {
		var h *httptest.Server
		s := contractMCP(dir, func() { h.CloseClientConnections() })
		h = httptest.NewServer(sdk.NewStreamableHTTPHandler(func(*http.Request) *sdk.Server { return s }, nil))
		t.Cleanup(func() {
			h.Close()
			for session := range s.Sessions() {
				_ = session.Close()
			}
		})
		return mcpTool(t, executor.MCPServer{URL: h.URL}, does)
	}})
}

// What a server asks in place of a result is asked a person, and the call is sent
// again with the answer.
func TestT25AnMCPServerAsksAPerson(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	p := newPlace(t, journaltest.NATSOptions{})
	dir := t.TempDir()
	n := p.node([]executor.Tool{mcpTool(t, executor.MCPServer{Argv: []string{self, "contract-mcp", dir}, Dir: dir}, "asks")})
	n.open("s1")
	q, result := n.asked("s1", "c1", "asks", `{"n":1}`)
	if q.Reason != "the tool asks: Delete all? [sure: yes] [why: left empty]" {
		t.Errorf("asked is %q", q.Reason)
	}
	n.mustAnswer(q, "allow")
	a := wait(t, "the result", result)
	p.wantRecorded("s1", a)
	wantKindOfResult(t, a.Data, "")
	if got := field[string](t, a.Data, "output"); got != `{"n":1}` || field[int](t, a.Data, "attempt") != 2 {
		t.Errorf("the result is %s", a.Data)
	}
	q, result = n.asked("s1", "c2", "asks", `{"n":2}`)
	n.mustAnswer(q, "deny")
	wantKindOfResult(t, wait(t, "the result", result).Data, schema.ApprovalDenied)
	if got := effects(t, filepath.Join(dir, "s1", "reached")); !slices.Equal(got, []string{"c1"}) {
		t.Errorf("done were %q", got)
	}
}

func TestS13AnMCPServerTellsItsProgress(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	p := newPlace(t, journaltest.NATSOptions{})
	dir := t.TempDir()
	n := p.node([]executor.Tool{mcpTool(t, executor.MCPServer{Argv: []string{self, "contract-mcp", dir}, Dir: dir}, "tells")})
	n.open("s1")
	events := p.nats.Listen("steno.v1.event.s1.tool_progress")
	asked := n.background("s1", "c1", "tells")
	m, err := events.NextMsg(journaltest.Deadline)
	if err != nil {
		t.Fatal(err)
	}
	if got := field[progress](t, m.Data, "data"); got.CallID != "c1" || got.Text != "1 of 4" {
		t.Errorf("told is %+v", got)
	}
	touch(t, filepath.Join(dir, "heard"))
	wantKindOfResult(t, wait(t, "the answer", asked).Data, "")
}

// childMCP starts the MCP servers of a child: one whose tools may not run again, and
// one whose tool waits may.
func childMCP(reg *executor.Registry, dir string) (*mcp.Servers, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	yes, server := true, executor.MCPServer{Argv: []string{self, "contract-mcp", dir}, Dir: dir}
	once, again := server, server
	once.Name, again.Name, again.Tools = "once", "again", map[string]executor.MCPTool{"waits": {Repeatable: &yes}}
	all := mcp.Start(reg, []executor.MCPServer{once, again}, mcp.Options{Logger: slog.New(slog.DiscardHandler)})
	all.Wait(context.Background())
	return all, nil
}

// An executor is killed while a tool of an MCP server runs: the server ends with it,
// and the call goes by the rules of all tools.
func TestAnExecutorMayBeKilledWhileAnMCPServerWorks(t *testing.T) {
	for _, c := range []struct {
		tool    string
		attempt int
		kind    schema.Kind
		reached []string
	}{
		{"once_waits", 1, schema.Interrupted, []string{"c1"}},
		{"again_waits", 2, "", []string{"c1", "c1"}},
	} {
		t.Run(c.tool, func(t *testing.T) {
			p := newPlace(t, journaltest.NATSOptions{Listen: true})
			dir := t.TempDir()
			a := p.child(child{MCP: dir})
			client := p.client()
			open(t, client, "s1")
			asked := make(chan executor.Answer, 1)
			go func() {
				answer, err := client.Call(within(t), "s1", request("c1", c.tool, `{}`))
				if err != nil {
					t.Error(err)
				}
				asked <- answer
			}()
			reached := filepath.Join(dir, "s1", "reached")
			eventually(t, "the call has reached the server", func() bool { return len(effects(t, reached)) == 1 })
			a.Kill()
			a.wantKilled()
			held, err := os.Open(filepath.Join(dir, "held"))
			if err != nil {
				t.Fatal(err)
			}
			eventually(t, "the servers have ended", func() bool { return syscall.Flock(int(held.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) == nil })
			held.Close()

			p.child(child{MCP: dir})
			answer := wait(t, "the answer", asked)
			p.wantRecorded("s1", answer)
			wantKindOfResult(t, answer.Data, c.kind)
			if got := field[int](t, answer.Data, "attempt"); got != c.attempt {
				t.Errorf("it is attempt %d", got)
			}
			if got := effects(t, reached); !slices.Equal(got, c.reached) {
				t.Errorf("reached were %q", got)
			}
		})
	}
}
