package journal_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"steno/journal"
	"steno/journal/journaltest"
	"steno/schema"
)

// together makes appends wait behind one that is under way, and lets go once
// all are there. The results are in their order.
func together(t *testing.T, j *journal.Journal, faults *journaltest.Faults, before func(), appends ...[]journal.Entry) (records [][]journal.Record, errs []error) {
	t.Helper()
	hold := faults.HoldSync(t)
	var wg sync.WaitGroup
	wg.Go(func() { journaltest.Append(t, j, journaltest.Note("under way")) })
	<-hold.Waiting()
	records, errs = make([][]journal.Record, len(appends)), make([]error, len(appends))
	for i, entries := range appends {
		wg.Go(func() { records[i], errs[i] = j.Append(ctx, entries...) })
		for journal.Queued(j) <= i {
			runtime.Gosched()
		}
	}
	before()
	hold.Release()
	wg.Wait()
	return records, errs
}

func TestAppendsThatArriveTogetherShareAWrite(t *testing.T) {
	store, faults := journaltest.Faulty(journaltest.Files(t))
	j := journaltest.Open(t, store, "s1")
	named := journaltest.Note("twice")
	named.ID = journal.NewID()
	writes := 0
	records, errs := together(t, j, faults, func() { writes = faults.Seen(journaltest.Write) },
		[]journal.Entry{journaltest.Note("one"), journaltest.Note("two")},
		[]journal.Entry{journaltest.Result("nobody's", 1, `"x"`)}, // refused by the fold, and no other with it
		[]journal.Entry{journaltest.Call("c1", "read", `{}`)},
		[]journal.Entry{journaltest.Started("c1", 1)}, // behind the call that is not durable yet
		[]journal.Entry{{Type: "no type", Data: []byte("{}")}},
		[]journal.Entry{journaltest.Result("c1", 1, `"x"`)},
		[]journal.Entry{named},
		[]journal.Entry{named}, // has to wait for the first
		[]journal.Entry{journaltest.Note("last")})
	if n := faults.Seen(journaltest.Write) - writes; n != 2 {
		t.Errorf("nine appends took %d writes", n)
	}
	next := uint64(4)
	for i, n := range []uint64{2, 0, 1, 1, 0, 1, 1, 0, 1} {
		if i == 1 && !errors.Is(errs[i], schema.ResultWithoutCall) || i == 4 && !errors.Is(errs[i], schema.InvalidArgs) || i != 1 && i != 4 && errs[i] != nil {
			t.Errorf("append %d gives %v", i, errs[i])
		}
		for _, r := range records[i][:n] {
			if r.Seq != next {
				t.Errorf("append %d has number %d, want %d", i, r.Seq, next)
			}
			next++
		}
	}
	if records[6][0].Seq != records[7][0].Seq {
		t.Error("one id has two numbers")
	}
}

// What a part of a shared write was, each hears for itself.
func TestAppendsThatFailTogether(t *testing.T) {
	for name, c := range map[string]struct {
		arm  func(f *journaltest.Faults, j *journal.Journal)
		fail bool
		want [3]string
	}{
		"the write fails and the roll goes on": {func(f *journaltest.Faults, _ *journal.Journal) { f.FailWrite(1, journaltest.ErrDisk) }, false, [3]string{}},
		"some of it is written, and the roll goes on": {func(f *journaltest.Faults, j *journal.Journal) {
			f.ShortWrite(1, 600, journaltest.ErrDisk)
		}, false, [3]string{}},
		"the write fails and so does the roll": {func(f *journaltest.Faults, _ *journal.Journal) {
			f.FailWrite(1, journaltest.ErrDisk)
			f.FailWrite(2, journaltest.ErrDisk)
		}, true, [3]string{"not_stored", "not_stored", "not_stored"}},
		"the sync fails and so does the roll": {func(f *journaltest.Faults, _ *journal.Journal) {
			f.FailSync(1, journaltest.ErrDisk)
			f.FailSync(2, journaltest.ErrDisk)
		}, true, [3]string{"unknown", "unknown", "unknown"}},
	} {
		t.Run(name, func(t *testing.T) {
			store, faults := journaltest.Faulty(journaltest.Files(t))
			j := journaltest.Open(t, store, "s1")
			records, errs := together(t, j, faults, func() { c.arm(faults, j) },
				[]journal.Entry{journaltest.Note("a"), journaltest.Note("b")}, []journal.Entry{journaltest.Note("c")}, []journal.Entry{journaltest.Note("d")})
			for i, err := range errs {
				if (err != nil) != c.fail || c.fail && fmt.Sprint(schema.AsError(err).Details["outcome"]) != c.want[i] {
					t.Errorf("part %d: %v, %v", i, err, schema.AsError(err))
				}
				if !c.fail && len(records[i]) == 0 {
					t.Errorf("part %d has no records", i)
				}
			}
			if c.fail {
				_, err := j.Append(ctx, journaltest.Note("later"))
				if err == nil || schema.AsError(err).Details["outcome"] != "not_stored" {
					t.Errorf("a later append gives %v", err)
				}
			}
		})
	}
}

