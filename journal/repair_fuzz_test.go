package journal_test

import (
	"bytes"
	"errors"
	"slices"
	"testing"

	"steno/journal"
	"steno/journal/journaltest"
	"steno/schema"
)

// Whatever somebody has made of a log, a repair lets it be read strictly, and
// means what was read before; again and again.
func FuzzRepair(f *testing.F) {
	f.Add([]byte{}, []byte{})
	for op := range byte(13) {
		f.Add([]byte{op, 0, 1, 200, 0, 3}, []byte{op, 1, 0, 30, 1, 40})
		f.Add([]byte{op, 2, 2, 3, 2, 6}, []byte{op, 0, 1, 9, 2, 6})
		f.Add([]byte{op, 2, 0, 2, 200, 6, op, 1, 0, 1, 3, op}, []byte{12, 3, 0, 1, 1, 6})
	}
	f.Fuzz(func(t *testing.T, first, second []byte) {
		s := fixed()
		for _, script := range [][]byte{first, second} {
			edit(s, script[:min(len(script), 6*16)])
			if len(s) == 0 {
				return
			}
			store := s.store()
			before := read(t, s)
			got, err := journal.Repair(ctx, store, "s1", repairing())
			unchanged(t, store, s)
			if errors.Is(err, schema.UnsupportedSchemaVersion) || errors.Is(err, schema.SessionWriterAmbiguous) {
				return
			}
			if err != nil || (got.Epoch > 0) != (before.FirstError != nil) {
				t.Fatalf("repaired: %+v, %v; before it %v", got, err, before.FirstError)
			}
			after, err := journaltest.Read(store, "s1", journal.ScanOptions{Strict: true})
			if err != nil {
				t.Fatalf("strict: %v\nbefore %+v\nlisted %+v", err, before.Findings, got)
			}
			if meaning(after.State) != meaning(before.State) || len(after.Missing(heads(before))) > 0 {
				t.Fatalf("the log means something else\nbefore %+v\nafter %+v", before.Findings, after.Findings)
			}
			s = segmentsOf(t, store)
		}
	})
}

// The last event stands once more in a torn tail, behind a line that a repair
// has listed: what counts ends before it all the same.
func TestACopyInATornTailIsNotWhatARepairPins(t *testing.T) {
	s := healthy(t)
	top := uint64(len(s))
	lines := bytes.SplitAfter(s[top], []byte("\n"))
	last := lines[len(lines)-2]
	s[top] = slices.Concat(s[top], []byte("\xff is no line\n"), []byte("\x00\x00\n"), last)
	store := s.store()
	before, err := journaltest.Read(store, "s1", journal.ScanOptions{})
	must(t, err)
	got, err := journal.Repair(ctx, store, "s1", repairing())
	if err != nil || len(got.Skipped) != 1 {
		t.Fatalf("listed %+v, %v; before it %v", got.Skipped, err, before.Findings)
	}
	after, err := journaltest.Read(store, "s1", journal.ScanOptions{Strict: true})
	if err != nil || after.Count(schema.TornTail) != 1 || meaning(after.State) != meaning(before.State) {
		t.Errorf("after the repair: %v, %v", after.Findings, err)
	}
}
