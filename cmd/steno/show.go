package main

import (
	"bytes"
	"context"
	"fmt"
	"io"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/spf13/cobra"

	"steno/executor"
	"steno/journal"
	"steno/replay"
	"steno/schema"
)

func (a *app) showCommand() *cobra.Command {
	var blob string
	var asOf uint64
	var trusted, timeline bool
	c := &cobra.Command{
		Use: "show SESSION", Short: "show the events of a session; -o jsonl gives the recorded lines",
		Long: "show prints the events of a session. Of values that are too large for a line it shows the beginning and the end;\n" +
			"-o json has the sha256 of each, and --blob SHA256 writes all of it to standard output. Exit 4 then says that it is\n" +
			"not, to its last byte, what was recorded.\n" +
			"--timeline draws each call as a bar from the event that records it to its result, calls that ran side by side beside\n" +
			"each other, with the epochs as bands across them; with -o json or jsonl it gives each call with its numbers and times.\n" + latestHelp,
		Example: "  steno session show latest --timeline\n  steno session show demo --as-of 12\n  steno session show demo -o jsonl | jq .type\n  steno session show demo --blob SHA256 | less",
		Args:    exactly("SESSION"),
		RunE: func(c *cobra.Command, args []string) error {
			if err := checkAsOf(c, asOf); err != nil {
				return err
			}
			if c.Flags().Changed("blob") && (timeline || asOf > 0) {
				return usage("--blob excludes --timeline and --as-of")
			}
			return a.onSession(func(ctx context.Context, store *journal.Files, args []string) error {
				id := args[0]
				switch {
				case c.Flags().Changed("blob"):
					return a.showBlob(ctx, store, id, blob)
				case timeline:
					return a.timeline(ctx, store, id, asOf, trusted)
				}
				return a.showSession(ctx, store, id, asOf, trusted)
			})(c, args)
		},
	}
	c.Flags().BoolVar(&trusted, "trusted", false, trustedHelp)
	c.Flags().BoolVar(&timeline, "timeline", false, "draw the calls as bars, side by side")
	asOfFlag(c, &asOf)
	c.Flags().StringVar(&blob, "blob", "", "write this blob as it is, and nothing else")
	return c
}

// showSession gives everything readable and names every hole, as it is read.
func (a *app) showSession(ctx context.Context, store journal.Store, id string, asOf uint64, trusted bool) error {
	r := report{Session: id, Trusted: trusted, opt: journal.ScanOptions{Trusted: trusted, AsOf: asOf}, asOf: asOf}
	a.tellTrusted(id, trusted)
	r.opt.State = replay.NewChecker()
	scan := journal.NewScan(store, id, r.opt)
	var line []byte
	for it, err := range upTo(ctx, scan, id, asOf) {
		if err != nil {
			return err
		}
		switch {
		case it.Finding != nil && a.format == "json":
			if len(r.findings) < maxKept {
				r.findings = append(r.findings, *it.Finding)
			}
		case it.Finding != nil && a.format == "jsonl":
			a.report(it.Finding.Err(id))
		case it.Finding != nil:
			_, err = fmt.Fprintf(a.out, "%6s  %-23s  %s\n", "", "", findingText(*it.Finding))
		case a.format == "json":
			// The events are put in as they stand in the log, byte for byte.
			begin := ","
			if scan.Events == 1 {
				begin = r.begin()
			}
			line = append(append(line[:0], begin...), it.Line...)
			_, err = a.out.Write(line)
		case a.format == "jsonl":
			line = append(append(line[:0], it.Line...), '\n')
			_, err = a.out.Write(line)
		default:
			e := it.Event
			if scan.Events == 1 {
				fmt.Fprintf(a.out, "%6s  %-23s  %-19s  %s\n", "SEQ", "TIME (UTC)", "TYPE", "WHAT")
			}
			err = a.eventRow(e, about(e))
		}
		if err != nil {
			return err
		}
	}
	if a.format == "json" {
		r.count = scan.Findings
		if scan.Events == 0 {
			io.WriteString(a.out, r.begin())
		}
		fmt.Fprint(a.out, "]")
		if err := a.findings(ctx, store, r); err != nil {
			return err
		}
		if _, err := fmt.Fprintln(a.out, "}"); err != nil {
			return err
		}
	}
	if scan.FirstError != nil {
		return exitCode(schema.ExitCorrupt)
	}
	return nil
}

