package journal_test

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"steno/journal/journaltest"
)

// A take-over decides what counts and changes no byte of what is there: not a
// torn tail, not the bytes of a writer that had lost, not a claim that was
// never sealed, not a segment that counts.
func TestATakeOverChangesNoByteOfWhatIsThere(t *testing.T) {
	store := journaltest.Files(t)
	dir := filepath.Join(store.Dir(), "sessions", "s1")
	segment := func(name string) string { return filepath.Join(dir, name) }
	add := func(name, text string) {
		t.Helper()
		f, err := os.OpenFile(segment(name), os.O_APPEND|os.O_WRONLY, 0)
		if err == nil {
			_, err = f.WriteString(text)
		}
		if err == nil {
			err = f.Close()
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	before := map[string][]byte{}
	unchanged := func(when string) {
		t.Helper()
		for name, want := range before {
			got, err := os.ReadFile(segment(name))
			if err != nil || !bytes.Equal(got, want) {
				t.Errorf("%s: %s is no longer what it was: %v", when, name, err)
			}
		}
		names, err := filepath.Glob(segment("0*.jsonl"))
		if err != nil {
			t.Fatal(err)
		}
		for _, path := range names {
			b, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			before[filepath.Base(path)] = b
		}
	}

	j := journaltest.Open(t, store, "s1")
	journaltest.Append(t, j, journaltest.Note("counts"))
	if err := j.Close(); err != nil {
		t.Fatal(err)
	}
	add("000001.jsonl", `{"v":1,"session":"s1","seq":4`) // torn
	unchanged("at the beginning")

	j = journaltest.Open(t, store, "s1")
	journaltest.Append(t, j, journaltest.Note("counts too"))
	unchanged("after a torn tail")

	forced := journaltest.Force(t, store, "s1") // the old writer is alive
	unchanged("after a forced take-over")
	add("000002.jsonl", "surplus\n")
	if err := forced.Close(); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(segment("000004.jsonl"), nil, 0o600); err != nil { // a claim that cannot be read
		t.Fatal(err)
	}
	clear(before) // what this test itself has added is no change
	unchanged("with surplus and a broken claim")
	last := journaltest.Force(t, store, "s1")
	unchanged("after all of it")
	if last.Epoch() != 5 {
		t.Errorf("the last epoch is %d", last.Epoch())
	}
	journaltest.Verify(t, store, "s1")
}
