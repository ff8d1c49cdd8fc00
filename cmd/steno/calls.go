package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/nats-io/nats.go"
	"github.com/spf13/cobra"

	"steno/executor"
	"steno/journal"
	"steno/replay"
	"steno/schema"
)

func (a *app) callsCommand() *cobra.Command {
	c := &cobra.Command{Use: "calls", Short: "list, show, wait for, cancel, settle and queue again the calls of a session",
		Long: "ls, show and wait read the files of the store and need nobody who serves; with --nats they ask there. cancel and resolve go to the process\n" +
			"that holds the session; if nobody does, they take it, which settles what a dead process left. dead and requeue are about the queue\n" +
			"of a serve.",
		Example: "  steno calls ls demo --open\n  steno calls show demo call-8\n  steno calls resolve demo call-8 --succeeded --reason 'the mail is there'"}
	c.AddCommand(a.callsLsCommand(), a.callsShowCommand(), a.callsWaitCommand(), a.callsCancelCommand(), a.callsResolveCommand(),
		a.callsDeadCommand(), a.callsRequeueCommand())
	return c
}

func (a *app) callsLsCommand() *cobra.Command {
	var open bool
	c := &cobra.Command{
		Use: "ls SESSION", Short: "list the calls of a session; --open: those without a final result",
		Example: "  steno calls ls demo\n  steno calls ls demo --open -o jsonl", Args: exactly("SESSION"),
		RunE: func(c *cobra.Command, args []string) error {
			l := listing{a: a, head: []string{"CALL", "TOOL", "STATE", "ATTEMPT", "BY", "TOOK"}}
			var damage error
			page := func(p executor.CallsAnswer) error {
				if p.Damage != nil {
					damage = p.Damage.Err()
				}
				for _, r := range p.Calls {
					if err := l.add(r, func() []string { return callCells(r) }); err != nil {
						return err
					}
				}
				return nil
			}
			err := a.looksAt(c, args, func(ctx context.Context, store *journal.Files) error {
				all, err := executor.Calls(ctx, store, executor.CallsRequest{Session: args[0], Open: open})
				if err != nil {
					return err
				}
				return page(all)
			}, func(ctx context.Context, client *executor.Client) error {
				for req := (executor.CallsRequest{Session: args[0], Open: open, Limit: 1000}); ; {
					p, err := client.Calls(ctx, req)
					if err == nil {
						err = page(p)
					}
					if err != nil || !p.More {
						return err
					}
					req.After = p.Calls[len(p.Calls)-1].Seq
				}
			})
			if err != nil {
				return err
			}
			return errors.Join(l.end(), damage)
		},
	}
	c.Flags().BoolVar(&open, "open", false, "only calls without a result, or with one that leaves open what became of them")
	return c
}

// looksAt reads the files of the store, or asks whoever serves on --nats.
func (a *app) looksAt(c *cobra.Command, args []string, files func(context.Context, *journal.Files) error, remote func(context.Context, *executor.Client) error) error {
	if a.nats == "" {
		return a.onSession(func(ctx context.Context, store *journal.Files, _ []string) error { return files(ctx, store) })(c, args)
	}
	if err := schema.CheckSession(args[0]); err != nil {
		return err
	}
	return a.askThere(c.Context(), remote)
}

// askThere asks whoever serves on --nats.
func (a *app) askThere(ctx context.Context, remote func(context.Context, *executor.Client) error) error {
	nc, err := a.connect(ctx)
	if err != nil {
		return err
	}
	defer nc.Close()
	if err := a.someoneServes(ctx, nc); err != nil {
		return err
	}
	client, err := executor.NewClient(nc, "")
	if err != nil {
		return err
	}
	return remote(ctx, client)
}

// connect is for those who ask whoever serves: on --nats, or on this store; nil
// where nobody does.
func (a *app) connect(ctx context.Context) (*nats.Conn, error) {
	if a.nats != "" {
		return dial(a.nats)
	}
	return a.throughServe(ctx)
}

func callCells(r executor.CallInfo) []string {
	took := ""
	if r.Duration > 0 {
		took = (time.Duration(r.Duration) * time.Microsecond).Round(10 * time.Microsecond).String()
	}
	state := r.State
	if r.Open {
		state += " (open)"
	}
	return []string{r.CallID, r.Tool, state, fmt.Sprint(r.Attempt), r.By, took}
}

func (a *app) callsShowCommand() *cobra.Command {
	return &cobra.Command{
		Use: "show SESSION CALL", Short: "show all that is recorded of a call, and what can be done about it",
		Example: "  steno calls show demo call-8\n  steno calls show demo call-8 -o jsonl | jq .type", Args: exactly("SESSION", "CALL"),
		RunE: func(c *cobra.Command, args []string) error {
			v, err := a.lookAtCall(c, args)
			if err != nil {
				return err
			}
			return a.showCall(v)
		},
	}
}

