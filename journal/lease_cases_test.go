package journal_test

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"steno/journal"
	"steno/journal/journaltest"
	"steno/lease"
	"steno/schema"
)

// An observer is what a process that looks at a session can know.
type observer struct {
	Host, Locks, Lock string
	BootID            string `json:"boot_id"`
	TimeNS            string `json:"time_namespace"`
	Beat              *struct {
		Holder string
		BootID string   `json:"boot_id"`
		TimeNS string   `json:"time_namespace"`
		Age    *float64 `json:"age_s"`
		Moved  *bool
	}
	Watched float64 `json:"watched_s"`
	Self    *struct{ Epoch uint64 }
}

// leaseWant is what follows from it.
type leaseWant struct {
	State                  lease.State
	Acquire, Force, Append *struct {
		OK    bool
		Kind  schema.Kind
		How   string
		Epoch uint64
	}
}

// What an observer sees is decided as written, from the evidence alone, and
// again with real files, locks and beats where this machine can have them.
func TestLeaseCases(t *testing.T) {
	for _, c := range journaltest.Cases(t, "lease") {
		t.Run(c.Name, func(t *testing.T) {
			t.Parallel()
			var o observer
			var w leaseWant
			must(t, json.Unmarshal(c.Read(t, "observer.json"), &o))
			must(t, json.Unmarshal(c.Lease, &w))
			if o.Self != nil {
				o.self(t, c, w)
				return
			}
			st := o.evidence(t, c).Status()
			if st.Undecided {
				e := st.Evidence
				e.Watched = time.Duration(o.Watched * float64(time.Second))
				e.Moved = o.moves() && o.Beat.Holder == e.Holder.ID
				st = e.Status()
			}
			kind := schema.Kind("")
			if !w.Acquire.OK {
				kind = w.Acquire.Kind
			}
			if st.State != w.State || st.Undecided || schema.KindOf(st.Err(c.Session)) != kind {
				t.Errorf("%s (undecided: %t), %v; want %+v", st.State, st.Undecided, st.Err(c.Session), w)
			}
			if o.Locks == "trusted" {
				synctest.Test(t, func(t *testing.T) { o.real(t, c, w) })
			}
		})
	}
}

func (o *observer) moves() bool { return o.Beat != nil && o.Beat.Moved != nil && *o.Beat.Moved }

// evidence puts together what is written of a case.
func (o *observer) evidence(t *testing.T, c *journaltest.Case) lease.Evidence {
	t.Helper()
	list, err := filepath.Glob(filepath.Join(c.Dir, c.Log, "*.jsonl"))
	must(t, err)
	b, err := os.ReadFile(slices.Max(list))
	must(t, err)
	e, err := lease.ReadSegment(c.Session, uint64(len(list)), bytes.NewReader(b), int64(len(b)))
	must(t, err)
	e.Held, e.Untrusted, e.Host = o.Lock == "held", o.Locks == "untrusted", o.Host
	e.Here = lease.Clock{BootID: o.BootID, TimeNS: o.TimeNS, Nanos: int64(24 * time.Hour)}
	e.Beat = o.beat(e.Here)
	return e
}

// beat is the one that is seen, by a clock.
func (o *observer) beat(here lease.Clock) *lease.Beat {
	if o.Beat == nil {
		return nil
	}
	b := &lease.Beat{Holder: o.Beat.Holder, Clock: here, Count: 1}
	if o.Beat.BootID != o.BootID {
		b.BootID = "another boot"
	}
	if o.Beat.TimeNS != o.TimeNS {
		b.TimeNS = "another namespace"
	}
	if o.Beat.Age != nil {
		b.Nanos -= int64(*o.Beat.Age * float64(time.Second))
	}
	return b
}

