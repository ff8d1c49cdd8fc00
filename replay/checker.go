package replay

import (
	"bytes"
	"crypto/sha256"
	"hash/maphash"

	"steno/schema"
)

// A Checker knows of a log what says whether an event may follow, and nothing
// else: some 40 bytes for each call, however long its id is, and nothing for
// any other event. It folds a log that is only read through; a State has one
// too, so that both refuse the same. It is for one goroutine at a time.
type Checker struct {
	calls calls
	past  *past              // calls of a state that was loaded; nil for any other
	lost  map[callKey]uint64 // calls whose own event is missing, with the seq of the first event that names them
	holes bool               // events are missing somewhere before
	ended bool

	last  lookup        // an event is checked and then applied, so one id is asked for several times in a row
	spare schema.Fields // for what was not decoded from a line
}

// A callKey stands for a call's id: the id itself, if it is short, or its hash.
// Two that have the same one are found by nobody.
type callKey [16]byte

func keyOf(id []byte) (k callKey) {
	if len(id) < len(k) {
		copy(k[:], id)
		k[len(k)-1] = byte(len(id))
		return k
	}
	sum := sha256.Sum256(id)
	copy(k[:], sum[:])
	k[len(k)-1] |= 0x80
	return k
}

// calls are those of a session, each with a number from 0 in the order of their
// seq. A map would do, but reading a long log is to wait for memory: a lookup
// here touches one place of a table that is half as large, and so does adding
// what was just looked up.
type calls struct {
	list  [][]known // by the number; each but the last has as many as one may have
	n     int       // in all
	table []uint64  // the upper half of an entry is of the hash, the lower the number and one more; 0 is free
}

// perList is how many a list may have: one for all would be copied as it grows.
const perList = 512

// A known call.
type known struct {
	key    callKey
	answer answer
}

// seed keeps anybody from choosing ids that all have one place. The state does
// not depend on it.
var seed = maphash.MakeSeed()

func (c *calls) find(key callKey, hash uint32) (n uint32, ok bool) {
	if len(c.table) == 0 {
		return 0, false
	}
	for at := int(hash); ; at++ {
		switch e := c.table[at&(len(c.table)-1)]; {
		case e == 0:
			return 0, false
		case uint32(e>>32) == hash && c.at(uint32(e)-1).key == key:
			return uint32(e) - 1, true
		}
	}
}

func (c *calls) at(n uint32) *known { return &c.list[n/perList][n%perList] }

// add adds a call that is not there yet, and gives its number.
func (c *calls) add(key callKey, hash uint32) uint32 {
	if c.n >= len(c.table)/4*3 {
		old := c.table
		c.table = make([]uint64, max(8, 2*len(old)))
		for _, e := range old {
			if e > 0 {
				c.put(e)
			}
		}
	}
	if c.n%perList == 0 {
		c.list = append(c.list, make([]known, 0, min(c.n, perList)))
	}
	last := &c.list[c.n/perList]
	*last = append(*last, known{key: key})
	c.n++
	c.put(uint64(hash)<<32 | uint64(c.n))
	return uint32(c.n - 1)
}

func (c *calls) put(e uint64) {
	at := int(e>>32) & (len(c.table) - 1)
	for c.table[at] > 0 {
		at = (at + 1) & (len(c.table) - 1)
	}
	c.table[at] = e
}

// A lookup is what is known of a call's id.
type lookup struct {
	id    []byte
	key   callKey
	hash  uint32
	known bool
	n     uint32
	past  uint64 // the result of a past call, which is not among those known
}

func (c *Checker) find(id []byte) *lookup {
	l := &c.last
	if len(id) == 0 || !bytes.Equal(l.id, id) {
		l.id, l.key = append(l.id[:0], id...), keyOf(id)
		l.hash = uint32(maphash.Bytes(seed, l.key[:]))
		l.n, l.known = c.calls.find(l.key, l.hash)
		if l.past = 0; !l.known && c.past != nil {
			n, _ := c.past.find(l.key)
			l.past = n.result
		}
	}
	return l
}

// An answer is the result of a call that counts: its seq, 0 if there is none,
// twice, and one more if it leaves the outcome open.
type answer uint64

func answerOf(e *schema.Event, d data) answer {
	if d.open() {
		return answer(e.Seq<<1 | 1)
	}
	return answer(e.Seq << 1)
}

func (a answer) seq() uint64 { return uint64(a >> 1) }
func (a answer) open() bool  { return a&1 > 0 }

// NewChecker returns what there is to know of an empty log.
func NewChecker() *Checker {
	return &Checker{lost: map[callKey]uint64{}}
}

// A batch is what the events of one append add while they are checked, before
// any of them is applied.
type batch struct {
	calls map[callKey]answer
	ended bool
	more  bool // the event is not the last
}

func (b *batch) note(key callKey, a answer) {
	if !b.more {
		return // nobody asks
	}
	if b.calls == nil {
		b.calls = map[callKey]answer{}
	}
	b.calls[key] = a
}

