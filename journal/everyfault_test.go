package journal_test

import (
	"errors"
	"fmt"
	"io"
	"sync"
	"testing"

	"github.com/oklog/ulid/v2"

	"steno/journal"
	"steno/journal/journaltest"
	"steno/schema"
)

// A workload runs into one fault, or two in a row, at every write and sync that
// it makes. What was acknowledged is there once, what was answered is true, and
// others can go on.
func TestEveryFaultAtEveryWriteAndSync(t *testing.T) {
	faults := map[string]func(f *journaltest.Faults, n int){
		"fail write":  func(f *journaltest.Faults, n int) { f.FailWrite(n, journaltest.ErrDisk) },
		"short write": func(f *journaltest.Faults, n int) { f.ShortWrite(n, 7*n, journaltest.ErrDisk) },
		"long write":  func(f *journaltest.Faults, n int) { f.ShortWrite(n, 400+20*n, nil) },
		"fail sync":   func(f *journaltest.Faults, n int) { f.FailSync(n, journaltest.ErrDisk) },
		"lose sync":   func(f *journaltest.Faults, n int) { f.LoseSync(n, journaltest.ErrDisk) },
	}
	for name, arm := range faults {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for n := 1; n <= 60; n++ {
				for second := range 6 { // none, or so many later
					if second > 0 && n > 20 {
						break
					}
					store, f := journaltest.Faulty(journaltest.Files(t))
					arm(f, n)
					if second > 0 {
						arm(f, n+second)
					}
					underFaults(t, store, fmt.Sprintf("%s at %d and %d later", name, n, second))
					if t.Failed() {
						return
					}
				}
			}
		})
	}
}

// The same with a commit log, at its writes and syncs too.
func TestEveryFaultAtEveryWriteAndSyncWithACommitLog(t *testing.T) {
	type arm = func(f *journaltest.Faults, n int)
	faults := map[string]arm{
		"fail write":     func(f *journaltest.Faults, n int) { f.FailWrite(n, journaltest.ErrDisk) },
		"short write":    func(f *journaltest.Faults, n int) { f.ShortWrite(n, 7*n, journaltest.ErrDisk) },
		"fail sync":      func(f *journaltest.Faults, n int) { f.FailSync(n, journaltest.ErrDisk) },
		"cache sync":     func(f *journaltest.Faults, n int) { f.CacheSync(n, journaltest.ErrDisk) },
		"fail log write": func(f *journaltest.Faults, n int) { f.FailLog(journaltest.LogWrite, n, journaltest.ErrDisk) },
		"short log":      func(f *journaltest.Faults, n int) { f.ShortLog(n, 40*n, journaltest.ErrDisk) },
		"fail log sync":  func(f *journaltest.Faults, n int) { f.FailLog(journaltest.LogSync, n, journaltest.ErrDisk) },
		"cache log":      func(f *journaltest.Faults, n int) { f.CacheLog(n, journaltest.ErrDisk) },
		"fail log make":  func(f *journaltest.Faults, n int) { f.FailLog(journaltest.LogMake, n, journaltest.ErrDisk) },
	}
	for name, arm := range faults {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for n := 1; n <= 24; n++ {
				for also, second := range faults { // the next of another kind, too
					if n%8 != len(also)%8 {
						continue
					}
					store, f := journaltest.FaultyLog(journaltest.Files(t))
					arm(f, n)
					second(f, n)
					underFaults(t, store, fmt.Sprintf("%s and %s at %d", name, also, n))
					if t.Failed() {
						return
					}
				}
			}
		})
	}
}

