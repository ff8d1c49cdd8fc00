package replay

import (
	"bytes"
	"iter"
	"strconv"

	"github.com/go-json-experiment/json/jsontext"

	"steno/schema"
)

// Forms of messages: steno's own, which has all there is, that of Anthropic's
// messages and that of OpenAI's chat completions.
const (
	FormatSteno     = "steno"
	FormatAnthropic = "anthropic"
	FormatOpenAI    = "openai"
)

// A Projection says which messages to make of a log.
type Projection struct {
	// Format is one of the forms; empty is steno's own.
	Format string
	// AsOf is the seq of the last event that counts, 0 for all of them.
	AsOf uint64
	// Whole puts the blobs back into the data of an event; nil shows previews in
	// their places. Results are shown with previews in any case, as the model has
	// seen them.
	Whole func(data []byte) ([]byte, error)
}

// A Message is one of steno's own form. Content is a text or what a provider
// gave, as it was given; of a result it is what a model is shown, at most
// [ModelText] bytes.
type Message struct {
	Role       string         `json:"role"`         // summary, user, assistant, reasoning, call or result
	Seq        uint64         `json:"seq,omitzero"` // of the event; 0 of an answer that is not recorded
	Content    jsontext.Value `json:"content,omitzero"`
	Partial    bool           `json:"partial,omitzero"`
	Dialect    string         `json:"dialect,omitzero"`
	CallID     string         `json:"call_id,omitzero"`
	Name       string         `json:"name,omitzero"`
	Args       jsontext.Value `json:"args,omitzero"`
	DryRun     bool           `json:"dry_run,omitzero"`
	Failed     bool           `json:"failed,omitzero"`
	Kind       schema.Kind    `json:"kind,omitzero"`
	Synthetic  bool           `json:"synthetic,omitzero"` // no tool has said so
	Supersedes uint64         `json:"supersedes,omitzero"`
	Redacted   jsontext.Value `json:"redacted,omitzero"` // the marks of the event

	provider string // of a call: its id as its provider gave it
	id       string // and as it is shown
	declared bool   // and an assistant's message has it
}

// Messages gives the messages that an agent goes on with, one JSON value each,
// in the order of the log. events gives the trusted events of a session and is
// gone through twice or three times; an error that it gives ends the messages.
//
// Every call is answered once, directly behind the turn that made it: with the
// result that counts, also where a later one has superseded another, or, where
// none is recorded, with a synthetic answer that says so. Results without a
// call, second calls of an id and second results are left out; see [Pairs].
// What a rewind took back is left out. Of the latest compaction that no rewind
// took back the summary stands in the place of its range, and so does that of an earlier
// one for what lies before that range; a call of a range that was answered behind
// it, or is open, stands whole behind the summary.
//
// A call has the id that its provider gave it, which is the call id without the
// turn that stands before it, if no other call has that id, or an earlier one got it,
// and it has up to 64 letters, digits, '-' and '_'; otherwise its call id, or
// call_<seq>.
//
// Of what it reads it keeps some 100 bytes for each call, 512 events, and up to
// ModelText bytes of each result that came later than that after its call.
//
// InvalidArgs: there is no such format. NotFound: AsOf is behind the end.
func Messages(events iter.Seq2[*schema.Event, error], opt Projection) iter.Seq2[jsontext.Value, error] {
	return func(yield func(jsontext.Value, error) bool) {
		var out form
		switch opt.Format {
		case "", FormatSteno:
			out = new(plainForm)
		case FormatAnthropic:
			out = new(anthropicForm)
		case FormatOpenAI:
			out = new(openAIForm)
		default:
			yield(nil, schema.Errorf(schema.InvalidArgs, "there is no format %q of messages; there are steno, anthropic and openai", opt.Format).With("pointer", "/format"))
			return
		}
		p := &projection{opt: opt, events: events, rules: NewChecker(), declared: map[callKey]uint64{}, unlinked: map[declaration]bool{},
			given: map[declaration]given{}, answers: map[declaration]uint64{}, linked: map[declaration]linked{}, far: map[uint32]*Message{}, used: map[callKey]struct{}{}}
		err := p.index()
		if err == nil {
			err = p.show(out, func(v jsontext.Value) bool { return yield(v, nil) })
		}
		if err != nil && err != errEnough {
			yield(nil, err)
		}
	}
}

// nearby is how many events a message waits for the answers to its calls. What
// comes later is kept from the first reading.
const nearby = 512

