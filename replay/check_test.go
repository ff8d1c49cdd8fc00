package replay_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/oklog/ulid/v2"

	"steno/replay"
	"steno/schema"
)

// An entry is the type and the data of an event.
type entry struct{ typ, data string }

// log makes the events of a session one after another: numbers, sums and times
// are those of a log, and the same in every run.
type log struct {
	events []schema.Event
}

func (l *log) add(entries ...entry) (added []schema.Event) {
	for _, e := range entries {
		n := uint64(len(l.events)) + 1
		ev := schema.Event{Session: "s1", Seq: n, Epoch: 1, ID: ulid.ULID{15: byte(n), 14: byte(n >> 8)},
			Time: time.Date(2026, 11, 30, 8, 30, 0, int(n)*1000, time.UTC), Type: e.typ, Data: []byte(e.data), Dur: n - 1}
		if n > 1 {
			ev.Prev = l.events[n-2].Sum
		}
		ev.Append(nil)
		l.events = append(l.events, ev)
	}
	return l.events[len(l.events)-len(entries):]
}

// fold applies events that Check must accept one by one.
func fold(t testing.TB, s *replay.State, events []schema.Event) *replay.State {
	t.Helper()
	for i := range events {
		if err := s.Check(events[i : i+1]); err != nil {
			t.Fatalf("event %d, %s: %v", events[i].Seq, events[i].Type, err)
		}
		s.Apply(&events[i])
	}
	return s
}

func call(id string) entry {
	return entry{"tool_call", fmt.Sprintf(`{"call_id":%q,"name":"read","args":{},"args_sha256":"44"}`, id)}
}

func started(id string, attempt int) entry {
	return entry{"tool_started", fmt.Sprintf(`{"call_id":%q,"attempt":%d,"executor":"e"}`, id, attempt)}
}

func decided(id string) entry {
	return entry{"permission_decision", fmt.Sprintf(`{"call_id":%q,"decision":"allow","gate":"policy","by":"policy"}`, id)}
}

func approval(id string) entry {
	return entry{"approval_requested", fmt.Sprintf(`{"call_id":%q,"approval_id":"a","reason":"r"}`, id)}
}

// result is a genuine one; more is further keys.
func result(id, more string) entry {
	return entry{"tool_result", fmt.Sprintf(`{"call_id":%q,"attempt":1,"ok":true,"output":1,"duration_us":5%s}`, id, more)}
}

// failed is a result with an error of this kind.
func failed(id, kind, more string) entry {
	return entry{"tool_result", fmt.Sprintf(`{"call_id":%q,"attempt":1,"ok":false,"error":{"kind":%q,"message":"m","details":{}},"duration_us":5%s}`, id, kind, more)}
}

var (
	note     = entry{"note", `{}`}
	own      = entry{"x.mine", `{"any":1}`}
	ended    = entry{"session_ended", `{"outcome":"completed"}`}
	opened   = entry{"writer_opened", `{"claim":"c","how":"resumed"}`}
	released = entry{"writer_released", `{"reason":"done"}`}
	dead     = entry{"dead_letter", `{"reason":"r","deliveries":3,"message":"m"}`}
	message  = entry{"user_message", `{"text":"hello"}`}
)

