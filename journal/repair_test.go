package journal_test

import (
	"bytes"
	"errors"
	"maps"
	"slices"
	"strings"
	"testing"

	"steno/journal"
	"steno/journal/journaltest"
	"steno/lease"
	"steno/replay"
	"steno/schema"
)

// repairing are the options of a person who has looked.
func repairing() journal.RepairOptions {
	return journal.RepairOptions{
		Holder: lease.Self("journaltest"), NewState: func() journal.State { return replay.New() },
		By: "somebody", Reason: "the test says so", AcceptTail: true,
	}
}

// meaning is the digest of what a log says, without its writers and its end.
func meaning(st *replay.State) string {
	c := *st
	c.Session, c.Head, c.Epochs = "", schema.Head{}, nil // it has the id from any event, a seal too
	return c.Digest()
}

// isError tells errors from notices.
func isError(f schema.Finding) bool { return f.Severity == schema.SeverityError }

// repair repairs a session that can be, and checks all that must hold after it.
func repair(t *testing.T, store journal.Store) (before, after *journaltest.Log) {
	t.Helper()
	bytesBefore := segmentsOf(t, store)
	before, err := journaltest.Read(store, "s1", journal.ScanOptions{})
	must(t, err)
	opt := repairing()
	opt.DryRun = true
	planned, err := journal.Repair(ctx, store, "s1", opt)
	must(t, err)
	if planned.Epoch != 0 || len(planned.Skipped) == 0 || planned.Head != before.Head || len(segmentsOf(t, store)) != len(bytesBefore) {
		t.Fatalf("a dry run gives %+v, and leaves %d segments", planned, len(segmentsOf(t, store)))
	}
	done, err := journal.Repair(ctx, store, "s1", repairing())
	must(t, err)
	if !slices.Equal(done.Skipped, planned.Skipped) || done.Epoch == 0 {
		t.Errorf("the repair %+v is another than planned: %+v", done, planned)
	}
	unchanged(t, store, bytesBefore)

	after, err = journaltest.Read(store, "s1", journal.ScanOptions{Strict: true})
	if err != nil {
		t.Fatalf("strict after the repair: %v", err)
	}
	if got, want := meaning(after.State), meaning(before.State); got != want {
		t.Error("the log means something else after the repair")
	}
	if n := len(before.Events); len(after.Events) != n+2 || !slices.Equal(heads(after)[:n], heads(before)) || after.Head != done.Head {
		t.Errorf("%d events before, %d after; the head is %s, of the repair %s", n, len(after.Events), after.Head, done.Head)
	}
	listed(t, before, after)
	if again, err := journal.Repair(ctx, store, "s1", repairing()); err != nil || again.Epoch != 0 || len(again.Skipped) > 0 {
		t.Errorf("a second repair gives %+v, %v", again, err)
	}
	goesOn(t, store, after)
	return before, after
}

// listed checks that each error has become a notice with the same place.
func listed(t *testing.T, before, after *journaltest.Log) {
	t.Helper()
	for _, f := range before.Findings {
		if !isError(f) {
			continue
		}
		if f.Reason == schema.ClaimCorrupt && slices.ContainsFunc(after.Findings, func(g schema.Finding) bool {
			return g.Kind == schema.VoidClaim && g.Segment == f.Segment
		}) {
			continue
		}
		ok := slices.ContainsFunc(after.Findings, func(g schema.Finding) bool {
			return g.Kind == schema.Repaired && g.Reason == f.Reason && g.Segment == f.Segment && g.Line == f.Line && g.Offset == f.Offset &&
				g.SHA256 == f.SHA256 && strings.Contains(g.Detail, "by somebody: the test says so")
		})
		if !ok {
			t.Errorf("%+v\nis not named as repaired in\n%+v", f, after.Findings)
		}
	}
	if len(after.Repairs) == 0 || after.Repairs[len(after.Repairs)-1].By != "somebody" {
		t.Errorf("the repairs are %+v", after.Repairs)
	}
}

func unchanged(t *testing.T, store journal.Store, before segments) {
	t.Helper()
	after := segmentsOf(t, store)
	for epoch, b := range before {
		if !bytes.Equal(b, after[epoch]) {
			t.Errorf("segment %d has changed", epoch)
		}
	}
}

// goesOn checks that a writer goes on, and finds every event and no other.
func goesOn(t *testing.T, store journal.Store, l *journaltest.Log) {
	t.Helper()
	j, err := journal.Open(ctx, store, "s1", journaltest.Options())
	must(t, err)
	journaltest.Append(t, j, journaltest.Note("goes on"))
	for i, e := range l.Events {
		if r, err := j.Event(ctx, e.Seq); err != nil || r.Sum != e.Sum {
			t.Errorf("event %d is read back as %s, %v", e.Seq, r.Sum, err)
		}
		if next := e.Seq + 1; i+1 < len(l.Events) && l.Events[i+1].Seq != next {
			if _, err := j.Event(ctx, next); !errors.Is(err, schema.NotFound) {
				t.Errorf("event %d, which is missing, gives %v", next, err)
			}
		}
	}
	head := j.Head()
	must(t, j.Close())
	if again := journaltest.Verify(t, store, "s1"); again.Head != head || len(again.Missing(append(heads(l), head))) > 0 {
		t.Errorf("a writer went on to %s; the log ends with %s", head, again.Head)
	}
}

