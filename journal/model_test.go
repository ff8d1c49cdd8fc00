package journal_test

import (
	"fmt"
	"testing"

	"steno/journal/journaltest"
)

// An exhaustive model of claim, seal, check. Every step that others can see of
// every writer and of a reader is one transition, all interleavings are
// walked, and what must hold is looked at in every state: so any process may
// stop for ever after any step, and the power may go after any step.
//
// There are no locks in it, every writer forces its way: locks decide when to
// try and nothing else. A segment is a count of lines, the first its seal;
// since lines are only ever added, and by one writer, the count says which
// they are. Each writer claims once.

const modelWriters = 3

// A modelSegment is all that stands on disk of one epoch, and what its writer
// has told.
type modelSegment struct {
	lines   int8 // written
	durable int8 // synced
	before  int8 // the seal: the segment it follows, 0 for none
	length  int8 // the seal: how many lines of that count
	told    int8 // lines that were acknowledged, the seal too
}

// What a writer does next.
const (
	toList int8 = iota
	toClaim
	toSettle // one segment: note its size, sync it
	toRead   // one segment; only where a rule is broken is this a step of its own
	toSeal
	toSync
	toCheck
	toAppend
	done
)

type modelWriter struct {
	pc    int8
	top   int8 // newest segment it has listed
	open  int8 // newest sealed one it has listed
	own   int8
	at    int8 // how many segments it has settled or read
	raced bool
	noted [modelWriters]int8
	seen  [modelWriters]int8 // lines read
}

type modelState struct {
	segments [modelWriters]modelSegment
	claimed  int8
	writers  [modelWriters]modelWriter
	// The reader lists, notes sizes, lists again.
	rpc, rtop, rat int8
	rnoted         [modelWriters]int8
	view           [modelWriters]int8 // what it was given, settled
}

// Rules of the protocol, to be broken one at a time.
type modelBreach struct {
	noCheck      bool // no look for a successor before the answer
	readFirst    bool // read before the claim
	oldestFirst  bool // sizes noted and segments read from the oldest up
	beyond       bool // read what was added after the size was noted
	noSync       bool // answer without a sync
	noSettle     bool // note the size, but sync nothing
	noSecondList bool // the reader does not list again
}

// modelView is what counts of the segments: how many lines of each. Nothing
// sound has a seal that pins more than is there.
func modelView(s *[modelWriters]modelSegment, lines [modelWriters]int8, claimed int8) (v [modelWriters]int8, top int8, ok bool) {
	for top = claimed; top > 0 && lines[top-1] == 0; top-- {
	}
	for g, n := top, int8(-1); g > 0; {
		have := lines[g-1]
		if n < 0 {
			n = have
		}
		if n > have || n == 0 {
			return v, top, false
		}
		v[g-1] = n
		g, n = s[g-1].before, s[g-1].length
	}
	return v, top, true
}

// wrong says what must not be so, "" if nothing is. Of every segment the disk
// has what is durable and perhaps what is not.
func (s *modelState) wrong() string {
	for image := range 1 << s.claimed {
		var lines [modelWriters]int8
		for g := range s.claimed {
			if lines[g] = s.segments[g].lines; image>>g&1 != 0 {
				if lines[g] == s.segments[g].durable {
					goto next // the same image again
				}
				lines[g] = s.segments[g].durable
			}
		}
		if v, _, ok := modelView(&s.segments, lines, s.claimed); !ok {
			return "a seal says that more counts than is there"
		} else {
			for g := range s.claimed {
				if v[g] < s.segments[g].told {
					return fmt.Sprintf("line %d of segment %d was acknowledged and is not in the log", s.segments[g].told, g+1)
				}
			}
			if image == 0 && !prefixOf(s.view, v) {
				return "what a reader was given is no beginning of the log"
			}
		}
	next:
	}
	return ""
}

func prefixOf(a, b [modelWriters]int8) bool {
	for g := range a {
		if a[g] != b[g] {
			for _, later := range a[g+1:] {
				if later > 0 {
					return false
				}
			}
			return a[g] < b[g]
		}
	}
	return true
}

