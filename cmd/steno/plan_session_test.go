package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"steno/journal"
	"steno/journal/journaltest"
)

// A dry run says what would be recorded, writes nothing and takes no lease: not of
// a session that is free, of one that is dead, nor of one that is held.
func TestS18DryRunsOfSessionsWriteNothing(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	written(t, dir, "s1", false, []journal.Entry{journaltest.Note("x")})
	written(t, dir, "over", false, []journal.Entry{entry("session_ended", `{"outcome":"failed","reason":"r"}`)})
	written(t, dir, "died", true, joined([]journal.Entry{journaltest.Call("wait", "bash", `{}`), entry("approval_requested", `{"call_id":"wait","approval_id":"q","reason":"ask"}`),
		journaltest.Call("new", "bash", `{}`), journaltest.Call("hidden", "bash", `{}`)}, ran("again", "read", `{}`, `""`)[:3], ran("lost", "bash", `{}`, `""`)[:3], ran("done", "read", `{}`, `"x"`)))
	good(t, dir, "session", "fork", "s1", "--at", "3", "--session", "f1")
	j, err := journal.Open(t.Context(), journaltest.FilesIn(t, filepath.Join(dir, ".steno")).WithoutLog(), "held", journaltest.Options())
	must(t, err)
	defer j.Close()
	gone, err := journal.Open(t.Context(), journaltest.FilesIn(t, filepath.Join(dir, ".steno")).WithoutLog(), "gone", journaltest.Options())
	must(t, err)
	must(t, gone.Close())
	look := func() string {
		var all []string
		for _, line := range tree(t, filepath.Join(dir, ".steno")) {
			if path, _, beat := strings.Cut(line, "/beat"); beat && strings.Contains(path, "/holders/") { // that of who holds a session moves
				line = path
			}
			all = append(all, line)
		}
		return strings.Join(all, "\n")
	}
	before := look()
	for args, want := range map[string]string{
		"phase s1 editing --reason why":                     "would record that the session goes from no phase to editing, by user ",
		"phase s1 verifying --task-kind edit":               "to verifying, and that its task is of the kind edit, by user ",
		"posture s1 --mode read_only --reason why":          "would record that the mode goes from none to read_only, and the rules stay, by user ",
		"end s1 --outcome partial":                          "would record that the session has ended: partial",
		"end over --outcome failed --reason r":              "would change nothing",
		"end died --outcome failed":                         "would settle 5 calls",
		"fork s1 --session f2":                              "would make session f2 that goes on from event 4, with 1 event of this one",
		"fork died":                                         "would make a new session that goes on from event 17, with 4 events of this one; 5 calls without a result would be left out",
		"fork s1 --at 3 --session f1":                       "would change nothing: session f1 is that fork",
		"resume s1":                                         "would take it in epoch 2 or above: ",
		"resume over":                                       "it has ended",
		"resume held":                                       "would ask its holder",
		"resume gone":                                       "would take it in epoch 2 or above: ",
		"resume died":                                       "would lost: record that it is interrupted",
		"phase held editing":                                "goes from no phase to editing",
		"posture held --mode auto --reason why":             "from none to auto",
		"posture s1 --mode ask --reason 'so it is' -o json": `"dry_run":true`,
		"resume died -o json":                               `{"call_id":"again","would":"run read again, as attempt 2"}`,
	} {
		out := good(t, dir, append(append([]string{"session"}, shellWords(args)...), "--dry-run")...)
		if !strings.Contains(out, want) {
			t.Errorf("session %s says\n%sand not %q", args, out, want)
		}
	}
	out := good(t, dir, "session", "resume", "died", "--dry-run")
	for _, want := range []string{"would wait: leave it waiting for a person\n", "would new: run bash, which has not started\n", "would again: run read again, as attempt 2\n"} {
		if !strings.Contains(out, want) {
			t.Errorf("there is no %q in\n%s", want, out)
		}
	}
	for args, want := range map[string]int{
		"phase s1 plan": 2, "phase none editing": 3, "phase over editing": 1, "posture over --mode ask --reason x": 1, "posture s1 --mode x --reason x": 2, "end over --outcome completed": 1,
		"fork s1 --session died": 1, "fork s1 --at 99": 3, "fork none": 3, "resume none": 3, "end s1 --outcome done": 2, "end s1": 2, "phase s1 editing --nats nats://127.0.0.1:1": 2,
	} {
		if out, errOut, code := steno(t, dir, append(append([]string{"session"}, shellWords(args)...), "--dry-run")...); code != want || out != "" || !strings.Contains(errOut, `"next"`) {
			t.Errorf("session %s: exit %d, want %d, %s%s", args, code, want, out, errOut)
		}
	}
	if after := look(); after != before {
		t.Errorf("the store was\n%s\nand is\n%s", before, after)
	}
	// A damaged log is planned no more than it is written.
	must(t, change(filepath.Join(dir, ".steno/sessions/s1/000001.jsonl"), `"x"`, `"y"`))
	for _, args := range []string{"phase s1 editing", "end s1 --outcome failed", "resume s1", "fork s1"} {
		if _, _, code := steno(t, dir, append(append([]string{"session"}, strings.Fields(args)...), "--dry-run")...); code != 4 {
			t.Errorf("session %s: exit %d", args, code)
		}
	}
}

// What a dry run says is what becomes of it.
func TestS16ASessionEndsFromTheCommandLine(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	good(t, dir, "run", os.DevNull, "--session", "s1")
	out := good(t, dir, "session", "end", "s1", "--outcome", "partial", "--reason", "half of it")
	if !strings.Contains(out, "OUTCOME") || !strings.Contains(out, "partial") {
		t.Error(out)
	}
	if again := good(t, dir, "session", "end", "s1", "--outcome", "partial", "--reason", "half of it", "-o", "json"); pick(t, again, "/seq") == nil {
		t.Error(again)
	}
	if show := good(t, dir, "session", "show", "s1", "-o", "jsonl"); strings.Count(show, `"type":"session_ended","data":{"outcome":"partial","reason":"half of it"}`) != 1 {
		t.Error(show)
	}
	if _, errOut, code := steno(t, dir, "session", "end", "s1", "--outcome", "failed"); code != 1 || !strings.Contains(errOut, "session_ended") {
		t.Errorf("another end: exit %d, %s", code, errOut)
	}
	if _, _, code := steno(t, dir, "session", "end", "none", "--outcome", "failed"); code != 3 {
		t.Errorf("of no session: exit %d", code)
	}
}
