package journal_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"steno/journal"
	"steno/journal/journaltest"
	"steno/lease"
	"steno/schema"
)

// smallDisk is a file system of so many KiB. Where nothing may be mounted,
// TestAFullDiskIsWaitedFor still shows what a full disk does.
func smallDisk(t *testing.T, size int) string {
	t.Helper()
	dir := t.TempDir()
	switch err := unix.Mount("steno-test", dir, "tmpfs", 0, fmt.Sprintf("size=%dk,mode=0700", size)); {
	case err == unix.EPERM:
		journaltest.Lacks(t, "the right to mount")
	case err != nil:
		t.Fatal(err)
	}
	t.Cleanup(func() { must(t, unix.Unmount(dir, unix.MNT_DETACH)) })
	return dir
}

// fill leaves room for so many bytes on a disk that nobody else writes.
func fillDisk(t *testing.T, dir string, free int) (filler string) {
	t.Helper()
	filler = filepath.Join(dir, "filler")
	f, err := os.Create(filler)
	must(t, err)
	defer f.Close()
	block := make([]byte, 4096)
	size := 0
	for err == nil {
		var n int
		n, err = f.Write(block)
		size += n
	}
	if !lease.IsFull(err) {
		t.Fatal(err)
	}
	must(t, f.Truncate(int64(max(0, size-free))))
	return filler
}

// At every fill level of a real disk an append is recorded, or waits and is
// recorded once there is room, and nothing looks damaged at any time.
//
// With a commit log the same, whose own files are there before: an append then
// finds no room in its segment, nor a next file for the log.
func TestEveryFillLevelOfARealDisk(t *testing.T) {
	journaltest.Either(t, everyFillLevel)
}

func everyFillLevel(t *testing.T, logged bool) {
	dir := smallDisk(t, map[bool]int{true: 128, false: 64}[logged])
	waited, fitted := 0, 0
	for free := 0; free <= 24<<10; free += 512 {
		store, faults := journaltest.FaultyEither(journaltest.FilesIn(t, filepath.Join(dir, "store")), logged)
		opt := journaltest.Options()
		waits := make(chan error, 1)
		opt.Waiting = func(why error) {
			if why != nil {
				waits <- why
			}
		}
		j, err := journal.Open(ctx, store, "s1", opt)
		must(t, err)
		heads := []schema.Head{journaltest.Append(t, j, journaltest.Note(strings.Repeat("a", free%4096)))[0].Event.Head()}
		if logged { // the first file is in use, and the keeper makes the next
			for late := time.Now().Add(journaltest.Deadline); faults.Seen(journaltest.LogMake) < 8; time.Sleep(time.Millisecond) {
				if time.Now().After(late) {
					t.Fatal("no second file of the log is made")
				}
			}
		}
		filler := fillDisk(t, dir, free)
		type answer struct {
			records []journal.Record
			err     error
		}
		done := make(chan answer, 1)
		go func() {
			r, err := j.Append(ctx, journaltest.Note(strings.Repeat("b", 3000)), journaltest.Note(strings.Repeat("c", 3000)), journaltest.Note("d"))
			done <- answer{r, err}
		}()
		var a answer
		select {
		case a = <-done:
			fitted++
		case why := <-waits:
			waited++
			if !lease.IsFull(why) || store.Writable(ctx) == nil && free < 4096 {
				t.Errorf("with %d bytes free it waits for %v", free, why)
			}
			// A reader sees what was acknowledged, and maybe a torn tail.
			l := journaltest.Verify(t, store, "s1")
			if gone := l.Missing(heads); len(gone) > 0 || l.Epochs != 1 || l.Count(schema.VoidClaim) > 0 {
				t.Errorf("with %d bytes free, missing are %v, findings %v", free, gone, l.Findings)
			}
			must(t, os.Remove(filler))
			a = <-done
		}
		if a.err != nil || len(a.records) != 3 {
			t.Fatalf("with %d bytes free: %v", free, a.err)
		}
		for _, r := range a.records {
			heads = append(heads, r.Event.Head())
		}
		if err := os.Remove(filler); err != nil && !os.IsNotExist(err) {
			t.Fatal(err)
		}
		must(t, j.Close())
		next, err := journal.Open(ctx, store, "s1", journaltest.Options())
		must(t, err)
		heads = append(heads, journaltest.Append(t, next, journaltest.Note("on"))[0].Event.Head())
		must(t, next.Close())
		l := journaltest.Verify(t, store, "s1")
		if gone := l.Missing(heads); len(gone) > 0 {
			t.Errorf("with %d bytes free: acknowledged and not there: %v", free, gone)
		}
		if l.Count(schema.TornTail) != len(l.Findings) || len(l.Findings) > 1 {
			t.Errorf("with %d bytes free the findings are %v", free, l.Findings)
		}
		must(t, store.Close())
		must(t, os.RemoveAll(filepath.Join(dir, "store")))
	}
	if waited < 5 || fitted < 5 {
		t.Errorf("%d appends waited, %d fitted", waited, fitted)
	}
}

// A store that was put on read-only media while it is open says so, before
// anybody claims anything in it.
func TestAStoreThatBecameReadOnlySaysSo(t *testing.T) {
	dir := smallDisk(t, 64)
	store := journaltest.FilesIn(t, dir)
	j, err := journal.Open(ctx, store, "s1", journaltest.Options())
	must(t, err)
	must(t, j.Close())
	must(t, store.Writable(ctx))
	must(t, unix.Mount("", dir, "", unix.MS_REMOUNT|unix.MS_RDONLY, ""))
	err = store.Writable(ctx)
	if want := syscall.EROFS; schema.KindOf(err) != schema.LogWriteFailed || !strings.Contains(fmt.Sprint(err), want.Error()) {
		t.Errorf("got %v", err)
	}
	must(t, unix.Mount("", dir, "", unix.MS_REMOUNT, ""))
	must(t, store.Writable(ctx))
}
