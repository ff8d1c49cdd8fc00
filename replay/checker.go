package replay

import (
	"bytes"
	"crypto/sha256"

	"steno/schema"
)

// A Checker knows of a log what says whether an event may follow, and nothing
// else: some 40 bytes for each call, however long its id is, and nothing for
// any other event. It folds a log that is only read through; a State has one
// too, so that both refuse the same. It is for one goroutine at a time.
type Checker struct {
	calls map[callKey]answer
	lost  map[callKey]uint64 // calls whose own event is missing, with the seq of the first event that names them
	holes bool               // events are missing somewhere before
	ended bool

	spare  schema.Fields // for what was not decoded from a line
	lastID []byte        // the id that was asked for last,
	last   callKey       // and its key
}

// A callKey stands for a call's id: two that have the same one are found by
// nobody.
type callKey [16]byte

// keyOf is asked for one id several times in a row: its event is checked and
// then applied.
func (c *Checker) keyOf(id []byte) callKey {
	if len(c.lastID) == 0 || !bytes.Equal(c.lastID, id) {
		sum := sha256.Sum256(id)
		copy(c.last[:], sum[:])
		c.lastID = append(c.lastID[:0], id...)
	}
	return c.last
}

// An answer is the result of a call that counts: its seq, 0 if there is none,
// twice, and one more if it leaves the outcome open.
type answer uint64

func answerOf(e *schema.Event, d *data) answer {
	if d.open() {
		return answer(e.Seq<<1 | 1)
	}
	return answer(e.Seq << 1)
}

func (a answer) seq() uint64 { return uint64(a >> 1) }
func (a answer) open() bool  { return a&1 > 0 }

// NewChecker returns what there is to know of an empty log.
func NewChecker() *Checker {
	return &Checker{calls: map[callKey]answer{}, lost: map[callKey]uint64{}}
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
	f := e.Fields(&c.spare)
	if err := f.Check(e.Type); err != nil {
		return err
	}
	var d data
	call := ofCall(e.Type)
	if call {
		d.take(f)
	}
	if (c.ended || b.ended) && !afterEnd(e.Type, &d) {
		return schema.Errorf(schema.SessionEnded, "session %s has ended; it takes no %s", e.Session, e.Type).With("session", e.Session)
	}
	if e.Type == schema.TypeSessionEnded {
		b.ended = true
	}
	if !call {
		return nil
	}
	key := c.keyOf(plain(d.CallID))
	refuse := func(k schema.Kind, format string, args ...any) error {
		return schema.Errorf(k, format, args...).With("session", e.Session).With("call_id", text(d.CallID))
	}
	before, known := b.calls[key]
	if !known {
		before, known = c.calls[key]
	}
	if e.Type == schema.TypeToolCall {
		if known {
			return refuse(schema.DuplicateCall, "call %s is recorded already", text(d.CallID))
		}
		if seq := c.lost[key]; seq > 0 { // it may have run
			return refuse(schema.DuplicateCall, "call %s is recorded already; its own event is missing, the first that names it has number %d", text(d.CallID), seq)
		}
		b.note(key, 0)
		return nil
	}
	if !known {
		return refuse(schema.ResultWithoutCall, "a %s names call %s, which is not recorded", e.Type, text(d.CallID))
	}
	if e.Type != schema.TypeToolResult {
		return nil
	}
	over := number(d.Supersedes)
	switch {
	case before == 0 && d.Supersedes != nil && !c.holes:
		return refuse(schema.ResultConflict, "call %s has no result at seq %d to supersede", text(d.CallID), over)
	case before == 0:
	case d.Supersedes == nil, over != before.seq() && !(c.holes && over > before.seq()): // what is superseded may lie in a hole
		return refuse(schema.ResultConflict, "call %s has a result, at seq %d", text(d.CallID), before.seq())
	case !before.open():
		return refuse(schema.ResultConflict, "the result of call %s is genuine and is never superseded", text(d.CallID))
	}
	b.note(key, answerOf(e, &d))
	return nil
}

func ofCall(typ string) bool {
	switch typ {
	case schema.TypeToolCall, schema.TypeApprovalRequested, schema.TypeDecision, schema.TypeToolStarted, schema.TypeToolResult:
		return true
	}
	return false
}

func afterEnd(typ string, d *data) bool {
	switch typ {
	case schema.TypeWriterOpened, schema.TypeWriterReleased, schema.TypeNote, schema.TypeDeadLetter:
		return true
	case schema.TypeToolResult:
		return d.Supersedes != nil
	}
	return schema.IsOwn(typ)
}

// Apply takes note of one event that Check has accepted, or refused with
// ResultWithoutCall behind a hole: the call is missing, and its id stays taken.
func (c *Checker) Apply(e *schema.Event) {
	var d data
	if ofCall(e.Type) {
		d.take(e.Fields(&c.spare))
	} else if e.Type != schema.TypeSessionEnded {
		return
	}
	c.apply(e, &d)
}

func (c *Checker) apply(e *schema.Event, d *data) {
	if e.Type == schema.TypeSessionEnded {
		c.ended = true
		return
	}
	key := c.keyOf(plain(d.CallID))
	switch _, known := c.calls[key]; {
	case e.Type == schema.TypeToolCall:
		c.calls[key] = 0
	case !known:
		if c.holes && c.lost[key] == 0 {
			c.lost[key] = e.Seq
		}
	case e.Type == schema.TypeToolResult:
		c.calls[key] = answerOf(e, d)
	}
}

// Hole says that events are missing here.
func (c *Checker) Hole() { c.holes = true }
