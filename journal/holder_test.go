package journal_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"steno/journal"
	"steno/journal/journaltest"
	"steno/lease"
	"steno/schema"
)

func look(t *testing.T, store journal.Store, session string) lease.Status {
	t.Helper()
	st, err := store.Lease(ctx, session)
	must(t, err)
	return st
}

func lastSeal(t *testing.T, l *journaltest.Log) (seal schema.Seal) {
	t.Helper()
	for _, e := range l.Events {
		if e.Type == schema.TypeWriterOpened {
			seal = schema.Seal{}
			must(t, schema.Unmarshal(e.Data, &seal))
		}
	}
	return seal
}

func TestAStoppedHolderIsAmbiguousAndMayBeForced(t *testing.T) {
	store := journaltest.Files(t)
	p := journaltest.StartWriter(t, journaltest.Writer{Dir: store.Dir(), Session: "s1", Step: true})
	p.Step(1)
	p.WaitFor("ack", 1)
	if st := look(t, store, "s1"); st.State != lease.Active || st.Undecided || st.Beat == nil {
		t.Errorf("while it runs the lease is %+v", st)
	}
	p.Stop()
	journaltest.Silence(t, store, "s1")
	if st := look(t, store, "s1"); st.State != lease.Ambiguous || st.Undecided || !st.Held {
		t.Errorf("the holder is stopped, and the lease is %+v", st)
	}
	_, err := journal.Open(ctx, store, "s1", journaltest.Options())
	if e := schema.AsError(err); !errors.Is(err, schema.SessionWriterAmbiguous) || e.Details["pid"] != p.PID() || e.Details["observed"] == nil {
		t.Errorf("opening gives %v, %v", err, schema.AsError(err).Details)
	}
	next := journaltest.Force(t, store, "s1")
	seal := lastSeal(t, journaltest.Verify(t, store, "s1"))
	if e := seal.Evidence; seal.How != schema.HowForced || e == nil || e.State != "ambiguous" || e.Reason != "the test says so" || e.By != "journaltest" ||
		!strings.HasPrefix(e.Observed, "the lock is held, and the holder's last beat is 1") {
		t.Errorf("the seal says %s, %+v", seal.How, seal.Evidence)
	}
	p.Continue()
	p.Step(1)
	if err := p.Err(); !errors.Is(err, schema.SessionWriterLost) {
		t.Errorf("the woken holder ended in %v", err)
	}
	journaltest.Append(t, next, journaltest.Note("goes on"))
	if gone := journaltest.Verify(t, store, "s1").Missing(p.Acknowledged()); len(gone) > 0 {
		t.Errorf("acknowledged and not there: %v", gone)
	}
}

// Late is not lost.
func TestAHolderThatWakesUpBeforeAnybodyCameGoesOn(t *testing.T) {
	t.Parallel()
	store := journaltest.Files(t)
	p := journaltest.StartWriter(t, journaltest.Writer{Dir: store.Dir(), Session: "s1", Step: true, Entries: 2})
	p.Step(1)
	p.WaitFor("ack", 1)
	p.Stop()
	journaltest.Silence(t, store, "s1")
	if st := look(t, store, "s1"); st.State != lease.Ambiguous {
		t.Errorf("the holder is stopped, and the lease is %+v", st)
	}
	p.Continue()
	for end := time.Now().Add(journaltest.Deadline); look(t, store, "s1").State != lease.Active; time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("the woken holder does not beat")
		}
	}
	p.Step(2)
	p.WaitFor("released", 1)
	if l := journaltest.Verify(t, store, "s1"); l.Epochs != 1 || len(l.Missing(p.Acknowledged())) > 0 {
		t.Errorf("it went on in epoch %d", l.Epochs)
	}
	if left, err := os.ReadDir(filepath.Join(store.Dir(), "holders")); err != nil || len(left) > 0 {
		t.Errorf("it has left %v, %v", left, err)
	}
}

// Many see the same dead holder at once.
func TestOfManyProcessesThatSeeADeadHolderOneTakesOver(t *testing.T) {
	store := journaltest.Files(t)
	must(t, journaltest.Open(t, store, "s1").Close())
	const n = 8
	var all []*journaltest.Process
	for range n {
		all = append(all, journaltest.StartWriter(t, journaltest.Writer{Dir: store.Dir(), Session: "s1", Step: true}))
	}
	won := 0
	for _, p := range all {
		if p.WaitForEither("open", "error") == "open" {
			won++
		} else if err := p.Err(); !errors.Is(err, schema.SessionWriterActive) {
			t.Errorf("one was refused with %v", err)
		}
	}
	if won != 1 {
		t.Errorf("%d of %d got the session", won, n)
	}
	if seal := lastSeal(t, journaltest.Verify(t, store, "s1")); seal.How != schema.HowTakeover || seal.Evidence.State != "stale" {
		t.Errorf("the seal says %s, %+v", seal.How, seal.Evidence)
	}
}

// counting counts the looks at the lease.
type counting struct {
	journal.Store
	looks *atomic.Int64
}

func (s counting) Lease(ctx context.Context, session string) (lease.Status, error) {
	s.looks.Add(1)
	return s.Store.Lease(ctx, session)
}

