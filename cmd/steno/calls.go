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
	c := &cobra.Command{Use: "calls", Short: "list, show, wait for, cancel and settle the calls of a session",
		Long: "ls, show and wait read the files of the store and need nobody who serves. cancel and resolve go to the process\n" +
			"that holds the session; if nobody does, they take it, which settles what a dead process left.",
		Example: "  steno calls ls demo --open\n  steno calls show demo call-8\n  steno calls resolve demo call-8 --succeeded --reason 'the mail is there'"}
	c.AddCommand(a.callsLsCommand(), a.callsShowCommand(), a.callsWaitCommand(), a.callsCancelCommand(), a.callsResolveCommand())
	return c
}

func (a *app) callsLsCommand() *cobra.Command {
	var open bool
	c := &cobra.Command{
		Use: "ls SESSION", Short: "list the calls of a session; --open: those without a final result",
		Example: "  steno calls ls demo\n  steno calls ls demo --open -o jsonl", Args: exactly("SESSION"),
		RunE: a.onSession(func(ctx context.Context, store *journal.Files, args []string) error {
			st, damage, err := callsOf(ctx, store, args[0], nil)
			if err != nil {
				return err
			}
			l := listing{a: a, head: []string{"CALL", "TOOL", "STATE", "ATTEMPT", "BY", "TOOK"}}
			for _, c := range st.Calls {
				r := rowOf(c)
				if open && !r.Open {
					continue
				}
				if err := l.add(r, r.cells); err != nil {
					return err
				}
			}
			return errors.Join(l.end(), damage)
		}),
	}
	c.Flags().BoolVar(&open, "open", false, "only calls without a result, or with one that leaves open what became of them")
	return c
}

// callsOf folds a session, and shows every event to see, unless that is nil.
// damage is what it met on the way; the calls that can be read are there all
// the same.
func callsOf(ctx context.Context, store journal.Store, id string, see func(journal.Item)) (st *replay.State, damage, err error) {
	st = replay.New()
	scan := journal.NewScan(store, id, journal.ScanOptions{State: st})
	for it, err := range scan.Items(ctx) {
		if err != nil {
			return nil, nil, err
		}
		if it.Event != nil && see != nil {
			see(it)
		}
	}
	if scan.FirstError != nil {
		damage = scan.FirstError.Err(id)
	}
	return st, damage, nil
}

// A callRow is a call in short. State is the kind of its error where it has
// one; waiting says that a person is asked.
type callRow struct {
	CallID  string `json:"call_id"`
	Tool    string `json:"tool"`
	State   string `json:"state"`
	Open    bool   `json:"open"` // no result, or one that may be settled
	Attempt uint64 `json:"attempt"`
	By      string `json:"by,omitzero"` // who decided last
	Seq     uint64 `json:"seq"`
	TookUS  uint64 `json:"duration_us,omitzero"`
}

func rowOf(c *replay.Call) callRow {
	r := callRow{CallID: c.ID, Tool: c.Name, State: string(c.State), Open: c.Result == nil || c.Result.Open(), Seq: c.Seq}
	if n := len(c.Attempts); n > 0 {
		r.Attempt = c.Attempts[n-1].Attempt
	}
	if n := len(c.Decisions); n > 0 {
		r.By = c.Decisions[n-1].By
	}
	switch {
	case c.Waiting != nil:
		r.State = "waiting"
	case c.Result != nil:
		r.TookUS = c.Result.Duration
		if c.Result.Kind != "" {
			r.State = string(c.Result.Kind)
		}
	}
	return r
}

func (r callRow) cells() []string {
	took := ""
	if r.TookUS > 0 {
		took = (time.Duration(r.TookUS) * time.Microsecond).Round(10 * time.Microsecond).String()
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
		RunE: a.onSession(func(ctx context.Context, store *journal.Files, args []string) error {
			return a.showCall(ctx, store, args[0], args[1])
		}),
	}
}

