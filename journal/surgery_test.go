package journal_test

import (
	"bytes"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"

	"steno/journal/journaltest"
	"steno/schema"
)

// Surgery on whole lines, blocks and segments: what a person with an editor, a
// disk with old blocks or a careless copy does to a log.

// A cutting is one such edit. Applied to a log that is edited already it may
// find nothing to do.
type cutting struct {
	name string
	do   func(s segments)
}

// lineCuttings are all single edits of lines: each is deleted, repeated,
// swapped with every other of its segment, replaced by and put beside every
// line of another session, of an older epoch, and of itself at an earlier time.
func lineCuttings(base, other segments) (all []cutting) {
	add := func(do func(s segments), format string, args ...any) {
		all = append(all, cutting{fmt.Sprintf(format, args...), do})
	}
	at := func(s segments, epoch uint64, n int) bool { return n <= len(s.lines(epoch)) }
	for epoch := range base {
		lines := len(base.lines(epoch))
		for n := 1; n <= lines; n++ {
			add(func(s segments) {
				if at(s, epoch, n) {
					s.set(epoch, n)
				}
			}, "delete line %d of %d", n, epoch)
			add(func(s segments) {
				if at(s, epoch, n) {
					s.set(epoch, n, s.line(epoch, n), s.line(epoch, n))
				}
			}, "repeat line %d of %d", n, epoch)
			for m := n + 1; m <= lines; m++ {
				add(func(s segments) {
					if at(s, epoch, m) {
						a, b := s.line(epoch, n), s.line(epoch, m)
						s.set(epoch, m, bytes.Clone(a)) // first: b may be without its newline
						s.set(epoch, n, bytes.Clone(b))
					}
				}, "swap lines %d and %d of %d", n, m, epoch)
			}
			for from, donor := range map[string]segments{"another session": other, "another segment": base} {
				for e := range donor {
					for m := range donor.lines(e) {
						line := donor.lines(e)[m]
						if from == "another segment" && e == epoch {
							continue
						}
						add(func(s segments) {
							if at(s, epoch, n) {
								s.set(epoch, n, line)
							}
						}, "line %d of %d becomes line %d of %d of %s", n, epoch, m+1, e, from)
						add(func(s segments) {
							if at(s, epoch, n) {
								s.insert(epoch, n, line)
							}
						}, "before line %d of %d comes line %d of %d of %s", n, epoch, m+1, e, from)
					}
				}
			}
		}
	}
	return all
}

// segmentCuttings are missing, extra, renamed, swapped and replayed segments.
func segmentCuttings(base, other segments) (all []cutting) {
	add := func(do func(s segments), format string, args ...any) {
		all = append(all, cutting{fmt.Sprintf(format, args...), do})
	}
	for epoch := range base {
		add(func(s segments) { delete(s, epoch) }, "segment %d is gone", epoch)
		add(func(s segments) { s[epoch] = nil }, "segment %d is empty", epoch)
		add(func(s segments) { s[epoch] = other[epoch] }, "segment %d is that of another session", epoch)
		for to := uint64(1); to <= 6; to++ {
			if to == epoch {
				continue
			}
			add(func(s segments) { s[to] = s[epoch] }, "segment %d is also segment %d", epoch, to)
			add(func(s segments) { s[to] = s[epoch]; delete(s, epoch) }, "segment %d is renamed to %d", epoch, to)
			add(func(s segments) { s[to], s[epoch] = s[epoch], s[to] }, "segments %d and %d are swapped", epoch, to)
		}
		for n := range base.lines(epoch) { // an old backup of it
			old := bytes.Join(base.lines(epoch)[:n], nil)
			add(func(s segments) { s[epoch] = old }, "segment %d is as it was with %d lines", epoch, n)
		}
	}
	return all
}

// blockCuttings are blocks of a disk that were never written, or are those of
// an older file.
func blockCuttings(base segments) (all []cutting) {
	add := func(do func(s segments), format string, args ...any) {
		all = append(all, cutting{fmt.Sprintf(format, args...), do})
	}
	for _, size := range []int{512, 4096} {
		for epoch, b := range base {
			for at := 0; at < len(b); at += size {
				end := func(s segments) int { return min(at+size, len(s[epoch])) }
				add(func(s segments) {
					if at < len(s[epoch]) {
						clear(s[epoch][at:end(s)])
					}
				}, "block %d of %d bytes of segment %d is zeros", at/size, size, epoch)
				for e, stale := range base {
					for from := 0; from < len(stale); from += size {
						if e == epoch && from == at {
							continue
						}
						old := stale[from:min(from+size, len(stale))]
						add(func(s segments) {
							if at < len(s[epoch]) {
								copy(s[epoch][at:end(s)], old)
							}
						}, "block %d of %d bytes of segment %d is block %d of segment %d", at/size, size, epoch, from/size, e)
					}
				}
			}
		}
	}
	return all
}