// Between its claim and its seal a writer is for others neither there nor gone;
// they wait for it to be one of the two.
func TestAClaimThatIsBeingSealedIsWaitedFor(t *testing.T) {
	for _, dies := range []bool{false, true} {
		files := journaltest.Files(t)
		must(t, journaltest.Open(t, files, "s1").Close())
		store, faults := journaltest.Faulty(files)
		claimed, goOn := make(chan struct{}), make(chan struct{})
		faults.At(journaltest.Claimed, 1, func() { close(claimed); <-goOn })
		if dies {
			faults.FailSync(2, errors.New("the disk says no"))
		}
		first := make(chan error, 1)
		go func() {
			j, err := journal.Open(ctx, store, "s1", journaltest.Options())
			if err == nil {
				t.Cleanup(func() { _ = j.Close() })
			}
			first <- err
		}()
		<-claimed
		if st := look(t, files, "s1"); st.State != lease.Ambiguous || !st.Undecided {
			t.Errorf("between claim and seal the lease is %+v", st)
		}
		looks := new(atomic.Int64)
		second := make(chan error, 1)
		go func() {
			j, err := journal.Open(ctx, counting{files, looks}, "s1", journaltest.Options())
			if err == nil {
				t.Cleanup(func() { _ = j.Close() })
			}
			second <- err
		}()
		for looks.Load() < 46 { // the reader gives up after 40
			select {
			case err := <-second:
				t.Fatalf("the second does not wait: %v", err)
			case <-time.After(time.Millisecond):
			}
		}
		close(goOn)
		if err := <-first; (err != nil) != dies {
			t.Errorf("the first ended in %v", err)
		}
		if err := <-second; dies && err != nil || !dies && !errors.Is(err, schema.SessionWriterActive) {
			t.Errorf("the first died: %t; the second got %v", dies, err)
		}
	}
}

// lockless is a store whose locks mean nothing: every holder looks dead.
type lockless struct{ journal.Store }

func (s lockless) Lease(ctx context.Context, session string) (lease.Status, error) {
	st, err := s.Store.Lease(ctx, session)
	st.Held = false
	return st.Evidence.Status(), err
}

// Locks decide when to try, and nothing else: without them writers take the
// session from each other all the time, and what any of them was told is there.
func TestWithoutLocksNothingAcknowledgedIsLost(t *testing.T) {
	store := journaltest.Files(t)
	journaltest.Release(t, journaltest.Open(t, store, "s1"))
	var mu sync.Mutex
	var told []schema.Head
	lost := 0
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for range 10 {
				j, err := journal.Open(ctx, lockless{store}, "s1", journaltest.Options())
				for n := 0; err == nil && n < 20; n++ {
					mu.Lock()
					told = append(told, j.Head())
					mu.Unlock()
					_, err = j.Append(ctx, journaltest.Note("x"))
				}
				if j != nil {
					_ = j.Close()
				}
				switch schema.KindOf(err) {
				case "", schema.SessionWriterActive: // beaten too often
				case schema.SessionWriterLost:
					mu.Lock()
					lost++
					mu.Unlock()
				default:
					t.Errorf("a writer got %v", err)
				}
			}
		})
	}
	wg.Wait()
	l := journaltest.Verify(t, store, "s1")
	if gone := l.Missing(told); len(gone) > 0 {
		t.Errorf("acknowledged and not there: %v", gone)
	}
	if lost == 0 {
		t.Error("no writer was ever superseded; do they meet?")
	}
	t.Logf("%d acknowledged, %d lost, %d epochs", len(told), lost, l.Epochs)
}

// The clock of these tests moves only while all wait.

func TestASessionThatWasForcedStaysForAWhile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := journaltest.NewMemory()
		force := func(want string) (*journal.Journal, time.Duration) {
			t.Helper()
			began := time.Now()
			opt := journaltest.Options()
			opt.Force = true
			j, err := journal.Open(ctx, store, "s1", opt)
			must(t, err)
			if j.How() != want {
				t.Errorf("come by as %s, want %s", j.How(), want)
			}
			return j, time.Since(began)
		}
		journaltest.Append(t, journaltest.Open(t, store, "s1"), journaltest.Note("x"))
		_, took := force(schema.HowForced)
		if took != 0 {
			t.Errorf("the first force on an ordinary holder took %s", took)
		}
		second, took := force(schema.HowForced)
		if took < time.Second || took > 2*time.Second+50*time.Millisecond {
			t.Errorf("the second took %s", took)
		}
		must(t, second.Close())
		third, took := force(schema.HowTakeover)
		if took != 0 {
			t.Errorf("a forced holder that is dead was given %s", took)
		}
		must(t, third.Release(ctx, "done"))

		// A holder that lets go meanwhile is not waited for any longer.
		force(schema.HowResumed)
		last, _ := force(schema.HowForced)
		go func() {
			time.Sleep(300 * time.Millisecond)
			_ = last.Release(ctx, "done")
		}()
		if _, took := force(schema.HowResumed); took < 300*time.Millisecond || took > 400*time.Millisecond {
			t.Errorf("it let go after 300ms and was waited for %s", took)
		}
	})
}