// A declaration is the id of a call in the content of an assistant's message.
type declaration struct {
	key callKey
	seq uint64
}

// A pairing is a call with what answers it.
type pairing struct {
	seq, home, result uint64 // home is the message that declares it
	started           bool
	waits             bool // for a person
}

type projection struct {
	opt    Projection
	events iter.Seq2[*schema.Event, error]
	rules  *Checker
	spare  schema.Fields

	// Of the first reading.
	calls    []pairing              // by the number of the call
	declared map[callKey]uint64     // the newest message that declares a call that has not come yet
	unlinked map[declaration]bool   // declared, and the call never came
	given    map[declaration]given  // declared, and answered in a user's message
	answers  map[declaration]uint64 // the other way round: of a user's message
	linked   map[declaration]linked // calls that came late
	far      map[uint32]*Message    // results that came late
	gone     []span                 // what rewinds took back, in order and apart
	compacts []compaction           // those that count, the newest last; then those that are shown, in their order
	summary  []byte                 // the data of the newest one
	refused  []uint64               // events that the fold refuses
	lost     int                    // calls before the last hole
	hole     uint64                 // seq of the first event behind that
	copied   uint64                 // seq of the last event that a fork has from its parent
	last     uint64                 // seq of the last event: later ones have come meanwhile

	// Of the second.
	queue   []*group
	waiting map[uint32]waits      // calls
	awaited map[declaration]waits // given
	used    map[callKey]struct{}  // ids that are shown
}

// given is the answer to a call that steno was never asked for, nil if it comes
// soon.
type given struct {
	seq    uint64
	answer *Message
}

type linked struct {
	n  uint32
	id string
}

// read goes through the events that count, each with its fields.
func (p *projection) read(each func(e *schema.Event, d data) error) error {
	var last uint64
	for e, err := range p.events {
		if err != nil {
			return err
		}
		if p.opt.AsOf > 0 && e.Seq > p.opt.AsOf || p.last > 0 && e.Seq > p.last { // of a log with holes
			return nil
		}
		last = e.Seq
		if err := each(e, data{e.Fields(&p.spare)}); err != nil {
			return err
		}
		if last == p.opt.AsOf || last == p.last { // damage behind it is no matter
			return nil
		}
	}
	if p.opt.AsOf > last {
		return schema.Errorf(schema.NotFound, "there is no event %d: the log ends with %d", p.opt.AsOf, last).With("seq", p.opt.AsOf).
			With("next", "give a number up to that of the last event")
	}
	return nil
}

// index is the first reading: what belongs together.
func (p *projection) index() error {
	var last uint64
	var one [1]schema.Event
	err := p.read(func(e *schema.Event, d data) error {
		if e.Seq != last+1 {
			p.rules.Hole()
			p.lost, p.hole = len(p.calls), e.Seq
		}
		if d.Get(schema.KeyOrigin) != nil {
			p.copied = e.Seq
		}
		last = e.Seq
		one[0] = *e
		if err := p.rules.Check(one[:]); err != nil {
			if schema.KindOf(err) == schema.ResultWithoutCall {
				p.rules.Apply(e)
			} else {
				p.refused = append(p.refused, e.Seq)
			}
			return nil
		}
		p.rules.Apply(e)
		switch e.Type {
		case schema.TypeAssistantMessage:
			return p.declare(e, d)
		case schema.TypeUserMessage:
			return p.answered(e, d)
		case schema.TypeToolCall:
			p.indexCall(e, d)
		case schema.TypeApprovalRequested:
			p.of(d).waits = true
		case schema.TypeDecision:
			p.of(d).waits = false
		case schema.TypeToolStarted:
			p.of(d).started = true
		case schema.TypeToolResult:
			c, n := p.of(d), p.rules.last.n
			if c.result = e.Seq; e.Seq-c.base() > nearby {
				p.far[n] = resultMessage(e, d)
			} else {
				delete(p.far, n)
			}
		case schema.TypeHistoryRewind:
			p.rewind(d.number(schema.KeyToSeq), e.Seq)
		case schema.TypeHistoryCompaction:
			from, to := compactRange(d.Get(schema.KeyRange))
			p.compacts, p.summary = append(p.compacts, compaction{e.Seq, from, min(to, e.Seq-1)}), bytes.Clone(e.Data)
		}
		return nil
	})
	p.last = last
	for key, seq := range p.declared {
		p.unlinked[declaration{key, seq}] = true
	}
	p.declared = nil
	return err
}