// underFaults works in three processes' worth of epochs and checks all answers.
func underFaults(t *testing.T, store *journal.Files, where string) {
	t.Helper()
	type sent struct {
		ids     []ulid.ULID
		outcome string // "recorded" where it was acknowledged
	}
	var all []sent
	var heads []schema.Head
	var j *journal.Journal
	open := func() {
		for try := 0; ; try++ {
			var err error
			if j, err = journal.Open(ctx, store, "s1", journaltest.Options()); err == nil {
				heads = append(heads, j.Head())
				return
			} else if try == 4 || !errors.Is(err, journaltest.ErrDisk) && !errors.Is(err, io.ErrShortWrite) {
				t.Fatalf("%s: open: %v", where, err)
			}
		}
	}
	open()
	for i := range 24 {
		var entries []journal.Entry
		s := sent{outcome: "recorded"}
		for k := range 1 + i%3 {
			e := journaltest.Note(fmt.Sprintf("%d.%d %s", i, k, where))
			e.ID = ulid.Make()
			entries, s.ids = append(entries, e), append(s.ids, e.ID)
		}
		records, err := j.Append(ctx, entries...)
		if err != nil {
			s.outcome, _ = schema.AsError(err).Details["outcome"].(string)
			if j.Err() == nil || s.outcome == "" {
				t.Fatalf("%s: append %d: %v", where, i, err)
			}
		}
		for k, r := range records {
			if r.ID != s.ids[k] || string(r.Data) != string(entries[k].Data) {
				t.Errorf("%s: append %d is answered with %+v", where, i, r.Event)
			}
			heads = append(heads, r.Event.Head())
		}
		all = append(all, s)
		switch {
		case j.Err() != nil:
			must(t, j.Close())
			open()
		case i%8 == 7:
			_ = j.Release(ctx, "done") // which may run into a fault as well
			open()
		}
	}
	must(t, j.Close())
	open() // somebody else, over what a dead process left
	must(t, j.Close())
	l := journaltest.Verify(t, store, "s1") // no finding of severity error
	if gone := l.Missing(heads); len(gone) > 0 {
		t.Errorf("%s: acknowledged and not there: %v", where, gone)
	}
	for _, f := range l.Findings {
		if f.Kind != schema.TornTail && f.Kind != schema.VoidClaim && f.Kind != schema.Surplus {
			t.Errorf("%s: %s", where, f.Kind)
		}
	}
	times := map[ulid.ULID]int{}
	for _, e := range l.Events {
		times[e.ID]++
	}
	for i, s := range all {
		n := 0
		for _, id := range s.ids {
			n += times[id]
			if times[id] > 1 {
				t.Errorf("%s: an event of append %d is there %d times", where, i, times[id])
			}
		}
		switch {
		case s.outcome == "recorded" && n != len(s.ids), s.outcome == "not_stored" && n != 0,
			s.outcome == "recorded_in_part" && (n == 0 || n == len(s.ids)):
			t.Errorf("%s: %d of %d events of append %d are there; its caller was told %s", where, n, len(s.ids), i, s.outcome)
		}
	}
}

// Many callers at once hear the truth, whichever of them runs into the fault.
func TestManyCallersRollTogether(t *testing.T) {
	journaltest.Either(t, manyRoll)
}

func manyRoll(t *testing.T, logged bool) {
	store, faults := journaltest.FaultyEither(journaltest.Files(t), logged)
	j := journaltest.Open(t, store, "s1")
	var wg sync.WaitGroup
	var mu sync.Mutex
	var heads []schema.Head
	for g := range 8 {
		wg.Go(func() {
			for i := range 20 {
				if g == 0 && i%4 == 0 {
					if logged {
						faults.FailLog(journaltest.LogSync, 1, journaltest.ErrDisk)
						faults.FailSync(1, journaltest.ErrDisk)
					} else {
						faults.LoseSync(1, journaltest.ErrDisk)
					}
				}
				r, err := j.Append(ctx, journaltest.Note(fmt.Sprint(g, i)), journaltest.Note("and"))
				if err != nil && j.Err() == nil {
					t.Error(err)
				}
				_, _ = j.Head(), j.Epoch()
				j.View(func(journal.State) {})
				mu.Lock()
				for _, r := range r {
					heads = append(heads, r.Event.Head())
				}
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	l := journaltest.Verify(t, store, "s1")
	if gone := l.Missing(heads); len(gone) > 0 || len(heads) == 0 {
		t.Errorf("of %d acknowledged are missing %v", len(heads), gone)
	}
	if len(l.State.Epochs) < 2 {
		t.Error("nobody has rolled")
	}
}
