package main

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"steno/executor"
)

func (a *app) forkCommand() *cobra.Command {
	var req executor.ForkRequest
	var dryRun *bool
	c := &cobra.Command{
		Use: "fork SESSION", Short: "make a session that goes on from an event of another",
		Long: "fork makes a new session with what was said and done in SESSION up to an event, each event with its origin. It needs\n" +
			"no lease on SESSION, which it does not change. Calls that had no result by then are not copied, and neither is what a\n" +
			"person granted beyond one call. A copied call is another call than the parent's: it has no key of its own any more.\n" +
			"Where SESSION goes by another policy or a stricter mode by now, the fork does too; its phase is that of then.\n" +
			"SESSION may be latest.",
		Example: "  steno session fork latest\n  steno session fork demo --at 12 --session second-try",
		Args:    exactly("SESSION"),
		RunE: func(c *cobra.Command, args []string) (err error) {
			if c.Flags().Changed("at") && req.At == 0 {
				return usage("--at is the number of an event; they begin with 1")
			}
			if req.Session, err = a.named(c.Context(), args[0]); err != nil {
				return err
			}
			if *dryRun {
				return a.planFork(c, req)
			}
			return a.fork(c.Context(), req)
		},
	}
	dryRun = dryRunFlag(c)
	c.Flags().Uint64Var(&req.At, "at", 0, "the last event of SESSION that counts; its last one if left out")
	c.Flags().StringVar(&req.To, "session", "", "the id of the new session; a new one if left out")
	return c
}

func (a *app) fork(ctx context.Context, req executor.ForkRequest) error {
	return a.askOnce(ctx, req.Session, func(wait context.Context, client *executor.Client) (any, []string, []string, error) {
		answer, err := client.Fork(wait, req)
		return answer, []string{"SESSION", "PARENT", "AT", "HEAD"}, []string{answer.Session, answer.Parent, fmt.Sprint(answer.At), answer.Head}, err
	})
}
