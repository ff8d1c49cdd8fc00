package journal_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"testing"
	"time"

	"steno/journal"
	"steno/journal/journaltest"
	"steno/lease"
	"steno/schema"
)

var ctx = context.Background()

// overtakes appends while every sync is held and reports whether the append
// returned all the same.
func overtakes(t *testing.T, faults *journaltest.Faults, j *journal.Journal) bool {
	t.Helper()
	hold := faults.HoldSync(t)
	done := make(chan error, 1)
	go func() {
		_, err := j.Append(ctx, journaltest.Note("held"))
		done <- err
	}()
	select {
	case <-done:
		return true
	case <-hold.Waiting():
	}
	select {
	case <-done:
		return true
	default:
	}
	hold.Release()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	return false
}

func TestAppendReturnsAfterItsSync(t *testing.T) {
	store, faults := journaltest.Faulty(journaltest.Files(t))
	j := journaltest.Open(t, store, "s1")
	if overtakes(t, faults, j) {
		t.Error("an append returned while its sync was held")
	}
}

func TestTheSyncCheckNoticesAMissingSync(t *testing.T) {
	store, faults := journaltest.Faulty(journaltest.Files(t))
	j := journaltest.Open(t, store, "s1")
	faults.LeaveOutSync()
	if !overtakes(t, faults, j) {
		t.Error("no sync was done, and the check has not noticed")
	}
}

func TestALineThatIsNotSyncedIsTentative(t *testing.T) {
	store, faults := journaltest.Faulty(journaltest.Files(t))
	j := journaltest.Open(t, store, "s1")
	journaltest.Append(t, j, journaltest.Note("durable"))
	hold := faults.HoldSync(t)
	done := make(chan error, 1)
	go func() {
		_, err := j.Append(ctx, journaltest.Note("held"), journaltest.Note("held"))
		done <- err
	}()
	<-hold.Waiting()
	tentative := func() (seqs []uint64) {
		l := journaltest.Verify(t, store, "s1")
		for i, p := range l.Places {
			if p.Tentative {
				seqs = append(seqs, l.Events[i].Seq)
			}
		}
		return seqs
	}
	if got := fmt.Sprint(tentative()); got != "[4 5]" {
		t.Errorf("tentative are %s; 4 and 5 are not synced", got)
	}
	hold.Release()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	journaltest.Append(t, j, journaltest.Note("later"))
	// That 6 is durable is known to its writer alone until a line says so.
	if got := fmt.Sprint(tentative()); got != "[6]" {
		t.Errorf("tentative are %s; a later line says that 4 and 5 are durable", got)
	}
	journaltest.Release(t, j)
	if got := tentative(); got != nil {
		t.Errorf("tentative are %v in a session without a writer", got)
	}
}

// What can go wrong in one append, and what is known of its lines then.
var appendFaults = []struct {
	name    string
	arm     func(*journaltest.Faults)
	kind    schema.Kind
	outcome journal.Outcome
	events  int // how many of its two lines the next writer finds recorded
}{
	{"the write fails", func(f *journaltest.Faults) { f.FailWrite(1, journaltest.ErrDisk) },
		schema.LogWriteFailed, journal.NotStored, 0},
	{"the write stores one byte", func(f *journaltest.Faults) { f.ShortWrite(1, 1, journaltest.ErrDisk) },
		schema.LogWriteFailed, journal.Unknown, 0},
	{"the write stores a line and a half", func(f *journaltest.Faults) { f.ShortWrite(1, 450, journaltest.ErrDisk) },
		schema.LogWriteFailed, journal.Unknown, 1},
	{"the write stores all and fails", func(f *journaltest.Faults) { f.ShortWrite(1, 1<<20, journaltest.ErrDisk) },
		schema.LogWriteFailed, journal.Unknown, 2},
	{"the write is short without a word", func(f *journaltest.Faults) { f.ShortWrite(1, 100, nil) },
		schema.LogWriteFailed, journal.Unknown, 0},
	{"the sync fails", func(f *journaltest.Faults) { f.FailSync(1, journaltest.ErrDisk) },
		schema.SyncFailed, journal.Unknown, 2},
	{"the sync fails and the bytes are gone", func(f *journaltest.Faults) { f.LoseSync(1, journaltest.ErrDisk) },
		schema.SyncFailed, journal.Unknown, 0},
}

