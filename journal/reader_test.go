package journal_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"runtime"
	"testing"

	"steno/journal"
	"steno/journal/journaltest"
	"steno/lease"
	"steno/schema"
)

// midWrite is a store in which a reader sees a write half done: the first
// listing has the newest segment ten bytes short, and right after the n-th step
// of the reader the writer finishes and goes.
type midWrite struct {
	journal.Store
	steps, at int
	listed    bool
	leave     func()
}

func (m *midWrite) step() {
	if m.steps++; m.steps == m.at {
		m.leave()
	}
}

func (m *midWrite) Segments(ctx context.Context, session string) ([]lease.Segment, error) {
	defer m.step()
	list, err := m.Store.Segments(ctx, session)
	if !m.listed && m.steps < m.at {
		list[len(list)-1].Size -= 10
	}
	m.listed = true
	return list, err
}

func (m *midWrite) Lease(ctx context.Context, session string) (lease.Status, error) {
	defer m.step()
	return m.Store.Lease(ctx, session)
}

func TestAWriterThatLeavesWhileItIsReadHasTornNothing(t *testing.T) {
	for at := 1; at <= 3; at++ {
		for _, release := range []bool{false, true} {
			store := journaltest.NewMemory()
			j := journaltest.Open(t, store, "s1")
			journaltest.Append(t, j, journaltest.Note("x"))
			m := &midWrite{Store: store, at: at, leave: func() {
				if release {
					journaltest.Release(t, j)
				}
				must(t, j.Close())
			}}
			if l := journaltest.Verify(t, m, "s1"); len(l.Findings) > 0 {
				t.Errorf("gone after step %d, released %t: %v", at, release, l.Findings)
			}
		}
	}
}

// takenOver is a store in which a session is taken over while a reader lists
// it: it has the names from before, and the size from after the old writer
// wrote on.
type takenOver struct {
	journal.Store
	takeOver func()
}

func (m *takenOver) Segments(ctx context.Context, session string) ([]lease.Segment, error) {
	list, err := m.Store.Segments(ctx, session)
	if f := m.takeOver; f != nil && err == nil {
		m.takeOver = nil
		f()
		now, err := m.Store.Segments(ctx, session)
		if err != nil {
			return nil, err
		}
		list[0].Size = now[0].Size
	}
	return list, err
}

func TestAReaderThatIsOvertakenDoesNotTrustASurplus(t *testing.T) {
	store := journaltest.Files(t)
	old := journaltest.Open(t, store, "s1")
	journaltest.Append(t, old, journaltest.Note("x"))
	var next *journal.Journal
	m := &takenOver{Store: store, takeOver: func() {
		next = journaltest.Force(t, store, "s1")
		if _, err := old.Append(ctx, journaltest.Note("too late")); !errors.Is(err, schema.SessionWriterLost) {
			t.Errorf("the old writer gets %v", err)
		}
	}}
	l := journaltest.Verify(t, m, "s1")
	if l.Head != next.Head() || l.Count(schema.Surplus) != 1 {
		t.Errorf("the head is %v, want %v; the findings are %v", l.Head, next.Head(), l.Findings)
	}
}

func TestAReaderWaitsForASealButNotForEver(t *testing.T) {
	store := journaltest.NewMemory()
	j := journaltest.Open(t, store, "s1")
	journaltest.Append(t, j, journaltest.Note("x"))
	w, err := store.Claim(ctx, "s1", 2, claimLine(2))
	must(t, err)
	l := journaltest.Verify(t, store, "s1")
	if len(l.Findings) != 1 || l.Findings[0].Kind != schema.TakeoverInProgress || l.Findings[0].Segment != 2 {
		t.Errorf("the findings are %v", l.Findings)
	}
	for i, p := range l.Places {
		if e := l.Events[i]; p.Tentative != (e.Seq == 3) { // a later line says that 2 is durable
			t.Errorf("event %d is tentative: %t", e.Seq, p.Tentative)
		}
	}
	if _, err := j.Append(ctx, journaltest.Note("y")); !errors.Is(err, schema.SessionWriterLost) {
		t.Errorf("the old writer gets %v", err)
	}
	must(t, w.Release())
	if l := journaltest.Verify(t, store, "s1"); l.Count(schema.VoidClaim) != 1 {
		t.Errorf("the findings are %v", l.Findings)
	}
}

func TestAReaderSeesTheSealItWaitedFor(t *testing.T) {
	store, faults := journaltest.Faulty(journaltest.Files(t))
	journaltest.Append(t, journaltest.Open(t, store, "s1"), journaltest.Note("x"))
	claimed, seal := make(chan struct{}), make(chan struct{})
	faults.At(journaltest.Claimed, 1, func() {
		close(claimed)
		<-seal
	})
	var next *journal.Journal
	opened := make(chan error)
	go func() {
		opt := journaltest.Options()
		opt.Force = true
		var err error
		next, err = journal.Open(ctx, store, "s1", opt)
		opened <- err
	}()
	<-claimed
	// By its fifth step a reader has looked once in vain.
	m := &midWrite{Store: store, at: 5, listed: true, leave: func() {
		close(seal)
		must(t, <-opened)
	}}
	l := journaltest.Verify(t, m, "s1")
	defer next.Close()
	if len(l.Findings) > 0 || l.Head != next.Head() {
		t.Errorf("after %d steps the head is %v, the findings are %v", m.steps, l.Head, l.Findings)
	}
}

