package replay_test

import (
	"fmt"
	"runtime"
	"testing"

	"steno/replay"
	"steno/schema"
)

// A log that is only read through is refused the same events as one that is
// gone on with.
func TestACheckerRefusesWhatAStateRefuses(t *testing.T) {
	for _, holes := range []bool{false, true} {
		for _, c := range checks {
			var l log
			given := l.add(c.given...)
			state, checker := replay.New(), replay.NewChecker()
			for i := range given {
				if holes && i == len(given)/2 {
					state.Hole()
					checker.Hole()
				}
				a, b := state.Check(given[i:i+1]), checker.Check(given[i:i+1])
				if fmt.Sprint(a) != fmt.Sprint(b) {
					t.Errorf("%s: of event %d the state says %v, the checker %v", c.name, i, a, b)
				}
				state.Apply(&given[i])
				checker.Apply(&given[i])
			}
			batch := l.add(c.batch...)
			a, b := state.Check(batch), checker.Check(batch)
			if fmt.Sprint(a) != fmt.Sprint(b) || !holes && schema.KindOf(b) != c.kind {
				t.Errorf("%s: the state says %v, the checker %v, want %q", c.name, a, b, c.kind)
			}
		}
	}
}

// heap is how many bytes of memory v takes for each of n.
func heap(n int, fold func(i int)) float64 {
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	for i := range n {
		fold(i)
	}
	runtime.GC()
	runtime.ReadMemStats(&after)
	return float64(int64(after.HeapAlloc)-int64(before.HeapAlloc)) / float64(n)
}

// What a reader keeps of a log is bounded by its calls.
func TestACheckerKeepsLittleOfACallAndNothingElse(t *testing.T) {
	const n = 30_000
	for _, c := range []struct {
		name    string
		entries func(i int) []entry
		most    float64
	}{
		{"call", func(i int) []entry {
			id := fmt.Sprintf("a-call-with-a-long-id-%0100d", i)
			return []entry{call(id), decided(id), started(id, 1), result(id, "")}
		}, 60},
		{"message and usage", func(i int) []entry {
			return []entry{message, {"usage", `{"model":"m","tokens":{"input":7}}`}, {"state_changed", fmt.Sprintf(`{"patch":{"k%d":1}}`, i)}, note}
		}, 1},
	} {
		checker, state := replay.NewChecker(), replay.New()
		one := func(s interface {
			Check([]schema.Event) error
			Apply(*schema.Event)
		}) func(int) {
			return func(i int) {
				var l log
				events := l.add(c.entries(i)...)
				for k := range events {
					events[k].Seq = uint64(10*i + k + 1)
					if err := s.Check(events[k : k+1]); err != nil {
						t.Fatal(err)
					}
					s.Apply(&events[k])
				}
			}
		}
		got := heap(n, one(checker))
		t.Logf("a %s: %.0f bytes; in a state %.0f", c.name, got, heap(n, one(state)))
		if got > c.most {
			t.Errorf("a checker keeps %.1f bytes of each %s, more than %.0f", got, c.name, c.most)
		}
		runtime.KeepAlive(checker)
		runtime.KeepAlive(state)
	}
}

// However many calls there are, each is found by its id, and no other id is.
func TestEveryCallIsFoundByItsID(t *testing.T) {
	var l log
	s := replay.New()
	ids := map[string]uint64{}
	for i := range 5000 {
		id := fmt.Sprintf("c%0*d", 1+i%20, i*i) // shorter and longer than what a table holds of it
		if other := s.Call(id); (other == nil) != (ids[id] == 0) || other != nil && other.Seq != ids[id] {
			t.Fatalf("before it is recorded, %s is %+v, want one with number %d", id, other, ids[id])
		}
		e := l.add(call(id))
		if err := s.Check(e); (err == nil) != (ids[id] == 0) {
			t.Fatalf("%s: %v", id, err)
		} else if err == nil {
			s.Apply(&e[0])
			ids[id] = e[0].Seq
		}
	}
	for id, seq := range ids {
		if c := s.Call(id); c == nil || c.ID != id || c.Seq != seq {
			t.Fatalf("%s is %+v, want number %d", id, c, seq)
		}
		if c := s.Call(id + "x"); c != nil {
			t.Fatalf("%sx is %+v", id, c)
		}
	}
}
