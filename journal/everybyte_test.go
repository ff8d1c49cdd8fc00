package journal_test

import (
	"bytes"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"

	"steno/journal"
	"steno/journal/journaltest"
	"steno/schema"
)

// small is a log of four segments, and of each how many bytes count:
//
//	000001  claim, seal, session_started, note, a torn line that is sealed over
//	000002  claim, seal, and surplus of a writer that had lost
//	000003  claim, seal, note, note, released
//	000004  claim, seal, note
//
// In the second a seal is all that there is.
func small(t testing.TB) (s segments, counts map[uint64]int) {
	t.Helper()
	store := journaltest.NewMemory()
	s = segments{}
	die := func(j *journal.Journal) {
		if err := j.Close(); err != nil {
			t.Fatal(err)
		}
		s = segmentsOf(t, store)
	}
	counts = map[uint64]int{}
	j := journaltest.Open(t, store, "s1")
	journaltest.Append(t, j, journaltest.Note("a"))
	die(j)
	counts[1] = len(s[1])
	store.Put("s1", 1, append(s[1], `{"v":1,"session":"s1","seq":4`...))
	die(journaltest.Open(t, store, "s1"))
	counts[2] = len(s[2])
	j = journaltest.Open(t, store, "s1")
	journaltest.Append(t, j, journaltest.Note("b"))
	journaltest.Append(t, j, journaltest.Note("c"))
	journaltest.Release(t, j)
	j = journaltest.Open(t, store, "s1")
	journaltest.Append(t, j, journaltest.Note("d"))
	die(j)
	counts[3], counts[4] = len(s[3]), len(s[4])
	s[2] = append(s[2], "{\"v\":1}\n"...)
	return s, counts
}

func read(t *testing.T, s segments) *journaltest.Log {
	t.Helper()
	l, err := journaltest.Read(s.store(), "s1", journal.ScanOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// readTo is read by somebody who has kept the head of the log elsewhere: to the
// end everything is known to have been durable.
func readTo(t *testing.T, s segments, head schema.Head) *journaltest.Log {
	t.Helper()
	l, err := journaltest.Read(s.store(), "s1", journal.ScanOptions{Head: head})
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func heads(l *journaltest.Log) (out []schema.Head) {
	for _, e := range l.Events {
		out = append(out, e.Head())
	}
	return out
}

// found reports whether a finding stands at this line, and whether one that is
// an error does.
func found(l *journaltest.Log, segment uint64, line int) (any, wrong bool) {
	for _, f := range l.Findings {
		if f.Segment == segment && f.Line == line {
			any, wrong = true, wrong || f.Severity == schema.SeverityError
		}
	}
	return any, wrong
}

func TestEveryFlippedBitIsFoundOnItsLine(t *testing.T) {
	base, counts := small(t)
	healthy := read(t, base)
	all := heads(healthy)
	if healthy.FirstError != nil || healthy.Count(schema.TornTail) != 1 || healthy.Count(schema.Surplus) != 1 || len(all) != 10 {
		t.Fatalf("the log to begin with has %d events and %v", len(all), healthy.Findings)
	}
	seed := journaltest.Seed(t)
	bits := journaltest.Amount(2, 8, 8) // of each byte
	var flips, count atomic.Int64
	t.Run("segments", func(t *testing.T) {
		for epoch := range base {
			t.Run(fmt.Sprint(epoch), func(t *testing.T) {
				t.Parallel()
				r := journaltest.Rand(seed, epoch)
				s := base.clone()
				for i := range s[epoch] {
					for _, bit := range r.Perm(8)[:bits] {
						s[epoch][i] ^= 1 << bit
						flipped(t, s, epoch, i, i < counts[epoch], all)
						s[epoch][i] ^= 1 << bit
						if flips.Add(1); i < counts[epoch] {
							count.Add(1)
						}
					}
				}
			})
		}
	})
	journaltest.Tried("flips: %d bits of a log of 4 segments, %d of bytes that count: each named on its line; the others change nothing, seed %d",
		flips.Load(), count.Load(), seed)
}

// flipped checks what a reader says of a log in which byte i of a segment was
// changed.
func flipped(t *testing.T, s segments, epoch uint64, i int, counts bool, all []schema.Head) {
	t.Helper()
	l := read(t, s)
	if !counts {
		if l.FirstError != nil || len(l.Events) != len(all) {
			t.Fatalf("segment %d byte %d counts for nothing; %d events, %v", epoch, i, len(l.Events), l.Findings)
		}
		return
	}
	line := 1 + bytes.Count(s[epoch][:i], newline)
	any, wrong := found(l, epoch, line)
	// Only in the last write of the open segment may a change look like a write
	// that never finished, or a claim like one that was never sealed.
	if !wrong && (epoch < 4 || !any && l.Count(schema.VoidClaim) == 0) {
		t.Fatalf("segment %d line %d byte %d: %v", epoch, line, i, l.Findings)
	}
	if !wrong {
		// Whoever has the head knows better, if only that the log is short of it.
		if to := readTo(t, s, all[len(all)-1]); to.FirstError == nil {
			t.Fatalf("segment %d line %d byte %d, with the head: %v", epoch, line, i, to.Findings)
		}
	}
	for _, h := range heads(l) {
		if !slices.Contains(all, h) {
			t.Fatalf("segment %d line %d byte %d: an event was given that nobody wrote: %v", epoch, line, i, h)
		}
	}
}

func TestEveryTruncationIsFoundOrACleanPrefix(t *testing.T) {
	base, counts := small(t)
	all := heads(read(t, base))
	cuts, clean := 0, 0
	for epoch, b := range base {
		for i := range b {
			cuts++
			s := base.clone()
			s[epoch] = b[:i]
			l := read(t, s)
			switch _, wrong := found(l, epoch+1, 2); {
			case epoch < 4 && i >= counts[epoch]:
				if l.FirstError != nil || len(l.Events) != len(all) {
					t.Fatalf("segment %d cut at byte %d, where nothing counts: %d events, %v", epoch, i, len(l.Events), l.Findings)
				}
			case epoch < 4:
				if !wrong { // the next seal says how long it was
					t.Fatalf("sealed segment %d cut at byte %d: %v", epoch, i, l.Findings)
				}
			default:
				got := heads(l)
				if !slices.Equal(got, all[:len(got)]) {
					t.Fatalf("open segment cut at byte %d: no prefix", i)
				}
				line := 1 + bytes.Count(b[:i], newline)
				atLine := i > 0 && b[i-1] == '\n'
				any, _ := found(l, epoch, line)
				if prefix := atLine && line > 2; prefix == any && l.Count(schema.VoidClaim) == 0 {
					t.Fatalf("open segment cut at byte %d, in line %d: %v", i, line, l.Findings)
				}
				// A head that was kept elsewhere names what no log can.
				if l.FirstError == nil {
					clean++
				}
				if to := readTo(t, s, all[len(all)-1]); to.FirstError == nil {
					t.Fatalf("open segment cut at byte %d: the head is not missed: %v", i, to.Findings)
				}
			}
		}
	}
	journaltest.Tried("truncations: at all %d bytes of a log of 4 segments; %d of the newest are sound without the head, none with it", cuts, clean)
}