func TestALateSealOfAVoidClaimCountsForNothing(t *testing.T) {
	store := journaltest.Files(t)
	journaltest.Release(t, journaltest.Open(t, store, "s1"))
	// A claimant falls asleep before its seal; the next one goes past it.
	sleeping, faults := journaltest.Faulty(store)
	var next *journal.Journal
	faults.At(journaltest.Claimed, 1, func() { next = journaltest.Force(t, store, "s1") })
	_, err := journal.Open(ctx, sleeping, "s1", journaltest.Options())
	if !errors.Is(err, schema.SessionWriterLost) {
		t.Errorf("the claimant that slept gets %v", err)
	}
	if next.Epoch() != 3 {
		t.Fatalf("the next epoch is %d", next.Epoch())
	}
	l := journaltest.Verify(t, store, "s1")
	if len(l.Findings) != 1 || l.Findings[0].Kind != schema.VoidClaim || l.Findings[0].Segment != 2 || l.Head != next.Head() {
		t.Errorf("the findings are %v, the head is %v", l.Findings, l.Head)
	}
	journaltest.Append(t, next, journaltest.Note("x"))
}

// What a living predecessor adds once its segment is settled may never reach
// the disk, so the seal must not count it.
func TestAClaimantReadsNoFurtherThanItHasSettled(t *testing.T) {
	files := journaltest.Files(t).WithoutLog()
	old := journaltest.Open(t, files, "s1")
	journaltest.Append(t, old, journaltest.Note("x"))
	head := old.Head()
	store, faults := journaltest.Faulty(files)
	// The first sync is that of the claim, the second settles.
	faults.At(journaltest.Sync, 2, func() {
		if _, err := old.Append(ctx, journaltest.Note("too late")); !errors.Is(err, schema.SessionWriterLost) {
			t.Errorf("the old writer gets %v", err)
		}
	})
	next := journaltest.Force(t, store, "s1")
	if next.Head().Seq != head.Seq+1 {
		t.Errorf("the head before the seal was %v, behind it is %v", head, next.Head())
	}
	if l := journaltest.Verify(t, store, "s1"); l.Count(schema.Surplus) != 1 || len(l.Findings) != 1 {
		t.Errorf("the findings are %v", l.Findings)
	}
}

func TestALineOfAnyLengthIsReadInBoundedMemory(t *testing.T) {
	const size, enough = 48 << 20, 16 << 20
	s := healthy(t)
	at := int64(len(s[3]))
	s[3] = append(append(s[3], bytes.Repeat([]byte("x"), size)...), '\n')
	long := sha256.Sum256(s[3][at : at+size])
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	l := read(t, s)
	runtime.ReadMemStats(&after)
	if n := after.TotalAlloc - before.TotalAlloc; n > enough {
		t.Errorf("reading took %d bytes of memory for a line of %d", n, size)
	}
	want := schema.Finding{Kind: schema.TailSuspect, Reason: schema.OverLimit, Severity: schema.SeverityError, Segment: 3, Line: 6,
		Offset: at, Bytes: size, SHA256: hex.EncodeToString(long[:]), LastGoodSeq: 15}
	if len(l.Findings) != 1 {
		t.Fatalf("the findings are %v", l.Findings)
	}
	want.Detail = l.Findings[0].Detail
	if l.Findings[0] != want {
		t.Errorf("found %+v, want %+v", l.Findings[0], want)
	}
}

func TestALogThatIsNothingButDamageIsNamedLineByLine(t *testing.T) {
	const bad = 5000
	s := healthy(t)
	s.insert(3, 4, bytes.Repeat([]byte("x\n"), bad))
	l := read(t, s)
	if l.Count(schema.InvalidJSON) != bad || len(l.Findings) != bad || len(l.Events) != 15 {
		t.Errorf("%d bad lines give %d findings and %d events", bad, len(l.Findings), len(l.Events))
	}
	for i, f := range l.Findings {
		if f.Line != 4+i || f.LastGoodSeq != 13 {
			t.Fatalf("finding %d is %+v", i, f)
		}
	}
	if last := l.Findings[bad-1]; last.NextGoodSeq != 14 {
		t.Errorf("the last finding is %+v", last)
	}
}

// While a listing is between two segments, a slow writer adds a line to the
// older one and its claimant seals that in the newer one. A listing that went
// from the oldest up would see a seal that pins more than it has seen.
func TestAReaderBetweenTwoSegmentsOfAListingSeesNoDamage(t *testing.T) {
	for nth := 1; nth <= 3; nth++ {
		files := journaltest.Files(t)
		old := journaltest.Open(t, files, "s1")
		journaltest.Append(t, old, journaltest.Note("a"))
		// The next writer has claimed, and settles only later.
		claimant, steps := journaltest.Faulty(files)
		claimed, goOn := make(chan struct{}), make(chan struct{})
		steps.At(journaltest.Claimed, 1, func() { close(claimed); <-goOn })
		sealed := make(chan error)
		go func() {
			opt := journaltest.Options()
			opt.Force, opt.Reason = true, "the test says so"
			j, err := journal.Open(ctx, claimant, "s1", opt)
			if err == nil {
				err = j.Close()
			}
			sealed <- err
		}()
		<-claimed
		store, faults := journaltest.Faulty(files)
		faults.At(journaltest.Listed, nth, func() {
			if _, err := old.Append(ctx, journaltest.Note("late")); !errors.Is(err, schema.SessionWriterLost) {
				t.Errorf("the superseded writer got %v", err)
			}
			close(goOn)
			if err := <-sealed; err != nil {
				t.Error(err)
			}
		})
		if l := journaltest.Verify(t, store, "s1"); len(l.Events) != 5 {
			t.Errorf("listing %d: %d events, want 5: %v", nth, len(l.Events), l.Findings)
		}
	}
}
