package journal_test

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"steno/journal"
	"steno/journal/journaltest"
	"steno/lease"
	"steno/schema"
)

// copyOf is the store as a power cut leaves it: change says what becomes of a
// segment.
func copyOf(t *testing.T, from *journal.Files, change func(name string, b []byte) []byte) *journal.Files {
	t.Helper()
	dir := journaltest.TempDir(t)
	must(t, os.CopyFS(filepath.Join(dir, "sessions"), os.DirFS(filepath.Join(from.Dir(), "sessions"))))
	if holders := filepath.Join(from.Dir(), "holders"); isFolder(holders) {
		must(t, os.CopyFS(filepath.Join(dir, "holders"), os.DirFS(holders)))
	}
	must(t, filepath.Walk(dir, func(path string, fi os.FileInfo, err error) error {
		if err != nil {
			return err
		}
		if fi.IsDir() {
			return os.Chmod(path, 0o700)
		}
		if strings.HasSuffix(path, ".jsonl") {
			b, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			if err := os.WriteFile(path, change(filepath.Base(path), b), 0o600); err != nil {
				return err
			}
		}
		return os.Chmod(path, 0o600)
	}))
	return journaltest.FilesIn(t, dir)
}

func isFolder(path string) bool {
	fi, err := os.Lstat(path)
	return err == nil && fi.IsDir()
}

// lineAt gives the offset of the n-th line of a segment, from 0.
func lineAt(b []byte, n int) int {
	at := 0
	for range n {
		at += bytes.IndexByte(b[at:], '\n') + 1
	}
	return at
}

func TestWhatASegmentLosesTheCommitLogHas(t *testing.T) {
	store := journaltest.Files(t)
	opt := journaltest.Options() // of one holder, with one log
	j := journaltest.OpenWith(t, store, "s1", opt)
	other := journaltest.OpenWith(t, store, "s2", opt)
	var told []schema.Head
	for i := range 10 {
		journaltest.Append(t, j, journaltest.Note(fmt.Sprint("one ", i)), journaltest.Note(fmt.Sprint("two ", i)))
		journaltest.Append(t, other, journaltest.Note("beside it"))
		told = append(told, j.Head())
	}
	for name, cut := range map[string]struct {
		change func(b []byte) []byte
		torn   bool
		carry  int
	}{
		"nothing":                    {func(b []byte) []byte { return b }, false, 0},
		"the end from a line on":     {func(b []byte) []byte { return b[:lineAt(b, 9)] }, false, 14},
		"all behind the seal":        {func(b []byte) []byte { return b[:lineAt(b, 3)] }, false, 20},
		"the end from within a line": {func(b []byte) []byte { return b[:lineAt(b, 9)+17] }, true, 14},
		"blocks in the middle":       {func(b []byte) []byte { b = bytes.Clone(b); clear(b[lineAt(b, 7)+3 : lineAt(b, 9)]); return b }, true, 16},
		"the newline of the last":    {func(b []byte) []byte { b = bytes.Clone(b); b[len(b)-1] = 0; return b }, true, 1},
	} {
		t.Run(strings.ReplaceAll(name, " ", "_"), func(t *testing.T) {
			image := copyOf(t, store, func(_ string, b []byte) []byte { return cut.change(b) })
			check := func(found int) *journaltest.Log {
				t.Helper()
				l := journaltest.Verify(t, image, "s1")
				if gone := l.Missing(told); len(gone) > 0 {
					t.Errorf("acknowledged and not there: %v", gone)
				}
				if l.Count(schema.TornTail) != found || len(l.Findings) != found {
					t.Errorf("the findings are %v", l.Findings)
				}
				return l
			}
			torn := 0
			if cut.torn {
				torn = 1
			}
			before := check(torn)
			again := journaltest.Open(t, image, "s1")
			if again.How() != schema.HowTakeover {
				t.Errorf("it was come by as %s", again.How())
			}
			// What was carried can be read back, also from its new place.
			for _, e := range before.Events {
				r, err := again.Event(ctx, e.Seq)
				must(t, err)
				if r.Sum != e.Sum {
					t.Errorf("event %d is another", e.Seq)
				}
			}
			journaltest.Append(t, again, journaltest.Note("and on"))
			after := check(torn)
			var seal schema.Seal
			must(t, schema.Unmarshal(after.Events[len(before.Events)].Data, &seal))
			if seal.Carried != cut.carry {
				t.Errorf("%d lines are carried, want %d", seal.Carried, cut.carry)
			}
			must(t, again.Close())
			// A durable seal is final: the log of the first adds nothing any more.
			must(t, os.RemoveAll(filepath.Join(image.Dir(), "holders")))
			check(torn)
		})
	}
}

// loses makes the next sync of a segment fail, once it is armed.
type loses struct {
	session string
	armed   atomic.Bool
	failed  atomic.Int64
}

func (x *loses) sync(f *os.File) error {
	if strings.Contains(f.Name(), "/"+x.session+"/") && x.armed.CompareAndSwap(true, false) {
		x.failed.Add(1)
		return errors.New("the disk says no")
	}
	return f.Sync()
}

