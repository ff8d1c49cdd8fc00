package replay_test

import (
	"encoding/json"
	"fmt"
	"iter"
	"math/rand/v2"
	"strings"
	"testing"

	"steno/journal"
	"steno/journal/journaltest"
	"steno/replay"
	"steno/schema"
)

func all(events []schema.Event) iter.Seq2[*schema.Event, error] {
	return func(yield func(*schema.Event, error) bool) {
		for i := range events {
			e := events[i]
			e.Data = append([]byte(nil), e.Data...)
			if !yield(&e, nil) {
				return
			}
			for j := range e.Data { // a reader uses it again
				e.Data[j] = '#'
			}
		}
	}
}

func messages(t testing.TB, events []schema.Event, opt replay.Projection) (out []string) {
	t.Helper()
	for m, err := range replay.Messages(all(events), opt) {
		if err != nil {
			t.Fatal(err)
		}
		if !json.Valid(m) {
			t.Fatalf("a message is no JSON: %s", m)
		}
		out = append(out, string(m))
	}
	return out
}

func said(text string) entry { return entry{"user_message", fmt.Sprintf(`{"text":%q}`, text)} }
func answered(content string) entry {
	return entry{"assistant_message", `{"content":` + content + `}`}
}
func turned(turn, id string) entry {
	return entry{"tool_call", fmt.Sprintf(`{"call_id":"%s.%s","name":"read","args":{"n":1e400},"args_sha256":"44","turn":%q}`, turn, id, turn)}
}
func output(id, text, more string) entry {
	return entry{"tool_result", fmt.Sprintf(`{"call_id":%q,"attempt":1,"ok":true,"output":%q,"duration_us":5%s}`, id, text, more)}
}
func compacted(to int, summary string) entry {
	return entry{"history_compaction", fmt.Sprintf(`{"range":{"from_seq":1,"to_seq":%d},"summary":%q,"strategy":"s","tail":{"from_seq":%d}}`, to, summary, to+1)}
}
func rewound(to int) entry { return entry{"history_rewind", fmt.Sprintf(`{"to_seq":%d}`, to)} }

// gist says messages of Anthropic's form in a few words.
func gist(t testing.TB, list []string) string {
	t.Helper()
	var out []string
	for _, m := range list {
		var v struct {
			Role    string
			Content []struct {
				Type, Text, ID, Content string
				ToolUseID               string `json:"tool_use_id"`
				Input                   json.RawMessage
				IsError                 bool `json:"is_error"`
			}
		}
		if err := json.Unmarshal([]byte(m), &v); err != nil {
			t.Fatalf("%v in %s", err, m)
		}
		words := []string{v.Role[:1]}
		for _, b := range v.Content {
			switch b.Type {
			case "text":
				words = append(words, b.Text)
			case "tool_use":
				words = append(words, "?"+b.ID)
			case "tool_result":
				text := b.Content
				switch {
				case strings.Contains(text, `"synthetic":true`):
					text = strings.Split(strings.Split(text, `"message":"`)[1], `"`)[0]
				case b.IsError:
					text = "error"
				}
				words = append(words, "!"+b.ToolUseID+"="+text)
			default:
				words = append(words, b.Type)
			}
		}
		out = append(out, strings.Join(words, " "))
	}
	return strings.Join(out, " | ")
}

const none = "no result recorded"

