package journal_test

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"steno/journal"
	"steno/journal/journaltest"
	"steno/schema"
)

// On a file system whose locks and names may mean nothing elsewhere nothing is
// made: neither a store nor a session in one that is there.
func TestAStoreOnFUSEIsRefusedBeforeAnythingIsMade(t *testing.T) {
	if os.Geteuid() != 0 {
		journaltest.Lacks(t, "the right to mount")
	}
	if _, err := os.Stat("/dev/fuse"); err != nil {
		journaltest.Lacks(t, "/dev/fuse")
	}
	dir := t.TempDir()
	asked := journaltest.MountEmpty(t, dir)
	if _, err := journal.OpenFiles(dir, true); !errors.Is(err, schema.LeaseStoreUnsupported) {
		t.Errorf("a new store: %v", err)
	}
	if asked() != 0 {
		t.Errorf("in a new store %d things were to be made", asked())
	}

	dir = journaltest.Files(t).Dir()
	asked = journaltest.MountEmpty(t, filepath.Join(dir, "sessions"))
	if _, err := journal.OpenFiles(dir, true); !errors.Is(err, schema.LeaseStoreUnsupported) {
		t.Errorf("a store whose sessions are elsewhere: %v", err)
	}
	store, err := journal.OpenFiles(dir, false)
	must(t, err)
	defer store.Close()
	if _, err := journal.Open(ctx, store, "s1", journaltest.Options()); !errors.Is(err, schema.LeaseStoreUnsupported) || schema.AsError(err).Details["session"] != "s1" {
		t.Errorf("a session: %v", err)
	}
	if asked() != 0 {
		t.Errorf("of a session %d things were to be made", asked())
	}
	if _, err := os.Stat(filepath.Join(dir, "holders")); !os.IsNotExist(err) {
		t.Errorf("the holder has beaten: %v", err)
	}
}