func TestEveryDamageCanBeRepaired(t *testing.T) {
	t.Parallel()
	base := healthy(t)
	seen := map[schema.Reason]bool{}
	for _, d := range damages {
		t.Run(d.name, func(t *testing.T) {
			s := base.clone()
			d.edit(s)
			store := s.store()
			l, err := journaltest.Read(store, "s1", journal.ScanOptions{})
			must(t, err)
			newer, void, errs := false, 0, 0
			for _, f := range l.Findings {
				newer = newer || f.Kind == schema.UnsupportedSchemaVersion
				if isError(f) {
					errs++
				}
				if f.Reason == schema.ClaimCorrupt && f.Segment == 4 {
					void++
				}
				seen[f.Reason] = true
			}
			switch {
			case newer:
				refused(t, store, repairing(), schema.UnsupportedSchemaVersion)
			case errs == 0:
				if got, err := journal.Repair(ctx, store, "s1", repairing()); err != nil || got.Epoch != 0 || len(segmentsOf(t, store)) != len(s) {
					t.Errorf("a log in order is repaired: %+v, %v", got, err)
				}
			case errs == void:
				refused(t, store, repairing(), schema.SessionWriterAmbiguous)
			default:
				suspect := l.Count(schema.TailSuspect) > 0
				if suspect {
					opt := repairing()
					opt.AcceptTail = false
					refused(t, store, opt, schema.TailSuspect)
				}
				repair(t, store)
			}
		})
	}
	for _, r := range []schema.Reason{schema.InvalidJSON, schema.InvalidUTF8, schema.NULBytes, schema.GluedLines, schema.NotAnObject,
		schema.BadEnvelope, schema.SumMismatch, schema.OverLimit, schema.TooDeep, schema.DuplicateKey, schema.ChainBroken, schema.SeqGap,
		schema.SeqDuplicate, schema.SessionMismatch, schema.EpochFell, schema.BadEvent, schema.ClaimCorrupt, schema.SealMismatch,
		schema.SealShort, schema.SegmentMissing, schema.TerminatorDamaged} {
		if !seen[r] {
			t.Errorf("no damage shows %s", r)
		}
	}
}

// refused checks that a repair is refused and changes nothing.
func refused(t *testing.T, store journal.Store, opt journal.RepairOptions, want schema.Kind) {
	t.Helper()
	before := segmentsOf(t, store)
	for _, dry := range []bool{true, false} {
		opt.DryRun = dry
		if got, err := journal.Repair(ctx, store, "s1", opt); !errors.Is(err, want) || got.Epoch != 0 {
			t.Errorf("dry run %t: %+v, %v; want %s", dry, got, err, want)
		}
	}
	if after := segmentsOf(t, store); len(after) != len(before) {
		t.Error("a refused repair has left a segment")
	}
	unchanged(t, store, before)
}

// Whatever changes in or beside a place after its repair is found again, and
// can be repaired again; what the first repair lists stays listed.
func TestDamageAfterARepairIsFoundAgain(t *testing.T) {
	t.Parallel()
	base := healthy(t)
	for _, d := range damages {
		s := base.clone()
		d.edit(s)
		store := s.store()
		l, err := journaltest.Read(store, "s1", journal.ScanOptions{})
		must(t, err)
		if l.FirstError == nil || l.Count(schema.UnsupportedSchemaVersion) > 0 {
			continue
		}
		if _, err := journal.Repair(ctx, store, "s1", repairing()); errors.Is(err, schema.SessionWriterAmbiguous) {
			continue
		} else {
			must(t, err)
		}
		whole := segmentsOf(t, store)
		sound, err := journaltest.Read(store, "s1", journal.ScanOptions{})
		must(t, err)
		for epoch := range whole {
			for n := range whole.lines(epoch) {
				for what, edit := range map[string]func(s segments){
					"a bit": func(s segments) { line := s.line(epoch, n+1); line[len(line)/3] ^= 1 },
					"blank": func(s segments) {
						line := s.line(epoch, n+1)
						copy(line, bytes.Repeat([]byte(" "), len(line)-1))
					},
					"gone":  func(s segments) { s.set(epoch, n+1) },
					"twice": func(s segments) { s.insert(epoch, n+1, s.line(epoch, n+1)) },
				} {
					c := whole.clone()
					edit(c)
					again, err := journaltest.Read(c.store(), "s1", journal.ScanOptions{})
					must(t, err)
					found := !slices.Equal(again.Findings, sound.Findings)
					lost := len(again.Missing(heads(sound))) > 0
					tail := epoch == slices.Max(slices.Collect(maps.Keys(whole))) // its end can go unnoticed
					if !found && !tail || lost && again.FirstError == nil && !tail {
						t.Errorf("%s: then %s in segment %d line %d: lost %t, findings %v", d.name, what, epoch, n+1, lost, again.Findings)
					}
					if again.FirstError != nil && again.Count(schema.Repaired) > 0 {
						twice(t, c.store(), again)
					}
				}
			}
		}
	}
}

