package journal_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"steno/journal"
	"steno/journal/journaltest"
	"steno/replay"
	"steno/schema"
)

func export(t *testing.T, store *journal.Files, dir string) (map[string]journal.Exported, error) {
	t.Helper()
	all := map[string]journal.Exported{}
	return all, store.Export(ctx, dir, journal.ExportOptions{
		NewState: func() journal.State { return replay.NewChecker() },
		Each:     func(x journal.Exported) error { all[x.Session] = x; return nil },
	})
}

// An export is made while sessions are written, packed and forced: what was
// acknowledged before it is in it, every copy is sound, and goes on.
func TestAnExportOfALiveStoreIsWhole(t *testing.T) {
	t.Parallel()
	store := journaltest.Files(t)
	told := map[string][]schema.Head{"packed": grown(t, store, "packed", 2), "both": grown(t, store, "both", 2), "stale": grown(t, store, "stale", 2),
		"removed": grown(t, store, "removed", 1), "damaged": nil, "lost": grown(t, store, "lost", 1)}
	pack(t, store, "packed")
	pack(t, store, "both")
	pack(t, store, "lost")
	told["both"] = append(told["both"], grown(t, store, "both", 1)...)
	_, err := store.Remove(ctx, "removed", packOptions())
	must(t, err)
	grown(t, store, "damaged", 1)
	path := filepath.Join(folder(store, "damaged"), "000001.jsonl")
	b, err := os.ReadFile(path)
	must(t, err)
	damaged := strings.Replace(string(b), "tool_started", "tool_startee", 1)
	must(t, os.WriteFile(path, []byte(damaged), 0o600))
	must(t, os.Remove(archive(store, "lost")))

	var live []*journaltest.Process
	for _, id := range []string{"live1", "live2", "live3"} {
		live = append(live, journaltest.StartWriter(t, journaltest.Writer{Dir: store.Dir(), Session: id, Step: true, Bytes: map[bool]int{true: 300 << 10}[id == "live3"]}))
	}
	const at, beside = 3, 40 // appends before an export, and beside it
	for round := range 3 {
		for i, p := range live {
			p.Step(at + beside)
			p.WaitFor("ack", round*(at+beside)+at)
			told[[]string{"live1", "live2", "live3"}[i]] = p.Acknowledged()
		}
		dir := filepath.Join(t.TempDir(), "copy")
		all, err := export(t, store, dir)
		must(t, err)
		if len(all) != len(told) {
			t.Errorf("exported: %v", all)
		}
		copied, err := journal.OpenFiles(dir, true)
		must(t, err)
		defer copied.Close()
		if copied.ID() != store.ID() {
			t.Errorf("the copy is store %s, and was %s", copied.ID(), store.ID())
		}
		for id, heads := range told {
			x := all[id]
			switch id {
			case "removed":
				if !x.OK || !x.Removed {
					t.Errorf("removed: %+v", x)
				}
				gone(t, store, id)
				if _, err := journal.Open(ctx, copied, id, journaltest.Options()); !errors.Is(err, schema.AlreadyExists) {
					t.Errorf("in the copy its id is given away with %v", err)
				}
				continue
			case "damaged":
				if x.OK || x.Error == nil || x.Error.Kind != schema.CorruptLogLine {
					t.Errorf("damaged: %+v", x)
				}
				r, err := copied.Read(ctx, id, 1, 0)
				must(t, err)
				have := make([]byte, len(damaged)+1)
				if n, _ := r.Read(have); string(have[:n]) != damaged {
					t.Errorf("the copy has %d bytes, which are others", n)
				}
				must(t, r.Close())
				continue
			case "lost":
				if x.OK || x.Error == nil || x.Error.Details["reason"] != schema.SegmentMissing && x.Error.Details["reason"] != string(schema.SegmentMissing) {
					t.Errorf("lost: %+v", x)
				}
				continue
			}
			if !x.OK {
				t.Errorf("%s: %+v", id, *x.Error)
			}
			l := journaltest.Verify(t, copied, id)
			if gone := l.Missing(heads); len(gone) > 0 || l.Head != x.Head {
				t.Errorf("%s: %d acknowledged and not there; the head is %v, and was said to be %v", id, len(gone), l.Head, x.Head)
			}
			j, err := journal.Open(ctx, copied, id, journaltest.Options())
			must(t, err)
			journaltest.Append(t, j, journaltest.Note("goes on"))
			must(t, j.Release(ctx, "done"))
			journaltest.Verify(t, copied, id)
		}
		if left, _ := filepath.Glob(filepath.Join(filepath.Dir(dir), ".steno*")); len(left) > 0 {
			t.Errorf("left over: %v", left)
		}
	}
	for _, p := range live {
		p.Kill()
	}
}

// What cannot be exported leaves nothing behind, and the store alone.
func TestAnExportThatFailsLeavesNothing(t *testing.T) {
	t.Parallel()
	store, faults := journaltest.Faulty(journaltest.Files(t))
	grown(t, store, "s1", 2)
	was := contents(t, filepath.Join(store.Dir(), "sessions"))
	above := t.TempDir()
	try := func(dir string, kind schema.Kind) {
		t.Helper()
		if _, err := export(t, store, dir); !errors.Is(err, kind) {
			t.Errorf("it fails with %v, want %s", err, kind)
		}
		list, err := os.ReadDir(above)
		must(t, err)
		if len(list) > 1 || len(list) == 1 && list[0].Name() != "taken" {
			t.Errorf("left over: %v", list)
		}
		same(t, contents(t, filepath.Join(store.Dir(), "sessions")), was)
	}
	must(t, os.Mkdir(filepath.Join(above, "taken"), 0o700))
	try(filepath.Join(above, "taken"), schema.AlreadyExists)
	try(filepath.Join(above, "none", "copy"), schema.LogWriteFailed)
	try(filepath.Join(store.Dir(), "sessions", "copy"), schema.InvalidArgs)
	try(store.Dir(), schema.AlreadyExists)
	for nth := 1; nth <= 10; nth += 3 {
		faults.FailWrite(nth, journaltest.ErrDisk)
		try(filepath.Join(above, "copy"), schema.LogWriteFailed)
	}
	faults.Fill(100)
	try(filepath.Join(above, "copy"), schema.LogWriteFailed)
	faults.Empty()
	for nth := 1; nth <= 3; nth++ {
		faults.FailSync(nth, journaltest.ErrDisk)
		try(filepath.Join(above, "copy"), schema.LogWriteFailed)
	}
	all, err := export(t, store, filepath.Join(above, "copy"))
	if err != nil || !all["s1"].OK {
		t.Errorf("exported: %v, %v", all, err)
	}
}