func TestS7EveryCallIsAnsweredOnce(t *testing.T) {
	t.Parallel()
	use := func(id string) string {
		return `{"type":"tool_use","id":"` + id + `","name":"read","input":{"big":12345678901234567890}}`
	}
	for name, c := range map[string]struct {
		events []entry
		want   string
	}{
		"a call": {[]entry{said("go"), call("a"), started("a", 1), output("a", "one", "")}, "u go | a ?a | u !a=one"},
		"results out of order": {[]entry{said("go"), call("a"), call("b"), output("b", "two", ""), output("a", "one", "")},
			"u go | a ?a ?b | u !a=one !b=two"},
		"a message before the result": {[]entry{said("go"), call("a"), said("wait"), output("a", "one", "")}, "u go | a ?a | u !a=one wait"},
		"one after the other":         {[]entry{said("go"), call("a"), output("a", "1", ""), call("b"), output("b", "2", "")}, "u go | a ?a | u !a=1 | a ?b | u !b=2"},
		"no user":                     {[]entry{call("a"), output("a", "1", "")}, "u [no message of a user is recorded before this] | a ?a | u !a=1"},
		"superseded in place": {[]entry{said("go"), call("a"), started("a", 1), failed("a", "interrupted", `,"synthetic":true`), said("and"), output("a", "late", `,"supersedes":4`)},
			"u go | a ?a | u !a=late and"},
		"open": {[]entry{said("go"), call("a"), started("a", 1), call("b")},
			"u go | a ?a ?b | u !a=" + none + ": the call has started, or may have, and what became of it is not known !b=" + none + ": the call has not started"},
		"a result before its call":    {[]entry{said("go"), output("a", "1", ""), call("a")}, "u go | a ?a | u !a=" + none + ": the call has not started"},
		"a second result":             {[]entry{said("go"), call("a"), output("a", "1", ""), output("a", "2", "")}, "u go | a ?a | u !a=1"},
		"a second call of an id":      {[]entry{said("go"), call("a"), output("a", "1", ""), call("a"), output("a", "2", "")}, "u go | a ?a | u !a=1"},
		"a result without a call":     {[]entry{said("go"), output("z", "1", "")}, "u go"},
		"declared in a message":       {[]entry{said("go"), answered("[" + use("a") + "]"), call("a"), output("a", "1", "")}, "u go | a ?a | u !a=1"},
		"declared and never recorded": {[]entry{said("go"), answered("[" + use("a") + "]")}, "u go | a ?a | u !a=" + none + ": nor is the call, which did not run"},
		"answered in a message that was taken back": {[]entry{said("go"), answered("[" + use("a") + "]"), {"user_message", `{"content":[{"type":"tool_result","tool_use_id":"a","content":"own"}]}`}, rewound(2)},
			"u go | a ?a | u !a=" + none + ": nor is the call, which did not run"},
		"answered in the next message": {[]entry{said("go"), answered("[" + use("a") + "]"), {"user_message", `{"content":[{"type":"tool_result","tool_use_id":"a","content":"own"}]}`}},
			"u go | a ?a | u !a=own"},
		"an answer in a message to a call of the record": {[]entry{said("go"), answered("[" + use("a") + "]"), call("a"), output("a", "1", ""),
			{"user_message", `{"content":[{"type":"tool_result","tool_use_id":"a","content":"own"},{"type":"text","text":"more"}]}`}}, "u go | a ?a | u !a=1 more"},
		"an answer in a message to nothing": {[]entry{said("go"), {"user_message", `{"content":[{"type":"tool_result","tool_use_id":"a","content":"own"}]}`}}, "u go"},
		"ids of turns":                      {[]entry{said("go"), turned("t1", "c1"), output("t1.c1", "1", ""), turned("t2", "c2"), output("t2.c2", "2", "")}, "u go | a ?c1 | u !c1=1 | a ?c2 | u !c2=2"},
		"the same id in two turns": {[]entry{said("go"), answered("[" + use("c") + "]"), turned("t1", "c"), output("t1.c", "1", ""), answered("[" + use("c") + "]"), turned("t2", "c"), output("t2.c", "2", "")},
			"u go | a ?c | u !c=1 | a ?call_6 | u !call_6=2"},
		"an id that a provider would refuse": {[]entry{said("go"), call("a.b/c"), output("a.b/c", "1", "")}, "u go | a ?call_2 | u !call_2=1"},
		"part in the message, part later":    {[]entry{said("go"), answered("[" + use("a") + "," + use("b") + "]"), call("a"), output("a", "1", ""), said("wait"), call("b"), output("b", "2", "")}, "u go | a ?a ?b | u !a=1 !b=2 wait"},
		"a call twice in a message":          {[]entry{said("go"), answered("[" + use("a") + "," + use("a") + "]"), call("a"), output("a", "1", "")}, "u go | a ?a | u !a=1"},
		"OpenAI's call":                      {[]entry{said("go"), answered(`[{"type":"function","id":"a","function":{"name":"read","arguments":"{}"}}]`), call("a"), output("a", "1", "")}, "u go | a ?a | u !a=1"},
	} {
		var l log
		got := messages(t, l.add(c.events...), replay.Projection{Format: "anthropic"})
		if g := gist(t, got); g != c.want {
			t.Errorf("%s:\n%s\nand not\n%s", name, g, c.want)
		}
		if strings.Contains(strings.Join(got, ""), "12345678901234567890}") != strings.Contains(fmt.Sprint(c.events), "12345678901234567890") {
			t.Errorf("%s: a number was changed: %s", name, got)
		}
		wholePairs(t, name, l.events)
	}
}

