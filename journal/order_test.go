package journal_test

import (
	"bytes"
	"fmt"
	"slices"
	"testing"

	"steno/schema"
)

// A line that says that it is a later one than it can be, a copy or a forgery,
// hides none of those that it jumps over.
func TestALineInTheWrongPlaceHidesNoOther(t *testing.T) {
	whole := healthy(t)
	want := heads(read(t, whole))
	try := func(what string, epoch uint64, n int, line []byte) {
		s := whole.clone()
		s.insert(epoch, n, line)
		l := read(t, s)
		if given := heads(l); !slices.Equal(given, want) {
			t.Errorf("%s: %d events are given, want %d: %v", what, len(given), len(want), l.Findings)
		}
		if len(l.Findings) != 1 || l.Findings[0].Line != n || l.Findings[0].Segment != epoch || l.Findings[0].Severity != schema.SeverityError {
			t.Errorf("%s: findings %v, want one of line %d", what, l.Findings, n)
		}
	}
	for epoch := range whole {
		lines := len(whole.lines(epoch))
		for n := 2; n <= lines; n++ {
			for m := n + 1; m <= lines; m++ {
				try(fmt.Sprintf("line %d of %d before %d", m, epoch, n), epoch, n, whole.line(epoch, m))
			}
			try(fmt.Sprintf("a forged line before %d of %d", n, epoch), epoch, n, whole.event(epoch, n, func(e *schema.Event) { e.Seq += 1000 }))
		}
	}
}

// Where lines are really missing, what is behind them is given, also if some of
// them turn up again at the end.
func TestAMissingLineDoesNotPutTheNextInTheWrongPlace(t *testing.T) {
	whole := healthy(t)
	want := heads(read(t, whole))
	for n := 4; n <= 6; n++ {
		s := whole.clone()
		lost := bytes.Clone(s.line(1, n))
		s.set(1, n)
		missing := slices.Delete(slices.Clone(want), n-2, n-1)
		if given := heads(read(t, s)); !slices.Equal(given, missing) {
			t.Errorf("without line %d: %v", n, given)
		}
		last := len(s.lines(1))
		s.insert(1, last, lost)
		if given := heads(read(t, s)); !slices.Equal(given, missing) {
			t.Errorf("with line %d near the end: %v", n, given)
		}
	}
}

// A seal that cannot be read does not let count what it had left out: what a
// writer added after it had lost, and a claim that was sealed too late.
func TestWhatALostSealLeftOutStaysOut(t *testing.T) {
	whole := healthy(t)
	want := heads(read(t, whole))
	spoil := map[string]struct {
		do   func(s segments, epoch uint64)
		lost int // lines
	}{
		"changed":                 {func(s segments, epoch uint64) { s.replace(epoch, 2, `"data":{`, `"data":[`) }, 1},
		"deleted":                 {func(s segments, epoch uint64) { s.set(epoch, 2) }, 1},
		"changed with the number": {func(s segments, epoch uint64) { s.replace(epoch, 2, `"seq":`, `"seq:"`) }, 1},
		"changed with the next line": {func(s segments, epoch uint64) {
			s.replace(epoch, 2, `"data":{`, `"data":[`)
			s.replace(epoch, 3, `"data":{`, `"data":[`)
		}, 2},
	}
	for name, how := range spoil {
		for _, epoch := range []uint64{2, 3} {
			for surplus := range 5 {
				s := whole.clone()
				last := len(s.lines(epoch - 1))
				var e schema.Event
				must(t, e.Decode(bytes.TrimSuffix(s.line(epoch-1, last), []byte("\n"))))
				first := int(e.Seq) // want[first] is the seal
				for range surplus {
					e = schema.Event{Session: e.Session, Seq: e.Seq + 1, Epoch: e.Epoch, ID: e.ID, Time: e.Time,
						Type: "note", Data: []byte(`{"text":"lost"}`), Dur: e.Seq, Prev: e.Sum}
					s[epoch-1] = e.Append(s[epoch-1])
				}
				how.do(s, epoch)
				expected := slices.Delete(slices.Clone(want), first, first+how.lost)
				if given := heads(read(t, s)); !slices.Equal(given, expected) {
					t.Errorf("the seal of epoch %d %s, %d lines of surplus: given are\n%v, want\n%v", epoch, name, surplus, given, expected)
				}
			}
		}
	}

	// The third segment as the fourth, above a claim that was void.
	s := whole.clone()
	late := slices.Concat(header(t, "s1", 3), whole.event(3, 2, func(e *schema.Event) { e.ID[15]++ }))
	delete(s, 3)
	s[4] = header(t, "s1", 4)
	for n, line := range whole.lines(3)[1:] {
		if n == 0 { // its seal, which cannot be read
			line = bytes.Replace(line, []byte(`"data":{`), []byte(`"data":[`), 1)
		}
		s[4] = append(s[4], rewritten(t, line, 4)...)
	}
	without := heads(read(t, s))
	s[3] = late
	if given := heads(read(t, s)); !slices.Equal(given, without) {
		t.Errorf("with a claim that was sealed too late %v are given, want %v", given, without)
	}
}

// rewritten is a line as an event of another epoch; one that cannot be read
// stays as it is.
func rewritten(t *testing.T, line []byte, epoch uint64) []byte {
	t.Helper()
	var e schema.Event
	if e.Decode(bytes.TrimSuffix(line, []byte("\n"))) != nil {
		return line
	}
	e.Epoch = epoch
	return e.Append(nil)
}
