package main

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"steno/journal"
	"steno/journal/journaltest"
	"steno/schema"
)

// forkOf makes a session that says that it was forked at event 2 of its parent, if
// that is there.
func forkOf(t *testing.T, dir, session, parent string) {
	t.Helper()
	store, err := journal.OpenFiles(filepath.Join(dir, ".steno"), true)
	must(t, err)
	defer store.Close()
	opt := journaltest.Options()
	opt.Started = []byte(`{}`)
	if parent != "" {
		sum := strings.Repeat("7", 64)
		for it, err := range journal.NewScan(store, parent, journal.ScanOptions{}).Items(t.Context()) {
			if err == nil && it.Event != nil && it.Event.Seq == 2 {
				sum = it.Event.Sum.String()
			}
		}
		opt.Started = fmt.Appendf(nil, `{"parent":{"session":%q,"seq":2,"sum":%q,"how":"fork"}}`, parent, sum)
	}
	j, err := journal.Open(t.Context(), store, session, opt)
	must(t, err)
	must(t, j.Release(t.Context(), "done"))
}

// A fork whose parent has changed since, or is shorter, or damaged before that
// place, is named; behind it a parent may be what it likes.
func TestS9ATreeComparesForksWithTheirParents(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	events := []journal.Entry{journaltest.Note("one"), journaltest.Note("two"), journaltest.Note("three")}
	for _, id := range []string{"other", "short", "early", "late"} {
		written(t, dir, id, false, events)
		good(t, dir, "session", "fork", id, "--at", "4", "--session", "of-"+id)
	}
	good(t, dir, "session", "fork", "other", "--at", "2", "--session", "below")
	if out := good(t, dir, "session", "tree"); strings.Count(out, "of-") != 4 || strings.Contains(out, "forked at;") {
		t.Errorf("while all is well:\n%s", out)
	}
	at := func(id string) string { return filepath.Join(dir, ".steno/sessions", id, "000001.jsonl") }
	// Written anew from event 4 on, with right sums.
	must(t, os.RemoveAll(filepath.Dir(at("other"))))
	written(t, dir, "other", false, append([]journal.Entry{events[0]}, journaltest.Note("another"), journaltest.Note("three")))
	b, err := os.ReadFile(at("short"))
	must(t, err)
	must(t, os.WriteFile(at("short"), []byte(strings.Join(strings.SplitAfter(string(b), "\n")[:4], "")), 0o600))
	must(t, change(at("early"), "one", "onE"))
	must(t, change(at("late"), "three", "thrEE"))
	out, errOut, code := steno(t, dir, "session", "tree", "-o", "json")
	var rows []relative
	must(t, json.Unmarshal([]byte(out), &rows))
	got := map[string]schema.Kind{}
	for _, r := range rows {
		if r.Parent != "" {
			got[r.Session] = r.Origin
		}
	}
	want := map[string]schema.Kind{"of-other": schema.HeadMismatch, "below": schema.HeadMismatch, "of-short": schema.HeadMismatch, "of-early": schema.CorruptLogLine, "of-late": ""}
	if code != 4 || errOut != "" || !maps.Equal(got, want) {
		t.Errorf("exit %d, %v\n%s", code, got, errOut)
	}
	out, _, _ = steno(t, dir, "session", "tree")
	for _, text := range []string{"event 4 of other is another one than it was forked at", "short ends with event 3, before event 4", "early is damaged before event 4", "run: steno verify early"} {
		if !strings.Contains(out, text) {
			t.Errorf("there is no %q in\n%s", text, out)
		}
	}
}

