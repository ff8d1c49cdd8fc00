package journal_test

import (
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"steno/journal"
	"steno/journal/journaltest"
	"steno/lease"
	"steno/schema"
)

// readOnly checks that a store that cannot be written is read, and that
// whoever wants to write is told, by name and before anything is promised.
func readOnly(t *testing.T, dir string) {
	t.Helper()
	f, err := journal.OpenFiles(dir, false)
	must(t, err)
	defer f.Close()
	for id, err := range f.Sessions(ctx) {
		must(t, err)
		if l := journaltest.Verify(t, f, id); len(l.Events) == 0 {
			t.Errorf("session %s has no events", id)
		}
	}
	for id, want := range map[string]lease.State{"released": lease.Available, "dead": lease.Stale} {
		if st, err := f.Lease(ctx, id); err != nil || st.State != want {
			t.Errorf("the lease of %s is %+v, %v", id, st, err)
		}
		if _, err := journal.Open(ctx, f, id, journaltest.Options()); !errors.Is(err, schema.LogWriteFailed) {
			t.Errorf("opening %s gives %v", id, err)
		}
	}
	if _, err := journal.Open(ctx, f, "new", journaltest.Options()); !errors.Is(err, schema.LogWriteFailed) ||
		schema.AsError(err).Details["outcome"] != journal.NotStored.String() {
		t.Errorf("opening a new session gives %v", err)
	}
	if again, err := journal.OpenFiles(dir, true); !errors.Is(err, schema.LogWriteFailed) {
		t.Errorf("opening the store for writing gives %v", err)
		if err == nil {
			again.Close()
		}
	}
}

func fill(t *testing.T, dir string) {
	t.Helper()
	f := journaltest.FilesIn(t, dir)
	for _, id := range []string{"released", "dead"} {
		j, err := journal.Open(ctx, f, id, journaltest.Options())
		must(t, err)
		journaltest.Append(t, j, journaltest.Note("x"))
		if id == "released" {
			journaltest.Release(t, j)
		}
		must(t, j.Close())
	}
}

func TestAReadOnlyMountIsReadAndNotWritten(t *testing.T) {
	dir := t.TempDir()
	switch err := unix.Mount("steno-test", dir, "tmpfs", 0, "mode=0700"); {
	case err == unix.EPERM:
		journaltest.Lacks(t, "the right to mount")
	case err != nil:
		t.Fatal(err)
	}
	defer func() { must(t, unix.Unmount(dir, unix.MNT_DETACH)) }()
	fill(t, dir)
	must(t, unix.Mount("", dir, "", unix.MS_REMOUNT|unix.MS_RDONLY, ""))
	before := tree(t, dir)
	readOnly(t, dir)
	if after := tree(t, dir); len(after) != len(before) {
		t.Errorf("%d files before, %d after", len(before), len(after))
	}
}

