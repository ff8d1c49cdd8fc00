package replay

import (
	"bytes"
	"encoding/binary"
	"maps"
	"math"
	"slices"

	"github.com/go-json-experiment/json"

	"steno/schema"
)

// Recent is how many of the last calls a state that was loaded has in Calls,
// whatever became of them.
const Recent = 256

// A past call is one that a state which was loaded does not have in Calls: it
// has a genuine result, so nothing becomes of it any more. What it was stands in
// the log, at the numbers that are kept of it.
type past struct {
	table      schema.Table // by callKey where its numbers begin in lists
	lists      []byte
	ok, failed int
}

// numbers are those of the events of a past call.
type numbers struct {
	call, first, result uint64 // its own event, its first result, and the one that counts
	others              []byte // how many there are besides, and how much further each is than the one before
}

func (p *past) at(offset uint32) (n numbers) {
	b := p.lists[offset:]
	var at [3]uint64
	for i := range at {
		v, k := binary.Uvarint(b)
		at[i], b = at[max(0, i-1)]+v, b[k:]
	}
	return numbers{at[0], at[1], at[2], b}
}

func (p *past) find(key callKey) (n numbers, ok bool) {
	if p == nil {
		return n, false
	}
	at, ok := p.table.Find(key)
	if !ok {
		return n, false
	}
	return p.at(at), true
}

// all are the numbers in their order.
func (n numbers) all() []uint64 {
	list := []uint64{n.call, n.first}
	if n.result != n.first {
		list = append(list, n.result)
	}
	count, k := binary.Uvarint(n.others)
	b, at := n.others[k:], n.call
	for range count {
		v, k := binary.Uvarint(b)
		at, b = at+v, b[k:]
		list = append(list, at)
	}
	slices.Sort(list)
	return list
}

// appendNumbers is the other way round. others need no order.
func appendNumbers(b []byte, call, first, result uint64, others []uint64) []byte {
	slices.Sort(others)
	b = binary.AppendUvarint(binary.AppendUvarint(binary.AppendUvarint(b, call), first-call), result-first)
	b = binary.AppendUvarint(b, uint64(len(others)))
	for at := call; len(others) > 0; others = others[1:] {
		b = binary.AppendUvarint(b, others[0]-at)
		at = others[0]
	}
	return b
}

// over reports whether nothing becomes of the call any more.
func (c *Call) over() bool { return c.Result != nil && !c.Result.Open() && c.Waiting == nil }

// append adds a call that is over.
func (p *past) append(c *Call) {
	first, others := c.Result.Seq, []uint64(nil)
	for _, r := range c.Approvals {
		others = append(others, r.Seq)
	}
	for i := range c.Decisions {
		others = append(others, c.Decisions[i].Seq)
	}
	for i := range c.Attempts {
		others = append(others, c.Attempts[i].Seq)
	}
	if len(c.Superseded) > 0 {
		first, others = c.Superseded[0], append(others, c.Superseded[1:]...)
	}
	if p.lists = appendNumbers(p.lists, c.Seq, first, c.Result.Seq, others); c.State == OK {
		p.ok++
	} else {
		p.failed++
	}
}

// saved is what is kept of a state but for its messages and past calls.
type saved struct {
	State
	Compacts []Ref `json:"compacts"`
	Begun    bool  `json:"begun"`
	OK       int   `json:"ok"`
	Failed   int   `json:"failed"`
}

// messageTypes are those of Messages, by the number that stands for each.
var messageTypes = []string{schema.TypeUserMessage, schema.TypeAssistantMessage, schema.TypeReasoning}

// Save gives a form of the state that [Load] takes: what a writer needs of the
// log up to here. It is nil for a log that has holes, of which only the whole
// log tells.
func (s *State) Save() []byte {
	if s.rules.holes {
		return nil
	}
	var p past
	if s.rules.past != nil {
		p = *s.rules.past
	}
	p.lists = slices.Clip(p.lists)
	v := saved{*s, s.compacts, s.begun, 0, 0}
	v.Calls, v.Messages = nil, nil
	var added []schema.Row
	for i, c := range s.Calls {
		if !c.over() || i >= len(s.Calls)-recent {
			v.Calls = append(v.Calls, c)
			continue
		}
		added = append(added, schema.Row{Key: keyOf([]byte(c.ID)), Number: uint32(len(p.lists))})
		p.append(c)
	}
	for _, key := range slices.SortedFunc(maps.Keys(s.later), func(a, b callKey) int { return bytes.Compare(a[:], b[:]) }) {
		n, _ := s.rules.past.find(key)
		others := slices.DeleteFunc(n.all(), func(seq uint64) bool { return seq == n.call || seq == n.first || seq == n.result })
		added = append(added, schema.Row{Key: key, Number: uint32(len(p.lists))})
		p.lists = appendNumbers(p.lists, n.call, n.first, n.result, append(others, s.later[key]...))
	}
	if len(p.lists) > math.MaxUint32 {
		return nil
	}
	p.table = p.table.With(added)
	v.OK, v.Failed = p.ok, p.failed
	text, err := json.Marshal(&v, json.Deterministic(true))
	if err != nil {
		panic("replay: the state has no JSON form: " + err.Error()) // as in Digest
	}
	var messages []byte
	last := uint64(0)
	for _, m := range s.Messages {
		messages = append(binary.AppendUvarint(messages, m.Seq-last), byte(slices.Index(messageTypes, m.Type)))
		messages, last = append(messages, m.Sum[:]...), m.Seq
	}
	out := make([]byte, 0, len(text)+len(messages)+len(p.table)+len(p.lists)+4*binary.MaxVarintLen64)
	for _, part := range [][]byte{text, messages, p.table, p.lists} {
		out = append(binary.AppendUvarint(out, uint64(len(part))), part...)
	}
	return out
}

