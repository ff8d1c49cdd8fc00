package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"steno/journal"
	"steno/journal/journaltest"
)

func TestS7ExportGivesTheMessagesOfASession(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	large := strings.Repeat("long text ", 40_000)
	written(t, dir, "s1", false, []journal.Entry{
		entry("user_message", `{"text":"`+large+`"}`), journaltest.Call("t1.c", "shell", `{"n":12345678901234567890}`), journaltest.Result("t1.c", 1, `"out"`),
		journaltest.Call("open", "shell", `{}`)})
	var openai []struct {
		Role, Content string
		ID            string `json:"tool_call_id"`
	}
	if err := json.Unmarshal([]byte(good(t, dir, "export", "s1", "--format", "openai")), &openai); err != nil || len(openai) != 5 {
		t.Fatalf("%v, %d messages", err, len(openai))
	}
	if openai[0].Content != large {
		t.Errorf("a text in a blob has %d bytes, want %d", len(openai[0].Content), len(large))
	}
	if openai[2].ID != "call_4" || openai[2].Content != "out" || !strings.Contains(openai[4].Content, "no result recorded") {
		t.Errorf("the answers are %+v", openai[2:])
	}
	if out := good(t, dir, "export", "latest", "--format", "anthropic", "--as-of", "4", "-o", "jsonl"); strings.Count(out, "\n") != 3 || !strings.Contains(out, `"input":{"n":12345678901234567890}`) {
		t.Errorf("as of 4 the messages are %.200s", out)
	}
	if out := good(t, dir, "export", "s1", "--format", "steno", "--as-of", "1"); out != "[]\n" {
		t.Errorf("of a seal the messages are %q", out)
	}
	for args, want := range map[string]string{
		"s1 --format other":             `"exit 2 invalid_args there are steno, anthropic and openai`,
		"s1 --format openai --as-of 99": `"exit 3 not_found there is no event 99`,
		"s1 --format openai --as-of 0":  `"exit 2 invalid_args they begin with 1`,
		"none --format openai":          `"exit 3 not_found none`,
		"s1":                            `"exit 2 invalid_args --format or --all`,
		"copy --all --format openai":    `"exit 2 invalid_args --all excludes`,
	} {
		out, errOut, code := steno(t, dir, append([]string{"export"}, strings.Fields(args)...)...)
		w := strings.SplitN(strings.TrimPrefix(want, `"exit `), " ", 3)
		if out != "" || string(rune('0'+code)) != w[0] || !strings.Contains(errOut, `"`+w[1]+`"`) || !strings.Contains(errOut, w[2]) {
			t.Errorf("export %s: exit %d, %q, %s", args, code, out, errOut)
		}
	}
	// Damage ends it before anything is given; what is behind it is asked for.
	file := filepath.Join(dir, ".steno", "sessions", "s1", "000001.jsonl")
	must(t, change(file, `"out"`, `"oat"`))
	if out, errOut, code := steno(t, dir, "export", "s1", "--format", "openai"); code != 4 || out != "" || !strings.Contains(errOut, "sum_mismatch") {
		t.Errorf("of a damaged log: exit %d, %.100q, %s", code, out, errOut)
	}
	out, errOut, code := steno(t, dir, "export", "s1", "--format", "openai", "--lenient")
	if code != 4 || !json.Valid([]byte(out)) || !strings.Contains(out, "what became of it is not known") || !strings.Contains(errOut, "sum_mismatch") {
		t.Errorf("of a damaged log, leniently: exit %d, %.100q, %s", code, out, errOut)
	}
	must(t, os.Remove(file))
}