func TestAClaimThatStandsIsForcedAfterAWhile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := journaltest.NewMemory()
		journaltest.Release(t, journaltest.Open(t, store, "s1"))
		c := schema.Claim{Session: "s1", Epoch: 2, Time: time.Now(), Holder: lease.Self("stands still")}
		header, err := c.Append(nil)
		must(t, err)
		w, err := store.Claim(ctx, "s1", 2, header)
		must(t, err)
		defer w.Release()
		began := time.Now()
		_, err = journal.Open(ctx, store, "s1", journaltest.Options())
		if took := time.Since(began); !errors.Is(err, schema.SessionWriterAmbiguous) || took < lease.Window {
			t.Errorf("opening gives %v after %s", err, took)
		}
		began = time.Now()
		j := journaltest.Force(t, store, "s1")
		if took := time.Since(began); took < time.Second || took > 3*time.Second || j.Epoch() != 3 {
			t.Errorf("epoch %d after %s", j.Epoch(), took)
		}
		if e := lastSeal(t, journaltest.Verify(t, store, "s1")).Evidence; e == nil || e.State != "ambiguous" || !strings.Contains(e.Observed, "not sealed") {
			t.Errorf("the evidence is %+v", e)
		}
	})
}

// What the first claim of a session was passed by is in its log too, though
// there is nothing to take over.
func TestS4AForceOverAClaimAloneIsInTheLog(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := journaltest.NewMemory()
		c := schema.Claim{Session: "s1", Epoch: 1, Time: time.Now(), Holder: lease.Self("stands still")}
		header, err := c.Append(nil)
		must(t, err)
		w, err := store.Claim(ctx, "s1", 1, header)
		must(t, err)
		defer w.Release()
		if j := journaltest.Force(t, store, "s1"); j.How() != schema.HowNew {
			t.Errorf("come by as %s", j.How())
		}
		if e := lastSeal(t, journaltest.Verify(t, store, "s1")).Evidence; e == nil || e.State != "ambiguous" || e.Reason == "" {
			t.Errorf("the evidence is %+v", e)
		}
	})
}

// forcer is a child that takes a session by force whenever it does not have it,
// and writes as long as it has.
func forcer(arg []byte) error {
	f, err := journal.OpenFiles(strings.Trim(string(arg), `"`), false)
	if err != nil {
		return err
	}
	opt := journaltest.Options()
	opt.Force, opt.Reason = true, "it is a duel"
	for {
		j, err := journal.Open(ctx, f, "s1", opt)
		if err == nil {
			journaltest.Say("open %s", j.Head())
			for err == nil {
				if _, err = j.Append(ctx, journaltest.Note("mine")); err == nil {
					journaltest.Say("ack %s", j.Head())
				}
				time.Sleep(time.Millisecond) // a log that all of them can read in no time
			}
			_ = j.Close()
		}
		switch schema.KindOf(err) {
		case schema.SessionWriterLost, schema.SessionWriterActive, schema.SessionWriterAmbiguous:
		default:
			return err
		}
	}
}

// Six processes that always force, on a real store: nothing that any of them
// was told is lost, each gets its turn for a second at least, and the log grows.
func TestThoseWhoForceEachOtherMakeProgress(t *testing.T) {
	length := time.Duration(journaltest.Amount(4, 6, 20)) * time.Second
	store := journaltest.Files(t)
	journaltest.Release(t, journaltest.Open(t, store, "s1"))
	began := time.Now()
	var all []*journaltest.Process
	for range 6 {
		all = append(all, journaltest.Start(t, "forcer", store.Dir()))
	}
	time.Sleep(length) // how long it goes on is what is tested
	for end := time.Now().Add(journaltest.Deadline); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		n := 0 // where the machine is slow, until there were turns
		for _, p := range all {
			for _, line := range p.Lines() {
				if strings.HasPrefix(line, "open ") {
					n++
				}
			}
		}
		if n > 2 {
			break
		}
	}
	var told []schema.Head
	turns, records := 0, 0
	for _, p := range all {
		p.Kill()
		for _, line := range p.Lines() {
			switch word, _, _ := strings.Cut(line, " "); word {
			case "open":
				turns++
			case "ack":
				records++
			case "error":
				t.Errorf("one ended with %s", line)
			}
		}
		told = append(told, p.Acknowledged()...)
	}
	took := time.Since(began)
	if gone := journaltest.Verify(t, store, "s1").Missing(told); len(gone) > 0 {
		t.Errorf("acknowledged and not there: %v", gone)
	}
	segments, err := store.Segments(ctx, "s1")
	must(t, err)
	if most := 3 + int(took/time.Second); len(segments) > most || turns < 2 {
		t.Errorf("in %s there were %d turns and %d segments; want at most %d", took, turns, len(segments), most)
	}
	if records < int(took/time.Second) {
		t.Errorf("in %s they wrote %d records", took, records)
	}
	journaltest.Tried("duel: 6 processes that force, %s, %d turns, %d segments, %d records", took.Round(time.Second), turns, len(segments), records)
}
