package replay_test

import (
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"

	jsonv2 "github.com/go-json-experiment/json"

	"steno/replay"
	"steno/schema"
)

// whole is a session with every type of event.
func whole() *log {
	var l log
	l.add(
		entry{"writer_opened", `{"claim":"c","how":"new"}`},
		entry{"session_started", `{"workspace":"/w","labels":{"b":1,"a":"2"},"posture":{"mode":"ask"},"task_kind":"investigate","phase":"plan","parent":{"session":"s0","seq":9}}`},
		message,
		entry{"reasoning", `{"item":{"opaque":"x"},"model":"m"}`},
		entry{"assistant_message", `{"content":[{"type":"text","text":"ok"}]}`},
		call("a"), approval("a"), allowed("a", "a", `{"tool":"read","program":"p","tier":2,"until":"u"}`), started("a", 1), result("a", ""),
		call("b"), started("b", 1), failed("b", "interrupted", `,"synthetic":true`), result("b", `,"supersedes":13`),
		call("c"), failed("c", "tool_failed", ""),
		entry{"phase_changed", `{"from":"plan","to":"do","task_kind":"edit"}`},
		entry{"posture_changed", `{"from":"ask","to":{"mode":"auto","policy_hash":"h"},"by":"anna","reason":"r"}`},
		entry{"state_changed", `{"patch":{"n":1e400,"deep":{"x":1,"y":2}}}`},
		entry{"state_changed", `{"patch":{"deep":{"x":null,"z":12345678901234567890}}}`},
		entry{"usage", `{"model":"m","tokens":{"input":7,"output":8,"cached":9}}`},
		entry{"usage", `{"model":"m","tokens":{"output":2}}`},
		entry{"usage", `{"model":"n","tokens":5}`},
		entry{"turn_failed", `{"terminal_status":"error","error":{"kind":"rate_limited"}}`},
		entry{"history_compaction", `{"range":{"from_seq":1,"to_seq":3},"summary":"s","strategy":"x","tail":{"from_seq":4}}`},
		message,
		entry{"history_rewind", `{"to_seq":5}`},
		message,
		entry{"of_the_future", `{"a":1}`},
		note, own, dead,
		call("d"), call("e"), started("e", 1),
		released,
		entry{"writer_opened", `{"claim":"c2","how":"resumed"}`},
		hidden("f", `[{"pointer":"/args/key","rule":"key:key","hash":"h"}]`), asked("f", "b", "z"),
		ended,
		note,
	)
	return &l
}