// A model says no more in a turn than a provider takes.
func TestS7ATurnHasSoManyCalls(t *testing.T) {
	t.Parallel()
	var l log
	l.add(said("go"))
	for i := range 300 {
		l.add(call(fmt.Sprint("c", i)))
	}
	for i := range 300 {
		l.add(output(fmt.Sprint("c", i), "x", ""))
	}
	most, calls := 0, 0
	for _, m := range messages(t, l.events, replay.Projection{Format: "anthropic"}) {
		n := strings.Count(m, `"tool_use"`)
		most, calls = max(most, n), calls+n
	}
	if most != 128 || calls != 300 {
		t.Errorf("of %d calls %d are in one message", calls, most)
	}
}

func TestS8ACompactionAndARewindSplitNoPair(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		events []entry
		want   string
	}{
		"a summary":      {[]entry{said("old"), call("a"), output("a", "1", ""), compacted(3, "sum"), said("new")}, "u sum new"},
		"a kept tail":    {[]entry{said("old"), said("kept"), compacted(1, "sum"), said("new")}, "u sum kept new"},
		"the latest":     {[]entry{said("old"), compacted(1, "one"), said("mid"), compacted(3, "two"), said("new")}, "u two new"},
		"inside a call":  {[]entry{said("old"), call("a"), output("a", "1", ""), compacted(2, "sum")}, "u sum | a ?a | u !a=1"},
		"over open ones": {[]entry{call("a"), compacted(1, "sum")}, "u sum | a ?a | u !a=" + none + ": the call has not started"},
		"superseded after it": {[]entry{call("a"), started("a", 1), failed("a", "interrupted", `,"synthetic":true`), compacted(3, "sum"), output("a", "late", `,"supersedes":3`)},
			"u sum | a ?a | u !a=late"},
		"taken back":                          {[]entry{said("old"), compacted(1, "sum"), rewound(1), said("new")}, "u old new"},
		"taken back to an earlier one":        {[]entry{said("old"), compacted(1, "one"), said("x"), compacted(3, "two"), rewound(3), said("new")}, "u one x new"},
		"a rewind":                            {[]entry{said("one"), call("a"), output("a", "1", ""), said("two"), rewound(3), said("three")}, "u one | a ?a | u !a=1 three"},
		"a rewind inside a call":              {[]entry{said("one"), call("a"), output("a", "1", ""), rewound(2), said("two")}, "u one | a ?a | u !a=1 two"},
		"a rewind before a call that goes on": {[]entry{said("one"), call("a"), rewound(1), output("a", "1", ""), said("two")}, "u one two"},
		"rewinds in rewinds":                  {[]entry{said("1"), said("2"), said("3"), rewound(2), said("5"), rewound(1), said("7"), rewound(5)}, "u 1"},
		"a rewind to its own end":             {[]entry{said("1"), rewound(5), said("3")}, "u 1 3"},
	} {
		var l log
		if g := gist(t, messages(t, l.add(c.events...), replay.Projection{Format: "anthropic"})); g != c.want {
			t.Errorf("%s:\n%s\nand not\n%s", name, g, c.want)
		}
		wholePairs(t, name, l.events)
	}
}

