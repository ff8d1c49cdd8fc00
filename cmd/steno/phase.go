package main

import (
	"context"
	"errors"

	"github.com/spf13/cobra"

	"steno/executor"
	"steno/schema"
)

func (a *app) phaseCommand() *cobra.Command {
	var task, reason string
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
			return a.phase(c.Context(), executor.PhaseRequest{Session: args[0], Phase: args[1], TaskKind: task, Trigger: o.Bytes()})
		},
	}
	c.Flags().StringVar(&task, "task-kind", "", "also what the task is from now on: edit, test_only or investigate")
	c.Flags().StringVar(&reason, "reason", "", "goes into the log")
	return c
}

func (a *app) phase(ctx context.Context, req executor.PhaseRequest) (err error) {
	if err := schema.CheckSession(req.Session); err != nil {
		return err
	}
	b, err := a.backend(ctx, false)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.close()) }()
	answer, err := b.client.Phase(b.calls, req)
	if err != nil {
		return err
	}
	if a.format == "json" || a.format == "jsonl" {
		return a.json(answer)
	}
	return a.table([]string{"SESSION", "PHASE", "TASK"}, [][]string{{req.Session, answer.Phase, answer.TaskKind}})
}
