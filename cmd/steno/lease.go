package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"steno/lease"
	"steno/schema"
)

func (a *app) leaseCommand() *cobra.Command {
	c := &cobra.Command{Use: "lease", Short: "who may write a session", Example: "  steno lease show demo"}
	c.AddCommand(&cobra.Command{
		Use: "show SESSION", Short: "show the lease of a session; reads files only and takes nothing",
		Example: "  steno lease show demo -o json", Args: exactly("SESSION"),
		RunE: func(c *cobra.Command, args []string) error {
			store, err := a.store(false)
			if err != nil {
				return err
			}
			defer store.Close()
			st, err := store.Lease(c.Context(), args[0])
			if err != nil {
				return err
			}
			return a.showLease(args[0], st)
		},
	})
	return c
}

type leaseView struct {
	Session string         `json:"session"`
	State   lease.State    `json:"state"`
	Epoch   uint64         `json:"epoch"`
	Holder  *schema.Holder `json:"holder"`
	BeatAge *int64         `json:"beat_age_ms"` // null: this version has no beat yet
	Kind    schema.Kind    `json:"kind,omitzero"`
}

func (a *app) showLease(session string, st lease.Status) error {
	v := leaseView{session, st.State, st.Epoch, st.Holder, nil, st.Kind}
	if a.format == "json" || a.format == "jsonl" {
		return a.json(v)
	}
	rows := [][]string{{"session", v.Session}, {"state", string(v.State)}, {"epoch", fmt.Sprint(v.Epoch)}}
	if h := v.Holder; h != nil {
		rows = append(rows, []string{"holder", h.ID}, []string{"host", h.Host}, []string{"pid", fmt.Sprint(h.PID)}, []string{"program", h.Program})
	}
	if v.Kind != "" {
		rows = append(rows, []string{"kind", string(v.Kind)}, []string{"next", v.Kind.Next(session)})
	}
	return a.table(nil, rows)
}