// wholePairs checks that in both providers' forms every call is answered once,
// at its place, by its own id.
func wholePairs(t testing.TB, name string, events []schema.Event) {
	t.Helper()
	complain := func(form string, got []string) {
		t.Errorf("%s: in the form of %s pairs are split, or ids are used twice:\n%s", name, form, strings.Join(got, "\n"))
	}
	seen := map[string]bool{}
	var open []string
	got := messages(t, events, replay.Projection{Format: "openai"})
	for _, m := range got {
		var v struct {
			Role  string
			ID    string                `json:"tool_call_id"`
			Calls []struct{ ID string } `json:"tool_calls"`
		}
		if err := json.Unmarshal([]byte(m), &v); err != nil {
			t.Fatal(err)
		}
		if v.Role == "tool" {
			if len(open) == 0 || open[0] != v.ID {
				complain("openai", got)
				return
			}
			open = open[1:]
			continue
		}
		if len(open) > 0 {
			complain("openai", got)
			return
		}
		for _, c := range v.Calls {
			if seen[c.ID] {
				complain("openai", got)
				return
			}
			seen[c.ID], open = true, append(open, c.ID)
		}
	}
	clear(seen)
	open = nil
	got = messages(t, events, replay.Projection{Format: "anthropic"})
	role := ""
	for i, m := range got {
		var v struct {
			Role    string
			Content []struct {
				Type, ID  string
				ToolUseID string `json:"tool_use_id"`
			}
		}
		if err := json.Unmarshal([]byte(m), &v); err != nil {
			t.Fatal(err)
		}
		if v.Role == role || i == 0 && v.Role != "user" || len(v.Content) == 0 {
			complain("anthropic", got)
			return
		}
		role = v.Role
		for _, b := range v.Content {
			switch {
			case b.Type == "tool_use" && seen[b.ID], b.Type == "tool_result" && (len(open) == 0 || open[0] != b.ToolUseID), b.Type == "text" && role == "user" && len(open) > 0:
				complain("anthropic", got)
				return
			case b.Type == "tool_use":
				seen[b.ID], open = true, append(open, b.ID)
			case b.Type == "tool_result":
				open = open[1:]
			}
		}
		if role == "user" && len(open) > 0 {
			complain("anthropic", got)
			return
		}
	}
	if len(open) > 0 {
		complain("anthropic", got)
	}
}

// Of any events, in any order, valid messages are made.
func TestS7MessagesOfAnyEventsAreValid(t *testing.T) {
	t.Parallel()
	for seed := range uint64(400) {
		r := rand.New(rand.NewPCG(seed, 1))
		var l log
		for n := 1 + r.IntN(40); len(l.events) < n; {
			id := string(rune('a' + r.IntN(3)))
			turn := fmt.Sprint("t", r.IntN(2))
			l.add([]entry{said("u"), answered(`"text"`), call(id), started(id, 1), result(id, ""), failed(id, "interrupted", `,"synthetic":true`),
				output(id, "late", fmt.Sprintf(`,"supersedes":%d`, r.IntN(len(l.events)+1))), turned(turn, id), result(turn+"."+id, ""),
				answered(`[{"type":"text","text":"x"},{"type":"tool_use","id":"` + id + `","name":"n","input":{}}]`),
				{"user_message", `{"content":[{"type":"tool_result","tool_use_id":"` + id + `","content":"own"}]}`},
				{"reasoning", `{"item":{"type":"thinking","thinking":"t"},"model":"m"}`},
				compacted(r.IntN(len(l.events)+2), "sum"), rewound(r.IntN(len(l.events) + 2)), note}[r.IntN(15)])
		}
		if r.IntN(3) == 0 { // with a hole
			i := r.IntN(len(l.events))
			l.events = append(l.events[:i:i], l.events[min(len(l.events), i+1+r.IntN(3)):]...)
		}
		wholePairs(t, fmt.Sprint("seed ", seed), l.events)
		if t.Failed() {
			t.Fatalf("%+v", l.events)
		}
	}
}