func (a *app) showCall(ctx context.Context, store journal.Store, session, id string) error {
	var lines []jsontext.Value
	var events []*schema.Event
	st, damage, err := callsOf(ctx, store, session, func(it journal.Item) {
		if callIDOf(it.Event) == id {
			e := *it.Event
			e.Data = jsontext.Value(e.Data).Clone()
			events, lines = append(events, &e), append(lines, jsontext.Value(it.Line).Clone())
		}
	})
	if err != nil {
		return err
	}
	c := st.Call(id)
	if c == nil {
		return errors.Join(noCall(session, id), damage)
	}
	next := a.here(nextOf(session, c))
	switch a.format {
	case "jsonl":
		for _, line := range lines {
			if _, err := a.out.Write(append(line, '\n')); err != nil {
				return err
			}
		}
	case "json":
		err = a.json(struct {
			Session string           `json:"session"`
			Open    bool             `json:"open"`
			Call    *replay.Call     `json:"call"`
			Events  []jsontext.Value `json:"events"`
			Next    string           `json:"next,omitzero"`
		}{session, rowOf(c).Open, c, lines, next})
	default:
		rows := make([][]string, len(events))
		for i, e := range events {
			rows[i] = []string{fmt.Sprint(e.Seq), e.Time.UTC().Format("2006-01-02 15:04:05.000"), e.Type, about(e)}
		}
		if next != "" {
			rows = append(rows, []string{"", "", "next", next})
		}
		err = a.table([]string{"SEQ", "TIME (UTC)", "TYPE", "WHAT"}, rows)
	}
	return errors.Join(err, damage)
}

func noCall(session, id string) error {
	return schema.Errorf(schema.NotFound, "session %s has no call %s", session, id).With("session", session).With("call_id", id).
		With("next", "look which there are; run: steno calls ls "+session)
}

// nextOf is what can be done about a call; "" where nothing is open.
func nextOf(session string, c *replay.Call) string {
	call := session + " " + shellWord(c.ID)
	switch {
	case c.Result == nil && c.State == replay.Unknown:
		return "it runs, or its executor is dead: the next call of the session settles it then; run: steno lease show " + session
	case c.Result == nil:
		return "it waits for its turn; run: steno calls wait " + call
	case c.Result.Open():
		return "look whether the tool took effect, then run: steno calls resolve " + call + " with --succeeded, --failed or --retry"
	}
	return ""
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
	connect := a.throughServe
	if a.nats != "" {
		connect = func(context.Context) (*nats.Conn, error) { return dial(a.nats) }
	}
	nc, err := connect(ctx)
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
		_, _, err := callsOf(ctx, store, session, func(it journal.Item) {
			if it.Event.Type == schema.TypeToolResult && !it.Tentative && callIDOf(it.Event) == id {
				data = jsontext.Value(it.Event.Data).Clone() // the last one counts
			}
		})
		if err != nil || data != nil {
			return data, err
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
	c := &cobra.Command{
		Use: "cancel SESSION CALL", Short: "stop a call, and print the result that it has then",
		Long: "cancel tells the tool of a call to stop, and records who did it, and why. What the tool had done by then is its\n" +
			"result; otherwise that has kind cancelled and can be settled by: steno calls resolve.\n" +
			"A call that has a result keeps it.",
		Example: "  steno calls cancel demo call-9 --reason 'the wrong branch'", Args: exactly("SESSION", "CALL"),
		RunE: func(c *cobra.Command, args []string) error {
			return a.onCall(c.Context(), args, func(ctx context.Context, client *executor.Client) (executor.Answer, error) {
				return client.Cancel(ctx, executor.CancelRequest{Session: args[0], CallID: args[1], By: byUser(), Reason: reason})
			})
		},
	}
	a.ownFlags(c)
	c.Flags().StringVar(&reason, "reason", "", "why; it goes into the log")
	return c
}

func (a *app) callsResolveCommand() *cobra.Command {
	var retry, succeeded, failed bool
	var reason, output string
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
				return usage("--reason is missing").With("next", "say why you know: steno calls resolve SESSION CALL --reason WHY")
			case retry && output != "":
				return usage("--output goes with --succeeded or --failed; a retry has the output of the tool")
			}
			return a.onCall(c.Context(), args, func(ctx context.Context, client *executor.Client) (executor.Answer, error) {
				return client.Resolve(ctx, executor.ResolveRequest{Session: args[0], CallID: args[1], As: as, Output: output, By: byUser(), Reason: reason})
			})
		},
	}
	a.ownFlags(c)
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
func (a *app) onCall(ctx context.Context, args []string, ask func(context.Context, *executor.Client) (executor.Answer, error)) (err error) {
	if err := errors.Join(schema.CheckSession(args[0]), schema.CheckCallID(args[1])); err != nil {
		return err
	}
	b, err := a.backend(ctx, false)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.close()) }()
	answer, err := ask(b.calls, b.client)
	if err != nil {
		return err
	}
	return a.told(executor.Request{CallID: args[1]}, answer, false)
}
