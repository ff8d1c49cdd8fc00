package journal_test

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"steno/journal"
	"steno/journal/journaltest"
	"steno/schema"
)

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// tree is all that there is in a folder: names, modes, times, bytes.
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
		line := fmt.Sprint(path, fi.Mode(), fi.Size(), fi.ModTime().UnixNano())
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

// inTime fails a test whose body hangs.
func inTime(t *testing.T, f func()) {
	t.Helper()
	done := make(chan struct{})
	go func() {
		defer close(done)
		f()
	}()
	select {
	case <-done:
	case <-time.After(journaltest.Deadline):
		t.Fatal("it hangs")
	}
}

func TestAMissingStoreIsNotFoundAndStaysMissing(t *testing.T) {
	dir := journaltest.TempDir(t)
	empty := filepath.Join(dir, "empty")
	must(t, os.Mkdir(empty, 0o700))
	before := tree(t, dir)
	for _, d := range []string{filepath.Join(dir, "missing"), empty} {
		_, err := journal.OpenFiles(d, false)
		if !errors.Is(err, schema.NotFound) || schema.AsError(err).Details["next"] == nil {
			t.Errorf("opening %s gives %v", d, err)
		}
	}
	if !slices.Equal(tree(t, dir), before) {
		t.Error("asking for a store has made something")
	}
	file := filepath.Join(dir, "file")
	must(t, os.WriteFile(file, nil, 0o600))
	for _, create := range []bool{false, true} {
		if f, err := journal.OpenFiles(file, create); err == nil {
			f.Close()
			t.Error("a file was opened as a store")
		}
	}
}

func TestAStoreIsMadeOnceWithItsModesSet(t *testing.T) {
	old := syscall.Umask(0)
	defer syscall.Umask(old)
	dir := filepath.Join(journaltest.TempDir(t), "a", "store")
	var id string
	for range 2 {
		f, err := journal.OpenFiles(dir, true)
		must(t, err)
		if id == "" {
			id = f.ID()
		}
		if f.ID() != id {
			t.Errorf("the id was %s and is %s", id, f.ID())
		}
		must(t, f.Close())
	}
	f, err := journal.OpenFiles(dir, false)
	must(t, err)
	t.Cleanup(func() { f.Close() })
	journaltest.Release(t, journaltest.Open(t, f, "s1"))
	for name, want := range map[string]fs.FileMode{
		".": 0o700, "sessions": 0o700, "sessions/s1": 0o700, "store": 0o600, "secret": 0o600, "sessions/s1/000001.jsonl": 0o600, "holders": 0o700,
	} {
		fi, err := os.Stat(filepath.Join(dir, name))
		must(t, err)
		if got := fi.Mode().Perm(); got != want {
			t.Errorf("the mode of %s is %o, want %o", name, got, want)
		}
	}
	if names, _ := os.ReadDir(dir); len(names) != 4 {
		t.Errorf("the store holds %v", names)
	}
	if names, _ := os.ReadDir(filepath.Join(dir, "holders")); len(names) != 0 {
		t.Errorf("a writer that has released leaves %v", names)
	}
}

func TestAStoresFolderOutlivesAPowerCut(t *testing.T) {
	base := journaltest.TempDir(t)
	dir := filepath.Join(base, "a", "b", "store")
	for _, want := range [][]string{
		{filepath.Join(base, "a", "b"), filepath.Join(base, "a"), base},
		{filepath.Join(base, "a", "b")}, // whoever made it may have died before the sync
	} {
		var synced []string
		must(t, journal.MakeDir(dir, func(d string) error {
			if _, err := os.Stat(dir); err != nil {
				t.Errorf("synced before it was made: %v", err)
			}
			synced = append(synced, d)
			return nil
		}))
		if !slices.Equal(synced, want) {
			t.Errorf("synced were %v, want %v", synced, want)
		}
	}
	if err := journal.MakeDir(dir, func(string) error { return journaltest.ErrDisk }); !errors.Is(err, journaltest.ErrDisk) {
		t.Errorf("a sync that fails gives %v", err)
	}
}

