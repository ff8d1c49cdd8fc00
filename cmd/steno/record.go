package main

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sort"
	"strings"
	"time"

	"steno/journal"
	"steno/replay"
	"steno/schema"
)

// A record is a session for people to read. It is made in two readings: what
// stands above it, and what an event cannot know of later ones, is learned by the
// first; the second gives the events as they come.
type record struct {
	a       *app
	store   journal.Store
	session string
	asOf    uint64
	id      string // of the store

	head        schema.Head
	first, last time.Time
	events      int
	epochs      int
	calls       int
	synthetic   int
	repairs     []journal.Listed
	findings    []schema.Finding // at most maxKept
	count       int
	damage      *schema.Finding

	superseded []replaced // by the number of the result
	taken      []taken    // by rewinds
	fields     schema.Fields
}

// replaced is a result, and the later one that replaces it.
type replaced struct{ result, by uint64 }

// taken are the events between to and by, which the rewind by took back.
type taken struct{ to, by uint64 }

func (a *app) record(ctx context.Context, store journal.Store, id string, asOf uint64, l look) error {
	r := &record{a: a, store: store, session: id, asOf: asOf, id: store.ID()}
	if err := r.survey(ctx); err != nil {
		return err
	}
	if err := l.begin(r); err != nil {
		return err
	}
	// What was written since the first reading is left out, so that what stands
	// above is true.
	scan := journal.NewScan(store, id, journal.ScanOptions{State: replay.NewChecker(), Blobs: r.damage != nil, AsOf: asOf})
	for it, err := range upTo(ctx, scan, id, asOf) {
		switch {
		case err != nil:
			return err
		case it.Finding != nil:
			err = l.finding(*it.Finding)
		case it.Event.Seq > r.head.Seq:
			return r.end(l)
		default:
			err = l.event(it.Event, r.passage(it))
		}
		if err != nil {
			return err
		}
	}
	return r.end(l)
}

func (r *record) end(l look) error {
	if err := l.end(r); err != nil || r.damage == nil {
		return err
	}
	return damaged{r.damage.Err(r.session)}
}

// survey reads the log for the first time.
func (r *record) survey(ctx context.Context) error {
	scan := journal.NewScan(r.store, r.session, journal.ScanOptions{State: replay.NewChecker(), Blobs: true, AsOf: r.asOf})
	for it, err := range upTo(ctx, scan, r.session, r.asOf) {
		if err != nil {
			return err
		}
		if it.Finding != nil {
			if len(r.findings) < maxKept {
				r.findings = append(r.findings, *it.Finding)
			}
			continue
		}
		e := it.Event
		if r.first.IsZero() {
			r.first = e.Time
		}
		r.last, r.head = e.Time, e.Head()
		switch e.Type {
		case schema.TypeToolCall:
			r.calls++
		case schema.TypeToolResult:
			var d struct {
				Supersedes uint64 `json:"supersedes"`
				Synthetic  bool   `json:"synthetic"`
			}
			if schema.Unmarshal(e.Data, &d) != nil {
				break
			}
			if d.Synthetic {
				r.synthetic++
			}
			if d.Supersedes > 0 {
				r.superseded = append(r.superseded, replaced{d.Supersedes, e.Seq})
			}
		case schema.TypeHistoryRewind:
			var d struct {
				To uint64 `json:"to_seq"`
			}
			if schema.Unmarshal(e.Data, &d) == nil && d.To < e.Seq {
				for n := len(r.taken); n > 0 && r.taken[n-1].to >= d.To; n-- {
					r.taken = r.taken[:n-1]
				}
				r.taken = append(r.taken, taken{d.To, e.Seq})
			}
		}
	}
	slices.SortFunc(r.superseded, func(a, b replaced) int { return cmp.Compare(a.result, b.result) })
	r.events, r.epochs, r.count, r.damage, r.repairs = scan.Events, scan.Epochs, scan.Findings, scan.FirstError, scan.Repairs
	return nil
}

// supersededBy is the result that replaces the one in an event, 0 for none.
func (r *record) supersededBy(seq uint64) uint64 {
	i, ok := slices.BinarySearchFunc(r.superseded, seq, func(v replaced, seq uint64) int { return cmp.Compare(v.result, seq) })
	if !ok {
		return 0
	}
	return r.superseded[i].by
}

// takenBack is the rewind that took an event back, 0 for none.
func (r *record) takenBack(seq uint64) uint64 {
	i := sort.Search(len(r.taken), func(i int) bool { return r.taken[i].by > seq })
	if i < len(r.taken) && r.taken[i].to < seq {
		return r.taken[i].by
	}
	return 0
}

// facts are what stands above a record.
func (r *record) facts() (facts [][]word) {
	fact := func(words ...word) { facts = append(facts, words) }
	fact(ours("store"), theirs(r.id))
	if r.head.Seq == 0 {
		fact(ours("head"), ours("it has no event"))
	} else {
		fact(ours("head"), theirs(r.head.String()))
		fact(ours("times"), ours(instant(r.first)+" to "+instant(r.last)+" UTC"))
	}
	fact(ours("holds"), ours(fmt.Sprintf("%s in %s, %s", many(r.events, "event"), many(r.epochs, "epoch"), many(r.calls, "call"))))
	if r.asOf > 0 {
		fact(ours("as of"), ours(fmt.Sprintf("event %d; what came later is not in here", r.asOf)))
	}
	if r.synthetic > 0 {
		fact(ours("synthetic"), ours(many(r.synthetic, "result")+" written because nobody knows the real one"))
	}
	if n := len(r.superseded); n > 0 {
		fact(ours("superseded"), ours(many(n, "result")+" that a later one replaces"))
	}
	for _, d := range r.repairs {
		fact(ours("left out"), ours(fmt.Sprintf("%s in %s, by the repair in epoch %d, by", linesOf(d.Lines), many(d.Places, "place"), d.Epoch)), theirs(d.By), ours("because"), theirs(d.Reason))
	}
	if r.damage == nil {
		fact(ours("checked"), ours("every sum, number, link and blob; the log is in order"))
	} else {
		fact(ours("checked"), ours("every sum, number, link and blob; THE LOG IS DAMAGED, and each place is named where it stands"))
	}
	for _, f := range r.findings {
		fact(ours(f.Severity), theirs(strings.TrimPrefix(findingText(f), f.Severity+"  ")))
	}
	if more := r.count - len(r.findings); more > 0 {
		fact(ours("and"), ours(many(more, "finding")+" more"))
	}
	return facts
}

func instant(t time.Time) string { return t.UTC().Format("2006-01-02 15:04:05.000000") }
