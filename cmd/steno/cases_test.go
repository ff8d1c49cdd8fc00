package main

import (
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"steno/journal/journaltest"
)

// Verify says of each session of the cases whether it is damaged, though they
// lie in one store, and exits 4 exactly if one is.
func TestVerifyCases(t *testing.T) {
	t.Parallel()
	logs := journaltest.CasesOf(t, "log", "TestLogCases")
	for nth := 0; ; nth++ {
		damaged, sound := t.TempDir(), t.TempDir()
		want := map[string]journaltest.CaseLog{}
		for _, dir := range []string{damaged, sound} {
			good(t, dir, "run", os.DevNull, "--session", "good")
		}
		for _, c := range logs {
			if all := c.Logs(); nth < len(all) {
				want[all[nth].Session] = all[nth]
				c.Lay(t, all[nth].Log, filepath.Join(damaged, ".steno"), all[nth].Session)
				if all[nth].Strict.OK {
					c.Lay(t, all[nth].Log, filepath.Join(sound, ".steno"), all[nth].Session)
				}
			}
		}
		if len(want) == 0 {
			return
		}
		bad := 0
		out, _, code := steno(t, damaged, "verify", "-o", "jsonl")
		for line := range strings.Lines(out) {
			id := pick(t, line, "/session").(string)
			w, ok := want[id]
			if delete(want, id); !ok && id != "good" {
				t.Errorf("there is a session %s", id)
			}
			if ok && !w.Strict.OK {
				bad++
			}
			events := pick(t, line, "/events").(float64)
			if pick(t, line, "/ok") != (!ok || w.Strict.OK) || ok && int(events) != w.Events && !slices.Contains(w.EventsOr, int(events)) {
				t.Errorf("verify says %.500s", line)
			}
		}
		if len(want) > 0 || bad == 0 && code != 0 || bad > 0 && code != 4 {
			t.Errorf("%d sessions are damaged, and verify exits %d; not mentioned are %d", bad, code, len(want))
		}
		good(t, sound, "verify")
	}
}

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

// A beginning that several sessions share means none of them.
func TestASessionIsKnownByItsWholeName(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	good(t, dir, "run", os.DevNull, "--session", "here")
	store := filepath.Join(dir, ".steno")
	for _, c := range journaltest.AllCases(t) {
		if c.Name == "B086-same-short-prefix" {
			for _, l := range c.Logs() {
				c.Lay(t, l.Log, store, l.Session)
			}
			before := tree(t, store)
			short, _, _ := strings.Cut(c.Session, "-")
			for _, args := range [][]string{{"verify", short}, {"session", "show", short}, {"lease", "show", short}, {"call", "list", "--session", short}} {
				if _, errOut, code := steno(t, dir, args...); code != 3 {
					t.Errorf("steno %q: exit %d\n%s", args, code, errOut)
				}
			}
			if after := tree(t, store); !slices.Equal(before, after) {
				t.Error("something has changed")
			}
			// What is done to the empty one does not touch the others.
			good(t, dir, "run", os.DevNull, "--session", c.More[0].Session)
			if n := strings.Count(good(t, dir, "session", "show", c.Session, "-o", "jsonl"), "\n"); n != c.Events {
				t.Errorf("the session has %d events", n)
			}
			return
		}
	}
	t.Error("the case is gone")
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// tree is all that there is in a folder: names, modes, sizes, bytes.
func tree(t *testing.T, dir string) (out []string) {
	t.Helper()
	must(t, filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		fi, err := d.Info()
		if err != nil {
			return err
		}
		line := fmt.Sprint(path, fi.Mode(), fi.Size())
		if fi.Mode().IsRegular() {
			b, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			line += string(b)
		}
		out = append(out, line)
		return nil
	}))
	return out
}