func (a *app) lookAtCall(c *cobra.Command, args []string) (v executor.CallAnswer, err error) {
	err = a.looksAt(c, args, func(ctx context.Context, store *journal.Files) (err error) {
		v, err = executor.LookAtCall(ctx, store, args[0], args[1])
		return err
	}, func(ctx context.Context, client *executor.Client) (err error) {
		v, err = client.LookAtCall(ctx, executor.CallRequest{Session: args[0], CallID: args[1]})
		return err
	})
	v.Next = a.here(v.Next)
	return v, err
}

func (a *app) showCall(v executor.CallAnswer) (err error) {
	switch a.format {
	case "jsonl":
		for _, line := range v.Events {
			if _, err := a.out.Write(append(line, '\n')); err != nil {
				return err
			}
		}
	case "json":
		err = a.json(v)
	default:
		var rows [][]string
		for _, line := range v.Events {
			e := new(schema.Event)
			if err := e.Decode(line); err != nil {
				return err
			}
			rows = append(rows, []string{fmt.Sprint(e.Seq), e.Time.UTC().Format("2006-01-02 15:04:05.000"), e.Type, about(e)})
		}
		for _, seq := range v.LeftOut {
			rows = append(rows, []string{fmt.Sprint(seq), "", "", "too large for an answer; it is in the log"})
		}
		if v.Next != "" {
			rows = append(rows, []string{"", "", "next", v.Next})
		}
		err = a.table([]string{"SEQ", "TIME (UTC)", "TYPE", "WHAT"}, rows)
	}
	if v.Damage != nil {
		err = errors.Join(err, v.Damage.Err())
	}
	return err
}

func (a *app) callsWaitCommand() *cobra.Command {
	var timeout time.Duration
	c := &cobra.Command{
		Use: "wait SESSION CALL", Short: "wait until a call has a result, and print that",
		Long: "wait asks the serve of this store, or --nats, for the result of the call, and without one reads the log until it has\n" +
			"that. The call need not be there yet: it may lie in the queue.\n\n" +
			"Exit 0 for any genuine recorded result, 8 for one that is interrupted.",
		Example: "  steno calls wait demo call-8\n  steno calls wait demo call-8 --timeout 1m", Args: exactly("SESSION", "CALL"),
		RunE: func(c *cobra.Command, args []string) error {
			if err := errors.Join(schema.CheckSession(args[0]), schema.CheckCallID(args[1])); err != nil {
				return err
			}
			return a.waitForCall(c.Context(), args[0], args[1], timeout)
		},
	}
	c.Flags().DurationVar(&timeout, "timeout", 0, "how long to wait (default: for ever)")
	return c
}

// waitPause is between two looks at a log; a long one is looked at less often.
const waitPause = 100 * time.Millisecond

func (a *app) waitForCall(ctx context.Context, session, id string, timeout time.Duration) (err error) {
	wait := ctx
	if timeout > 0 {
		var cancel context.CancelFunc
		wait, cancel = context.WithTimeout(ctx, timeout)
		defer cancel()
	}
	nc, err := a.connectTo(ctx, session)
	if err != nil {
		return err
	}
	var data jsontext.Value
	if nc != nil {
		defer nc.Close()
		var client *executor.Client
		if client, err = executor.NewClient(nc, ""); err != nil {
			return err
		}
		var answer executor.Answer
		answer, err = client.Wait(wait, session, id)
		data = answer.Data
	} else {
		data, err = a.readResult(wait, session, id)
	}
	switch {
	case err == nil:
		return a.told(executor.Request{CallID: id}, executor.Answer{CallID: id, Data: data}, false)
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case wait.Err() != nil:
		return schema.Errorf(schema.Timeout, "call %s has no result after %s", id, timeout).With("session", session).With("call_id", id).
			With("next", "see what holds it up; run: steno calls show "+session+" "+id).Cause(err)
	}
	return err
}

