package main

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"steno/journal"
	"steno/replay"
	"steno/schema"
)

// A report is what verify says of one session.
type report struct {
	OK       bool              `json:"ok"`
	Session  string            `json:"session"`
	Events   int               `json:"events"`
	Epochs   int               `json:"epochs"`
	Head     *schema.Head      `json:"head"`
	Findings []findingView     `json:"findings"`
	Error    *schema.ErrorBody `json:"error,omitzero"` // why it could not be read at all
}

// findingView is a finding as it is shown: without numbers where there is no
// hole.
type findingView struct {
	Kind        schema.Kind   `json:"kind"`
	Reason      schema.Reason `json:"reason,omitzero"`
	Severity    string        `json:"severity"`
	Segment     uint64        `json:"segment"`
	Line        int           `json:"line"`
	Offset      int64         `json:"offset"`
	Bytes       int64         `json:"bytes"`
	SHA256      string        `json:"sha256"`
	Detail      string        `json:"detail"`
	LastGoodSeq uint64        `json:"last_good_seq,omitzero"`
	NextGoodSeq uint64        `json:"next_good_seq,omitzero"`
}

func (a *app) verifyCommand() *cobra.Command {
	return &cobra.Command{
		Use: "verify [SESSION…]", Short: "check every byte of the log of sessions; reads files only",
		Long: "verify reads every line of a session, or of all of them, and names every damaged one.\n" +
			"Exit 4 exactly when a finding has severity error. With -o json one SESSION gives one object, anything else a list.",
		Example: "  steno verify\n  steno verify demo -o json",
		RunE: func(c *cobra.Command, sessions []string) error {
			store, err := a.store(false)
			if err != nil {
				return err
			}
			defer store.Close()
			one := len(sessions) == 1
			if len(sessions) == 0 {
				for id, err := range store.Sessions(c.Context()) {
					if err != nil {
						return err
					}
					sessions = append(sessions, id)
				}
			}
			return a.verify(c.Context(), store, sessions, one)
		},
	}
}

func (a *app) verify(ctx context.Context, store journal.Store, sessions []string, one bool) error {
	var worst error
	var all []report
	for _, id := range sessions {
		r, _, unread := read(ctx, store, id, journal.ScanOptions{})
		if unread != nil { // one bad session never hides another
			b := schema.Body(unread)
			r.Error = &b
			if worst == nil {
				worst = exitCode(b.Kind.Info().Exit)
			}
		} else if !r.OK {
			worst = exitCode(schema.ExitCorrupt)
		}
		var err error
		switch a.format {
		case "json":
			all = append(all, r)
		case "jsonl":
			err = a.json(r)
		default:
			err = a.printReport(r)
		}
		if err != nil {
			return err
		}
		if r.Error != nil {
			a.report(r.Error.Err())
		}
	}
	if a.format == "json" {
		var err error
		if one {
			err = a.json(all[0])
		} else {
			err = a.json(all)
		}
		if err != nil {
			return err
		}
	}
	return worst
}

// read reads one session to its end and folds it.
func read(ctx context.Context, store journal.Store, id string, opt journal.ScanOptions) (report, *replay.State, error) {
	r := report{Session: id, Findings: []findingView{}}
	if err := schema.CheckSession(id); err != nil {
		return r, nil, err
	}
	st := replay.New()
	opt.State = st
	scan := journal.NewScan(store, id, opt)
	for it, err := range scan.Items(ctx) {
		if err != nil && (scan.FirstError == nil || !opt.Strict) {
			return r, nil, err
		}
		if it.Finding != nil {
			r.Findings = append(r.Findings, findingView(*it.Finding))
		}
	}
	r.Events, r.Epochs = scan.Events, scan.Epochs
	if scan.Events > 0 {
		head := scan.Head
		r.Head = &head
	}
	r.OK = scan.FirstError == nil
	return r, st, nil
}

// firstError is the first finding of severity error, nil for a log in order.
func (r *report) firstError() error {
	for _, f := range r.Findings {
		if f.Severity == schema.SeverityError {
			return schema.Finding(f).Err(r.Session)
		}
	}
	return nil
}

func (a *app) printReport(r report) error {
	switch {
	case r.Error != nil:
		_, err := fmt.Fprintf(a.out, "FAIL  %s  %s: %s\n", inert(r.Session), r.Error.Kind, inert(r.Error.Message))
		return err
	case r.OK:
		fmt.Fprintf(a.out, "ok    %s  %d events, %d epochs", inert(r.Session), r.Events, r.Epochs)
	default:
		fmt.Fprintf(a.out, "FAIL  %s  %d events, %d epochs", inert(r.Session), r.Events, r.Epochs)
	}
	if r.Head != nil {
		fmt.Fprintf(a.out, ", head %s", r.Head)
	}
	if _, err := fmt.Fprintln(a.out); err != nil {
		return err
	}
	for _, f := range r.Findings {
		why := string(f.Kind)
		if f.Reason != "" {
			why += "/" + string(f.Reason)
		}
		if _, err := fmt.Fprintf(a.out, "      %s  %06d.jsonl line %d, byte %d, %d bytes: %s: %s\n", f.Severity, f.Segment, f.Line, f.Offset, f.Bytes, why, inert(f.Detail)); err != nil {
			return err
		}
	}
	return nil
}