// What comes late is found as well as what comes soon.
func TestS7MessagesDoNotDependOnHowFarApartTheyAre(t *testing.T) {
	t.Parallel()
	use := `[{"type":"tool_use","id":"d","name":"read","input":{}}]`
	parts := []entry{said("go"), answered(use), call("a"), started("a", 1), call("d"), output("d", "4", ""), failed("a", "interrupted", `,"synthetic":true`), said("and"), output("a", "late", "")}
	var want string
	for _, gap := range []int{0, 1, 600, 1300} {
		for at := 1; at < len(parts); at++ {
			var l log
			first := uint64(0)
			for i, e := range parts {
				if i == at {
					for range gap {
						l.add(note)
					}
				}
				if strings.Contains(e.data, "late") {
					e = output("a", "late", fmt.Sprintf(`,"supersedes":%d`, first))
				}
				added := l.add(e)
				if strings.Contains(e.data, "interrupted") {
					first = added[0].Seq
				}
			}
			got := gist(t, messages(t, l.events, replay.Projection{Format: "anthropic"}))
			if want == "" {
				want = got
			}
			if got != want {
				t.Errorf("with %d events before part %d:\n%s\nand not\n%s", gap, at, got, want)
			}
		}
	}
	if want != "u go | a ?d ?a | u !d=4 !a=late and" {
		t.Error(want)
	}
}

func TestS10AsOfAnySeq(t *testing.T) {
	t.Parallel()
	events := whole().events
	for k := range events {
		opt := replay.Projection{AsOf: uint64(k + 1)}
		if a, b := messages(t, events, opt), messages(t, events[:k+1], replay.Projection{}); strings.Join(a, "\n") != strings.Join(b, "\n") {
			t.Errorf("as of %d the messages are\n%s\nand of that beginning\n%s", k+1, a, b)
		}
	}
	for opt, kind := range map[uint64]schema.Kind{uint64(len(events) + 1): schema.NotFound, 1 << 60: schema.NotFound} {
		for _, err := range replay.Messages(all(events), replay.Projection{AsOf: opt}) {
			if schema.KindOf(err) != kind {
				t.Errorf("as of %d: %v", opt, err)
			}
		}
	}
	for _, err := range replay.Messages(all(events), replay.Projection{Format: "other"}) {
		if schema.KindOf(err) != schema.InvalidArgs {
			t.Error(err)
		}
	}
}

func TestS7MessagesOfStenosOwnFormHaveTheMarks(t *testing.T) {
	t.Parallel()
	var l log
	l.add(said("go"), hidden("a", `[{"pointer":"/args/k","rule":"key:k","hash":"h"}]`), started("a", 1), failed("a", "interrupted", `,"synthetic":true`), output("a", "x", `,"supersedes":4`), call("b"))
	want := `{"role":"user","seq":1,"content":"go"}
{"role":"call","seq":2,"call_id":"a","name":"read","args":{},"redacted":[{"pointer":"/args/k","rule":"key:k","hash":"h"}]}
{"role":"result","seq":5,"content":"x","call_id":"a","supersedes":4}
{"role":"call","seq":6,"call_id":"b","name":"read","args":{}}
{"role":"result","content":`
	if got := strings.Join(messages(t, l.events, replay.Projection{}), "\n"); !strings.HasPrefix(got, want) || !strings.HasSuffix(got, `"call_id":"b","failed":true,"kind":"orphan_tool_call","synthetic":true}`) {
		t.Error(got)
	}
}

