package main

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"steno/journal"
	"steno/journal/journaltest"
)

// forkOf makes a session that says that it was forked.
func forkOf(t *testing.T, dir, session, parent string) {
	t.Helper()
	store, err := journal.OpenFiles(filepath.Join(dir, ".steno"), true)
	must(t, err)
	defer store.Close()
	opt := journaltest.Options()
	opt.Started = []byte(`{}`)
	if parent != "" {
		opt.Started = fmt.Appendf(nil, `{"parent":{"session":%q,"seq":2,"sum":"%064d","how":"fork"}}`, parent, 7)
	}
	j, err := journal.Open(t.Context(), store, session, opt)
	must(t, err)
	must(t, j.Release(t.Context(), "done"))
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