var checks = []struct {
	name  string
	given []entry
	batch []entry
	kind  schema.Kind // "" is accepted
}{
	{"a call", nil, []entry{call("a")}, ""},
	{"a call id that is in use", []entry{call("a")}, []entry{call("a")}, schema.DuplicateCall},
	{"a call id that is in use and answered", []entry{call("a"), result("a", "")}, []entry{call("a")}, schema.DuplicateCall},
	{"a call id twice in a batch", nil, []entry{call("a"), call("a")}, schema.DuplicateCall},
	{"a call id that differs in case", []entry{call("a")}, []entry{call("A")}, ""},

	{"a result without a call", nil, []entry{result("a", "")}, schema.ResultWithoutCall},
	{"a start without a call", nil, []entry{started("a", 1)}, schema.ResultWithoutCall},
	{"a decision without a call", nil, []entry{decided("a")}, schema.ResultWithoutCall},
	{"an approval without a call", nil, []entry{approval("a")}, schema.ResultWithoutCall},
	{"a result before its call", nil, []entry{result("a", ""), call("a")}, schema.ResultWithoutCall},
	{"a whole call in a batch", nil, []entry{call("a"), approval("a"), decided("a"), started("a", 1), result("a", "")}, ""},

	{"a second result", []entry{call("a"), result("a", "")}, []entry{result("a", "")}, schema.ResultConflict},
	{"two results in a batch", []entry{call("a")}, []entry{result("a", ""), result("a", "")}, schema.ResultConflict},
	{"call and two results in a batch", nil, []entry{call("a"), result("a", ""), result("a", "")}, schema.ResultConflict},
	{"a genuine result superseded", []entry{call("a"), result("a", "")}, []entry{result("a", `,"supersedes":2`)}, schema.ResultConflict},
	{"a genuine failure superseded", []entry{call("a"), failed("a", "tool_failed", "")}, []entry{result("a", `,"supersedes":2`)}, schema.ResultConflict},
	{"an interrupted one superseded", []entry{call("a"), failed("a", "interrupted", "")}, []entry{result("a", `,"supersedes":2`)}, ""},
	{"a synthetic one superseded", []entry{call("a"), result("a", `,"synthetic":true`)}, []entry{result("a", `,"supersedes":2`)}, ""},
	{"an unknown outcome superseded", []entry{call("a"), failed("a", "outcome_unknown", "")}, []entry{result("a", `,"supersedes":2`)}, ""},
	{"a deadline superseded", []entry{call("a"), failed("a", "timeout", "")}, []entry{failed("a", "tool_failed", `,"supersedes":2`)}, ""},
	{"an interrupted one, not superseded", []entry{call("a"), failed("a", "interrupted", "")}, []entry{result("a", "")}, schema.ResultConflict},
	{"another event superseded", []entry{call("a"), failed("a", "interrupted", "")}, []entry{result("a", `,"supersedes":1`)}, schema.ResultConflict},
	{"a later number superseded", []entry{call("a"), failed("a", "interrupted", "")}, []entry{result("a", `,"supersedes":3`)}, schema.ResultConflict},
	{"superseded twice", []entry{call("a"), failed("a", "interrupted", ""), result("a", `,"supersedes":2`)}, []entry{result("a", `,"supersedes":2`)}, schema.ResultConflict},
	{"the superseding one superseded", []entry{call("a"), failed("a", "interrupted", ""), result("a", `,"supersedes":2`)}, []entry{result("a", `,"supersedes":3`)}, schema.ResultConflict},
	{"the result of another call superseded", []entry{call("a"), failed("a", "interrupted", ""), call("b")}, []entry{result("b", `,"supersedes":2`)}, schema.ResultConflict},
	{"a first result that supersedes", []entry{call("a")}, []entry{result("a", `,"supersedes":1`)}, schema.ResultConflict},
	{"interrupted and superseded in a batch", []entry{call("a")}, []entry{failed("a", "interrupted", ""), result("a", `,"supersedes":2`)}, ""},
	{"call, interrupted and superseded in a batch", nil, []entry{call("a"), failed("a", "interrupted", ""), result("a", `,"supersedes":2`)}, ""},
	{"superseded twice in a batch", []entry{call("a"), failed("a", "interrupted", "")}, []entry{result("a", `,"supersedes":2`), result("a", `,"supersedes":2`)}, schema.ResultConflict},
	{"a start after an interrupted result", []entry{call("a"), started("a", 1), failed("a", "interrupted", "")}, []entry{started("a", 2)}, ""},

	{"what may follow the end", []entry{ended}, []entry{released, opened, note, own, dead, released}, ""},
	{"a message after the end", []entry{ended}, []entry{message}, schema.SessionEnded},
	{"a call after the end", []entry{ended}, []entry{call("a")}, schema.SessionEnded},
	{"a second end", []entry{ended}, []entry{ended}, schema.SessionEnded},
	{"two ends in a batch", nil, []entry{ended, ended}, schema.SessionEnded},
	{"a message after the end in a batch", nil, []entry{ended, message}, schema.SessionEnded},
	{"a start after the end", []entry{call("a"), ended}, []entry{started("a", 1)}, schema.SessionEnded},
	{"a first result after the end", []entry{call("a"), ended}, []entry{result("a", "")}, schema.SessionEnded},
	{"a superseding result after the end", []entry{call("a"), failed("a", "interrupted", ""), ended}, []entry{result("a", `,"supersedes":2`)}, ""},
	{"a first result after the end that says it supersedes", []entry{call("a"), ended}, []entry{result("a", `,"supersedes":1`)}, schema.ResultConflict},
	{"an unknown type after the end", []entry{ended}, []entry{{"of_the_future", `{}`}}, schema.SessionEnded},

	{"data that does not fit", nil, []entry{{"user_message", `{}`}}, schema.InvalidArgs},
	{"a live-only type", nil, []entry{{"text_delta", `{}`}}, schema.EphemeralNotLoggable},
	{"nothing", nil, nil, ""},
}

