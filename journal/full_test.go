package journal_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"steno/journal"
	"steno/journal/journaltest"
	"steno/lease"
	"steno/schema"
)

// A full disk is waited for, and its end is not needed to stop waiting.
func TestAFullDiskIsWaitedFor(t *testing.T) {
	for name, stop := range map[string]string{"until there is room": "room", "until its context ends": "context", "until the journal is closed": "close",
		"until the journal is released": "release"} {
		t.Run(name, func(t *testing.T) {
			store, faults := journaltest.Faulty(journaltest.Files(t))
			opt := journaltest.Options()
			waits, goesOn := make(chan error, 1), make(chan struct{}, 1)
			opt.Waiting = func(why error) {
				if why == nil {
					goesOn <- struct{}{}
				} else {
					waits <- why
				}
			}
			j := journaltest.OpenWith(t, store, "s1", opt)
			other := journaltest.Open(t, journaltest.Files(t), "s1")
			journaltest.Append(t, j, journaltest.Note("acknowledged"))
			head := j.Head()
			faults.Fill(40)
			mine, cancel := context.WithCancel(ctx)
			defer cancel()
			done := make(chan error, 2)
			go func() {
				_, err := j.Append(mine, journaltest.Note("first"))
				done <- err
			}()
			if why := <-waits; !lease.IsFull(why) || !lease.IsFull(j.Waiting()) || j.Err() != nil {
				t.Errorf("it waits for %v", why)
			}
			// What does not write goes on meanwhile, and so do other journals.
			j.View(func(journal.State) {})
			if j.Head() != head {
				t.Errorf("the head is %v", j.Head())
			}
			journaltest.Append(t, other, journaltest.Note("elsewhere"))
			go func() { // one that waits for the one that waits
				_, err := j.Append(mine, journaltest.Note("second"))
				done <- err
			}()
			var err error
			switch stop {
			case "room":
				faults.Empty()
			case "context":
				cancel()
			case "close":
				err = j.Close()
			case "release":
				err = j.Release(ctx, "done")
			}
			if stop == "release" != (err != nil) {
				t.Errorf("%s gives %v", stop, err)
			}
			for range 2 {
				err := <-done
				if stop == "room" {
					must(t, err)
				} else if !errors.Is(err, schema.LogWriteFailed) || schema.AsError(err).Details["outcome"] != "not_stored" {
					t.Errorf("got %v with %v", err, schema.AsError(err).Details)
				}
			}
			<-goesOn
			if j.Waiting() != nil {
				t.Errorf("it still waits for %v", j.Waiting())
			}
			faults.Empty()
			want := int(head.Seq) + 3
			if stop != "room" {
				must(t, j.Close())
				j = journaltest.Open(t, store, "s1")
				want = int(head.Seq) + 1
			}
			l := journaltest.Verify(t, store, "s1")
			if gone := l.Missing([]schema.Head{head, j.Head()}); len(gone) > 0 || len(l.Events) != want {
				t.Errorf("%d events, want %d; missing are %v", len(l.Events), want, gone)
			}
			if len(l.Findings) != 1 || l.Findings[0].Kind != schema.TornTail {
				t.Errorf("the findings are %v", l.Findings)
			}
		})
	}
}

// A value that is kept beside the log waits for room like its line does, and the
// segment is not given up for it.
func TestABlobWaitsForRoom(t *testing.T) {
	store, faults := journaltest.Faulty(journaltest.Files(t))
	opt := journaltest.Options()
	opt.Waiting = func(why error) {
		if why != nil {
			faults.Empty()
		}
	}
	j := journaltest.OpenWith(t, store, "s1", opt)
	text := strings.Repeat("too long for a line ", 40_000)
	faults.Fill(100)
	r := journaltest.Append(t, j, journaltest.Note(text))[0]
	if j.Epoch() != 1 || j.Waiting() != nil {
		t.Errorf("the journal has epoch %d, waits for %v", j.Epoch(), j.Waiting())
	}
	whole, err := j.Whole(ctx, r.Data)
	if err != nil || len(whole) < len(text) {
		t.Errorf("%d bytes are read back, %v", len(whole), err)
	}
	// And where nobody waits any longer the journal is as it was.
	opt.Waiting = nil
	stopped, cancel := context.WithCancel(ctx)
	cancel()
	j = journaltest.OpenWith(t, store, "s2", opt)
	faults.Fill(100)
	_, err = j.Append(stopped, journaltest.Note(text+"!"))
	if !errors.Is(err, schema.LogWriteFailed) || schema.AsError(err).Details["outcome"] != "not_stored" || j.Err() != nil {
		t.Errorf("got %v with %v; the journal's error is %v", err, schema.AsError(err).Details, j.Err())
	}
	faults.Empty()
	journaltest.Append(t, j, journaltest.Note("goes on"))
}
