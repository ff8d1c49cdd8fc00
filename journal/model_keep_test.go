package journal_test

import (
	"testing"

	"steno/journal/journaltest"
)

// What a process does beside its appends, what others do with its log once it
// is dead, and what is left when the power was gone.

// lives reports whether there is a process of writer i.
func (w *modelWriter) lives() bool { return w.pc != dead && (w.pc != toList || w.raced) }

// background gives the states that follow from what is done beside the
// appends of writer i.
func (s *modelState) background(i int, size modelSize, b modelBreach, yield func(modelState)) {
	w, l := &s.writers[i], &s.logs[i]
	if !w.lives() {
		return
	}
	if i == 0 {
		s.stepOther(size, b, yield)
	}
	for g := range int8(otherSegment) {
		if g == s.claimed {
			g = modelSegments
		}
		x := s.segment(g + 1)
		if !l.unclean(g + 1) {
			continue
		}
		t := *s
		if y := t.segment(g + 1); !y.poisoned || b.reuseLied {
			if y.sync(b) {
				t.logs[i].cleanse(g + 1)
			}
			yield(t)
		}
		for n := x.durable; s.failures > 0 && n <= x.lines && !x.lied && !x.unseen && x.durable < x.lines; n++ {
			for _, unseen := range []bool{false, true} {
				t := *s
				y := t.segment(g + 1)
				y.durable, y.lied, y.unseen, y.poisoned = n, true, unseen, y.poisoned || !unseen
				t.failures, t.failed = t.failures-1, true
				yield(t)
			}
		}
		if g == modelSegments {
			break
		}
	}
	for f := range size.files {
		if s.reusable(&l.files[f], b) {
			t := *s
			t.logs[i].files[f] = modelFile{closed: l.files[f].closed}
			yield(t)
		}
	}
	if s.kills > 0 {
		t := *s
		t.kills--
		t.die(i)
		yield(t)
	}
	for j := range size.writers {
		if t := *s; s.writers[j].pc == dead && t.sweep(j, b) {
			yield(t)
		}
	}
}

// stepOther does the next step in the other session.
func (s *modelState) stepOther(size modelSize, b modelBreach, yield func(modelState)) {
	t := *s
	x, l := &t.other, &t.logs[0]
	answer := func() {
		x.told, t.opc = x.written, 0
		t.omade++
	}
	switch s.opc {
	case 0:
		if int(s.omade) == size.other || x.poisoned {
			return
		}
		x.write(1)
		t.opc = 1
	case 1:
		file, closed := l.room(size.files)
		if closed {
			t.opc = 2 + modelFiles
		}
		if file < 0 && !closed {
			return
		}
		if !closed {
			l.files[file].add(otherSegment, x.written-1, x.written)
			t.opc = 2 + file
		}
	case 2 + modelFiles: // in the segment
		if t.opc = 3 + modelFiles; x.sync(b) {
			answer()
		}
	case 3 + modelFiles: // it is finished
		return
	default:
		f := &l.files[s.opc-2]
		switch {
		case !f.closed:
			f.sync(b)
			answer()
		case b.noCloseSync || b.retryLog:
			answer()
		default:
			t.opc = 2 + modelFiles
		}
	}
	yield(t)
}

func (s *modelState) segment(g int8) *modelSegment {
	if g == otherSegment {
		return &s.other
	}
	return &s.segments[g-1]
}

func (l *modelLog) unclean(segment int8) bool {
	for _, f := range l.files {
		for _, r := range f.records[:f.n] {
			if r.segment == segment && !r.clean {
				return true
			}
		}
	}
	return false
}

func (l *modelLog) cleanse(segment int8) {
	for i := range l.files {
		f := &l.files[i]
		for r := range f.records[:f.n] {
			if f.records[r].segment == segment {
				f.records[r].clean = true
			}
		}
	}
}

// behind reports whether a segment is behind a seal that nobody can overlook any
// more: it is in the newest slot, and durable. A seal with a claim behind it may
// have been written after that claimant had looked.
func (s *modelState) behind(segment int8, written bool, b modelBreach) bool {
	for g := s.claimed; g > segment; g-- {
		x := &s.segments[g-1]
		if x.durable > 0 || written && x.lines > 0 {
			return true
		}
		if !b.overlooked {
			break
		}
	}
	return false
}

// reusable reports whether all records of a file that is full, or closed, are
// elsewhere.
func (s *modelState) reusable(f *modelFile, b modelBreach) bool {
	if f.n == 0 || !f.closed && (f.n < modelRecords || f.synced < f.n) {
		return false
	}
	for _, r := range f.records[:f.n] {
		switch {
		case r.clean, s.behind(r.segment, b.reuseUnsynced, b):
		case b.reuseWritten && s.segment(r.segment).lines >= r.upto:
		case b.reuseOne && r.segment == otherSegment:
		default:
			return false
		}
	}
	return true
}

// sweep removes the log of writer j, which is dead, if its lines are elsewhere.
func (s *modelState) sweep(j int, b modelBreach) bool {
	there := false
	for _, f := range s.logs[j].files {
		for _, r := range f.records[:f.n] {
			there = true
			if s.behind(r.segment, b.sweepSealed, b) {
				continue
			}
			x := s.segment(r.segment)
			if !b.sweepCached {
				x.settle(b)
			}
			if x.lines < r.upto {
				return false
			}
		}
	}
	s.logs[j] = modelLog{}
	return there
}

func (s *modelState) die(i int) {
	s.writers[i] = modelWriter{pc: dead}
	if i == 0 {
		s.opc = 3 + modelFiles
	}
}

