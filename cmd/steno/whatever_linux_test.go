package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"steno/journal"
	"steno/journal/journaltest"
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

// small is steno, whatever its exit code, that must do with 64 MB of memory.
func small(t *testing.T, dir string, args ...string) string {
	t.Helper()
	enough := int64(64 << 20)
	if info, ok := debug.ReadBuildInfo(); ok && slices.Contains(info.Settings, debug.BuildSetting{Key: "-race", Value: "true"}) {
		enough = 1 << 30 // the detector keeps books of its own
	}
	ctx, cancel := context.WithTimeout(t.Context(), 5*patience)
	defer cancel()
	used := filepath.Join(t.TempDir(), "used")
	cmd := exec.CommandContext(ctx, "measured", append([]string{used}, args...)...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "STENO_DIR=")
	out, _ := cmd.Output()
	b, err := os.ReadFile(used)
	must(t, err)
	if n, err := strconv.ParseInt(string(b), 10, 64); err != nil || n > enough {
		t.Errorf("steno %q took %s bytes of memory, %v", args, b, err)
	}
	return string(out)
}

// measured FILE ARG... is steno ARG..., and leaves in FILE how much memory that
// took at most. What the kernel says of a process counts the memory of whoever
// started it, before its exec: this process starts it, which is small.
func measured() {
	cmd := exec.Command("steno", os.Args[2:]...)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	err := cmd.Run()
	if cmd.ProcessState == nil || cmd.ProcessState.ExitCode() < 0 {
		fmt.Fprintln(os.Stderr, "it did not end by itself:", err)
		os.Exit(1)
	}
	used := cmd.ProcessState.SysUsage().(*syscall.Rusage).Maxrss << 10
	if err := os.WriteFile(os.Args[1], []byte(fmt.Sprint(used)), 0o600); err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
}

// Lists read the beginning and the end of a newest segment, whatever lies
// between: nobody could wait for them to read a terabyte.
func TestAListDoesNotReadTheLogs(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	good(t, dir, "run", os.DevNull, "--session", "s1")
	path := filepath.Join(dir, ".steno", "sessions", "s1", "000001.jsonl")
	if err := os.Truncate(path, 1<<40); errors.Is(err, syscall.EFBIG) || errors.Is(err, syscall.EINVAL) {
		must(t, os.Truncate(path, 1<<34)) // the most of some file systems
	} else {
		must(t, err)
	}
	for _, args := range [][]string{{"session", "ls"}, {"lease", "ls"}, {"lease", "show", "s1"}} {
		if out := small(t, dir, args...); !strings.Contains(out, "stale") {
			t.Errorf("steno %q says %s", args, out)
		}
	}
}

// A long log is streamed; who goes on with it keeps what its events amount to.
func TestALongLogNeedsLittleMemory(t *testing.T) {
	t.Parallel()
	const batches, calls = 60, 250 // of four events
	dir := t.TempDir()
	store := journaltest.FilesIn(t, filepath.Join(dir, ".steno"))
	j, err := journal.Open(t.Context(), store, "s1", journaltest.Options())
	must(t, err)
	output := `"` + strings.Repeat("o", 600) + `"`
	for b := range batches {
		var entries []journal.Entry
		for n := range calls {
			id := fmt.Sprintf("c%d.%d", b, n)
			entries = append(entries, journaltest.Call(id, "shell", `{}`), journaltest.Started(id, 1),
				journaltest.Result(id, 1, output), journaltest.Note(id))
		}
		journaltest.Append(t, j, entries...)
	}
	must(t, j.Close())
	if out := small(t, dir, "verify", "s1", "-o", "json"); pick(t, out, "/events") != float64(4*batches*calls+2) || pick(t, out, "/ok") != true {
		t.Errorf("verify says %s", out)
	}
	if out := small(t, dir, "session", "show", "s1", "-o", "jsonl"); strings.Count(out, "\n") != 4*batches*calls+2 {
		t.Errorf("show gives %d lines", strings.Count(out, "\n"))
	}
	good(t, dir, "run", os.DevNull, "--session", "s1")
	if out := good(t, dir, "lease", "show", "s1", "-o", "json"); pick(t, out, "/epoch") != 2.0 {
		t.Errorf("nobody went on with it: %s", out)
	}
}

// A segment of any size is read in the memory of a few lines.
func TestAHugeSegmentNeedsLittleMemory(t *testing.T) {
	t.Parallel()
	huge := int64(1 << 30)
	if os.Getenv("STENO_TEST_HUGE") != "" { // minutes
		huge = 10 << 30
	}
	line := func(f *os.File, n int) error { // of so many letters
		b := bytes.Repeat([]byte("z"), 1<<20)
		for n > 0 {
			k, err := f.Write(b[:min(n, len(b))])
			if err != nil {
				return err
			}
			n -= k
		}
		_, err := f.WriteString("\n")
		return err
	}
	for _, c := range []struct {
		name string
		put  func(f *os.File) error
		want []string
	}{
		{"25 MB in a line", func(f *os.File) error { return line(f, 25_000_000) }, []string{`"over_limit"`, `"line":4`, `"bytes":25000000`}},
		{"a hole behind the last line", func(f *os.File) error {
			fi, err := f.Stat()
			if err == nil {
				err = f.Truncate(fi.Size() + huge)
			}
			return err
		}, []string{`"torn_tail"`, `"line":4`, fmt.Sprintf(`"bytes":%d`, huge)}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			good(t, dir, "run", os.DevNull, "--session", "s1")
			path := filepath.Join(dir, ".steno", "sessions", "s1", "000001.jsonl")
			// Without its release, so that what follows may be a tail.
			b, err := os.ReadFile(path)
			must(t, err)
			lines := bytes.SplitAfter(b, []byte("\n"))
			must(t, os.WriteFile(path, bytes.Join(lines[:3], nil), 0o600))
			f, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND, 0)
			must(t, err)
			must(t, c.put(f))
			must(t, f.Close())
			out := small(t, dir, "verify", "s1", "-o", "json")
			for _, w := range c.want {
				if !strings.Contains(out, w) {
					t.Errorf("there is no %s in %s", w, out)
				}
			}
		})
	}
}

func init() { commands["measured"] = measured }
