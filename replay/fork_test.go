package replay_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"steno/replay"
	"steno/schema"
)

// forked is a session that was made from the events of another.
func forked(t *testing.T, events []schema.Event, at uint64) *log {
	t.Helper()
	f, err := replay.ReadFork("s1", at, all(events))
	if err != nil {
		t.Fatal(err)
	}
	var l log
	l.add(entry{"writer_opened", `{"claim":"c","how":"new"}`}, entry{"session_started", string(f.Started())})
	for c, err := range f.Copies() {
		if err != nil {
			t.Fatal(err)
		}
		l.add(entry{c.Type, string(c.Data)})
	}
	return &l
}

func TestS9AForkBeginsWithWhatWasSaidAndDone(t *testing.T) {
	t.Parallel()
	events := whole().events
	l := forked(t, events, uint64(len(events)))
	s := fold(t, replay.New(), l.events)
	for id, want := range map[string]replay.CallState{"a": replay.OK, "b": replay.OK, "c": replay.Failed} {
		if c := s.Call(id); c == nil || c.State != want {
			t.Errorf("call %s is %+v", id, c)
		}
	}
	for _, id := range []string{"d", "e", "f"} {
		if s.Call(id) != nil {
			t.Errorf("call %s, which was open, is copied", id)
		}
	}
	before := fold(t, replay.New(), events)
	if s.Ended != nil || len(s.Grants) != 0 || s.Phase != before.Phase || s.TaskKind != before.TaskKind || s.Posture.Mode != before.Posture.Mode || len(s.Messages) != len(before.Messages) {
		t.Errorf("the state is %s", encode(t, s))
	}
	sum := events[len(events)-1].Sum
	if want := fmt.Sprintf(`{"session":"s1","seq":%d,"sum":%q,"how":"fork"}`, len(events), sum); string(s.Started.Parent) != want || s.Started.Workspace != "/w" {
		t.Errorf("the beginning is %+v", s.Started)
	}
	for _, e := range l.events[2:] {
		var d struct {
			Origin struct {
				Session, ID string
				Seq         uint64
			}
			Key string
		}
		if err := json.Unmarshal(e.Data, &d); err != nil {
			t.Fatal(err)
		}
		if o := events[d.Origin.Seq-1]; d.Origin.Session != "s1" || d.Origin.ID != o.ID.String() || o.Type != e.Type || d.Key != "" {
			t.Errorf("event %d is %s and comes from %d", e.Seq, e.Data, d.Origin.Seq)
		}
	}
	// A fork of the fork names where its events really come from.
	again := forked(t, l.events, 0)
	if a, b := string(again.events[5].Data), string(l.events[5].Data); a != b {
		t.Errorf("a copy of a copy is %s, and was %s", a, b)
	}
}

