package main

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"steno/journal"
	"steno/replay"
	"steno/schema"
)

// A timeline draws events as they come: a row for each, a band for each epoch,
// and for each call a bar from the event that records it to its result, in a
// lane of its own as long as it is open. It keeps what is open and nothing else.
type timeline struct {
	a     *app
	width int
	lanes []*bar // nil where a lane is free
	open  map[string]*bar
	// past are bars that have ended and left it open what became of their calls: a
	// later attempt or result opens them anew. At most maxBars.
	past  map[string]*bar
	began time.Time
}

// A bar is a call that is open.
type bar struct {
	id, tool string
	lane     int
	epoch    uint64    // in which it was started last, 0 before
	started  time.Time // then
	lost     bool      // its writer is gone, and nobody has started it again
	unsure   bool      // its result leaves it open what became of it
	span     span
}

// A span is a call for programs: from the event that records it to its result.
type span struct {
	CallID    string           `json:"call_id"`
	Tool      string           `json:"tool"`
	Lane      int              `json:"lane"` // from 0; calls that are open together have different ones
	Seq       uint64           `json:"seq"`
	Time      time.Time        `json:"ts"`
	Decisions []spanDecision   `json:"decisions"`
	Attempts  []replay.Attempt `json:"attempts"`
	ResultSeq uint64           `json:"result_seq,omitzero"` // 0 while it is open
	End       time.Time        `json:"end,omitzero"`
	OK        bool             `json:"ok"`
	Kind      schema.Kind      `json:"kind,omitzero"`
	Synthetic bool             `json:"synthetic,omitzero"`
	// Superseded are the results before that one, which had left it open what became
	// of the call.
	Superseded []uint64 `json:"superseded,omitzero"`
}

// A spanDecision is a decision about a call, or the question to a person: then
// Decision is asked.
type spanDecision struct {
	Seq      uint64    `json:"seq"`
	Time     time.Time `json:"ts"`
	Decision string    `json:"decision"`
	By       string    `json:"by,omitzero"`
}

// maxLanes is how many bars are drawn; a call that finds none free is a row of
// marks without one.
const maxLanes = 12

func (a *app) timeline(ctx context.Context, store journal.Store, id string, asOf uint64, trusted bool) error {
	a.tellTrusted(id, trusted)
	t := &timeline{a: a, width: a.width(), open: map[string]*bar{}, past: map[string]*bar{}}
	people := a.forPeople()
	l := listing{a: a}
	scan := journal.NewScan(store, id, journal.ScanOptions{State: replay.NewChecker(), Trusted: trusted, AsOf: asOf})
	for it, err := range upTo(ctx, scan, id, asOf) {
		if err == nil {
			switch {
			case it.Finding != nil && people:
				err = t.row("", "", "!! "+findingText(*it.Finding))
			case it.Finding != nil:
				a.report(it.Finding.Err(id))
			default:
				ended, mark := t.take(it.Event)
				if people {
					err = t.draw(it, mark)
				}
				if kept := t.free(ended); ended != nil && !kept && !people {
					err = l.add(ended.span, nil)
				}
			}
		}
		if err != nil {
			return err
		}
	}
	if err := t.end(people, &l); err != nil {
		return err
	}
	if scan.FirstError != nil {
		return exitCode(schema.ExitCorrupt)
	}
	return nil
}

// Marks of a bar in the row of an event.
const (
	markCall   = "○"
	markAsked  = "?"
	markAllow  = "+"
	markDeny   = "×"
	markStart  = "▶"
	markOK     = "●"
	markFailed = "✗"
	markOpen   = "!" // a result that leaves open what became of the call
)

