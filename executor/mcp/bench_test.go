package mcp_test

import (
	"context"
	"encoding/json" // of the SDK's values
	"log/slog"
	"os"
	"os/exec"
	"testing"

	"github.com/go-json-experiment/json/jsontext"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"steno/executor"
	"steno/executor/mcp"
)

// BenchmarkCall measures a call of a tool of a program: by the SDK's client alone,
// and as a tool of a registry, which adds the bounds, what the server is told, and
// the result as it came. What a record adds are its syncs.
func BenchmarkCall(b *testing.B) {
	self, err := os.Executable()
	if err != nil {
		b.Fatal(err)
	}
	args := `{"n":1}`
	b.Run("server-alone", func(b *testing.B) {
		session, err := sdk.NewClient(&sdk.Implementation{Name: "bench", Version: "1"}, nil).
			Connect(context.Background(), &sdk.CommandTransport{Command: exec.Command(self, "raw-mcp", "", b.TempDir())}, nil)
		if err != nil {
			b.Fatal(err)
		}
		defer session.Close()
		for b.Loop() {
			if _, err := session.CallTool(context.Background(), &sdk.CallToolParams{Name: "echo", Arguments: json.RawMessage(args)}); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("tool", func(b *testing.B) {
		reg, err := executor.NewRegistry()
		if err != nil {
			b.Fatal(err)
		}
		dir := b.TempDir()
		all := mcp.Start(reg, []executor.MCPServer{{Name: "raw", Argv: []string{self, "raw-mcp", "", dir}, Dir: dir}}, mcp.Options{Logger: slog.New(slog.DiscardHandler)})
		defer all.Close()
		all.Wait(context.Background())
		tool, err := reg.Get("raw_echo")
		if err != nil {
			b.Fatal(err)
		}
		for b.Loop() {
			if _, err := tool.Run(context.Background(), &executor.Invocation{Session: "s1", CallID: "c1", Key: "k", Attempt: 1, Args: jsontext.Value(args)}); err != nil {
				b.Fatal(err)
			}
		}
	})
}
