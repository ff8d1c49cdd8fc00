package journal_test

import (
	"fmt"
	"sync"
	"testing"

	"steno/journal"
	"steno/journal/journaltest"
	"steno/schema"
)

// points are all places at which the power may be cut.
var points = []string{journaltest.Write, journaltest.Sync, journaltest.Claimed, journaltest.Written, journaltest.Synced, journaltest.Checked,
	journaltest.LogMake, journaltest.LogWrite, journaltest.LogSync}

// cutter takes the power away at every point of a workload, in every way, and
// notes what is then wrong with the log.
type cutter struct {
	t      *testing.T
	store  *journal.Files
	faults *journaltest.Faults
	logged bool
	plain  bool // who comes after the power cut does not look into the log

	mu           sync.Mutex // a commit log passes its points beside all else
	acknowledged []schema.Head
	full         func() // called once, when an append finds the disk full
	handed       bool   // an append is under way
	over         bool   // no more is cut
	cuts                // as many images
	wrong        []string
}

func newCutter(t *testing.T) *cutter { return newCutterWith(t, false) }

func newCutterWith(t *testing.T, logged bool) *cutter {
	c := &cutter{t: t, logged: logged}
	c.store, c.faults = journaltest.FaultyEither(journaltest.Files(t), logged)
	return c
}

// fails makes the next append fail where its lines would become durable, so that
// nothing goes on.
func (c *cutter) fails() {
	c.faults.FailLog(journaltest.LogSync, 1, journaltest.ErrDisk)
	c.faults.FailSync(1, journaltest.ErrDisk)
	c.faults.FailSync(2, journaltest.ErrDisk) // of the claim that would follow
}

// everywhere arms all points; a point is passed n times at most.
func (c *cutter) everywhere(n int) {
	for _, point := range points {
		for i := 1; i <= n; i++ {
			c.faults.At(point, i, func() { c.cut(fmt.Sprintf("%s %d", point, i)) })
		}
	}
}

// end takes it away for the last time: what goes on beside the test until its
// store is closed is left alone, since images are removed by then.
func (c *cutter) end() {
	c.cut("the end")
	c.mu.Lock()
	defer c.mu.Unlock()
	c.over = true
}

func (c *cutter) cut(where string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.over {
		return
	}
	disk := c.faults.Disk(c.t, c.store)
	bytes, names := disk.Lost()
	for _, cut := range journaltest.Cuts {
		c.add(c.handed, bytes, names)
		img := disk.Cut(cut)
		if c.plain {
			img.LeaveOutLogs()
		}
		image, faults := journaltest.FaultyEither(img.Files(c.t), c.logged)
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
	c.tell(j.Head())
	return j
}

func (c *cutter) tell(h schema.Head) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.acknowledged = append(c.acknowledged, h)
}

func (c *cutter) hand(handed bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.handed = handed
}

func (c *cutter) append(j *journal.Journal) {
	c.t.Helper()
	c.hand(true)
	journaltest.Append(c.t, j, journaltest.Note("one"), journaltest.Note("two"))
	c.hand(false)
	c.tell(j.Head())
}

func TestAPowerCutTakesNothingThatWasAcknowledged(t *testing.T) {
	workloads := map[string]func(*cutter){
		"a session from its first claim to its release": func(c *cutter) {
			j := c.open()
			c.append(j)
			journaltest.Release(c.t, j)
			c.tell(j.Head())
			c.append(c.open())
		},
		"a writer that dies between its write and its sync": func(c *cutter) {
			j := c.open()
			c.append(j)
			c.fails()
			if _, err := j.Append(ctx, journaltest.Note("written")); err == nil {
				c.t.Fatal("the sync did not fail")
			}
			must(c.t, j.Close())
			c.append(c.open())
		},
		"a writer that dies before its sync, and a claimant after it": func(c *cutter) {
			j := c.open()
			c.append(j)
			c.fails()
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
	journaltest.Either(t, func(t *testing.T, logged bool) {
		for name, work := range workloads {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				c := newCutterWith(t, logged)
				c.everywhere(20)
				work(c)
				c.end()
				c.mu.Lock()
				defer c.mu.Unlock()
				for _, w := range c.wrong {
					t.Error(w)
				}
				if least := 60; c.all < least {
					t.Errorf("the power was cut only %d times", c.all)
				}
				journaltest.Tried("power, %s, commit log %t: %s", name, logged, c.cuts)
			})
		}
	})
}

// Without its syncs the same workload must lose something.
func TestThePowerCutNoticesAMissingSync(t *testing.T) {
	journaltest.Either(t, func(t *testing.T, logged bool) {
		c := newCutterWith(t, logged)
		c.faults.LeaveOutSync()
		c.append(c.open())
		c.end()
		if len(c.wrong) == 0 {
			t.Error("nothing was synced, and nothing is missing after a power cut")
		}
	})
}

// So it must without the syncs of the log, and if nobody reads the log.
func TestThePowerCutNoticesAMissingLog(t *testing.T) {
	for name, leaveOut := range map[string]func(*cutter){
		"no sync of the log": func(c *cutter) { c.faults.LeaveOutLogSync() },
		"nobody reads it":    func(c *cutter) { c.plain = true },
	} {
		t.Run(name, func(t *testing.T) {
			c := newCutterWith(t, true)
			leaveOut(c)
			c.append(c.open())
			c.end()
			if len(c.wrong) == 0 {
				t.Error("nothing is missing after a power cut")
			}
		})
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
