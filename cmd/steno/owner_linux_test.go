package main

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"steno/journal/journaltest"
	"steno/schema"
)

// Who may not read the store of another is told whose it is.
func TestAStoreOfAnotherIsNamedWithItsOwner(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		journaltest.Lacks(t, "root: nobody else can give a folder away")
	}
	dir := t.TempDir()
	denied := schema.Errorf(schema.LogReadFailed, "the store cannot be opened").Cause(&fs.PathError{Op: "open", Path: dir, Err: syscall.EACCES})
	a := &app{dir: dir}
	if e := schema.AsError(a.local(denied)); e.Message != denied.Message {
		t.Errorf("of our own it says %v", e)
	}
	must(t, os.Chown(dir, 65534, 65534))
	e := schema.AsError(a.local(denied))
	if next, _ := e.Details["next"].(string); !strings.Contains(e.Message, "belongs to") || !strings.Contains(next, "sudo -u ") {
		t.Errorf("it says %v, %v", e, e.Details)
	}
	if e := schema.AsError(a.local(schema.Errorf(schema.LogReadFailed, "x").Cause(syscall.EIO))); e.Message != "x" {
		t.Errorf("of a disk that fails it says %v", e)
	}
}

// What root types at the store of a service makes no file in it, for such a file
// would lock the service out.
func TestACommandOfRootMakesNothingInTheStoreOfAnother(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		journaltest.Lacks(t, "root: nobody else can write there at all")
	}
	const nobody = 65534
	dir := t.TempDir()
	calls := filepath.Join(dir, "calls.jsonl")
	must(t, os.WriteFile(calls, []byte(`{"name":"bash","args":{"command":"echo"}}`+"\n"), 0o600))
	good(t, dir, "run", calls, "--session", "a")
	paths := func() (all []string) {
		must(t, filepath.WalkDir(filepath.Join(dir, ".steno"), func(path string, _ os.DirEntry, err error) error {
			all = append(all, path)
			return err
		}))
		return all
	}
	before := paths()
	for _, path := range before {
		must(t, os.Lchown(path, nobody, nobody))
	}
	for _, args := range [][]string{
		{"call", "list", "--session", "a"}, {"run", calls, "--session", "a"}, {"run", calls, "--session", "b"}, {"serve", "--listen", "127.0.0.1:0"},
		{"session", "pack", "a"}, {"session", "rm", "a", "--reason", "x", "--apply"},
	} {
		_, said, code := steno(t, dir, args...)
		if code != 1 || !strings.Contains(said, `"kind":"unsafe_state_path"`) || !strings.Contains(said, "run it as the owner: sudo -u ") {
			t.Errorf("%q: exit %d: %s", args, code, said)
		}
		if after := paths(); strings.Join(after, "\n") != strings.Join(before, "\n") {
			t.Fatalf("%q leaves %q", args, after)
		}
	}
	for _, args := range [][]string{{"verify"}, {"session", "show", "a"}, {"replay", "a"}, {"session", "ls"}, {"repair", "a"}, {"export", "--all", "copy"}} {
		good(t, dir, args...)
	}
	if after := paths(); len(after) != len(before) {
		t.Errorf("reading leaves %q", after)
	}
	if _, err := os.Stat(filepath.Join(dir, "copy")); errors.Is(err, os.ErrNotExist) {
		t.Error("there is no copy")
	}
}
