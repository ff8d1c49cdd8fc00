package main

import (
	"context"
	"log/slog"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"steno/executor"
	"steno/executor/mcp"
	"steno/schema"
)

// toolsFlag lets a command with an executor of its own bring tools.
func (a *app) toolsFlag(c *cobra.Command) {
	c.Flags().StringVar(&a.tools, "tools", "", "a YAML file of commands that become tools, and of MCP servers, besides the built-in ones")
}

// ownFlags are for a command that has an executor of its own where there is no
// serve: it may run what the session has left open.
func (a *app) ownFlags(c *cobra.Command) {
	a.toolsFlag(c)
	a.policyFlag(c)
	a.redactFlag(c)
}

// toolsFile is what --tools declares, with the built-in tools.
func (a *app) toolsFile() (executor.ToolsFile, error) {
	if a.tools == "" {
		return executor.ToolsFile{Tools: executor.Builtin()}, nil
	}
	file, err := executor.LoadTools(a.tools)
	file.Tools = append(file.Commands.Builtin(), file.Tools...)
	return file, err
}

// serversWait is how long a command waits for MCP servers before it goes on without
// those that have not answered.
const serversWait = 10 * time.Second

// startServers starts the MCP servers of --tools, whose tools come into cfg.Tools; nil if
// there are none. It waits for them, but not for long.
func startServers(ctx context.Context, file executor.ToolsFile, cfg executor.Config) *mcp.Servers {
	if len(file.Servers) == 0 {
		return nil
	}
	servers := mcp.Start(cfg.Tools, file.Servers, mcp.Options{Protect: cfg.Protect, Redact: cfg.Redact, Logger: slog.New(cfg.Redact.Handler(cfg.Logger.Handler()))})
	wait, cancel := context.WithTimeout(ctx, serversWait)
	defer cancel()
	servers.Wait(wait)
	return servers
}

// notElsewhere refuses what has no effect on somebody else's executor.
func (a *app) notElsewhere() error {
	for flag, file := range map[string]string{"--policy": a.policy, "--redact": a.redact, "--tools": a.tools} {
		if file != "" { // it would be read by nobody
			return schema.Errorf(schema.InvalidConfig, "%s is for tools that run in this process, and a serve runs them here", flag).
				With("next", "give "+flag+" to that serve")
		}
	}
	return nil
}

// servers says which MCP servers of --tools answer.
func (d *doctor) servers(ctx context.Context) {
	if d.a.tools == "" {
		return
	}
	_, servers, err := d.a.registry(ctx)
	if err != nil {
		return // walls has said so
	}
	defer servers.Close()
	for _, s := range servers.Status() {
		v := diagnosis{Check: "mcp", Status: statusOK, Text: s.String()}
		switch {
		case !s.Connected:
			v.Status, v.Kind, v.Next = statusWarning, schema.Unavailable, "start it by hand and look what it says; its tools are refused until it answers"
		case len(s.Left) > 0:
			v.Status, v.Text, v.Next = statusWarning, v.Text+"; left out: "+strings.Join(s.Left, "; "), "do without these tools, or mend their server"
		}
		d.tell(v)
	}
}
