package journal_test

import (
	"fmt"
	"testing"

	"steno/journal/journaltest"
)

// roll does a step of a writer of which a write or a sync has failed.
func (s *modelState) roll(i int, size modelSize, b modelBreach) {
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
		w.found = max(0, n-g.told)
		w.pc = toSealRoll
	case toSealRoll:
		own, g := &s.segments[w.own-1], &s.segments[w.mine-1]
		g.lines, g.before, g.length, g.first = 1, w.own, own.told+w.found, w.recorded+w.found+1
		if b.noReadBack {
			g.first, w.found = w.recorded+1, 0
		}
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
		s.segments[w.own-1].write(w.want - w.recorded)
		w.pc = toSync
	}
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
	rolls := func(w *modelWriter) {
		w.pc, w.mine = toRoll, w.own
		if b.again {
			w.pc = toRewrite
		}
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
				rolls(w)
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
				g.durable, g.lied = n, true
				switch {
				case w.pc == toSyncRoll:
					w.tried, w.triedFound, w.found, w.pc = w.mine, w.found, 0, toRoll
				case g.told == 0: // whoever cannot open a session is told so
					w.pc = done
				default:
					rolls(w)
				}
			})
		}
	}
}

// walk visits every state that some interleaving leads to, or stops at the
// first in which something is wrong.
func walk(size modelSize, b modelBreach) (states int, wrong string) {
	first := modelState{failures: int8(size.failures)}
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
		if wrong = t.wrong(); wrong == "" {
			stack = append(stack, t)
		}
	}
	for len(stack) > 0 && wrong == "" {
		s := stack[len(stack)-1]
		stack = stack[:len(stack)-1]
		if s.rpc != 2 {
			t := s
			if wrong = t.read(b); wrong == "" {
				visit(t)
			}
		}
		for i := range size.writers {
			if s.writers[i].pc == done || wrong != "" {
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
	sizes := []modelSize{
		{journaltest.Amount(2, 3, 3), journaltest.Amount(2, 1, 3), 1, 0, false},
		{2, journaltest.Amount(1, 2, 2), 1, 1, false},
		{2, 1, 2, journaltest.Amount(1, 2, 3), false},
		{3, 1, 1, journaltest.Amount(0, 1, 2), true},
	}
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
	reader := "a reader"
	if m.noReader {
		reader = "no reader"
	}
	return fmt.Sprintf("%d writers of %d appends of %d, %d failures, %s", m.writers, m.appends, m.batch, m.failures, reader)
}

// Each rule is there for something: without it, something is wrong.
func TestModelNoticesABrokenRule(t *testing.T) {
	t.Parallel()
	sound := modelSize{modelWriters, 2, 1, 0, false}
	failing := modelSize{2, 2, 2, 2, false}
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
		"settle down to what was listed as sealed": {modelSize{3, 1, 1, 1, true}, modelBreach{asListed: true}},
	} {
		n, wrong := walk(c.size, c.b)
		if wrong == "" {
			t.Errorf("%s: nothing is wrong in %d states", name, n)
		}
		journaltest.Tried("model: %s: %s, after %d states", name, wrong, n)
	}
}
