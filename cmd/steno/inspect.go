package main

import (
	"context"
	"fmt"
	"iter"
	"strings"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/spf13/cobra"

	"steno/journal"
	"steno/replay"
	"steno/schema"
)

func (a *app) inspectCommand() *cobra.Command {
	var asOf uint64
	c := &cobra.Command{
		Use: "inspect SESSION", Short: "show calls and results as they stand in the log, beside what an agent goes on with",
		Long: "inspect puts two views of a session beside each other: which events the log has of each call, as they stand there, and\n" +
			"how the messages for a model (steno export --format) answer it: with a recorded result, with one that is made up,\n" +
			"or not, where a rewind or a compaction took the call out. Each view has a digest. What does not pair is named. A damaged\n" +
			"log is inspected as far as it can be read, with exit 4. " + latestHelp,
		Example: "  steno session inspect demo\n  steno session inspect demo --as-of 40 -o json", Args: exactly("SESSION"),
		RunE: func(c *cobra.Command, args []string) error {
			if err := checkAsOf(c, asOf); err != nil {
				return err
			}
			return a.onStore(func(ctx context.Context, store *journal.Files, args []string) error { // not as a reader: it keeps all calls
				id, err := a.session(ctx, store, args[0])
				if err != nil {
					return err
				}
				return a.inspect(ctx, store, id, asOf)
			})(c, args)
		},
	}
	asOfFlag(c, &asOf)
	return c
}

type inspectView struct {
	Session string `json:"session"`
	AsOf    uint64 `json:"as_of,omitzero"`
	Raw     struct {
		Digest string `json:"digest"`
		*replay.Pairs
	} `json:"raw"`
	Repaired struct {
		Digest   string       `json:"digest"`
		Messages int          `json:"messages"`
		Calls    []repairedTo `json:"calls"`
	} `json:"repaired"`
}

// A repairedTo is a call as the messages for a model have it.
type repairedTo struct {
	CallID    string      `json:"call_id"` // as the model sees it
	Seq       uint64      `json:"seq"`     // of the tool_call
	ResultSeq uint64      `json:"result_seq,omitzero"`
	Kind      schema.Kind `json:"kind,omitzero"`
	Failed    bool        `json:"failed,omitzero"`
	Synthetic bool        `json:"synthetic,omitzero"`
}

func (a *app) inspect(ctx context.Context, store journal.Store, id string, asOf uint64) error {
	v := inspectView{Session: id, AsOf: asOf}
	r := &reading{ctx: ctx, store: store, id: id, lenient: true}
	pairs, err := replay.ReadPairs(before(r.events(), asOf))
	if err != nil {
		return err
	}
	v.Raw.Pairs, v.Raw.Digest = pairs, pairs.Digest()
	messages := replay.Messages(r.events(), replay.Projection{AsOf: asOf})
	calls, digest, n, err := answersIn(messages)
	if err != nil {
		return schema.AsError(err).With("session", id)
	}
	v.Repaired.Digest, v.Repaired.Messages, v.Repaired.Calls = digest, n, calls
	if a.format == "json" || a.format == "jsonl" {
		err = a.json(v)
	} else {
		err = a.printInspect(v)
	}
	a.tellTentative(r)
	if err == nil && r.damage != nil {
		err = r.damage.Err(id)
	}
	return err
}

// before gives the events up to asOf, all if that is 0.
func before(events iter.Seq2[*schema.Event, error], asOf uint64) iter.Seq2[*schema.Event, error] {
	if asOf == 0 {
		return events
	}
	return func(yield func(*schema.Event, error) bool) {
		for e, err := range events {
			if err == nil && e.Seq > asOf || !yield(e, err) {
				return
			}
		}
	}
}

// answersIn says how the calls among messages are answered, and their digest.
func answersIn(messages iter.Seq2[jsontext.Value, error]) (calls []repairedTo, digest string, n int, err error) {
	at := map[string]int{}
	digest, n, err = replay.DigestMessages(func(yield func(jsontext.Value, error) bool) {
		for m, err := range messages {
			var is replay.Message
			if err == nil {
				err = schema.Unmarshal(m, &is)
			}
			switch {
			case err != nil:
			case is.Role == "call":
				at[is.CallID] = len(calls)
				calls = append(calls, repairedTo{CallID: is.CallID, Seq: is.Seq})
			case is.Role == "result":
				if i, ok := at[is.CallID]; ok {
					c := &calls[i]
					c.ResultSeq, c.Kind, c.Failed, c.Synthetic = is.Seq, is.Kind, is.Failed, is.Synthetic
				}
			}
			if !yield(m, err) {
				return
			}
		}
	})
	return calls, digest, n, err
}

func (a *app) printInspect(v inspectView) error {
	by := map[uint64]repairedTo{}
	for _, c := range v.Repaired.Calls {
		by[c.Seq] = c
	}
	rows := make([][]string, 0, len(v.Raw.Calls))
	for _, c := range v.Raw.Calls {
		asks := "none"
		if c.Seq > 0 {
			asks = fmt.Sprint(c.Seq)
		}
		for _, seq := range c.Again {
			asks += fmt.Sprintf(", again %d", seq)
		}
		results := []string{}
		for _, r := range c.Results {
			text := fmt.Sprintf("%d %s", r.Seq, outcome(r.OK, r.Kind, r.Synthetic))
			if !r.Counts {
				text += " (does not count)"
			}
			results = append(results, text)
		}
		becomes := "left out"
		if r, ok := by[c.Seq]; ok && c.Seq > 0 {
			becomes = outcome(!r.Failed, r.Kind, r.Synthetic)
			if r.ResultSeq > 0 {
				becomes = fmt.Sprintf("%d %s", r.ResultSeq, becomes)
			}
			if r.CallID != c.CallID {
				becomes += ", as " + r.CallID
			}
		}
		rows = append(rows, []string{c.CallID, c.Name, asks, strings.Trim(fmt.Sprint(c.Starts), "[]"), strings.Join(results, ", "), becomes})
	}
	if err := a.table([]string{"CALL", "TOOL", "RECORDED", "STARTED", "RESULTS", "THE MODEL IS GIVEN"}, rows); err != nil {
		return err
	}
	rows = rows[:0]
	for _, p := range v.Raw.Problems {
		rows = append(rows, []string{string(p.Kind), fmt.Sprintf("%s at %d, call %s: %s", p.Type, p.Seq, p.CallID, p.Why)})
	}
	return a.table(nil, append(rows, []string{"raw", v.Raw.Digest + "  " + many(len(v.Raw.Calls), "call")},
		[]string{"repaired", v.Repaired.Digest + "  " + many(v.Repaired.Messages, "message")}))
}

// outcome says a result in a word or two.
func outcome(ok bool, kind schema.Kind, synthetic bool) string {
	text := "ok"
	if kind != "" {
		text = string(kind)
	} else if !ok {
		text = "failed"
	}
	if synthetic {
		text += ", made up"
	}
	return text
}
