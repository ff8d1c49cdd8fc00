package main

import (
	"context"
	"fmt"
	"slices"
	"sort"
	"strings"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"steno/executor"
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

	superseded map[uint64]uint64 // by which event a result is
	taken      []taken           // by rewinds
	fields     schema.Fields
}

// taken are the events between to and by, which the rewind by took back.
type taken struct{ to, by uint64 }

// A look is how a record looks.
type look interface {
	begin(r *record) error
	event(e *schema.Event, p passage) error
	finding(f schema.Finding) error
	end(r *record) error
}

// A passage is what a record says of an event.
type passage struct {
	class  string // of what it is about: epoch, message, call, decision, start, result, other
	title  []word
	notes  [][]word
	blocks []block
}

// A word is ours, or stands in the log: then it is hostile, and must stay text
// whatever it is.
type word struct {
	text   string
	theirs bool
}

// A block is a value of the log.
type block struct {
	label string
	text  string
	note  string // what is not shown of it
}

func ours(text string) word { return word{text, false} }

// theirs is a word of the log, cut where it is long.
func theirs(text string) word {
	text, _ = schema.Truncate(text, maxWord)
	return word{text, true}
}

const (
	maxWord  = 400     // bytes of a value in a line
	maxBlock = 8 << 10 // and in a block
)

func (a *app) record(ctx context.Context, store journal.Store, id string, asOf uint64, l look) error {
	r := &record{a: a, store: store, session: id, asOf: asOf, id: store.ID(), superseded: map[uint64]uint64{}}
	if err := r.survey(ctx); err != nil {
		return err
	}
	if err := l.begin(r); err != nil {
		return err
	}
	// What was written since the first reading is left out, so that what stands
	// above is true.
	scan := journal.NewScan(store, id, journal.ScanOptions{State: replay.NewChecker(), Blobs: r.damage != nil})
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
	return r.damage.Err(r.session)
}

