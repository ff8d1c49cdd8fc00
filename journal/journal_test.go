package journal_test

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/oklog/ulid/v2"

	"steno/journal"
	"steno/journal/journaltest"
	"steno/replay"
	"steno/schema"
)

func TestWhatIsRefusedIsNotStored(t *testing.T) {
	call := journaltest.Call("c1", "read", `{}`)
	entry := func(typ, data string) journal.Entry { return journal.Entry{Type: typ, Data: []byte(data)} }
	for _, c := range []struct {
		name    string
		kind    schema.Kind
		entries []journal.Entry
		folded  bool // only a state can know
	}{
		{"no type", schema.InvalidArgs, []journal.Entry{entry("", `{}`)}, false},
		{"a type that is none", schema.InvalidArgs, []journal.Entry{entry("Note", `{}`)}, false},
		{"a key missing", schema.InvalidArgs, []journal.Entry{entry("user_message", `{}`)}, false},
		{"a key of the wrong kind", schema.InvalidArgs, []journal.Entry{entry("state_changed", `{"patch":{}}`), entry("session_ended", `{"outcome":1}`)}, false},
		{"no object", schema.InvalidArgs, []journal.Entry{entry("note", `[]`)}, false},
		{"a live-only type", schema.EphemeralNotLoggable, []journal.Entry{entry("text_delta", `{"text":"x"}`)}, false},
		{"a good entry and a bad one", schema.InvalidArgs, []journal.Entry{journaltest.Note("x"), entry("usage", `{}`)}, false},
		{"a call id twice", schema.DuplicateCall, []journal.Entry{call, call}, true},
		{"a result without a call", schema.ResultWithoutCall, []journal.Entry{journaltest.Result("c9", 1, "1")}, true},
		{"a good call and a bad result", schema.ResultWithoutCall, []journal.Entry{call, journaltest.Result("c9", 1, "1")}, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			store, faults := journaltest.Faulty(journaltest.Files(t))
			j := journaltest.Open(t, store, "s1")
			head, writes := j.Head(), faults.Seen(journaltest.Write)
			_, err := j.Append(ctx, c.entries...)
			if !errors.Is(err, c.kind) {
				t.Errorf("got %v, want %s", err, c.kind)
			}
			if j.Head() != head || j.Err() != nil || faults.Seen(journaltest.Write) != writes {
				t.Errorf("the head is %v, the journal's error %v", j.Head(), j.Err())
			}
			journaltest.Append(t, j, journaltest.Note("goes on"), call)

			opt := journaltest.Options()
			opt.NewState = nil
			bare, err := journal.Open(ctx, store, "s2", opt)
			must(t, err)
			defer bare.Close()
			if _, err := bare.Append(ctx, c.entries...); c.folded != (err == nil) {
				t.Errorf("without a state: %v", err)
			}
		})
	}
}

func TestARecordIsWhatIsOnDisk(t *testing.T) {
	store := journaltest.Files(t)
	j := journaltest.Open(t, store, "s1")
	id := ulid.Make()
	named := journaltest.Note("c")
	named.ID = id
	var records []journal.Record
	records = append(records, journaltest.Append(t, j, journaltest.Note("a"))...)
	records = append(records, journaltest.Append(t, j, journaltest.Note("b"), named, journaltest.Note("d"))...)
	if r := journaltest.Append(t, j); len(r) > 0 {
		t.Errorf("appending nothing gives %v", r)
	}
	b, err := os.ReadFile(filepath.Join(store.Dir(), "sessions", "s1", "000001.jsonl"))
	must(t, err)
	disk := bytes.Split(b, newline)[3:] // behind the claim, the seal and session_started
	prev := journaltest.Verify(t, store, "s1").Events[1].Sum
	for i, r := range records {
		if !bytes.Equal(disk[i], r.Line) {
			t.Errorf("record %d is %s, on disk is %s", i, r.Line, disk[i])
		}
		if r.Seq != uint64(3+i) || r.Epoch != 1 || r.Session != "s1" || r.Prev != prev || r.ID == (ulid.ULID{}) {
			t.Errorf("record %d is %+v", i, r.Event)
		}
		prev = r.Sum
		back, err := j.Event(ctx, r.Seq)
		if err != nil || !bytes.Equal(back.Line, r.Line) || back.Event.Head() != r.Event.Head() || !bytes.Equal(back.Data, r.Data) {
			t.Errorf("event %d is read back as %s, %v", r.Seq, back.Line, err)
		}
	}
	if records[2].ID != id {
		t.Errorf("the id given was %s, recorded is %s", id, records[2].ID)
	}
	// When a batch is written only what was before it is known to be durable.
	for i, want := range []uint64{2, 3, 3, 3} {
		if records[i].Dur != want {
			t.Errorf("record %d says that %d is durable, want %d", i, records[i].Dur, want)
		}
	}
	if h := j.Head(); h != records[3].Event.Head() {
		t.Errorf("the head is %v", h)
	}
	for _, seq := range []uint64{0, 7, 1 << 60} {
		if _, err := j.Event(ctx, seq); !errors.Is(err, schema.NotFound) {
			t.Errorf("event %d gives %v", seq, err)
		}
	}
	journaltest.Release(t, j)
	again := journaltest.Open(t, store, "s1")
	if back, err := again.Event(ctx, 4); err != nil || !bytes.Equal(back.Line, records[1].Line) {
		t.Errorf("the next writer reads event 4 as %s, %v", back.Line, err)
	}
}

