package main

import (
	"context"
	"io"
	"iter"

	"steno/journal"
	"steno/replay"
	"steno/schema"
)

func (a *app) exportMessages(ctx context.Context, store journal.Store, id string, m sessionExport) error {
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
		return damaged{damage.Err(id)}
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