// A caller that does not wait any longer ends nobody else's append.
func TestOneCallerLeavesASharedWriteThatWaitsForRoom(t *testing.T) {
	store, faults := journaltest.Faulty(journaltest.Files(t))
	opt := journaltest.Options()
	waits := make(chan struct{})
	var once sync.Once
	opt.Waiting = func(full error) {
		if full != nil {
			once.Do(func() { close(waits) })
		}
	}
	j := journaltest.OpenWith(t, store, "s1", opt)
	limited, leave := context.WithCancel(ctx)
	hold := faults.HoldSync(t)
	var wg sync.WaitGroup
	wg.Go(func() { journaltest.Append(t, j, journaltest.Note("under way")) })
	<-hold.Waiting()
	errs := make([]error, 2)
	wg.Go(func() { _, errs[0] = j.Append(limited, journaltest.Note("leaves")) })
	wg.Go(func() { _, errs[1] = j.Append(ctx, journaltest.Note("stays")) })
	for journal.Queued(j) < 2 {
		runtime.Gosched()
	}
	faults.Fill(0)
	hold.Release()
	<-waits
	leave()
	faults.Empty()
	wg.Wait()
	if errs[1] != nil {
		t.Errorf("who stays gets %v", errs[1])
	}
}

// A batch of which the beginning is recorded goes on only at the end of the log,
// and what others are about to write is before it.
func TestTheRestOfABatchDoesNotStandBehindOthers(t *testing.T) {
	store, faults := journaltest.Faulty(journaltest.Files(t))
	j := journaltest.Open(t, store, "s1")
	first := journaltest.Note("first")
	first.ID = journal.NewID()
	journaltest.Append(t, j, first)
	_, errs := together(t, j, faults, func() {},
		[]journal.Entry{journaltest.Note("of another")},
		[]journal.Entry{first, journaltest.Note("rest")})
	if errs[0] != nil || !errors.Is(errs[1], schema.AlreadyExists) {
		t.Errorf("got %v", errs)
	}
}

// Whoever closes a store closes no writer: those go on, each with its own syncs.
func TestWritersOutliveTheirStore(t *testing.T) {
	t.Parallel()
	looks := journaltest.Files(t)
	store, err := journal.OpenFiles(looks.Dir(), false)
	must(t, err)
	var work sync.WaitGroup
	var under atomic.Int64
	all := make(chan struct{})
	opt := journaltest.Options()
	opt.Create = true
	for i := range 8 {
		j, err := journal.Open(ctx, store, fmt.Sprint("s", i), opt)
		must(t, err)
		work.Go(func() {
			defer j.Close()
			for n := range 60 {
				if _, err := j.Append(ctx, journaltest.Note("x")); err != nil {
					t.Errorf("append %d of session %d: %v", n, i, err)
					return
				}
				if n == 10 && under.Add(1) == 8 {
					close(all)
				}
			}
		})
	}
	select {
	case <-all: // the log is in use
	case <-time.After(journaltest.Deadline):
	}
	must(t, store.Close())
	work.Wait()
	for i := range 8 {
		if l := journaltest.Verify(t, looks, fmt.Sprint("s", i)); len(l.Events) != 62 {
			t.Errorf("session %d has %d events", i, len(l.Events))
		}
	}
}
