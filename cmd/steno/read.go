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
			"Exit 4 exactly when a finding has severity error.",
		Example: "  steno verify\n  steno verify demo -o json",
		RunE: func(c *cobra.Command, sessions []string) error {
			store, err := a.store(false)
			if err != nil {
				return err
			}
			defer store.Close()
			if len(sessions) == 0 {
				for id, err := range store.Sessions(c.Context()) {
					if err != nil {
						return err
					}
					sessions = append(sessions, id)
				}
			}
			return a.verify(c.Context(), store, sessions)
		},
	}
}

func (a *app) verify(ctx context.Context, store journal.Store, sessions []string) error {
	var worst error
	var all []report
	for _, id := range sessions {
		r, _, err := read(ctx, store, id, journal.ScanOptions{})
		if err != nil { // one bad session never hides another
			b := schema.Body(err)
			r.Error = &b
			if worst == nil {
				worst = exitCode(b.Kind.Info().Exit)
			}
		} else if !r.OK {
			worst = exitCode(schema.ExitCorrupt)
		}
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
		if len(all) == 1 {
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

type replayView struct {
	Session  string        `json:"session"`
	Digest   string        `json:"digest"`
	Head     *schema.Head  `json:"head"`
	State    *replay.State `json:"state"`
	Findings []findingView `json:"findings"`
	Lease    struct {
		State  lease.State    `json:"state"`
		Kind   schema.Kind    `json:"kind,omitzero"`
		Epoch  uint64         `json:"epoch"`
		Holder *schema.Holder `json:"holder,omitzero"`
	} `json:"lease"`
}

func (a *app) replayCommand() *cobra.Command {
	var lenient bool
	c := &cobra.Command{
		Use: "replay SESSION", Short: "rebuild a session from its log; reads files only",
		Long: "replay folds the log of a session into its state and prints the state's digest, which is the same on every\n" +
			"machine. It ends at the first damaged line, with exit 4; --lenient goes on and names every hole.",
		Example: "  steno replay demo\n  steno replay demo -o json\n  steno replay demo --lenient",
		Args:    exactly("SESSION"),
		RunE: func(c *cobra.Command, args []string) error {
			store, err := a.store(false)
			if err != nil {
				return err
			}
			defer store.Close()
			return a.replay(c.Context(), store, args[0], lenient)
		},
	}
	c.Flags().BoolVar(&lenient, "lenient", false, "go on behind damage")
	return c
}

func (a *app) replay(ctx context.Context, store journal.Store, id string, lenient bool) error {
	r, st, err := read(ctx, store, id, journal.ScanOptions{Strict: !lenient})
	if err != nil {
		return err
	}
	ls, err := store.Lease(ctx, id)
	if err != nil {
		return err
	}
	v := replayView{Session: id, Digest: st.Digest(), Head: r.Head, State: st, Findings: r.Findings}
	v.Lease.State, v.Lease.Kind, v.Lease.Epoch, v.Lease.Holder = ls.State, ls.Kind, ls.Epoch, ls.Holder
	if a.format == "json" || a.format == "jsonl" {
		err = a.json(v)
	} else {
		err = a.printReplay(v)
	}
	if err != nil || r.OK {
		return err
	}
	first := r.Findings[len(r.Findings)-1]
	for _, f := range r.Findings {
		if f.Severity == schema.SeverityError {
			first = f
			break
		}
	}
	return schema.Finding(first).Err(id)
}

func (a *app) printReplay(v replayView) error {
	rows := [][]string{{"session", v.Session}, {"digest", v.Digest}}
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
	for _, f := range v.Findings {
		rows = append(rows, []string{f.Severity, fmt.Sprintf("%06d.jsonl line %d: %s %s", f.Segment, f.Line, f.Kind, f.Reason)})
	}
	return a.table(nil, rows)
}

func (a *app) sessionCommand() *cobra.Command {
	c := &cobra.Command{Use: "session", Short: "list and show sessions", Example: "  steno session ls\n  steno session show demo"}
	c.AddCommand(&cobra.Command{
		Use: "ls", Short: "list sessions and their leases, without reading their logs", Example: "  steno session ls -o jsonl", Args: exactly(),
		RunE: func(c *cobra.Command, _ []string) error {
			store, err := a.store(false)
			if err != nil {
				return err
			}
			defer store.Close()
			return a.listSessions(c.Context(), store)
		},
	}, &cobra.Command{
		Use: "show SESSION", Short: "show the events of a session; -o jsonl gives the recorded lines",
		Example: "  steno session show demo\n  steno session show demo -o jsonl | jq .type", Args: exactly("SESSION"),
		RunE: func(c *cobra.Command, args []string) error {
			store, err := a.store(false)
			if err != nil {
				return err
			}
			defer store.Close()
			return a.showSession(c.Context(), store, args[0])
		},
	})
	return c
}

type sessionRow struct {
	Session string      `json:"session"`
	State   lease.State `json:"state"`
	Epoch   uint64      `json:"epoch"`
	Kind    schema.Kind `json:"kind,omitzero"`
}

func (a *app) listSessions(ctx context.Context, store journal.Store) error {
	all := []sessionRow{}
	for id, err := range store.Sessions(ctx) {
		if err != nil {
			return err
		}
		row := sessionRow{Session: id}
		if st, err := store.Lease(ctx, id); err != nil {
			row.Kind = schema.KindOf(err)
		} else {
			row.State, row.Epoch, row.Kind = st.State, st.Epoch, st.Kind
		}
		if a.format == "jsonl" {
			if err := a.json(row); err != nil {
				return err
			}
			continue
		}
		all = append(all, row)
	}
	switch a.format {
	case "jsonl":
		return nil
	case "json":
		return a.json(all)
	}
	rows := make([][]string, len(all))
	for i, r := range all {
		rows[i] = []string{r.Session, string(r.State), fmt.Sprint(r.Epoch), string(r.Kind)}
	}
	return a.table([]string{"SESSION", "LEASE", "EPOCH", "KIND"}, rows)
}

// showSession gives everything readable and names every hole.
func (a *app) showSession(ctx context.Context, store journal.Store, id string) error {
	if err := schema.CheckSession(id); err != nil {
		return err
	}
	scan := journal.NewScan(store, id, journal.ScanOptions{State: replay.New()})
	var rows [][]string
	var lines []byte
	for it, err := range scan.Items(ctx) {
		switch {
		case err != nil:
			return err
		case it.Finding != nil:
			f := it.Finding
			if a.format == "jsonl" {
				a.report(f.Err(id))
				continue
			}
			rows = append(rows, []string{"", "", f.Severity, fmt.Sprintf("%06d.jsonl line %d, byte %d: %s %s", f.Segment, f.Line, f.Offset, f.Kind, f.Reason)})
		case a.format == "jsonl" || a.format == "json":
			line := it.Event.Append(nil)
			if a.format == "jsonl" {
				if _, err := a.out.Write(line); err != nil {
					return err
				}
				continue
			}
			if len(lines) > 0 {
				lines = append(lines, ',')
			}
			lines = append(lines, line[:len(line)-1]...)
		default:
			e := it.Event
			rows = append(rows, []string{fmt.Sprint(e.Seq), e.Time.Format("15:04:05.000"), e.Type, about(e)})
		}
	}
	var err error
	switch a.format {
	case "jsonl":
	case "json":
		_, err = fmt.Fprintf(a.out, "{\"session\":%q,\"events\":[%s]}\n", id, lines)
	default:
		err = a.table([]string{"SEQ", "TIME", "TYPE", "WHAT"}, rows)
	}
	if err == nil && scan.FirstError != nil {
		err = exitCode(schema.ExitCorrupt)
	}
	return err
}

// about says an event in a few words.
func about(e *schema.Event) string {
	var d struct {
		CallID   string            `json:"call_id"`
		Name     string            `json:"name"`
		Args     rawText           `json:"args"`
		How      string            `json:"how"`
		Reason   string            `json:"reason"`
		Decision string            `json:"decision"`
		By       rawText           `json:"by"`
		Attempt  int               `json:"attempt"`
		OK       bool              `json:"ok"`
		Output   rawText           `json:"output"`
		Summary  string            `json:"summary"`
		Error    *schema.ErrorBody `json:"error"`
		Text     string            `json:"text"`
		Outcome  string            `json:"outcome"`
	}
	if schema.Unmarshal(e.Data, &d) != nil {
		return short(string(e.Data), 80)
	}
	const width = 80
	switch e.Type {
	case schema.TypeWriterOpened:
		return fmt.Sprintf("epoch %d, %s", e.Epoch, d.How)
	case schema.TypeToolCall:
		return short(fmt.Sprintf("%s  %s %s", d.CallID, d.Name, d.Args), width)
	case schema.TypeDecision:
		return fmt.Sprintf("%s  %s by %s", d.CallID, d.Decision, d.By)
	case schema.TypeToolStarted:
		return fmt.Sprintf("%s  attempt %d", d.CallID, d.Attempt)
	case schema.TypeToolResult:
		text := d.Summary
		if text == "" {
			text = string(d.Output)
		}
		if d.Error != nil {
			text = string(d.Error.Kind) + ": " + d.Error.Message
		}
		return short(fmt.Sprintf("%s  ok=%t  %s", d.CallID, d.OK, text), width)
	case schema.TypeWriterReleased:
		return d.Reason
	case schema.TypeSessionEnded:
		return d.Outcome
	}
	if d.Text != "" {
		return short(d.Text, width)
	}
	return short(string(e.Data), width)
}

// rawText is any JSON as its text.
type rawText string

// UnmarshalJSON keeps the text.
func (t *rawText) UnmarshalJSON(b []byte) error { *t = rawText(b); return nil }
