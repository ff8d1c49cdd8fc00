package main

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"steno/journal"
	"steno/lease"
	"steno/replay"
	"steno/schema"
)

func (a *app) repairCommand() *cobra.Command {
	var apply, dryRun, acceptTail bool
	var reason string
	c := &cobra.Command{
		Use: "repair SESSION", Short: "let a damaged session be written again; only shows how, without --apply",
		Long: "repair lists the damage of a session in the log itself, as left out: with place, hash and reason, by whom and why.\n" +
			"No byte of what is there changes, and what was sound before is given as before. Without --apply nothing is\n" +
			"written. Look first: a copy of the damaged file may be sound. A line that may never have been acknowledged\n" +
			"(tail_suspect) is left out with --accept-tail only, and a reason.",
		Example: "  steno repair demo\n  steno repair demo --reason 'the disk was failing' --apply",
		Args:    exactly("SESSION"),
		RunE: func(c *cobra.Command, args []string) error {
			switch {
			case apply && dryRun:
				return usage("--apply and --dry-run exclude each other")
			case acceptTail && reason == "":
				return usage("--accept-tail needs a --reason")
			}
			store, err := a.store(false)
			if err != nil {
				return err
			}
			defer store.Close()
			return a.repair(c.Context(), store, args[0], journal.RepairOptions{
				Holder: lease.Self("steno repair"), NewState: func() journal.State { return replay.NewChecker() },
				By: byUser(), Reason: reason, AcceptTail: acceptTail, DryRun: !apply,
			})
		},
	}
	f := c.Flags()
	f.BoolVar(&apply, "apply", false, "write the repair into the log")
	f.BoolVar(&dryRun, "dry-run", false, "only show what would be left out; the default")
	f.BoolVar(&acceptTail, "accept-tail", false, "leave out last lines, too, that nobody can tell from a write that never finished")
	f.StringVar(&reason, "reason", "", "why, for the log")
	return c
}

type repairView struct {
	OK bool `json:"ok"`
	journal.Repaired
	Applied bool              `json:"applied"`
	Error   *schema.ErrorBody `json:"error,omitzero"`
}

func (a *app) repair(ctx context.Context, store journal.Store, id string, opt journal.RepairOptions) error {
	got, err := journal.Repair(ctx, store, id, opt)
	damaged := len(got.Skipped)+len(got.Void) > 0
	if err != nil && !damaged {
		return err
	}
	if !damaged {
		got.By, got.Reason = "", "" // of nothing
	}
	if a.format == "json" || a.format == "jsonl" {
		v := repairView{OK: err == nil, Repaired: got, Applied: got.Epoch > 0}
		if err != nil {
			b := schema.Body(a.local(err))
			v.Error = &b
		}
		if werr := a.json(v); werr != nil {
			return werr
		}
		return err
	}
	if !damaged {
		_, err := fmt.Fprintf(a.out, "%s is in order; there is nothing to repair\n", id)
		return err
	}
	rows := [][]string{{"session", id}}
	for _, k := range got.Skipped {
		rows = append(rows, []string{"leave out", skippedText(k)})
	}
	for _, epoch := range got.Void {
		rows = append(rows, []string{"call void", fmt.Sprintf("%06d.jsonl: a claim that cannot be read", epoch)})
	}
	rows = append(rows, []string{"lines", linesOf(got.Lines)}, []string{"head", got.Head.String()})
	switch {
	case got.Epoch > 0:
		rows = append(rows, []string{"repaired", fmt.Sprintf("in epoch %d, by %s: %s", got.Epoch, got.By, got.Reason)})
	case err == nil:
		rows = append(rows, []string{"next", a.here("nothing is written yet; run: steno repair " + id + " --reason WHY --apply")})
	}
	if werr := a.table(nil, rows); werr != nil {
		return werr
	}
	return err
}

// linesOf says how many lines are left out. Of a segment that is not there
// nobody knows how many it had.
func linesOf(n int) string {
	if n == 0 {
		return "an unknown number of lines"
	}
	return many(n, "line")
}

func skippedText(k schema.Skipped) string {
	if k.Reason == schema.SegmentMissing {
		return fmt.Sprintf("%06d.jsonl, the whole segment, which is not there: %s", k.Epoch, k.Reason)
	}
	lines := fmt.Sprintf("line %d", k.Line)
	if k.Lines > 1 {
		lines = fmt.Sprintf("lines %d to %d", k.Line, k.Line+k.Lines-1)
	}
	return fmt.Sprintf("%06d.jsonl %s, byte %d, %d bytes: %s", k.Epoch, lines, k.Offset, k.Bytes, k.Reason)
}
