package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"steno/journal"
	"steno/journal/journaltest"
)

// Over take-overs a tail gives each line once, in its order, and another one
// goes on where it was stopped.
func TestS1ATailGivesEachLineOnceAndGoesOnWhereItStopped(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	store := journaltest.FilesIn(t, filepath.Join(dir, ".steno"))
	open := func() *journal.Journal {
		j, err := journal.Open(t.Context(), store, "s1", journaltest.Options())
		must(t, err)
		return j
	}
	j := open()
	for n := range 30 {
		journaltest.Append(t, j, journaltest.Note(fmt.Sprint("before ", n)))
	}
	p := launch(t, dir, "session", "tail", "s1", "--from", "1", "-o", "jsonl")
	people := launch(t, dir, "session", "tail", "s1")
	p.says(`"before 28"`)
	people.says("before 29")
	if out := people.out.String(); strings.Contains(out, "before 18\n") || !strings.Contains(out, "before 20\n") || !strings.Contains(out, "before 29  (tentative)") {
		t.Errorf("it begins with\n%s", out)
	}
	// Nothing shows that the last one is durable, while its writer lives.
	if strings.Contains(p.out.String(), `"before 29"`) {
		t.Error("it gives a line that may not count")
	}
	must(t, j.Close()) // its writer dies
	p.says(`"before 29"`)
	j = open()
	journaltest.Append(t, j, journaltest.Note("second epoch"))
	must(t, j.Close())
	p.says("second epoch")
	p.signal(syscall.SIGINT)
	if code := p.exit(); code != 130 || p.err.String() != "" {
		t.Errorf("after SIGINT: exit %d, %s", code, p.err.String())
	}
	term := launch(t, dir, "session", "tail", "s1")
	term.says("second epoch")
	term.signal(syscall.SIGTERM)
	if code := term.exit(); code == 0 || !strings.Contains(term.err.String(), "stopped by SIGTERM") || !strings.Contains(term.err.String(), "run the command again") {
		t.Errorf("after SIGTERM: exit %d, %s", code, term.err.String())
	}
	first := p.out.String()
	q := launch(t, dir, "session", "tail", "s1", "--from", fmt.Sprint(strings.Count(first, "\n")+1), "-o", "jsonl")
	j = open()
	journaltest.Append(t, j, journaltest.Note(strings.Repeat("long ", 100_000)))
	journaltest.Append(t, j, entry("session_ended", `{"outcome":"completed"}`))
	must(t, j.Release(t.Context(), "done"))
	for _, p := range []*child{q, people} {
		if code := p.exit(); code != 0 {
			t.Errorf("at the end of the session: exit %d, %s", code, p.err.String())
		}
	}
	want := good(t, dir, "session", "show", "s1", "-o", "jsonl")
	if got := first + q.out.String(); !strings.HasPrefix(want, got) || !strings.Contains(got, "session_ended") {
		t.Errorf("it gives %d lines, which are not the first of the log's %d", strings.Count(got, "\n"), strings.Count(want, "\n"))
	}
}

// What a writer lost was shown as tentative, and is taken back.
func TestS13ATailTakesBackWhatDoesNotCount(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	store := journaltest.FilesIn(t, filepath.Join(dir, ".steno")).WithoutLog()
	j, err := journal.Open(t.Context(), store, "s1", journaltest.Options())
	must(t, err)
	defer j.Close()
	journaltest.Append(t, j, journaltest.Note("kept"))
	segment := filepath.Join(dir, ".steno/sessions/s1/000001.jsonl")
	fi, err := os.Stat(segment)
	must(t, err)
	people := launch(t, dir, "session", "tail", "s1")
	lines := launch(t, dir, "session", "tail", "s1", "-o", "jsonl")
	people.says("kept  (tentative)")
	journaltest.Append(t, j, journaltest.Note("gone"))
	people.says("gone  (tentative)")
	must(t, os.Truncate(segment, fi.Size())) // what a disk may do that had not synced it
	opt := journaltest.Options()
	opt.Force, opt.Reason = true, "test"
	k, err := journal.Open(t.Context(), store, "s1", opt)
	must(t, err)
	journaltest.Append(t, k, entry("session_ended", `{"outcome":"failed"}`))
	must(t, k.Release(t.Context(), "done"))
	if code := people.exit(); code != 0 || !strings.Contains(people.out.String(), "what was shown as tentative from event 4 on does not count") {
		t.Errorf("exit %d\n%s", code, people.out.String())
	}
	if code := lines.exit(); code != 0 || strings.Contains(lines.out.String(), "gone") || !strings.Contains(lines.out.String(), "session_ended") {
		t.Errorf("exit %d\n%s", code, lines.out.String())
	}
}

// A serve says at once what is durable, also of what was there before.
func TestS13ATailHearsTheServer(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file := filepath.Join(dir, "calls.jsonl")
	must(t, os.WriteFile(file, []byte(`{"call_id":"c1","name":"list"}`+"\n"), 0o600))
	s := serving(t, dir)
	good(t, dir, "run", "calls.jsonl", "--session", "s1")
	p := launch(t, dir, "session", "tail", "s1", "-o", "jsonl")
	p.says(`"type":"tool_result"`) // the last one so far, which no line testifies
	good(t, dir, "call", "list", "--session", "s1", "--call-id", "c2")
	p.says(`"tool_result","data":{"call_id":"c2"`)
	p.signal(syscall.SIGINT)
	if code := p.exit(); code != 130 {
		t.Errorf("exit %d", code)
	}
	s.signal(syscall.SIGTERM)
	s.exit()
}

