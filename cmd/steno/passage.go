package main

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"steno/executor"
	"steno/journal"
	"steno/replay"
	"steno/schema"
)

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
	seq    uint64 // of the event that it names, 0 for none
}

// A block is a value of the log.
type block struct {
	label string
	text  string
	note  string // what is not shown of it
}

func ours(text string) word { return word{text: text} }

// event names another event.
func event(seq uint64) word { return word{text: fmt.Sprintf("event %d", seq), seq: seq} }

// theirs is a word of the log, cut where it is long.
func theirs(text string) word {
	text, _ = schema.Truncate(text, maxWord)
	return word{text: text, theirs: true}
}

const (
	maxWord  = 400     // bytes of a value in a line
	maxBlock = 8 << 10 // and in a block
)

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
		switch open := (&replay.CallResult{Synthetic: d.Synthetic, Attempt: d.Attempt}); {
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
			note(ours("It replaces the result in"), event(d.Supersedes))
		}
		if by := r.supersededBy(e.Seq); by > 0 {
			note(ours("SUPERSEDED by the result in"), event(by))
		}
		said = []string{"call_id", "attempt", "ok", "duration_us", "synthetic", "supersedes"}
	case schema.TypeHistoryRewind:
		p.class, p.title = "message", []word{ours("The history goes back to"), event(d.To)}
		note(ours("What came behind that stays in the log, and counts for no message"))
		said = []string{"to_seq"}
	default:
		p.title = []word{theirs(e.Type)}
	}
	if by := r.takenBack(e.Seq); by > 0 && p.class != "epoch" {
		note(ours("TAKEN BACK by"), event(by))
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
		note(ours(fmt.Sprintf("Of epoch %d counts what ends with", v.Epoch)), event(v.Seq))
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
