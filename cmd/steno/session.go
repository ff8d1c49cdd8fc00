package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"steno/journal"
	"steno/lease"
	"steno/schema"
)

func (a *app) sessionCommand() *cobra.Command {
	var ids bool
	ls := &cobra.Command{
		Use: "ls", Short: "list sessions and their leases, without reading their logs",
		Example: "  steno session ls -o jsonl\n  steno session ls --ids", Args: exactly(),
		RunE: func(c *cobra.Command, _ []string) error {
			store, err := a.store(false)
			if err != nil {
				return err
			}
			defer store.Close()
			return a.listSessions(c.Context(), store, ids)
		},
	}
	ls.Flags().BoolVar(&ids, "ids", false, "list the ids alone: nothing of a session is looked at, which is a hundred times faster")
	c := &cobra.Command{Use: "session", Short: "list, show, follow, move on, fork, end, pack and remove sessions", Example: "  steno session ls\n  steno session show demo\n  steno session tail latest\n  steno session pack demo"}
	c.AddCommand(ls, a.showCommand(), a.tailCommand(), a.treeCommand(), a.inspectCommand(), a.phaseCommand(), a.postureCommand(), a.forkCommand(), a.resumeCommand(), a.endCommand(), a.packCommand(), a.rmCommand())
	return c
}

type sessionRow struct {
	Session string      `json:"session"`
	State   lease.State `json:"state"`
	Epoch   uint64      `json:"epoch"`
	Kind    schema.Kind `json:"kind,omitzero"`
}

// listSessions gives a row for each session, or no more than its id: then
// nothing is read but the folder that they are in.
func (a *app) listSessions(ctx context.Context, store journal.Store, ids bool) error {
	l := listing{a: a, head: []string{"SESSION", "LEASE", "EPOCH", "KIND"}}
	if ids {
		l.head = nil // for a loop of a shell, which takes every line for an id
	}
	for id, err := range store.Sessions(ctx) {
		if err != nil {
			return err
		}
		if ids {
			if err := l.add(struct {
				Session string `json:"session"`
			}{id}, func() []string { return []string{id} }); err != nil {
				return err
			}
			continue
		}
		row := sessionRow{Session: id}
		if st, err := store.Lease(ctx, id); errors.Is(err, schema.NotFound) {
			continue // removed
		} else if err != nil {
			row.Kind = schema.KindOf(err)
		} else {
			row.State, row.Epoch, row.Kind = st.State, st.Epoch, st.Kind
		}
		if err := l.add(row, func() []string {
			return []string{row.Session, string(row.State), fmt.Sprint(row.Epoch), string(row.Kind)}
		}); err != nil {
			return err
		}
	}
	return l.end()
}
