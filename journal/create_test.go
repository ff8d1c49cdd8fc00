package journal_test

import (
	"errors"
	"iter"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"steno/journal"
	"steno/journal/journaltest"
	"steno/schema"
)

// notes are so many entries; each is called before one is given.
func notes(n int, each func(i int) error) iter.Seq2[journal.Entry, error] {
	return func(yield func(journal.Entry, error) bool) {
		for i := range n {
			if err := each(i); !yield(journaltest.Note(strings.Repeat("n", 3000)), err) || err != nil {
				return
			}
		}
	}
}

// Whatever instant of it a power cut keeps, there is no session or a whole one.
func TestASessionIsMadeAsAWholeOrNotAtAll(t *testing.T) {
	t.Parallel()
	const n = 2000
	store := journaltest.Files(t)
	var images []string
	head, err := store.Create(t.Context(), "s1", journaltest.Options(), notes(n, func(i int) error {
		if i%700 == 0 || i == n-1 {
			image := filepath.Join(t.TempDir(), "image")
			images = append(images, image)
			return os.CopyFS(image, os.DirFS(store.Dir()))
		}
		return nil
	}))
	if err != nil {
		t.Fatal(err)
	}
	l := journaltest.Verify(t, store, "s1")
	if len(l.Events) != n+3 || l.Head != head || l.Events[len(l.Events)-1].Type != schema.TypeWriterReleased {
		t.Errorf("the session has %d events and ends with %v", len(l.Events), l.Head)
	}
	if list, err := filepath.Glob(filepath.Join(store.Dir(), ".making-*")); err != nil || list != nil {
		t.Errorf("%v, %v is left", list, err)
	}
	for _, image := range images {
		for _, d := range []string{image, filepath.Join(image, "sessions")} {
			if err := os.Chmod(d, 0o700); err != nil {
				t.Fatal(err)
			}
		}
		killed := journaltest.FilesIn(t, image)
		for id, err := range killed.Sessions(t.Context()) {
			t.Errorf("session %s is there, %v", id, err)
		}
		if _, err := journaltest.Read(killed, "s1", journal.ScanOptions{}); schema.KindOf(err) != schema.NotFound {
			t.Errorf("a part can be read: %v", err)
		}
		if _, err := killed.Create(t.Context(), "s1", journaltest.Options(), notes(3, func(int) error { return nil })); err != nil {
			t.Errorf("it cannot be made after a kill: %v", err)
		}
	}
	j := journaltest.Open(t, store, "s1") // and goes on
	journaltest.Append(t, j, journaltest.Note("more"))
	if err := j.Close(); err != nil {
		t.Error(err)
	}
}

func TestASessionThatCannotBeMadeLeavesNothing(t *testing.T) {
	t.Parallel()
	store := journaltest.Files(t)
	j := journaltest.Open(t, store, "there")
	if err := j.Close(); err != nil {
		t.Fatal(err)
	}
	stop := errors.New("stop")
	_, err := store.Create(t.Context(), "s1", journaltest.Options(), notes(1000, func(i int) error {
		if i == 900 {
			return stop
		}
		return nil
	}))
	if !errors.Is(err, stop) {
		t.Errorf("an error of the entries gave %v", err)
	}
	twice := func(yield func(journal.Entry, error) bool) {
		for range 2 {
			if !yield(journaltest.Call("a", "t", `{}`), nil) {
				return
			}
		}
	}
	if _, err = store.Create(t.Context(), "s1", journaltest.Options(), twice); schema.KindOf(err) != schema.DuplicateCall {
		t.Errorf("what the fold refuses gave %v", err)
	}
	for id, kind := range map[string]schema.Kind{"there": schema.AlreadyExists, "../x": schema.InvalidArgs} {
		if _, err = store.Create(t.Context(), id, journaltest.Options(), notes(1, func(int) error { return nil })); schema.KindOf(err) != kind {
			t.Errorf("%s gave %v", id, err)
		}
	}
	// Another is faster while it is made.
	_, err = store.Create(t.Context(), "s2", journaltest.Options(), notes(2, func(i int) error {
		if i == 1 {
			return journaltest.Open(t, store, "s2").Close()
		}
		return nil
	}))
	if schema.KindOf(err) != schema.AlreadyExists || len(journaltest.Verify(t, store, "s2").Events) != 2 {
		t.Errorf("a name that is taken meanwhile gave %v", err)
	}
	list, err := os.ReadDir(store.Dir())
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range list {
		if strings.HasPrefix(e.Name(), ".making") {
			t.Errorf("%s is left", e.Name())
		}
	}
}
