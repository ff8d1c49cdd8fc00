package journal_test

import (
	"bytes"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"steno/journal"
	"steno/journal/journaltest"
)

// What a failed sync leaves in the page cache alone, and who comes upon it.
var cached = []struct {
	name string
	do   func(c *cutter)
}{
	{"a roll", func(c *cutter) {
		j := c.open()
		c.append(j)
		c.faults.CacheSync(1, journaltest.ErrDisk)
		c.append(j)
		c.append(j)
	}},
	{"a take-over", func(c *cutter) {
		j := c.open()
		c.append(j)
		c.faults.CacheSync(1, journaltest.ErrDisk)
		c.faults.FailSync(2, journaltest.ErrDisk) // so it cannot go on
		if _, err := j.Append(ctx, journaltest.Note("in the cache")); err == nil {
			c.t.Error("it has gone on")
		}
		must(c.t, j.Close())
		c.append(c.open())
	}},
	{"a roll over a seal", func(c *cutter) {
		j := c.open()
		c.append(j)
		c.faults.FailSync(1, journaltest.ErrDisk)
		// Behind it the claim, what is settled, and the names.
		c.faults.CacheSync(6, syscall.ENOSPC)
		c.append(j)
		if j.Epoch() != 3 {
			c.t.Errorf("the seal did not fail: the epoch is %d", j.Epoch())
		}
	}},
	{"a seal, over a writer that was superseded", func(c *cutter) {
		j := c.open()
		c.append(j)
		c.faults.CacheSync(5, journaltest.ErrDisk) // of the seal
		opt := journaltest.Options()
		opt.Force, opt.Reason = true, "the test says so"
		if _, err := journal.Open(ctx, c.store, "s1", opt); err == nil {
			c.t.Error("the seal did not fail")
		}
		c.faults.At(journaltest.Written, 1, func() { // and not synced
			c.append(c.open())
			c.cut("before the superseded writer knows")
		})
		if _, err := j.Append(ctx, journaltest.Note("by the first")); err == nil {
			c.t.Error("the superseded writer has acknowledged")
		}
	}},
	{"a blob that is there", func(c *cutter) {
		j := c.open()
		must(c.t, os.Mkdir(blobsOf(c.store), 0o700))
		b := []byte(journaltest.Large(1, 300_000))
		must(c.t, os.WriteFile(filepath.Join(blobsOf(c.store), blobName(1)), b, 0o600)) // somebody puts it back
		c.faults.CacheSync(1, journaltest.ErrDisk)
		if _, err := j.Append(ctx, large(1)); err == nil {
			c.t.Error("its sync did not fail")
		}
		if now, err := os.ReadFile(filepath.Join(blobsOf(c.store), blobName(1))); err != nil || !bytes.Equal(now, b) {
			c.t.Errorf("it cannot be read from the cache: %v", err)
		}
		r, err := j.Append(ctx, large(1))
		must(c.t, err)
		c.acknowledged = append(c.acknowledged, r[0].Head())
		c.append(j)
	}},
}

// The same with a commit log, whose keeper syncs the segments, or whoever ends.
var cachedBehindALog = []struct {
	name string
	do   func(c *cutter)
}{
	{"a roll", func(c *cutter) {
		j := c.open()
		c.append(j)
		c.faults.CacheSync(1, journaltest.ErrDisk)
		for n := 0; j.Epoch() == 1; n++ {
			if c.append(j); n == 1000 {
				c.t.Fatal("it has not rolled")
			}
		}
		c.append(j)
	}},
	{"a take-over", func(c *cutter) {
		j := c.open()
		c.append(j)
		c.append(j)
		c.faults.CacheSync(1, journaltest.ErrDisk)
		must(c.t, j.Close())
		c.append(c.open())
	}},
}

// After a failed sync the page cache shows what the disk does not have, and the
// next sync answers success. Whoever reads on from there drops the pages first:
// nothing that is acknowledged stands on them.
func TestPowerCutAfterTheCacheHasLied(t *testing.T) {
	journaltest.Either(t, func(t *testing.T, logged bool) {
		work := cached
		if logged {
			work = cachedBehindALog
		}
		for _, w := range work {
			c := newCutterWith(t, logged)
			c.full = func() {}
			c.everywhere(60)
			w.do(c)
			c.end()
			if len(c.wrong) > 0 {
				t.Errorf("%s: %d of %d, the first: %s", w.name, len(c.wrong), c.all, c.wrong[0])
			}
			if c.all < 20*len(journaltest.Cuts) {
				t.Errorf("%s: there were only %d images", w.name, c.all)
			}
			journaltest.Tried("power, the cache has lied to %s, commit log %t: %s", w.name, logged, c.cuts)
		}
	})
}

// Negative control: without the drop the same is noticed each time.
func TestWithoutTheDropTheCacheIsBelieved(t *testing.T) {
	journaltest.Either(t, func(t *testing.T, logged bool) {
		work := cached
		if logged {
			work = cachedBehindALog
		}
		for _, w := range work {
			c := newCutterWith(t, logged)
			c.full = func() {}
			c.faults.LeaveOutDrop()
			w.do(c)
			c.end()
			if len(c.wrong) == 0 {
				t.Errorf("%s: the pages were not dropped, and all is there after a power cut", w.name)
			} else {
				t.Logf("%s: %s", w.name, c.wrong[0])
			}
		}
	})
}