func TestAnEventThatChangedUnderneathIsNotReadBack(t *testing.T) {
	store := journaltest.Files(t)
	j, err := journal.Open(ctx, store, "s1", journaltest.Options())
	must(t, err)
	defer j.Close()
	journaltest.Append(t, j, journaltest.Note("before"))
	path := filepath.Join(store.Dir(), "sessions", "s1", "000001.jsonl")
	b, err := os.ReadFile(path)
	must(t, err)
	must(t, os.WriteFile(path, bytes.Replace(b, []byte("before"), []byte("BEFORE"), 1), 0o600))
	if _, err := j.Event(ctx, 3); !errors.Is(err, schema.CorruptLogLine) {
		t.Errorf("got %v", err)
	}
}

func TestTheStateMovesWithWhatIsRecorded(t *testing.T) {
	store, faults := journaltest.Faulty(journaltest.Files(t))
	j := journaltest.Open(t, store, "s1")
	journaltest.Append(t, j, journaltest.Call("c1", "read", `{}`), journaltest.Started("c1", 1))
	digest := func() (d string) {
		j.View(func(s journal.State) { d = s.(*replay.State).Digest() })
		return d
	}
	if l := journaltest.Verify(t, store, "s1"); l.State.Digest() != digest() {
		t.Error("the state of the writer is not that of a reader")
	}
	before := digest()
	faults.FailSync(1, journaltest.ErrDisk)
	faults.FailWrite(2, journaltest.ErrDisk) // so it cannot go on
	if _, err := j.Append(ctx, journaltest.Result("c1", 1, "1")); !errors.Is(err, schema.SyncFailed) {
		t.Fatal(err)
	}
	if digest() != before {
		t.Error("a result that nobody was told of is in the state")
	}
	must(t, j.Close())
	if next := journaltest.Open(t, store, "s1"); next.Head().Seq != 6 {
		t.Errorf("the head is %v", next.Head())
	}
}

func TestManyCallersOfOneJournalShareOneOrder(t *testing.T) {
	store := journaltest.Files(t)
	j := journaltest.Open(t, store, "s1")
	var wg sync.WaitGroup
	var mu sync.Mutex
	var heads []schema.Head
	for g := range 8 {
		wg.Go(func() {
			for i := range 10 {
				r, err := j.Append(ctx, journaltest.Note(fmt.Sprint(g, i)), journaltest.Note("and"))
				if err != nil {
					t.Error(err)
					return
				}
				if r[1].Seq != r[0].Seq+1 || r[1].Prev != r[0].Sum {
					t.Errorf("a batch was torn apart: %d, %d", r[0].Seq, r[1].Seq)
				}
				_ = j.Head()
				j.View(func(journal.State) {})
				mu.Lock()
				heads = append(heads, r[0].Event.Head(), r[1].Event.Head())
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	l := journaltest.Verify(t, store, "s1")
	if gone := l.Missing(heads); len(gone) > 0 || len(l.Events) != 2+160 || len(l.Findings) > 0 {
		t.Errorf("%d events, missing %v, findings %v", len(l.Events), gone, l.Findings)
	}
}

func TestAReleaseIsTheLastLine(t *testing.T) {
	store := journaltest.Files(t)
	j := journaltest.Open(t, store, "s1")
	must(t, j.Release(ctx, "tea time"))
	must(t, j.Close()) // and may be closed once more
	if _, err := j.Append(ctx, journaltest.Note("x")); !errors.Is(err, schema.SessionWriterLost) {
		t.Errorf("append after release gives %v", err)
	}
	l := journaltest.Verify(t, store, "s1")
	last := l.Events[len(l.Events)-1]
	if last.Type != schema.TypeWriterReleased || string(last.Data) != `{"reason":"tea time"}` || !l.State.Epochs[0].Released {
		t.Errorf("the last event is %s %s", last.Type, last.Data)
	}
}

// Seal and session_started are one write; a crash may leave the first alone.
func TestASessionThatWasNotStartedIsStartedByTheNext(t *testing.T) {
	for _, keep := range []int{600, 1 << 20} { // the seal and a piece; all
		store, faults := journaltest.Faulty(journaltest.Files(t))
		faults.ShortWrite(2, keep, journaltest.ErrDisk)
		opt := journaltest.Options()
		opt.Started = []byte(`{"workspace":"/w"}`)
		if _, err := journal.Open(ctx, store, "s1", opt); !errors.Is(err, schema.LogWriteFailed) {
			t.Fatal(err)
		}
		j := journaltest.OpenWith(t, store, "s1", opt)
		if j.How() != schema.HowTakeover {
			t.Errorf("the session was come by as %s", j.How())
		}
		l := journaltest.Verify(t, store, "s1")
		n := 0
		for _, e := range l.Events {
			if e.Type == schema.TypeSessionStarted {
				n++
			}
		}
		if n != 1 || l.State.Started == nil || l.State.Started.Workspace != "/w" {
			t.Errorf("session_started stands there %d times; the state has %+v", n, l.State.Started)
		}
	}
}

func TestTheReasonOfATakeOverIsInTheLog(t *testing.T) {
	store := journaltest.Files(t)
	j, err := journal.Open(ctx, store, "s1", journaltest.Options())
	must(t, err)
	opt := journaltest.Options()
	opt.Force, opt.By, opt.Reason = true, "anna", "it hangs"
	next := journaltest.OpenWith(t, store, "s1", opt)
	must(t, j.Close())
	r, err := next.Event(ctx, next.Head().Seq)
	must(t, err)
	var seal schema.Seal
	must(t, schema.Unmarshal(r.Data, &seal))
	if e := seal.Evidence; seal.How != schema.HowForced || e == nil || e.By != "anna" || e.Reason != "it hangs" || e.State != "active" || e.Observed == "" {
		t.Errorf("the seal says %s", r.Data)
	}
	if c := strings.Split(string(r.Line), `"claim":"`); len(c) != 2 {
		t.Errorf("the seal names no claim: %s", r.Line)
	}
}
