package replay_test

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"math/rand/v2"
	"testing"

	"steno/journal"
	"steno/journal/journaltest"
	"steno/replay"
	"steno/schema"
)

// random is a log that a writer could have written.
func random(t *testing.T, r *rand.Rand, n int) []schema.Event {
	var l log
	s := replay.New()
	s.Apply(&l.add(entry{"writer_opened", `{"claim":"c","how":"new"}`})[0])
	for len(l.events) < n {
		id := fmt.Sprint("c", r.IntN(n/4+1))
		if r.IntN(4) == 0 {
			id = "a-call-with-a-long-id-" + id
		}
		super := ""
		if c := s.Call(id); c != nil && c.Result != nil {
			super = fmt.Sprintf(`,"supersedes":%d`, c.Result.Seq)
		}
		e := l.add([]entry{call(id), call(id), call(id), approval(id), allowed(id, "a", grant), decided(id), started(id, 1), started(id, 2), result(id, super), result(id, super),
			failed(id, "tool_failed", super), failed(id, "interrupted", super+`,"synthetic":true`), failed(id, "timeout", super), message, note, own, opened, released,
			{"assistant_message", `{"text":"m"}`}, {"state_changed", fmt.Sprintf(`{"patch":{"k%d":{"x":%d,"y":null}}}`, r.IntN(4), r.IntN(9))}, {"usage", `{"model":"m","tokens":{"in":3}}`},
			{"history_rewind", fmt.Sprintf(`{"to_seq":%d}`, 1+r.IntN(len(l.events)))}, {"history_compaction", `{"range":{"from_seq":1,"to_seq":1},"summary":"s","strategy":"x"}`},
			{"phase_changed", `{"from":"plan","to":"do","task_kind":"edit"}`}, {"posture_changed", `{"from":"ask","to":{"mode":"auto","policy_hash":"h"},"by":"anna","reason":"r"}`}}[r.IntN(25)])
		if s.Check(e) != nil {
			l.events = l.events[:len(l.events)-1]
		} else {
			s.Apply(&e[0])
		}
	}
	return l.events
}

// reload saves a state and loads it.
func reload(t *testing.T, s *replay.State) *replay.State {
	t.Helper()
	b := s.Save()
	if b == nil {
		t.Fatal("a state cannot be saved")
	}
	loaded, err := replay.Load(b)
	if err != nil {
		t.Fatal(err)
	}
	return loaded
}

// A state that is saved at any event and goes on from there is that of the whole
// log, as far as a writer can tell, and so is one that is saved again.
func TestALoadedStateGoesOnAsTheWholeOne(t *testing.T) {
	replay.SetRecent(2)
	defer replay.SetRecent(replay.Recent)
	seed := journaltest.Seed(t)
	logs := map[string][]schema.Event{"whole": whole().events}
	for n := range 12 {
		logs[fmt.Sprint("random ", n)] = random(t, journaltest.Rand(seed, "saved", n), 40+10*n)
	}
	store := frozen(t)
	for id, err := range store.Sessions(t.Context()) {
		if err != nil {
			t.Fatal(err)
		}
		if l, err := journaltest.Read(store, id, journal.ScanOptions{}); err == nil && l.FirstError == nil && len(l.Repairs) == 0 {
			logs[id] = l.Events
		}
	}
	past := 0
	for name, events := range logs {
		all := fold(t, replay.New(), events)
		for k := range len(events) + 1 {
			s := reload(t, fold(t, replay.New(), events[:k]))
			if why := journaltest.Differs(fold(t, replay.New(), events[:k]), s, events); why != "" {
				t.Fatalf("%s, saved at %d: %s", name, k, why)
			}
			again := k + (len(events)-k)/2
			fold(t, s, events[k:again])
			s = reload(t, s)
			fold(t, s, events[again:])
			if why := journaltest.Differs(all, s, events); why != "" {
				t.Fatalf("%s, saved at %d and %d: %s", name, k, again, why)
			}
			past += len(all.Calls) - len(s.Calls)
		}
	}
	if past < 1000 {
		t.Errorf("only %d calls were past", past)
	}
}

// What may follow does not depend on whether a state was loaded.
func TestALoadedStateRefusesTheSame(t *testing.T) {
	replay.SetRecent(0)
	defer replay.SetRecent(replay.Recent)
	refused := 0
	for n := range 12 {
		events := random(t, journaltest.Rand(journaltest.Seed(t), "refuses", n), 60)
		whole, loaded := fold(t, replay.New(), events), reload(t, fold(t, replay.New(), events))
		for _, c := range whole.Calls {
			l := log{events: events}
			for _, e := range []entry{call(c.ID), result(c.ID, ""), failed(c.ID, "interrupted", ""), started(c.ID, 2), decided(c.ID), approval(c.ID), result(c.ID, `,"supersedes":9`)} {
				batch := l.add(e)
				a, b := whole.Check(batch), loaded.Check(batch)
				if fmt.Sprint(a) != fmt.Sprint(b) {
					t.Fatalf("%s of call %s: the loaded state says %v, the whole one %v", e.typ, c.ID, b, a)
				}
				if a != nil {
					refused++
				}
			}
		}
	}
	if refused < 100 {
		t.Errorf("only %d events were refused", refused)
	}
}

// Of a log with holes only the log itself tells, and a state that was cut, or is
// none, is not loaded. What is changed in one is found by whoever keeps it.
func TestWhatIsNoSavedState(t *testing.T) {
	s := fold(t, replay.New(), whole().events)
	b := s.Save()
	for n := range len(b) {
		if _, err := replay.Load(b[:n]); err == nil {
			t.Fatalf("the first %d of %d bytes are loaded", n, len(b))
		}
	}
	if _, err := replay.Load(append(b, 0)); err == nil {
		t.Error("a byte too many is loaded")
	}
	if s.Hole(); s.Save() != nil {
		t.Error("a state with holes is saved")
	}
}

// Events that are not those of the call make none of it.
func TestRecallTakesTheEventsOfOneCall(t *testing.T) {
	events := whole().events
	var a []schema.Event
	for _, seq := range []uint64{6, 7, 8, 9, 10} {
		a = append(a, events[seq-1])
	}
	if c, err := replay.Recall("a", a); err != nil || c.Result == nil || c.Seq != 6 {
		t.Fatal(c, err)
	}
	for name, events := range map[string][]schema.Event{
		"none": nil, "without the call": a[1:], "without the result": a[:4], "of another": {events[10], events[11], events[12], events[13]},
		"of two": append(a[:5:5], events[10]),
	} {
		if c, err := replay.Recall("a", events); schema.KindOf(err) != schema.CorruptLogLine {
			t.Errorf("%s: %v, %v", name, c, err)
		}
	}
}

// A checkpoint of an earlier version must not be taken for one of this. Where
// this changes, raise checkpointVersion in package journal.
func TestTheFormOfASavedState(t *testing.T) {
	replay.SetRecent(1)
	defer replay.SetRecent(replay.Recent)
	sum := sha256.Sum256(fold(t, replay.New(), whole().events).Save())
	if got, want := hex.EncodeToString(sum[:]), "4b95de739ee735c22f8e1e7958468c08bbf68d8cf01ec4f4c73d0e03257375e4"; got != want {
		t.Errorf("a saved state has the sum %s and no longer %s", got, want)
	}
}
