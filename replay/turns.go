package replay

import (
	"bytes"
	"errors"
	"slices"

	"github.com/go-json-experiment/json/jsontext"

	"steno/schema"
)

// errEnough ends a reading whose messages nobody wants any more.
var errEnough = errors.New("enough")

// A group is what is shown as one: a message of a user, or all that a model has
// said in a turn with its calls and their answers.
type group struct {
	said    []*Message // calls among them
	answers []*Message // of the calls, in their order; nil while one is awaited
	at      map[callKey]int
	turn    []byte
	wait    int  // answers, or calls, that are to come
	user    bool // or a summary
	begun   bool // one of its calls has a result
}

// waits is the place of an answer.
type waits struct {
	g *group
	i int
}

// maxTurn bounds the calls of one turn.
const maxTurn = 128

// show is the second reading: it gives the messages.
func (p *projection) show(out form, yield func(jsontext.Value) bool) error {
	p.waiting, p.awaited = map[uint32]waits{}, map[declaration]waits{}
	p.layer()
	summaries, err := p.summaries()
	if err != nil {
		return err
	}
	err = p.read(func(e *schema.Event, d data) error {
		for n := len(p.compacts) - len(summaries); len(summaries) > 0 && p.compacts[n].from <= e.Seq; n++ {
			p.queue, summaries = append(p.queue, summaries[0]), summaries[1:]
		}
		if err := p.add(e, d); err != nil {
			return err
		}
		// The last one may grow.
		for len(p.queue) > 1 && p.queue[0].wait == 0 {
			if !p.give(out, yield) {
				return errEnough
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	p.queue = append(p.queue, summaries...) // of a range that nothing is in
	for len(p.queue) > 0 {
		if !p.give(out, yield) {
			return errEnough
		}
	}
	if !out.end(yield) {
		return errEnough
	}
	return nil
}

func (p *projection) give(out form, yield func(jsontext.Value) bool) bool {
	g := p.queue[0]
	p.queue[0], p.queue = nil, p.queue[1:]
	i := 0
	for _, m := range g.said {
		if m.Role != "call" {
			continue
		}
		p.shown(m)
		if g.answers[i] == nil {
			g.answers[i] = p.unanswered(nil)
		}
		g.answers[i].CallID, g.answers[i].id = m.CallID, m.id
		i++
	}
	return out.group(g, yield)
}

// open is the turn that goes on.
func (p *projection) open() *group {
	if n := len(p.queue); n > 0 && !p.queue[n-1].user {
		return p.queue[n-1]
	}
	g := &group{at: map[callKey]int{}}
	p.queue = append(p.queue, g)
	return g
}

// next is the open turn, or a new one where that has been answered.
func (p *projection) next() *group {
	g := p.open()
	if g.begun {
		g = &group{at: map[callKey]int{}}
		p.queue = append(p.queue, g)
	}
	return g
}

func (p *projection) add(e *schema.Event, d data) error {
	switch e.Type {
	case schema.TypeUserMessage, schema.TypeAssistantMessage, schema.TypeReasoning:
		if _, refused := slices.BinarySearch(p.refused, e.Seq); refused || !p.in(e.Seq) || d.Check(e.Type) != nil {
			return nil
		}
	case schema.TypeToolCall:
		return p.addCall(e, d)
	case schema.TypeToolResult:
		p.addResult(e, d)
		return nil
	default:
		return nil
	}
	m := &Message{Seq: e.Seq, Partial: d.is(schema.KeyPartial)}
	content, err := p.content(e, d)
	if err != nil {
		return err
	}
	m.Content = bytes.Clone(content)
	switch e.Type {
	case schema.TypeUserMessage:
		m.Role = "user"
		for _, b := range blocks(m.Content) {
			key := keyOf([]byte(b.answers()))
			home := declaration{key, p.answers[declaration{key, e.Seq}]}
			if w, ok := p.awaited[home]; ok {
				w.g.answers[w.i] = b.answer(e.Seq)
				w.g.wait--
				w.g.begun = true
				delete(p.awaited, home)
			}
		}
		p.queue = append(p.queue, &group{user: true, said: []*Message{m}})
	case schema.TypeReasoning:
		m.Role, m.Dialect = "reasoning", d.text(schema.KeyDialect)
		whole, err := p.whole(e.Data, d)
		if err != nil {
			return err
		}
		var f schema.Fields
		f.Read(whole)
		m.Content = bytes.Clone(f.Get(schema.KeyItem))
		g := p.next()
		g.said = append(g.said, m)
	default:
		m.Role = "assistant"
		g := p.next()
		g.said, g.turn = append(g.said, m), bytes.Clone(d.Get(schema.KeyTurn))
		p.declaredIn(g, m)
	}
	return nil
}

// declaredIn makes room for the calls in the content of a message.
func (p *projection) declaredIn(g *group, m *Message) {
	seen := map[callKey]bool{}
	for _, b := range blocks(m.Content) {
		id := b.call()
		key := keyOf([]byte(id))
		decl := declaration{key, m.Seq}
		if id == "" || seen[key] {
			continue
		}
		seen[key] = true
		call := &Message{Role: "call", Seq: m.Seq, CallID: id, Name: b.name(), Args: b.args(), provider: id, declared: true}
		to, late := p.linked[decl]
		by, own := p.given[decl]
		switch {
		case own && !p.in(by.seq):
			p.put(g, call, p.never(m.Seq))
		case own:
			if p.put(g, call, by.answer); by.answer == nil {
				p.awaited[decl] = waits{g, len(g.answers) - 1}
				g.wait++
			}
		case p.unlinked[decl]:
			p.put(g, call, p.never(m.Seq))
		case late:
			call.Seq, call.CallID = p.calls[to.n].seq, to.id
			p.put(g, call, p.answer(to.n))
		default:
			g.at[key] = len(g.answers)
			p.put(g, call, nil)
			g.wait++ // for the call; addCall says for what then
		}
	}
}

func (p *projection) put(g *group, call, answer *Message) {
	g.said, g.answers = append(g.said, call), append(g.answers, answer)
}

// answer is what is known of the answer to a call by now, nil if it is to come.
func (p *projection) answer(n uint32) *Message {
	if m := p.far[n]; m != nil {
		return m
	}
	if p.calls[n].result == 0 {
		return p.unanswered(&n)
	}
	return nil
}

func (p *projection) addCall(e *schema.Event, d data) error {
	call := p.rules.find(plain(d.Get(schema.KeyCallID)))
	if !call.known || p.calls[call.n].seq != e.Seq {
		return nil
	}
	n := call.n
	c := &p.calls[n]
	id := providerID(d)
	if c.home > 0 && p.in(c.home) {
		for _, g := range p.queue {
			i, ok := g.at[keyOf([]byte(id))]
			if !ok || e.Seq-c.home > nearby {
				continue
			}
			at := 0
			for _, m := range g.said {
				if m.Role == "call" {
					if at == i {
						m.Seq, m.CallID, m.DryRun, m.Redacted = e.Seq, d.text(schema.KeyCallID), d.is(schema.KeyDryRun), bytes.Clone(d.Get(schema.KeyRedacted))
					}
					at++
				}
			}
			delete(g.at, keyOf([]byte(id)))
			if g.answers[i] = p.answer(n); g.answers[i] == nil {
				p.waiting[n] = waits{g, i}
			} else {
				g.wait--
			}
			return nil
		}
		return nil // it came late, and its place has it
	}
	if !p.in(e.Seq) && !p.carried(c) {
		return nil
	}
	whole, err := p.whole(e.Data, d)
	if err != nil {
		return err
	}
	var f schema.Fields
	f.Read(whole)
	m := &Message{Role: "call", Seq: e.Seq, CallID: d.text(schema.KeyCallID), Name: d.text(schema.KeyName), Args: bytes.Clone(f.Get(schema.KeyArgs)),
		DryRun: d.is(schema.KeyDryRun), Redacted: bytes.Clone(d.Get(schema.KeyRedacted)), provider: id}
	turn := d.Get(schema.KeyTurn)
	g := p.open()
	if g.begun && (len(turn) == 0 || !bytes.Equal(turn, g.turn)) || len(g.answers) >= maxTurn {
		g = &group{at: map[callKey]int{}}
		p.queue = append(p.queue, g)
	}
	if len(g.answers) == 0 {
		g.turn = bytes.Clone(turn)
	}
	answer := p.answer(n)
	if answer == nil {
		p.waiting[n] = waits{g, len(g.answers)}
		g.wait++
	}
	p.put(g, m, answer)
	return nil
}

func (p *projection) addResult(e *schema.Event, d data) {
	call := p.rules.find(plain(d.Get(schema.KeyCallID)))
	if !call.known {
		return
	}
	w, ok := p.waiting[call.n]
	if !ok {
		return
	}
	w.g.begun = true
	if p.calls[call.n].result != e.Seq {
		return
	}
	delete(p.waiting, call.n)
	w.g.answers[w.i] = resultMessage(e, d)
	w.g.wait--
}
