package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"steno/executor"
	"steno/journal"
	"steno/schema"
)

// dryRunFlag lets a command that changes the history of a session say what it would
// record.
func dryRunFlag(c *cobra.Command) *bool {
	return c.Flags().Bool("dry-run", false, "only say what would be recorded")
}

// plan is what a dry run says.
func (a *app) plan(session, call, format string, args ...any) error {
	v := struct {
		OK      bool   `json:"ok"`
		DryRun  bool   `json:"dry_run"`
		Session string `json:"session"`
		CallID  string `json:"call_id,omitzero"`
		Would   string `json:"would"`
	}{true, true, session, call, fmt.Sprintf(format, args...)}
	if a.format == "json" || a.format == "jsonl" {
		return a.json(v)
	}
	_, err := fmt.Fprintln(a.out, "would "+inert(v.Would))
	return err
}

// planCancel is a dry run of a cancel.
func (a *app) planCancel(c *cobra.Command, args []string) error {
	v, err := a.lookAtCall(c, args)
	if err != nil {
		return err
	}
	if r := v.Call.Result; r != nil {
		return a.plan(v.Session, v.Call.ID, "change nothing: the call has its result, at %d", r.Seq)
	}
	if len(v.Call.Attempts) == 0 {
		return a.plan(v.Session, v.Call.ID, "record a result of kind %s, by %s: %s has not started", schema.Cancelled, byUser(), v.Call.Name)
	}
	return a.plan(v.Session, v.Call.ID, "tell %s to stop, and record what it had done by then, or a result of kind %s, by %s", v.Call.Name, schema.Cancelled, byUser())
}

// planResolve is a dry run of a resolve.
func (a *app) planResolve(c *cobra.Command, args []string, as, reason string) error {
	v, err := a.lookAtCall(c, args)
	if err != nil {
		return err
	}
	no := func(why string) error {
		return schema.Errorf(schema.ResultConflict, "call %s %s", v.Call.ID, why).With("session", v.Session).With("call_id", v.Call.ID).
			With("next", "run: steno calls show "+v.Session+" "+shellWord(v.Call.ID))
	}
	switch r := v.Call.Result; {
	case r == nil:
		return no("has no result yet, so there is nothing to settle")
	case !v.Open:
		return no("has a genuine result, which stands")
	case as == executor.AsRetry:
		n := uint64(1)
		if at := v.Call.Attempts; len(at) > 0 {
			n = at[len(at)-1].Attempt + 1
		}
		return a.plan(v.Session, v.Call.ID, "run %s once more, as attempt %d, and record its result in the place of that at %d (%s), by %s: %s", v.Call.Name, n, r.Seq, r.Kind, byUser(), reason)
	default:
		return a.plan(v.Session, v.Call.ID, "record that it has %s, in the place of the result at %d (%s), by %s: %s", as, r.Seq, r.Kind, byUser(), reason)
	}
}

// planAnswer is a dry run of an answer to a question.
func (a *app) planAnswer(c *cobra.Command, args []string, req executor.AnswerRequest) error {
	var list []executor.ApprovalInfo
	err := a.looksAt(c, args, func(ctx context.Context, store *journal.Files) (err error) {
		list, err = executor.Approvals(ctx, store, args[0])
		return err
	}, func(ctx context.Context, client *executor.Client) error {
		got, err := client.Approvals(ctx, executor.ApprovalsRequest{Session: args[0]})
		list = got.Approvals
		return err
	})
	if err != nil {
		return err
	}
	for _, q := range list {
		if q.CallID != req.CallID || req.ApprovalID != "" && q.ApprovalID != req.ApprovalID {
			continue
		}
		if q.Redacted != "" && req.Decision == "allow" && a.nats == "" {
			if served, err := a.served(); err != nil || !served {
				return errors.Join(err, hiddenHere(q.Session, q.CallID))
			}
		}
		more := ""
		if req.Grant != nil {
			more = ", and let like calls run unasked"
		}
		return a.plan(q.Session, q.CallID, "%s %s with %s%s, by %s", req.Decision, q.Tool, short(string(q.Args), 200), more, byUser())
	}
	return notWaiting(args[0], req.CallID)
}