// operated checks what readers say of a log after surgery.
func operated(t *testing.T, name string, s segments, base segments, counts map[uint64]int, all []schema.Head) (caught bool) {
	t.Helper()
	same := true
	for epoch, b := range base { // of bytes that count
		same = same && len(s[epoch]) >= counts[epoch] && bytes.Equal(s[epoch][:counts[epoch]], b[:counts[epoch]])
	}
	for epoch := range s {
		same = same && base[epoch] != nil
	}
	if len(s) == 0 {
		return false
	}
	l, to := read(t, s), readTo(t, s, all[len(all)-1])
	got := heads(l)
	for _, h := range got {
		if !slices.Contains(all, h) {
			t.Fatalf("%s: an event was given that nobody wrote: %v", name, h)
		}
	}
	if same {
		if l.FirstError != nil && len(s[4]) == counts[4] || len(got) != len(all) {
			t.Fatalf("%s: nothing that counts has changed: %d events, %v", name, len(got), l.Findings)
		}
		return false
	}
	// Without an error the log is a sound beginning, and then a head that was
	// kept elsewhere is missed in it.
	if l.FirstError == nil && !slices.Equal(got, all[:len(got)]) {
		t.Fatalf("%s: not named, and %v is no beginning", name, got)
	}
	if to.FirstError == nil && len(heads(to)) != len(all) {
		t.Fatalf("%s: not named, with a head kept elsewhere: %d events, %v", name, len(heads(to)), to.Findings)
	}
	// What a later seal pins needs no head.
	for epoch := range counts {
		if epoch < 4 && s[4] != nil && bytes.Equal(s[4], base[4]) && l.FirstError == nil &&
			(len(s[epoch]) < counts[epoch] || !bytes.Equal(s[epoch][:counts[epoch]], base[epoch][:counts[epoch]])) {
			t.Fatalf("%s: not named though a later seal pins it: %d events, %v", name, len(got), l.Findings)
		}
	}
	return l.FirstError != nil
}

// surgery does all single edits, and pairs of them at random.
func surgery(t *testing.T, what string, pairs int, all func(base, other segments) []cutting) {
	t.Parallel()
	seed := journaltest.Seed(t)
	base, counts := small(t)
	other, _ := small(t)
	for epoch, b := range other { // with sums that check
		other[epoch] = bytes.ReplaceAll(b, []byte(`"session":"s1"`), []byte(`"session":"s2"`))
		for n, line := range other.lines(epoch) {
			var e schema.Event
			if e.Decode(bytes.TrimSuffix(bytes.Replace(line, []byte(`"s2"`), []byte(`"s1"`), 1), newline)) == nil {
				e.Session = "s2"
				other.set(epoch, n+1, e.Append(nil))
			}
		}
	}
	heads := heads(read(t, base))
	edits := all(base.clone(), other)
	slices.SortFunc(edits, func(a, b cutting) int { return bytes.Compare([]byte(a.name), []byte(b.name)) }) // for the seed
	caught := 0
	for _, e := range edits {
		s := base.clone()
		e.do(s)
		if operated(t, e.name, s, base, counts, heads) {
			caught++
		}
	}
	r, done := journaltest.Rand(seed, what), 0
	for range pairs {
		a, b := pick(r, edits), pick(r, edits)
		s := base.clone()
		a.do(s)
		if len(s) < len(base) && !slices.Equal(slices.Sorted(maps.Keys(s)), slices.Sorted(maps.Keys(base))) {
			continue // there may be nothing left to edit
		}
		b.do(s)
		done++
		if operated(t, a.name+", then "+b.name, s, base, counts, heads) {
			caught++
		}
	}
	journaltest.Tried("surgery on %s: %d single edits, %d pairs, none unnoticed with a head kept elsewhere, %d noticed without, seed %d", what, len(edits), done, caught, seed)
}

func pick(r *rand.Rand, all []cutting) cutting { return all[r.IntN(len(all))] }

func TestSurgeryOnLines(t *testing.T) {
	surgery(t, "lines", journaltest.Amount(200, 1000, 20000), lineCuttings)
}

func TestSurgeryOnSegments(t *testing.T) {
	surgery(t, "segments", journaltest.Amount(100, 1000, 20000), segmentCuttings)
}

func TestSurgeryOnBlocks(t *testing.T) {
	surgery(t, "blocks", journaltest.Amount(100, 1000, 20000), func(base, _ segments) []cutting { return blockCuttings(base) })
}