// A segment whose sync fails in the background is gone on with in the next one,
// and what it may have lost is carried there.
func TestASyncThatFailsInTheBackgroundLosesNothing(t *testing.T) {
	files := journaltest.Files(t)
	x := &loses{session: "s1"}
	var j *journal.Journal
	faults := &lease.Faults{Sync: x.sync}
	store := files.WithFaults(faults)
	opt := journaltest.Options() // of one holder, with one log
	j = journaltest.OpenWith(t, store, "s1", opt)
	busy := journaltest.OpenWith(t, store, "s2", opt)
	var told []schema.Head
	for i := range 20 {
		journaltest.Append(t, j, journaltest.Note(fmt.Sprint(i)))
		told = append(told, j.Head())
	}
	// When the pages are dropped, which is what a claimant does, what was never
	// stored reads as zeros.
	segment := filepath.Join(files.Dir(), "sessions", "s1", "000001.jsonl")
	kept, err := os.ReadFile(segment)
	must(t, err)
	faults.Drop = func(f *os.File) error {
		if x.failed.Load() == 0 || filepath.Base(f.Name()) != "000001.jsonl" || !strings.Contains(f.Name(), "/s1/") {
			return nil
		}
		b := bytes.Clone(kept)
		clear(b[lineAt(b, 5):])
		return os.WriteFile(f.Name(), b, 0o600)
	}
	x.armed.Store(true)
	text := strings.Repeat("x", 100<<10)
	for n := 0; x.failed.Load() == 0; n++ { // until the log is full and its segments are synced
		if n > 1000 {
			t.Fatal("no segment was synced in the background")
		}
		journaltest.Append(t, busy, journaltest.Note(text))
	}
	journaltest.Append(t, j, journaltest.Note("in the next epoch"))
	told = append(told, j.Head())
	if j.Epoch() != 2 {
		t.Errorf("the epoch is %d", j.Epoch())
	}
	for seq := uint64(1); seq <= j.Head().Seq; seq++ {
		if _, err := j.Event(ctx, seq); err != nil {
			t.Errorf("event %d: %v", seq, err)
		}
	}
	l := journaltest.Verify(t, files, "s1")
	if gone := l.Missing(told); len(gone) > 0 {
		t.Errorf("acknowledged and not there: %v", gone)
	}
	journaltest.Append(t, j, journaltest.Note("and on"))
	must(t, j.Close())
	if next := journaltest.Open(t, files, "s1"); next.Head().Seq != j.Head().Seq+1 {
		t.Errorf("the next head is %v, the last one was %v", next.Head(), j.Head())
	}
}

// A record of the log that was durable and is damaged is named where the segment
// needs it, and harms nobody where it does not.
func TestADamagedRecordOfTheCommitLogIsNamed(t *testing.T) {
	store := journaltest.Files(t)
	opt := journaltest.Options()
	j, other := journaltest.OpenWith(t, store, "s1", opt), journaltest.OpenWith(t, store, "s2", opt)
	for i := range 10 {
		journaltest.Append(t, j, journaltest.Note(fmt.Sprint("number ", i)))
		journaltest.Append(t, other, journaltest.Note("beside it"))
	}
	for _, lost := range []bool{false, true} {
		image := copyOf(t, store, func(_ string, b []byte) []byte {
			if lost {
				return b[:lineAt(b, 3)]
			}
			return b
		})
		logs, err := filepath.Glob(filepath.Join(image.Dir(), "holders", "*", "log-*"))
		must(t, err)
		for _, name := range logs {
			b, err := os.ReadFile(name)
			must(t, err)
			if at := bytes.Index(b, []byte("number 5")); at >= 0 {
				b[at] ^= 1
				must(t, os.WriteFile(name, b, 0o600))
			}
		}
		l, err := journaltest.Read(image, "s1", journal.ScanOptions{})
		must(t, err)
		if lost != (l.FirstError != nil) || lost && l.FirstError.Reason != schema.SumMismatch {
			t.Errorf("lost %t: %v", lost, l.Findings)
		}
		if want := 13; !lost && len(l.Events) < want-1 || lost && len(l.Events) < want-2 {
			t.Errorf("lost %t: %d events", lost, len(l.Events))
		}
		if l := journaltest.Verify(t, image, "s2"); l.Head != other.Head() {
			t.Errorf("lost %t: the other session ends at %v", lost, l.Head)
		}
	}
}

// Without a place for a log each append syncs its segment, and nobody notices.
func TestALogWhosePlaceIsTakenAwayIsDoneWithout(t *testing.T) {
	store := journaltest.Files(t)
	j := journaltest.Open(t, store, "s1")
	journaltest.Append(t, j, journaltest.Note("logged"))
	place := filepath.Join(store.Dir(), "holders")
	must(t, os.Rename(place, place+"-taken"))
	must(t, os.WriteFile(place, nil, 0o600))
	var told []schema.Head
	for range 5 {
		told = append(told, journaltest.Append(t, j, journaltest.Note("in the segment"))[0].Head())
	}
	image := copyOf(t, store, func(_ string, b []byte) []byte { return b })
	if l := journaltest.Verify(t, image, "s1"); len(l.Missing(told)) > 0 || len(l.Findings) > 0 {
		t.Errorf("missing %v, findings %v", l.Missing(told), l.Findings)
	}
	must(t, os.Remove(place))
	must(t, j.Close())
}
