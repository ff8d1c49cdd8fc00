package journal_test

import (
	"bytes"
	"fmt"
	"strings"
	"sync"
	"testing"

	"steno/journal"
	"steno/journal/journaltest"
	"steno/replay"
	"steno/schema"
)

// items is all that a scan says, in its order.
func items(store journal.Store, opt journal.ScanOptions) string {
	var b strings.Builder
	st := replay.New()
	opt.State = st
	s := journal.NewScan(store, "s1", opt)
	for it, err := range s.Items(ctx) {
		switch {
		case err != nil:
			fmt.Fprintf(&b, "error %v\n", err)
		case it.Finding != nil:
			fmt.Fprintf(&b, "finding %+v at %d %d\n", *it.Finding, it.Segment, it.Offset)
		default:
			fmt.Fprintf(&b, "event at %d %d, tentative %t: %s", it.Segment, it.Offset, it.Tentative, it.Event.Append(nil))
		}
	}
	fmt.Fprintf(&b, "%v %d %d %d %+v %v %s\n", s.Head, s.Events, s.Epochs, s.Findings, s.FirstError, s.Repairs, st.Digest())
	return b.String()
}

// ahead compares what is read line by line with what others have judged ahead,
// in chunks of a few lines and of less than one.
func ahead(t *testing.T, store journal.Store) {
	t.Helper()
	for _, opt := range []journal.ScanOptions{{}, {Strict: true}, {Trusted: true}} {
		want := items(store, opt.Judged(-1, 0))
		for _, with := range [][2]int{{-1, 100}, {1, 100}, {2, 700}, {3, 2000}} {
			if got := items(store, opt.Judged(with[0], with[1])); got != want {
				t.Fatalf("with %d workers and chunks of %d bytes:\n%s\nbut alone:\n%s", with[0], with[1], got, want)
			}
		}
	}
}

// Whoever judges the lines, and however many at once, a reader is told the same
// in the same order.
func TestLinesThatAreJudgedAheadAreTheSame(t *testing.T) {
	t.Parallel()
	for _, d := range damages {
		s := healthy(t)
		d.edit(s)
		ahead(t, s.store())
	}
	whole := healthy(t)
	for epoch := range whole {
		for n := range whole.lines(epoch) {
			for _, v := range variations {
				if line := whole.line(epoch, n+1); len(line) > 200 {
					s := whole.clone()
					s.set(epoch, n+1, v.edit(bytes.Clone(line)))
					ahead(t, s.store())
				}
			}
		}
	}
	seed := journaltest.Seed(t)
	tries := journaltest.Amount(200, 1000, 20000)
	for n := range tries {
		r := journaltest.Rand(seed, uint64(n))
		script := make([]byte, 6*(1+r.IntN(12)))
		for i := range script {
			script[i] = byte(r.Uint32())
		}
		s := fixed()
		if edit(s, script); len(s) > 0 {
			ahead(t, s.store())
		}
	}
	journaltest.Tried("judged ahead: %d damaged logs, each read alone and with up to 2 others: the same items in the same order, seed %d", tries, seed)
}

// A scan that is left, or ends at an error, leaves nobody behind who judges.
func TestAScanMayBeLeftAnywhere(t *testing.T) {
	t.Parallel()
	s := healthy(t)
	line := s.line(3, 4)
	s.insert(3, 4, bytes.Repeat(line, 300))
	store := s.store()
	for left := range 40 {
		n := 0
		for range journal.NewScan(store, "s1", journal.ScanOptions{}.Judged(3, 1000)).Items(ctx) {
			if n++; n > left {
				break
			}
		}
		if n != left+1 {
			t.Fatalf("left after %d items", n)
		}
	}
}

// A reader that compares no sums finds what has no form of an event, no number or
// no link, and cannot find a byte that was changed inside a value. Whoever writes
// compares them.
func TestATrustedReadingComparesNoSums(t *testing.T) {
	t.Parallel()
	trusted := func(s segments) *journaltest.Log {
		l, err := journaltest.Read(s.store(), "s1", journal.ScanOptions{Trusted: true})
		must(t, err)
		return l
	}
	whole := healthy(t)
	for _, c := range []struct {
		name           string
		edit           func(s segments)
		with, trusting error // that are found
	}{
		{"a byte inside a value", func(s segments) { s.replace(1, 4, "hello", "hullo") }, schema.SumMismatch, nil},
		{"a byte inside a seal", func(s segments) { s.replace(3, 2, `"by":"journaltest"`, `"by":"journalt3st"`) }, schema.SumMismatch, nil},
		{"another sum", func(s segments) { s.set(1, 4, variations[0].edit(bytes.Clone(s.line(1, 4)))) }, schema.SumMismatch, schema.ChainBroken},
		{"a line that is gone", func(s segments) { s.set(3, 4, nil) }, schema.SeqGap, schema.SeqGap},
		{"a line that is no JSON", func(s segments) { s.replace(1, 4, `"text":`, `"text"!`) }, schema.InvalidJSON, schema.InvalidJSON},
		{"a changed claim", func(s segments) { s.replace(2, 1, "journaltest", "journalt3st") }, schema.ClaimCorrupt, schema.ClaimCorrupt},
	} {
		s := whole.clone()
		c.edit(s)
		if l := read(t, s); l.Count(c.with) == 0 || l.FirstError == nil {
			t.Errorf("%s: found are %+v, want %v", c.name, l.Findings, c.with)
		}
		l := trusted(s)
		if c.trusting == nil && (len(l.Findings) > 0 || len(l.Events) != 15) || c.trusting != nil && l.Count(c.trusting) == 0 {
			t.Errorf("%s: with trust, found are %+v, want %v", c.name, l.Findings, c.trusting)
		}
		if _, err := journal.Open(ctx, s.store(), "s1", journaltest.Options()); err == nil {
			t.Errorf("%s: a writer has opened it", c.name)
		}
	}
	if l := trusted(whole); l.FirstError != nil || l.State.Digest() != read(t, whole).State.Digest() {
		t.Errorf("a log in order is read with trust as another: %v", l.Findings)
	}
}

// Readers lend each other the room that they read into, and never their work: a
// reader that compares sums finds what one that does not has beside it.
func TestReadersBesideEachOtherJudgeTheirOwnLines(t *testing.T) {
	t.Parallel()
	s := healthy(t)
	line := s.line(3, 4)
	s.insert(3, 4, bytes.Repeat(line, 300))
	for n := 10; n < 300; n += 10 {
		s.replace(3, n, "thanks", "thinks")
	}
	store := s.store()
	var wants [2]string
	opts := [2]journal.ScanOptions{{}, {Trusted: true}}
	for i, opt := range opts {
		wants[i] = items(store, opt.Judged(-1, 0))
	}
	if wants[0] == wants[1] {
		t.Fatal("a changed byte is found without its sum")
	}
	var all sync.WaitGroup
	for n := range 8 {
		all.Go(func() {
			for range journaltest.Amount(20, 100, 1000) {
				if got := items(store, opts[n%2].Judged(2, 1000)); got != wants[n%2] {
					t.Errorf("with trust %t, beside others %d sums are wrong, alone %d", opts[n%2].Trusted,
						strings.Count(got, "sum_mismatch"), strings.Count(wants[n%2], "sum_mismatch"))
					return
				}
			}
		})
	}
	all.Wait()
}
