package journal_test

// An exhaustive model of claim, seal, check, of the roll and of the commit log
// (model_log_test.go). Every step that
// others can see of every writer and of a reader is one transition, all
// interleavings are walked, and what must hold is looked at in every state: so
// any process may stop for ever after any step, and the power may go after any
// step. Writes and syncs fail as often as a state says they still may. Where
// the power is to come back too, those who have not begun go on with what the
// disk has.
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
	lines   int8 // as the page cache shows, up to a hole in it
	written int8 // by its owner, who does not see the hole
	durable int8 // synced
	dur     int8 // lines that were synced when the last write began: its dur
	before  int8 // the seal: the segment it follows, 0 for none
	length  int8 // the seal: how many lines of that count
	carried int8 // and how many more that were in its log alone stand before the seal
	told    int8 // lines that were acknowledged, the seal too
	owner   int8
	first   int8 // number of its owner's record that is behind the seal
	lied    bool // a sync has failed: what is not durable is in the cache until that is dropped

	kept     bool // what is carried is synced
	unseen   bool // the kernel has failed to store something, and its owner has yet to hear of it
	poisoned bool // its owner has heard of a failed sync in the background
}

// settle notes the size, syncs, and drops the pages.
func (g *modelSegment) settle(b modelBreach) (size int8) {
	size = g.lines
	g.unseen = g.unseen && !b.newDescriptor
	if !b.noSettle && !g.lied {
		g.durable, g.kept = g.lines, g.carried > 0
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
	toReadLog
	toSeal
	toSync
	toCheck
	toAppend
	toLog
	toLogSync
	toWriteLate // only where a rule is broken
	toRoll      // something has failed: claim the next slot
	toTried     // settle and read the segment whose seal failed
	toReadBack  // settle and read the segment in which a write or sync failed
	toSealRoll
	toSyncRoll
	toCheckRoll
	toRewrite
	done
	dead
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
	total             int8 // lines of the segment that its seal will be behind, with those in its log
	file              int8 // of its log, that has its last record
}

type modelState struct {
	segments [modelSegments]modelSegment
	claimed  int8
	failures int8 // that may still happen
	failed   bool // one has happened
	writers  [modelWriters]modelWriter
	// The reader lists, notes sizes, lists again.
	rpc, rtop, rat int8
	rtotal         int8 // lines of the newest sealed one, with those in its log
	rnoted, rdur   [modelSegments]int8
	view           [modelSegments]int8 // what it was given, settled
	sure           bool                // a line behind the newest seal says that the seal is durable

	logs        [modelWriters]modelLog
	other       modelSegment // of another session that writer 0 has, and nobody else wants
	opc, omade  int8         // what writer 0 does next there, and how many appends it has made
	cuts, kills int8         // that may still come
	cut         bool         // one has come
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
	logBreach
}

// A modelSize says how much there is in a model.
type modelSize struct {
	writers, appends, batch int // each of the writers makes so many appends of so many records
	failures                int // of a write or a sync
	noReader                bool

	files       int // of each commit log, 0 for none
	other       int // appends of one record to another session
	cuts, kills int
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
		if g := w.open; b.logFirst && s.claimed > 0 {
			l := &s.logs[s.segments[g-1].owner]
			w.total = l.over(g, s.segments[g-1].lines, l.written())
		}
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
		case size.files > 0:
			w.pc = toReadLog
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
		top := newestSealed(&w.seen, w.top)
		if _, ok := modelView(&s.segments, &w.seen, top, max(w.seen[max(top, 1)-1], w.total)); !ok {
			return "a claimant reads a seal that pins more than it sees"
		}
		g := &s.segments[w.own-1]
		if g.lines, g.written, g.first = 1, 1, 1; top > 0 {
			g.follow(top, w.seen[top-1], w.total, b)
		}
		*w = modelWriter{pc: toSync, own: w.own}
		if b.sealInLog {
			w.pc = toLog
		}
	case toSync:
		if w.pc = toCheck; !s.segments[w.own-1].sync(b) {
			s.broken(w, b)
		}
	case toCheck: // and answer: nothing others do in between changes what was seen
		if s.claimed > w.own && !b.noCheck && !b.checkFirst && (!b.noRollCheck || s.segments[w.own-1].first == 1) {
			w.pc = done
			break
		}
		g := &s.segments[w.own-1]
		if g.told = g.written; b.answerFirst && w.recorded < w.want {
			g.told, w.recorded, w.pc = g.told+w.want-w.recorded, w.want, toWriteLate
			break
		}
		w.recorded = w.want
		if w.pc = toAppend; int(w.want) >= size.appends*size.batch {
			w.pc = done
		}
	case toAppend:
		w.want += int8(size.batch)
		switch g := &s.segments[w.own-1]; {
		case b.checkFirst && s.claimed > w.own:
			w.pc = done
		case g.poisoned: // nothing is written
			s.broken(w, b)
		case size.files == 0:
			g.write(int8(size.batch))
			w.pc = toSync
		default:
			s.record(w, b)
		}
	case toReadLog, toLog, toLogSync, toWriteLate:
		s.stepLog(i, size, b)
	default:
		return s.roll(i, size, b)
	}
	return ""
}