// Load gives the state that was saved, for a writer: it goes on as the state of
// the whole log would, and Check, Apply and what tells of the session are the
// same. Only Calls is shorter: it has the calls that are open, or whose outcome
// is, and the last ones, at least [Recent]; [State.Past] tells of the others. It
// has no Digest. b stays in use, and must not be changed.
func Load(b []byte) (*State, error) {
	broken := schema.Errorf(schema.Internal, "this is no saved state")
	var parts [4][]byte
	for i := range parts {
		n, k := binary.Uvarint(b)
		if k <= 0 || n > uint64(len(b)-k) {
			return nil, broken
		}
		parts[i], b = b[k:k+int(n):k+int(n)], b[k+int(n):]
	}
	v := saved{State: *New()}
	if err := schema.Unmarshal(parts[0], &v); err != nil || len(b) > 0 {
		return nil, broken.Cause(err)
	}
	s := &v.State
	s.compacts, s.begun, s.rules.ended = v.Compacts, v.Begun, s.Ended != nil
	s.rules.past = &past{parts[2], parts[3], v.OK, v.Failed}
	for _, u := range s.Usage {
		s.usage[u.Model] = u
	}
	for _, c := range s.Calls {
		l := s.rules.find([]byte(c.ID))
		n := s.rules.calls.add(l.key, l.hash)
		if l.n, l.known = n, true; c.Result != nil {
			a := answer(c.Result.Seq << 1)
			if c.Result.Open() {
				a |= 1
			}
			s.rules.calls.at(n).answer = a
		}
	}
	s.Messages = make([]Ref, 0, len(parts[1])/(len(schema.Sum{})+2))
	last := uint64(0)
	for m := parts[1]; len(m) > 0; {
		n, k := binary.Uvarint(m)
		if k <= 0 || len(m) < k+1+len(schema.Sum{}) || int(m[k]) >= len(messageTypes) {
			return nil, broken
		}
		last += n
		s.Messages = append(s.Messages, Ref{last, messageTypes[m[k]], schema.Sum(m[k+1:][:len(schema.Sum{})])})
		m = m[k+1+len(schema.Sum{}):]
	}
	return s, nil
}

// Past gives the numbers of the events of a call that a state which was loaded
// does not have in Calls, in their order; nil if there is none. [Recall] makes
// the call of them.
func (s *State) Past(id string) []uint64 {
	call := s.rules.find([]byte(id))
	n, ok := s.rules.past.find(call.key)
	if call.known || !ok {
		return nil
	}
	return append(n.all(), s.later[call.key]...)
}

// Recall makes a call of all its events: those that Past has told of, as they
// stand in the log. CorruptLogLine: they are not those of one call.
func Recall(id string, events []schema.Event) (*Call, error) {
	s := New()
	for i := range events {
		if err := s.Check(events[i : i+1]); err != nil {
			return nil, schema.Errorf(schema.CorruptLogLine, "event %d is none of call %s", events[i].Seq, id).With("call_id", id).Cause(err)
		}
		s.Apply(&events[i])
	}
	if len(s.Calls) != 1 || s.Calls[0].ID != id || !s.Calls[0].over() {
		return nil, schema.Errorf(schema.CorruptLogLine, "the events of call %s are others than were recorded", id).With("call_id", id)
	}
	return s.Calls[0], nil
}

// Count says how many calls there are in each state.
func (s *State) Count() map[CallState]int {
	n := map[CallState]int{}
	for _, c := range s.Calls {
		n[c.State]++
	}
	if p := s.rules.past; p != nil && p.ok > 0 {
		n[OK] += p.ok
	}
	if p := s.rules.past; p != nil && p.failed > 0 {
		n[Failed] += p.failed
	}
	return n
}

// Splits gives the number of the first call that seq lies inside of: it stands
// at seq or before, and its first result behind, or it has none. 0 if there is no
// such call. A compaction or a rewind up to there would take it apart.
func (s *State) Splits(seq uint64) (call uint64) {
	inside := func(at, first uint64) {
		if at <= seq && (first == 0 || first > seq) && (call == 0 || at < call) {
			call = at
		}
	}
	if p := s.rules.past; p != nil {
		for i := range p.table.Len() {
			n := p.at(p.table.Number(i))
			inside(n.call, n.first)
		}
	}
	for _, c := range s.Calls {
		switch {
		case c.Result == nil:
			inside(c.Seq, 0)
		case len(c.Superseded) > 0:
			inside(c.Seq, c.Superseded[0])
		default:
			inside(c.Seq, c.Result.Seq)
		}
	}
	return call
}

// recent is Recent, but where a test saves short logs.
var recent = Recent
