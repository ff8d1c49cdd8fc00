// Package journaltest is what tests of the journal, and of what stands on it,
// share: the suite that every store must pass, stores that verify themselves
// when a test ends, faults between a store and the kernel, and writers that
// are processes of their own and can be killed.
//
// Only tests import it.
package journaltest

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"steno/journal"
	"steno/lease"
	"steno/replay"
	"steno/schema"
)

// TempDir is a folder for a test whose syncs need not reach a disk: in memory,
// where the machine has a place for that and TMPDIR names no other.
func TempDir(t testing.TB) string {
	t.Helper()
	if os.Getenv("TMPDIR") == "" {
		if dir, err := os.MkdirTemp("/dev/shm", "steno-"); err == nil {
			t.Cleanup(func() {
				if err := os.RemoveAll(dir); err != nil {
					t.Error(err)
				}
			})
			return dir
		}
	}
	return t.TempDir()
}

// Files makes an empty store in a TempDir and closes it when the test ends.
func Files(t testing.TB) *journal.Files {
	t.Helper()
	return FilesIn(t, TempDir(t))
}

// FilesIn makes an empty store in a folder.
func FilesIn(t testing.TB, dir string) *journal.Files {
	t.Helper()
	f, err := journal.OpenFiles(dir, true)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}

// Options are those of a writer that folds the log and may make its session.
func Options() journal.Options {
	return journal.Options{
		Holder:   lease.Self("journaltest"),
		NewState: func() journal.State { return replay.New() },
		Create:   true,
		By:       "journaltest",
	}
}

// Open opens a session with Options. When the test ends the journal is closed
// and the session verified.
func Open(t testing.TB, store journal.Store, session string) *journal.Journal {
	t.Helper()
	return OpenWith(t, store, session, Options())
}

// Force is Open past a holder that may be alive.
func Force(t testing.TB, store journal.Store, session string) *journal.Journal {
	t.Helper()
	opt := Options()
	opt.Force, opt.Reason = true, "the test says so"
	return OpenWith(t, store, session, opt)
}

// OpenWith is Open with other options.
func OpenWith(t testing.TB, store journal.Store, session string, opt journal.Options) *journal.Journal {
	t.Helper()
	j, err := journal.Open(context.Background(), store, session, opt)
	if err != nil {
		t.Fatalf("open %s: %v", session, err)
	}
	t.Cleanup(func() {
		j.Close()
		Verify(t, store, session)
	})
	return j
}

// Append appends entries that must be recorded.
func Append(t testing.TB, j *journal.Journal, entries ...journal.Entry) []journal.Record {
	t.Helper()
	records, err := j.Append(context.Background(), entries...)
	if err != nil {
		t.Fatalf("append to %s: %v", j.Session(), err)
	}
	return records
}

// Release ends an epoch in good order.
func Release(t testing.TB, j *journal.Journal) {
	t.Helper()
	if err := j.Release(context.Background(), "done"); err != nil {
		t.Fatalf("release %s: %v", j.Session(), err)
	}
}

// Note is an entry that every session takes at any time.
func Note(text string) journal.Entry {
	var o schema.Object
	return journal.Entry{Type: schema.TypeNote, Data: o.Text("text", text).Bytes()}
}

// Message is a user's message.
func Message(text string) journal.Entry {
	var o schema.Object
	return journal.Entry{Type: schema.TypeUserMessage, Data: o.Text("text", text).Bytes()}
}

// Call, Started and Result are the three events of a call that runs. Args and
// output are compact JSON.
func Call(id, name, args string) journal.Entry {
	sum, err := schema.ArgsSHA256([]byte(args))
	if err != nil {
		panic(err)
	}
	var o schema.Object
	o.Text("call_id", id).Text("name", name).Raw("args", []byte(args)).Text("args_sha256", sum)
	return journal.Entry{Type: schema.TypeToolCall, Data: o.Bytes()}
}

// Started is the start of a call's tool.
func Started(id string, attempt uint64) journal.Entry {
	var o schema.Object
	o.Text("call_id", id).Uint("attempt", attempt).Text("executor", "journaltest")
	return journal.Entry{Type: schema.TypeToolStarted, Data: o.Bytes()}
}

// Result is a genuine result that is ok.
func Result(id string, attempt uint64, output string) journal.Entry {
	var o schema.Object
	o.Text("call_id", id).Uint("attempt", attempt).Bool("ok", true).Raw("output", []byte(output)).Uint("duration_us", 1)
	return journal.Entry{Type: schema.TypeToolResult, Data: o.Bytes()}
}

// A Log is one reading of a whole session.
type Log struct {
	*journal.Scan
	State    *replay.State
	Events   []schema.Event // their Data is their own
	Findings []schema.Finding
	Places   []journal.Item // of each event, without the event
}

// Read reads a session with a state beside it. It returns what it has read
// with the error that ended it.
func Read(store journal.Store, session string, opt journal.ScanOptions) (*Log, error) {
	l := &Log{State: replay.New()}
	opt.State = l.State
	l.Scan = journal.NewScan(store, session, opt)
	for it, err := range l.Items(context.Background()) {
		if err != nil {
			return l, err
		}
		if it.Finding != nil {
			l.Findings = append(l.Findings, *it.Finding)
			continue
		}
		e := *it.Event
		e.Data = bytes.Clone(e.Data)
		it.Event, it.Line = nil, nil
		l.Events, l.Places = append(l.Events, e), append(l.Places, it)
	}
	return l, nil
}

// Verify reads a whole session and its blobs; a finding of severity error fails the test.
func Verify(t testing.TB, store journal.Store, session string) *Log {
	t.Helper()
	l, err := Read(store, session, journal.ScanOptions{Blobs: true})
	if err != nil {
		t.Errorf("verify %s: %v", session, err)
		return l
	}
	for _, f := range l.Findings {
		if f.Severity == schema.SeverityError {
			t.Errorf("verify %s: %v", session, f.Err(session))
		}
	}
	last := uint64(0)
	for _, e := range l.Events {
		if e.Seq != last+1 && l.Count(schema.Repaired) == 0 || e.Seq <= last {
			t.Errorf("verify %s: event %d follows %d", session, e.Seq, last)
			break
		}
		last = e.Seq
	}
	return l
}

// Missing gives those of the acknowledged heads that are not in the log: what
// was acknowledged and then lost.
func (l *Log) Missing(acknowledged []schema.Head) []schema.Head {
	there := make(map[schema.Head]bool, len(l.Events))
	for i := range l.Events {
		there[l.Events[i].Head()] = true
	}
	return slices.DeleteFunc(slices.Clone(acknowledged), func(h schema.Head) bool { return there[h] })
}

// Count is how many findings of a kind, or with a reason, there are.
func (l *Log) Count(what error) (n int) {
	for _, f := range l.Findings {
		if what == error(f.Kind) || what == error(f.Reason) {
			n++
		}
	}
	return n
}

// Silence makes the holder of a session look as if it had not beaten for longer
// than the window. It stands still, or has no beat that goes on; otherwise its
// next one undoes that.
func Silence(t testing.TB, f *journal.Files, session string) {
	t.Helper()
	st, err := f.Lease(context.Background(), session)
	if err != nil || st.Beat == nil {
		t.Fatalf("session %s has no holder that beats: %+v, %v", session, st, err)
	}
	b := *st.Beat
	b.Nanos -= int64(lease.Window + time.Second)
	file, err := os.OpenFile(filepath.Join(f.Dir(), "holders", b.Holder, "beat"), os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	if _, err := file.WriteAt(b.Line(), 0); err != nil {
		t.Fatal(err)
	}
}
