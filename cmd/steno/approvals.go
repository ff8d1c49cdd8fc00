package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"steno/executor"
	"steno/journal"
	"steno/schema"
)

func (a *app) approvalsCommand() *cobra.Command {
	c := &cobra.Command{Use: "approvals", Short: "what waits for a person, and the answers to it",
		Long: "approvals lists the calls that a policy wants a person to be asked about, and answers them. ls reads files only, and asks there with --nats.\n" +
			"An answer goes through the serve that runs on the store. Where none runs the call is run here, and waited for.",
		Example: "  steno approvals ls\n  steno approvals allow s1 call-7\n  steno approvals deny s1 call-7 --reason 'not on a Friday'"}
	var session string
	ls := &cobra.Command{Use: "ls", Short: "list what waits; reads files only, or asks on --nats", Example: "  steno approvals ls --session demo -o jsonl", Args: exactly(),
		RunE: func(c *cobra.Command, args []string) error {
			if a.nats != "" {
				return a.askThere(c.Context(), func(ctx context.Context, client *executor.Client) error { return a.listQuestions(ctx, client, session) })
			}
			return a.onStore(func(ctx context.Context, store *journal.Files, _ []string) error {
				return a.listApprovals(ctx, store, session)
			})(c, args)
		}}
	ls.Flags().StringVar(&session, "session", "", "of this session only")
	c.AddCommand(ls, a.answerCommand("allow", "let a call run that waits"), a.answerCommand("deny", "refuse a call that waits; it gets a recorded result"))
	return c
}

func (a *app) answerCommand(decision, short string) *cobra.Command {
	var reason, approval string
	var grant bool
	var until time.Duration
	var dryRun *bool
	c := &cobra.Command{
		Use: decision + " SESSION CALL", Short: short, Args: exactly("SESSION", "CALL"),
		Long:    "The first answer to a question counts; the same one again changes nothing. What was asked, and about which\narguments, is looked up first and named in the answer: a call that asks something else by then stays as it is.",
		Example: "  steno approvals " + decision + " demo call-7 --reason 'as agreed'",
		RunE: func(c *cobra.Command, words []string) error {
			if decision == "deny" && reason == "" {
				return usage("--reason is missing: whoever asked is told").With("next", "run: steno approvals deny --help")
			}
			req := executor.AnswerRequest{Session: words[0], CallID: words[1], ApprovalID: approval, Decision: decision, Reason: reason, Actor: executor.Actor{ID: byUser()}}
			switch {
			case until != 0 && !grant || until < 0:
				return usage("--until says how long from now a --grant lasts").With("next", "run: steno approvals allow --help")
			case grant:
				req.Grant = &executor.GrantRequest{}
				if until > 0 {
					req.Grant.Until = time.Now().Add(until)
				}
			}
			if *dryRun {
				return a.planAnswer(c, words, req)
			}
			return a.answerApproval(c.Context(), req)
		},
	}
	a.ownFlags(c)
	dryRun = dryRunFlag(c)
	c.Flags().StringVar(&reason, "reason", "", "why; it is recorded, and of a denial the agent is told")
	c.Flags().StringVar(&approval, "approval", "", "the id of the question, of approvals ls (default: the one that is open)")
	if decision == "allow" {
		c.Flags().BoolVar(&grant, "grant", false, "let like calls of the session run unasked: of the same tool, the same program, and no higher tier")
		c.Flags().DurationVar(&until, "until", 0, "how long the grant lasts (default: as long as the session)")
	}
	return c
}

// questions lists what is asked.
type questions struct{ listing }

func (a *app) questions() *questions {
	return &questions{listing{a: a, head: []string{"SESSION", "CALL", "TOOL", "PROGRAM", "TIER", "FOR", "AGE", "EXPIRES", "REASON", "ARGS", "APPROVAL"}}}
}

