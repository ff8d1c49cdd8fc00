package journal_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"steno/journal"
	"steno/journal/journaltest"
	"steno/schema"
)

// A disk that really fails: the file system lies on a loop device whose sparse
// file lies on a tmpfs that fills up. After the failure the page cache shows
// what is not on the disk, and the next sync answers success. For the one
// request at the edge the loop device reports success and stores it in part:
// so of what was acknowledged before the failure the last may be gone, and a
// head that was kept says so. Whatever else is gone is our fault, above all what
// the same process has kept or written again when there was room.
//
// Blocks are as large as pages of the tmpfs, so that a request begins in what
// is not stored yet if the one before it was cut off: the edge is one request.
// Where a writer is to go on, its lines are blocks, so that there is no edge: a
// roll refuses to go on behind a line that the disk has lost.
// The journal of the file system has its room beforehand; without it the file
// system would become read-only, and nothing could go on.
//
// With a commit log it is the same, but the sync is that of its keeper, in the
// background, or of a log that is made, and what the disk has lied about may be
// all lines that such a sync was for.
func TestRealSyncFails(t *testing.T) {
	if why := imagesMissing(); why != "" {
		journaltest.Tried("a real failed sync: SKIPPED: %s", why)
		return
	}
	seed := journaltest.Seed(t)
	journaltest.Either(t, func(t *testing.T, logged bool) { realSyncFails(t, seed, logged) })
}

func realSyncFails(t *testing.T, seed uint64, logged bool) {
	var sum syncRound
	rounds := 0
	// A full disk is most often found by a sync; where it was found by a write,
	// other rounds follow.
	for least := journaltest.Amount(1, 10, 200); rounds < least || (sum.failed == 0 || sum.rolled == 0) && rounds < least+30; rounds++ {
		s := syncRound{t: t, logged: logged, goesOn: rounds%2 == 0}
		s.run(journaltest.Rand(seed, "full", rounds, logged).IntN)
		sum.told, sum.failed, sum.lied, sum.rolled = sum.told+s.told, sum.failed+s.failed, sum.lied+s.lied, sum.rolled+s.rolled
		if t.Failed() {
			t.Logf("in round %d", rounds)
			break
		}
	}
	if (sum.failed == 0 || sum.rolled == 0) && !t.Failed() {
		t.Errorf("%d syncs have failed, and %d records came after a roll", sum.failed, sum.rolled)
	}
	journaltest.Tried("a real failed sync, commit log %t: %d rounds, %d failed in a sync, %d acknowledged records, %d of them after a roll, %d gone since the disk had lied, each missed with its head, seed %d",
		logged, rounds, sum.failed, sum.told, sum.rolled, sum.lied, seed)
}

// syncRound fills one disk.
type syncRound struct {
	t                          *testing.T
	logged                     bool
	goesOn                     bool // there is room again while the writer waits, and not after it has given up
	told, failed, lied, rolled int
}