func TestAStoreWithAForeignIDIsRefused(t *testing.T) {
	for name, put := range map[string]struct {
		put  func(path string) error
		kind schema.Kind
	}{
		"missing":   {func(string) error { return nil }, schema.LogReadFailed},
		"garbage":   {func(p string) error { return os.WriteFile(p, []byte("../x\n"), 0o600) }, schema.InvalidConfig},
		"empty":     {func(p string) error { return os.WriteFile(p, nil, 0o600) }, schema.InvalidConfig},
		"endless":   {func(p string) error { return os.WriteFile(p, make([]byte, 1<<20), 0o600) }, schema.InvalidConfig},
		"FIFO":      {func(p string) error { return syscall.Mkfifo(p, 0o600) }, schema.UnsafeStatePath},
		"folder":    {func(p string) error { return os.Mkdir(p, 0o700) }, schema.UnsafeStatePath},
		"link":      {func(p string) error { return os.Symlink("sessions", p) }, schema.UnsafeStatePath},
		"link away": {func(p string) error { return os.Symlink("/etc/hostname", p) }, schema.UnsafeStatePath},
	} {
		t.Run(name, func(t *testing.T) {
			dir := journaltest.Files(t).Dir()
			path := filepath.Join(dir, "store")
			must(t, os.Remove(path))
			must(t, put.put(path))
			inTime(t, func() {
				f, err := journal.OpenFiles(dir, false)
				if !errors.Is(err, put.kind) {
					t.Errorf("got %v, want %s", err, put.kind)
				}
				if err == nil {
					f.Close()
				}
			})
		})
	}
}

func TestWhatOthersMayWriteIsUnsafe(t *testing.T) {
	for _, mode := range []fs.FileMode{0o020, 0o002} {
		for _, name := range []string{".", "sessions", "sessions/s1", "sessions/s1/000001.jsonl"} {
			f := journaltest.Files(t)
			j, err := journal.Open(ctx, f, "s1", journaltest.Options())
			must(t, err)
			must(t, j.Close())
			path := filepath.Join(f.Dir(), name)
			fi, err := os.Stat(path)
			must(t, err)
			must(t, os.Chmod(path, fi.Mode().Perm()|mode))
			again, err := journal.OpenFiles(f.Dir(), false)
			if err == nil {
				_, err = journal.Open(ctx, again, "s1", journaltest.Options())
				again.Close()
			}
			if !errors.Is(err, schema.UnsafeStatePath) {
				t.Errorf("%s with mode %o more: got %v", name, mode, err)
			}
		}
	}
}

// All ways to look at a session.
func looks(f *journal.Files) map[string]func() error {
	return map[string]func() error{
		"segments": func() error { _, err := f.Segments(ctx, "s1"); return err },
		"lease":    func() error { _, err := f.Lease(ctx, "s1"); return err },
		"scan":     func() error { _, err := journaltest.Read(f, "s1", journal.ScanOptions{}); return err },
		"open":     func() error { _, err := journal.Open(ctx, f, "s1", journaltest.Options()); return err },
		"read": func() error {
			r, err := f.Read(ctx, "s1", 2, 0)
			if err == nil {
				r.Close()
			}
			return err
		},
	}
}

func TestWhatIsNoPlainFileIsUnsafeAndHangsNobody(t *testing.T) {
	// A segment of another store is a target that a reader would believe.
	other := journaltest.Files(t)
	journaltest.Release(t, journaltest.Open(t, other, "s1"))
	target := filepath.Join(other.Dir(), "sessions", "s1", "000001.jsonl")
	for name, put := range map[string]func(segment string) error{
		"FIFO":          func(p string) error { return syscall.Mkfifo(p, 0o600) },
		"folder":        func(p string) error { return os.Mkdir(p, 0o700) },
		"link away":     func(p string) error { return os.Symlink(target, p) },
		"link in here":  func(p string) error { return os.Symlink("000001.jsonl", p) },
		"dangling link": func(p string) error { return os.Symlink("nowhere", p) },
		"hard link":     func(p string) error { return os.Link(target, p) },
	} {
		t.Run(name, func(t *testing.T) {
			f := journaltest.Files(t)
			journaltest.Release(t, journaltest.Open(t, f, "s1"))
			segment := filepath.Join(f.Dir(), "sessions", "s1", "000002.jsonl")
			must(t, put(segment))
			defer os.Remove(segment) // the log itself is healthy
			for look, do := range looks(f) {
				inTime(t, func() {
					err := do()
					if !errors.Is(err, schema.UnsafeStatePath) {
						t.Errorf("%s gives %v", look, err)
						return
					}
					if text := string(schema.Envelope(err)); strings.Contains(text, filepath.Dir(target)) || strings.Contains(text, "nowhere") {
						t.Errorf("%s tells where it leads: %s", look, text)
					}
				})
			}
		})
	}
}

