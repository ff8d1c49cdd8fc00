package main

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"strings"

	"github.com/spf13/cobra"

	"steno/journal"
	"steno/replay"
	"steno/schema"
)

func (a *app) treeCommand() *cobra.Command {
	return &cobra.Command{
		Use: "tree [SESSION]", Short: "show which sessions were forked from which; reads files only",
		Long: "tree reads the beginning of each session and shows the forks below their parents; of SESSION the tree that it stands in.\n" +
			"Parents are read up to the event that they were forked at, which must be the one that the fork has recorded. A parent that\n" +
			"is not there any more is named, and, with exit 4, a session whose beginning cannot be read, a parent that is damaged\n" +
			"before that event, has lost it or has another one there, and a circle. -o json and jsonl give the sessions in the same\n" +
			"order, each with its depth. " + latestHelp,
		Example: "  steno session tree\n  steno session tree demo -o jsonl",
		Args: func(c *cobra.Command, args []string) error {
			if len(args) > 1 {
				return exactly("SESSION")(c, args)
			}
			return nil
		},
		RunE: func(c *cobra.Command, args []string) error {
			store, err := a.reader()
			if err != nil {
				return err
			}
			defer store.Close()
			only := ""
			if len(args) > 0 {
				if only, err = a.session(c.Context(), store, args[0]); err != nil {
					return err
				}
			}
			return a.tree(c.Context(), store, only)
		},
	}
}

// A relative is a session in the tree.
type relative struct {
	replay.Kin
	Missing bool        `json:"missing,omitzero"`
	Cycle   bool        `json:"cycle,omitzero"`
	Origin  schema.Kind `json:"parent_kind,omitzero"` // what is wrong with the event of the parent that it was forked at
	Depth   int         `json:"depth"`
}

func (a *app) tree(ctx context.Context, store journal.Store, only string) error {
	var all []replay.Kin
	for id, err := range store.Sessions(ctx) {
		if err != nil {
			return err
		}
		if _, err := store.Lease(ctx, id); errors.Is(err, schema.NotFound) {
			continue // removed
		}
		all = append(all, replay.ReadKin(id, undamaged(ctx, store, id)))
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	l := listing{a: a, head: []string{"SESSION", "FORKED AT", "NOTE"}}
	var worst error
	found := false
	for _, root := range replay.Family(all) {
		if only != "" && !within(root, only) {
			continue
		}
		found = true
		origins, err := originsOf(ctx, store, root)
		if err != nil {
			return err
		}
		err = climb(root, func(b *replay.Branch, depth int, line string) error {
			note, origin := "", schema.Kind("")
			if is := origins[b.Session]; is != nil && !b.Cycle {
				body := schema.Body(is)
				note, origin, worst = a.here(body.Message+"; "+fmt.Sprint(body.Details["next"])), body.Kind, exitCode(body.Kind.Info().Exit)
			}
			switch {
			case b.Cycle:
				note, worst = "a circle: it is forked from one below it, which no fork does", exitCode(schema.ExitCorrupt)
			case b.Missing:
				note = "is not there"
			case b.Kind == schema.NotFound:
				note = "is not begun"
			case b.Kind != "":
				note, worst = a.here(string(b.Kind)+": its beginning cannot be read, nor whose fork it is; run: steno verify "+b.Session), exitCode(b.Kind.Info().Exit)
			}
			return l.add(relative{b.Kin, b.Missing, b.Cycle, origin, depth}, func() []string {
				at := ""
				if b.Parent != "" {
					at = fmt.Sprint(b.Seq)
				}
				return []string{line + b.Session, at, note}
			})
		})
		if err != nil {
			return err
		}
	}
	if only != "" && !found {
		return schema.Errorf(schema.NotFound, "there is no session %s", only).With("session", only)
	}
	if err := l.end(); err != nil {
		return err
	}
	return worst
}

// originsOf says of the forks in a tree what is wrong with the event of their
// parents that they were forked at. Each parent is read once, and no further than
// it must be.
func originsOf(ctx context.Context, store journal.Store, root *replay.Branch) (map[string]error, error) {
	wrong := map[string]error{}
	for left := []*replay.Branch{root}; len(left) > 0; {
		b := left[len(left)-1]
		left = append(left[:len(left)-1], b.Children...)
		if b.Missing || b.Kind != "" { // said of itself
			continue
		}
		at := map[uint64]string{} // the sums that there are
		last := uint64(0)
		for _, c := range b.Children {
			if c.Kind == "" {
				at[c.Seq], last = "", max(last, c.Seq)
			}
		}
		if last == 0 {
			continue
		}
		var damage error
		end := uint64(0)
		for e, err := range undamaged(ctx, store, b.Session) {
			if err != nil {
				damage = err
				break
			}
			if end = e.Seq; end <= last {
				if _, asked := at[end]; asked {
					at[end] = e.Sum.String()
				}
			}
			if end >= last {
				break
			}
		}
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		for _, c := range b.Children {
			switch is := at[c.Seq]; {
			case c.Kind != "" || is == c.Sum:
			case is != "":
				wrong[c.Session] = schema.Errorf(schema.HeadMismatch, "event %d of %s is another one than it was forked at", c.Seq, b.Session).
					With("next", "its own copy of what came before stands; run: steno verify "+b.Session)
			case damage != nil:
				wrong[c.Session] = schema.Errorf(schema.KindOf(damage), "%s is damaged before event %d, which it was forked at", b.Session, c.Seq).
					With("next", "run: steno verify "+b.Session)
			default:
				wrong[c.Session] = schema.Errorf(schema.HeadMismatch, "%s ends with event %d, before event %d, which it was forked at", b.Session, end, c.Seq).
					With("next", "its own copy of what came before stands; run: steno verify "+b.Session)
			}
		}
	}
	return wrong, nil
}

// undamaged gives the events of a session up to the first damage, which is an error
// then.
func undamaged(ctx context.Context, store journal.Store, id string) iter.Seq2[*schema.Event, error] {
	return func(yield func(*schema.Event, error) bool) {
		for it, err := range journal.NewScan(store, id, journal.ScanOptions{Strict: true}).Items(ctx) {
			if it.Finding == nil && !yield(it.Event, err) {
				return
			}
		}
	}
}

// within reports whether a session stands in a tree.
func within(root *replay.Branch, id string) bool {
	for left := []*replay.Branch{root}; len(left) > 0; {
		b := left[len(left)-1]
		if left = left[:len(left)-1]; b.Session == id {
			return true
		}
		left = append(left, b.Children...)
	}
	return false
}

// climb gives each session of a tree, with the line that leads to it. It does not
// recurse: nothing bounds how deep forks of forks go.
func climb(root *replay.Branch, give func(b *replay.Branch, depth int, line string) error) error {
	type place struct {
		b     *replay.Branch
		depth int
		stem  string // of the lines below it
		line  string
	}
	for left := []place{{b: root}}; len(left) > 0; {
		p := left[len(left)-1]
		left = left[:len(left)-1]
		if err := give(p.b, p.depth, p.line); err != nil {
			return err
		}
		for i := len(p.b.Children) - 1; i >= 0; i-- {
			arm, stem := "├─ ", "│  "
			if i == len(p.b.Children)-1 {
				arm, stem = "└─ ", "   "
			}
			base := p.stem
			if p.depth >= maxStem { // a line that nobody could follow
				base = strings.Repeat("   ", maxStem)
			}
			left = append(left, place{p.b.Children[i], p.depth + 1, base + stem, base + arm})
		}
	}
	return nil
}

// maxStem is how deep a tree is drawn; what is deeper stands below each other.
const maxStem = 20
