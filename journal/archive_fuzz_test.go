package journal_test

import (
	"archive/tar"
	"bytes"
	"encoding/binary"
	"os"
	"path/filepath"
	"slices"
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
	kinds := [][]byte{sound,
		begun().file("s1/000001.jsonl", first).end(0),
		begun().file("s1/000001.jsonl", nil).folder("s1/blobs/").end(0),
		begun().headers(&tar.Header{Typeflag: tar.TypeReg, Name: "s1/000001.jsonl", Size: int64(len(first)) + 1}).frame(first).end(0),
		(&forger{t: f}).begin("steno-archive 9", "s1").end(0)}
	for kind := range byte(len(kinds)) {
		f.Add(kind, []byte{})
		for op := range byte(4) {
			f.Add(kind, []byte{op, 0, 3, 7, op, 1, 40, 200})
			f.Add(kind, []byte{op, 255, 250, 1, op, 255, 240, 9})
		}
	}
	f.Fuzz(func(t *testing.T, kind byte, edits []byte) {
		b := bytes.Clone(kinds[int(kind)%len(kinds)])
		for ; len(edits) >= 4 && len(b) > 0; edits = edits[4:] {
			at, n := int(binary.BigEndian.Uint16(edits[1:]))%len(b), int(edits[3])
			if edits[1] > 127 { // from the end, where the table is
				at = len(b) - 1 - (65535-int(binary.BigEndian.Uint16(edits[1:])))%len(b)
			}
			end := min(at+n, len(b))
			switch edits[0] % 4 {
			case 0:
				b[at] ^= edits[3]
			case 1:
				b = b[:at]
			case 2:
				b = slices.Delete(b, at, end)
			case 3:
				b = slices.Insert(b, at, bytes.Clone(b[at:end])...)
			}
		}
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
