package journal_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"steno/journal"
	"steno/journal/journaltest"
	"steno/lease"
	"steno/schema"
)

// worn is a session that is packed once, and has gone on since: what a packer
// has to merge, in the least bytes.
func worn(t *testing.T, store *journal.Files) (told []schema.Head) {
	t.Helper()
	for i := range 4 {
		j, err := journal.Open(ctx, store, "s1", journaltest.Options())
		must(t, err)
		journaltest.Append(t, j, journaltest.Note("one"), journaltest.Note(strings.Repeat("b", 262_150+i)))
		told = append(told, j.Head())
		if i == 1 {
			must(t, j.Close())
			told = append(told, pack(t, store, "s1").Head)
			continue
		}
		must(t, j.Release(ctx, "done"))
		told = append(told, j.Head())
	}
	return told
}

func TestAPowerCutWhileASessionIsPackedTakesNothing(t *testing.T) {
	t.Parallel()
	for name, begin := range map[string]func(t *testing.T, store *journal.Files) []schema.Head{
		"for the first time": func(t *testing.T, store *journal.Files) []schema.Head { return grown(t, store, "s1", 2) },
		"again":              worn,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			journaltest.Either(t, func(t *testing.T, logged bool) { cutWhilePacked(t, name, begin, logged) })
		})
	}
}

func cutWhilePacked(t *testing.T, name string, begin func(t *testing.T, store *journal.Files) []schema.Head, logged bool) {
	c := newCutterWith(t, logged)
	c.acknowledged = begin(t, c.store)
	if logged { // a writer that dies, and of whose lines the commit log alone has the last
		j := c.open()
		c.append(j)
		c.faults.CacheSync(1, journaltest.ErrDisk)
		must(t, j.Close())
	}
	c.hand(true)
	// Every step long, and otherwise some, but those that matter most always.
	var n atomic.Int64
	some := int64(journaltest.Amount(5, 2, 1))
	if logged {
		some = int64(journaltest.Amount(10, 3, 1))
	}
	c.faults.Each(func(point string) {
		if n.Add(1)%some == 0 || point == journaltest.Renamed || point == journaltest.Removed {
			c.cut(point)
		}
	})
	p := pack(t, c.store, "s1")
	c.hand(false)
	c.tell(p.Head)
	c.faults.Each(nil)
	c.end()
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, w := range c.wrong {
		t.Error(w)
	}
	if n.Load() < 40 || c.faults.Seen(journaltest.Renamed) == 0 || c.faults.Seen(journaltest.Removed) < 6 {
		t.Errorf("the power was cut at %d points only", n.Load())
	}
	journaltest.Tried("power, while a session is packed %s, commit log %t: %s", name, logged, c.cuts)
}

// Without the syncs, or with the removals before them, the same must lose
// something.
func TestThePowerCutNoticesAnArchiveThatIsNotSynced(t *testing.T) {
	t.Parallel()
	journaltest.Either(t, func(t *testing.T, logged bool) {
		c := newCutterWith(t, logged)
		c.acknowledged = grown(t, c.store, "s1", 2)
		c.faults.LeaveOutSync()
		pack(t, c.store, "s1")
		c.end()
		if len(c.wrong) == 0 {
			t.Error("nothing was synced, and nothing is missing after a power cut")
		}
	})
}

// Packing is what a child does in the role "packer": it packs, or removes, and
// kills itself at a point.
type packing struct {
	Dir, Session string
	Remove       bool
	KillAt       string
	KillNth      int
}

func packer(arg []byte) error {
	var p packing
	if err := json.Unmarshal(arg, &p); err != nil {
		return err
	}
	f, err := journal.OpenFiles(p.Dir, false)
	if err != nil {
		return err
	}
	store, faults := journaltest.Faulty(f)
	faults.At(p.KillAt, p.KillNth, func() {
		_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
		select {} // until the signal is there
	})
	do := store.Pack
	if p.Remove {
		do = store.Remove
	}
	got, err := do(ctx, p.Session, packOptions())
	if err != nil {
		return err
	}
	journaltest.Say("done %s", got.Head)
	return nil
}

