package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"sync"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
)

// testServer is the program mcp-server: what a gateway stands before in tests.
func testServer() {
	if err := newTestServer().Run(context.Background(), &sdk.StdioTransport{}); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// effect adds a line to the file that a call names: an effect that can be counted.
func effect(args map[string]any, text string) error {
	file, _ := args["file"].(string)
	f, err := os.OpenFile(file, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = fmt.Fprintln(f, text)
	return err
}

func said(text string) *sdk.CallToolResult {
	return &sdk.CallToolResult{Content: []sdk.Content{&sdk.TextContent{Text: text}}}
}

func newTestServer() *sdk.Server {
	s := sdk.NewServer(&sdk.Implementation{Name: "tester", Title: "For tests", Version: "1.2.3"}, &sdk.ServerOptions{Instructions: "Try everything."})
	type handler func(ctx context.Context, req *sdk.CallToolRequest, args map[string]any) (*sdk.CallToolResult, error)
	add := func(name string, h handler) {
		s.AddTool(&sdk.Tool{Name: name, Title: strings.ToUpper(name), Description: "The tool " + name + ", for tests.",
			InputSchema: json.RawMessage(`{"type":"object","properties":{"file":{"type":"string"},"n":{"type":"number","maximum":1e300}},"x-order":[2,1]}`),
			Annotations: &sdk.ToolAnnotations{IdempotentHint: true}},
			func(ctx context.Context, req *sdk.CallToolRequest) (*sdk.CallToolResult, error) {
				args := map[string]any{}
				if err := json.Unmarshal(req.Params.Arguments, &args); err != nil {
					return nil, err
				}
				return h(ctx, req, args)
			})
	}
	add("echo", func(_ context.Context, req *sdk.CallToolRequest, args map[string]any) (*sdk.CallToolResult, error) {
		r := said("said <" + string(req.Params.Arguments) + "> \u2028 é")
		r.Content = append(r.Content, &sdk.ImageContent{MIMEType: "image/png", Data: []byte("no picture")})
		r.StructuredContent, r.Meta = map[string]any{"big": json.Number("12345678901234567890"), "args": args}, sdk.Meta{"tester/mark": 7}
		return r, nil
	})
	add("note", func(_ context.Context, _ *sdk.CallToolRequest, args map[string]any) (*sdk.CallToolResult, error) {
		return said("noted"), effect(args, "noted")
	})
	add("die", func(_ context.Context, _ *sdk.CallToolRequest, args map[string]any) (*sdk.CallToolResult, error) {
		_ = effect(args, "dying")
		os.Exit(3)
		return nil, nil
	})
	add("hang", func(ctx context.Context, _ *sdk.CallToolRequest, args map[string]any) (*sdk.CallToolResult, error) {
		if err := effect(args, "hangs"); err != nil {
			return nil, err
		}
		<-ctx.Done()
		return said("stopped"), effect(args, "stopped")
	})
	add("steps", func(ctx context.Context, req *sdk.CallToolRequest, _ map[string]any) (*sdk.CallToolResult, error) {
		for n := 1; n <= 3; n++ {
			err := req.Session.NotifyProgress(ctx, &sdk.ProgressNotificationParams{ProgressToken: req.Params.GetProgressToken(), Progress: float64(n), Total: 3, Message: fmt.Sprint("step ", n)})
			if err != nil {
				return nil, err
			}
		}
		return said("done"), nil
	})
	add("large", func(_ context.Context, _ *sdk.CallToolRequest, args map[string]any) (*sdk.CallToolResult, error) {
		n, _ := args["n"].(float64)
		return said(strings.Repeat("x", int(n))), nil
	})
	add("fails", func(context.Context, *sdk.CallToolRequest, map[string]any) (*sdk.CallToolResult, error) {
		r := said("it cannot be done")
		r.IsError = true
		return r, nil
	})
	add("dotted.name", func(context.Context, *sdk.CallToolRequest, map[string]any) (*sdk.CallToolResult, error) {
		return said("dots"), nil
	})
	var once sync.Once
	add("grow", func(context.Context, *sdk.CallToolRequest, map[string]any) (*sdk.CallToolResult, error) {
		once.Do(func() {
			add("grown", func(context.Context, *sdk.CallToolRequest, map[string]any) (*sdk.CallToolResult, error) {
				return said("big now"), nil
			})
		})
		return said("grown"), nil
	})
	if flag := os.Getenv("TESTER_READS"); flag != "" { // two tools that only read, as long as there is no such file
		ok := func(context.Context, *sdk.CallToolRequest) (*sdk.CallToolResult, error) { return said("fine"), nil }
		shifty := func() {
			_, err := os.Stat(flag)
			s.AddTool(&sdk.Tool{Name: "shifty", Description: "For tests.", InputSchema: json.RawMessage(`{"type":"object"}`), Annotations: &sdk.ToolAnnotations{ReadOnlyHint: err != nil}}, ok)
		}
		shifty()
		s.AddTool(&sdk.Tool{Name: "shift", Description: "For tests.", InputSchema: json.RawMessage(`{"type":"object"}`), Annotations: &sdk.ToolAnnotations{ReadOnlyHint: true}},
			func(context.Context, *sdk.CallToolRequest) (*sdk.CallToolResult, error) {
				shifty()
				return said("shifted"), nil
			})
	}
	s.AddResource(&sdk.Resource{URI: "test://one", Name: "one"}, func(context.Context, *sdk.ReadResourceRequest) (*sdk.ReadResourceResult, error) {
		return &sdk.ReadResourceResult{Contents: []*sdk.ResourceContents{{URI: "test://one", Text: "the one"}}}, nil
	})
	s.AddPrompt(&sdk.Prompt{Name: "ask", Description: "A prompt."}, func(context.Context, *sdk.GetPromptRequest) (*sdk.GetPromptResult, error) {
		return &sdk.GetPromptResult{Messages: []*sdk.PromptMessage{{Role: "user", Content: &sdk.TextContent{Text: "why?"}}}}, nil
	})
	return s
}
