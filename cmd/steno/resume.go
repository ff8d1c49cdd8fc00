package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/spf13/cobra"

	"steno/executor"
	"steno/journal"
	"steno/replay"
	"steno/schema"
)

func (a *app) resumeCommand() *cobra.Command {
	req := executor.ResumeRequest{}
	var dryRun *bool
	c := &cobra.Command{
		Use: "resume SESSION", Short: "take a session up where its log ends: settle what is open, say what is unknown",
		Long: "resume takes a session whose writer is gone, and settles each call that it left open, once: what was recorded and not\n" +
			"started runs, what may run again does, and of the rest the log says that nobody knows. It waits for what it runs. Then it\n" +
			"lists the calls whose outcome is open, with what to do. A call whose tool is not known here stays as it is: give the --tools\n" +
			"that it was made with. Doing it twice settles no call twice, and adds nothing but an epoch. --format gives the messages that\n" +
			"the agent goes on with, as export does. Of a damaged log it says how far it is sound. --dry-run takes nothing, and says what\n" +
			"would become of each call with the tools that this command has. SESSION may be latest.",
		Example: "  steno session resume demo --tools tools.yaml\n  steno session resume latest --format anthropic -o json",
		Args:    exactly("SESSION"),
		RunE: func(c *cobra.Command, args []string) (err error) {
			if req.Session, err = a.named(c.Context(), args[0]); err != nil {
				return err
			}
			if *dryRun {
				return a.planResume(c, req.Session)
			}
			return a.resume(c.Context(), req)
		},
	}
	c.Flags().StringVar(&req.Format, "format", "", "also give the messages: anthropic, openai or steno")
	a.ownFlags(c)
	dryRun = dryRunFlag(c)
	return c
}

func (a *app) resume(ctx context.Context, req executor.ResumeRequest) (err error) {
	if err := schema.CheckSession(req.Session); err != nil {
		return err
	}
	format := req.Format
	if !slices.Contains([]string{"", "anthropic", "openai", "steno"}, format) {
		return usage("--format is anthropic, openai or steno; got %q", format)
	}
	if a.nats == "" { // the store has them, however large they are
		req.Format = ""
	}
	b, err := a.backend(ctx, false)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.close()) }()
	r, err := b.client.Resume(b.calls, req)
	if err == nil && req.Format != format {
		err = a.messagesOf(ctx, &r, format)
	}
	if err != nil {
		return err
	}
	if a.format == "json" || a.format == "jsonl" {
		return a.json(r)
	}
	rows := [][]string{{"session", r.Session}, {"head", r.Head}, {"epoch", fmt.Sprintf("%d, %s", r.Epoch, r.How)}}
	if r.Outcome != "" {
		rows = append(rows, []string{"ended", r.Outcome})
	}
	if r.Mode != "" {
		rows = append(rows, []string{"mode", r.Mode})
	}
	for _, state := range slices.Sorted(maps.Keys(r.Calls)) {
		rows = append(rows, []string{"calls", fmt.Sprintf("%d %s", r.Calls[state], state)})
	}
	for _, o := range r.Open {
		state := o.State
		if o.Kind != "" && string(o.Kind) != state {
			state += " (" + string(o.Kind) + ")"
		}
		rows = append(rows, []string{"open", o.CallID + "  " + o.Name + "  " + state}, []string{"next", a.here(o.Next)})
	}
	if r.Omitted > 0 {
		rows = append(rows, []string{"open", a.here(fmt.Sprintf("%d more; run: steno calls ls %s --open", r.Omitted, r.Session))})
	}
	if err := a.table(nil, rows); err != nil {
		return err
	}
	for _, m := range r.Messages {
		if _, err := fmt.Fprintln(a.out, inert(string(m))); err != nil {
			return err
		}
	}
	return nil
}

// messagesOf reads the messages of a session that was taken up, from the store.
func (a *app) messagesOf(ctx context.Context, r *executor.ResumeAnswer, format string) error {
	head, err := schema.ParseHead(r.Head)
	if err != nil {
		return err
	}
	store, err := a.store(false)
	if err != nil {
		return err
	}
	defer store.Close()
	log := reading{ctx: ctx, store: store, id: r.Session}
	r.AsOf = head.Seq
	for m, err := range replay.Messages(log.events(), replay.Projection{Format: format, AsOf: head.Seq,
		Whole: func(data []byte) ([]byte, error) { return journal.Whole(ctx, store, r.Session, data) }}) {
		if err != nil {
			return schema.AsError(err).With("session", r.Session)
		}
		r.Messages = append(r.Messages, m)
	}
	return nil
}
