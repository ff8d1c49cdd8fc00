package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"steno/journal"
	"steno/journal/journaltest"
)

// Where event 5 cannot be read, nothing of what is behind it counts as of that
// event, and the damage is named by whoever reads past it.
func TestS6AsOfAnEventOnADamagedLog(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	said := func(text string) journal.Entry { return entry("user_message", `{"text":"`+text+`"}`) }
	written(t, dir, "s", true, []journal.Entry{said("one"), said("two"), said("three"), said("four"), said("five")}, []journal.Entry{said("six")})
	path := filepath.Join(dir, ".steno", "sessions", "s", "000001.jsonl")
	text, err := os.ReadFile(path)
	must(t, err)
	must(t, os.WriteFile(path, bytes.Replace(text, []byte(`"three"`), []byte(`"THREE"`), 1), 0o600))

	for asOf, want := range map[string]struct{ head, code int }{"4": {4, 0}, "5": {4, 4}, "6": {6, 4}} {
		out, errOut, code := steno(t, dir, "replay", "s", "--as-of", asOf, "--lenient", "-o", "json")
		if head := pick(t, out, "/head/seq"); code != want.code || head != float64(want.head) {
			t.Errorf("replay as of %s: exit %d, head %v\n%s", asOf, code, head, errOut)
		}
	}
	for _, args := range [][]string{{"session", "inspect", "s"}, {"export", "s", "--format", "openai", "--lenient"}} {
		if out, errOut, code := steno(t, dir, append(args, "--as-of", "7")...); code != 4 || !strings.Contains(errOut, "corrupt_log_line") || strings.Contains(out, "six") {
			t.Errorf("%s: exit %d\n%s%s", args, code, out, errOut)
		}
		if _, errOut, code := steno(t, dir, append(args, "--as-of", "3")...); code != 0 {
			t.Errorf("%s as of before the damage: exit %d\n%s", args, code, errOut)
		}
	}
	out := good(t, dir, "export", "s", "--as-of", "3", "--format", "md")
	if !strings.Contains(out, "3 events in 1 epoch") {
		t.Errorf("as of the first epoch:\n%s", out)
	}
	if _, errOut, code := steno(t, dir, "replay", "s", "--as-of", "99", "--lenient"); code != 3 {
		t.Errorf("as of nothing: exit %d\n%s", code, errOut)
	}
}

// A writer that has nothing more to write leaves its last events unsaid to be
// durable. They are shown all the same, and their reader is told.
func TestS14WhatAWriterHasJustWrittenIsShown(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	store, err := journal.OpenFiles(filepath.Join(dir, ".steno"), true)
	must(t, err)
	defer store.Close()
	j, err := journal.Open(t.Context(), store, "s", journaltest.Options())
	must(t, err)
	defer j.Close()
	journaltest.Append(t, j, entry("user_message", `{"text":"go"}`))
	journaltest.Append(t, j, ran("c1", "read", `{"path":"a"}`, `"what it says"`)...)
	for _, args := range [][]string{{"session", "inspect", "s"}, {"export", "s", "--format", "openai"}, {"export", "s", "--format", "anthropic"}} {
		out, errOut, code := steno(t, dir, args...)
		if code != 0 || strings.Contains(out, "outcome_unknown") || strings.Contains(out, "orphan") || !strings.Contains(errOut, "nothing shows yet that it is durable") {
			t.Errorf("%s: exit %d\n%s%s", args, code, out, errOut)
		}
	}
}
