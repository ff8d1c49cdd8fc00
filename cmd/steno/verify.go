package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"maps"
	"runtime"
	"slices"
	"strings"
	"sync"

	"github.com/spf13/cobra"

	"steno/journal"
	"steno/replay"
	"steno/schema"
)

// A report is what verify says of one session. Its findings come behind it, in
// the key findings.
type report struct {
	OK      bool              `json:"ok"`
	Session string            `json:"session"`
	Events  int               `json:"events"`
	Epochs  int               `json:"epochs"`
	Head    *schema.Head      `json:"head"`
	Trusted bool              `json:"trusted,omitzero"` // sums were not checked
	Repairs []journal.Listed  `json:"repairs"`          // what they have left out
	Error   *schema.ErrorBody `json:"error,omitzero"`   // why it could not be read at all
	Next    string            `json:"next,omitzero"`    // what to do about a head_mismatch, or else the first finding of severity error
	Note    string            `json:"note,omitzero"`    // what an empty log does not tell

	findings []schema.Finding    // the first of them, at most maxKept
	count    int                 // how many there are
	first    *schema.Finding     // the first of severity error
	opt      journal.ScanOptions // how it was read
	asOf     uint64              // and up to which event, 0 for all
}

// trustedHelp is the help of --trusted.
const trustedHelp = "compare no sums: faster, and finds no byte that was changed inside a value"

// unchecked is what --trusted says for people.
const unchecked = "sums were not checked"

// maxKept bounds the findings that are kept in memory. A log that is nothing
// but damage has more, and is then read a second time to write them out.
const maxKept = 1000

func (a *app) verifyCommand() *cobra.Command {
	var heads []string
	var noteFile, verifier string
	var trusted bool
	c := &cobra.Command{
		Use: "verify [SESSION…]", Short: "check every byte of the log of sessions; reads files only",
		Long: "verify reads every line of a session, or of all of them, and the blobs they name, and names every damaged one.\n" +
			"Exit 4 exactly when a finding has severity error. With -o json one SESSION gives one object, anything else a list.\n" +
			"A log cannot show that its end was cut off, or that it was written anew: --head and --note hold it against a head\n" +
			"that was kept elsewhere, from an answer, from steno head or from a signed note.\n" +
			"--trusted checks the form of every line, its number and its link to the line before, and compares neither the sums\n" +
			"with the bytes of their lines nor the hashes of blobs: it is faster, and does not find a byte that was changed inside\n" +
			"a value.",
		Example: "  steno verify\n  steno verify demo -o json\n" +
			"  steno verify --note head.note --verifier example.org/steno+9b2c6a1f+AZ1sT5Vt6wsDBFKmyeIOfrUGJuw5YuqbXcMLGeQmS9iX",
		RunE: func(c *cobra.Command, sessions []string) error {
			store, err := a.reader()
			if err != nil {
				return err
			}
			defer store.Close()
			for i := range sessions {
				if sessions[i] == latest {
					if sessions[i], err = a.session(c.Context(), store, latest); err != nil {
						return err
					}
				}
			}
			kept, err := keptHeads(heads, sessions)
			if err != nil {
				return err
			}
			if (noteFile == "") != (verifier == "") {
				return usage("--note needs --verifier, the key that signs it, and the other way round")
			}
			if noteFile != "" {
				id, head, err := readNote(noteFile, verifier, store.ID())
				if err != nil {
					return err
				}
				if _, twice := kept[id]; twice {
					return usage("there are two heads of session %s", id)
				}
				if len(sessions) > 0 && !slices.Contains(sessions, id) {
					return usage("the note is about session %s, which is not among those to verify", id)
				}
				if kept[id] = head; len(sessions) == 0 {
					sessions = []string{id}
				}
			}
			one := len(sessions) == 1
			if len(sessions) == 0 {
				for id, err := range store.Sessions(c.Context()) {
					if err != nil {
						return err
					}
					if _, err := store.Lease(c.Context(), id); errors.Is(err, schema.NotFound) {
						continue // removed
					}
					sessions = append(sessions, id)
				}
			}
			for _, id := range slices.Sorted(maps.Keys(kept)) { // what is not there any more has been
				if !slices.Contains(sessions, id) {
					sessions, one = append(sessions, id), false
				}
			}
			return a.verify(c.Context(), store, sessions, kept, one, trusted)
		},
	}
	c.Flags().StringArrayVar(&heads, "head", nil, "a head that was kept elsewhere: HEAD of the one SESSION, or SESSION=HEAD; may be repeated")
	c.Flags().StringVar(&noteFile, "note", "", "file of a signed note with a head")
	c.Flags().BoolVar(&trusted, "trusted", false, trustedHelp)
	c.Flags().StringVar(&verifier, "verifier", "", "the verifier key for --note")
	return c
}