// powerCut gives what may be there once the power is back.
func (s *modelState) powerCut(yield func(modelState)) {
	s.disks(func(d *modelDisk) string {
		t := *s
		t.cuts, t.cut, t.failed = t.cuts-1, true, true
		for i := range t.writers {
			if t.writers[i].lives() {
				t.die(i)
			}
		}
		off := func(x *modelSegment, lines int8) {
			x.lines, x.written, x.durable, x.dur = lines, lines, lines, lines
			x.kept, x.lied, x.unseen, x.poisoned = x.carried > 0, false, false, false
		}
		for g := range t.claimed {
			off(&t.segments[g], d.lines[g])
		}
		off(&t.other, t.other.durable)
		for i := range t.logs {
			for f := range t.logs[i].files {
				file := &t.logs[i].files[f]
				file.n, file.synced = d.logs[i][f], d.logs[i][f]
				clear(file.records[file.n:])
			}
		}
		if t.rpc < 2 { // the reader begins anew
			t.rpc, t.rtop, t.rat, t.rtotal, t.rnoted, t.rdur = 0, 0, 0, 0, [modelSegments]int8{}, [modelSegments]int8{}
		}
		yield(t)
		return ""
	})
}

func TestModelOfTheCommitLog(t *testing.T) {
	t.Parallel()
	amount := journaltest.Amount
	walkAll(t, []modelSize{
		{writers: 2, appends: amount(1, 2, 2), batch: 1, failures: 1, files: 1, cuts: 1, noReader: true},
		{writers: 2, appends: 1, batch: amount(1, 1, 2), failures: amount(0, 1, 1), files: 1, cuts: amount(0, 0, 1)},
		{writers: 2, appends: 1, batch: 1, failures: amount(0, 1, 1), files: 1, other: 1, cuts: amount(0, 0, 1), kills: 1, noReader: true},
		{writers: 1, appends: 3, batch: 1, failures: amount(1, 1, 2), files: 2, other: 2, cuts: amount(0, 0, 1), noReader: true},
		{writers: amount(2, 3, 3), appends: 1, batch: 1, failures: amount(0, 0, 1), files: 1, cuts: 1, noReader: true},
		{writers: amount(2, 2, 3), appends: 1, batch: 1, files: amount(1, 2, 1), cuts: 1, kills: 1, noReader: true},
	})
}

// Each rule of the commit log is there for something too.
func TestModelNoticesABrokenRuleOfTheCommitLog(t *testing.T) {
	t.Parallel()
	shared := modelSize{writers: 1, appends: 2, batch: 1, failures: 2, files: 2, other: 2, noReader: true}
	taken := modelSize{writers: 2, appends: 2, batch: 1, failures: 1, files: 1, cuts: 1, noReader: true}
	swept := modelSize{writers: 2, appends: 1, batch: 1, failures: 1, files: 1, kills: 1, noReader: true}
	claimed := modelSize{writers: 3, appends: 1, batch: 1, files: 1, cuts: 1, noReader: true}
	for name, c := range map[string]struct {
		size modelSize
		b    logBreach
	}{
		"answer before the segment is written":                            {taken, logBreach{answerFirst: true}},
		"look for a successor before the append":                          {taken, logBreach{checkFirst: true}},
		"answer without a sync of the log":                                {taken, logBreach{noLogSync: true}},
		"a seal in the log alone":                                         {taken, logBreach{sealInLog: true}},
		"reuse before the segment is synced":                              {taken, logBreach{reuseWritten: true}},
		"reuse after a failed sync and another":                           {taken, logBreach{reuseLied: true}},
		"reuse that looks at one of two sessions":                         {shared, logBreach{reuseOne: true}},
		"reuse behind a seal that is not synced":                          {taken, logBreach{reuseUnsynced: true}},
		"a claimant that does not read the log":                           {taken, logBreach{noLog: true}},
		"the log is read only after a power cut":                          {taken, logBreach{logAfterCut: true}},
		"the log is read before the claim":                                {taken, logBreach{logFirst: true}},
		"roll without reading the log":                                    {shared, logBreach{rollWithoutLog: true}},
		"replay of the log behind a sealed successor":                     {taken, logBreach{replay: true}},
		"a seal pins what is in the log alone":                            {taken, logBreach{noCarry: true}},
		"carried lines and seal in one sync":                              {taken, logBreach{carryWithSeal: true}},
		"answer after a failed sync of the log":                           {taken, logBreach{noCloseSync: true}},
		"sync the log again after a failure":                              {taken, logBreach{retryLog: true}},
		"believe a segment's sync after one in the background has failed": {shared, logBreach{poisonAlone: true}},
		"believe a sync in the background after an append's has failed":   {shared, logBreach{failedAlone: true}},
		"sweep behind a seal with a claim behind it":                      {claimed, logBreach{overlooked: true}},
		"sync in the background by a new descriptor":                      {taken, logBreach{newDescriptor: true}},
		"sweep what the page cache has":                                   {swept, logBreach{sweepCached: true}},
		"sweep what is behind a seal that is not synced":                  {swept, logBreach{sweepSealed: true}},
	} {
		noticed(t, name, c.size, modelBreach{logBreach: c.b})
	}
	for name, b := range map[string]modelBreach{
		"believe the page cache, with a log":     {noDrop: true},
		"no check before the answer, with a log": {noCheck: true},
		"take over without a sync, with a log":   {noSettle: true},
		"read beyond the noted size, with a log": {beyond: true},
	} {
		noticed(t, name, taken, b)
	}
}
