package journal_test

import (
	"bytes"
	"errors"
	"slices"
	"strings"
	"testing"

	"steno/journal"
	"steno/journal/journaltest"
	"steno/schema"
)

// against reads a log beside a head that was kept elsewhere.
func against(t *testing.T, s segments, h schema.Head) *journaltest.Log {
	t.Helper()
	l, err := journaltest.Read(s.store(), "s1", journal.ScanOptions{Head: h})
	must(t, err)
	_, err = journaltest.Read(s.store(), "s1", journal.ScanOptions{Head: h, Strict: true})
	if l.FirstError == nil && err != nil || l.FirstError != nil && !errors.Is(err, l.FirstError.Kind) {
		t.Errorf("strict ends in %v, the first error is %v", err, l.FirstError)
	}
	return l
}

// mismatch checks that a log does not have a head, and where that shows.
func mismatch(t *testing.T, what string, l *journaltest.Log, h schema.Head, segment uint64, line int, offset int) {
	t.Helper()
	i := slices.IndexFunc(l.Findings, func(f schema.Finding) bool { return f.Kind == schema.HeadMismatch })
	if i < 0 || l.Count(schema.HeadMismatch) != 1 {
		t.Errorf("%s: the findings are %v", what, l.Findings)
		return
	}
	f := l.Findings[i]
	if !isError(f) || f.Segment != segment || f.Line != line || f.Offset != int64(offset) || !strings.Contains(f.Detail, h.String()) {
		t.Errorf("%s: found %+v, want segment %d line %d byte %d", what, f, segment, line, offset)
	}
}

func TestEveryHeadOfALogIsItsOwn(t *testing.T) {
	base := healthy(t)
	for i, h := range heads(read(t, base)) {
		if l := against(t, base, h); len(l.Findings) > 0 {
			t.Errorf("head %s: %v", h, l.Findings)
		}
		segment, line := uint64(1), i+2
		if i >= 11 {
			segment, line = 3, i+1-10
		} else if i >= 7 {
			segment, line = 2, i+1-6
		}
		offset := 0
		for _, b := range base.lines(segment)[:line-1] {
			offset += len(b)
		}
		other := h
		other.Sum[31] ^= 1
		mismatch(t, "another sum", against(t, base, other), other, segment, line, offset)
		other = h
		other.Epoch++
		mismatch(t, "another epoch", against(t, base, other), other, segment, line, offset)
	}
}

func TestAHeadShowsWhatIsMissingAtTheEnd(t *testing.T) {
	base := healthy(t)
	all := heads(read(t, base))
	last := all[len(all)-1]
	for cut := 5; cut >= 3; cut-- { // whole lines, which no log can miss
		s := base.clone()
		s[3] = bytes.Join(s.lines(3)[:cut-1], nil)
		if l := read(t, s); l.FirstError != nil {
			t.Fatalf("without a head: %v", l.FirstError)
		}
		mismatch(t, "an end cut off", against(t, s, last), last, 3, cut, len(s[3]))
		if l := against(t, s, all[cut+7]); l.FirstError != nil { // of what is left
			t.Errorf("an older head: %v", l.FirstError)
		}
	}
	s := base.clone()
	delete(s, 3)
	mismatch(t, "the newest segment gone", against(t, s, last), last, 2, 6, len(s[2]))
	_, err := journaltest.Read(segments{1: base[1]}.store(), "s2", journal.ScanOptions{Head: last})
	if !errors.Is(err, schema.HeadMismatch) || !strings.Contains(err.Error(), last.String()) {
		t.Errorf("a session that is gone: %v", err)
	}
}

// A head testifies that the events up to it were durable.
func TestAHeadDecidesWhatASuspectTailIs(t *testing.T) {
	base := healthy(t)
	all := heads(read(t, base))
	h14, h15 := all[13], all[14]
	for name, edit := range map[string]func(s segments){
		"edited": func(s segments) { s.replace(3, 5, "bye", "BYE") },
		"torn":   func(s segments) { s.set(3, 5, s.line(3, 5)[:100]) },
		"zeros":  func(s segments) { s.set(3, 5, make([]byte, len(s.line(3, 5)))) },
	} {
		s := base.clone()
		edit(s)
		without, before, on := read(t, s), against(t, s, h14), against(t, s, h15)
		if !slices.Equal(without.Findings, before.Findings) {
			t.Errorf("%s: the head before it says something of the last line: %v", name, before.Findings)
		}
		if on.Count(schema.CorruptLogLine) != 1 || on.Count(schema.TailSuspect)+on.Count(schema.TornTail) > 0 || on.Findings[0].Line != 5 {
			t.Errorf("%s: with its head the line is no damage: %v", name, on.Findings)
		}
		mismatch(t, name, on, h15, 3, 6, len(s[3]))
	}
}

// The event behind a damaged line vouches for the head of that line, also
// after a repair.
func TestAHeadWhoseLineIsDamaged(t *testing.T) {
	base := healthy(t)
	h := heads(read(t, base))[2]
	s := base.clone()
	s.replace(1, 4, "hello", "hullo")
	if l := against(t, s, h); len(l.Findings) != 1 || l.Findings[0].Reason != schema.SumMismatch {
		t.Errorf("found %v", l.Findings)
	}
	store := s.store()
	_, err := journal.Repair(ctx, store, "s1", repairing())
	must(t, err)
	if l := against(t, segmentsOf(t, store), h); l.FirstError != nil {
		t.Errorf("after the repair: %v", l.FirstError)
	}
	s.set(1, 5) // and now nothing does
	if l := against(t, s, h); l.Count(schema.HeadMismatch) != 1 {
		t.Errorf("found %v", l.Findings)
	}
}

// A repair that leaves a suspect line out gives its number to another event.
func TestAHeadShowsThatItsLineWasLeftOut(t *testing.T) {
	base := healthy(t)
	all := heads(read(t, base))
	base.replace(3, 5, "bye", "BYE")
	store := base.store()
	_, err := journal.Repair(ctx, store, "s1", repairing())
	must(t, err)
	s := segmentsOf(t, store)
	mismatch(t, "left out", against(t, s, all[14]), all[14], 4, 2, len(s.line(4, 1)))
	if l := against(t, s, all[13]); l.FirstError != nil {
		t.Errorf("the head before it: %v", l.Findings)
	}
}