func TestS7MessageCases(t *testing.T) {
	t.Parallel()
	seen := 0
	for _, c := range journaltest.AllCases(t) {
		for _, want := range c.Logs() {
			store := journaltest.Files(t)
			c.Lay(t, want.Log, store.Dir(), want.Session)
			events := func(yield func(*schema.Event, error) bool) {
				for it, err := range journal.NewScan(store, want.Session, journal.ScanOptions{}).Items(t.Context()) {
					if err != nil || it.Event != nil && !yield(it.Event, nil) {
						return
					}
				}
			}
			var kept []schema.Event
			for e := range events {
				e := *e
				e.Data = append([]byte(nil), e.Data...)
				kept = append(kept, e)
			}
			wholePairs(t, c.Name+"/"+want.Log, kept)
			p, err := replay.ReadPairs(all(kept))
			if err != nil {
				t.Fatal(err)
			}
			for id, state := range want.Calls { // what stands in the log is what counts in it
				for _, raw := range p.Calls {
					if raw.CallID == id && (state == "ok" || state == "failed") && len(raw.Results) == 0 {
						t.Errorf("%s/%s: of call %s the pairs have no result", c.Name, want.Log, id)
					}
				}
			}
			if want.View == nil {
				continue
			}
			seen++
			var view []string
			for _, m := range messages(t, kept, replay.Projection{}) {
				var v struct {
					Role    string
					Content any
					CallID  string `json:"call_id"`
				}
				if err := json.Unmarshal([]byte(m), &v); err != nil {
					t.Fatal(err)
				}
				switch v.Role {
				case "call":
					view = append(view, v.CallID)
				case "user", "assistant":
					view = append(view, fmt.Sprint(v.Content))
				}
			}
			if fmt.Sprint(view) != fmt.Sprint(want.View) {
				t.Errorf("%s/%s: the view is %q, want %q", c.Name, want.Log, view, want.View)
			}
		}
	}
	if seen < 2 {
		t.Errorf("only %d cases have a view", seen)
	}
}

func TestS10PairsAreWhatTheLogSays(t *testing.T) {
	t.Parallel()
	var l log
	l.add(output("r", "early", ""), call("r"), call("a"), started("a", 1), failed("a", "interrupted", `,"synthetic":true`), output("a", "late", `,"supersedes":5`),
		output("a", "again", ""), call("a"), output("z", "orphan", ""), call("o"))
	p, err := replay.ReadPairs(all(l.events))
	if err != nil {
		t.Fatal(err)
	}
	b, _ := json.Marshal(p)
	want := `{"calls":[` +
		`{"call_id":"r","name":"read","seq":2,"starts":[],"results":[{"seq":1,"ok":true,"counts":false}]},` +
		`{"call_id":"a","name":"read","seq":3,"again":[8],"starts":[4],"results":[{"seq":5,"ok":false,"kind":"interrupted","synthetic":true,"counts":false},{"seq":6,"ok":true,"supersedes":5,"counts":true},{"seq":7,"ok":true,"counts":false}]},` +
		`{"call_id":"z","seq":0,"starts":[],"results":[{"seq":9,"ok":true,"counts":false}]},` +
		`{"call_id":"o","name":"read","seq":10,"starts":[],"results":[]}]`
	if !strings.HasPrefix(string(b), want) {
		t.Errorf("the pairs are\n%s\nand not\n%s", b, want)
	}
	var kinds []string
	for _, x := range p.Problems {
		kinds = append(kinds, fmt.Sprint(x.Seq, " ", x.Kind))
	}
	if got := strings.Join(kinds, ", "); got != "1 result_without_call, 7 result_conflict, 8 duplicate_call, 9 result_without_call, 2 orphan_tool_call, 10 orphan_tool_call" {
		t.Error(got)
	}
	again, _ := replay.ReadPairs(all(l.events))
	fewer, _ := replay.ReadPairs(all(l.events[:9]))
	if p.Digest() != again.Digest() || p.Digest() == fewer.Digest() {
		t.Error("the digest is not that of the pairs")
	}
	one, n, err := replay.DigestMessages(replay.Messages(all(l.events), replay.Projection{}))
	two, m, _ := replay.DigestMessages(replay.Messages(all(l.events[:7]), replay.Projection{}))
	if err != nil || one == two || n != 6 || m != 4 {
		t.Errorf("the messages' digests are %s of %d, %s of %d, %v", one, n, two, m, err)
	}
}
