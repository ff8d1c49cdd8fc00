package journal_test

import "fmt"

// An exhaustive model of claim, seal, check and of the roll. Every step that
// others can see of every writer and of a reader is one transition, all
// interleavings are walked, and what must hold is looked at in every state: so
// any process may stop for ever after any step, and the power may go after any
// step. Writes and syncs fail as often as a state says they still may.
//
// There are no locks in it, every writer forces its way: locks decide when to
// try and nothing else. A segment is a count of lines, the first its seal;
// since lines are only ever added, and by one writer, the count says which
// they are: the records of its writer from a number on. Each writer opens the
// session once, and rolls as often as something fails.

const (
	modelWriters  = 3
	modelSegments = 5 // as many claims as there can be
)

// A modelSegment is all that stands on disk of one epoch, and what its writer
// has told.
type modelSegment struct {
	lines   int8 // written, as the page cache shows
	durable int8 // synced
	dur     int8 // lines that were synced when the last write began: its dur
	before  int8 // the seal: the segment it follows, 0 for none
	length  int8 // the seal: how many lines of that count
	told    int8 // lines that were acknowledged, the seal too
	owner   int8
	first   int8 // number of its owner's record that is behind the seal
	lied    bool // a sync has failed: what is not durable is in the cache until that is dropped
}

// settle notes the size, syncs, and drops the pages.
func (g *modelSegment) settle(b modelBreach) (size int8) {
	size = g.lines
	if !b.noSettle && !g.lied {
		g.durable = g.lines
	}
	if g.lied && !b.noDrop {
		g.lines, g.lied = g.durable, false
	}
	return min(size, g.lines)
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
	toRoll     // something has failed: claim the next slot
	toTried    // settle and read the segment whose seal failed
	toReadBack // settle and read the segment in which a write or sync failed
	toSealRoll
	toSyncRoll
	toCheckRoll
	toRewrite
	done
)

type modelWriter struct {
	pc    int8
	top   int8 // newest segment it has listed
	open  int8 // newest sealed one it has listed
	own   int8
	at    int8 // how many segments it has settled or read
	raced bool
	noted [modelSegments]int8
	seen  [modelSegments]int8 // lines read

	want, recorded    int8 // of its records: handed over, acknowledged
	mine, tried       int8 // while it rolls: its newest claim, and the one whose seal failed
	found, triedFound int8 // records that a seal says to be there
}

type modelState struct {
	segments [modelSegments]modelSegment
	claimed  int8
	failures int8 // that may still happen
	failed   bool // one has happened
	writers  [modelWriters]modelWriter
	// The reader lists, notes sizes, lists again.
	rpc, rtop, rat int8
	rnoted, rdur   [modelSegments]int8
	view           [modelSegments]int8 // what it was given, settled
	sure           bool                // a line behind the newest seal says that the seal is durable
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
	tentative    bool // the reader takes what is not known durable for settled
	asListed     bool // settle down to what was listed as sealed, whatever it is now
	noDrop       bool // believe the page cache
	again        bool // after a failure, write on in the same segment
	noReadBack   bool // roll without reading what is there, and write all of it again
	noRollCheck  bool // roll, and answer, without a look for a successor
	anySlot      bool // roll into whatever slot is free
}

