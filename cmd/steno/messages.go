package main

import (
	"context"
	"fmt"
	"io"
	"iter"

	"steno/journal"
	"steno/replay"
	"steno/schema"
)

func (a *app) exportMessages(ctx context.Context, store journal.Store, id string, m sessionExport) error {
	r := &reading{ctx: ctx, store: store, id: id, lenient: m.lenient}
	messages := replay.Messages(r.events(), replay.Projection{Format: m.format, AsOf: m.asOf,
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
	a.tellTentative(r)
	if r.damage != nil {
		return damaged{r.damage.Err(id)}
	}
	return nil
}

// A reading gives the events of a session, as often as it is asked to.
type reading struct {
	ctx     context.Context
	store   journal.Store
	id      string
	lenient bool // damage is passed over
	durable bool // what is not known to be that does not count

	damage    *schema.Finding // the first that was passed over
	tentative uint64          // seq of the first event that is not known to be durable, 0 for none
	checked   bool            // what the fold refuses is found the first time
}

func (r *reading) events() iter.Seq2[*schema.Event, error] {
	return func(yield func(*schema.Event, error) bool) {
		opt := journal.ScanOptions{Strict: !r.lenient}
		if !r.checked {
			opt.State, r.checked = replay.NewChecker(), true
		}
		scan := journal.NewScan(r.store, r.id, opt)
		defer func() { // also where nobody wants the rest
			if r.damage == nil {
				r.damage = scan.FirstError
			}
		}()
		for it, err := range scan.Items(r.ctx) {
			if err != nil {
				yield(nil, err)
				return
			}
			if it.Event == nil || it.Tentative && r.durable {
				continue
			}
			if it.Tentative && r.tentative == 0 {
				r.tentative = it.Event.Seq
			}
			if !yield(it.Event, nil) {
				return
			}
		}
	}
}

// tellTentative says that a writer is at work.
func (a *app) tellTentative(r *reading) {
	if r.tentative > 0 {
		fmt.Fprintf(a.err, "session %s is held by a writer; from event %d on nothing shows yet that it is durable\n", r.id, r.tentative)
	}
}