// Check says whether events may follow, as if each were applied before the
// next; it changes nothing. InvalidArgs: the data does not fit its type.
// LineTooLong: a patch above [schema.MaxPatch]. DuplicateCall: the call id is in
// use. ResultWithoutCall: a result, start or decision names no call.
// ResultConflict: a second result that does not supersede the synthetic one.
// SessionEnded: nothing of this type may follow session_ended.
func (c *Checker) Check(events []schema.Event) error {
	var b batch
	for i := range events {
		b.more = i+1 < len(events)
		if err := c.check(&events[i], &b); err != nil {
			return err
		}
	}
	return nil
}

func (c *Checker) check(e *schema.Event, b *batch) error {
	d := data{e.Fields(&c.spare)}
	if err := d.Check(e.Type); err != nil {
		return err
	}
	named := ofCall(e.Type)
	if (c.ended || b.ended) && !afterEnd(e.Type, d) {
		return schema.Errorf(schema.SessionEnded, "session %s has ended; it takes no %s", e.Session, e.Type).With("session", e.Session)
	}
	if e.Type == schema.TypeSessionEnded {
		b.ended = true
	}
	if !named {
		return nil
	}
	call := c.find(plain(d.Get(schema.KeyCallID)))
	key := call.key
	refuse := func(k schema.Kind, format string, args ...any) error {
		return schema.Errorf(k, format, args...).With("session", e.Session).With("call_id", d.text(schema.KeyCallID))
	}
	before, known := b.calls[key]
	if !known && call.known {
		before, known = c.calls.at(call.n).answer, true
	} else if !known && call.past > 0 {
		before, known = answer(call.past<<1), true
	}
	if e.Type == schema.TypeToolCall {
		if known {
			return refuse(schema.DuplicateCall, "call %s is recorded already", d.text(schema.KeyCallID))
		}
		if seq := c.lost[key]; seq > 0 { // it may have run
			return refuse(schema.DuplicateCall, "call %s is recorded already; its own event is missing, the first that names it has number %d", d.text(schema.KeyCallID), seq)
		}
		b.note(key, 0)
		return nil
	}
	if !known {
		return refuse(schema.ResultWithoutCall, "a %s names call %s, which is not recorded", e.Type, d.text(schema.KeyCallID))
	}
	if e.Type != schema.TypeToolResult {
		return nil
	}
	over := d.number(schema.KeySupersedes)
	switch {
	case before == 0 && d.Get(schema.KeySupersedes) != nil && !c.holes:
		return refuse(schema.ResultConflict, "call %s has no result at seq %d to supersede", d.text(schema.KeyCallID), over)
	case before == 0:
	case d.Get(schema.KeySupersedes) == nil, over != before.seq() && !(c.holes && over > before.seq()): // what is superseded may lie in a hole
		return refuse(schema.ResultConflict, "call %s has a result, at seq %d", d.text(schema.KeyCallID), before.seq())
	case !before.open():
		return refuse(schema.ResultConflict, "the result of call %s is genuine and is never superseded", d.text(schema.KeyCallID))
	}
	b.note(key, answerOf(e, d))
	return nil
}

func ofCall(typ string) bool {
	switch typ {
	case schema.TypeToolCall, schema.TypeApprovalRequested, schema.TypeDecision, schema.TypeToolStarted, schema.TypeToolResult:
		return true
	}
	return false
}

func afterEnd(typ string, d data) bool {
	switch typ {
	case schema.TypeWriterOpened, schema.TypeWriterReleased, schema.TypeNote, schema.TypeDeadLetter:
		return true
	case schema.TypeToolResult:
		return d.Get(schema.KeySupersedes) != nil
	}
	return schema.IsOwn(typ)
}

// Apply takes note of one event that Check has accepted, or refused with
// ResultWithoutCall behind a hole: the call is missing, and its id stays taken.
func (c *Checker) Apply(e *schema.Event) {
	if e.Type == schema.TypeSessionEnded || ofCall(e.Type) {
		c.apply(e, data{e.Fields(&c.spare)})
	}
}

func (c *Checker) apply(e *schema.Event, d data) {
	if e.Type == schema.TypeSessionEnded {
		c.ended = true
		return
	}
	call := c.find(plain(d.Get(schema.KeyCallID)))
	switch {
	case e.Type == schema.TypeToolCall:
		call.n, call.known = c.calls.add(call.key, call.hash), true
	case !call.known:
		if call.past == 0 && c.holes && c.lost[call.key] == 0 {
			c.lost[call.key] = e.Seq
		}
	case e.Type == schema.TypeToolResult:
		c.calls.at(call.n).answer = answerOf(e, d)
	}
}

// Hole says that events are missing here.
func (c *Checker) Hole() { c.holes = true }

// Broken changes nothing here: what may follow is the same for either event.
func (c *Checker) Broken() {}
