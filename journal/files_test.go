package journal_test

import (
	"os"
	"path/filepath"
	"testing"

	"steno/journal"
	"steno/journal/journaltest"
)

func TestFiles(t *testing.T) {
	journaltest.TestStore(t, func(t *testing.T) journal.Store { return journaltest.FilesIn(t, t.TempDir()) })
}

// A probe that a process did not live to take away goes with the next one that
// opens the store for writing.
func TestProbesOfDeadProcessesAreSwept(t *testing.T) {
	dir := journaltest.Files(t).Dir()
	at := func(name string) string { return filepath.Join(dir, "sessions", name) }
	for _, name := range []string{".probe-01J0000000000000000000000A", ".probe-", ".probes", "s1"} {
		must(t, os.WriteFile(at(name), nil, 0o600))
	}
	must(t, os.Mkdir(at(".probe-folder"), 0o700))
	must(t, os.Symlink(at("s1"), at(".probe-link")))
	for _, c := range []struct {
		create bool
		want   int
	}{{false, 6}, {true, 4}} {
		store, err := journal.OpenFiles(dir, c.create)
		must(t, err)
		must(t, store.Close())
		if left := names(t, filepath.Join(dir, "sessions")); len(left) != c.want {
			t.Errorf("opened with create %t, there are %v", c.create, left)
		}
	}
}

// Another process may sweep the probe of one that lives.
func TestAProbeThatIsSweptTellsOfNothing(t *testing.T) {
	files := journaltest.Files(t)
	store, faults := journaltest.Faulty(files)
	swept := 0
	faults.At(journaltest.Write, 1, func() {
		probes, err := filepath.Glob(filepath.Join(files.Dir(), "sessions", ".probe-*"))
		must(t, err)
		for _, name := range probes {
			swept++
			must(t, os.Remove(name))
		}
	})
	must(t, store.Writable(ctx))
	if swept != 1 {
		t.Errorf("%d probes were swept", swept)
	}
}
