package main

import (
	"context"
	"io"
	"iter"

	"github.com/spf13/cobra"

	"steno/journal"
	"steno/replay"
	"steno/schema"
)

const messagesHelp = "With a --format (anthropic, openai, steno) it gives the messages that the agent goes on with, in that provider's\n" +
	"form: every call is answered once, directly behind the turn that made it; where no result is recorded a synthetic\n" +
	"answer says so. The latest compaction's summary stands first, and what rewinds took back is left out. Calls have\n" +
	"their provider's ids. It ends at the first damaged line, with exit 4; --lenient goes on. -o jsonl gives a message a line."

// messagesExport says which messages to give.
type messagesExport struct {
	format  string
	asOf    uint64
	lenient bool
}

func (m *messagesExport) flags(c *cobra.Command) {
	c.Flags().StringVar(&m.format, "format", "", "messages: anthropic, openai or steno")
	c.Flags().BoolVar(&m.lenient, "lenient", false, "go on behind damage")
	asOfFlag(c, &m.asOf)
}

func (a *app) exportMessages(ctx context.Context, store journal.Store, id string, m messagesExport) error {
	var damage *schema.Finding
	messages := replay.Messages(events(ctx, store, id, m.lenient, &damage), replay.Projection{Format: m.format, AsOf: m.asOf,
		Whole: func(data []byte) ([]byte, error) { return journal.Whole(ctx, store, id, data) }})
	begin, between, end := "[", ",\n", "]\n"
	if a.format == "jsonl" {
		begin, between, end = "", "\n", "\n"
	}
	n := 0
	for v, err := range messages {
		if err != nil {
			return schema.AsError(err).With("session", id)
		}
		if n++; n > 1 {
			begin = between
		}
		if _, err := io.WriteString(a.out, begin); err != nil {
			return err
		}
		if _, err := a.out.Write(v); err != nil {
			return err
		}
	}
	if n == 0 && a.format == "jsonl" {
		end = ""
	} else if n == 0 {
		end = "[]\n"
	}
	if _, err := io.WriteString(a.out, end); err != nil {
		return err
	}
	if damage != nil {
		return damage.Err(id)
	}
	return nil
}

// events gives the events of a session that count, each time anew, and the
// first damage of a lenient reading. What the fold refuses is found the first time.
func events(ctx context.Context, store journal.Store, id string, lenient bool, damage **schema.Finding) iter.Seq2[*schema.Event, error] {
	opt := journal.ScanOptions{Strict: !lenient, State: replay.NewChecker()}
	return func(yield func(*schema.Event, error) bool) {
		scan := journal.NewScan(store, id, opt)
		opt.State = nil
		for it, err := range scan.Items(ctx) {
			if err != nil {
				yield(nil, err)
				return
			}
			if it.Event != nil && !it.Tentative && !yield(it.Event, nil) {
				return
			}
		}
		if *damage == nil {
			*damage = scan.FirstError
		}
	}
}
