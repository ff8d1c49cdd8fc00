package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/spf13/cobra"

	"steno/executor"
	"steno/executor/mcp"
	"steno/executor/redact"
	"steno/schema"
)

func (a *app) toolCommand() *cobra.Command {
	var session, format string
	ls := &cobra.Command{
		Use: "ls", Short: "list the tools there are, or those that a session admits now",
		Long: "ls lists the tools that this command would run: the built-in ones and those of --tools, and what workers host for the\n" +
			"serve on this store, or on the server of --nats. With --session it asks who holds that session which tools it admits now.",
		Example: "  steno tool ls\n  steno tool ls --tools tools.yaml -o jsonl\n  steno tool ls --session demo", Args: exactly(),
		RunE: func(c *cobra.Command, _ []string) error { return a.listTools(c.Context(), session) },
	}
	ls.Flags().StringVar(&session, "session", "", "only the tools that this session admits now")
	show := &cobra.Command{
		Use: "show TOOL", Short: "print all of a tool, or what a model is told of it",
		Long: "show prints a tool with its schemas, as clients and models take it: mcp is the form of the Model Context Protocol,\n" +
			"anthropic that of its messages, openai that of its chat completions, openai-responses that of its responses, and the\n" +
			"default has all there is.",
		Example: "  steno tool show read\n  steno tool show send_notice --tools tools.yaml --format mcp", Args: exactly("TOOL"),
		RunE: func(c *cobra.Command, args []string) error {
			reg, servers, err := a.registry(c.Context())
			if err != nil {
				return err
			}
			defer servers.Close()
			t, err := reg.Get(args[0])
			if err != nil || a.nats != "" {
				hosted, asked := a.hostedTool(c.Context(), args[0])
				switch {
				case asked != nil: // nobody knows
					return asked
				case hosted != nil:
					t = *hosted
				case err == nil: // of this command, which is not the server's
					return schema.Errorf(schema.UnknownTool, "no worker hosts a tool %s there", args[0])
				default:
					return err
				}
			}
			return a.showTool(t, format)
		},
	}
	show.Flags().StringVar(&format, "format", executor.FormatSteno, "steno, mcp, anthropic, openai or openai-responses")
	c := &cobra.Command{Use: "tool", Short: "list, show and try tools",
		Example: "  steno tool ls\n  steno tool show edit --format openai\n  steno tool test list --workspace ."}
	c.AddCommand(ls, show, a.toolTestCommand())
	for _, sub := range c.Commands() {
		if sub != ls { // which may take a session
			a.toolsFlag(sub)
		}
	}
	a.ownFlags(ls)
	return c
}

// registry has the tools of this command's own executor, with those of its MCP
// servers, which are to be closed.
func (a *app) registry(ctx context.Context) (*executor.Registry, *mcp.Servers, error) {
	file, err := a.toolsFile()
	if err != nil {
		return nil, nil, err
	}
	reg, err := executor.NewRegistry(file.Tools...)
	if err != nil {
		return nil, nil, err
	}
	cfg := executor.Config{Tools: reg, Logger: slog.New(slog.NewTextHandler(a.err, &slog.HandlerOptions{Level: slog.LevelError}))}
	if cfg.Redact, err = redact.New(nil, redact.Rules{Values: file.Secrets()}); err != nil {
		return nil, nil, err
	}
	if _, err := os.Stat(a.dir); err == nil {
		cfg.Protect = []string{a.dir}
	}
	return reg, startServers(ctx, file, cfg), nil
}

// specs are the tools of this command's own executor, or of a session.
func (a *app) specs(ctx context.Context, session string) (specs []jsontext.Value, servers []mcp.Status, err error) {
	if session == "" {
		hosted, _, err := a.hosted(ctx)
		if err != nil && a.nats != "" {
			return nil, nil, err
		}
		if err != nil { // what this command has itself is there all the same
			fmt.Fprintf(a.err, "the serve on this store does not say what workers host: %s\n", inert(err.Error()))
		}
		for _, r := range hosted.Refused {
			fmt.Fprintf(a.err, "not used: %s: %s\n", inert(r.Worker), inert(r.Why))
		}
		defer func() { specs = append(specs, hosted.Tools...) }()
		if a.nats != "" {
			return nil, nil, nil
		}
		reg, all, err := a.registry(ctx)
		if err != nil {
			return nil, nil, err
		}
		defer all.Close()
		for _, t := range reg.Tools() {
			spec, err := t.Spec(executor.FormatSteno)
			if err != nil {
				return nil, nil, err
			}
			specs = append(specs, spec)
		}
		return specs, all.Status(), nil
	}
	if err := schema.CheckSession(session); err != nil {
		return nil, nil, err
	}
	b, err := a.backend(ctx, false)
	if err != nil {
		return nil, nil, err
	}
	defer func() { err = errors.Join(err, b.close()) }()
	answer, err := b.client.Tools(b.calls, executor.ToolsRequest{Session: session})
	return answer.Tools, nil, err
}