func TestASessionFolderThatIsNoneIsUnsafe(t *testing.T) {
	elsewhere := journaltest.Files(t)
	journaltest.Release(t, journaltest.Open(t, elsewhere, "s1"))
	for name, put := range map[string]func(folder string) error{
		"file":      func(p string) error { return os.WriteFile(p, nil, 0o600) },
		"FIFO":      func(p string) error { return syscall.Mkfifo(p, 0o600) },
		"link away": func(p string) error { return os.Symlink(filepath.Join(elsewhere.Dir(), "sessions", "s1"), p) },
		"link here": func(p string) error { return os.Symlink("s2", p) },
	} {
		t.Run(name, func(t *testing.T) {
			f := journaltest.Files(t)
			journaltest.Release(t, journaltest.Open(t, f, "s2"))
			must(t, put(filepath.Join(f.Dir(), "sessions", "s1")))
			for look, do := range looks(f) {
				inTime(t, func() {
					if err := do(); !errors.Is(err, schema.UnsafeStatePath) {
						t.Errorf("%s gives %v", look, err)
					}
				})
			}
		})
	}
}

func TestNamesThatAreNoneOfOursAreNotLookedAt(t *testing.T) {
	f := journaltest.Files(t)
	journaltest.Release(t, journaltest.Open(t, f, "s1"))
	sessions := filepath.Join(f.Dir(), "sessions")
	for _, name := range []string{"1.jsonl", "0000002.jsonl", "000000.jsonl", "000002.jsonl~", "000002.JSONL", "00000a.jsonl", "blobs", ".hidden"} {
		must(t, os.Mkdir(filepath.Join(sessions, "s1", name), 0o700))
	}
	for _, name := range []string{"a.b", ".s2", "ä", "-x"} {
		must(t, os.Mkdir(filepath.Join(sessions, name), 0o700))
	}
	list, err := f.Segments(ctx, "s1")
	if err != nil || len(list) != 1 {
		t.Errorf("the segments are %v, %v", list, err)
	}
	var ids []string
	for id, err := range f.Sessions(ctx) {
		must(t, err)
		ids = append(ids, id)
	}
	if !slices.Equal(ids, []string{"s1"}) {
		t.Errorf("the sessions are %q", ids)
	}
	if j := journaltest.Open(t, f, "s1"); j.Epoch() != 2 {
		t.Errorf("the next epoch is %d", j.Epoch())
	}
}

func TestReadingChangesNoByteAndNoTime(t *testing.T) {
	f := journaltest.Files(t).WithoutLog() // which makes files beside its sessions
	j, err := journal.Open(ctx, f, "s1", journaltest.Options())
	must(t, err)
	journaltest.Append(t, j, journaltest.Note("x"))
	must(t, j.Close())
	claimAndDie(t, f, "s1", 2)
	claimAndDie(t, f, "torn", 1)
	held := journaltest.Open(t, f, "held")
	before := tree(t, f.Dir())
	for id, err := range f.Sessions(ctx) {
		must(t, err)
		_, err = f.Segments(ctx, id)
		must(t, err)
		_, err = f.Lease(ctx, id)
		must(t, err)
		for _, strict := range []bool{false, true} {
			_, err = journaltest.Read(f, id, journal.ScanOptions{Strict: strict})
			must(t, err)
		}
	}
	opt := journaltest.Options()
	_, err = journal.Open(ctx, f, "held", opt)
	if !errors.Is(err, schema.SessionWriterActive) { // a refusal is only a reading
		t.Errorf("got %v", err)
	}
	opt.Create = false
	_, err = journal.Open(ctx, f, "torn", opt)
	if !errors.Is(err, schema.NotFound) {
		t.Errorf("got %v", err)
	}
	again, err := journal.OpenFiles(f.Dir(), false)
	must(t, err)
	must(t, again.Close())
	if after := tree(t, f.Dir()); !slices.Equal(before, after) {
		t.Errorf("before\n%q\nafter\n%q", before, after)
	}
	journaltest.Release(t, held)
}