// How often a point is passed while the session of worn is packed, or removed.
func passed(t *testing.T, remove bool) map[string]int {
	t.Helper()
	store, faults := journaltest.Faulty(journaltest.Files(t))
	worn(t, store)
	before := map[string]int{}
	all := append([]string{journaltest.Renamed, journaltest.Removed}, points...)
	for _, p := range all {
		before[p] = faults.Seen(p)
	}
	do := store.Pack
	if remove {
		do = store.Remove
	}
	if _, err := do(ctx, "s1", packOptions()); err != nil {
		t.Fatal(err)
	}
	n := map[string]int{}
	for _, p := range all {
		n[p] = faults.Seen(p) - before[p]
	}
	return n
}

func TestAPackerKilledAtAnyPointHasLostNothing(t *testing.T) {
	t.Parallel()
	for point, most := range passed(t, false) {
		for nth := 1; nth <= most; nth++ {
			t.Run(point+" "+string(rune('0'+nth)), func(t *testing.T) {
				t.Parallel()
				store := journaltest.Files(t)
				told := worn(t, store)
				p := journaltest.Start(t, "packer", packing{Dir: store.Dir(), Session: "s1", KillAt: point, KillNth: nth})
				if killed, err := p.Wait(); !killed {
					t.Fatalf("the packer was not killed: %v, %q", err, p.Lines())
				}
				l := journaltest.Verify(t, store, "s1")
				if gone := l.Missing(told); len(gone) > 0 {
					t.Errorf("acknowledged and not there: %v", gone)
				}
				// Packing it again finishes, and leaves nothing lying about.
				told = append(told, pack(t, store, "s1").Head)
				l = journaltest.Verify(t, store, "s1")
				if gone := l.Missing(told); len(gone) > 0 {
					t.Errorf("acknowledged and not there: %v", gone)
				}
				if left, _ := filepath.Glob(filepath.Join(store.Dir(), "archive", ".*")); len(left) > 0 {
					t.Errorf("left over: %v", left)
				}
				if left := contents(t, folder(store, "s1")); len(left) != 1 {
					t.Errorf("not packed: %v", keys(left))
				}
				journaltest.Append(t, journaltest.Open(t, store, "s1"), journaltest.Note("goes on"))
			})
		}
	}
}

func TestARemovalKilledAtAnyPointIsWholeOrFinishes(t *testing.T) {
	t.Parallel()
	for point, most := range passed(t, true) {
		for nth := 1; nth <= most; nth++ {
			t.Run(point+" "+string(rune('0'+nth)), func(t *testing.T) {
				t.Parallel()
				store := journaltest.Files(t)
				told := worn(t, store)
				p := journaltest.Start(t, "packer", packing{Dir: store.Dir(), Session: "s1", Remove: true, KillAt: point, KillNth: nth})
				if killed, err := p.Wait(); !killed {
					t.Fatalf("it was not killed: %v, %q", err, p.Lines())
				}
				l, err := journaltest.Read(store, "s1", journal.ScanOptions{Blobs: true})
				if err == nil && (l.FirstError != nil || len(l.Missing(told)) > 0) || err != nil && !errors.Is(err, schema.NotFound) {
					t.Errorf("neither whole nor gone: %v, %v", err, l.FirstError)
				}
				_, err = store.Remove(ctx, "s1", packOptions())
				if err != nil && !errors.Is(err, schema.NotFound) {
					t.Error(err)
				}
				gone(t, store, "s1")
			})
		}
	}
}

// gone checks that nothing is left of a session but what keeps its id.
func gone(t *testing.T, store *journal.Files, session string) {
	t.Helper()
	if _, err := journaltest.Read(store, session, journal.ScanOptions{}); !errors.Is(err, schema.NotFound) {
		t.Errorf("a removed session is read with %v", err)
	}
	if _, err := os.Stat(archive(store, session)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("its archive: %v", err)
	}
	if left := contents(t, folder(store, session)); len(left) != 1 {
		t.Errorf("left over: %v", keys(left))
	}
	_, err := journal.Open(ctx, store, session, journaltest.Options())
	if !errors.Is(err, schema.AlreadyExists) {
		t.Errorf("its id is given away with %v", err)
	}
	if _, err := store.Remove(ctx, session, packOptions()); !errors.Is(err, schema.NotFound) {
		t.Errorf("removing it again gives %v", err)
	}
}