func TestCheckRefusesByKindAndChangesNothing(t *testing.T) {
	for _, c := range checks {
		t.Run(c.name, func(t *testing.T) {
			var l log
			s := fold(t, replay.New(), l.add(c.given...))
			before := s.Digest()
			batch := l.add(c.batch...)
			err := s.Check(batch)
			if got := schema.KindOf(err); got != c.kind {
				t.Errorf("got %v, want %q", err, c.kind)
			}
			if s.Digest() != before {
				t.Error("the check has changed the state")
			}
			if err2 := s.Check(batch); !errors.Is(err2, c.kind) && err != err2 {
				t.Errorf("the second check gives %v", err2)
			}
			if c.kind == "" {
				fold(t, s, batch) // one by one it is the same
			}
		})
	}
}

func TestARefusalNamesTheSessionAndTheCall(t *testing.T) {
	var l log
	err := replay.New().Check(l.add(result("a", "")))
	if d := schema.AsError(err).Details; d["session"] != "s1" || d["call_id"] != "a" {
		t.Errorf("the details are %v", d)
	}
}

// A batch is checked as if each event were applied before the next is looked
// at. Random batches of a few events over two calls find what a list of cases
// has forgotten.
func TestABatchIsCheckedAsIfAppliedOneByOne(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 1))
	accepted, refused := 0, 0
	for range 4000 {
		var l log
		s := replay.New()
		random := func() entry {
			id := []string{"a", "b"}[r.IntN(2)]
			super := ""
			if r.IntN(3) > 0 {
				super = fmt.Sprintf(`,"supersedes":%d`, 1+r.IntN(len(l.events)+1))
			}
			switch r.IntN(9) {
			case 0, 1:
				return call(id)
			case 2:
				return started(id, 1+r.IntN(2))
			case 3:
				return result(id, super)
			case 4, 5:
				return failed(id, "interrupted", super)
			case 6:
				return result(id, `,"synthetic":true`+super)
			case 7:
				return []entry{note, message, opened, decided(id)}[r.IntN(4)]
			}
			return []entry{ended, note, message}[r.IntN(3)]
		}
		for range r.IntN(6) {
			e := l.add(random())
			if s.Check(e) == nil {
				s.Apply(&e[0])
			} else {
				l.events = l.events[:len(l.events)-1]
			}
		}
		given := l.events[:len(l.events):len(l.events)]
		var batch []schema.Event
		for range 1 + r.IntN(4) {
			batch = append(batch, l.add(random())...)
		}
		got := s.Check(batch)
		one := fold(t, replay.New(), given)
		var want error
		for i := range batch {
			if want = one.Check(batch[i : i+1]); want != nil {
				break
			}
			one.Apply(&batch[i])
		}
		if schema.KindOf(got) != schema.KindOf(want) {
			t.Fatalf("after %v the batch %v gives %v; one by one %v", show(given), show(batch), got, want)
		}
		if want == nil {
			accepted++
		} else {
			refused++
		}
	}
	if accepted < 400 || refused < 400 {
		t.Errorf("%d batches were accepted and %d refused; that tests little", accepted, refused)
	}
}

func show(events []schema.Event) (out []string) {
	for _, e := range events {
		out = append(out, fmt.Sprintf("%d %s %s", e.Seq, e.Type, e.Data))
	}
	return out
}
