package main

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// Whatever a command says is to be typed next is about the store that the
// command was about.
func TestNextStepsAreAboutTheStoreOfTheirCommand(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "it's here")
	work, calls := t.TempDir(), filepath.Join(t.TempDir(), "calls.jsonl")
	if err := os.WriteFile(calls, []byte(`{"call_id":"c1","name":"bash","args":{"command":"kill -9 $PPID; exit 3"}}`+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	here := " --dir '" + strings.ReplaceAll(dir, "'", `'\''`) + "'"
	var named []string // the commands that were told
	say := func(args ...string) string {
		t.Helper()
		var out, errOut bytes.Buffer
		run(t.Context(), append(args, "--dir", dir), strings.NewReader(""), &out, &errOut)
		text := strings.ReplaceAll(out.String(), `\\`, `\`) + strings.ReplaceAll(errOut.String(), `\\`, `\`) // of JSON
		for _, m := range mention.FindAllStringSubmatchIndex(text, -1) {
			command := strings.TrimSpace(text[m[2]:m[3]])
			words := strings.Fields(command)
			if prose[words[0]] || words[0] == "--help" || words[len(words)-1] == "--help" || words[0] == "version" {
				continue
			}
			named = append(named, command)
			if rest, _, _ := strings.Cut(text[m[0]:], ";"); !strings.Contains(rest, here) {
				t.Errorf("steno %s says: %s", strings.Join(args, " "), rest)
			}
		}
		return text
	}
	each := func(args ...string) {
		t.Helper()
		for _, format := range []string{"table", "json", "jsonl"} {
			say(append(args, "-o", format)...)
		}
	}

	each("verify", "s1") // there is no store
	each("session", "ls")
	for _, session := range []string{"s1", "s2"} {
		say("run", calls, "--session", session, "--workspace", work)
	}
	for _, args := range [][]string{
		{"verify", "none"}, {"replay", "none"}, {"session", "show", "none"}, {"lease", "show", "none"}, {"lease", "show", "s1"}, {"lease", "ls"},
		{"lease", "force", "s1"}, {"lease", "release", "s1"}, {"calls", "ls", "none"}, {"calls", "show", "s1", "none"}, {"calls", "show", "s1", "c1"},
		{"calls", "resolve", "s1", "c1", "--failed", "--reason", "so it is"}, {"calls", "resolve", "s1", "c1", "--failed"},
		{"calls", "cancel", "s1", "none"}, {"calls", "wait", "s1", "none", "--timeout", "1ms"}, {"approvals", "allow", "s1", "c1"}, {"head", "s1", "--key", "none"},
		{"session", "rm", "s1", "--reason", "it's old"}, {"session", "show", "s1", "--blob", strings.Repeat("0", 64)}, {"session", "show", "s1", "--blob", "0"},
		{"call", "list", "--session", "none"}, {"call", "bash", "--session", "s1", "--call-id", "c1"}, {"repair", "s1"}, {"repair", "none"}, {"demo", "check"}, {"doctor"}, {"session", "resume", "s1"},
	} {
		each(args...)
	}

	// A damaged log.
	file := filepath.Join(dir, "sessions", "s2", "000001.jsonl")
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, bytes.Replace(b, []byte(`"c1"`), []byte(`"c2"`), 1), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{
		{"verify"}, {"verify", "s2"}, {"session", "show", "s2"}, {"replay", "s2"}, {"head", "s2"}, {"doctor"}, {"session", "tree"}, {"calls", "ls", "s2"}, {"session", "ls"},
		{"call", "list", "--session", "s2"}, {"session", "pack", "s2"}, {"session", "pack", "s1", "s2"}, {"export", "--all", filepath.Join(t.TempDir(), "x")}, {"repair", "s2", "--reason", "it's old"},
	} {
		each(args...)
	}
	if text := say("repair", "s2", "--reason", "it's old"); !strings.Contains(text, `s2 --reason 'it'\''s old' --apply`) {
		t.Errorf("repair says: %s", text)
	}
	slices.Sort(named)
	if named = slices.Compact(named); len(named) < 10 {
		t.Errorf("only these were told: %q", named)
	}
}

// What is made of a step is for a shell; what is none stays as it is.
func TestNextStepsHere(t *testing.T) {
	a := &app{dir: "/a b", dirGiven: true, reason: "it's old"}
	for text, want := range map[string]string{
		"run: steno verify s1": "run: steno verify --dir '/a b' s1",
		"run: steno session rm s1 --reason WHY --apply; or steno lease ls": "run: steno session rm --dir '/a b' s1 --reason 'it'\\''s old' --apply; or steno lease ls --dir '/a b'",
		"answer it: steno approvals allow, or deny":                        "answer it: steno approvals allow --dir '/a b', or deny",
		"find out with steno verify which is right":                        "find out with steno verify --dir '/a b' which is right",
		"name the store with --dir, or make one with: steno serve":         "name the store with --dir, or make one with: steno serve --dir '/a b'",
		"run: steno verify verify":                                         "run: steno verify --dir '/a b' verify",
		"use a newer steno; run: steno version":                            "use a newer steno; run: steno version",
		"run: steno demo":                                                  "run: steno demo",
		"run: steno session --help":                                        "run: steno session --help",
		"run: steno verify demo --dir x":                                   "run: steno verify demo --dir x",
		"look at /usr/bin/steno verify":                                    "look at /usr/bin/steno verify",
	} {
		if got := a.here(text); got != want {
			t.Errorf("%q becomes %q", text, got)
		}
		if got := a.here(a.here(text)); got != want {
			t.Errorf("twice %q becomes %q", text, got)
		}
		if got := (&app{dir: "/a b"}).here(text); got != text {
			t.Errorf("without --dir %q becomes %q", text, got)
		}
	}
}