func (a *app) listTools(ctx context.Context, session string) error {
	specs, servers, err := a.specs(ctx, session)
	if err != nil {
		return err
	}
	confined := map[string][]string{} // tools by what is around their commands
	l := listing{a: a, head: []string{"TOOL", "TIER", "PHASES", "IS", "DESCRIPTION"}}
	for _, spec := range specs {
		var t executor.ToolInfo
		if err := schema.Unmarshal(spec, &t); err != nil {
			return schema.Errorf(schema.Internal, "a tool cannot be read").Cause(err)
		}
		if t.Confined != "" {
			confined[t.Confined] = append(confined[t.Confined], t.Name)
		}
		if err := l.add(t, func() []string {
			phases := "all"
			if len(t.Phases) > 0 {
				phases = strings.Join(t.Phases, " ")
			}
			about, _, _ := strings.Cut(t.Description, ". ")
			return []string{t.Name, fmt.Sprint(t.Tier), phases, flagsOf(t), about}
		}); err != nil {
			return err
		}
	}
	if err := l.end(); err != nil || a.format != "" && a.format != "table" {
		return err
	}
	for _, by := range slices.Sorted(maps.Keys(confined)) {
		fmt.Fprintf(a.err, "commands of %s are confined by: %s\n", inert(strings.Join(confined[by], ", ")), inert(by))
	}
	for _, s := range servers {
		fmt.Fprintf(a.err, "MCP server %s\n", inert(s.String()))
		for _, left := range s.Left {
			fmt.Fprintf(a.err, "  left out: %s\n", inert(left))
		}
	}
	return nil
}

func flagsOf(t executor.ToolInfo) string {
	var words []string
	for _, f := range []struct {
		set  bool
		word string
	}{{t.ReadOnly, "read-only"}, {t.Repeatable, "repeatable"}, {t.Escalates, "escalates"}, {t.Away != "", "away"}} {
		if f.set {
			words = append(words, f.word)
		}
	}
	if t.Hosted != nil {
		words = append(words, aboutWorkers(t.Hosted))
	}
	return strings.Join(words, " ")
}

func (a *app) showTool(t executor.Tool, format string) error {
	spec, err := t.Spec(format)
	if err != nil {
		return err
	}
	if a.format == "" || a.format == "table" { // for people
		if err := spec.Indent(jsontext.WithIndent("  ")); err != nil {
			return err
		}
	}
	_, err = a.out.Write(append(spec, '\n'))
	return err
}

func (a *app) toolTestCommand() *cobra.Command {
	var args, workspace string
	var run, exit bool
	c := &cobra.Command{
		Use: "test TOOL", Short: "try a tool in a store that is thrown away",
		Long: "test checks arguments against the tool's schema and calls it as an executor does, in a session of its own that nobody\n" +
			"else sees. It is a dry run, which says what would be done; --run does it. The policy of --policy counts.",
		Example: "  steno tool test edit --workspace work --args '{\"path\":\"a\",\"old\":\"b\",\"new\":\"c\"}'\n" +
			"  steno tool test send_notice --tools tools.yaml --args @notice.json --run",
		Args: exactly("TOOL"),
		RunE: func(c *cobra.Command, words []string) error {
			text, err := a.argument(args)
			if err == nil {
				err = sound(text)
			}
			if err != nil {
				return err
			}
			return a.testTool(c.Context(), workspace, executor.Request{CallID: "test", Name: words[0], Args: text, DryRun: !run}, exit)
		},
	}
	f := c.Flags()
	f.StringVar(&args, "args", "{}", "the arguments: JSON, @FILE, or - for standard input")
	f.StringVar(&workspace, "workspace", "", "the folder that the tool works in (default: an empty one, which is thrown away too)")
	f.BoolVar(&run, "run", false, "run it, which may change what cannot be changed back")
	f.BoolVar(&exit, "exit-code", false, "exit with the tool's own exit code")
	a.policyFlag(c)
	return c
}

// testTool makes one call on a store in a temporary folder.
func (a *app) testTool(ctx context.Context, workspace string, req executor.Request, exit bool) (err error) {
	dir, err := os.MkdirTemp("", "steno-test-")
	if err != nil {
		return schema.Errorf(schema.WriteFailed, "no temporary folder can be made").Cause(err)
	}
	defer os.RemoveAll(dir)
	if workspace == "" {
		file, err := a.toolsFile()
		if err != nil {
			return err
		}
		// Beside the store and not in it: the user of commands must get there.
		if workspace, err = os.MkdirTemp("", "steno-test-"); err == nil {
			defer os.RemoveAll(workspace)
			err = file.Commands.Own(workspace)
		}
		if err != nil {
			return schema.Errorf(schema.WriteFailed, "no temporary folder can be made").With("next", "make one, and name it with --workspace").Cause(err)
		}
	}
	if workspace, err = filepath.Abs(workspace); err != nil {
		return usage("--workspace has no absolute form").Cause(err)
	}
	trial := *a
	trial.dir, trial.nats = filepath.Join(dir, "store"), ""
	b := &backend{}
	defer func() { err = errors.Join(err, b.close()) }()
	if err := trial.ownExecutor(ctx, b, true); err != nil {
		return err
	}
	if b.client, err = executor.NewClient(b.conn, ""); err != nil {
		return err
	}
	b.calls, b.cancel = outliving(ctx, grace)
	if _, err := b.client.Open(b.calls, executor.OpenRequest{Session: "test", Workspace: workspace}); err != nil {
		return err
	}
	answer, err := b.client.Call(b.calls, "test", req)
	if err != nil {
		return err
	}
	return a.told(req, answer, exit)
}
