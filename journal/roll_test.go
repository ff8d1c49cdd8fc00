package journal_test

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/oklog/ulid/v2"

	"steno/journal"
	"steno/journal/journaltest"
	"steno/lease"
	"steno/replay"
	"steno/schema"
)

// What can go wrong in one append of two lines, and what is known of them then.
var appendFaults = []struct {
	name    string
	arm     func(f *journaltest.Faults, n int)
	kind    schema.Kind
	outcome string // where the journal cannot go on
	events  int    // how many of its lines are found recorded
}{
	{"the write fails", func(f *journaltest.Faults, n int) { f.FailWrite(n, journaltest.ErrDisk) },
		schema.LogWriteFailed, "not_stored", 0},
	{"the write stores one byte", func(f *journaltest.Faults, n int) { f.ShortWrite(n, 1, journaltest.ErrDisk) },
		schema.LogWriteFailed, "not_stored", 0},
	{"the write stores a line and a half", func(f *journaltest.Faults, n int) { f.ShortWrite(n, 450, journaltest.ErrDisk) },
		schema.LogWriteFailed, "unknown", 1},
	{"the write stores all and fails", func(f *journaltest.Faults, n int) { f.ShortWrite(n, 1<<20, journaltest.ErrDisk) },
		schema.LogWriteFailed, "unknown", 2},
	{"the write is short without a word", func(f *journaltest.Faults, n int) { f.ShortWrite(n, 100, nil) },
		schema.LogWriteFailed, "not_stored", 0},
	{"the sync fails", func(f *journaltest.Faults, n int) { f.FailSync(n, journaltest.ErrDisk) },
		schema.SyncFailed, "unknown", 2},
	{"the sync fails and the bytes are gone", func(f *journaltest.Faults, n int) { f.LoseSync(n, journaltest.ErrDisk) },
		schema.SyncFailed, "not_stored", 0},
}