func (s *syncRound) run(intN func(int) int) {
	t := s.t
	small := t.TempDir()
	journaltest.Run(t, "mount", "-t", "tmpfs", "-o", "size=20m", "steno-test", small)
	defer journaltest.Run(t, "umount", "--lazy", small)
	image, filler := filepath.Join(small, "image"), filepath.Join(small, "filler")
	makeImage(t, image, "mkfs.ext4", []string{"-q", "-F", "-b", "4096", "-J", "size=4", "-E", "lazy_itable_init=0"}, 24)
	must(t, mounted(t, "ext4", image, func(dir string) {
		f, err := os.Create(filepath.Join(dir, "journal"))
		must(t, err)
		for n := range int64(500) { // each sync writes some blocks of the 1,024 of the journal
			_, err := f.WriteAt([]byte{1}, n*4096)
			must(t, err)
			must(t, f.Sync())
		}
		must(t, f.Close())
	}))
	full := 7<<20 + intN(4<<20)
	if s.goesOn { // its lines are short
		full = 11<<20 + intN(1<<20)
	}
	must(t, os.WriteFile(filler, make([]byte, full), 0o600))
	var acknowledged []schema.Head
	var edge schema.Head // the last that was acknowledged before the failure
	corrupt := false     // so the same process has found it
	must(t, mounted(t, "ext4", image, func(dir string) {
		store, err := journal.OpenFiles(filepath.Join(dir, "store"), true)
		must(t, err)
		if !s.logged {
			store = store.WithoutLog()
		}
		defer store.Close()
		opt := journaltest.Options()
		opt.Waiting = func(full error) {
			if full != nil && s.goesOn {
				_ = os.Remove(filler)
			}
		}
		j, err := journal.Open(ctx, store, "s1", opt)
		must(t, err)
		acknowledged = append(acknowledged, j.Head())
		text := 3000
		for err == nil && s.rolled < 5 {
			var records []journal.Record
			if !s.goesOn {
				text = 1000 + intN(60000)
			}
			limited, cancel := context.WithTimeout(ctx, time.Second) // nobody makes room meanwhile
			records, err = j.Append(limited, journaltest.Note(fmt.Sprintf("%0*d", text, 1)))
			cancel()
			if s.goesOn && err == nil { // the next line ends where a block does
				segments, err := store.Segments(ctx, "s1")
				must(t, err)
				line := len(records[0].Line) + 1
				over := (int(segments[len(segments)-1].Size) + line) % 4096
				text = 1 + (text-over+2*4096-1)%4096
			}
			for _, e := range records {
				if j.Epoch() > 1 {
					s.rolled++
				}
				acknowledged = append(acknowledged, e.Head())
			}
			if err == nil && j.Epoch() == 1 {
				edge = j.Head()
			}
		}
		if errors.Is(err, schema.SyncFailed) || s.rolled > 0 {
			s.failed++
		}
		t.Logf("after %d records: %v", len(acknowledged), err)
		must(t, j.Close())
		_ = os.Remove(filler) // there is room again
		j, err = journal.Open(ctx, store, "s1", journaltest.Options())
		if err != nil { // it may take a new mount
			t.Log(err)
			corrupt = errors.Is(err, schema.CorruptLogLine) || errors.Is(err, schema.TailSuspect)
			return
		}
		acknowledged = append(acknowledged, j.Head())
		if records, err := j.Append(ctx, journaltest.Note("there is room")); err == nil {
			acknowledged = append(acknowledged, records[0].Head())
		}
		must(t, j.Close())
	}))
	s.told = len(acknowledged)
	must(t, mounted(t, "ext4", image, func(dir string) { // from the disk
		store, err := journal.OpenFiles(filepath.Join(dir, "store"), true)
		must(t, err)
		if !s.logged {
			store = store.WithoutLog()
		}
		defer store.Close()
		l, err := journaltest.Read(store, "s1", journal.ScanOptions{})
		must(t, err)
		gone := l.Missing(acknowledged)
		s.lied = len(gone)
		for i, h := range gone {
			to, err := journaltest.Read(store, "s1", journal.ScanOptions{Head: h})
			if must(t, err); to.FirstError == nil {
				t.Errorf("%v is gone, and whoever has kept it is not told", h)
			}
			// Nobody has lost what came before, nor what is in no such sync.
			if last := gone[len(gone)-1]; h.Epoch != edge.Epoch || h.Seq != gone[0].Seq+uint64(i) || !s.logged && last != edge {
				t.Errorf("%v are gone; %v was the last before the disk was full", gone, edge)
			}
		}
		// A later line may say that the one that is gone was durable: then it is
		// damage, of that line and of no other.
		for _, f := range l.Findings {
			if f.Severity == schema.SeverityError && (len(gone) == 0 || f.Segment != edge.Epoch || f.LastGoodSeq != gone[0].Seq-1) {
				t.Errorf("gone are %v, and damaged is %+v", gone, f)
			}
		}
		if corrupt && l.FirstError == nil {
			t.Error("the process that had written saw damage that is not on the disk")
		}
		if l.FirstError == nil {
			after(t, store, nil, func() string { return "after all" })
		}
		if t.Failed() {
			journaltest.Keep(t, dir)
		}
	}))
}
