package main

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"steno/executor"
	"steno/schema"
)

func (a *app) phaseCommand() *cobra.Command {
	var task, reason string
	var dryRun *bool
	c := &cobra.Command{
		Use: "phase SESSION PHASE", Short: "move a session to the phase investigating, editing or verifying",
		Long: "phase says which tools the session admits from now on: nothing is edited in the phase verifying, tests and linters run\n" +
			"from editing on, and an edit moves an investigation to editing by itself. A session without a phase admits every tool.\n" +
			"The change is recorded, with who made it. It goes through the serve on this store, or the server of --nats.",
		Example: "  steno session phase demo verifying --reason 'the change is complete'\n  steno session phase demo investigating --task-kind investigate",
		Args:    exactly("SESSION", "PHASE"),
		RunE: func(c *cobra.Command, args []string) error {
			var o schema.Object
			o.Text("by", byUser())
			if reason != "" {
				o.Text("reason", reason)
			}
			req := executor.PhaseRequest{Session: args[0], Phase: args[1], TaskKind: task, Trigger: o.Bytes()}
			if *dryRun {
				return a.planPhase(c, req, reason)
			}
			return a.phase(c.Context(), req)
		},
	}
	a.ownFlags(c)
	dryRun = dryRunFlag(c)
	c.Flags().StringVar(&task, "task-kind", "", "also what the task is from now on: edit, test_only or investigate")
	c.Flags().StringVar(&reason, "reason", "", "goes into the log")
	return c
}

func (a *app) phase(ctx context.Context, req executor.PhaseRequest) error {
	return a.askOnce(ctx, req.Session, func(wait context.Context, client *executor.Client) (any, []string, []string, error) {
		answer, err := client.Phase(wait, req)
		return answer, []string{"SESSION", "PHASE", "TASK"}, []string{req.Session, answer.Phase, answer.TaskKind}, err
	})
}

func (a *app) postureCommand() *cobra.Command {
	var mode, reason string
	var dryRun *bool
	c := &cobra.Command{
		Use: "posture SESSION --mode auto|ask|read_only --reason WHY", Short: "change the mode of the policy that a session goes by",
		Long: "posture says what becomes of calls that no rule of the session's policy is about: auto runs them, ask asks a person about\n" +
			"all but reading, and read_only lets nothing run that may change something, whatever the rules say. The rules stay, and a\n" +
			"session without a policy goes by the mode alone. It holds from the next call on and for what still waits, also in another\n" +
			"process, until one brings a policy that is not the session's. Who changed it, and why, goes into the log.",
		Example: "  steno session posture demo --mode read_only --reason 'it deletes too much'\n  steno session posture demo --mode auto --reason 'looked at; it is right'",
		Args:    exactly("SESSION"),
		RunE: func(c *cobra.Command, args []string) error {
			switch {
			case mode == "":
				return usage("--mode is missing: auto, ask or read_only")
			case mode != "auto" && mode != "ask" && mode != "read_only":
				return usage("--mode is auto, ask or read_only; got %q", mode)
			case strings.TrimSpace(reason) == "":
				return usage("--reason is missing").With("next", "say why: steno session posture "+args[0]+" --mode "+shellWord(mode)+" --reason WHY")
			}
			req := executor.PostureRequest{Session: args[0], Mode: mode, By: byUser(), Reason: reason}
			if *dryRun {
				return a.planPosture(c, req)
			}
			return a.posture(c.Context(), req)
		},
	}
	a.ownFlags(c)
	dryRun = dryRunFlag(c)
	c.Flags().StringVar(&mode, "mode", "", "auto, ask or read_only")
	c.Flags().StringVar(&reason, "reason", "", "why; it goes into the log")
	return c
}

func (a *app) posture(ctx context.Context, req executor.PostureRequest) error {
	return a.askOnce(ctx, req.Session, func(wait context.Context, client *executor.Client) (any, []string, []string, error) {
		answer, err := client.Posture(wait, req)
		return answer, []string{"SESSION", "MODE", "POLICY"}, []string{req.Session, answer.Mode, answer.PolicyHash}, err
	})
}

func (a *app) endCommand() *cobra.Command {
	req := executor.EndRequest{}
	var dryRun *bool
	outcomes := []string{"completed", "failed", "partial", "cancelled"}
	c := &cobra.Command{
		Use: "end SESSION --outcome completed|failed|partial|cancelled", Short: "say that a session is over, and how it ended",
		Long: "end records what came of a session, which is no matter of its phase. Nothing is recorded behind it any more but notes,\n" +
			"dead letters and results that settle what was open. Calls that run or wait for a person come first: it is refused while\n" +
			"one is open. The same end again changes nothing.",
		Example: "  steno session end demo --outcome completed\n  steno session end demo --outcome failed --reason 'the model gave up' --dry-run",
		Args:    exactly("SESSION"),
		RunE: func(c *cobra.Command, args []string) error {
			if !slices.Contains(outcomes, req.Outcome) {
				return usage("--outcome is completed, failed, partial or cancelled; got %q", req.Outcome)
			}
			req.Session = args[0]
			if *dryRun {
				return a.planEnd(c, req)
			}
			return a.askOnce(c.Context(), req.Session, func(wait context.Context, client *executor.Client) (any, []string, []string, error) {
				answer, err := client.End(wait, req)
				return answer, []string{"SESSION", "OUTCOME", "SEQ", "HEAD"}, []string{req.Session, req.Outcome, fmt.Sprint(answer.Seq), answer.Head}, err
			})
		},
	}
	a.ownFlags(c)
	dryRun = dryRunFlag(c)
	c.Flags().StringVar(&req.Outcome, "outcome", "", "completed, failed, partial or cancelled")
	c.Flags().StringVar(&req.Reason, "reason", "", "goes into the log")
	return c
}

// askOnce asks an executor for something about a session, and prints the answer,
// for people as one row.
func (a *app) askOnce(ctx context.Context, session string, ask func(context.Context, *executor.Client) (answer any, head, row []string, err error)) error {
	if err := schema.CheckSession(session); err != nil {
		return err
	}
	return a.withBackend(ctx, 0, func(wait context.Context, b *backend) error {
		answer, head, row, err := ask(wait, b.client)
		if err != nil {
			return err
		}
		if a.format == "json" || a.format == "jsonl" {
			return a.json(answer)
		}
		return a.table(head, [][]string{row})
	})
}
