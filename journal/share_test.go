package journal_test

import (
	"bytes"
	"fmt"
	"strings"
	"sync"
	"testing"

	"steno/journal"
	"steno/journal/journaltest"
	"steno/schema"
)

// sharing lets two sessions of one process write into one log, whose files are
// used again and again, and cuts the power now and then. unsynced leaves the
// syncs of the segments out.
func sharing(t *testing.T, seed uint64, appends int, unsynced bool) (cuts, told, lost int, reused bool) {
	t.Helper()
	store, faults := journaltest.FaultyLog(journaltest.Files(t))
	sessions := []string{"s1", "s2"}
	r, at := journaltest.Rand(seed, "sharing"), journaltest.Rand(seed, "cuts")
	opt := journaltest.Options()
	var mu sync.Mutex
	heads := map[string][]schema.Head{}
	var open []*journal.Journal
	for i, session := range sessions {
		j, err := journal.Open(ctx, store, session, opt)
		must(t, err)
		defer func() { open[i].Close() }()
		open, heads[session] = append(open, j), []schema.Head{j.Head()}
	}
	if unsynced {
		faults.LeaveOutFileSync()
	}
	faults.Each(func(point string) {
		mu.Lock()
		defer mu.Unlock()
		if t.Failed() || at.IntN(8) > 0 {
			return
		}
		img := faults.Disk(t, store).Random(at)
		for path, b := range img {
			reused = reused || strings.Contains(path, "log-") && bytes.Contains(b, []byte(" 2 0 0 s"))
		}
		image := img.Files(t)
		cuts++
		for _, session := range sessions {
			l, err := journaltest.Read(image, session, journal.ScanOptions{})
			must(t, err)
			gone := l.Missing(heads[session])
			if lost += len(gone); !unsynced && (len(gone) > 0 || l.FirstError != nil) {
				journaltest.Keep(t, image.Dir())
				t.Errorf("cut %d, at %s: session %s: missing %v, %v", cuts, point, session, gone, l.FirstError)
			}
		}
		must(t, image.Close())
	})
	for range appends {
		i := r.IntN(2)
		if !unsynced && r.IntN(40) == 0 {
			faults.CacheSync(1, journaltest.ErrDisk)
		}
		records, err := open[i].Append(ctx, journaltest.Note(fmt.Sprintf("%0*d", 1+r.IntN(900), 1)))
		head := open[i].Head()
		for try := 0; err != nil; try++ { // the roll has run into the next failure
			_ = open[i].Close()
			if try == 5 {
				t.Fatal(err)
			}
			var j *journal.Journal
			if j, err = journal.Open(ctx, store, sessions[i], opt); err == nil {
				open[i], head = j, j.Head()
			}
		}
		if len(records) > 0 {
			head = records[0].Head()
		}
		mu.Lock()
		heads[sessions[i]] = append(heads[sessions[i]], head)
		told++
		mu.Unlock()
	}
	faults.Each(nil)
	mu.Lock()
	defer mu.Unlock()
	return cuts, told, lost, reused
}

func TestPowerCutOfSessionsThatShareALog(t *testing.T) {
	t.Parallel()
	seed := journaltest.Seed(t)
	cuts, told, _, reused := sharing(t, seed, journaltest.Amount(120, 600, 6000), false)
	if !reused {
		t.Error("no file of the log was used again")
	}
	journaltest.Tried("power, two sessions that share a log: %d cuts, %d acknowledged records, seed %d", cuts, told, seed)
}

// Where a file is used again without a sync of the segments before, something is lost.
func TestPowerCutNoticesAReuseBeforeTheSync(t *testing.T) {
	t.Parallel()
	seed := journaltest.Seed(t)
	cuts, told, lost, _ := sharing(t, seed, 120, true)
	if lost == 0 {
		t.Errorf("nothing was lost in %d cuts", cuts)
	}
	journaltest.Tried("power, a log that is used again too soon: %d cuts, %d acknowledged records, %d times one was gone", cuts, told, lost)
}

// Behind a writer_released nobody looks into the log. So where that line has
// reached the disk, those before it have.
func TestPowerCutWhileASessionIsReleased(t *testing.T) {
	t.Parallel()
	seed := journaltest.Seed(t)
	store, faults := journaltest.FaultyLog(journaltest.Files(t))
	j, err := journal.Open(ctx, store, "s1", journaltest.Options())
	must(t, err)
	defer j.Close()
	var told []schema.Head
	for range 3 {
		told = append(told, journaltest.Append(t, j, journaltest.Note(strings.Repeat("x", 700)))[0].Head())
	}
	cuts := 0
	faults.At(journaltest.Written, 1, func() {
		disk, r := faults.Disk(t, store), journaltest.Rand(seed, "released")
		for ; cuts < 100 && !t.Failed(); cuts++ {
			image := disk.Random(r).Files(t)
			after(t, image.WithoutLog(), told, func() string {
				journaltest.Keep(t, image.Dir())
				return fmt.Sprint("cut ", cuts)
			})
		}
	})
	journaltest.Release(t, j)
	if cuts < 100 {
		t.Errorf("the power was cut only %d times", cuts)
	}
}