// A journal whose write or sync fails goes on in the next epoch, and its caller
// hears of one append.
func TestAFailedAppendGoesOnInTheNextEpoch(t *testing.T) {
	for _, fault := range appendFaults {
		t.Run(fault.name, func(t *testing.T) {
			store, faults := journaltest.Faulty(journaltest.Files(t))
			opt := journaltest.Options()
			var told []journal.Record
			opt.Durable = func(r journal.Record) { told = append(told, r) }
			j := journaltest.OpenWith(t, store, "s1", opt)
			before := journaltest.Append(t, j, journaltest.Note("acknowledged"))
			head := j.Head()
			named := journaltest.Note("first")
			named.ID = ulid.Make()

			fault.arm(faults, 1)
			got := journaltest.Append(t, j, named, journaltest.Note("second"))
			if len(got) != 2 || got[0].ID != named.ID || string(got[1].Data) != `{"text":"second"}` {
				t.Fatalf("the append is answered with %v", got)
			}
			for i, r := range got {
				// Behind the seal of the new epoch, or before it.
				seq, epoch := head.Seq+2+uint64(i), uint64(2)
				if i < fault.events {
					seq, epoch = head.Seq+1+uint64(i), 1
				}
				if r.Seq != seq || r.Epoch != epoch {
					t.Errorf("record %d is event %d of epoch %d, want %d of %d", i, r.Seq, r.Epoch, seq, epoch)
				}
				if back, err := j.Event(ctx, r.Seq); err != nil || string(back.Line) != string(r.Line) {
					t.Errorf("it is read back as %s, %v", back.Line, err)
				}
			}
			if j.Err() != nil || j.Epoch() != 2 || j.How() != schema.HowNew || j.Waiting() != nil {
				t.Errorf("the journal has epoch %d, %s, error %v, waits for %v", j.Epoch(), j.How(), j.Err(), j.Waiting())
			}
			again := journaltest.Append(t, j, named)
			if len(again) != 1 || string(again[0].Line) != string(got[0].Line) {
				t.Errorf("the same id is answered with %v", again)
			}
			journaltest.Append(t, j, journaltest.Note("later"))

			l := journaltest.Verify(t, store, "s1")
			if gone := l.Missing([]schema.Head{head, before[0].Event.Head(), got[0].Event.Head(), got[1].Event.Head(), j.Head()}); len(gone) > 0 {
				t.Errorf("acknowledged and not there: %v", gone)
			}
			if want := int(head.Seq) + 4; len(l.Events) != want || len(told) != want {
				t.Errorf("%d events are there and %d were told of, want %d", len(l.Events), len(told), want)
			}
			for i := range told {
				if told[i].Sum != l.Events[i].Sum {
					t.Errorf("event %d was told out of order", i+1)
				}
			}
			j.View(func(s journal.State) {
				if s.(*replay.State).Digest() != l.State.Digest() {
					t.Error("the state of the writer is not that of a reader")
				}
			})
			var seal schema.Seal
			must(t, schema.Unmarshal(l.Events[int(head.Seq)+fault.events].Data, &seal))
			if e, p := seal.Evidence, seal.Previous; seal.How != schema.HowRoll || e == nil || e.State != string(lease.Active) || e.By == "" ||
				e.Observed == "" || e.Reason == "" || p == nil || p.Epoch != 1 || p.Seq != head.Seq+uint64(fault.events) {
				t.Errorf("the seal is %s", l.Events[int(head.Seq)+fault.events].Data)
			}
			if torn := fault.events < 2 && len(l.Findings) > 0 && l.Findings[0].Kind == schema.TornTail; len(l.Findings) > 1 || len(l.Findings) == 1 && !torn {
				t.Errorf("the findings are %v", l.Findings)
			}
			// The lock of the epoch is ours, that of the one before is not kept.
			if st, err := store.Lease(ctx, "s1"); err != nil || st.State != lease.Active || st.Epoch != 2 {
				t.Errorf("the lease is %+v, %v", st, err)
			}
			w, err := store.Claim(ctx, "s1", 3, header(t, "s1", 3))
			must(t, err)
			_, err = w.Settle(ctx, 1)
			must(t, err)
			must(t, w.Release())
		})
	}
}

// Where the roll fails too, the journal ends, and says what is known.
func TestAFailedRollEndsTheJournal(t *testing.T) {
	for _, fault := range appendFaults {
		for _, point := range []string{"claim", "seal", "settle", "rest"} {
			t.Run(fault.name+", "+point, func(t *testing.T) {
				store, faults := journaltest.Faulty(journaltest.Files(t))
				j := journaltest.Open(t, store, "s1")
				journaltest.Append(t, j, journaltest.Note("acknowledged"))
				head := j.Head()
				fault.arm(faults, 1)
				switch point {
				case "claim":
					faults.FailWrite(2, journaltest.ErrDisk)
				case "settle": // the sync of the claim, then that
					syncs := 2
					if fault.kind == schema.SyncFailed {
						syncs = 3
					}
					faults.FailSync(syncs, journaltest.ErrDisk)
				case "seal":
					faults.FailWrite(3, journaltest.ErrDisk)
				case "rest":
					if fault.events == 2 {
						return // there is none
					}
					faults.FailWrite(4, journaltest.ErrDisk)
				}
				first, second := journaltest.Note("first"), journaltest.Note("second")
				first.ID, second.ID = ulid.Make(), ulid.Make()
				_, err := j.Append(ctx, first, second)
				kind, outcome := fault.kind, fault.outcome
				if point == "rest" {
					kind, outcome = schema.LogWriteFailed, []string{"not_stored", "recorded_in_part"}[fault.events]
				}
				if !errors.Is(err, kind) {
					t.Fatalf("got %v, want %s", err, kind)
				}
				d := schema.AsError(err).Details
				if d["outcome"] != outcome || d["roll"] == nil {
					t.Errorf("the details are %v, want outcome %s", d, outcome)
				}
				if !errors.Is(err, journaltest.ErrDisk) && !errors.Is(err, io.ErrShortWrite) {
					t.Errorf("the cause is lost: %v", err)
				}
				// It takes no more, retries nothing, and its state has not moved
				// but by what is durable.
				writes, syncs := faults.Seen(journaltest.Write), faults.Seen(journaltest.Sync)
				for range 2 {
					if _, err := j.Append(ctx, journaltest.Note("more")); !errors.Is(err, kind) {
						t.Errorf("the next append gives %v", err)
					}
				}
				if w, s := faults.Seen(journaltest.Write), faults.Seen(journaltest.Sync); w != writes || s != syncs {
					t.Errorf("after the failure there were %d writes and %d syncs", w-writes, s-syncs)
				}
				if point != "rest" && j.Head() != head || !errors.Is(j.Err(), kind) {
					t.Errorf("the head is %v, the journal's error %v", j.Head(), j.Err())
				}
				if err := j.Release(ctx, "done"); !errors.Is(err, kind) {
					t.Errorf("a release says %v", err)
				}
				// Whoever comes next knows, and it is as was said.
				next := journaltest.Open(t, store, "s1")
				l := journaltest.Verify(t, store, "s1")
				if gone := l.Missing([]schema.Head{head, j.Head(), next.Head()}); len(gone) > 0 {
					t.Errorf("acknowledged and not there: %v", gone)
				}
				n := 0
				for _, e := range l.Events {
					if e.ID == first.ID || e.ID == second.ID {
						n++
					}
				}
				if n != fault.events {
					t.Errorf("%d of the failed append's events are recorded, want %d", n, fault.events)
				}
			})
		}
	}
}

