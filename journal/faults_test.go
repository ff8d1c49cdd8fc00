package journal_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
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
		{"dead writer whose commit log alone has a line", func(t *testing.T, store journal.Store) []schema.Head {
			logged, faults := journaltest.FaultyLog(store.(*journal.Files))
			j := journaltest.Open(t, logged, "s1")
			journaltest.Append(t, j, journaltest.Note("acknowledged"))
			faults.LoseSync(1, journaltest.ErrDisk)
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
					least := map[string]int{journaltest.Write: 2, journaltest.Sync: 4}[point]
					if strings.Contains(start.name, "log") { // its line is carried
						least++
					}
					if n <= least {
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
