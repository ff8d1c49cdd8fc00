package journal_test

import (
	"fmt"
	"testing"

	"steno/journal/journaltest"
)

// roll does a step of a writer of which a write or a sync has failed.
func (s *modelState) roll(i int, size modelSize, b modelBreach) string {
	w := &s.writers[i]
	switch w.pc {
	case toRoll:
		if s.claimed != w.mine && !b.anySlot { // another was there
			w.pc = done
			break
		}
		n := s.claim(i)
		if n == 0 {
			w.pc = done
			break
		}
		w.mine = n
		if w.pc = toReadBack; w.tried > 0 {
			w.pc = toTried
		}
	case toTried: // its own claim has succeeded, so nobody else has claimed behind it
		if g := &s.segments[w.tried-1]; g.settle(b) > 0 {
			s.commit(w, w.tried, w.triedFound)
		}
		w.tried, w.triedFound, w.pc = 0, 0, toReadBack
	case toReadBack:
		g := &s.segments[w.own-1]
		n := g.settle(b)
		g.written = n // it writes no more there
		if w.total = n; !b.rollWithoutLog {
			w.total = s.logs[i].over(w.own, n, s.logs[i].written())
		}
		if w.total < g.told && !b.rollWithoutLog {
			return "a writer does not find what it has told"
		}
		w.found = max(0, w.total-g.told)
		w.noted[0] = n
		w.pc = toSealRoll
	case toSealRoll:
		g := &s.segments[w.mine-1]
		g.lines, g.written, g.first = 1, 1, w.recorded+w.found+1
		g.follow(w.own, w.noted[0], w.total, b)
		if b.noReadBack {
			g.first, w.found = w.recorded+1, 0
		}
		w.noted[0], w.total = 0, 0
		w.pc = toSyncRoll
	case toSyncRoll:
		s.segments[w.mine-1].sync(b)
		w.pc = toCheckRoll
	case toCheckRoll:
		if s.claimed > w.mine && !b.noRollCheck {
			w.pc = done
			break
		}
		s.commit(w, w.mine, w.found)
		switch w.found, w.mine = 0, 0; {
		case w.recorded < w.want:
			w.pc = toRewrite
		case int(w.want) >= size.appends*size.batch:
			w.pc = done
		default:
			w.pc = toAppend
		}
	case toRewrite:
		if size.files > 0 {
			s.record(w, b)
			break
		}
		s.segments[w.own-1].write(w.want - w.recorded)
		w.pc = toSync
	}
	return ""
}

// commit acknowledges what a seal of our own says to be there.
func (s *modelState) commit(w *modelWriter, sealed, found int8) {
	s.segments[w.own-1].told += found
	s.segments[sealed-1].told = 1
	w.recorded += found
	w.own = sealed
}

// fails gives every state in which the next write or sync of writer i fails.
func (s *modelState) fails(i int, size modelSize, b modelBreach, yield func(modelState)) {
	if s.failures == 0 {
		return
	}
	w := s.writers[i]
	failed := func(change func(w *modelWriter, t *modelState)) {
		t := *s
		t.failures, t.failed = t.failures-1, true
		change(&t.writers[i], &t)
		yield(t)
	}
	switch w.pc {
	case toAppend, toRewrite: // of the lines so many are written
		n := int8(size.batch)
		if w.pc == toRewrite {
			n = w.want - w.recorded
		}
		for n := range n {
			failed(func(w *modelWriter, t *modelState) {
				if w.pc == toAppend {
					w.want += int8(size.batch)
				}
				t.segments[w.own-1].write(n)
				t.broken(w, b)
			})
		}
	case toSync, toSyncRoll: // of the lines so many are on the disk
		own := w.own
		if w.pc == toSyncRoll {
			own = w.mine
		}
		for n := s.segments[own-1].durable; n <= s.segments[own-1].lines; n++ {
			failed(func(w *modelWriter, t *modelState) {
				g := &t.segments[own-1]
				g.durable, g.lied, g.poisoned = n, true, size.files > 0 && !b.failedAlone
				switch {
				case w.pc == toSyncRoll:
					w.tried, w.triedFound, w.found, w.pc = w.mine, w.found, 0, toRoll
				default:
					t.broken(w, b)
				}
			})
		}
	case toLog, toLogSync:
		s.failsLog(i, b, failed)
	}
}