// keptHeads are the heads that the command line gives, by session.
func keptHeads(args, sessions []string) (map[string]schema.Head, error) {
	kept := map[string]schema.Head{}
	for _, arg := range args {
		id, text, ok := strings.Cut(arg, "=")
		if !ok {
			if len(sessions) != 1 {
				return nil, usage("--head needs one SESSION, or is SESSION=HEAD")
			}
			id, text = sessions[0], arg
		}
		h, err := schema.ParseHead(text)
		if err == nil {
			err = schema.CheckSession(id)
		}
		if err != nil {
			return nil, err
		}
		if h.Seq == 0 || h.Epoch == 0 {
			return nil, usage("a head's epoch and seq count from 1")
		}
		if _, twice := kept[id]; twice {
			return nil, usage("there are two heads of session %s", id)
		}
		kept[id] = h
	}
	return kept, nil
}

func (a *app) verify(ctx context.Context, store journal.Store, sessions []string, kept map[string]schema.Head, one, trusted bool) error {
	var worst error
	list := a.format == "json" && !one
	if list {
		io.WriteString(a.out, "[")
	}
	i := 0
	for r, unread := range readAll(ctx, sessions, func(ctx context.Context, id string) (report, error) {
		return readSession(ctx, store, id, 0, journal.ScanOptions{State: replay.NewChecker(), Head: kept[id], Blobs: !trusted, Trusted: trusted})
	}) {
		if unread != nil { // one bad session never hides another
			b := schema.Body(a.local(unread))
			r.Error = &b
			if worst == nil {
				worst = exitCode(b.Kind.Info().Exit)
			}
		} else if !r.OK {
			worst = exitCode(schema.ExitCorrupt)
		}
		if list && i > 0 {
			io.WriteString(a.out, ",")
		}
		i++
		r.Next = a.here(r.Next)
		if err := a.printReport(ctx, store, r); err != nil {
			return err
		}
		if !list {
			fmt.Fprintln(a.out)
		}
		if r.Error != nil {
			a.report(r.Error.Err())
		}
	}
	if list {
		if _, err := io.WriteString(a.out, "]\n"); err != nil {
			return err
		}
	}
	return worst
}

// readAll gives the reports of sessions in their order. As many are read side by
// side as there are processors: one alone keeps several busy only if it is long.
func readAll(ctx context.Context, sessions []string, read func(context.Context, string) (report, error)) iter.Seq2[report, error] {
	type outcome struct {
		report
		err error
	}
	return func(yield func(report, error) bool) {
		ctx, cancel := context.WithCancel(ctx)
		var readers sync.WaitGroup
		defer readers.Wait()
		defer cancel()
		// Of those under way one is waited for, and the others wait here for their turn.
		order := make(chan chan outcome, runtime.GOMAXPROCS(0)-1)
		readers.Go(func() {
			defer close(order)
			for _, id := range sessions {
				done := make(chan outcome, 1)
				select {
				case order <- done:
				case <-ctx.Done():
					return
				}
				readers.Go(func() {
					r, err := read(ctx, id)
					done <- outcome{r, err}
				})
			}
		})
		for done := range order {
			if o := <-done; !yield(o.report, o.err) {
				return
			}
		}
	}
}