// readResult reads the log until the result of a call is known to be durable.
func (a *app) readResult(ctx context.Context, session, id string) (data jsontext.Value, err error) {
	store, err := a.reader()
	if err != nil {
		return nil, err
	}
	defer store.Close()
	for {
		began := time.Now()
		for it, err := range journal.NewScan(store, session, journal.ScanOptions{State: replay.NewChecker()}).Items(ctx) {
			if err != nil {
				return nil, err
			}
			if it.Event != nil && it.Event.Type == schema.TypeToolResult && !it.Tentative && callIDOf(it.Event) == id {
				data = jsontext.Value(it.Event.Data).Clone() // the last one counts
			}
		}
		if data != nil {
			return data, nil
		}
		select {
		case <-time.After(max(waitPause, 4*time.Since(began))):
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// callIDOf is the call that an event is about, "" for none.
func callIDOf(e *schema.Event) string {
	var d struct {
		CallID string `json:"call_id"`
	}
	if schema.Unmarshal(e.Data, &d) != nil {
		return ""
	}
	return d.CallID
}

func (a *app) callsCancelCommand() *cobra.Command {
	var reason string
	var dryRun *bool
	c := &cobra.Command{
		Use: "cancel SESSION CALL", Short: "stop a call, and print the result that it has then",
		Long: "cancel tells the tool of a call to stop, and records who did it, and why. What the tool had done by then is its\n" +
			"result; otherwise that has kind cancelled and can be settled by: steno calls resolve.\n" +
			"A call that has a result keeps it.",
		Example: "  steno calls cancel demo call-9 --reason 'the wrong branch'", Args: exactly("SESSION", "CALL"),
		RunE: func(c *cobra.Command, args []string) error {
			if *dryRun {
				return a.planCancel(c, args)
			}
			return a.onCall(c.Context(), args, func(ctx context.Context, client *executor.Client) (executor.Answer, error) {
				return client.Cancel(ctx, executor.CancelRequest{Session: args[0], CallID: args[1], By: byUser(), Reason: reason})
			})
		},
	}
	a.ownFlags(c)
	dryRun = dryRunFlag(c)
	c.Flags().StringVar(&reason, "reason", "", "why; it goes into the log")
	return c
}

func (a *app) callsResolveCommand() *cobra.Command {
	var retry, succeeded, failed bool
	var reason, output string
	var dryRun *bool
	c := &cobra.Command{
		Use: "resolve SESSION CALL --succeeded|--failed|--retry --reason WHY", Short: "settle what became of a call whose outcome is open",
		Long: "resolve records a person's decision about a call that was interrupted, ran out of time or was cancelled: that it took\n" +
			"effect, that it failed, or that its tool runs once more, whose result is then that of the call. Who decided, and why,\n" +
			"is in the log. It is decided once: a genuine result stands.",
		Example: "  steno calls resolve demo call-8 --succeeded --reason 'the mail is there'\n  steno calls resolve demo call-8 --retry --reason 'nothing was sent'", Args: exactly("SESSION", "CALL"),
		RunE: func(c *cobra.Command, args []string) error {
			as := ""
			for _, f := range []struct {
				set bool
				as  string
			}{{retry, executor.AsRetry}, {succeeded, executor.AsSucceeded}, {failed, executor.AsFailed}} {
				if f.set && as != "" {
					return usage("--retry, --succeeded and --failed exclude each other")
				} else if f.set {
					as = f.as
				}
			}
			switch {
			case as == "":
				return usage("say what became of the call: --retry, --succeeded or --failed")
			case strings.TrimSpace(reason) == "":
				return usage("--reason is missing").With("next", "say why you know; run: steno calls resolve "+args[0]+" "+shellWord(args[1])+" --"+as+" --reason WHY")
			case retry && output != "":
				return usage("--output goes with --succeeded or --failed; a retry has the output of the tool")
			}
			if *dryRun {
				return a.planResolve(c, args, as, reason)
			}
			return a.onCall(c.Context(), args, func(ctx context.Context, client *executor.Client) (executor.Answer, error) {
				return client.Resolve(ctx, executor.ResolveRequest{Session: args[0], CallID: args[1], As: as, Output: output, By: byUser(), Reason: reason})
			})
		},
	}
	a.ownFlags(c)
	dryRun = dryRunFlag(c)
	f := c.Flags()
	f.BoolVar(&retry, "retry", false, "run the tool once more, also one that is not repeatable")
	f.BoolVar(&succeeded, "succeeded", false, "the call took effect")
	f.BoolVar(&failed, "failed", false, "the call did not take effect, and is not wanted any more")
	f.StringVar(&output, "result", "", "what the call gave, as the agent is to see it")
	f.StringVar(&reason, "reason", "", "why; it goes into the log")
	return c
}

// onCall asks the holder of a session for something about a call, and prints
// the result that the call has then.
func (a *app) onCall(ctx context.Context, args []string, ask func(context.Context, *executor.Client) (executor.Answer, error)) error {
	if err := errors.Join(schema.CheckSession(args[0]), schema.CheckCallID(args[1])); err != nil {
		return err
	}
	return a.withBackend(ctx, 0, func(wait context.Context, b *backend) error {
		answer, err := ask(wait, b.client)
		if err != nil {
			return err
		}
		return a.told(executor.Request{CallID: args[1]}, answer, false)
	})
}