func encode(t *testing.T, s *replay.State) string {
	t.Helper()
	b, err := jsonv2.Marshal(s, jsonv2.Deterministic(true))
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// Whatever is asked of a state between two events leaves the end as it is.
func TestAPrefixAndTheRestIsAll(t *testing.T) {
	events := whole().events
	all := fold(t, replay.New(), events)
	for k := range len(events) + 1 {
		s := fold(t, replay.New(), events[:k])
		_ = s.Digest()
		_ = s.Open()
		if k < len(events) {
			_ = s.Check(events[k:])
		}
		fold(t, s, events[k:])
		if s.Digest() != all.Digest() || encode(t, s) != encode(t, all) {
			t.Errorf("folding %d events and then the rest gives\n%s\nand not\n%s", k, encode(t, s), encode(t, all))
		}
	}
}

func TestEveryPrefixHasItsOwnDigest(t *testing.T) {
	seen := map[string]int{}
	s := replay.New()
	for i, e := range whole().events {
		d := s.Digest()
		if before, ok := seen[d]; ok {
			t.Errorf("after %d and after %d events the digest is the same", before, i)
		}
		seen[d] = i
		s.Apply(&e)
	}
}

func TestTheSameEventsGiveTheSameBytes(t *testing.T) {
	var l log
	var tokens, patch []string
	for i := range 60 {
		tokens = append(tokens, fmt.Sprintf(`"t%d":%d`, i, i))
		patch = append(patch, fmt.Sprintf(`"k%d":{"a":1,"b":%d}`, i, i))
	}
	l.add(entry{"usage", `{"model":"m","tokens":{` + strings.Join(tokens, ",") + `}}`},
		entry{"state_changed", `{"patch":{` + strings.Join(patch, ",") + `}}`})
	want := fold(t, replay.New(), l.events)
	for range 20 {
		s := fold(t, replay.New(), l.events)
		if s.Digest() != want.Digest() || encode(t, s) != encode(t, want) {
			t.Fatal("two foldings of the same events differ")
		}
	}
	slices.Reverse(tokens)
	slices.Reverse(patch)
	var other log
	other.add(entry{"usage", `{"model":"m","tokens":{` + strings.Join(tokens, ",") + `}}`},
		entry{"state_changed", `{"patch":{` + strings.Join(patch, ",") + `}}`})
	s := fold(t, replay.New(), other.events)
	want.Head, s.Head = schema.Head{}, schema.Head{}
	if encode(t, s) != encode(t, want) {
		t.Error("the order of keys in a patch is in the state")
	}
}

// Every type does something: none is taken for unknown by mistake.
func TestEveryTypeMovesTheState(t *testing.T) {
	s := replay.New()
	seen := map[string]bool{}
	for _, e := range whole().events {
		before := s.Head
		s.Apply(&e)
		after := s.Head
		if after != e.Head() {
			t.Errorf("%s: the head is %v", e.Type, after)
		}
		s.Head = before
		unmoved := fold(t, replay.New(), whole().events[:e.Seq-1])
		moved := encode(t, s) != encode(t, unmoved)
		s.Head = after
		if known := schema.KnownType(e.Type) || schema.IsOwn(e.Type); moved != known {
			t.Errorf("event %d, %s, moves more than the head: %t", e.Seq, e.Type, moved)
		}
		seen[e.Type] = true
	}
	for _, typ := range []string{
		schema.TypeWriterOpened, schema.TypeWriterReleased, schema.TypeSessionStarted, schema.TypeUserMessage,
		schema.TypeAssistantMessage, schema.TypeReasoning, schema.TypeToolCall, schema.TypeApprovalRequested,
		schema.TypeDecision, schema.TypeToolStarted, schema.TypeToolResult, schema.TypePhaseChanged,
		schema.TypePostureChanged, schema.TypeStateChanged, schema.TypeUsage, schema.TypeTurnFailed,
		schema.TypeHistoryCompaction, schema.TypeHistoryRewind, schema.TypeSessionEnded, schema.TypeDeadLetter, schema.TypeNote,
	} {
		if !seen[typ] {
			t.Errorf("the whole session has no %s", typ)
		}
	}
}

func TestTheStateSaysWhatHappened(t *testing.T) {
	l := whole()
	s := fold(t, replay.New(), l.events)
	for id, want := range map[string]replay.CallState{
		"a": replay.OK, "b": replay.OK, "c": replay.Failed, "d": replay.Pending, "e": replay.Unknown,
	} {
		if c := s.Call(id); c == nil || c.State != want {
			t.Errorf("call %s is %+v, want %s", id, c, want)
		}
	}
	if s.Call("z") != nil {
		t.Error("a call that was never recorded is there")
	}
	var open []string
	for _, c := range s.Open() {
		open = append(open, c.ID)
	}
	if !slices.Equal(open, []string{"d", "e", "f"}) {
		t.Errorf("open are %v", open)
	}
	a, b, c := s.Call("a"), s.Call("b"), s.Call("c")
	if len(a.Approvals) != 1 || len(a.Decisions) != 1 || a.Decisions[0].Decision != "allow" || a.Decisions[0].By != "human" || a.Decisions[0].ApprovalID != "a" || a.Waiting != nil ||
		len(a.Attempts) != 1 || a.Attempts[0].Attempt != 1 || a.Attempts[0].Seq != 9 || a.Result.Duration != 5 || !a.Result.OK {
		t.Errorf("call a is %+v", a)
	}
	if !slices.Equal(b.Superseded, []uint64{13}) || b.Result.Seq != 14 || b.Result.Synthetic {
		t.Errorf("call b is %+v, %+v", b, b.Result)
	}
	if c.Result.Kind != schema.ToolFailed || c.Result.OK {
		t.Errorf("call c ended in %+v", c.Result)
	}
	// 26 was taken out by the rewind, 28 came after it.
	var messages []uint64
	for _, m := range s.Messages {
		messages = append(messages, m.Seq)
	}
	if !slices.Equal(messages, []uint64{3, 4, 5, 28}) {
		t.Errorf("the messages are %v", messages)
	}
	for what, ok := range map[string]bool{
		"session": s.Session == "s1", "phase": s.Phase == "do", "task kind": s.TaskKind == "edit" && s.Escalated,
		"posture":    *s.Posture == replay.Posture{Seq: 18, Mode: "auto", PolicyHash: "h"},
		"grants":     slices.Equal(s.Grants, []replay.Grant{{Seq: 8, Tool: "read", Program: "p", Tier: 2, Until: "u"}}),
		"compaction": s.Compact == nil, "failed": len(s.Failed) == 1, "dead": len(s.Dead) == 1,
		"notes": s.Notes == 3, "ended": s.Ended.Outcome == "completed", "rewinds": slices.Equal(s.Rewinds, []replay.Rewind{{Seq: 27, ToSeq: 5}}),
		"workspace": s.Started.Workspace == "/w", "labels": string(s.Started.Labels) == `{"b":1,"a":"2"}`,
		"parent": string(s.Started.Parent) == `{"session":"s0","seq":9}`,
		"epochs": slices.Equal(s.Epochs, []replay.Epoch{{Epoch: 1, Seq: 1, How: "new"}, {Epoch: 1, Seq: 37, How: "resumed"}}) ||
			len(s.Epochs) == 2 && s.Epochs[0].Released && !s.Epochs[1].Released,
	} {
		if !ok {
			t.Errorf("the %s is wrong in %s", what, encode(t, s))
		}
	}
}

func TestUsageIsSummedByModelAndKey(t *testing.T) {
	var l log
	use := func(model, tokens string) {
		l.add(entry{"usage", fmt.Sprintf(`{"model":%q,"tokens":%s}`, model, tokens)})
	}
	use("m", `{"input":1,"output":2,"note":"text","half":0.5,"minus":-1,"deep":{"x":1},"zero":0}`)
	use("n", `9007199254740993`)
	use("m", `{"input":10}`)
	use("n", `1`)
	use("m", `"many"`)
	s := fold(t, replay.New(), l.events)
	want := []*replay.ModelUsage{
		{Model: "m", Events: 3, Tokens: map[string]uint64{"input": 11, "output": 2, "zero": 0}},
		{Model: "n", Events: 2, Tokens: map[string]uint64{"total": 9007199254740994}},
	}
	if !reflect.DeepEqual(s.Usage, want) {
		t.Errorf("the usage is %s", encode(t, s))
	}
}

func TestARewindTakesMessagesOutAndLeavesCalls(t *testing.T) {
	var l log
	l.add(message, call("a"), started("a", 1), result("a", ""), message, // 1 … 5
		entry{"history_rewind", `{"to_seq":1}`}, message, // 6, 7
		entry{"history_rewind", `{"to_seq":100}`}, // takes nothing
		entry{"history_rewind", `{"to_seq":0}`}, message)
	for k, want := range map[int][]uint64{5: {1, 5}, 6: {1}, 7: {1, 7}, 8: {1, 7}, 9: {}, 10: {10}} {
		s := fold(t, replay.New(), l.events[:k])
		got := []uint64{}
		for _, m := range s.Messages {
			got = append(got, m.Seq)
		}
		if !slices.Equal(got, want) {
			t.Errorf("after %d events the messages are %v, want %v", k, got, want)
		}
		if s.Call("a").State != replay.OK {
			t.Errorf("after %d events call a is %s", k, s.Call("a").State)
		}
		if err := s.Check((&log{events: l.events[:k:k]}).add(call("a"))); schema.KindOf(err) != schema.DuplicateCall {
			t.Errorf("after %d events the call may be made again: %v", k, err)
		}
	}
}

// The compaction before the one that a rewind takes back counts again.
func TestARewindGoesBackToTheEarlierCompaction(t *testing.T) {
	var l log
	l.add(said("1"), compacted(1, "one"), said("3"), compacted(3, "two"), said("5"), compacted(5, "three"), rewound(5), said("8"), rewound(3), rewound(1))
	for n, want := range map[int]uint64{1: 0, 2: 2, 4: 4, 6: 6, 7: 4, 8: 4, 9: 2, 10: 0} {
		s := fold(t, replay.New(), l.events[:n])
		if got := s.Compact; (got == nil) != (want == 0) || got != nil && got.Seq != want {
			t.Errorf("after %d events the compaction is %+v, want that of %d", n, got, want)
		}
	}
}

func TestAHoleLeavesNothingThatMayHaveStartedPending(t *testing.T) {
	var l log
	l.add(call("a"), call("b"), started("b", 1), result("b", ""), call("c"), started("c", 1), failed("c", "interrupted", ""))
	s := fold(t, replay.New(), l.events)
	before := s.Digest()
	s.Hole()
	for id, want := range map[string]replay.CallState{"a": replay.Unknown, "b": replay.OK, "c": replay.Interrupted} {
		if got := s.Call(id).State; got != want {
			t.Errorf("call %s is %s, want %s", id, got, want)
		}
	}
	if s.Digest() == before {
		t.Error("a hole leaves the digest as it is")
	}
	// What is superseded may lie in the hole.
	for name, e := range map[string]entry{"a": result("a", `,"supersedes":9`), "c": result("c", `,"supersedes":9`)} {
		if err := s.Check((&log{events: l.events[:7:7]}).add(e)); err != nil {
			t.Errorf("call %s: %v", name, err)
		}
	}
	if err := s.Check((&log{events: l.events[:7:7]}).add(result("b", `,"supersedes":4`))); schema.KindOf(err) != schema.ResultConflict {
		t.Errorf("a genuine result may be superseded behind a hole: %v", err)
	}
	fold(t, s, (&log{events: l.events[:7:7]}).add(call("z")))
	if s.Call("z").State != replay.Pending {
		t.Error("a call behind the hole is not pending")
	}
}

// What names a call that lies in a hole keeps its id from being used again: it
// may have run.
func TestACallThatIsLostIsNotMadeAgain(t *testing.T) {
	for what, e := range map[string]entry{"start": started("a", 1), "result": result("a", "")} {
		s := replay.New()
		s.Hole()
		var l log
		orphan := l.add(e)
		if err := s.Check(orphan); schema.KindOf(err) != schema.ResultWithoutCall {
			t.Fatalf("a %s without its call: %v", what, err)
		}
		s.Apply(&orphan[0])
		if err := s.Check(l.add(call("a"))); schema.KindOf(err) != schema.DuplicateCall {
			t.Errorf("behind its %s the call may be made again: %v", what, err)
		}
		if err := s.Check(l.add(call("b"))); err != nil {
			t.Errorf("another call: %v", err)
		}
	}
}

// Unknown keys are kept and ignored, whatever other types make of them.
func TestAKeyThatATypeDoesNotKnowIsIgnored(t *testing.T) {
	odd := `"call_id":7,"name":[],"attempt":"x","ok":"no","error":1,"exit_code":{},"supersedes":"y","synthetic":3,` +
		`"how":1,"workspace":2,"task_kind":3,"phase":4,"to":5,"to_seq":"z","outcome":6,"reason":7,"dry_run":"d","duration_us":-1,"by":{}`
	var l log
	l.add(entry{"user_message", `{"text":"hello",` + odd + `}`},
		entry{"usage", `{"model":"m","tokens":1,` + odd + `}`},
		entry{"state_changed", `{"patch":{"a":1},` + odd + `}`},
		entry{"tool_call", `{"call_id":"a","name":"read","args":{},"args_sha256":"44","ok":"no","error":1,"supersedes":"y","attempt":{},"synthetic":1}`},
		entry{"permission_decision", `{"call_id":"a","decision":"deny","gate":"human","by":"human","name":3,"ok":4}`},
		entry{"session_ended", `{"outcome":"failed","call_id":3,"phase":4,"labels":5}`})
	s := fold(t, replay.New(), l.events)
	if len(s.Messages) != 1 || len(s.Usage) != 1 || s.Usage[0].Tokens["total"] != 1 || s.Call("a") == nil ||
		s.Call("a").Decisions[0].Decision != "deny" || s.Ended == nil || s.Ended.Outcome != "failed" || !strings.Contains(encode(t, s), `"working":{"a":1}`) {
		t.Errorf("the state is %s", encode(t, s))
	}
}

// Half a surrogate pair cannot be written by us; a stored line may hold one.
func TestBrokenTextInAStoredLineIsFoldedAndEncoded(t *testing.T) {
	var l log
	l.add(entry{"session_started", `{"labels":{"a":"\ud800"},"workspace":"\udc00","phase":"\ud800x"}`},
		entry{"user_message", `{"text":"\ud800"}`},
		entry{"state_changed", `{"patch":{"\ud800":"\udfff","n":1e400}}`},
		entry{"usage", `{"model":"\ud800","tokens":{"\udfff":3}}`},
		entry{"tool_call", `{"call_id":"\ud800","name":"n","args":{},"args_sha256":"44"}`},
		entry{"tool_result", `{"call_id":"\ud800","attempt":1,"ok":false,"error":{"kind":"\udfff"},"duration_us":0}`})
	s := fold(t, replay.New(), l.events)
	if s.Digest() != fold(t, replay.New(), l.events).Digest() {
		t.Error("two foldings differ")
	}
	text := encode(t, s)
	if !json.Valid([]byte(text)) || strings.Contains(text, `\ud800`) || len(s.Messages) != 1 || len(s.Calls) != 1 || s.Calls[0].Result == nil ||
		s.Started.Workspace != "\uFFFD" || s.Usage[0].Tokens["\uFFFD"] != 3 {
		t.Errorf("the state is %s", text)
	}
}

// The state must not keep an event's memory, which its reader reuses.
func TestTheStateKeepsNothingOfAnEvent(t *testing.T) {
	events := whole().events
	want := fold(t, replay.New(), events).Digest()
	s := replay.New()
	buf := make([]byte, 4096)
	for i := range events {
		e := events[i]
		e.Data = buf[:copy(buf, events[i].Data)]
		s.Apply(&e)
		for i := range buf {
			buf[i] = '#'
		}
		e = schema.Event{}
	}
	if s.Digest() != want {
		t.Errorf("the state is now %s", encode(t, s))
	}
}
