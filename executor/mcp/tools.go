package mcp

import (
	"context"
	"encoding/json" // of the SDK's values
	"errors"
	"fmt"
	"slices"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"steno/executor"
	"steno/schema"
)

// Bounds of what a server says of its tools.
const (
	maxTools       = 1000
	maxPages       = 100
	maxDescription = 16 << 10 // bytes; longer ones lose their middle
	maxSchema      = 256 << 10
	maxSchemaDepth = 64
	maxList        = 16 << 20 // bytes of all
	maxLeft        = 100      // tools left out that are told
)

// A remote is a tool of a server as it is registered.
type remote struct {
	original string
	said     string // what the server says of it, to see whether that has changed
}

// list asks for the server's tools and brings the registry into line with them.
func (s *server) list(ctx context.Context, session *sdk.ClientSession) error {
	var all []*sdk.Tool
	var left []string
	size := 0
	params := &sdk.ListToolsParams{}
	for page := 1; ; page++ {
		res, err := session.ListTools(ctx, params)
		if err != nil {
			return err
		}
		for _, t := range res.Tools {
			if t == nil {
				continue
			}
			if b, err := json.Marshal(t); err == nil {
				size += len(b)
			}
			all = append(all, t)
		}
		if len(all) > maxTools || size > maxList {
			return fmt.Errorf("it has more than %d tools, or says more than %d MiB of them", maxTools, maxList>>20)
		}
		if res.NextCursor == "" {
			break
		}
		if page == maxPages || res.NextCursor == params.Cursor {
			return errors.New("its list of tools does not end")
		}
		params = &sdk.ListToolsParams{Cursor: res.NextCursor}
	}
	leave := func(original, why string) {
		if len(left) < maxLeft {
			left = append(left, fmt.Sprintf("%s: %s", s.clean(original), s.clean(why)))
			s.log.Warn("a tool of an MCP server is left out", "tool", s.clean(original), "why", s.clean(why))
		}
	}
	wanted := map[string][]*sdk.Tool{}
	for _, t := range all {
		name := schema.ToolName(s.cfg.Name + "_" + t.Name)
		wanted[name] = append(wanted[name], t)
	}
	s.mu.Lock()
	had := s.tools
	s.mu.Unlock()
	has := map[string]remote{}
	for _, t := range all {
		name := schema.ToolName(s.cfg.Name + "_" + t.Name)
		if same := wanted[name]; len(same) > 1 {
			other := same[0]
			if other == t {
				other = same[1]
			}
			leave(t.Name, fmt.Sprintf("%q would be %s, as %q", t.Name, name, other.Name))
			continue
		}
		tool, note, err := s.tool(name, t)
		if note != "" {
			s.log.Warn("a tool of an MCP server is taken with less than it says", "tool", name, "why", note)
		}
		said, _ := json.Marshal(t)
		is := remote{t.Name, string(said)}
		before, there := had[name]
		switch {
		case err == nil && there && before == is:
		case err == nil && there:
			err = s.all.reg.Replace(tool)
		case err == nil:
			err = s.all.reg.Register(tool)
		}
		if err != nil {
			leave(t.Name, err.Error())
			continue
		}
		has[name] = is
	}
	for name := range had {
		if _, stays := has[name]; !stays {
			s.all.reg.Remove(name)
		}
	}
	slices.Sort(left)
	s.mu.Lock()
	s.tools, s.left = has, left
	s.mu.Unlock()
	return nil
}

// tool is a tool of the server as it is one here. note says what of it is not taken.
func (s *server) tool(name string, t *sdk.Tool) (tool executor.Tool, note string, err error) {
	input, err := bounded(t.InputSchema)
	if err != nil {
		return tool, "", fmt.Errorf("the schema of its arguments: %w", err)
	}
	about := t.Description
	if about == "" {
		about = t.Title
	}
	if about == "" {
		about = fmt.Sprintf("The tool %s of %s.", s.clean(t.Name), s.cfg.Name)
	}
	about, _ = schema.Truncate(about, maxDescription)
	original := t.Name
	tool = executor.Tool{Name: name, Original: original, Description: about, Input: input, Tier: 3, Ready: s.ready,
		Host: executor.Host{Server: s.cfg.Name, Trusted: s.cfg.Trust},
		Run: func(ctx context.Context, call *executor.Invocation) (executor.Result, error) {
			return s.call(ctx, original, call)
		}}
	if t.OutputSchema != nil {
		output, err := bounded(t.OutputSchema)
		if err == nil {
			err = executor.CheckSchema(output)
		}
		if err == nil {
			tool.Output = output
		} else {
			note = "its answers are not checked, for their schema cannot be used: " + s.clean(err.Error())
		}
	}
	vouch(s.cfg, t, &tool)
	return tool, note, nil
}

// vouch says of a tool what the server says of it, if that is trusted, and what the
// operator says.
func vouch(cfg executor.MCPServer, t *sdk.Tool, tool *executor.Tool) {
	if a := t.Annotations; a != nil && cfg.Trust {
		tool.ReadOnly, tool.Idempotent = a.ReadOnlyHint, a.IdempotentHint
		tool.Repeatable = a.ReadOnlyHint || a.IdempotentHint
		tool.Destructive, tool.OpenWorld = a.DestructiveHint, a.OpenWorldHint
		if a.ReadOnlyHint {
			tool.Tier = 0
		}
	}
	cfg.Tools[t.Name].Over(tool)
}

// bounded is a schema as JSON, if it is not larger or deeper than anybody needs.
func bounded(v any) ([]byte, error) {
	text, err := json.Marshal(v)
	if err != nil {
		return nil, err
	}
	if len(text) > maxSchema {
		return nil, fmt.Errorf("it has more than %d KiB", maxSchema>>10)
	}
	if _, _, err := schema.Compact(nil, text, schema.MaxDepth-maxSchemaDepth); err != nil {
		return nil, fmt.Errorf("it is no JSON, or nested deeper than %d levels", maxSchemaDepth)
	}
	return text, nil
}
