package journal_test

import (
	"bytes"
	"fmt"
	"strings"
	"testing"

	"steno/journal"
	"steno/journal/journaltest"
	"steno/schema"
)

// Only a seal that counts may say what is left out.
func TestAForgedRepairHidesNothing(t *testing.T) {
	base := healthy(t)
	base.replace(1, 4, "hello", "hullo")
	honest := base.store()
	_, err := journal.Repair(ctx, honest, "s1", repairing())
	must(t, err)
	repaired := segmentsOf(t, honest)
	if l := read(t, repaired); l.FirstError != nil || l.Count(schema.Repaired) != 1 {
		t.Fatalf("the honest repair leaves %v", l.Findings)
	}
	var seal schema.Seal
	repaired.event(4, 2, func(e *schema.Event) { must(t, schema.Unmarshal(e.Data, &seal)) })
	list := seal.Skipped
	// forge makes the seal of a segment one that lists the damage.
	forge := func(s segments, epoch uint64) []byte {
		return s.event(epoch, 2, func(e *schema.Event) {
			var own schema.Seal
			must(t, schema.Unmarshal(e.Data, &own))
			own.How, own.Skipped = schema.HowRepair, list
			e.Data = own.Data()
		})
	}
	for name, edit := range map[string]func(s segments){
		"a seal in the middle":   func(s segments) { s.set(2, 2, forge(s, 2)) },
		"the newest seal":        func(s segments) { s.set(3, 2, forge(s, 3)) },
		"a seal that was edited": func(s segments) { s.replace(3, 2, `"how":"takeover"`, `"how":"repair"  `) },
		"a second seal":          func(s segments) { s.insert(3, 3, forge(s, 3)) },
		"surplus": func(s segments) {
			s[2] = append(s[2], forge(s, 2)...)
		},
		"a repair behind another claim": func(s segments) {
			s[4] = append(claimLine(4), bytes.Join(repaired.lines(4)[1:], nil)...)
		},
		"a repair that a later seal calls void": func(s segments) {
			s[4] = bytes.Clone(repaired[4])
			j := segments{1: s[1], 2: s[2], 3: s[3]}.store()
			// Its list is gone with it, so the next one must list again.
			j.Put("s1", 4, claimLine(4))
			_, err := journal.Repair(ctx, j, "s1", repairing())
			must(t, err)
			s[5] = segmentsOf(t, j)[5]
			s[5] = bytes.Join([][]byte{s.line(5, 1), s.event(5, 2, func(e *schema.Event) {
				var own schema.Seal
				must(t, schema.Unmarshal(e.Data, &own))
				own.How, own.Skipped = schema.HowTakeover, nil
				e.Data = own.Data()
			})}, nil)
		},
	} {
		s := base.clone()
		edit(s)
		l := read(t, s)
		if f := l.FirstError; f == nil || l.Count(schema.Repaired) > 0 || f.Segment != 1 || f.Line != 4 {
			t.Errorf("%s: found %v", name, l.Findings)
		}
	}
	// A list is about segments below.
	s := base.clone()
	list = []schema.Skipped{{Epoch: 3, Line: 4, Lines: 1}}
	s.set(3, 5)
	s.replace(3, 4, "thanks", "THANKS")
	for i, f := range read(t, s).Findings {
		if i == 1 {
			list = []schema.Skipped{{Epoch: 3, Line: f.Line, Lines: 1, Offset: f.Offset, Bytes: f.Bytes, SHA256: f.SHA256, Reason: f.Reason}}
		}
	}
	s.set(3, 2, forge(s, 3))
	if l := read(t, s); l.Count(schema.Repaired) > 0 {
		t.Errorf("a seal lists a place in its own segment: %v", l.Findings)
	}
}

// long is a log of many events, and of every so many one is damaged.
func long(t *testing.T, events, every int) segments {
	t.Helper()
	store := journaltest.NewMemory()
	opt := journaltest.Options()
	j, err := journal.Open(ctx, store, "s1", opt)
	must(t, err)
	for n := 0; n < events; n += 500 {
		batch := make([]journal.Entry, 500)
		for i := range batch {
			batch[i] = journaltest.Note(fmt.Sprint("note ", n+i))
		}
		journaltest.Append(t, j, batch...)
	}
	must(t, j.Release(ctx, "done"))
	s := segmentsOf(t, store)
	lines := s.lines(1)
	for i := 3; i < 3+events; i += every {
		lines[i][20] ^= 1
	}
	s[1] = bytes.Join(lines, nil)
	return s
}

func TestARunOfBadLinesIsOnePlace(t *testing.T) {
	t.Parallel()
	store := long(t, 5000, 1).store()
	_, after := repair(t, store)
	if n := after.Count(schema.Repaired); n != 5000 {
		t.Errorf("%d lines are named", n)
	}
	if r := after.Repairs[0]; r.Places != 1 || r.Lines != 5000 {
		t.Errorf("the repair says %+v", r)
	}
	// Every line of the run is held on to.
	s := segmentsOf(t, store)
	s.line(1, 2500)[30] ^= 1
	if l := read(t, s); l.FirstError == nil || l.Count(schema.CorruptLogLine) != 5000 {
		t.Errorf("another flip in the run: %d errors", l.Count(schema.CorruptLogLine))
	}
}

func TestMoreDamageThanASealCanListIsRefused(t *testing.T) {
	t.Parallel()
	s := long(t, 9000, 2)
	store := s.store()
	refused(t, store, repairing(), schema.CorruptLogLine)
	_, err := journal.Repair(ctx, store, "s1", repairing())
	if e := schema.AsError(err); e.Details["places"] != 4500 || !strings.Contains(e.Message, "more places than one repair can list") {
		t.Errorf("got %v, %v", err, e.Details)
	}
	store = long(t, 7000, 2).store() // and this many it can
	if got, err := journal.Repair(ctx, store, "s1", repairing()); err != nil || len(got.Skipped) != 3500 {
		t.Errorf("%d places: %v", len(got.Skipped), err)
	}
	if _, err := journaltest.Read(store, "s1", journal.ScanOptions{Strict: true}); err != nil {
		t.Error(err)
	}
}

func TestWhoRepairsAndWhyIsBounded(t *testing.T) {
	store := long(t, 500, 100).store()
	opt := repairing()
	opt.Reason = strings.Repeat("x", 1025)
	refused(t, store, opt, schema.InvalidArgs)
	opt.Reason = ""
	refused(t, store, opt, schema.InvalidArgs) // a suspect tail needs one
	opt.AcceptTail, opt.By = false, ""
	got, err := journal.Repair(ctx, store, "s1", opt)
	if err != nil || got.By != "journaltest" || got.Reason != "the log was damaged" {
		t.Errorf("got %+v, %v", got, err)
	}
}

func TestASessionInUseIsNotRepaired(t *testing.T) {
	store := journaltest.Files(t).WithoutLog() // which has the line
	j, err := journal.Open(ctx, store, "s1", journaltest.Options())
	must(t, err)
	journaltest.Append(t, j, journaltest.Note("one"))
	journaltest.Append(t, j, journaltest.Note("two"))
	flip(t, store, 1, 4)
	refused(t, store, repairing(), schema.SessionWriterActive)
	must(t, j.Close())
	if got, err := journal.Repair(ctx, store, "s1", repairing()); err != nil || len(got.Skipped) != 1 {
		t.Errorf("when it is over: %+v, %v", got, err)
	}
}
