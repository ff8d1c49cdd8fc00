package main

import (
	"context"
	"fmt"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/spf13/cobra"

	"steno/journal"
	"steno/lease"
	"steno/replay"
	"steno/schema"
)

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
	findings := []findingView{}
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
			findings = append(findings, findingView(*f))
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
		// The events are put in as they stand in the log, byte for byte.
		var named []byte
		if named, err = encode(findings); err == nil {
			_, err = fmt.Fprintf(a.out, "{\"session\":%q,\"events\":[%s],\"findings\":%s}\n", id, lines, named)
		}
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

// rawText is the text of a JSON string, and other JSON as it is written.
type rawText string

// UnmarshalJSON keeps the text.
func (t *rawText) UnmarshalJSON(b []byte) error {
	*t = rawText(b)
	if b[0] == '"' {
		if s, err := jsontext.AppendUnquote(nil, b); err == nil {
			*t = rawText(s)
		}
	}
	return nil
}
