package journal_test

import (
	"fmt"
	"testing"

	"steno/journal"
	"steno/journal/journaltest"
	"steno/schema"
)

// points are all places at which the power may be cut.
var points = []string{journaltest.Write, journaltest.Sync, journaltest.Claimed, journaltest.Written, journaltest.Synced, journaltest.Checked}

// cutter takes the power away at every point of a workload, in every way, and
// notes what is then wrong with the log.
type cutter struct {
	t            *testing.T
	store        *journal.Files
	faults       *journaltest.Faults
	acknowledged []schema.Head
	full         func() // called once, when an append finds the disk full
	handed       bool   // an append is under way
	cuts                // as many images
	wrong        []string
}

func newCutter(t *testing.T) *cutter {
	c := &cutter{t: t}
	c.store, c.faults = journaltest.Faulty(journaltest.Files(t))
	return c
}

// everywhere arms all points; a point is passed n times at most.
func (c *cutter) everywhere(n int) {
	for _, point := range points {
		for i := 1; i <= n; i++ {
			c.faults.At(point, i, func() { c.cut(fmt.Sprintf("%s %d", point, i)) })
		}
	}
}

func (c *cutter) cut(where string) {
	disk := c.faults.Disk(c.t, c.store)
	bytes, names := disk.Lost()
	for _, cut := range journaltest.Cuts {
		c.add(c.handed, bytes, names)
		image, faults := journaltest.Faulty(disk.Cut(cut).Files(c.t))
		faults.LeaveOutSync() // the image itself need not last
		j, err := journal.Open(ctx, image, "s1", journaltest.Options())
		if err != nil {
			c.wrong = append(c.wrong, fmt.Sprintf("%s, %+v: the session cannot be opened: %v", where, cut, err))
			continue
		}
		if err := j.Close(); err != nil {
			c.t.Fatal(err)
		}
		if l, err := journaltest.Read(image, "s1", journal.ScanOptions{Blobs: true}); err != nil || l.FirstError != nil {
			c.wrong = append(c.wrong, fmt.Sprintf("%s, %+v: it is read with %v, %v", where, cut, err, l.FirstError))
			continue
		}
		l := journaltest.Verify(c.t, image, "s1")
		if gone := l.Missing(c.acknowledged); len(gone) > 0 {
			c.wrong = append(c.wrong, fmt.Sprintf("%s, %+v: acknowledged and not there: %v", where, cut, gone))
		}
	}
}

func (c *cutter) open() *journal.Journal {
	c.t.Helper()
	opt := journaltest.Options()
	opt.Waiting = func(full error) {
		if full != nil {
			c.full()
		}
	}
	j, err := journal.Open(ctx, c.store, "s1", opt)
	if err != nil {
		c.t.Fatal(err)
	}
	c.t.Cleanup(func() { j.Close() })
	c.acknowledged = append(c.acknowledged, j.Head())
	return j
}

func (c *cutter) append(j *journal.Journal) {
	c.t.Helper()
	c.handed = true
	journaltest.Append(c.t, j, journaltest.Note("one"), journaltest.Note("two"))
	c.handed = false
	c.acknowledged = append(c.acknowledged, j.Head())
}

func TestAPowerCutTakesNothingThatWasAcknowledged(t *testing.T) {
	workloads := map[string]func(*cutter){
		"a session from its first claim to its release": func(c *cutter) {
			j := c.open()
			c.append(j)
			journaltest.Release(c.t, j)
			c.acknowledged = append(c.acknowledged, j.Head())
			c.append(c.open())
		},
		"a writer that dies between its write and its sync": func(c *cutter) {
			j := c.open()
			c.append(j)
			c.faults.FailSync(1, journaltest.ErrDisk)
			c.faults.FailSync(2, journaltest.ErrDisk) // so it cannot go on
			if _, err := j.Append(ctx, journaltest.Note("written")); err == nil {
				c.t.Fatal("the sync did not fail")
			}
			must(c.t, j.Close())
			c.append(c.open())
		},
		"a writer that dies before its sync, and a claimant after it": func(c *cutter) {
			j := c.open()
			c.append(j)
			c.faults.FailSync(1, journaltest.ErrDisk)
			c.faults.FailSync(2, journaltest.ErrDisk) // so it cannot go on
			if _, err := j.Append(ctx, journaltest.Note("written")); err == nil {
				c.t.Fatal("the sync did not fail")
			}
			must(c.t, j.Close())
			claimAndDie(c.t, c.store, "s1", 2)
			c.append(c.open())
		},
		"a writer whose disk forgets": func(c *cutter) {
			j := c.open()
			c.append(j)
			c.faults.LoseSync(1, journaltest.ErrDisk)
			c.append(j)
			c.append(j)
			must(c.t, j.Close())
			c.append(c.open())
		},
		"a writer that goes on after a write that stored half": func(c *cutter) {
			j := c.open()
			c.append(j)
			c.faults.ShortWrite(1, 450, journaltest.ErrDisk)
			c.append(j)
			c.faults.FailSync(1, journaltest.ErrDisk)
			c.append(j)
		},
		"a disk that is full for a while": func(c *cutter) {
			j := c.open()
			c.append(j)
			c.faults.Fill(500) // for a line and a half, then for a claim without its seal, then for all
			c.full = func() {
				c.faults.Fill(900)
				c.faults.At(journaltest.Write, 3, c.faults.Empty)
			}
			c.append(j)
			if l := journaltest.Verify(c.t, c.store, "s1"); len(l.Findings) != 2 || j.Epoch() != 3 {
				c.t.Errorf("in epoch %d the findings are %v; want a torn tail and a void claim", j.Epoch(), l.Findings)
			}
		},
		"a first claim that is never sealed": func(c *cutter) {
			claimAndDie(c.t, c.store, "s1", 1)
			c.append(c.open())
		},
	}
	for name, work := range workloads {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newCutter(t)
			c.everywhere(20)
			work(c)
			c.cut("end")
			for _, w := range c.wrong {
				t.Error(w)
			}
			if least := 60; c.all < least {
				t.Errorf("the power was cut only %d times", c.all)
			}
			journaltest.Tried("power, %s: %s", name, c.cuts)
		})
	}
}

// Without its syncs the same workload must lose something.
func TestThePowerCutNoticesAMissingSync(t *testing.T) {
	c := newCutter(t)
	c.faults.LeaveOutSync()
	c.append(c.open())
	c.cut("end")
	if len(c.wrong) == 0 {
		t.Error("nothing was synced, and nothing is missing after a power cut")
	}
}

// claimAndDie leaves a claim that nobody seals.
func claimAndDie(t *testing.T, store journal.Store, session string, epoch uint64) {
	t.Helper()
	w, err := store.Claim(ctx, session, epoch, header(t, session, epoch))
	if err != nil {
		t.Fatal(err)
	}
	if err := w.Release(); err != nil {
		t.Fatal(err)
	}
}