func (l *questions) addAll(list []executor.ApprovalInfo) error {
	for _, q := range list {
		err := l.add(q, func() []string {
			return []string{q.Session, q.CallID, q.Tool, short(q.Program, 40), strconv.FormatUint(q.Tier, 10), short(q.Actor.ID, 40), time.Since(q.Asked).Round(time.Second).String(), q.Expires,
				short(q.Reason, 60), short(string(q.Args), 80), q.ApprovalID}
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// listQuestions asks whoever serves, page by page.
func (a *app) listQuestions(ctx context.Context, client *executor.Client, session string) error {
	l := a.questions()
	for req := (executor.ApprovalsRequest{Session: session}); ; {
		page, err := client.Approvals(ctx, req)
		if err == nil {
			err = l.addAll(page.Approvals)
		}
		if err != nil {
			return err
		}
		if !page.More {
			return l.end()
		}
		req.After = page.After
	}
}

func (a *app) listApprovals(ctx context.Context, store *journal.Files, session string) error {
	l := a.questions()
	one := func(id string) error {
		list, err := executor.Approvals(ctx, store, id)
		if err == nil {
			err = l.addAll(list)
		}
		return err
	}
	if session != "" {
		if err := schema.CheckSession(session); err != nil {
			return err
		}
		if err := one(session); err != nil {
			return err
		}
		return l.end()
	}
	for id, err := range store.Sessions(ctx) {
		if err == nil {
			err = one(id)
		}
		if e, ok := errors.AsType[*schema.Error](err); ok && e.Kind != schema.LogReadFailed { // it hides no other
			fmt.Fprintf(a.err, "session %s cannot be looked at: %s\n", inert(id), e.Kind)
			continue
		}
		if err != nil {
			return err
		}
	}
	return l.end()
}

func notWaiting(session, call string) error {
	return schema.Errorf(schema.NotFound, "call %s of session %s does not wait for an answer", inert(call), session).
		With("session", session).With("call_id", call).With("next", "see what waits: steno approvals ls")
}

// hiddenHere refuses to allow what could not run: the answer would be used up.
func hiddenHere(session, call string) error {
	return schema.Errorf(schema.Unavailable, "values of call %s are hidden in the log, so it runs only from the request that carries them, and no serve is here to take that; nothing was answered", inert(call)).
		With("session", session).With("call_id", call).
		With("next", "run: steno serve; have the agent send the call again under the same id, and allow it then; or refuse it: steno approvals deny "+session+" "+shellWord(call)+" --reason WHY")
}

// lastAnswered is the newest question about a call that has an answer, "" if
// there is none.
func lastAnswered(ctx context.Context, client *executor.Client, session, call string) (id string) {
	is, err := client.LookAtCall(ctx, executor.CallRequest{Session: session, CallID: call})
	if err != nil || is.Call == nil {
		return ""
	}
	for _, d := range is.Call.Decisions {
		if d.ApprovalID != "" {
			id = d.ApprovalID
		}
	}
	return id
}

// answerApproval answers the question that is open about a call. The arguments
// that the person has seen go along.
func (a *app) answerApproval(ctx context.Context, req executor.AnswerRequest) (err error) {
	session, call := req.Session, req.CallID
	if err := schema.CheckSession(session); err != nil {
		return err
	}
	if err := schema.CheckCallID(call); err != nil {
		return err
	}
	b, err := a.backend(ctx, false)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.close()) }()
	tool, hidden := "", false
	if req.ApprovalID == "" || b.exec != nil {
		var list executor.ApprovalsAnswer
		i := -1
		for more := true; more && i < 0; more = list.More {
			if list, err = b.client.Approvals(b.calls, executor.ApprovalsRequest{Session: session, After: list.After}); err != nil {
				return err
			}
			i = slices.IndexFunc(list.Approvals, func(q executor.ApprovalInfo) bool { return q.CallID == call })
		}
		if i >= 0 {
			tool, hidden = list.Approvals[i].Tool, list.Approvals[i].Redacted != ""
		}
		if hidden && b.exec != nil && req.Decision == "allow" {
			return hiddenHere(session, call)
		}
		if req.ApprovalID != "" { // the person names what they have seen
			i = -1
		} else if i < 0 {
			// Answered before, or in this instant: who asks is told what was decided.
			if req.ApprovalID = lastAnswered(b.calls, b.client, session, call); req.ApprovalID == "" {
				return notWaiting(session, call)
			}
		}
		if i >= 0 {
			q := list.Approvals[i]
			req.ApprovalID, req.ArgsSHA256, req.Redacted = q.ApprovalID, q.ArgsSHA256, q.Redacted
		}
	}
	answer, err := b.client.Answer(b.calls, req)
	if err != nil {
		return err
	}
	if err := a.tellAnswer(answer); err != nil || req.Decision != "allow" {
		return err
	}
	if b.exec == nil {
		if hidden && answer.First {
			fmt.Fprintf(a.err, "values of %s are hidden in the log: it runs from the request or delivery that carries them, if that is there or comes within 10 s, and else does not start\n", inert(call))
		}
		return nil
	}
	if tool == "" { // there was no question any more
		return nil
	}
	if _, err := b.tools.Get(tool); err != nil {
		fmt.Fprintf(a.err, "%s runs once an executor has its tool %s: start a serve with it, or give --tools here and make the call again\n", inert(call), inert(tool))
		return nil
	}
	got, err := b.client.Wait(b.calls, session, call) // it runs in this process
	if err != nil {
		return err
	}
	if r, err := resultOf(got.Data, nil); err != nil || r.kind() == schema.Interrupted {
		return errors.Join(err, r.Error.Err())
	}
	return nil
}

func (a *app) tellAnswer(v executor.AnswerAnswer) error {
	if a.format == "json" || a.format == "jsonl" {
		return a.json(v)
	}
	again := ""
	if !v.First {
		again = ", as it was before"
	}
	_, err := fmt.Fprintf(a.out, "%s: %s at %d%s\n", inert(v.CallID), v.Decision, v.Seq, again)
	return err
}
