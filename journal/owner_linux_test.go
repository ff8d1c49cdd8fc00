package journal_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"steno/journal"
	"steno/journal/journaltest"
	"steno/schema"
)

const nobody = 65534

// given gives all of a folder to nobody.
func given(t *testing.T, dir string) {
	t.Helper()
	must(t, filepath.WalkDir(dir, func(path string, _ os.DirEntry, err error) error {
		return errors.Join(err, os.Lchown(path, nobody, nobody))
	}))
}

// asNobody does something on a thread whose files belong to nobody.
func asNobody(t *testing.T, do func()) {
	t.Helper()
	done := make(chan struct{})
	go func() { // the thread ends with it
		defer close(done)
		runtime.LockOSThread()
		if err := unix.Setfsuid(nobody); err != nil {
			t.Error(err)
			return
		}
		do()
	}()
	<-done
}

// writes are all ways to make a file in a store, or in a session of it.
func writes(store *journal.Files, session string) map[string]func() error {
	with := func(change func(*journal.Options)) func() error {
		return func() error {
			opt := journaltest.Options()
			opt.Create = false
			change(&opt)
			j, err := journal.Open(ctx, store, session, opt)
			if err == nil {
				err = j.Close()
			}
			return err
		}
	}
	return map[string]func() error{
		"open":   with(func(*journal.Options) {}),
		"create": with(func(o *journal.Options) { o.Create = true }),
		"force":  with(func(o *journal.Options) { o.Force, o.Reason = true, "x" }),
		"pack":   func() error { _, err := store.Pack(ctx, session, packOptions()); return err },
		"remove": func() error { _, err := store.Remove(ctx, session, packOptions()); return err },
	}
}

// A command of root on the store of somebody else makes nothing in it, whatever
// it is asked for: a segment of root's would lock everybody out. Reading goes on.
func TestAStoreOfAnotherUserIsReadAndNotWritten(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		journaltest.Lacks(t, "root: nobody else can write there at all")
	}
	dir := filepath.Join(t.TempDir(), "store")
	must(t, os.Chmod(filepath.Dir(filepath.Dir(dir)), 0o755))
	must(t, os.Chmod(filepath.Dir(dir), 0o755))
	fill(t, dir)
	own, err := journal.OpenFiles(dir, true)
	must(t, err)
	grown(t, own, "damaged", 1)
	must(t, own.Close())
	path := filepath.Join(dir, "sessions", "damaged", "000001.jsonl")
	b, err := os.ReadFile(path)
	must(t, err)
	must(t, os.WriteFile(path, []byte(strings.Replace(string(b), "tool_started", "tool_startee", 1)), 0o600))
	must(t, os.Remove(filepath.Join(dir, "secret")))
	given(t, dir)
	before := tree(t, dir)
	refused := func(what string, err error) {
		t.Helper()
		next := fmt.Sprint(schema.AsError(err).Details["next"])
		if !errors.Is(err, schema.UnsafeStatePath) || !strings.Contains(next, "sudo -u nobody") && !strings.Contains(next, "sudo -u '#65534'") {
			t.Errorf("%s gives %v, next %s", what, err, next)
		}
		if after := tree(t, dir); !slices.Equal(after, before) {
			t.Fatalf("%s changes the store: %d files, and there were %d", what, len(after), len(before))
		}
	}
	made, err := journal.OpenFiles(dir, true)
	refused("opening the store to write it", err)
	if err == nil {
		made.Close()
	}
	store, err := journal.OpenFiles(dir, false)
	must(t, err)
	defer store.Close()
	for _, id := range []string{"released", "dead", "new"} {
		for what, do := range writes(store, id) {
			if id == "new" && what != "create" {
				continue
			}
			refused(what+" "+id, do())
		}
	}
	_, err = journal.Repair(ctx, store, "damaged", journal.RepairOptions{Holder: packOptions().Holder, NewState: packOptions().NewState})
	refused("repair", err)
	refused("a look whether it can be written", store.Writable(ctx))
	for _, id := range []string{"released", "dead"} {
		journaltest.Verify(t, store, id)
	}
	if all, err := export(t, store, filepath.Join(t.TempDir(), "copy")); err != nil || !all["released"].OK {
		t.Errorf("exported: %+v, %v", all, err)
	}
	// A folder that nobody's writes were mixed with goes on for its owner.
	asNobody(t, func() {
		mine, err := journal.OpenFiles(dir, true)
		if err != nil {
			t.Error(err)
			return
		}
		defer mine.Close()
		for what, do := range writes(mine, "released") {
			if what != "remove" && what != "create" {
				if err := do(); err != nil {
					t.Errorf("the owner: %s gives %v", what, err)
				}
			}
		}
	})
}

// The same for one session's folder in a store of our own.
func TestASessionOfAnotherUserIsReadAndNotWritten(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		journaltest.Lacks(t, "root: nobody else can give a file away")
	}
	store := journaltest.Files(t)
	fill(t, store.Dir())
	given(t, folder(store, "dead"))
	before := tree(t, folder(store, "dead"))
	for what, do := range writes(store, "dead") {
		if err := do(); !errors.Is(err, schema.UnsafeStatePath) || schema.AsError(err).Details["session"] != "dead" {
			t.Errorf("%s gives %v", what, err)
		}
	}
	if after := tree(t, folder(store, "dead")); !slices.Equal(after, before) {
		t.Errorf("the folder has changed: %q", after)
	}
	journaltest.Verify(t, store, "dead")
	must(t, journaltest.Open(t, store, "released").Release(ctx, "done"))
	// What an older version has left says what to do.
	path := filepath.Join(folder(store, "dead"), "000001.jsonl")
	must(t, os.Chown(path, 0, 0))
	_, err := journaltest.Read(store, "dead", journal.ScanOptions{})
	if next := fmt.Sprint(schema.AsError(err).Details["next"]); !errors.Is(err, schema.UnsafeStatePath) || !strings.Contains(next, " sessions/dead/000001.jsonl") || !strings.Contains(next, "chown ") {
		t.Errorf("it is read with %v, next %s", err, next)
	}
}

// In a user namespace the numbers of users are others, and the owner is who makes
// the files, as outside.
func TestAStoreIsWrittenByItsOwnerInAUserNamespace(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		journaltest.Lacks(t, "root, who may map any user")
	}
	if _, err := os.Stat("/proc/self/ns/user"); err != nil {
		journaltest.Lacks(t, "user namespaces")
	}
	store := journaltest.Files(t)
	grown(t, store, "s1", 1)
	for inside, attr := range map[int]*syscall.SysProcAttr{0: {}, 1000: {}} {
		attr.Cloneflags = unix.CLONE_NEWUSER
		attr.UidMappings = []syscall.SysProcIDMap{{ContainerID: inside, HostID: 0, Size: 1}}
		attr.GidMappings = []syscall.SysProcIDMap{{ContainerID: inside, HostID: 0, Size: 1}}
		p := journaltest.StartIn(t, attr, "writer", journaltest.Writer{Dir: store.Dir(), Session: "s1", Step: true})
		p.Step(2)
		p.WaitFor("ack", 2)
		p.Kill()
	}
	journaltest.Verify(t, store, "s1")
}