// Every write and sync of a packer fails once, and the disk is full from any
// write on: nothing is lost, the error has its kind, and packing again finishes.
func TestEveryFaultWhileASessionIsPacked(t *testing.T) {
	t.Parallel()
	n := passed(t, false)
	for name, c := range map[string]struct {
		most int
		set  func(x *journaltest.Faults, nth int)
	}{
		"a write fails":        {n[journaltest.Write], func(x *journaltest.Faults, nth int) { x.FailWrite(nth, journaltest.ErrDisk) }},
		"a write stores half":  {n[journaltest.Write], func(x *journaltest.Faults, nth int) { x.ShortWrite(nth, 40, journaltest.ErrDisk) }},
		"a write says nothing": {n[journaltest.Write], func(x *journaltest.Faults, nth int) { x.ShortWrite(nth, 5, nil) }},
		"the disk is full": {n[journaltest.Write], func(x *journaltest.Faults, nth int) {
			x.At(journaltest.Write, nth, func() { x.Fill(0) })
		}},
		"a sync fails":      {n[journaltest.Sync], func(x *journaltest.Faults, nth int) { x.FailSync(nth, journaltest.ErrDisk) }},
		"a sync loses":      {n[journaltest.Sync], func(x *journaltest.Faults, nth int) { x.LoseSync(nth, journaltest.ErrDisk) }},
		"a sync only fails": {n[journaltest.Sync], func(x *journaltest.Faults, nth int) { x.CacheSync(nth, journaltest.ErrDisk) }},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			some := journaltest.Amount(4, 2, 1)
			for nth := 1 + len(name)%some; nth <= c.most; nth += some {
				store, faults := journaltest.Faulty(journaltest.Files(t))
				told := worn(t, store)
				c.set(faults, nth)
				_, err := store.Pack(ctx, "s1", packOptions())
				if err == nil {
					t.Errorf("%d: the session is packed", nth)
				} else if !errors.Is(err, schema.LogWriteFailed) && !errors.Is(err, schema.SyncFailed) && !errors.Is(err, schema.CorruptLogLine) {
					t.Errorf("%d: it fails with %v", nth, err)
				}
				faults.Empty()
				l := journaltest.Verify(t, store, "s1")
				if gone := l.Missing(told); len(gone) > 0 {
					t.Errorf("%d: acknowledged and not there: %v", nth, gone)
				}
				told = append(told, pack(t, store, "s1").Head)
				if l := journaltest.Verify(t, store, "s1"); len(l.Missing(told)) > 0 || len(contents(t, folder(store, "s1"))) != 1 {
					t.Errorf("%d: missing %v", nth, l.Missing(told))
				}
			}
		})
	}
}

// What the disk has made another byte of is found when it is read back, and
// nothing is taken away.
func TestAnArchiveThatIsReadBackWrongTakesNothingAway(t *testing.T) {
	t.Parallel()
	files := journaltest.Files(t)
	told := worn(t, files)
	n, fell := 0, 0
	for nth := 1; nth < 30; nth++ {
		was := contents(t, folder(files, "s1"))
		before, err := os.ReadFile(archive(files, "s1"))
		must(t, err)
		n = 0
		store := files.WithFaults(&lease.Faults{Write: func(f *os.File, b []byte) (int, error) {
			if filepath.Base(filepath.Dir(f.Name())) != "archive" {
				return f.Write(b)
			}
			if n++; n == nth {
				b = bytes.Clone(b)
				b[len(b)/2] ^= 4
			}
			return f.Write(b)
		}})
		if _, err := store.Pack(ctx, "s1", packOptions()); err == nil {
			break // it has fewer writes
		} else if !errors.Is(err, schema.LogWriteFailed) {
			t.Fatalf("write %d: %v", nth, err)
		}
		fell++
		now := contents(t, folder(files, "s1"))
		for name, b := range was {
			if now[name] != b {
				t.Errorf("write %d: %s is gone", nth, name)
			}
		}
		if after, err := os.ReadFile(archive(files, "s1")); err != nil || !bytes.Equal(before, after) {
			t.Errorf("write %d: the archive before is gone: %v", nth, err)
		}
	}
	if fell < 10 {
		t.Errorf("only %d writes were changed", fell)
	}
	if l := journaltest.Verify(t, files, "s1"); len(l.Missing(told)) > 0 {
		t.Errorf("missing: %v", l.Missing(told))
	}
}
