package lease_test

import (
	"bytes"
	"fmt"
	"hash/crc32"
	"os"
	"path/filepath"
	"testing"

	"steno/lease"
)

// logRecord is a record of a commit log as the format says, from scratch.
func logRecord(id string, generation, place int, session string, epoch, offset int, lines string) string {
	head := fmt.Sprintf("steno-log 1 %s %d %d 0 %s %d %d %d ", id, generation, place, session, epoch, offset, len(lines))
	return fmt.Sprintf("%s%08x\n%s", head, crc32.Checksum([]byte(head+lines), crc32.MakeTable(crc32.Castagnoli)), lines)
}

// laid is what a reader sees of a segment and of a log.
func laid(t testing.TB, dir, id string, segment, log []byte) []byte {
	t.Helper()
	for _, folder := range []string{"sessions/s1", "holders/h"} {
		must(t, os.MkdirAll(filepath.Join(dir, folder), 0o700))
	}
	must(t, os.WriteFile(filepath.Join(dir, "sessions/s1/000001.jsonl"), segment, 0o600))
	must(t, os.WriteFile(filepath.Join(dir, "holders/h/log-"+id), log, 0o600))
	root, err := os.OpenRoot(dir)
	must(t, err)
	defer root.Close()
	sessions, err := root.OpenRoot("sessions")
	must(t, err)
	defer sessions.Close()
	d, err := lease.Open(sessions, "s1", nil)
	must(t, err)
	defer d.Close()
	h := lease.NewHolders(root)
	defer h.Close()
	var out []byte
	for i := range 2 { // anew, and from what it remembers
		tail, err := d.Tail(h, "h", 1, -1)
		must(t, err)
		all := segment
		if tail != nil {
			if tail.From < 0 || tail.From > int64(len(segment)) || tail.Size != int64(len(segment)) {
				t.Fatalf("the tail is %d bytes from %d of %d of %d", len(tail.Data), tail.From, tail.Size, len(segment))
			}
			all = append(bytes.Clone(segment[:tail.From]), tail.Data...)
			if len(all) < len(segment) {
				all = append(all, segment[len(all):]...)
			}
		}
		if i > 0 && !bytes.Equal(all, out) {
			t.Fatalf("read again it is %q, not %q", all, out)
		}
		out = all
	}
	return out
}

func TestALogIsLaidOverItsSegment(t *testing.T) {
	const id = "01ARZ3NDEKTSV4RRFFQ69G5FAV"
	dir := t.TempDir()
	a := logRecord(id, 2, 0, "s1", 1, 2, "bb\n")
	b := logRecord(id, 2, len(a), "s2", 1, 0, "other\n")
	c := logRecord(id, 2, len(a+b), "s1", 1, 5, "ccc\n")
	old := logRecord(id, 1, len(a+b), "s1", 1, 5, "old\n")
	for name, x := range map[string]struct{ segment, log, want string }{
		"nothing lost":                     {"a\nbb\nccc\n", a + b + c, "a\nbb\nccc\n"},
		"all lost":                         {"a\n", a + b + c, "a\nbb\nccc\n"},
		"half a line":                      {"a\nbb\nc", a + b + c, "a\nbb\nccc\n"},
		"zeros":                            {"a\n\x00\x00\x00\x00\x00\x00\x00", a + b + c, "a\nbb\nccc\n"},
		"more than the log has":            {"a\nbb\nccc\nd\n", a + b + c, "a\nbb\nccc\nd\n"},
		"an older generation behind":       {"a\n", a + b + old, "a\nbb\n"},
		"zeros behind":                     {"a\n", a + "\x00\x00\x00", "a\nbb\n"},
		"a record torn":                    {"a\n", a + b + c[:len(c)-1], "a\nbb\n"},
		"a record that is damaged between": {"a\n", a[:len(a)-2] + "x\n" + b + c, "a\n\x00\x00\nccc\n"},
		"of another place":                 {"a\n", "x" + a, "a\n"},
		"of another session":               {"a\n", logRecord(id, 1, 0, "s2", 1, 2, "bb\n"), "a\n"},
		"of another epoch":                 {"a\n", logRecord(id, 1, 0, "s1", 2, 2, "bb\n"), "a\n"},
		"of another log":                   {"a\n", logRecord("x"+id, 1, 0, "s1", 1, 2, "bb\n"), "a\n"},
		"nothing":                          {"a\n", "", "a\n"},
	} {
		if got := laid(t, dir, id, []byte(x.segment), []byte(x.log)); string(got) != x.want {
			t.Errorf("%s: %q, want %q", name, got, x.want)
		}
	}
	far := logRecord(id, 1, 0, "s1", 1, 1<<60, "far\n")
	if got := laid(t, dir, id, []byte("a\n"), []byte(far)); len(got) > 8<<20 || !bytes.HasPrefix(got, []byte("a\n")) || !bytes.HasSuffix(got, []byte("\nfar\n")) {
		t.Errorf("a line far behind makes %d bytes", len(got))
	}
}

// Whatever a log has, what is read is the segment with some of it, the same each
// time, in bounded memory.
func FuzzLog(f *testing.F) {
	const id = "01ARZ3NDEKTSV4RRFFQ69G5FAV"
	dir := f.TempDir()
	a := logRecord(id, 1, 0, "s1", 1, 2, "bb\n")
	b := logRecord(id, 1, len(a), "s1", 1, 5, "ccc\n")
	f.Add([]byte("a\n"), []byte(a+b))
	f.Add([]byte("a\nbb\n"), []byte(a+b[:len(b)/2]))
	f.Add([]byte("a\nb"), []byte(b+a))
	f.Add([]byte{}, []byte(a+a+b+b))
	f.Add([]byte("a\nbx\ncc"), []byte(a+logRecord(id, 2, len(a), "s1", 1, 1<<40, "x\n")))
	f.Fuzz(func(t *testing.T, segment, log []byte) {
		if got := laid(t, dir, id, segment, log); len(got) > len(segment)+len(log)+(8<<20) {
			t.Fatalf("of %d and %d bytes %d are read", len(segment), len(log), len(got))
		}
	})
}