func TestAFailedAppendEndsTheJournal(t *testing.T) {
	for _, fault := range appendFaults {
		for _, force := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, forced %t", fault.name, force), func(t *testing.T) {
				store, faults := journaltest.Faulty(journaltest.Files(t))
				j := journaltest.Open(t, store, "s1")
				journaltest.Append(t, j, journaltest.Note("acknowledged"))
				head := j.Head()

				fault.arm(faults)
				_, err := j.Append(ctx, journaltest.Note("first"), journaltest.Note("second"))
				if !errors.Is(err, fault.kind) {
					t.Fatalf("got %v, want %s", err, fault.kind)
				}
				if got := schema.AsError(err).Details["outcome"]; got != fault.outcome.String() {
					t.Errorf("the outcome is %v, want %s", got, fault.outcome)
				}
				if !errors.Is(err, journaltest.ErrDisk) && !errors.Is(err, io.ErrShortWrite) {
					t.Errorf("the cause is lost: %v", err)
				}

				// It takes no more, retries nothing, and its state has not moved.
				writes, syncs := faults.Seen(journaltest.Write), faults.Seen(journaltest.Sync)
				for range 2 {
					if _, err := j.Append(ctx, journaltest.Note("more")); !errors.Is(err, fault.kind) {
						t.Errorf("the next append gives %v", err)
					}
				}
				if w, s := faults.Seen(journaltest.Write), faults.Seen(journaltest.Sync); w != writes || s != syncs {
					t.Errorf("after the failure there were %d writes and %d syncs", w-writes, s-syncs)
				}
				if j.Head() != head || !errors.Is(j.Err(), fault.kind) {
					t.Errorf("the head is %v, the journal's error %v", j.Head(), j.Err())
				}

				// Whoever comes next knows.
				var next *journal.Journal
				if force {
					next = journaltest.Force(t, store, "s1")
				}
				if err := j.Release(ctx, "done"); !errors.Is(err, fault.kind) {
					t.Errorf("a release says %v", err)
				}
				if !force {
					next = journaltest.Open(t, store, "s1")
				}
				l := journaltest.Verify(t, store, "s1")
				if gone := l.Missing([]schema.Head{head, next.Head()}); len(gone) > 0 {
					t.Errorf("acknowledged and not there: %v", gone)
				}
				if recorded := len(l.Events) - int(head.Seq) - 1; recorded != fault.events {
					t.Errorf("%d of the failed append's events are recorded, want %d", recorded, fault.events)
				}
			})
		}
	}
}

// An acquisition is a claim, a settling and a seal. Whichever of its writes
// and syncs fails, the session can be opened again.
func TestAFailedAcquisitionHarmsNothing(t *testing.T) {
	type start struct {
		name    string
		prepare func(t *testing.T, store journal.Store) []schema.Head
	}
	starts := []start{
		{"new", func(*testing.T, journal.Store) []schema.Head { return nil }},
		{"dead writer", func(t *testing.T, store journal.Store) []schema.Head {
			j := journaltest.Open(t, store, "s1")
			journaltest.Append(t, j, journaltest.Note("acknowledged"))
			if err := j.Close(); err != nil {
				t.Fatal(err)
			}
			return []schema.Head{j.Head()}
		}},
		{"dead claim", func(t *testing.T, store journal.Store) []schema.Head {
			claimAndDie(t, store, "s1", 1)
			return nil
		}},
	}
	for _, start := range starts {
		for _, point := range []string{journaltest.Write, journaltest.Sync} {
			for n := 1; ; n++ {
				files := journaltest.Files(t)
				acknowledged := start.prepare(t, files)
				store, faults := journaltest.Faulty(files)
				kind := schema.SyncFailed
				if point == journaltest.Sync {
					faults.FailSync(n, journaltest.ErrDisk)
				} else {
					faults.FailWrite(n, journaltest.ErrDisk)
					kind = schema.LogWriteFailed
				}
				j, err := journal.Open(ctx, store, "s1", journaltest.Options())
				if err == nil {
					j.Close()
					if least := map[string]int{journaltest.Write: 2, journaltest.Sync: 4}[point]; n <= least {
						t.Errorf("%s: an acquisition has only %d of %s; it needs %d", start.name, n-1, point, least)
					}
					break
				}
				if !errors.Is(err, kind) {
					t.Errorf("%s, %s %d: got %v, want %s", start.name, point, n, err, kind)
				}
				next := journaltest.Open(t, files, "s1")
				l := journaltest.Verify(t, files, "s1")
				if gone := l.Missing(append(acknowledged, next.Head())); len(gone) > 0 {
					t.Errorf("%s, %s %d: acknowledged and not there: %v", start.name, point, n, gone)
				}
			}
		}
	}
}

// header is the claim of a process that is not this one.
func header(t *testing.T, session string, epoch uint64) []byte {
	t.Helper()
	c := schema.Claim{Session: session, Epoch: epoch, Time: time.Now(), Holder: lease.Self("another")}
	b, err := c.Append(nil)
	if err != nil {
		t.Fatal(err)
	}
	return b
}
