package main

import (
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"steno/journal"
	"steno/lease"
	"steno/replay"
	"steno/schema"
)

type replayView struct {
	Session  string           `json:"session"`
	Trusted  bool             `json:"trusted,omitzero"` // sums were not checked
	Digest   *string          `json:"digest"`           // null where a strict replay met damage, as head and state are
	Head     *schema.Head     `json:"head"`
	State    *replay.State    `json:"state"`
	Findings []schema.Finding `json:"findings"` // at most 1000; verify gives them all
	Lease    struct {
		State  lease.State    `json:"state"`
		Kind   schema.Kind    `json:"kind,omitzero"`
		Epoch  uint64         `json:"epoch"`
		Holder *schema.Holder `json:"holder,omitzero"`
	} `json:"lease"`
}

func (a *app) replayCommand() *cobra.Command {
	var lenient, trusted bool
	var asOf uint64
	c := &cobra.Command{
		Use: "replay SESSION", Short: "rebuild a session from its log; reads files only",
		Long: "replay folds the log of a session into its state and prints the state's digest, which is the same on every\n" +
			"machine. It ends at the first damaged line, with exit 4; --lenient goes on and names every hole. Of blobs it\n" +
			"reads those of patches, and of the others looks whether they are there and how long they are: the digest has them\n" +
			"by the hash in their line, and one whose bytes were changed is found by steno verify.",
		Example: "  steno replay demo\n  steno replay demo -o json\n  steno replay demo --as-of 12",
		Args:    exactly("SESSION"),
		RunE: func(c *cobra.Command, args []string) error {
			if err := checkAsOf(c, asOf); err != nil {
				return err
			}
			store, err := a.store(false)
			if err != nil {
				return err
			}
			defer store.Close()
			id, err := a.session(c.Context(), store, args[0])
			if err != nil {
				return err
			}
			return a.replay(c.Context(), store, id, asOf, lenient, trusted)
		},
	}
	c.Flags().BoolVar(&trusted, "trusted", false, trustedHelp)
	asOfFlag(c, &asOf)
	c.Flags().BoolVar(&lenient, "lenient", false, "go on behind damage")
	return c
}

func (a *app) replay(ctx context.Context, store journal.Store, id string, asOf uint64, lenient, trusted bool) error {
	st := replay.New()
	r, err := readSession(ctx, store, id, asOf, journal.ScanOptions{State: st, Strict: !lenient, Trusted: trusted})
	if err != nil {
		return err
	}
	damage := r.damage()
	ls, err := store.Lease(ctx, id)
	if err != nil {
		return err
	}
	v := replayView{Session: id, Trusted: trusted, Findings: r.findings}
	if damage == nil || lenient { // the digest of a part would pass for that of the whole
		digest := st.Digest()
		v.Digest, v.Head, v.State = &digest, r.Head, st
	}
	v.Lease.State, v.Lease.Kind, v.Lease.Epoch, v.Lease.Holder = ls.State, ls.Kind, ls.Epoch, ls.Holder
	if a.format == "json" || a.format == "jsonl" {
		err = a.json(v)
	} else if v.State != nil {
		err = a.printReplay(v)
	}
	if err == nil {
		err = damage
	}
	return err
}

func (a *app) printReplay(v replayView) error {
	rows := [][]string{{"session", v.Session}, {"digest", *v.Digest}}
	if v.Head != nil {
		rows = append(rows, []string{"head", v.Head.String()})
	}
	counts := map[replay.CallState]int{}
	for _, c := range v.State.Calls {
		counts[c.State]++
	}
	calls := []string{}
	for _, s := range []replay.CallState{replay.OK, replay.Failed, replay.Interrupted, replay.Unknown, replay.Pending} {
		if n := counts[s]; n > 0 {
			calls = append(calls, fmt.Sprintf("%d %s", n, s))
		}
	}
	rows = append(rows, []string{"epochs", fmt.Sprint(len(v.State.Epochs))}, []string{"messages", fmt.Sprint(len(v.State.Messages))},
		[]string{"calls", strings.Join(calls, ", ")})
	if e := v.State.Ended; e != nil {
		rows = append(rows, []string{"outcome", e.Outcome})
	}
	state := string(v.Lease.State)
	if v.Lease.Kind != "" {
		state += " (" + string(v.Lease.Kind) + ")"
	}
	rows = append(rows, []string{"lease", state})
	if v.Trusted {
		rows = append(rows, []string{"trusted", unchecked})
	}
	for _, f := range v.Findings {
		rows = append(rows, []string{f.Severity, fmt.Sprintf("%06d.jsonl line %d: %s %s", f.Segment, f.Line, f.Kind, f.Reason)})
	}
	return a.table(nil, rows)
}
