package main

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"steno/schema"
)

// odd is something that may stand where the session of this name would be, or
// its newest segment, and what verify must say of it.
type odd struct {
	name  string
	put   func(folder, segment string) error
	wants []string // kinds or reasons, any of them
}

// odds are made from good, the segment of another session.
func odds(good []byte, outside string) []odd {
	write := func(b []byte) func(string, string) error {
		return func(_, segment string) error { return os.WriteFile(segment, b, 0o600) }
	}
	unsafe := []string{string(schema.UnsafeStatePath)}
	claim := []string{string(schema.ClaimCorrupt)}
	noise := make([]byte, 100_000)
	for i, r := 0, rand.New(rand.NewPCG(1, 2)); i < len(noise); i++ {
		noise[i] = byte(r.Uint32())
	}
	instead := func(put func(folder string) error) func(string, string) error {
		return func(folder, _ string) error {
			if err := os.RemoveAll(folder); err != nil {
				return err
			}
			return put(folder)
		}
	}
	list := []odd{
		{"empty", write(nil), claim},
		{"noise", write(noise), claim},
		{"zeros", write(make([]byte, 100_000)), claim},
		{"newlines", write(bytes.Repeat([]byte("\n"), 100_000)), claim},
		{"no-newline", write(bytes.Repeat([]byte("x"), 3<<20)), claim},
		{"brackets", write(bytes.Repeat([]byte("["), 900_000)), claim},
		{"of-another-session", write(good), claim},
		{"json", write([]byte("{}\n[]\nnull\n")), claim},
		{"fifo", func(_, s string) error { return syscall.Mkfifo(s, 0o600) }, unsafe},
		{"folder", func(_, s string) error { return os.Mkdir(s, 0o700) }, unsafe},
		{"link", func(_, s string) error { return os.Symlink(outside, s) }, unsafe},
		{"dangling", func(_, s string) error { return os.Symlink("nowhere", s) }, unsafe},
		{"round", func(_, s string) error { return os.Symlink(filepath.Base(s), s) }, unsafe},
		{"second-name", func(_, s string) error { return os.Link(outside, s) }, unsafe},
		{"socket", func(_, s string) error { return unix.Mknod(s, unix.S_IFSOCK|0o600, 0) }, unsafe},
		{"for-all-to-write", func(_, s string) error {
			return errors.Join(os.WriteFile(s, good, 0o600), os.Chmod(s, 0o666))
		}, unsafe},
		{"file-for-a-folder", instead(func(p string) error { return os.WriteFile(p, good, 0o600) }), unsafe},
		{"fifo-for-a-folder", instead(func(p string) error { return syscall.Mkfifo(p, 0o600) }), unsafe},
		{"link-for-a-folder", instead(func(p string) error { return os.Symlink(filepath.Dir(outside), p) }), unsafe},
		{"folder-for-all-to-write", func(f, s string) error {
			return errors.Join(os.WriteFile(s, good, 0o600), os.Chmod(f, 0o777))
		}, unsafe},
	}
	if os.Geteuid() == 0 { // who else may
		const nobody = 65534
		list = append(list,
			odd{"somebody-elses", func(_, s string) error {
				return errors.Join(os.WriteFile(s, good, 0o600), os.Chown(s, nobody, nobody))
			}, unsafe},
			odd{"device", func(_, s string) error {
				err := unix.Mknod(s, unix.S_IFCHR|0o600, int(unix.Mkdev(1, 5))) // /dev/zero, which never ends
				if err == unix.EPERM {
					err = syscall.Mkfifo(s, 0o600) // a container without the right to make devices
				}
				return err
			}, unsafe})
	}
	return list
}

// Whatever stands in the place of a session or of a segment, it has a name,
// nobody waits for it, no byte changes, and no other session is disturbed.
func TestWhateverStandsInAStore(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	good(t, dir, "run", os.DevNull, "--session", "good")
	sound := good(t, dir, "verify", "good")
	sessions := filepath.Join(dir, ".steno", "sessions")
	bytes, err := os.ReadFile(filepath.Join(sessions, "good", "000001.jsonl"))
	must(t, err)
	outside := filepath.Join(dir, "outside", "000001.jsonl")
	must(t, os.Mkdir(filepath.Dir(outside), 0o700))
	must(t, os.WriteFile(outside, bytes, 0o600))
	list := odds(bytes, outside)
	for _, o := range list {
		folder := filepath.Join(sessions, o.name)
		must(t, os.Mkdir(folder, 0o700))
		must(t, o.put(folder, filepath.Join(folder, "000001.jsonl")))
	}
	before := tree(t, dir)

	all, _, code := steno(t, dir, "verify", "-o", "jsonl")
	if code == 0 || !strings.Contains(good(t, dir, "verify", "good"), strings.TrimSpace(sound)) {
		t.Errorf("verify exits %d; of the good session it says\n%s, before\n%s", code, all, sound)
	}
	reports := map[string]string{}
	for line := range strings.Lines(all) {
		reports[fmt.Sprint(pick(t, line, "/session"))] = line
	}
	for _, o := range list {
		line := reports[o.name]
		if !slices.ContainsFunc(o.wants, func(w string) bool { return strings.Contains(line, `"`+w+`"`) }) || pick(t, line, "/ok") != false {
			t.Errorf("verify says of %s\n%.500s, want %q", o.name, line, o.wants)
		}
		for _, args := range [][]string{{"verify", o.name}, {"session", "show", o.name}, {"replay", o.name}, {"run", os.DevNull, "--session", o.name}} {
			out, errOut, code := steno(t, dir, args...)
			may := []int{schema.ExitCorrupt, schema.ExitLease} // a claim that cannot be read says nothing of a writer
			if o.wants[0] == string(schema.UnsafeStatePath) {
				may = []int{schema.UnsafeStatePath.Info().Exit}
			}
			if !slices.Contains(may, code) || strings.Contains(out+errOut, "outside") {
				t.Errorf("steno %q: exit %d\n%.300s\n%.300s", args, code, out, errOut)
			}
		}
	}
	for _, of := range []string{"session", "lease"} {
		if ls := good(t, dir, of, "ls", "-o", "jsonl"); strings.Count(ls, "\n") != len(list)+1 {
			t.Errorf("%s ls gives\n%s", of, ls)
		}
	}
	if after := tree(t, dir); !slices.Equal(before, after) {
		t.Errorf("before\n%q\nafter\n%q", before, after)
	}
	good(t, dir, "run", os.DevNull, "--session", "good")
}