// A journal that meets its successor, at once or on its way into the next
// epoch, has lost, and knows from the successor's seal what became of its lines.
func TestALostWriterKnowsFromItsSuccessor(t *testing.T) {
	for _, c := range []struct {
		name    string
		at      string // when the successor comes
		arm     func(*journaltest.Faults)
		outcome string
	}{
		{"after the sync", journaltest.Synced, func(*journaltest.Faults) {}, "recorded"},
		{"before the write", journaltest.Write, func(*journaltest.Faults) {}, "not_stored"},
		{"with a line and a half", journaltest.Sync, func(f *journaltest.Faults) { f.ShortWrite(1, 450, journaltest.ErrDisk) }, "recorded_in_part"},
		{"after a sync that failed", journaltest.Write, func(f *journaltest.Faults) { f.FailSync(1, journaltest.ErrDisk) }, "recorded"},
	} {
		t.Run(c.name, func(t *testing.T) {
			plain := journaltest.Files(t)
			store, faults := journaltest.Faulty(plain)
			j, err := journal.Open(ctx, store, "s1", journaltest.Options())
			must(t, err)
			defer j.Close()
			journaltest.Append(t, j, journaltest.Note("acknowledged"))
			n := 1
			if c.name == "after a sync that failed" {
				n = 2 // with the claim that would follow
			}
			var next *journal.Journal
			faults.At(c.at, n, func() { next = journaltest.Force(t, plain, "s1") })
			c.arm(faults)
			_, err = j.Append(ctx, journaltest.Note("first"), journaltest.Note("second"))
			if !errors.Is(err, schema.SessionWriterLost) || schema.AsError(err).Details["outcome"] != c.outcome {
				t.Fatalf("got %v with %v, want %s", err, schema.AsError(err).Details, c.outcome)
			}
			journaltest.Append(t, next, journaltest.Note("mine"))
			l := journaltest.Verify(t, plain, "s1")
			if gone := l.Missing([]schema.Head{j.Head(), next.Head()}); len(gone) > 0 {
				t.Errorf("acknowledged and not there: %v", gone)
			}
			want := map[string]int{"not_stored": 0, "recorded_in_part": 1, "recorded": 2}[c.outcome]
			if got := len(l.Events) - 3 - 2; got != want {
				t.Errorf("%d of its lines are recorded, want %d", got, want)
			}
		})
	}
}