// step does the next step of writer i. It reports what is wrong in itself.
func (s *modelState) step(i, appends int, b modelBreach) string {
	w := &s.writers[i]
	switch w.pc {
	case toList:
		w.top, w.open, w.at = s.claimed, s.claimed, 0
		for w.open > 0 && s.segments[w.open-1].lines == 0 {
			w.open--
		}
		w.open = max(w.open, 1)
		if w.pc = toClaim; b.readFirst {
			w.pc = toSettle
		}
	case toClaim:
		if s.claimed != w.top {
			if w.pc = toList; w.raced {
				w.pc = done
			}
			*w = modelWriter{pc: w.pc, raced: true}
			break
		}
		s.claimed++
		w.own = s.claimed
		if w.pc = toSettle; b.readFirst {
			w.pc = toSeal
		}
	case toSettle:
		// Newest first, down to the newest sealed one.
		if g := w.next(b); g > 0 {
			w.noted[g-1] = s.segments[g-1].lines
			if !b.noSettle {
				s.segments[g-1].durable = w.noted[g-1]
			}
			w.at++
			break
		}
		w.at = 0
		switch {
		case b.beyond:
			w.pc = toRead
		case b.readFirst:
			w.pc = toClaim
		default:
			w.pc = toSeal
		}
		// Below a noted size nothing changes any more, and what is older is
		// pinned: to read it is no step that others can see.
		for g := range w.top {
			if w.seen[g] = w.noted[g]; g+1 < w.open {
				w.seen[g] = s.segments[g].lines
			}
		}
	case toRead:
		if g := w.next(b); g > 0 {
			w.seen[g-1] = s.segments[g-1].lines
			w.at++
			break
		}
		w.pc = toSeal
	case toSeal:
		v, top, ok := modelView(&s.segments, w.seen, w.top)
		if !ok {
			return "a claimant reads a seal that pins more than it sees"
		}
		g := &s.segments[w.own-1]
		if g.lines, g.before = 1, top; top > 0 {
			g.length = v[top-1]
		}
		*w = modelWriter{pc: toSync, own: w.own}
	case toSync:
		if g := &s.segments[w.own-1]; !b.noSync {
			g.durable = g.lines
		}
		w.pc = toCheck
	case toCheck: // and answer: nothing others do in between changes what was seen
		if s.claimed > w.own && !b.noCheck {
			w.pc = done
			break
		}
		g := &s.segments[w.own-1]
		g.told = g.lines
		if w.pc = toAppend; g.lines == 1+int8(appends) {
			w.pc = done
		}
	case toAppend:
		s.segments[w.own-1].lines++
		w.pc = toSync
	}
	return ""
}

// next is the segment to settle or read now, 0 after the last.
func (w *modelWriter) next(b modelBreach) int8 {
	if w.top == 0 || w.at > w.top-w.open {
		return 0
	}
	if b.oldestFirst {
		return w.open + w.at
	}
	return w.top - w.at
}

// read does the next step of the reader.
func (s *modelState) read(b modelBreach) string {
	switch {
	case s.rpc == 0:
		s.rtop, s.rat, s.rpc = s.claimed, 0, 1
	case s.rat < s.rtop:
		g := s.rtop - s.rat
		if b.oldestFirst {
			g = s.rat + 1
		}
		s.rnoted[g-1] = s.segments[g-1].lines
		s.rat++
	default:
		v, top, ok := modelView(&s.segments, s.rnoted, s.rtop)
		settled := s.rtop > 0 && top == s.rtop && (s.claimed == s.rtop || b.noSecondList)
		if settled && !ok {
			return "a reader sees a seal that pins more than is there"
		}
		s.rpc, s.rtop, s.rat, s.rnoted = 0, 0, 0, [modelWriters]int8{}
		if settled {
			s.rpc, s.view = 2, v
		}
	}
	return ""
}

// walk visits every state that some interleaving leads to, or stops at the
// first in which something is wrong.
func walk(writers, appends int, b modelBreach) (states int, wrong string) {
	seen := map[modelState]struct{}{{}: {}}
	stack := []modelState{{}}
	for len(stack) > 0 {
		s := stack[len(stack)-1]
		stack = stack[:len(stack)-1]
		for i := range writers + 1 {
			t := s
			if i == writers {
				if s.rpc == 2 {
					continue
				}
				wrong = t.read(b)
			} else {
				if s.writers[i].pc == done {
					continue
				}
				wrong = t.step(i, appends, b)
			}
			if wrong != "" {
				return len(seen), wrong
			}
			if _, known := seen[t]; known {
				continue
			}
			seen[t] = struct{}{}
			if wrong = t.wrong(); wrong != "" {
				return len(seen), wrong
			}
			stack = append(stack, t)
		}
	}
	return len(seen), ""
}

func TestModelOfAllInterleavings(t *testing.T) {
	t.Parallel()
	writers, appends := journaltest.Amount(2, 3, 3), journaltest.Amount(2, 2, 3)
	n, wrong := walk(writers, appends, modelBreach{})
	if wrong != "" {
		t.Errorf("%s, after %d states", wrong, n)
	}
	if n < 10000 {
		t.Errorf("only %d states", n)
	}
	journaltest.Tried("model: %d writers of %d records, a reader: %d states, none wrong", writers, appends, n)
}

// Each rule is there for something: without it, something is wrong.
func TestModelNoticesABrokenRule(t *testing.T) {
	t.Parallel()
	for name, b := range map[string]modelBreach{
		"no check before the answer":     {noCheck: true},
		"read before the claim":          {readFirst: true},
		"oldest first":                   {oldestFirst: true},
		"read beyond the noted size":     {beyond: true},
		"answer without a sync":          {noSync: true},
		"take over without a sync":       {noSettle: true},
		"the reader does not list again": {noSecondList: true},
	} {
		n, wrong := walk(modelWriters, 2, b)
		if wrong == "" {
			t.Errorf("%s: nothing is wrong in %d states", name, n)
		}
		journaltest.Tried("model: %s: %s, after %d states", name, wrong, n)
	}
}
