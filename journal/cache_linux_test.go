package journal_test

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"steno/journal"
	"steno/journal/journaltest"
	"steno/lease"
	"steno/schema"
)

// The same with the page cache of a real kernel, over a disk that fails one
// write of data and says so: the roll that follows within the same append, and
// the take-over of a writer that could not roll. What was acknowledged is
// there when the disk is mounted anew; without the drop it is not.
//
// With a commit log the append is durable there, and the write that fails is the
// one of the segment in the background: the roll comes with a later append, and
// whoever takes over copies the line from the log.
func TestRealSyncFailsAndTheCacheIsNotBelieved(t *testing.T) {
	if why := imagesMissing(); why != "" {
		journaltest.Tried("a real failed sync and the page cache: SKIPPED: %s", why)
		return
	}
	system := imageSystems[0]
	if _, err := exec.LookPath(system.mkfs); err != nil {
		journaltest.Tried("a real failed sync and the page cache: SKIPPED: no %s here", system.mkfs)
		return
	}
	journaltest.Either(t, func(t *testing.T, logged bool) {
		var lied [2]int
		for n, drop := range []bool{true, false} {
			for _, roll := range []bool{true, false} {
				wrong := cacheOnDisk(t, roll, drop, logged)
				// A kernel may write by itself what it was told to have lost, though
				// not time after time.
				for try := 0; try < 10 && !drop && wrong == "" && !t.Failed(); try++ {
					wrong = cacheOnDisk(t, roll, drop, logged)
				}
				if drop && wrong != "" {
					t.Errorf("roll %t: %s", roll, wrong)
				}
				if !drop && wrong == "" {
					t.Errorf("roll %t: the pages were not dropped, and nothing is missing", roll)
				}
				if wrong != "" {
					lied[n]++
				}
			}
		}
		journaltest.Tried("a real failed sync and the page cache, commit log %t: a roll and a take-over, %d of 2 lost something; without the drop %d of 2", logged, lied[0], lied[1])
	})
}

// cacheOnDisk says what is wrong, after a mount, with a log whose writer had
// one write fail.
func cacheOnDisk(t *testing.T, roll, drop, logged bool) (wrong string) {
	t.Helper()
	system := imageSystems[0]
	image := filepath.Join(journaltest.TempDir(t), "image")
	makeImage(t, image, system.mkfs, system.args, system.megabytes)
	base, err := os.ReadFile(image)
	must(t, err)
	device := journaltest.MountDevice(t, base, func() bool { return false })
	var acknowledged []schema.Head
	must(t, mounted(t, system.name, device.Path, func(dir string) {
		files, err := journal.OpenFiles(filepath.Join(dir, "store"), true)
		must(t, err)
		if !logged {
			files = files.WithoutLog()
		}
		defer files.Close()
		faults := &lease.Faults{LogSize: 16 << 10} // so that a file is soon full, and the segment synced
		var noRoll atomic.Bool
		faults.Write = func(f *os.File, b []byte) (int, error) {
			if noRoll.Load() && bytes.Contains(b, []byte(`"epoch":2`)) {
				return 0, journaltest.ErrDisk
			}
			return f.Write(b)
		}
		if !drop {
			faults.Drop = func(*os.File) error { return nil }
		}
		store := files.WithFaults(faults)
		write := func(j *journal.Journal, text string) error {
			r, err := j.Append(ctx, journaltest.Note(text))
			if err == nil {
				acknowledged = append(acknowledged, r[0].Head())
			}
			return err
		}
		j, err := journal.Open(ctx, store, "s1", journaltest.Options())
		must(t, err)
		must(t, write(j, "before"))
		var failed atomic.Int64
		device.Fail(func(data []byte) bool {
			return bytes.Contains(data, []byte("the disk fails here")) && !bytes.Contains(data, []byte("steno-log ")) && failed.Add(1) == 1
		})
		noRoll.Store(!roll)
		// Longer than a page, so that no later line is in the page that is not stored.
		if err := write(j, "the disk fails here"+strings.Repeat(" ", 6000)); roll || logged {
			must(t, err)
		} else if err == nil {
			t.Error("it has gone on")
		}
		for late := time.Now().Add(journaltest.Deadline); roll && j.Epoch() == 1 && !t.Failed(); { // until the log has the segment synced
			if must(t, write(j, fmt.Sprintf("%0*d", 2000, 1))); time.Now().After(late) {
				t.Error("it has not rolled")
			}
		}
		must(t, j.Close())
		if failed.Load() == 0 {
			t.Error("no write has failed")
		}
		noRoll.Store(false)
		j, err = journal.Open(ctx, store, "s1", journaltest.Options())
		must(t, err)
		acknowledged = append(acknowledged, j.Head())
		must(t, write(j, "behind"))
		must(t, j.Close())
	}))
	must(t, mounted(t, system.name, device.Path, func(dir string) { // from the disk
		store, err := journal.OpenFiles(filepath.Join(dir, "store"), true)
		must(t, err)
		defer store.Close()
		l, err := journaltest.Read(store, "s1", journal.ScanOptions{})
		must(t, err)
		if gone := l.Missing(acknowledged); l.FirstError != nil || len(gone) > 0 {
			wrong = fmt.Sprintf("acknowledged and not there are %v; the log: %v", gone, l.FirstError)
		}
	}))
	device.Unmount(t)
	return wrong
}
