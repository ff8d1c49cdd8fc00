package journal_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"steno/journal"
	"steno/journal/journaltest"
	"steno/lease"
	"steno/replay"
	"steno/schema"
)

func packOptions() journal.PackOptions {
	return journal.PackOptions{Holder: lease.Self("journaltest"), NewState: func() journal.State { return replay.NewChecker() }, By: "a test", Reason: "the test says so"}
}

func pack(t *testing.T, store *journal.Files, session string) journal.Packed {
	t.Helper()
	p, err := store.Pack(ctx, session, packOptions())
	if err != nil {
		t.Fatalf("pack %s: %v", session, err)
	}
	return p
}

// grown is a session of some epochs, with blobs that lie packed and as they are,
// a writer that died, and one that let go.
func grown(t *testing.T, store *journal.Files, session string, epochs int) []schema.Head {
	t.Helper()
	var told []schema.Head
	for i := range epochs {
		j, err := journal.Open(ctx, store, session, journaltest.Options())
		must(t, err)
		n := fmt.Sprint(session, ".", j.Epoch())
		journaltest.Append(t, j, journaltest.Call(n, "bash", `{"command":"x"}`), journaltest.Started(n, 1), journaltest.Result(n, 1, `"`+n+`"`))
		journaltest.Append(t, j, journaltest.Note(strings.Repeat("so ", 100_000)+n), journaltest.Note(journaltest.Large(uint64(i), 300_000)))
		told = append(told, j.Head())
		if i%2 == 0 {
			must(t, j.Release(ctx, "done"))
			told = append(told, j.Head())
		}
		must(t, j.Close())
	}
	return told
}

// contents is every file below a folder, by its path.
func contents(t *testing.T, dir string) map[string]string {
	t.Helper()
	all := map[string]string{}
	must(t, filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		b, err := os.ReadFile(path)
		rel, _ := filepath.Rel(dir, path)
		all[rel] = string(b)
		return err
	}))
	return all
}

func folder(store *journal.Files, session string) string {
	return filepath.Join(store.Dir(), "sessions", session)
}

func archive(store *journal.Files, session string) string {
	return filepath.Join(store.Dir(), "archive", session+".tar.zst")
}

// lines are all events of a session, as they stand in the log.
func lines(t *testing.T, l *journaltest.Log) string {
	t.Helper()
	var b []byte
	for i := range l.Events {
		b = l.Events[i].Append(b)
	}
	return string(b)
}

func TestAPackedSessionIsReadAsBefore(t *testing.T) {
	t.Parallel()
	store := journaltest.Files(t)
	told := grown(t, store, "s1", 4)
	before := journaltest.Verify(t, store, "s1")
	was := contents(t, folder(store, "s1"))
	p := pack(t, store, "s1")
	if p.Segments != 5 || p.Blobs != 8 || p.Epoch != 5 || p.Size == 0 || p.Size > p.Bytes {
		t.Errorf("packed: %+v", p)
	}
	// The newest segment is all that is left.
	left := contents(t, folder(store, "s1"))
	if len(left) != 1 || left["000005.jsonl"] == "" {
		t.Errorf("left over: %v", keys(left))
	}
	check := func(seal int) {
		t.Helper()
		after := journaltest.Verify(t, store, "s1")
		if !strings.HasPrefix(lines(t, after), lines(t, before)) || len(after.Findings) > 0 || len(after.Missing(told)) > 0 {
			t.Errorf("events before %d, after %d; findings %v", len(before.Events), len(after.Events), after.Findings)
		}
		if after.Head.Seq != before.Head.Seq+uint64(seal) {
			t.Errorf("the head is %v, and was %v", after.Head, before.Head)
		}
		for i := range before.Places {
			if a, b := after.Places[i], before.Places[i]; a.Segment != b.Segment || a.Offset != b.Offset {
				t.Errorf("event %d stands at %d, %d, and stood at %d, %d", i+1, a.Segment, a.Offset, b.Segment, b.Offset)
			}
		}
	}
	check(2)
	// Every byte is there when it is unpacked, by tar and by nothing of ours.
	for _, how := range []string{"tar --zstd -xf %s", "zstd -dc %s | tar -xf -"} {
		out := t.TempDir()
		cmd := exec.Command("sh", "-c", fmt.Sprintf(how, archive(store, "s1")))
		cmd.Dir = out
		if b, err := cmd.CombinedOutput(); err != nil || len(b) > 0 {
			t.Fatalf("%s: %v %s", how, err, b)
		}
		was["000005.jsonl"] = left["000005.jsonl"]
		same(t, contents(t, filepath.Join(out, "s1")), was)
	}
	// Packing it again changes nothing, and says so.
	bytes, err := os.ReadFile(archive(store, "s1"))
	must(t, err)
	if p := pack(t, store, "s1"); p.Epoch != 0 || p.Segments != 5 || p.Size != int64(len(bytes)) {
		t.Errorf("packed again: %+v", p)
	}
	again, err := os.ReadFile(archive(store, "s1"))
	must(t, err)
	if string(again) != string(bytes) {
		t.Error("the archive has changed")
	}
	// It goes on, and is packed again.
	more := grown(t, store, "s1", 2)
	told = append(told, more...)
	for name, b := range contents(t, folder(store, "s1")) {
		was[name] = b
	}
	if p := pack(t, store, "s1"); p.Segments != 8 || p.Epoch != 8 || p.Blobs != 10 {
		t.Errorf("packed when it had gone on: %+v", p)
	}
	was["000008.jsonl"] = contents(t, folder(store, "s1"))["000008.jsonl"]
	out := t.TempDir()
	if b, err := exec.Command("tar", "--zstd", "-xf", archive(store, "s1"), "-C", out).CombinedOutput(); err != nil {
		t.Fatalf("%v %s", err, b)
	}
	same(t, contents(t, filepath.Join(out, "s1")), was)
	check(2 + 1 + 5 + 1 + 1 + 5 + 2)
}

func keys(m map[string]string) (k []string) {
	for name := range m {
		k = append(k, name)
	}
	return k
}

func same(t *testing.T, have, want map[string]string) {
	t.Helper()
	for name, b := range want {
		if have[name] != b {
			t.Errorf("%s has %d bytes, want %d that are the same", name, len(have[name]), len(b))
		}
	}
	if len(have) != len(want) {
		t.Errorf("there are %v, want %v", keys(have), keys(want))
	}
}

var _ = []any{bytes.Equal, context.Background, errors.Is, io.EOF}