// take moves the bars by an event. ended is the bar that it ends, whose lane is
// free afterwards; mark is where in the row it stands.
func (t *timeline) take(e *schema.Event) (ended *bar, mark string) {
	if t.began.IsZero() {
		t.began = e.Time
	}
	if e.Type == schema.TypeWriterOpened {
		var d struct {
			How string `json:"how"`
		}
		_ = schema.Unmarshal(e.Data, &d)
		for _, b := range t.open {
			b.lost = b.lost || b.epoch > 0 && d.How != schema.HowRoll // which its own writer does
		}
	}
	var d struct {
		CallID    string            `json:"call_id"`
		Name      string            `json:"name"`
		Decision  string            `json:"decision"`
		By        rawText           `json:"by"`
		Attempt   uint64            `json:"attempt"`
		Executor  rawText           `json:"executor"`
		OK        bool              `json:"ok"`
		Error     *schema.ErrorBody `json:"error"`
		Synthetic bool              `json:"synthetic"`
	}
	if callIDOf(e) == "" || schema.Unmarshal(e.Data, &d) != nil {
		return nil, ""
	}
	b := t.open[d.CallID]
	if e.Type == schema.TypeToolCall && b == nil {
		b = &bar{id: d.CallID, tool: d.Name, lane: t.lane()}
		b.span = span{CallID: d.CallID, Tool: d.Name, Lane: b.lane, Seq: e.Seq, Time: e.Time}
		t.open[d.CallID], t.lanes[b.lane] = b, b
		return nil, markCall
	}
	if b == nil && t.past[d.CallID] != nil {
		b = t.past[d.CallID]
		delete(t.past, b.id)
		b.lane, b.lost, b.unsure = t.lane(), false, false
		t.open[b.id], t.lanes[b.lane] = b, b
	}
	if b == nil { // its call lies in a hole, or there was no room for it
		return nil, ""
	}
	switch e.Type {
	case schema.TypeApprovalRequested:
		b.span.Decisions = append(b.span.Decisions, spanDecision{Seq: e.Seq, Time: e.Time, Decision: "asked"})
		return nil, markAsked
	case schema.TypeDecision:
		b.span.Decisions = append(b.span.Decisions, spanDecision{e.Seq, e.Time, d.Decision, string(d.By)})
		if d.Decision == "deny" {
			return nil, markDeny
		}
		return nil, markAllow
	case schema.TypeToolStarted:
		b.epoch, b.started, b.lost = e.Epoch, e.Time, false
		b.span.Attempts = append(b.span.Attempts, replay.Attempt{Attempt: d.Attempt, Seq: e.Seq, Epoch: e.Epoch, Executor: string(d.Executor), Time: e.Time})
		return nil, markStart
	case schema.TypeToolResult:
		if b.span.ResultSeq > 0 {
			b.span.Superseded = append(b.span.Superseded, b.span.ResultSeq)
		}
		b.span.Kind = ""
		b.span.ResultSeq, b.span.End, b.span.OK, b.span.Synthetic = e.Seq, e.Time, d.OK, d.Synthetic
		if d.Error != nil {
			b.span.Kind = d.Error.Kind
		}
		r := replay.CallResult{Kind: b.span.Kind, Synthetic: d.Synthetic, Attempt: d.Attempt}
		switch b.unsure = r.Open(); {
		case b.unsure:
			return b, markOpen
		case d.OK:
			return b, markOK
		}
		return b, markFailed
	}
	return nil, ""
}

// lane finds a free lane.
func (t *timeline) lane() int {
	for i, b := range t.lanes {
		if b == nil {
			return i
		}
	}
	t.lanes = append(t.lanes, nil)
	return len(t.lanes) - 1
}

// free gives the lane of a bar that has ended to others. kept says that the bar may
// go on.
func (t *timeline) free(b *bar) (kept bool) {
	if b == nil {
		return false
	}
	delete(t.open, b.id)
	if kept = b.unsure && len(t.past) < maxBars; kept {
		t.past[b.id] = b
	}
	t.lanes[b.lane] = nil
	for n := len(t.lanes); n > 0 && t.lanes[n-1] == nil; n-- {
		t.lanes = t.lanes[:n-1]
	}
	return kept
}

