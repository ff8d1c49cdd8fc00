package main

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
)

// Commands that read change nothing of a store as it is by default: not of the
// sessions, and not of the commit log that a killed process has left.
func TestReadingCommandsChangeNothing(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	must(t, os.WriteFile(filepath.Join(dir, "calls"), []byte(`{"call_id":"c1","name":"list"}`+"\n"+`{"call_id":"c2","name":"bash","args":{"command":"echo > begun; cat < wait"}}`+"\n"), 0o600))
	must(t, syscall.Mkfifo(filepath.Join(dir, "wait"), 0o600))
	p := launch(t, dir, "run", "calls", "--session", "s1")
	p.until("the command does not begin", func() bool { _, err := os.Stat(filepath.Join(dir, "begun")); return err == nil })
	p.signal(syscall.SIGKILL)
	p.exit()
	tree := func() (all []string) {
		must(t, filepath.WalkDir(filepath.Join(dir, ".steno"), func(path string, d fs.DirEntry, err error) error {
			if err != nil {
				return err
			}
			fi, err := d.Info()
			if err == nil {
				all = append(all, fmt.Sprint(path, fi.Mode(), fi.Size(), fi.ModTime().UnixNano()))
			}
			return err
		}))
		return all
	}
	before := tree()
	if !slices.ContainsFunc(before, func(s string) bool { return strings.Contains(s, "/holders/") && strings.Contains(s, "/log-") }) {
		t.Fatalf("there is no commit log: %q", before)
	}
	for _, args := range [][]string{{"verify"}, {"session", "ls"}, {"session", "show", "s1"}, {"replay", "s1"}, {"head", "s1"}, {"lease", "ls"}, {"lease", "show", "s1"},
		{"calls", "ls", "s1"}, {"calls", "show", "s1", "c2"}, {"calls", "cancel", "s1", "c2", "--dry-run"}, {"approvals", "ls"}, {"repair", "s1"}} {
		good(t, dir, args...)
		if after := tree(); !slices.Equal(before, after) {
			t.Fatalf("%q: before\n%q\nafter\n%q", args, before, after)
		}
	}
}