// A roll seals nothing over what is not its own writing.
func TestARollRefusesWhatItHasNotWritten(t *testing.T) {
	for name, change := range map[string]func(t *testing.T, path string, size int64){
		"the segment is shorter than what was acknowledged": func(t *testing.T, path string, size int64) {
			must(t, os.Truncate(path, size-10))
		},
		"somebody else has written into the segment": func(t *testing.T, path string, _ int64) {
			f, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND, 0)
			must(t, err)
			_, err = f.WriteString("more\n")
			must(t, errors.Join(err, f.Close()))
		},
		"the line is no JSON": func(t *testing.T, path string, size int64) {
			f, err := os.OpenFile(path, os.O_WRONLY, 0)
			must(t, err)
			_, err = f.WriteAt([]byte("xx"), size)
			must(t, errors.Join(err, f.Close()))
		},
	} {
		t.Run(name, func(t *testing.T) {
			store, faults := journaltest.Faulty(journaltest.Files(t))
			j, err := journal.Open(ctx, store, "s1", journaltest.Options())
			must(t, err)
			defer j.Close()
			journaltest.Append(t, j, journaltest.Note("acknowledged"))
			path := filepath.Join(store.Dir(), "sessions", "s1", "000001.jsonl")
			fi, err := os.Stat(path)
			must(t, err)
			faults.FailSync(1, journaltest.ErrDisk)
			faults.At(journaltest.Sync, 1, func() { change(t, path, fi.Size()) })
			_, err = j.Append(ctx, journaltest.Note("first"), journaltest.Note("second"))
			e := schema.AsError(err)
			if !errors.Is(err, schema.SyncFailed) || e.Details["roll"] != "corrupt_log_line" || e.Details["outcome"] != "unknown" {
				t.Errorf("got %v with %v", err, e.Details)
			}
			if l, _ := journaltest.Read(store, "s1", journal.ScanOptions{}); l.Epochs != 1 {
				t.Errorf("%d epochs are sealed", l.Epochs)
			}
		})
	}
}

// padded is a note whose line, behind others of its append, is exactly as long as a
// line may be, while its numbers have one digit.
func padded(t *testing.T, store *journal.Files, others int) journal.Entry {
	t.Helper()
	pad := func(text string) journal.Entry { // under a key whose values stay in the line
		var o schema.Object
		return journal.Entry{Type: schema.TypeNote, Data: o.Text("pad", text).Bytes()}
	}
	appended := append(slices.Repeat([]journal.Entry{journaltest.Note("x")}, others), pad(""))
	around := len(journaltest.Append(t, journaltest.Open(t, store, "s2"), appended...)[others].Line)
	return pad(strings.Repeat("x", schema.MaxLine-around))
}

// Whatever is larger after the roll is told so, and the journal goes on.
func TestALineThatGrowsOverTheLimitInARoll(t *testing.T) {
	store, faults := journaltest.Faulty(journaltest.Files(t))
	j := journaltest.Open(t, store, "s1")
	for range 6 { // the next is 9; after a seal it is 10
		journaltest.Append(t, j, journaltest.Note("x"))
	}
	e := padded(t, store, 0)
	faults.FailWrite(1, journaltest.ErrDisk)
	_, err := j.Append(ctx, e)
	if !errors.Is(err, schema.LineTooLong) || schema.AsError(err).Details["outcome"] != "not_stored" || j.Err() != nil {
		t.Fatalf("got %v with %v", err, schema.AsError(err).Details)
	}
	journaltest.Append(t, j, journaltest.Note("goes on"))
}