// What a tool says while it runs is in no log: people see it through the server,
// marked as that, and programs get recorded lines only.
func TestS13ATailShowsWhatIsLiveAsNotRecorded(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	must(t, os.WriteFile(filepath.Join(dir, "tools.yaml"), []byte(`version: 1
tools:
  - name: steps
    description: Say the steps.
    argv: [sh, -c, 'printf "step \033[2Jone\n" >&2; cat go; echo "{}"']
    input: {type: object}
    output: {type: object}
`), 0o600))
	must(t, syscall.Mkfifo(filepath.Join(dir, "go"), 0o600))
	s := serving(t, dir, "--tools", "tools.yaml")
	good(t, dir, "run", os.DevNull, "--session", "s1")
	people := launch(t, dir, "session", "tail", "s1", "--nats", ".steno/nats/context.json")
	lines := launch(t, dir, "session", "tail", "s1", "-o", "jsonl")
	people.says("session_started")
	lines.says("session_started")
	call := launch(t, dir, "call", "steps", "--session", "s1", "--call-id", "c1")
	people.says(`tool_progress        c1  step \x1b[2Jone  (live, not recorded)`)
	must(t, os.WriteFile(filepath.Join(dir, "go"), nil, 0)) // which the tool waits for
	if code := call.exit(); code != 0 {
		t.Errorf("exit %d, %s", code, call.err.String())
	}
	people.says("tool_result")
	lines.says(`"type":"tool_result"`)
	if out := people.out.String(); strings.Count(out, "not recorded") != 1 || strings.Contains(out, "\x1b") {
		t.Error(out)
	}
	if out := lines.out.String(); strings.Contains(out, "progress") {
		t.Error(out)
	}
	for _, p := range []*child{people, lines} {
		p.signal(syscall.SIGINT)
		if code := p.exit(); code != 130 {
			t.Errorf("exit %d", code)
		}
	}
	s.signal(syscall.SIGTERM)
	s.exit()
}

// What is shed on the way shows by the numbers.
func TestS13ATailShowsThatSomethingLiveWasShed(t *testing.T) {
	t.Parallel()
	var out strings.Builder
	l := &tail{a: &app{out: &out}, live: make(chan liveEvent, 2)}
	say := func(n int) []byte {
		return fmt.Appendf(nil, `{"v":1,"session":"s1","ts":"2026-11-30T08:30:00.000001Z","type":"tool_progress","data":{"call_id":"c","attempt":1,"n":%d,"text":"t%d"}}`, n, n)
	}
	hear := func(all ...[]byte) {
		for _, b := range all {
			l.overhear(b)
		}
		for len(l.live) > 0 {
			must(t, l.tellLive(<-l.live))
		}
	}
	hear(say(7), say(8), say(9)) // it has room for two
	hear([]byte(`{"type":"status","data":{"text":"thinks"}}`), []byte(`{"type":"tool_result","data":{}}`), []byte("no JSON"))
	hear(say(12), say(13))
	hear(say(1)) // of another holder
	want := []string{"t7  (live, not recorded)", "t8  (live, not recorded)", "thinks  (live, not recorded)", "t12  (live, not recorded; 3 before it were shed)", "t13  (live, not recorded)", "t1  (live, not recorded)"}
	got := strings.Split(strings.TrimSuffix(out.String(), "\n"), "\n")
	if len(got) != len(want) {
		t.Fatalf("it shows\n%s", out.String())
	}
	for i, line := range got {
		if !strings.HasSuffix(line, want[i]) {
			t.Errorf("line %d is %q, want %q", i, line, want[i])
		}
	}
}

// Damage is named where it stands, once, and hides nothing behind it.
func TestS13ATailNamesGaps(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	written(t, dir, "s1", false, []journal.Entry{journaltest.Note("one"), journaltest.Note("two"), journaltest.Note("three")},
		[]journal.Entry{entry("session_ended", `{"outcome":"completed"}`)})
	must(t, change(filepath.Join(dir, ".steno/sessions/s1/000001.jsonl"), `"two"`, `"TWO"`))
	out, _, code := steno(t, dir, "session", "tail", "s1")
	if code != 4 || strings.Count(out, "sum_mismatch") != 1 || !strings.Contains(out, "three") {
		t.Errorf("exit %d\n%s", code, out)
	}
	out, errOut, code := steno(t, dir, "session", "tail", "s1", "--from", "3", "-o", "json")
	if code != 4 || pick(t, out, "/0/seq") != 3.0 || pick(t, out, "/1/seq") != 5.0 || !strings.Contains(errOut, "sum_mismatch") {
		t.Errorf("exit %d\n%s%s", code, out, errOut)
	}
	if _, errOut, code := steno(t, dir, "session", "tail", "s1", "--from", "7", "-o", "jsonl"); code != 4 || errOut != "" {
		t.Errorf("behind the gap: exit %d\n%s", code, errOut)
	}
	for args, want := range map[string]int{"s2": 3, "../s1": 2, "s1 --from 0": 2} {
		if _, errOut, code := steno(t, dir, append([]string{"session", "tail"}, strings.Fields(args)...)...); code != want || !strings.Contains(errOut, `"next"`) {
			t.Errorf("tail %s: exit %d, %s", args, code, errOut)
		}
	}
}