// Where events of the parent are not copied, the numbers that a copy names are those
// of the fork.
func TestS9AForkNamesItsOwnNumbers(t *testing.T) {
	t.Parallel()
	var p log
	p.add(entry{"writer_opened", `{"claim":"c","how":"new"}`}, entry{"session_started", `{}`}, call("open"), said("4"), released, entry{"writer_opened", `{"claim":"d","how":"resumed"}`},
		said("7"), said("8"), entry{"history_compaction", `{"range":{"from_seq":7,"to_seq":8},"summary":"s","strategy":"x","tail":{"from_seq":9}}`}, said("10"), rewound(9))
	l := forked(t, p.events, 0)
	var got []string
	for _, e := range l.events[2:] {
		data, _, _ := strings.Cut(string(e.Data), `,"origin"`)
		got = append(got, data)
	}
	want := []string{`{"text":"4"`, `{"text":"7"`, `{"text":"8"`, `{"range":{"from_seq":4,"to_seq":5},"summary":"s","strategy":"x","tail":{"from_seq":6}}`, `{"text":"10"`, `{"to_seq":6`}
	want[3] = strings.TrimSuffix(want[3], "}")
	if strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("the copies are\n%s\nand not\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// At every seq: what is copied can be folded, its numbers are its own, and its
// messages are those of the parent but for what was open.
func TestS9AForkAtAnySeqIsASoundSession(t *testing.T) {
	t.Parallel()
	var p log
	p.add(entry{"writer_opened", `{"claim":"c","how":"new"}`}, entry{"session_started", `{}`}, said("one"),
		entry{"tool_call", `{"call_id":"a","name":"read","args":{"n":1e400},"args_sha256":"44","key":"k"}`}, started("a", 1), said("two"),
		failed("a", "interrupted", `,"synthetic":true`), dead, output("a", "late", `,"supersedes":7`), said("three"), compacted(9, "sum"), said("four"), rewound(10), said("five"),
		released, entry{"writer_opened", `{"claim":"d","how":"resumed"}`}, said("six"), rewound(14), compacted(12, "again"), said("seven"))
	for at := 1; at <= len(p.events); at++ {
		l := forked(t, p.events, uint64(at))
		fold(t, replay.New(), l.events)
		wholePairs(t, fmt.Sprint("forked at ", at), l.events)
		want, open := gist(t, messages(t, p.events[:at], replay.Projection{Format: "anthropic"})), at >= 4 && at < 7
		got := gist(t, messages(t, l.events, replay.Projection{Format: "anthropic"}))
		if open {
			if strings.Contains(got, "?a") {
				t.Errorf("at %d an open call is copied: %s", at, got)
			}
		} else if got != want {
			t.Errorf("at %d the messages are\n%s\nand not\n%s", at, got, want)
		}
	}
	for _, at := range []uint64{21, 1 << 50} {
		if _, err := replay.ReadFork("s1", at, all(p.events)); schema.KindOf(err) != schema.NotFound {
			t.Errorf("at %d: %v", at, err)
		}
	}
}

func TestS9TheTreeComesFromTheChildren(t *testing.T) {
	t.Parallel()
	kin := func(id, data string) replay.Kin {
		var l log
		if data != "" {
			l.add(entry{"writer_opened", `{"claim":"c","how":"new"}`}, entry{"session_started", data})
		}
		return replay.ReadKin(id, all(l.events))
	}
	of := func(id string) string { return `{"parent":{"session":"` + id + `","seq":7,"sum":"ab","how":"fork"}}` }
	corrupt := replay.ReadKin("broken", func(yield func(*schema.Event, error) bool) {
		yield(nil, schema.Errorf(schema.CorruptLogLine, "damaged"))
	})
	roots := replay.Family([]replay.Kin{kin("a", `{}`), kin("b", of("a")), kin("c", of("b")), kin("d", of("gone")), corrupt, kin("empty", ""), kin("odd", `{"parent":{"session":"../x"}}`),
		kin("x", of("y")), kin("y", of("z")), kin("z", of("y")), kin("self", of("self")), kin("e", of("a"))})
	var say func(b *replay.Branch) string
	say = func(b *replay.Branch) string {
		out := b.Session
		if b.Kind != "" {
			out += ":" + string(b.Kind)
		}
		if b.Missing {
			out += ":missing"
		}
		if b.Cycle {
			out += ":cycle"
		}
		if len(b.Children) > 0 {
			var all []string
			for _, c := range b.Children {
				all = append(all, say(c))
			}
			out += "(" + strings.Join(all, " ") + ")"
		}
		return out
	}
	var got []string
	for _, r := range roots {
		got = append(got, say(r))
	}
	want := "a(b(c) e) gone:not_found:missing(d) broken:corrupt_log_line empty:not_found odd:corrupt_log_line y:cycle(x z) self:cycle"
	if g := strings.Join(got, " "); g != want {
		t.Errorf("the tree is\n%s\nand not\n%s", g, want)
	}
	if roots[0].Children[0].Seq != 7 || roots[0].Children[0].How != "fork" {
		t.Errorf("a child says %+v", roots[0].Children[0])
	}
}