// walk visits every state that some interleaving leads to, or stops at the
// first in which something is wrong.
func walk(size modelSize, b modelBreach) (states int, wrong string) {
	first := modelState{failures: int8(size.failures), cuts: int8(size.cuts), kills: int8(size.kills)}
	if size.noReader {
		first.rpc = 2
	}
	seen := map[modelState]struct{}{first: {}}
	stack := []modelState{first}
	visit := func(t modelState) {
		if _, known := seen[t]; known || wrong != "" {
			return
		}
		seen[t] = struct{}{}
		if wrong = t.wrong(b); wrong == "" {
			stack = append(stack, t)
		}
	}
	for len(stack) > 0 && wrong == "" {
		s := stack[len(stack)-1]
		stack = stack[:len(stack)-1]
		if s.cuts > 0 {
			s.powerCut(visit)
		}
		if s.rpc != 2 {
			t := s
			if wrong = t.read(size.files > 0, b); wrong == "" {
				visit(t)
			}
		}
		for i := range size.writers {
			if size.files > 0 && wrong == "" {
				s.background(i, size, b, visit)
			}
			if s.writers[i].pc >= done || wrong != "" {
				continue
			}
			t := s
			if wrong = t.step(i, size, b); wrong == "" {
				visit(t)
			}
			s.fails(i, size, b, visit)
		}
	}
	return len(seen), wrong
}

func TestModelOfAllInterleavings(t *testing.T) {
	t.Parallel()
	walkAll(t, []modelSize{
		{writers: journaltest.Amount(2, 3, 3), appends: journaltest.Amount(2, 1, 3), batch: 1},
		{writers: 2, appends: journaltest.Amount(1, 2, 2), batch: 1, failures: 1},
		{writers: 2, appends: 1, batch: 2, failures: journaltest.Amount(1, 2, 3)},
		{writers: 3, appends: 1, batch: 1, failures: journaltest.Amount(0, 1, 2), noReader: true},
	})
}

func walkAll(t *testing.T, sizes []modelSize) {
	t.Helper()
	for _, size := range sizes {
		n, wrong := walk(size, modelBreach{})
		if wrong != "" {
			t.Errorf("%s: %s, after %d states", size, wrong, n)
		}
		if n < 1000 {
			t.Errorf("%s: only %d states", size, n)
		}
		journaltest.Tried("model: %s: %d states, none wrong", size, n)
	}
}

func (m modelSize) String() string {
	what := fmt.Sprintf("%d writers of %d appends of %d, %d failures", m.writers, m.appends, m.batch, m.failures)
	if m.files > 0 {
		what += fmt.Sprintf(", logs of %d files, %d appends to another session, %d kills, %d power cuts", m.files, m.other, m.kills, m.cuts)
	}
	if m.noReader {
		return what + ", no reader"
	}
	return what + ", a reader"
}

// Each rule is there for something: without it, something is wrong.
func TestModelNoticesABrokenRule(t *testing.T) {
	t.Parallel()
	sound := modelSize{writers: modelWriters, appends: 2, batch: 1}
	failing := modelSize{writers: 2, appends: 2, batch: 2, failures: 2}
	for name, c := range map[string]struct {
		size modelSize
		b    modelBreach
	}{
		"no check before the answer":     {sound, modelBreach{noCheck: true}},
		"read before the claim":          {sound, modelBreach{readFirst: true}},
		"oldest first":                   {sound, modelBreach{oldestFirst: true}},
		"read beyond the noted size":     {sound, modelBreach{beyond: true}},
		"answer without a sync":          {sound, modelBreach{noSync: true}},
		"take over without a sync":       {sound, modelBreach{noSettle: true}},
		"the reader does not list again": {sound, modelBreach{noSecondList: true}},

		"the reader takes all for settled":         {failing, modelBreach{tentative: true}},
		"believe the page cache":                   {failing, modelBreach{noDrop: true}},
		"write on in the same segment":             {failing, modelBreach{again: true}},
		"roll without reading back":                {failing, modelBreach{noReadBack: true}},
		"roll without a check before the answer":   {failing, modelBreach{noRollCheck: true}},
		"roll into any free slot":                  {failing, modelBreach{anySlot: true}},
		"settle down to what was listed as sealed": {modelSize{writers: 3, appends: 1, batch: 1, failures: 1, noReader: true}, modelBreach{asListed: true}},
	} {
		noticed(t, name, c.size, c.b)
	}
}

func noticed(t *testing.T, name string, size modelSize, b modelBreach) {
	t.Helper()
	n, wrong := walk(size, b)
	if wrong == "" {
		t.Errorf("%s: nothing is wrong in %d states", name, n)
	}
	journaltest.Tried("model: %s: %s, after %d states", name, wrong, n)
}