// modelView is what counts of the segments: how many lines of each. Nothing
// sound has a seal that pins more than is there.
func modelView(s *[modelSegments]modelSegment, lines [modelSegments]int8, claimed int8) (v [modelSegments]int8, top int8, ok bool) {
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
// has what is durable and perhaps some of what is not.
func (s *modelState) wrong() string {
	var lines [modelSegments]int8
	return s.wrongOn(&lines, 0, true)
}

func (s *modelState) wrongOn(lines *[modelSegments]int8, g int8, cached bool) string {
	if g < s.claimed {
		for n := s.segments[g].durable; n <= s.segments[g].lines; n++ {
			lines[g] = n
			if wrong := s.wrongOn(lines, g+1, cached && n == s.segments[g].lines); wrong != "" {
				return wrong
			}
		}
		return ""
	}
	v, _, ok := modelView(&s.segments, *lines, s.claimed)
	if !ok {
		return "a seal says that more counts than is there"
	}
	var next [modelWriters]int8
	for g := range s.claimed {
		x := &s.segments[g]
		if v[g] < x.told {
			return fmt.Sprintf("line %d of segment %d was acknowledged and is not in the log", x.told, g+1)
		}
		if v[g] > 1 {
			if x.first < next[x.owner] {
				return fmt.Sprintf("record %d of a writer is in the log twice", x.first)
			}
			next[x.owner] = x.first + v[g] - 1
		}
	}
	// What an unsynced seal says may be said otherwise by the next one, if the
	// power goes or its sync fails.
	if (s.sure || cached && !s.failed) && !prefixOf(s.view, v) {
		return "what a reader was given is no beginning of the log"
	}
	return ""
}

func prefixOf(a, b [modelSegments]int8) bool {
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

// A modelSize says how much there is in a model.
type modelSize struct {
	writers, appends, batch int // each of the writers makes so many appends of so many records
	failures                int // of a write or a sync
	noReader                bool
}

// step does the next step of writer i. It reports what is wrong in itself.
func (s *modelState) step(i int, size modelSize, b modelBreach) string {
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
		if w.own = s.claim(i); w.own == 0 {
			w.pc = done
			break
		}
		if w.pc = toSettle; b.readFirst {
			w.pc = toSeal
		}
	case toSettle:
		// Newest first, down to the newest sealed one.
		if g := w.next(b); g > 0 {
			w.noted[g-1] = s.segments[g-1].settle(b)
			w.at++
			break
		}
		if !b.oldestFirst && !b.asListed {
			w.open = w.top - w.at + 1 // a seal that was listed may be gone
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
		if g.lines, g.before, g.first = 1, top, 1; top > 0 {
			g.length = v[top-1]
		}
		*w = modelWriter{pc: toSync, own: w.own}
	case toSync:
		s.segments[w.own-1].sync(b)
		w.pc = toCheck
	case toCheck: // and answer: nothing others do in between changes what was seen
		if s.claimed > w.own && !b.noCheck && (!b.noRollCheck || s.segments[w.own-1].first == 1) {
			w.pc = done
			break
		}
		g := &s.segments[w.own-1]
		g.told, w.recorded = g.lines, w.want
		if w.pc = toAppend; int(w.want) >= size.appends*size.batch {
			w.pc = done
		}
	case toAppend:
		w.want += int8(size.batch)
		s.segments[w.own-1].write(int8(size.batch))
		w.pc = toSync
	default:
		s.roll(i, size, b)
	}
	return ""
}

// claim gives the next slot to writer i, 0 if the model has no more.
func (s *modelState) claim(i int) int8 {
	if s.claimed == modelSegments {
		return 0
	}
	s.segments[s.claimed].owner = int8(i)
	s.claimed++
	return s.claimed
}

func (g *modelSegment) write(n int8) { g.dur, g.lines = g.lines, g.lines+n }

func (g *modelSegment) sync(b modelBreach) {
	if !b.noSync && !g.lied {
		g.durable = g.lines
	}
}

// next is the segment to settle or read now, 0 after the last.
func (w *modelWriter) next(b modelBreach) int8 {
	switch g := w.top - w.at; {
	case w.top == 0:
		return 0
	case w.pc == toRead || b.oldestFirst || b.asListed:
		if w.at > w.top-w.open {
			return 0
		}
		if b.oldestFirst {
			return w.open + w.at
		}
		return g
	case g == 0 || w.at > 0 && w.noted[g] > 0:
		return 0 // the one above is sealed
	default:
		return g
	}
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
		s.rnoted[g-1], s.rdur[g-1] = s.segments[g-1].lines, s.segments[g-1].dur
		s.rat++
	default:
		v, top, ok := modelView(&s.segments, s.rnoted, s.rtop)
		settled := s.rtop > 0 && top == s.rtop && (s.claimed == s.rtop || b.noSecondList)
		if settled && !ok {
			return "a reader sees a seal that pins more than is there"
		}
		if settled && !b.tentative { // in the newest, only what its last line says to be durable
			v[top-1] = s.rdur[top-1]
		}
		s.rpc, s.rtop, s.rat, s.rnoted, s.rdur = 0, 0, 0, [modelSegments]int8{}, [modelSegments]int8{}
		if settled {
			s.rpc, s.view, s.sure = 2, v, v[top-1] > 0
		}
	}
	return ""
}
