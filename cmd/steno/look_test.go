package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"steno/journal"
	"steno/journal/journaltest"
	"steno/schema"
)

// written makes a session in a folder's store, one epoch for each list of
// entries. A writer that is not the last dies, where that is wanted.
func written(t testing.TB, dir, session string, dies bool, epochs ...[]journal.Entry) {
	t.Helper()
	store, err := journal.OpenFiles(filepath.Join(dir, ".steno"), true)
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	for n, entries := range epochs {
		j, err := journal.Open(t.Context(), store, session, journaltest.Options())
		if err != nil {
			t.Fatal(err)
		}
		journaltest.Append(t, j, entries...)
		if dies && n < len(epochs)-1 {
			err = j.Close()
		} else {
			err = j.Release(t.Context(), "done")
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

// entry is one of any type.
func entry(typ, data string) journal.Entry { return journal.Entry{Type: typ, Data: []byte(data)} }

func TestS14LatestIsTheSessionWithTheNewestEvent(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	good(t, dir, "run", os.DevNull, "--session", "zz")
	none, errOut, code := steno(t, t.TempDir(), "session", "show", "latest")
	if code != 3 || none != "" {
		t.Errorf("without a store: exit %d, %s%s", code, none, errOut)
	}
	written(t, dir, "zz", false, []journal.Entry{journaltest.Note("first")})
	written(t, dir, "aa", false, []journal.Entry{journaltest.Note("second")})
	for _, args := range [][]string{{"session", "show"}, {"replay"}, {"verify"}, {"head"}, {"lease", "show"}} {
		out, errOut, code := steno(t, dir, append(args, "latest", "-o", "json")...)
		if code != 0 || errOut != "latest is aa\n" || pick(t, out, "/session") != "aa" {
			t.Errorf("steno %q: exit %d, %s%s", args, code, out, errOut)
		}
	}
	if out, errOut, code := steno(t, dir, "calls", "ls", "latest", "-o", "json"); code != 0 || out != "[]\n" || errOut != "latest is aa\n" {
		t.Errorf("calls ls: exit %d, %s%s", code, out, errOut)
	}
	// The newest segment may say nothing yet, or end in a torn line; what is packed
	// is as new as it was, and what is removed is gone.
	written(t, dir, "zz", false, []journal.Entry{journaltest.Note("third")})
	good(t, dir, "session", "pack", "zz")
	claim := filepath.Join(dir, ".steno/sessions/zz/000099.jsonl")
	must(t, os.WriteFile(claim, []byte("{\"v\":1,\"sess"), 0o600))
	if _, errOut, _ := steno(t, dir, "session", "show", "latest"); errOut != "latest is zz\n" {
		t.Errorf("packed: %s", errOut)
	}
	must(t, os.Remove(claim))
	good(t, dir, "session", "rm", "zz", "--reason", "test", "--apply")
	if _, errOut, _ := steno(t, dir, "session", "show", "latest"); errOut != "latest is aa\n" {
		t.Errorf("removed: %s", errOut)
	}
	// A session that has the name is meant.
	written(t, dir, "latest", false, []journal.Entry{journaltest.Note("mine")})
	written(t, dir, "aa", false, []journal.Entry{journaltest.Note("newer")})
	if out, errOut, _ := steno(t, dir, "session", "show", "latest"); errOut != "" || !strings.Contains(out, "mine") {
		t.Errorf("a session called latest: %s%s", out, errOut)
	}
}

func TestS15ATimelineShowsWhatRanSideBySide(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	written(t, dir, "s1", true,
		[]journal.Entry{journaltest.Message("go\x1b[2J"), journaltest.Call("a", "read", `{}`), journaltest.Started("a", 1),
			journaltest.Call("b", "shell", `{}`), entry("approval_requested", `{"call_id":"b","approval_id":"q","reason":"ask"}`),
			journaltest.Result("a", 1, `"done"`),
			entry("permission_decision", `{"call_id":"b","decision":"allow","gate":"policy","by":"human","approval_id":"q"}`), journaltest.Started("b", 1)},
		[]journal.Entry{journaltest.Started("b", 2), journaltest.Call("c", "read", `{}`),
			entry("permission_decision", `{"call_id":"c","decision":"deny","gate":"policy","by":"policy"}`),
			entry("tool_result", `{"call_id":"c","attempt":0,"ok":false,"error":{"kind":"permission_denied","message":"no","details":{}},"duration_us":0}`)})
	out := good(t, dir, "session", "show", "s1", "--timeline")
	bars := []string{}
	for line := range strings.Lines(out) {
		if f := strings.Fields(line); len(f) > 0 {
			bars = append(bars, strings.TrimSpace(f[0]+" "+strings.Join(strings.FieldsFunc(line[min(len(line), 21):], func(r rune) bool {
				return r != '○' && r != '▶' && r != '┃' && r != '┆' && r != '●' && r != '?' && r != '+' && r != '╎' && r != '×' && r != '✗'
			}), "")))
		}
		if n := len([]rune(strings.TrimSuffix(line, "\n"))); n > 100 && !strings.HasPrefix(line, "○") {
			t.Errorf("a row has %d columns: %s", n, line)
		}
	}
	want := "══ | 2 | 3 | 4 ○ | 5 ▶ | 6 ┃○ | 7 ┃? | 8 ●┆ | 9 + | 10 ▶ | ══ | 12 ▶ | 13 ○┃ | 14 ×┃ | 15 ✗┃ | ── | open"
	if got := strings.Join(bars[:len(bars)-1], " | "); got != want {
		t.Errorf("it draws %s\nwant     %s\n%s", got, want, out)
	}
	for _, text := range []string{"epoch 1, new", "epoch 2, takeover", "b  a person is asked", `go\x1b[2J`, "b  shell  has no result yet", "epoch 2 is released"} {
		if !strings.Contains(out, text) {
			t.Errorf("there is no %q in\n%s", text, out)
		}
	}
	// As of an event nothing later is known.
	out = good(t, dir, "session", "show", "s1", "--timeline", "--as-of", "7")
	if strings.Contains(out, "epoch 2") || !strings.Contains(out, "open  a  read  has no result yet") || !strings.Contains(out, "open  b  shell  waits for a person") {
		t.Errorf("as of 7:\n%s", out)
	}
	if out, errOut, code := steno(t, dir, "session", "show", "s1", "--as-of", "99"); code != 3 || !strings.Contains(errOut, `"seq":99`) || !strings.Contains(out, "writer_released") {
		t.Errorf("as of an event that is not there: exit %d\n%s%s", code, out, errOut)
	}
	// For programs, each call with its lane, in the order in which they end.
	var spans []span
	must(t, json.Unmarshal([]byte(good(t, dir, "session", "show", "s1", "--timeline", "-o", "json")), &spans))
	if len(spans) != 3 || spans[0].CallID != "a" || spans[0].ResultSeq != 8 || spans[2].CallID != "b" || spans[2].Lane != 1 || len(spans[2].Attempts) != 2 || spans[2].ResultSeq != 0 {
		t.Errorf("the spans are %+v", spans)
	}
}

// A hole is named in its place, and what is on either side is drawn.
func TestS15ATimelineNamesHoles(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	written(t, dir, "s1", false, []journal.Entry{journaltest.Call("a", "read", `{}`), journaltest.Started("a", 1), journaltest.Result("a", 1, `"x"`)})
	must(t, change(filepath.Join(dir, ".steno/sessions/s1/000001.jsonl"), `"name":"read"`, `"name":"rEad"`))
	out, _, code := steno(t, dir, "session", "show", "s1", "--timeline")
	if code != 4 || !strings.Contains(out, "!! error  000001.jsonl line 4") || !strings.Contains(out, "a  attempt 1") {
		t.Errorf("exit %d\n%s", code, out)
	}
	if out, _, code := steno(t, dir, "session", "show", "s1", "--timeline", "--as-of", "2"); code != 0 || strings.Contains(out, "!!") {
		t.Errorf("as of 2: exit %d\n%s", code, out)
	}
}

// A result that leaves the outcome open is not the end of a call, and a roll is none
// of its writer.
func TestS15ATimelineFollowsOpenOutcomesAndRolls(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	stopped := `{"call_id":"b","attempt":1,"ok":false,"error":{"kind":"cancelled","message":"stopped","details":{}},"duration_us":5}`
	written(t, dir, "s1", false, []journal.Entry{
		journaltest.Call("a", "pay", `{}`), journaltest.Started("a", 1),
		entry("tool_result", `{"call_id":"a","attempt":1,"ok":false,"error":{"kind":"interrupted","message":"nobody knows","details":{}},"duration_us":0,"synthetic":true}`),
		journaltest.Call("b", "slow", `{}`), journaltest.Started("b", 1), entry("tool_result", stopped),
		journaltest.Started("a", 2), entry("tool_result", `{"call_id":"a","attempt":2,"ok":true,"output":"paid","duration_us":5,"supersedes":5}`),
		journaltest.Call("c", "read", `{}`), journaltest.Started("c", 1), journaltest.Result("c", 1, `"x"`)})
	out := good(t, dir, "session", "show", "s1", "--timeline")
	for seq, mark := range map[int]string{5: "!", 8: "!", 9: "▶", 10: "●"} {
		if !strings.Contains(out, fmt.Sprintf("\n%7d  ", seq)) || !strings.Contains(strings.SplitN(out, fmt.Sprintf("\n%7d  ", seq), 2)[1][:30], mark) {
			t.Errorf("event %d has no mark %s in\n%s", seq, mark, out)
		}
	}
	var spans []span
	must(t, json.Unmarshal([]byte(good(t, dir, "session", "show", "s1", "--timeline", "-o", "json")), &spans))
	if len(spans) != 3 || spans[0].CallID != "a" || spans[0].ResultSeq != 10 || !spans[0].OK || spans[0].Kind != "" || spans[0].Synthetic || len(spans[0].Attempts) != 2 ||
		!slices.Equal(spans[0].Superseded, []uint64{5}) || spans[1].CallID != "c" || spans[2].CallID != "b" || spans[2].ResultSeq != 8 || spans[2].Kind != "cancelled" {
		t.Errorf("the spans are %+v", spans)
	}
	if md := good(t, dir, "export", "s1", "--format", "md"); strings.Count(md, "which leaves open what became of it") != 2 {
		t.Error(md)
	}
	for how, lost := range map[string]bool{schema.HowRoll: false, schema.HowTakeover: true} {
		tl := timeline{open: map[string]*bar{}, past: map[string]*bar{}}
		for seq, s := range []string{`tool_call {"call_id":"a","name":"t"}`, `tool_started {"call_id":"a","attempt":1}`, `writer_opened {"how":"` + how + `"}`} {
			typ, data, _ := strings.Cut(s, " ")
			tl.take(&schema.Event{Seq: uint64(seq + 1), Epoch: 1, Type: typ, Data: []byte(data)})
		}
		if tl.open["a"].lost != lost {
			t.Errorf("behind a writer that came by %s the bar is %+v", how, tl.open["a"])
		}
	}
}
