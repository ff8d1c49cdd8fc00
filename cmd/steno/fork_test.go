package main

import (
	"strings"
	"testing"

	"steno/journal"
	"steno/journal/journaltest"
)

func TestS9ForkOnTheCommandLine(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	written(t, dir, "s1", false, []journal.Entry{journaltest.Call("a", "shell", `{}`), journaltest.Result("a", 1, `"out"`), journaltest.Call("open", "shell", `{}`)})
	before := good(t, dir, "session", "show", "s1", "-o", "jsonl")
	out := good(t, dir, "session", "fork", "s1", "--at", "4", "--session", "s2", "-o", "json")
	if pick(t, out, "/session") != "s2" || pick(t, out, "/parent") != "s1" || pick(t, out, "/at") != float64(4) || pick(t, out, "/created") != true {
		t.Errorf("fork says %s", out)
	}
	if again := good(t, dir, "session", "fork", "s1", "--at", "4", "--session", "s2", "-o", "json"); pick(t, again, "/created") != false {
		t.Errorf("again it says %s", again)
	}
	if good(t, dir, "session", "show", "s1", "-o", "jsonl") != before {
		t.Error("the parent has changed")
	}
	good(t, dir, "verify")
	if show := good(t, dir, "session", "show", "s2", "-o", "jsonl"); strings.Count(show, `"origin":{"session":"s1"`) != 2 || strings.Contains(show, `"open"`) {
		t.Errorf("the fork is\n%s", show)
	}
	if id := good(t, dir, "session", "fork", "s1"); !strings.Contains(id, "s1") {
		t.Errorf("a fork without a name: %s", id)
	}
	for args, want := range map[string]int{"s1 --at 0": 2, "s1 --at 99": 3, "none": 3, "s1 --at 3 --session s2": 1} {
		if out, errOut, code := steno(t, dir, append([]string{"session", "fork"}, strings.Fields(args)...)...); code != want || out != "" {
			t.Errorf("fork %s: exit %d, %s%s", args, code, out, errOut)
		}
	}
}