// survey reads the log for the first time.
func (r *record) survey(ctx context.Context) error {
	scan := journal.NewScan(r.store, r.session, journal.ScanOptions{State: replay.NewChecker(), Blobs: true})
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
				r.superseded[d.Supersedes] = e.Seq
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
	r.events, r.epochs, r.count, r.damage, r.repairs = scan.Events, scan.Epochs, scan.Findings, scan.FirstError, scan.Repairs
	return nil
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

// passage says an event.
func (r *record) passage(it journal.Item) passage {
	e := it.Event
	var d struct {
		CallID     string            `json:"call_id"`
		Name       string            `json:"name"`
		Decision   string            `json:"decision"`
		By         string            `json:"by"`
		Gate       string            `json:"gate"`
		Rule       string            `json:"rule"`
		Reason     string            `json:"reason"`
		Attempt    uint64            `json:"attempt"`
		Executor   string            `json:"executor"`
		OK         bool              `json:"ok"`
		Micros     uint64            `json:"duration_us"`
		Synthetic  bool              `json:"synthetic"`
		Supersedes uint64            `json:"supersedes"`
		Error      *schema.ErrorBody `json:"error"`
		Partial    bool              `json:"partial"`
		To         uint64            `json:"to_seq"`
		Actor      executor.Actor    `json:"actor"`
	}
	p := passage{class: "other"}
	note := func(words ...word) { p.notes = append(p.notes, words) }
	said := []string{} // the keys that need no line of their own
	if !r.fields.Read(e.Data) || schema.Unmarshal(e.Data, &d) != nil {
		p.title = []word{theirs(e.Type)}
		p.blocks = []block{r.block("data", e.Data)}
		return p
	}
	switch e.Type {
	case schema.TypeWriterOpened:
		r.opened(e, &p)
		said = []string{"claim", "how", "previous", "carried", "evidence"}
	case schema.TypeWriterReleased:
		p.class, p.title = "epoch", []word{ours(fmt.Sprintf("Epoch %d is released:", e.Epoch)), theirs(d.Reason)}
		said = []string{"reason"}
	case schema.TypeUserMessage, schema.TypeAssistantMessage, schema.TypeReasoning:
		p.class, p.title = "message", []word{ours(map[string]string{schema.TypeUserMessage: "User", schema.TypeAssistantMessage: "Assistant", schema.TypeReasoning: "Reasoning"}[e.Type])}
		if d.Partial {
			p.title = append(p.title, ours("(partial)"))
		}
		said = []string{"partial"}
	case schema.TypeToolCall:
		p.class, p.title = "call", []word{ours("Call"), theirs(d.CallID), ours("of"), theirs(d.Name)}
		said = []string{"call_id", "name", "args_sha256"}
	case schema.TypeApprovalRequested:
		p.class, p.title = "decision", []word{ours("Call"), theirs(d.CallID), ours("waits for a person:"), theirs(d.Reason)}
		said = []string{"call_id", "reason"}
	case schema.TypeDecision:
		p.class, p.title = "decision", []word{ours("Call"), theirs(d.CallID), ours("gets"), theirs(d.Decision), ours("by"), theirs(d.By)}
		if d.Actor.ID != "" {
			p.title = append(p.title, theirs(d.Actor.ID))
		}
		p.title = append(p.title, ours("at the gate"), theirs(d.Gate))
		if d.Rule != "" {
			p.title = append(p.title, ours("under the rule"), theirs(d.Rule))
		}
		said = []string{"call_id", "decision", "by", "gate", "rule", "args_sha256"}
	case schema.TypeToolStarted:
		p.class, p.title = "start", []word{ours("Call"), theirs(d.CallID), ours(fmt.Sprintf("starts, attempt %d, in", d.Attempt)), theirs(d.Executor)}
		said = []string{"call_id", "attempt", "executor"}
	case schema.TypeToolResult:
		p.class, p.title = "result", []word{ours("Call"), theirs(d.CallID)}
		how := "ended well"
		switch open := (&replay.CallResult{Synthetic: d.Synthetic}); {
		case d.Error != nil:
			open.Kind = d.Error.Kind
			p.title = append(p.title, ours("failed with"), theirs(string(d.Error.Kind)))
			p.blocks = append(p.blocks, r.block("error", quoted(d.Error.Message)))
			how = ""
			if open.Open() {
				how = "which leaves open what became of it"
			}
		case !d.OK:
			how = "failed"
		}
		if how != "" {
			p.title = append(p.title, ours(how))
		}
		p.title = append(p.title, ours(fmt.Sprintf("after %v, attempt %d", time.Duration(d.Micros)*time.Microsecond, d.Attempt)))
		if d.Synthetic {
			note(ours("SYNTHETIC: written because nobody knows the real result"))
		}
		if d.Supersedes > 0 {
			note(ours(fmt.Sprintf("It replaces the result in event %d", d.Supersedes)))
		}
		if by := r.superseded[e.Seq]; by > 0 {
			note(ours(fmt.Sprintf("SUPERSEDED: the result in event %d replaces it", by)))
		}
		said = []string{"call_id", "attempt", "ok", "duration_us", "synthetic", "supersedes"}
	case schema.TypeHistoryRewind:
		p.class, p.title = "message", []word{ours(fmt.Sprintf("The history goes back to event %d; what came behind it stays in the log and counts for no message", d.To))}
		said = []string{"to_seq"}
	default:
		p.title = []word{theirs(e.Type)}
	}
	if by := r.takenBack(e.Seq); by > 0 && p.class != "epoch" {
		note(ours(fmt.Sprintf("TAKEN BACK by event %d", by)))
	}
	if it.Tentative {
		note(ours("TENTATIVE: a writer is at work, and nothing shows yet that this is durable"))
	}
	r.rest(e, &p, said)
	return p
}

// rest says what else an event has, key by key: what nobody foresaw too.
func (r *record) rest(e *schema.Event, p *passage, said []string) {
	blobs, err := schema.Refs(e.Data)
	large := map[string]schema.Blob{}
	for _, b := range blobs {
		large[b.Key] = b
	}
	for i := range r.fields.Len() {
		k, value := r.fields.At(i)
		key := string(k)
		b, isBlob := large[key]
		switch {
		case isBlob:
			p.blocks = append(p.blocks, block{key, b.Preview, fmt.Sprintf("%d bytes, of which this is the beginning and the end; sha256 %s", b.Bytes, b.SHA256)})
		case slices.Contains(said, key), key == "blobs" && err == nil:
		case key == "redacted":
			var marks []struct {
				Pointer string `json:"pointer"`
				Rule    string `json:"rule"`
			}
			if schema.Unmarshal(value, &marks) != nil {
				p.blocks = append(p.blocks, r.block(key, value))
			}
			for _, m := range marks {
				p.notes = append(p.notes, []word{ours("REDACTED"), theirs(m.Pointer), ours("by the rule"), theirs(m.Rule)})
			}
		case key == "error" && e.Type == schema.TypeToolResult:
			var body struct {
				Details jsontext.Value `json:"details"`
			}
			if schema.Unmarshal(value, &body) == nil && len(body.Details) > 2 {
				p.blocks = append(p.blocks, r.block("details", body.Details))
			}
		case slices.Contains([]string{"args", "output", "structured", "content", "text", "item", "patch", "summary", "context"}, key), len(value) > maxWord:
			p.blocks = append(p.blocks, r.block(key, value))
		default:
			p.notes = append(p.notes, []word{theirs(key), theirs(textOf(value))})
		}
	}
}

// opened says a seal: whose the session is from now on, and what counts of what
// came before.
func (r *record) opened(e *schema.Event, p *passage) {
	var s schema.Seal
	if schema.Unmarshal(e.Data, &s) != nil {
		p.title = []word{ours(fmt.Sprintf("Epoch %d", e.Epoch))}
		return
	}
	how := map[string]string{
		schema.HowNew: "begins the session", schema.HowResumed: "goes on: the writer before had released it", schema.HowTakeover: "TAKES OVER: the writer before was dead",
		schema.HowForced: "TAKES OVER BY FORCE: the writer before may have lived", schema.HowRoll: "goes on: the same process, after a write that failed", schema.HowRepair: "REPAIRS the log",
	}[s.How]
	p.class, p.title = "epoch", []word{ours(fmt.Sprintf("Epoch %d", e.Epoch)), ours(how)}
	if how == "" {
		p.title[1] = theirs(s.How)
	}
	note := func(words ...word) { p.notes = append(p.notes, words) }
	if v := s.Previous; v != nil {
		note(ours(fmt.Sprintf("Of epoch %d counts what ends with event %d", v.Epoch, v.Seq)))
		if v.Len != nil && v.Size != nil && *v.Size > *v.Len {
			note(ours(fmt.Sprintf("LEFT OUT: the %d bytes behind that, which were a torn tail", *v.Size-*v.Len)))
		}
	}
	if s.Carried > 0 {
		note(ours(fmt.Sprintf("%s of the epoch before stand in this one's segment", linesOf(s.Carried))))
	}
	if v := s.Evidence; v != nil {
		note(ours("The writer before was"), theirs(v.State), ours("as"), theirs(v.By), ours("saw; reason"), theirs(v.Reason), ours("observed"), theirs(v.Observed))
	}
}

// block is a value: a text as it is, other JSON indented.
func (r *record) block(label string, value []byte) block {
	b := block{label: label}
	text := ""
	if value[0] == '"' {
		text = textOf(value)
	} else {
		v := jsontext.Value(append([]byte(nil), value...))
		if len(v) <= maxBlock {
			_ = v.Indent(jsontext.WithIndent("  "), jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true)) // else it stays as it is
		}
		text = string(v)
	}
	var dropped int
	if b.text, dropped = schema.Truncate(text, maxBlock); dropped > 0 {
		b.note = fmt.Sprintf("%d bytes, of which %d are not shown", len(text), dropped)
	}
	return b
}

// textOf is the text of a JSON string, and other JSON as it is written.
func textOf(value []byte) string {
	var t rawText
	_ = t.UnmarshalJSON(value) // it never fails
	return string(t)
}

func quoted(s string) []byte {
	b, _ := jsontext.AppendQuote(nil, s) // broken text is replaced
	return b
}

// inertLines is inert for a text of many lines, which it keeps, and its tabs.
func inertLines(s string) string {
	lines := strings.Split(s, "\n")
	for i, line := range lines {
		cells := strings.Split(line, "\t")
		for k := range cells {
			cells[k] = inert(cells[k])
		}
		lines[i] = strings.Join(cells, "\t")
	}
	return strings.Join(lines, "\n")
}