func TestS9ATreeShowsForksBelowTheirParents(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for _, f := range []string{"a", "b a", "c b", "d a", "e gone", "f e", "x y", "y x", "z x", "alone", "bad a"} {
		session, parent, _ := strings.Cut(f, " ")
		forkOf(t, dir, session, parent)
	}
	must(t, change(filepath.Join(dir, ".steno/sessions/bad/000001.jsonl"), `"session_started"`, `"session_stArted"`))
	good(t, dir, "session", "rm", "alone", "--reason", "test", "--apply")
	out, errOut, code := steno(t, dir, "session", "tree")
	want := `SESSION        FORKED AT  NOTE
a                         
├─ b           2          
│  └─ c        2          
└─ d           2          
bad                       corrupt_log_line: its beginning cannot be read, nor whose fork it is; run: steno verify bad
gone                      is not there
└─ e           2          
   └─ f        2          
`
	for _, line := range strings.SplitAfter(want, "\n") {
		if !strings.Contains(strings.ReplaceAll(strings.ReplaceAll(out, " ", ""), "-", ""), strings.ReplaceAll(strings.ReplaceAll(line, " ", ""), "-", "")) {
			t.Errorf("there is no line %q in\n%s", line, out)
		}
	}
	if code != 4 || errOut != "" || strings.Count(out, "a circle") != 1 {
		t.Errorf("exit %d, %s\n%s", code, errOut, out)
	}
	// The tree in which a session stands, for programs.
	var rows []relative
	must(t, json.Unmarshal([]byte(good(t, dir, "session", "tree", "c", "-o", "json")), &rows))
	got := ""
	for _, r := range rows {
		got += fmt.Sprintf("%s:%d ", r.Session, r.Depth)
	}
	if got != "a:0 b:1 c:2 d:1 " || rows[1].Parent != "a" || rows[1].Seq != 2 {
		t.Errorf("it is %s, %+v", got, rows)
	}
	out, _, code = steno(t, dir, "session", "tree", "z", "-o", "jsonl")
	if code != 4 || strings.Count(out, "\n") != 3 || strings.Count(out, `"cycle":true`) != 1 {
		t.Errorf("exit %d\n%s", code, out)
	}
	if _, _, code := steno(t, dir, "session", "tree", "nobody"); code != 3 {
		t.Errorf("exit %d", code)
	}
	if _, _, code := steno(t, dir, "session", "tree", "a", "b"); code != 2 {
		t.Errorf("exit %d", code)
	}
}

func TestS10InspectPutsTheRawPairingBesideTheRepairedView(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	interrupted := entry("tool_result", `{"call_id":"b","attempt":1,"ok":false,"error":{"kind":"interrupted","message":"gone","details":{}},"synthetic":true,"duration_us":0}`)
	written(t, dir, "s1", false, joined(ran("a", "read", `{}`, `"x"`), ran("b", "bash", `{}`, `""`)[:3], []journal.Entry{interrupted,
		entry("tool_result", `{"call_id":"b","attempt":1,"ok":true,"output":"late","supersedes":10,"duration_us":0}`)}, ran("c", "bash", `{}`, `""`)[:3],
		[]journal.Entry{journaltest.Message("back")}, ran("d", "read", `{}`, `"y"`), []journal.Entry{entry("history_rewind", `{"to_seq":15}`)}))
	out := good(t, dir, "session", "inspect", "s1")
	for _, want := range []string{"a     read  3         5        6 ok ", "b     bash  7         9        10 interrupted, made up (does not count), 11 ok ", "c     bash  12        14  ",
		"orphan_tool_call  tool_call at 12, call c: the call has no result", "left out\n"} {
		if !strings.Contains(out, want) {
			t.Errorf("there is no %q in\n%s", want, out)
		}
	}
	v := good(t, dir, "session", "inspect", "latest", "-o", "json")
	if pick(t, v, "/repaired/calls/1/result_seq") != 11.0 || pick(t, v, "/repaired/calls/2/synthetic") != true || pick(t, v, "/raw/calls/1/results/0/counts") != false || pick(t, v, "/raw/problems/0/kind") != "orphan_tool_call" {
		t.Error(v)
	}
	// The digests are those of what is there, and tell views apart.
	early := good(t, dir, "session", "inspect", "s1", "--as-of", "10", "-o", "json")
	again := good(t, dir, "session", "inspect", "s1", "--as-of", "10", "-o", "json")
	for _, of := range []string{"/raw/digest", "/repaired/digest"} {
		if d := pick(t, early, of).(string); len(d) != 64 || d == pick(t, v, of) || d != pick(t, again, of) {
			t.Errorf("%s is %s, and later %s", of, d, pick(t, v, of))
		}
	}
	if _, _, code := steno(t, dir, "session", "inspect", "s1", "--as-of", "99"); code != 3 {
		t.Errorf("as of an event that is not there: exit %d", code)
	}
	// A call that lies in a hole leaves a result without it.
	must(t, change(filepath.Join(dir, ".steno/sessions/s1/000001.jsonl"), `"call_id":"a","name":"read"`, `"call_id":"a","name":"rEad"`))
	out, errOut, code := steno(t, dir, "session", "inspect", "s1")
	if code != 4 || !strings.Contains(out, "result_without_call") || !strings.Contains(errOut, "corrupt_log_line") {
		t.Errorf("exit %d\n%s%s", code, out, errOut)
	}
}