// draw writes the row of an event.
func (t *timeline) draw(it journal.Item, mark string) error {
	e := it.Event
	at := fmt.Sprintf("+%.3fs", e.Time.Sub(t.began).Seconds())
	if e.Time.Before(t.began) {
		at = fmt.Sprintf("%.3fs", e.Time.Sub(t.began).Seconds())
	}
	text := about(e)
	switch e.Type {
	case schema.TypeWriterOpened:
		return t.band(fmt.Sprintf("══ %d ══ %s ══ %s UTC ", e.Seq, text,
			e.Time.UTC().Format("2006-01-02 15:04:05.000")), "═")
	case schema.TypeWriterReleased:
		return t.band(fmt.Sprintf("── %d ── epoch %d is released: %s ", e.Seq, e.Epoch, text), "─")
	case schema.TypeApprovalRequested:
		text = callIDOf(e) + "  a person is asked"
	case schema.TypeToolCall, schema.TypeDecision, schema.TypeToolStarted:
	case schema.TypeToolResult:
		if b := t.open[callIDOf(e)]; b != nil && e.Time.After(b.started) && b.epoch > 0 {
			text += "  (" + e.Time.Sub(b.started).Round(10*time.Microsecond).String() + ")"
		}
	default:
		text = e.Type + "  " + text
	}
	if it.Tentative {
		text += "  (tentative)"
	}
	return t.row(fmt.Sprint(e.Seq), at, t.gutter(callIDOf(e), mark)+text)
}

// gutter draws the lanes, with a mark in that of one call.
func (t *timeline) gutter(id, mark string) string {
	var b strings.Builder
	for _, l := range t.lanes[:min(len(t.lanes), maxLanes)] {
		switch {
		case l == nil:
			b.WriteString("  ")
		case l.id == id && mark != "":
			b.WriteString(mark + " ")
		case l.epoch == 0:
			b.WriteString("┆ ") // recorded, not started
		case l.lost:
			b.WriteString("╎ ") // nobody knows
		default:
			b.WriteString("┃ ")
		}
	}
	if l := t.open[id]; l != nil && l.lane >= maxLanes {
		b.WriteString(mark + " ")
	}
	b.WriteString(" ")
	return b.String()
}

func (t *timeline) band(text, line string) error {
	text = inert(short(text, t.width))
	_, err := fmt.Fprintf(t.a.out, "%s%s\n", text, strings.Repeat(line, max(0, t.width-utf8.RuneCountInString(text))))
	return err
}

func (t *timeline) row(seq, at, text string) error {
	row := fmt.Sprintf("%7s  %10s  %s", seq, at, inert(text))
	_, err := fmt.Fprintln(t.a.out, short(row, t.width))
	return err
}

// end says what is open when the log ends.
func (t *timeline) end(people bool, l *listing) error {
	if !people {
		bySeq := func(a, b *bar) int { return cmp.Compare(a.span.Seq, b.span.Seq) }
		for _, b := range slices.SortedFunc(maps.Values(t.past), bySeq) {
			if err := l.add(b.span, nil); err != nil {
				return err
			}
		}
	}
	for _, b := range t.lanes {
		if b == nil {
			continue
		}
		if !people {
			if err := l.add(b.span, nil); err != nil {
				return err
			}
			continue
		}
		if err := t.row("", "open", b.id+"  "+b.tool+"  "+b.fate()); err != nil {
			return err
		}
	}
	if people {
		_, err := fmt.Fprintf(t.a.out, "%s recorded  %s not started  %s a person is asked  %s allowed  %s denied  %s started  ┃ runs  ╎ its writer is gone  %s ok  %s failed  %s open\n",
			markCall, "┆", markAsked, markAllow, markDeny, markStart, markOK, markFailed, markOpen)
		return err
	}
	return l.end()
}

// fate says of a call that is open when the log ends how it stands.
func (b *bar) fate() string {
	switch {
	case b.lost:
		return "has no result; its writer is gone, and nobody knows what became of it"
	case b.epoch == 0 && len(b.span.Decisions) > 0 && b.span.Decisions[len(b.span.Decisions)-1].Decision == "asked":
		return "waits for a person"
	case b.epoch == 0:
		return "is not started"
	case b.span.ResultSeq > 0:
		return "runs again"
	}
	return "has no result yet"
}
