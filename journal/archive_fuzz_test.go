package journal_test

import (
	"archive/tar"
	"os"
	"path/filepath"
	"testing"

	"steno/journal"
	"steno/journal/journaltest"
)

// Whatever somebody has put in the place of an archive, what is read without a
// finding is what was packed, and the newest segment is always read.
func FuzzArchive(f *testing.F) {
	store := journaltest.Files(f)
	j, err := journal.Open(ctx, store, "s1", journaltest.Options())
	if err == nil {
		_, err = j.Append(ctx, journaltest.Call("c1", "bash", `{"command":"x"}`), journaltest.Started("c1", 1), journaltest.Result("c1", 1, `"y"`))
	}
	if err == nil {
		err = j.Release(ctx, "done")
	}
	var first []byte
	if err == nil {
		first, err = os.ReadFile(filepath.Join(store.Dir(), "sessions", "s1", "000001.jsonl"))
	}
	if err == nil {
		_, err = store.Pack(ctx, "s1", packOptions())
	}
	path := filepath.Join(store.Dir(), "archive", "s1.tar.zst")
	var sound []byte
	if err == nil {
		sound, err = os.ReadFile(path)
	}
	whole, e := journaltest.Read(store, "s1", journal.ScanOptions{})
	if err != nil || e != nil {
		f.Fatal(err, e)
	}
	begun := func() *forger { return (&forger{t: f}).begin("steno-archive 1", "s1") }
	f.Add(sound)
	f.Add(sound[:len(sound)-1])
	f.Add(begun().file("s1/000001.jsonl", first).end(0))
	f.Add(begun().file("s1/000001.jsonl", nil).folder("s1/blobs/").end(0))
	f.Add(begun().file("s1/000001.jsonl", first).end(7))
	f.Add(begun().headers(&tar.Header{Typeflag: tar.TypeReg, Name: "s1/000001.jsonl", Size: int64(len(first)) + 1}).frame(first).end(0))
	f.Add((&forger{t: f}).begin("steno-archive 9", "s1").end(0))
	f.Fuzz(func(t *testing.T, b []byte) {
		must(t, os.WriteFile(path+".new", b, 0o600))
		must(t, os.Rename(path+".new", path))
		l, err := journaltest.Read(store, "s1", journal.ScanOptions{Blobs: true})
		if err != nil {
			t.Fatal(err)
		}
		if l.Head != whole.Head || l.FirstError == nil && len(l.Missing(heads(whole))) > 0 {
			t.Fatalf("head %v, findings %v, missing %v", l.Head, l.Findings, l.Missing(heads(whole)))
		}
	})
}