// real lays out the files, holds the lock, beats, and asks for the session.
func (o *observer) real(t *testing.T, c *journaltest.Case, w leaseWant) {
	store := journaltest.Files(t)
	c.Lay(t, c.Log, store.Dir(), c.Session)
	dir := filepath.Join(store.Dir(), "sessions", c.Session)
	before := files(t, dir)
	st, err := store.Lease(t.Context(), c.Session)
	must(t, err)
	if o.Lock == "held" {
		f, err := os.Open(filepath.Join(dir, segmentFile(st.Epoch)))
		must(t, err)
		defer f.Close()
		must(t, syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB))
	}
	if b := o.beat(st.Here); b != nil {
		folder := filepath.Join(store.Dir(), "holders", b.Holder)
		must(t, os.MkdirAll(folder, 0o700))
		f, err := os.OpenFile(filepath.Join(folder, "beat"), os.O_CREATE|os.O_WRONLY, 0o600)
		must(t, err)
		defer f.Close()
		_, err = f.WriteAt(b.Line(), 0)
		must(t, err)
		if o.moves() {
			over, gone := make(chan struct{}), make(chan struct{})
			defer func() { close(over); <-gone }()
			go func() {
				defer close(gone)
				for {
					select {
					case <-over:
						return
					case <-time.After(lease.Interval):
						b.Count++
						if _, err := f.WriteAt(b.Line(), 0); err != nil {
							t.Error(err)
						}
					}
				}
			}()
		}
	}
	seen, err := lease.Observe(t.Context(), func() (lease.Status, error) { return store.Lease(t.Context(), c.Session) })
	must(t, err)
	if seen.State != w.State || seen.Undecided {
		t.Errorf("with real files: %s (undecided: %t), %s; want %s", seen.State, seen.Undecided, seen.Observed(), w.State)
	}
	opt := journaltest.Options()
	want := w.Acquire
	j, err := journal.Open(t.Context(), store, c.Session, opt)
	if !want.OK {
		if schema.KindOf(err) != want.Kind {
			t.Errorf("acquiring gives %v, want %s", err, want.Kind)
		}
		if got := files(t, dir); len(got) != len(before) {
			t.Errorf("a refusal has left %d files of %d", len(got), len(before))
		}
		// The command refuses force past a holder that is alive; package journal
		// leaves that to it.
		if want = w.Force; !want.OK {
			return
		}
		opt.Force, opt.Reason = true, "the test says so"
		j, err = journal.Open(t.Context(), store, c.Session, opt)
	}
	must(t, err)
	if j.How() != want.How || j.Epoch() != want.Epoch {
		t.Errorf("the session was come by as %s in epoch %d, want %+v", j.How(), j.Epoch(), want)
	}
	must(t, j.Close())
	after := files(t, dir)
	for path, b := range before {
		if after[path] != b {
			t.Errorf("%s has changed", path)
		}
	}
}

// self is the holder, after a long sleep: it has the session exactly if nobody
// else came.
func (o *observer) self(t *testing.T, c *journaltest.Case, w leaseWant) {
	store := journaltest.Files(t)
	c.Lay(t, c.Log, store.Dir(), c.Session)
	dir := filepath.Join(store.Dir(), "sessions", c.Session)
	later := files(t, dir)
	for path := range later {
		if path >= filepath.Join(dir, segmentFile(o.Self.Epoch)) {
			must(t, os.Remove(path))
		} else {
			delete(later, path)
		}
	}
	j, err := journal.Open(ctx, store, c.Session, journaltest.Options())
	must(t, err)
	defer j.Close()
	if j.Epoch() != o.Self.Epoch {
		t.Fatalf("the epoch is %d", j.Epoch())
	}
	journaltest.Silence(t, store, c.Session)
	for path, b := range later {
		if filepath.Base(path) != segmentFile(o.Self.Epoch) {
			must(t, os.WriteFile(path, []byte(b), 0o600))
		}
	}
	state := lease.Active
	_, err = j.Append(ctx, journaltest.Note("after a long sleep"))
	if schema.KindOf(j.Err()) == schema.SessionWriterLost {
		state = lease.Lost
	}
	if schema.KindOf(err) != w.Append.Kind || w.Append.OK != (err == nil) || state != w.State {
		t.Errorf("%s, and the append gives %v; want %+v", state, err, w)
	}
}