// eventRow is the row of an event in a table that is written as it comes.
func (a *app) eventRow(e *schema.Event, text string) error {
	_, err := fmt.Fprintf(a.out, "%6d  %-23s  %-19s  %s\n", e.Seq, e.Time.UTC().Format("2006-01-02 15:04:05.000"), inert(e.Type), inert(text))
	return err
}

// begin is how show begins its JSON.
func (r *report) begin() string {
	trusted := ""
	if r.Trusted {
		trusted = `,"trusted":true`
	}
	return `{"session":"` + r.Session + `"` + trusted + `,"events":[`
}

// showBlob writes a blob. What tools say may act on a terminal, so it does not
// get there.
func (a *app) showBlob(ctx context.Context, store journal.Store, id, sum string) error {
	if _, err := schema.ParseSum(sum); err != nil {
		return usage("--blob is the sha256 of a blob, 64 lower-case hex digits").With("next", "run: steno session show "+id+" -o json")
	}
	if a.onTerminal() {
		return usage("a blob is written as it is, and may do anything to a terminal").With("next", "send it to a file, or through a pipe")
	}
	// No further than its line says: a damaged one may unpack to a gigabyte.
	r, err := journal.OpenBlob(ctx, store, id, schema.Ref{SHA256: sum, Bytes: blobLength(ctx, store, id, sum)})
	if err != nil {
		if schema.AsError(err).Details["reason"] == string(schema.BlobMissing) { // whether a line names it, verify says
			return schema.Errorf(schema.NotFound, "session %s has no blob %s", id, sum).With("session", id).With("next", "run: steno verify "+id)
		}
		return err
	}
	defer r.Close()
	_, err = io.Copy(a.out, r)
	return err
}

// blobLength is how long the log says that a blob is, -1 if no line names it.
func blobLength(ctx context.Context, store journal.Store, id, sum string) int64 {
	for it, err := range journal.NewScan(store, id, journal.ScanOptions{}).Items(ctx) {
		if err != nil {
			break
		}
		if it.Event == nil || !bytes.Contains(it.Event.Data, []byte(sum)) {
			continue
		}
		refs, _ := schema.Refs(it.Event.Data)
		for _, r := range refs {
			if r.Ref.SHA256 == sum {
				return r.Ref.Bytes
			}
		}
	}
	return -1
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
		Actor    executor.Actor    `json:"actor"`
		Expires  string            `json:"expires_at"`
	}
	data := schema.Previews(e.Data)
	if schema.Unmarshal(data, &d) != nil {
		return short(string(data), 80)
	}
	const width = 80
	switch e.Type {
	case schema.TypeWriterOpened:
		return fmt.Sprintf("epoch %d, %s", e.Epoch, d.How)
	case schema.TypeToolCall:
		who := ""
		if d.Actor.ID != "" {
			who = "  for " + short(d.Actor.ID, 40)
		}
		return short(fmt.Sprintf("%s  %s %s", d.CallID, d.Name, d.Args), width-len(who)) + who
	case schema.TypeDecision:
		who := ""
		if d.Actor.ID != "" {
			who = ", " + short(d.Actor.ID, 40)
		}
		return fmt.Sprintf("%s  %s by %s", d.CallID, d.Decision, d.By) + who
	case schema.TypeApprovalRequested: // the whole rule, and the whole reason
		until := ""
		if d.Expires != "" {
			until = ", until " + d.Expires
		}
		return fmt.Sprintf("%s  %s%s", d.CallID, d.Reason, until)
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
	return short(string(data), width)
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
