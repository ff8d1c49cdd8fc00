// Command mcp is an MCP server for an example: it keeps notes in the file notes.txt
// of its folder.
package main

import (
	"context"
	"log"
	"os"
	"strings"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

const file = "notes.txt"

type note struct {
	Text string `json:"text" jsonschema:"one line"`
}

type notes struct {
	Notes int `json:"notes" jsonschema:"how many there are"`
}

// add keeps a note. Steno tells the key of the call, which is the same when the call
// is repeated: so none is kept twice.
func add(_ context.Context, req *mcp.CallToolRequest, in note) (*mcp.CallToolResult, notes, error) {
	key, _ := req.Params.Meta["steno/key"].(string)
	kept, err := read()
	if err != nil {
		return nil, notes{}, err
	}
	for _, line := range kept {
		if key != "" && strings.HasPrefix(line, key+" ") {
			return nil, notes{len(kept)}, nil
		}
	}
	f, err := os.OpenFile(file, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, notes{}, err
	}
	defer f.Close()
	_, err = f.WriteString(key + " " + in.Text + "\n")
	return nil, notes{len(kept) + 1}, err
}

func list(context.Context, *mcp.CallToolRequest, struct{}) (*mcp.CallToolResult, any, error) {
	kept, err := read()
	if err != nil {
		return nil, nil, err
	}
	return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: strings.Join(kept, "\n")}}}, nil, nil
}

func read() ([]string, error) {
	b, err := os.ReadFile(file)
	if os.IsNotExist(err) {
		return nil, nil
	}
	return strings.Split(strings.TrimSpace(string(b)), "\n"), err
}

func main() {
	s := mcp.NewServer(&mcp.Implementation{Name: "notes", Version: "1"}, nil)
	mcp.AddTool(s, &mcp.Tool{Name: "add", Description: "Keep a note."}, add)
	mcp.AddTool(s, &mcp.Tool{Name: "list", Description: "Give all notes.", Annotations: &mcp.ToolAnnotations{ReadOnlyHint: true}}, list)
	if err := s.Run(context.Background(), &mcp.StdioTransport{}); err != nil {
		log.Fatal(err)
	}
}
