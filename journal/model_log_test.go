package journal_test

// The commit log in the model. Each writer is a process and has a log of some
// files with room for two records each, shared by the session that all want
// and, in the first process, by another. An append is: write the segment, write
// the log, sync the log, check, answer. Segments are synced in the background,
// and a file whose records are all in segments synced since is reused: it is
// empty at once, since what it still has of its older generation is worth no
// more than that.

const (
	modelFiles   = 2 // of one log, at most
	modelRecords = 2
	otherSegment = modelSegments + 1 // the one of the other session
)

// A modelRecord says which lines of which segment a record has.
type modelRecord struct {
	segment, from, upto int8
	clean               bool // the segment was synced since
}

type modelFile struct {
	records   [modelRecords]modelRecord
	n, synced int8 // records
	closed    bool // a write or sync has failed
}

type modelLog struct{ files [modelFiles]modelFile }

// logBreach are the rules of the commit log.
type logBreach struct {
	answerFirst    bool // write the segment after the answer
	checkFirst     bool // look for a successor before the append only
	noLogSync      bool // answer without a sync of the log
	sealInLog      bool // a seal is like any line
	reuseWritten   bool // reuse what is in segments that are not synced
	reuseLied      bool // after a failed sync of a segment, believe the next
	reuseOne       bool // look at the segments of one session only
	reuseUnsynced  bool // reuse what is behind a seal that is not synced
	noLog          bool // a claimant does not read the log
	logAfterCut    bool // or only when the power was gone
	logFirst       bool // or before its claim
	rollWithoutLog bool
	replay         bool // lay the log over what is behind a seal too
	noCarry        bool // pin what is in the log alone
	carryWithSeal  bool // sync what is carried with the seal
	noCloseSync    bool // answer after a failed sync of the log
	retryLog       bool // or sync it once more
	poisonAlone    bool // believe one's own sync of a segment after one in the background has failed
	failedAlone    bool // or the other way round
	newDescriptor  bool // sync in the background by a descriptor that is told nothing twice
	sweepCached    bool // remove a log whose lines the page cache has
	sweepSealed    bool // or that is behind a seal that is not synced
	overlooked     bool // or behind a seal with a claim behind it
}

// over is how many lines there are of a segment that has n, with those of its
// log, of whose files so many records are there.
func (l *modelLog) over(segment, n int8, records [modelFiles]int8) int8 {
	for f := 0; f < modelFiles; {
		m := n
		for _, r := range l.files[f].records[:records[f]] {
			if r.segment == segment && r.from <= n {
				n = max(n, r.upto)
			}
		}
		if f++; n > m {
			f = 0
		}
	}
	return n
}

func (l *modelLog) written() [modelFiles]int8 { return [modelFiles]int8{l.files[0].n, l.files[1].n} }
func (l *modelLog) synced() [modelFiles]int8 {
	return [modelFiles]int8{l.files[0].synced, l.files[1].synced}
}

// durOf is what a reader knows: how many lines there are, and how many of them
// the last one says to be durable.
func (l *modelLog) durOf(segment, n, dur int8) (total, durable int8) {
	if total = l.over(segment, n, l.written()); total == n {
		return n, dur
	}
	for _, f := range l.files {
		for _, r := range f.records[:f.n] {
			if r.segment == segment && r.upto == total {
				return total, r.from
			}
		}
	}
	return total, dur
}

// counts is how many lines of the newest sealed segment there are on a disk.
func (s *modelState) counts(top int8, d *modelDisk) int8 {
	if top == 0 {
		return 0
	}
	w := s.segments[top-1].owner
	return s.logs[w].over(top, d.lines[top-1], d.logs[w])
}

// record begins an append that goes through the log.
func (s *modelState) record(w *modelWriter, b modelBreach) {
	if !b.answerFirst {
		s.segments[w.own-1].write(w.want - w.recorded)
	}
	w.pc = toLog
}

// room finds a file for a record. Without one an append waits, or goes without
// a log if all are closed.
func (l *modelLog) room(files int) (file int8, closed bool) {
	closed = true
	file = -1
	for i := range int8(files) {
		f := &l.files[i]
		if closed = closed && f.closed; f.closed || f.n == modelRecords {
			continue
		}
		if f.n > 0 { // the one in use
			return i, false
		}
		if file < 0 {
			file = i
		}
	}
	return file, closed
}

func (f *modelFile) add(segment, from, upto int8) {
	f.records[f.n] = modelRecord{segment: segment, from: from, upto: upto}
	f.n++
}

func (f *modelFile) sync(b modelBreach) {
	if !b.noLogSync {
		f.synced = f.n
	}
}

func (s *modelState) stepLog(i int, size modelSize, b modelBreach) {
	w, l := &s.writers[i], &s.logs[i]
	switch w.pc {
	case toReadLog:
		top := newestSealed(&w.seen, w.top)
		if w.pc = toSeal; top == 0 || b.noLog || b.logAfterCut && !s.cut {
			break
		}
		if !b.logFirst {
			w.total = 0
			o := &s.logs[s.segments[top-1].owner]
			w.total = o.over(top, w.seen[top-1], o.written())
		}
	case toLog:
		file, closed := l.room(size.files)
		if closed {
			w.pc = toSync
		}
		if file < 0 {
			break
		}
		g, n := &s.segments[w.own-1], w.want-w.recorded
		if g.told == 0 { // its seal
			n = 1
		}
		upto := g.written
		if b.answerFirst {
			upto += n
		}
		l.files[file].add(w.own, upto-n, upto)
		w.file, w.pc = file, toLogSync
	case toLogSync:
		f := &l.files[w.file]
		if f.closed && !b.retryLog { // then in the segment
			w.pc = toSync
			break
		}
		if !f.closed {
			f.sync(b)
		}
		w.pc = toCheck
	case toWriteLate:
		g := &s.segments[w.own-1]
		g.write(g.told - g.written)
		if w.pc = toAppend; int(w.want) >= size.appends*size.batch {
			w.pc = done
		}
	}
}

// failsLog gives the states in which a write or sync of the log fails.
func (s *modelState) failsLog(i int, b modelBreach, failed func(change func(w *modelWriter, t *modelState))) {
	w := s.writers[i]
	if w.pc == toLog {
		return // as if its sync failed and nothing was there
	}
	f := s.logs[i].files[w.file]
	if f.closed {
		return
	}
	for n := f.synced; n <= f.n; n++ {
		failed(func(w *modelWriter, t *modelState) {
			f := &t.logs[i].files[w.file]
			f.synced, f.closed = n, true
			if b.noCloseSync {
				w.pc = toCheck
			}
		})
	}
}
