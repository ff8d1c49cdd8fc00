package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"steno/journal"
	"steno/lease"
	"steno/replay"
	"steno/schema"
)

func (a *app) packCommand() *cobra.Command {
	var dryRun bool
	c := &cobra.Command{
		Use: "pack SESSION...", Short: "store sessions in one compressed file each, which is read like a log",
		Long: "pack stores every byte of every segment and blob of a session in archive/SESSION.tar.zst, reads it back from the disk,\n" +
			"and only then takes the older segments and the blobs out of the session's folder. The newest segment stays. A packed\n" +
			"session is verified, shown and replayed as before and goes on when it is called; packed again, the archive has all\n" +
			"of it. What verify calls an error is not packed. Killed at any moment, nothing is lost: pack it again.",
		Example: "  steno session pack demo\n  steno session pack demo triage --dry-run\n  tar --zstd -tf .steno/archive/demo.tar.zst",
		Args:    someSessions,
		RunE: a.onStore(func(ctx context.Context, store *journal.Files, ids []string) error {
			return a.eachSession(ids, func(id string) error {
				got, err := store.Pack(ctx, id, a.packOptions(dryRun, ""))
				if err != nil {
					return err
				}
				return a.printPacked(got, dryRun)
			})
		}),
	}
	c.Flags().BoolVar(&dryRun, "dry-run", false, "only look, and say what would be packed")
	return c
}

func (a *app) rmCommand() *cobra.Command {
	var apply, dryRun bool
	var reason string
	c := &cobra.Command{
		Use: "rm SESSION... --reason WHY", Short: "remove sessions for good; only shows what goes, without --apply",
		Long: "rm takes all segments of a session but the newest away, its blobs and its archive. What stays says who removed it and\n" +
			"why, and keeps the id from being given to another session: every reader answers not_found. There is no way back.",
		Example: "  steno session rm demo --reason 'it was a demo'\n  steno session rm demo --reason 'it was a demo' --apply",
		Args:    someSessions,
		RunE: func(c *cobra.Command, ids []string) error {
			switch {
			case apply && dryRun:
				return usage("--apply and --dry-run exclude each other")
			case reason == "":
				return usage("rm needs a --reason, which stays in the log")
			}
			return a.onStore(func(ctx context.Context, store *journal.Files, ids []string) error {
				return a.eachSession(ids, func(id string) error {
					got, err := store.Remove(ctx, id, a.packOptions(!apply, reason))
					if err != nil {
						return err
					}
					return a.printRemoved(got, apply)
				})
			})(c, ids)
		},
	}
	f := c.Flags()
	f.StringVar(&reason, "reason", "", "why, for the log")
	f.BoolVar(&apply, "apply", false, "remove them")
	f.BoolVar(&dryRun, "dry-run", false, "only show what would be removed; the default")
	return c
}

func someSessions(c *cobra.Command, args []string) error {
	if len(args) == 0 {
		return exactly("SESSION")(c, args)
	}
	return nil
}

func (a *app) packOptions(dryRun bool, reason string) journal.PackOptions {
	return journal.PackOptions{Holder: lease.Self("steno session"), NewState: func() journal.State { return replay.NewChecker() },
		By: byUser(), Reason: reason, DryRun: dryRun}
}

// eachSession does something with each session. One that fails does not keep
// the others from it; its error is reported, and its exit code is the last one's
// that failed.
func (a *app) eachSession(ids []string, do func(id string) error) error {
	var last error
	for _, id := range ids {
		err := do(id)
		if err == nil {
			continue
		}
		if len(ids) == 1 || errors.Is(err, context.Canceled) {
			return err
		}
		a.report(err)
		last = exitCode(schema.KindOf(err).Info().Exit)
	}
	return last
}

type packedView struct {
	OK bool `json:"ok"`
	journal.Packed
	Applied bool `json:"applied"`
}

func (a *app) printPacked(p journal.Packed, dryRun bool) error {
	if a.format == "json" || a.format == "jsonl" {
		return a.json(packedView{true, p, p.Epoch > 0})
	}
	what := fmt.Sprintf("%s, %s, %d bytes", many(p.Segments, "segment"), many(p.Blobs, "blob"), p.Bytes)
	var err error
	switch {
	case p.Epoch > 0:
		_, err = fmt.Fprintf(a.out, "%s  packed: %s in %s, which has %d; %d bytes were taken out of its folder\n", p.Session, what, p.Archive, p.Size, p.Freed)
	case p.Size > 0:
		_, err = fmt.Fprintf(a.out, "%s  is packed: %s in %s, which has %d\n", p.Session, what, p.Archive, p.Size)
	case dryRun:
		_, err = fmt.Fprintf(a.out, "%s  would be packed: %s\n", p.Session, what)
	}
	return err
}

func (a *app) printRemoved(p journal.Packed, apply bool) error {
	if a.format == "json" || a.format == "jsonl" {
		return a.json(packedView{true, p, apply})
	}
	what := fmt.Sprintf("%s, %s, %d bytes", many(p.Segments, "segment"), many(p.Blobs, "blob"), p.Bytes)
	if apply {
		_, err := fmt.Fprintf(a.out, "%s  removed: %s\n", p.Session, what)
		return err
	}
	next := a.here("nothing is removed yet; run: steno session rm " + p.Session + " --reason WHY --apply")
	_, err := fmt.Fprintf(a.out, "%s  would be removed: %s\n      next   %s\n", p.Session, what, inert(next))
	return err
}