// It refuses nobody else: who shared its write is recorded, once, however much of
// it the roll has found on the disk.
func TestALineThatGrowsOverTheLimitRefusesNoOther(t *testing.T) {
	for name, c := range map[string]struct {
		before  []int // notes of each append; the last has the line that grows, too
		kept    int   // notes that the failed write has stored
		outcome string
	}{
		"an append of its own, nothing is found":   {[]int{1, 2, 0}, 0, "recorded"}, // for then it need not say what is durable
		"an append of its own, another is in part": {[]int{1, 2, 0}, 2, "recorded"},
		"behind others of its append":              {[]int{1, 2}, 0, "not_stored"},
		"behind others, of which one is found":     {[]int{1, 2}, 2, "recorded_in_part"},
		"behind others, of which all are found":    {[]int{1, 2}, 3, "recorded"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			store, faults := journaltest.Faulty(journaltest.Files(t))
			j := journaltest.Open(t, store, "s1")
			note, shared := journaltest.Note("x"), 0
			var appends [][]journal.Entry
			for _, n := range c.before {
				appends, shared = append(appends, slices.Repeat([]journal.Entry{note}, n)), shared+n
			}
			last := len(appends) - 1
			appends[last] = append(appends[last], padded(t, store, 1))
			line := 0
			for range 5 - shared { // so that with one under way its number is 9, and 10 after a seal
				line = len(journaltest.Append(t, j, note)[0].Line) + 1
			}
			records, errs := together(t, j, faults, func() { faults.ShortWrite(1, c.kept*line+line/2, journaltest.ErrDisk) }, appends...)
			for i := range appends {
				if i == last && c.outcome != "recorded" {
					if err := schema.AsError(errs[i]); err == nil || err.Kind != schema.LineTooLong || err.Details["outcome"] != c.outcome {
						t.Errorf("the one with the long line gives %v, %+v", records[i], err)
					}
				} else if errs[i] != nil || len(records[i]) != len(appends[i]) {
					t.Errorf("append %d gives %d records, %v", i, len(records[i]), errs[i])
				}
			}
			if j.Epoch() != 2 {
				t.Errorf("the epoch is %d", j.Epoch())
			}
			journaltest.Append(t, j, note)
			l := journaltest.Verify(t, store, "s1")
			want := 2 + 5 - shared + 1 + shared + 1 + 1 + 1 // the beginning, the notes, the long one, a seal, a note
			switch c.outcome {
			case "not_stored":
				want -= 1 + c.before[last]
			case "recorded_in_part":
				want -= 1 + 1
			}
			if len(l.Events) != want {
				t.Errorf("there are %d events, want %d", len(l.Events), want)
			}
			for _, r := range slices.Concat(records...) {
				if e := l.Events[r.Seq-1]; e.Head() != r.Head() {
					t.Errorf("event %d is %v, and was told to be %v", r.Seq, e.Head(), r.Head())
				}
			}
		})
	}
}

// A disk that has answered success for a line and lost it shows that once its
// pages are dropped. Nothing is acknowledged behind it any more.
func TestARollDoesNotPinWhatTheDiskHasLost(t *testing.T) {
	store, faults := journaltest.Faulty(journaltest.Files(t))
	j := journaltest.OpenWith(t, store, "s1", journaltest.Options())
	journaltest.Append(t, j, journaltest.Note("kept"))
	faults.CacheSync(1, nil)
	journaltest.Append(t, j, journaltest.Note("acknowledged and lost"))
	lost := j.Head()
	faults.FailSync(1, journaltest.ErrDisk)
	_, err := j.Append(ctx, journaltest.Note("behind it"))
	if !errors.Is(err, schema.SyncFailed) || schema.AsError(err).Details["roll"] != string(schema.CorruptLogLine) ||
		schema.AsError(err).Details["outcome"] != "unknown" {
		t.Errorf("the append behind it gives %v, %v", err, schema.AsError(err).Details)
	}
	if _, err := j.Append(ctx, journaltest.Note("later")); !errors.Is(err, schema.SyncFailed) {
		t.Errorf("a later one gives %v", err)
	}
	if l, err := journaltest.Read(store, "s1", journal.ScanOptions{Head: lost}); err != nil || l.FirstError == nil {
		t.Errorf("the log is read as sound: %+v, %v", l, err)
	}
}