// broken makes a writer of which a sync has failed go on.
func (s *modelState) broken(w *modelWriter, b modelBreach) {
	switch {
	case s.segments[w.own-1].told == 0: // whoever cannot open a session is told so
		w.pc = done
	case b.again:
		w.pc, w.mine = toRewrite, w.own
	default:
		w.pc, w.mine = toRoll, w.own
	}
}

// follow makes a seal behind a segment of which so many lines are there, and so
// many in all with those that its log has.
func (g *modelSegment) follow(top, lines, total int8, b modelBreach) {
	g.before, g.length, g.carried, g.kept = top, lines, max(0, total-lines), total > lines && !b.carryWithSeal
	if b.noCarry {
		g.length, g.carried = g.length+g.carried, 0
	}
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

func (g *modelSegment) write(n int8) {
	g.dur = g.written
	if g.lines == g.written {
		g.lines += n
	}
	g.written += n
}

// sync reports whether it has worked, as far as the caller can know.
func (g *modelSegment) sync(b modelBreach) bool {
	if g.unseen {
		g.unseen, g.poisoned = false, true
		return false
	}
	if g.poisoned && !b.poisonAlone && !b.reuseLied {
		return false // the failure was told to the other
	}
	if !b.noSync && !g.lied {
		g.durable, g.kept = g.lines, g.carried > 0
	}
	return true
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
func (s *modelState) read(logs bool, b modelBreach) string {
	switch {
	case s.rpc == 0:
		s.rtop, s.rat, s.rpc = s.claimed, 0, 1
	case s.rat == s.rtop && s.rtop > 0 && logs:
		top := newestSealed(&s.rnoted, s.rtop)
		if s.rtotal = 0; top > 0 {
			l := &s.logs[s.segments[top-1].owner]
			s.rtotal, s.rdur[top-1] = l.durOf(top, s.rnoted[top-1], s.rdur[top-1])
		}
		s.rat++
	case s.rat < s.rtop:
		g := s.rtop - s.rat
		if b.oldestFirst {
			g = s.rat + 1
		}
		s.rnoted[g-1], s.rdur[g-1] = s.segments[g-1].lines, s.segments[g-1].dur
		s.rat++
	default:
		top := newestSealed(&s.rnoted, s.rtop)
		v, ok := modelView(&s.segments, &s.rnoted, top, max(s.rnoted[max(top, 1)-1], s.rtotal))
		settled := s.rtop > 0 && top == s.rtop && (s.claimed == s.rtop || b.noSecondList)
		if settled && !ok {
			return "a reader sees a seal that pins more than is there"
		}
		if settled && !b.tentative { // in the newest, only what its last line says to be durable
			v[top-1] = s.rdur[top-1]
		}
		s.rpc, s.rtop, s.rat, s.rtotal, s.rnoted, s.rdur = 0, 0, 0, 0, [modelSegments]int8{}, [modelSegments]int8{}
		if settled {
			s.rpc, s.view, s.sure = 2, v, v[top-1] > 0
		}
	}
	return ""
}