// of is the call that an event names, which is there.
func (p *projection) of(d data) *pairing {
	return &p.calls[p.rules.find(plain(d.Get(schema.KeyCallID))).n]
}

func (c *pairing) base() uint64 {
	if c.home > 0 {
		return c.home
	}
	return c.seq
}

func (p *projection) indexCall(e *schema.Event, d data) {
	n, c := uint32(len(p.calls)), pairing{seq: e.Seq}
	key := keyOf([]byte(providerID(d)))
	if home, ok := p.declared[key]; ok {
		c.home = home
		delete(p.declared, key)
		if e.Seq-home > nearby {
			p.linked[declaration{key, home}] = linked{n, d.text(schema.KeyCallID)}
		}
	}
	p.calls = append(p.calls, c)
}

// declare notes the calls in the content of a message.
func (p *projection) declare(e *schema.Event, d data) error {
	content, err := p.content(e, d)
	for _, b := range blocks(content) {
		if id := b.call(); id != "" {
			key := keyOf([]byte(id))
			if before, ok := p.declared[key]; ok && before != e.Seq {
				p.unlinked[declaration{key, before}] = true
			}
			p.declared[key] = e.Seq
		}
	}
	return err
}

// answered notes the answers in the content of a message to calls that steno
// was never asked for.
func (p *projection) answered(e *schema.Event, d data) error {
	if d.Get(schema.KeyContent) == nil || len(p.declared) == 0 {
		return nil
	}
	content, err := p.content(e, d)
	for _, b := range blocks(content) {
		key := keyOf([]byte(b.answers()))
		home, ok := p.declared[key]
		if !ok {
			continue
		}
		g := given{seq: e.Seq}
		if e.Seq-home > nearby {
			g.answer = b.answer(e.Seq)
		}
		p.given[declaration{key, home}], p.answers[declaration{key, e.Seq}] = g, home
		delete(p.declared, key)
	}
	return err
}

// content is what a message says: a JSON string, or what its provider gave.
func (p *projection) content(e *schema.Event, d data) (jsontext.Value, error) {
	pick := func(d data) jsontext.Value {
		if v := d.Get(schema.KeyContent); v != nil {
			return v
		}
		return d.Get(schema.KeyText)
	}
	whole, err := p.whole(e.Data, d)
	if err != nil || &whole[0] == &e.Data[0] {
		return pick(d), err
	}
	var f schema.Fields
	f.Read(whole)
	return pick(data{&f}), nil
}

// whole is the data of an event with its blobs in their places.
func (p *projection) whole(text []byte, d data) ([]byte, error) {
	switch refs, err := d.Refs(); {
	case err != nil || len(refs) == 0:
		return text, nil
	case p.opt.Whole == nil:
		return schema.Previews(text), nil
	}
	return p.opt.Whole(text)
}

// providerID is the id that a provider has given a call.
func providerID(d data) string {
	id := plain(d.Get(schema.KeyCallID))
	if turn := plain(d.Get(schema.KeyTurn)); len(turn) > 0 {
		if rest, ok := bytes.CutPrefix(id, append(bytes.Clone(turn), '.')); ok && len(rest) > 0 {
			return string(rest)
		}
	}
	return string(id)
}

// shown gives an id of a provider to each call, the same in every run.
func (p *projection) shown(m *Message) {
	spare := "call_" + strconv.FormatUint(m.Seq, 10)
	for _, id := range []string{m.provider, m.CallID, spare} {
		if p.take(m, id) {
			m.id = id
			return
		}
	}
	for m.id = spare + "_"; !p.take(m, m.id); m.id += "_" {
	}
}

// take reports whether a call may have this id. The ids of recorded calls are
// theirs, so most need not be kept.
func (p *projection) take(m *Message, id string) bool {
	if len(id) == 0 || len(id) > 64 {
		return false
	}
	for _, c := range []byte(id) {
		if c != '-' && c != '_' && (c < '0' || c > '9') && (c < 'A' || c > 'Z') && (c < 'a' || c > 'z') {
			return false
		}
	}
	if call := p.rules.find([]byte(id)); call.known {
		return p.calls[call.n].seq == m.Seq && id == m.CallID
	}
	key := keyOf([]byte(id))
	_, taken := p.used[key]
	p.used[key] = struct{}{}
	return !taken
}