// twice checks that a repaired log which was damaged again is repaired again,
// and that the second repair lists only what is new.
func twice(t *testing.T, store journal.Store, l *journaltest.Log) {
	t.Helper()
	got, err := journal.Repair(ctx, store, "s1", repairing())
	if errors.Is(err, schema.SessionWriterAmbiguous) { // what is left is no matter of repair
		return
	}
	must(t, err)
	after, err := journaltest.Read(store, "s1", journal.ScanOptions{Strict: true})
	if err != nil || len(after.Missing(heads(l))) > 0 || meaning(after.State) != meaning(l.State) || len(after.Repairs) != len(l.Repairs)+1 {
		t.Errorf("repaired again: %v; repairs %+v", err, after.Repairs)
	}
	bad := 0
	for _, f := range l.Findings {
		if isError(f) {
			bad++
		}
	}
	if len(got.Skipped)+len(got.Void) > bad {
		t.Errorf("%d places are listed for %d errors", len(got.Skipped), bad)
	}
}

// A line has one finding. When one of its blobs is listed, another one that is
// lost later must still be found.
func TestEveryBlobOfALineIsListedByItself(t *testing.T) {
	store := journaltest.NewMemory()
	j, err := journal.Open(ctx, store, "s1", journaltest.Options())
	must(t, err)
	big := func(c string) []byte { return []byte(`"` + strings.Repeat(c, 300<<10) + `"`) }
	var o schema.Object
	o.Text("call_id", "c1").Uint("attempt", 1).Bool("ok", true).Raw("output", big("a")).Raw("structured", big("b")).Uint("duration_us", 1)
	journaltest.Append(t, j, journaltest.Call("c1", "read", `{}`), journaltest.Started("c1", 1))
	journaltest.Append(t, j, journal.Entry{Type: schema.TypeToolResult, Data: o.Bytes()})
	journaltest.Append(t, j, journaltest.Note("after it"))
	must(t, j.Close())
	refs, err := schema.Refs(read(t, segmentsOf(t, store)).Events[4].Data)
	must(t, err)
	if len(refs) != 2 {
		t.Fatalf("%d blobs", len(refs))
	}
	verified := func() *journaltest.Log {
		l, err := journaltest.Read(store, "s1", journal.ScanOptions{Blobs: true})
		must(t, err)
		return l
	}
	for n := range refs {
		store.PutBlob("s1", refs[1-n].Ref.SHA256, []byte("gone"))
		l := verified()
		if l.Count(schema.BlobMismatch) != 1 || l.FirstError == nil || !strings.Contains(l.FirstError.Detail, refs[1-n].Ref.SHA256) {
			t.Errorf("blob %d damaged: %v", 1-n, l.Findings)
		}
		got, err := journal.Repair(ctx, store, "s1", repairing())
		if err != nil || len(got.Skipped) != 1 || got.Skipped[0].Blob != refs[1-n].Ref.SHA256 {
			t.Errorf("blob %d is listed as %+v, %v", 1-n, got.Skipped, err)
		}
		if l := verified(); l.FirstError != nil || l.Count(schema.Repaired) != 1 || l.State.Call("c1").State != replay.OK {
			t.Errorf("after its repair: %v", l.Findings)
		}
	}
}

// Both at once are both listed.
func TestTwoBlobsOfALineAreListed(t *testing.T) {
	store := journaltest.NewMemory()
	j, err := journal.Open(ctx, store, "s1", journaltest.Options())
	must(t, err)
	var o schema.Object
	o.Text("text", strings.Repeat("a", 300<<10)).Raw("content", []byte(`"`+strings.Repeat("b", 300<<10)+`"`))
	journaltest.Append(t, j, journal.Entry{Type: schema.TypeUserMessage, Data: o.Bytes()})
	must(t, j.Release(ctx, "done"))
	refs, err := schema.Refs(read(t, segmentsOf(t, store)).Events[2].Data)
	must(t, err)
	for _, r := range refs {
		store.PutBlob("s1", r.Ref.SHA256, nil)
	}
	got, err := journal.Repair(ctx, store, "s1", repairing())
	if err != nil || len(got.Skipped) != 2 || len(refs) != 2 {
		t.Errorf("listed %+v, %v", got.Skipped, err)
	}
	if _, err := journaltest.Read(store, "s1", journal.ScanOptions{Blobs: true, Strict: true}); err != nil {
		t.Error(err)
	}
}
