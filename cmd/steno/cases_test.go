package main

import (
	"encoding/json"
	"os"
	"strings"
	"testing"

	"steno/journal/journaltest"
)

// A name that is none is refused by every command that takes one, and what it
// says can be shown on a terminal.
func TestCommandNameCases(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	good(t, dir, "run", os.DevNull, "--session", "here")
	for _, c := range journaltest.Cases(t, "ids") {
		var ids []struct {
			ID       string
			Accepted bool
		}
		if err := json.Unmarshal(c.Read(t, "ids.json"), &ids); err != nil {
			t.Fatal(err)
		}
		commands := [][]string{{"verify"}, {"session", "show"}, {"lease", "show"}, {"replay"}}
		for i, id := range ids {
			if strings.Contains(id.ID, "\x00") {
				continue // no argument of a process
			}
			args := append(commands[i%len(commands)], "--", id.ID)
			_, errOut, code := steno(t, dir, args...)
			want := 2 // usage
			if id.Accepted {
				want = 3 // not found
			}
			if code != want || strings.ContainsAny(strings.TrimSpace(errOut), "\x1b\x07\x00") || len(errOut) > 1000 {
				t.Errorf("steno %q: exit %d, want %d\n%q", args, code, want, errOut)
			}
		}
	}
	list, err := os.ReadDir(dir)
	if err != nil || len(list) != 1 || list[0].Name() != ".steno" {
		t.Errorf("beside the store lie %v, %v", list, err)
	}
}
