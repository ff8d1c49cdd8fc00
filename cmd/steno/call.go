package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/oklog/ulid/v2"
	"github.com/spf13/cobra"

	"steno/executor"
	"steno/schema"
)

func (a *app) callCommand() *cobra.Command {
	var session, args, callID, key, format, turn, actor string
	var dryRun, exit, queue bool
	var timeout time.Duration
	c := &cobra.Command{
		Use: "call TOOL", Short: "run one tool call and record it",
		Long: "call runs a tool in a session that is there and prints the recorded result.\n\n" +
			"Exit 0 for any genuine recorded result, 8 for one that is interrupted; --exit-code passes the tool's on.\n" +
			"A call that is repeated with the same --call-id gets the recorded result.\n\n" +
			"With --queue the call is put into the queue of a serve, and call returns when it is there: that it is queued, and no more. The\n" +
			"result comes from: steno calls wait.\n\n" +
			"With --format the call is one that a model has made, as its provider gives it, or a list of such calls: a request\n" +
			"tools/call of mcp, a block tool_use of anthropic, an entry of tool_calls or an item function_call of openai. It is read\n" +
			"from standard input, or --args, and answered in the same format. Its id is the call's; where a provider begins its ids\n" +
			"anew in each turn, --turn makes them unique.",
		Example: "  steno call list --session demo\n  steno call read --session demo --args '{\"path\":\"go.mod\"}'\n  steno call bash --session demo --args @args.json --call-id build-1\n  steno call bash --session demo --args @args.json --call-id build-2 --queue\n" +
			"  steno call --format anthropic --session demo --turn 7 --args @tool_use.json",
		Args: func(c *cobra.Command, words []string) error {
			if format != "" {
				return exactly()(c, words)
			}
			return exactly("TOOL")(c, words)
		},
		RunE: func(c *cobra.Command, words []string) error {
			a.asks = true
			if session == "" {
				return usage("--session is missing").With("next", "run: steno call --help")
			}
			if actor == "" {
				actor = byUser()
			}
			if format != "" && !c.Flags().Changed("args") {
				args = "-"
			}
			text, err := a.argument(args)
			if err != nil {
				return err
			}
			if queue && (format != "" || exit) {
				return usage("a queued call has no result yet: --queue goes with neither --format nor --exit-code")
			}
			if format != "" {
				if callID != "" || key != "" {
					return usage("the id of a model's call is its own; --call-id and --key are for other calls")
				}
				return a.modelCalls(c.Context(), session, modelCalls{format, turn, actor, text, dryRun}, timeout)
			}
			if turn != "" {
				return usage("--turn is for the calls of --format")
			}
			if callID == "" {
				callID = ulid.Make().String()
			}
			req := executor.Request{CallID: callID, Name: words[0], Args: text, Key: key, DryRun: dryRun, Actor: executor.Actor{ID: actor}}
			if queue {
				return a.enqueue(c.Context(), session, req, timeout)
			}
			return a.call(c.Context(), session, req, timeout, exit)
		},
	}
	f := c.Flags()
	f.StringVar(&session, "session", "", "the session; it must be there")
	f.StringVar(&args, "args", "{}", "the arguments: JSON, @FILE, or - for standard input")
	f.StringVar(&callID, "call-id", "", "the call's id; the same id gives the recorded result (default: a new one)")
	f.StringVar(&key, "key", "", "idempotency key for the tool (default: the call id)")
	f.StringVar(&format, "format", "", "take a call as a model's provider gives it, and answer in its format: mcp, anthropic or openai")
	f.StringVar(&turn, "turn", "", "of the model's calls: stands before their ids, with a dot between")
	f.StringVar(&actor, "actor", "", "on whose behalf; it goes into the log and to the tool (default: the user)")
	f.BoolVar(&dryRun, "dry-run", false, "say what would be done and change nothing")
	f.BoolVar(&queue, "queue", false, "put the call into the queue of a serve, and do not wait for its result")
	f.BoolVar(&exit, "exit-code", false, "exit with the tool's own exit code")
	a.ownFlags(c)
	f.DurationVar(&timeout, "timeout", 0, "how long to wait for the result; in a serve the call then goes on (default: for ever)")
	return c
}

