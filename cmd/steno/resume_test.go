package main

import (
	"strings"
	"testing"

	"steno/journal"
	"steno/journal/journaltest"
)

func TestS7ResumeOnTheCommandLine(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	written(t, dir, "s1", true, []journal.Entry{entry("user_message", `{"text":"go"}`), journaltest.Call("a", "bash", `{}`), journaltest.Started("a", 1), journaltest.Result("a", 1, `"out"`),
		journaltest.Call("b", "bash", `{}`), journaltest.Started("b", 1)}, []journal.Entry{})
	out := good(t, dir, "session", "resume", "s1", "--format", "anthropic", "-o", "json")
	for pointer, want := range map[string]any{"/calls/ok": 1.0, "/calls/interrupted": 1.0, "/open/0/call_id": "b", "/open/0/state": "interrupted", "/messages/0/role": "user", "/messages/4/content/0/is_error": true} {
		if got := pick(t, out, pointer); got != want {
			t.Errorf("%s is %v, want %v, in %s", pointer, got, want, out)
		}
	}
	text := good(t, dir, "session", "resume", "s1")
	if !strings.Contains(text, "interrupted") || !strings.Contains(text, "steno calls resolve s1 b") {
		t.Errorf("it says %s", text)
	}
	show := good(t, dir, "session", "show", "s1", "-o", "jsonl")
	if n := strings.Count(show, `"type":"tool_result"`); n != 2 {
		t.Errorf("there are %d results", n)
	}
	for args, want := range map[string]int{"none": 3, "s1 --format x": 2} {
		if out, errOut, code := steno(t, dir, append([]string{"session", "resume"}, strings.Fields(args)...)...); code != want || out != "" {
			t.Errorf("resume %s: exit %d, %s%s", args, code, out, errOut)
		}
	}
}

// Both take latest as every command does that looks, and a call whose tool is not
// given stays as it is.
func TestS7ResumeAndForkTakeLatest(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	written(t, dir, "s1", true, []journal.Entry{journaltest.Call("a", "mine", `{}`), journaltest.Started("a", 1), journaltest.Call("b", "mine", `{}`)}, []journal.Entry{})
	for _, flags := range [][]string{{"--dry-run"}, nil, nil} {
		out, errOut, code := steno(t, dir, append([]string{"session", "resume", "latest"}, flags...)...)
		if code != 0 || strings.Count(out, "--tools FILE") < 2 || !strings.Contains(errOut, "latest is s1") {
			t.Errorf("resume %s: exit %d, %s%s", flags, code, out, errOut)
		}
	}
	if show := good(t, dir, "session", "show", "s1", "-o", "jsonl"); strings.Contains(show, "tool_result") {
		t.Errorf("it has settled %s", show)
	}
	if out := good(t, dir, "session", "fork", "latest", "--session", "s2"); !strings.Contains(out, "s2") {
		t.Error(out)
	}
}

// What one answer cannot carry stands in the store.
func TestS7AResumeGivesMessagesOfAnySize(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	long := strings.Repeat("long ", 180_000)
	written(t, dir, "s1", true, []journal.Entry{entry("user_message", `{"text":"`+long+`"}`), journaltest.Call("a", "bash", `{}`), journaltest.Started("a", 1)}, []journal.Entry{})
	for _, format := range []string{"anthropic", "openai", "steno"} {
		out := good(t, dir, "session", "resume", "s1", "--format", format, "-o", "json")
		if !strings.Contains(out, long) || pick(t, out, "/open/0/state") != "interrupted" || pick(t, out, "/messages/2") == nil {
			t.Errorf("as %s: %.300s", format, out)
		}
	}
}