// readSession reads one session to its end, or up to event asOf.
func readSession(ctx context.Context, store journal.Store, id string, asOf uint64, opt journal.ScanOptions) (report, error) {
	r := report{Session: id, Trusted: opt.Trusted, opt: opt}
	if err := schema.CheckSession(id); err != nil {
		return r, err
	}
	opt.AsOf = asOf
	scan := journal.NewScan(store, id, opt)
	var other error // the log is not the one that the head names: a repair would not bring that one back
	for it, err := range upTo(ctx, scan, id, asOf) {
		if err != nil && (scan.FirstError == nil || !opt.Strict) {
			return r, err
		}
		if it.Finding != nil && it.Finding.Kind == schema.HeadMismatch {
			other = it.Finding.Err(id)
		}
		if it.Finding != nil && len(r.findings) < maxKept {
			r.findings = append(r.findings, *it.Finding)
		}
	}
	r.Events, r.Epochs, r.count, r.first = scan.Events, scan.Epochs, scan.Findings, scan.FirstError
	r.Repairs = scan.Repairs
	if scan.Events > 0 {
		head := scan.Head
		r.Head = &head
	}
	if r.OK = scan.FirstError == nil; !r.OK {
		r.Next = schema.Body(cmp.Or(other, r.damage())).Details["next"].(string)
	} else if r.Head == nil {
		r.Note = "whether it ever had any, only a head kept elsewhere tells"
	}
	return r, nil
}

// damage is the first finding of severity error, nil for a log in order.
func (r *report) damage() error {
	if r.first == nil {
		return nil
	}
	return r.first.Err(r.Session)
}

// each gives all findings of a report.
func (r *report) each(ctx context.Context, store journal.Store, give func(schema.Finding) error) error {
	if r.count <= len(r.findings) {
		for _, f := range r.findings {
			if err := give(f); err != nil {
				return err
			}
		}
		return nil
	}
	opt := r.opt
	opt.State, opt.AsOf = replay.NewChecker(), r.asOf
	for it, err := range upTo(ctx, journal.NewScan(store, r.Session, opt), r.Session, r.asOf) {
		if err == nil && it.Finding != nil {
			err = give(*it.Finding)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// findings writes the key findings of an object that is open.
func (a *app) findings(ctx context.Context, store journal.Store, r report) error {
	io.WriteString(a.out, `,"findings":[`)
	n := 0
	err := r.each(ctx, store, func(f schema.Finding) error {
		b, err := encode(f)
		if n++; err == nil && n > 1 {
			_, err = io.WriteString(a.out, ",")
		}
		if err == nil {
			_, err = a.out.Write(b)
		}
		return err
	})
	io.WriteString(a.out, "]")
	return err
}

func (a *app) printReport(ctx context.Context, store journal.Store, r report) error {
	if a.format == "json" || a.format == "jsonl" {
		b, err := encode(r)
		if err == nil {
			_, err = a.out.Write(b[:len(b)-1])
		}
		if err == nil {
			err = a.findings(ctx, store, r)
		}
		if err == nil {
			_, err = io.WriteString(a.out, "}")
		}
		return err
	}
	word := "ok  "
	if !r.OK {
		word = "FAIL"
	}
	if r.Error != nil {
		_, err := fmt.Fprintf(a.out, "%s  %s  %s: %s", word, inert(r.Session), r.Error.Kind, inert(r.Error.Message))
		return err
	}
	if _, err := fmt.Fprintf(a.out, "%s  %s  %s, %s", word, inert(r.Session), many(r.Events, "event"), many(r.Epochs, "epoch")); err != nil {
		return err
	}
	if r.Head != nil {
		fmt.Fprintf(a.out, ", head %s", r.Head)
	} else if r.Note != "" {
		io.WriteString(a.out, "; "+r.Note)
	}
	if r.Trusted {
		io.WriteString(a.out, "; "+unchecked)
	}
	for _, d := range r.Repairs {
		fmt.Fprintf(a.out, "\n      repaired in epoch %d by %s, %s in %s left out: %s", d.Epoch, inert(d.By), linesOf(d.Lines), many(d.Places, "place"), inert(d.Reason))
	}
	err := r.each(ctx, store, func(f schema.Finding) error {
		_, err := fmt.Fprintf(a.out, "\n      %s", findingText(f))
		return err
	})
	if err == nil && r.Next != "" {
		_, err = fmt.Fprintf(a.out, "\n      next   %s", inert(r.Next))
	}
	return err
}

// findingText says a finding in a line.
func findingText(f schema.Finding) string {
	why := string(f.Kind)
	if f.Reason != "" {
		why += "/" + string(f.Reason)
	}
	if f.Segment == 0 { // the session has none
		return fmt.Sprintf("%s  %s: %s", f.Severity, why, inert(f.Detail))
	}
	return fmt.Sprintf("%s  %06d.jsonl line %d, byte %d, %d bytes: %s: %s", f.Severity, f.Segment, f.Line, f.Offset, f.Bytes, why, inert(f.Detail))
}