// Lock and beat of a living writer are seen through a mount that cannot be
// written.
func TestALivingWriterIsSeenThroughAReadOnlyMount(t *testing.T) {
	store := journaltest.Files(t)
	dir := t.TempDir()
	switch err := unix.Mount(store.Dir(), dir, "", unix.MS_BIND, ""); {
	case err == unix.EPERM:
		journaltest.Lacks(t, "the right to mount")
	case err != nil:
		t.Fatal(err)
	}
	defer func() { must(t, unix.Unmount(dir, unix.MNT_DETACH)) }()
	must(t, unix.Mount("", dir, "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY, ""))
	j := journaltest.Open(t, store, "s1")
	seen, err := journal.OpenFiles(dir, false)
	must(t, err)
	defer seen.Close()
	for range 2 {
		st, err := seen.Lease(ctx, "s1")
		if err != nil || st.State != lease.Active || st.Undecided || st.Beat == nil {
			t.Errorf("the lease is %+v, %v", st, err)
		}
		journaltest.Append(t, j, journaltest.Note("it has not noticed"))
	}
	if _, err := journal.Open(ctx, seen, "s1", journaltest.Options()); !errors.Is(err, schema.SessionWriterActive) {
		t.Errorf("opening gives %v", err)
	}
}

func TestAStoreWithoutTheRightToWriteIsReadAndNotWritten(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "store")
	fill(t, dir)
	const nobody = 65534
	root := os.Geteuid() == 0
	defer func() {
		for _, name := range []string{".", "sessions", "sessions/released", "sessions/dead"} {
			must(t, os.Chmod(filepath.Join(dir, name), 0o700)) // so that it can be removed
		}
	}()
	for _, name := range []string{"store", "sessions/released/000001.jsonl", "sessions/dead/000001.jsonl",
		"sessions/released", "sessions/dead", "sessions", "."} {
		path := filepath.Join(dir, name)
		fi, err := os.Stat(path)
		must(t, err)
		must(t, os.Chmod(path, fi.Mode().Perm()&^0o222))
		if root {
			must(t, os.Chown(path, nobody, nobody))
		}
	}
	if root {
		// Modes do not stop root. This thread alone becomes somebody whom they
		// do, and ends with the goroutine.
		must(t, os.Chmod(filepath.Dir(filepath.Dir(dir)), 0o755))
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		must(t, unix.Setfsuid(nobody))
		defer func() { must(t, unix.Setfsuid(0)) }()
	}
	readOnly(t, dir)
}

func TestASegmentOfAnotherUserIsUnsafe(t *testing.T) {
	if os.Geteuid() != 0 {
		journaltest.Lacks(t, "root: nobody else can give a file away")
	}
	f := journaltest.Files(t)
	j, err := journal.Open(ctx, f, "s1", journaltest.Options())
	must(t, err)
	must(t, j.Close())
	path := filepath.Join(f.Dir(), "sessions", "s1", "000001.jsonl")
	must(t, os.Chown(path, 65534, 65534))
	for look, do := range looks(f) {
		if look == "read" {
			continue // that reads another segment
		}
		if err := do(); !errors.Is(err, schema.UnsafeStatePath) {
			t.Errorf("%s gives %v", look, err)
		}
	}
}

// Whoever has no right to read the commit logs is told so, where one could have
// more of a session than is shown.
func TestACommitLogThatMayNotBeReadIsSaidToBeMissing(t *testing.T) {
	t.Parallel()
	store := journaltest.Files(t)
	fill(t, store.Dir())
	j := journaltest.Open(t, store.WithoutLog(), "live") // which makes no more files meanwhile
	journaltest.Append(t, j, journaltest.Note("x"))
	seen, err := journal.OpenFiles(store.Dir(), false)
	must(t, err)
	defer seen.Close()
	must(t, filepath.WalkDir(store.Dir(), func(path string, e os.DirEntry, err error) error {
		mode := map[bool]os.FileMode{true: 0o755, false: 0o644}[e.IsDir()]
		return errors.Join(err, os.Chmod(path, mode))
	}))
	findings := func(session string) (found []schema.Finding) {
		t.Helper()
		done := make(chan struct{})
		go func() {
			defer close(done)
			if os.Geteuid() == 0 { // of this thread, which ends with this function
				runtime.LockOSThread()
				if err := unix.Setfsuid(65534); err != nil {
					t.Error(err)
				}
			}
			l, err := journaltest.Read(seen, session, journal.ScanOptions{})
			if err != nil || l.FirstError != nil || len(l.Events) < 3 {
				t.Errorf("session %s: %d events, %v, %v", session, len(l.Events), l.FirstError, err)
			}
			found = l.Findings
		}()
		<-done
		return found
	}
	for _, session := range []string{"released", "dead", "live"} {
		if found := findings(session); len(found) > 0 {
			t.Errorf("with the right to read all of it session %s has %+v", session, found)
		}
	}
	must(t, os.Chmod(filepath.Join(store.Dir(), "holders"), 0))
	defer os.Chmod(filepath.Join(store.Dir(), "holders"), 0o700)
	for session, want := range map[string]int{"released": 0, "dead": 1, "live": 1} {
		found := findings(session)
		if len(found) != want || want == 1 && (found[0].Kind != schema.LogReadFailed || found[0].Severity != schema.SeverityNotice ||
			found[0].Segment != 1 || found[0].Offset == 0 || !strings.Contains(found[0].Detail, "commit log")) {
			t.Errorf("without it session %s has %+v", session, found)
		}
	}
}
