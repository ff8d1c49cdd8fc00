package main

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"steno/journal"
	"steno/schema"
)

func (a *app) diffCommand() *cobra.Command {
	var asOf uint64
	c := &cobra.Command{
		Use: "diff A B", Short: "compare what happened in two sessions; exit 9 if it differs",
		Long: "diff compares messages, changes of phase, posture and working state, rewinds and compactions, the end, and calls: tool,\n" +
			"arguments, decision and the result that counts, each by all that it says, and what is redacted by its hash. It names the\n" +
			"first divergence and then goes call by call, each beside the one it belongs to. Left out are ids, times, epochs, attempts,\n" +
			"turns, actors, usage, notes, what the session began with, of a result its summary, who gave it and why, and the order in\n" +
			"which parallel calls ended. --as-of SEQ compares both as they were then. Damage is named, and what can be read is\n" +
			"compared. A and B may be latest.",
		Example: "  steno diff demo latest\n  steno diff before after --as-of 40 -o json", Args: exactly("A", "B"),
		RunE: func(c *cobra.Command, args []string) error {
			if err := checkAsOf(c, asOf); err != nil {
				return err
			}
			store, err := a.store(false)
			if err != nil {
				return err
			}
			defer store.Close()
			return a.diff(c.Context(), store, args, asOf)
		},
	}
	asOfFlag(c, &asOf)
	return c
}

// A side is a step of one session as it is shown.
type side struct {
	Seq    uint64 `json:"seq"`
	Type   string `json:"type"`
	CallID string `json:"call_id,omitzero"`
	Tool   string `json:"tool,omitzero"`
	Text   string `json:"text"`
	Result string `json:"result,omitzero"`
	result uint64
}

func (s *point) side() *side {
	if s == nil {
		return nil
	}
	is := &side{Seq: s.seq, Type: s.typ}
	if c := s.call; c != nil {
		is.CallID, is.Tool, is.result = c.id, c.tool, c.result
	}
	return is
}

// A difference is a step that one session has and the other has not, or has in
// another way.
type difference struct {
	A       *side    `json:"a"`
	B       *side    `json:"b"`
	Differs []string `json:"differs"` // of: missing, type, content, tool, arguments, decision, result
}

type diffView struct {
	A       string       `json:"a"`
	B       string       `json:"b"`
	AsOf    uint64       `json:"as_of,omitzero"`
	Equal   bool         `json:"equal"`
	Same    int          `json:"same"`             // steps that both have
	First   *difference  `json:"first"`            // the first divergence, null where there is none
	Differ  []difference `json:"differences"`      // at most 1000
	Further int          `json:"further,omitzero"` // differences beyond these
}

func (a *app) diff(ctx context.Context, store journal.Store, names []string, asOf uint64) error {
	v := diffView{AsOf: asOf}
	var steps [2][]*point
	var damaged error
	for i, to := range []*string{&v.A, &v.B} {
		id, err := a.session(ctx, store, names[i])
		if err != nil {
			return err
		}
		*to = id
		var damage error
		if steps[i], damage, err = pointsOf(ctx, store, id, asOf); err != nil {
			return err
		}
		if damage != nil {
			a.report(damage)
			damaged = exitCode(schema.ExitCorrupt)
		}
	}
	for _, p := range align(steps[0], steps[1]) {
		d := difference{A: p[0].side(), B: p[1].side(), Differs: []string{"missing"}}
		if p[0] != nil && p[1] != nil {
			if d.Differs = p[0].differs(p[1]); d.Differs == nil {
				v.Same++
				continue
			}
		}
		if len(v.Differ) == maxKept {
			v.Further++
			continue
		}
		v.Differ = append(v.Differ, d)
	}
	v.Equal = len(v.Differ) == 0
	for i, id := range []string{v.A, v.B} {
		if err := v.tell(ctx, store, id, i); err != nil {
			return err
		}
	}
	if !v.Equal {
		v.First = &v.Differ[0]
	}
	if err := a.printDiff(v); err != nil || v.Equal {
		if err == nil {
			err = damaged
		}
		return err
	}
	e := schema.Errorf(schema.ReplayDivergence, "sessions %s and %s differ, first in %s", v.A, v.B, strings.Join(v.First.Differs, ", ")).With("a", v.A).With("b", v.B)
	for i, s := range []*side{v.First.A, v.First.B} {
		if s != nil {
			e.With([]string{"a_seq", "b_seq"}[i], s.Seq)
		}
	}
	return e.With("next", "look at both; run: steno session show "+v.A)
}

// tell reads what the differing steps of one session say.
func (v *diffView) tell(ctx context.Context, store journal.Store, id string, which int) error {
	texts := map[uint64]*string{}
	for i := range v.Differ {
		s := v.Differ[i].A
		if which == 1 {
			s = v.Differ[i].B
		}
		if s == nil {
			continue
		}
		texts[s.Seq] = &s.Text
		if s.result > 0 {
			texts[s.result] = &s.Result
		}
	}
	if len(texts) == 0 {
		return nil
	}
	for it, err := range journal.NewScan(store, id, journal.ScanOptions{Trusted: true}).Items(ctx) { // the sums were compared
		if err != nil {
			return err
		}
		if it.Event == nil {
			continue
		}
		if to := texts[it.Event.Seq]; to != nil {
			*to = about(it.Event)
			if delete(texts, it.Event.Seq); len(texts) == 0 {
				break
			}
		}
	}
	return nil
}

func (a *app) printDiff(v diffView) error {
	switch a.format {
	case "json":
		return a.json(v)
	case "jsonl":
		for _, d := range v.Differ {
			if err := a.json(d); err != nil {
				return err
			}
		}
		return nil
	}
	if v.Equal {
		_, err := fmt.Fprintf(a.out, "%s and %s mean the same: %s\n", v.A, v.B, many(v.Same, "step"))
		return err
	}
	for i, d := range v.Differ {
		what := strings.Join(d.Differs, ", ")
		switch {
		case d.A == nil:
			what = "only in " + v.B
		case d.B == nil:
			what = "only in " + v.A
		}
		if i == 0 {
			what = "first divergence: " + what
		}
		fmt.Fprintln(a.out, what)
		for _, side := range []struct {
			sign string
			*side
		}{{"-", d.A}, {"+", d.B}} {
			if side.side == nil {
				continue
			}
			fmt.Fprintf(a.out, "%s %6d  %s  %s\n", side.sign, side.Seq, inert(side.Type), inert(side.Text))
			if side.Result != "" && (slices.Contains(d.Differs, "result") || len(d.Differs) == 1 && d.Differs[0] == "missing") {
				fmt.Fprintf(a.out, "%s %6d  %s  %s\n", side.sign, side.result, schema.TypeToolResult, inert(side.Result))
			}
		}
	}
	if v.Further > 0 {
		fmt.Fprintf(a.out, "and %s\n", many(v.Further, "further difference"))
	}
	_, err := fmt.Fprintf(a.out, "- is %s, + is %s; %s both have\n", v.A, v.B, many(v.Same, "step"))
	return err
}