// argument reads JSON given as itself, as @FILE or as - .
func (a *app) argument(v string) (jsontext.Value, error) {
	name, file := strings.CutPrefix(v, "@")
	switch {
	case v == "-":
		b, err := io.ReadAll(io.LimitReader(a.in, executor.MaxRequest+1))
		if err != nil {
			return nil, schema.Errorf(schema.StdinError, "standard input cannot be read").Cause(err)
		}
		return b, nil
	case file:
		b, err := os.ReadFile(name)
		if err != nil {
			return nil, usage("the file %q of --args cannot be read", name).Cause(err)
		}
		return b, nil
	}
	return jsontext.Value(v), nil
}

func (a *app) call(ctx context.Context, session string, req executor.Request, timeout time.Duration, exit bool) error {
	if err := schema.CheckSession(session); err != nil {
		return err
	}
	if err := sound(req.Args); err != nil {
		return err
	}
	return a.withBackend(ctx, timeout, func(wait context.Context, b *backend) error {
		answer, err := b.ask(ctx, wait, session, req, timeout)
		if err != nil {
			return err
		}
		return a.told(req, answer, exit)
	})
}

// ask makes a call, and says what to do where it has no answer in time.
func (b *backend) ask(ctx, wait context.Context, session string, req executor.Request, timeout time.Duration) (executor.Answer, error) {
	answer, err := b.callTool(ctx, wait, session, req)
	if err != nil && errors.Is(wait.Err(), context.DeadlineExceeded) {
		e := schema.Errorf(schema.Timeout, "call %s has no result after %s", req.CallID, timeout).With("session", session).
			With("call_id", req.CallID).With("next", "ask again for the same call with --call-id "+req.CallID).Cause(err)
		if why := b.unready(); why != nil {
			e.Message += "; " + why.Message
			e.With("why", why.Kind).With("next", fmt.Sprint(why.Details["next"], "; then ", e.Details["next"]))
		}
		return answer, e
	}
	if err != nil && ctx.Err() != nil {
		return answer, schema.Errorf(schema.Cancelled, "stopped by a signal before call %s had a result", req.CallID).With("session", session).
			With("call_id", req.CallID).With("next", "ask again for the same call with --call-id "+req.CallID).Cause(err)
	}
	return answer, err
}

// sound refuses arguments that are no JSON: the client puts them into its
// request as they are.
func sound(args jsontext.Value) error {
	if _, _, err := schema.Compact(nil, args, 2); err != nil {
		e := schema.AsError(err)
		e.Message = "--args: " + e.Message
		return e
	}
	return nil
}

// told prints the result of a call, and gives the exit code.
func (a *app) told(req executor.Request, answer executor.Answer, exit bool) error {
	v, err := resultOf(answer.Data, nil)
	if err != nil {
		return err
	}
	if a.format == "table" {
		err = a.printRow(&job{call: req, answer: answer})
	} else {
		_, err = a.out.Write(append([]byte(answer.Data), '\n'))
	}
	a.tellNext(v)
	switch {
	case err != nil:
		return err
	case v.kind() == schema.Interrupted:
		return exitCode(schema.ExitUnknown)
	case exit && v.ExitCode != nil && *v.ExitCode != 0:
		return exitCode(*v.ExitCode)
	case exit && v.Error != nil:
		return exitCode(v.Error.Kind.Info().Exit)
	}
	return nil
}

// unready is why the executor cannot record calls now; nil if it can, or does
// not say.
func (b *backend) unready() *schema.ErrorBody {
	if b.exec != nil {
		if err := b.exec.Ready(); err != nil {
			body := schema.Body(err)
			return &body
		}
		return nil
	}
	m, err := b.conn.Request("$SRV.STATS.steno", nil, 2*time.Second)
	if err != nil {
		return nil
	}
	var stats struct {
		Endpoints []struct {
			Data struct {
				Error *schema.ErrorBody `json:"error"`
			} `json:"data"`
		} `json:"endpoints"`
	}
	if json.Unmarshal(m.Data, &stats) != nil || len(stats.Endpoints) == 0 {
		return nil
	}
	return stats.Endpoints[0].Data.Error
}
