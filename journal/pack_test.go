package journal_test

import (
	"archive/tar"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/klauspost/compress/zstd"
	"github.com/oklog/ulid/v2"

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
	// Every byte is there when it is unpacked, by what knows nothing of steno.
	was["000005.jsonl"] = left["000005.jsonl"]
	same(t, unpacked(t, archive(store, "s1")), was)
	for _, how := range []string{"tar --zstd -xf %s", "zstd -dc %s | tar -xf -"} {
		if _, err := exec.LookPath("zstd"); err != nil {
			break // the machine has none
		}
		out := t.TempDir()
		cmd := exec.Command("sh", "-c", fmt.Sprintf(how, archive(store, "s1")))
		cmd.Dir = out
		if b, err := cmd.CombinedOutput(); err != nil || len(b) > 0 {
			t.Fatalf("%s: %v %s", how, err, b)
		}
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
	same(t, unpacked(t, archive(store, "s1")), was)
	check(2 + 1 + 5 + 1 + 1 + 5 + 2)
}

// unpacked is what a tar file in zstd holds of session s1, by any reader of these.
func unpacked(t *testing.T, path string) map[string]string {
	t.Helper()
	f, err := os.Open(path)
	must(t, err)
	defer f.Close()
	r, err := zstd.NewReader(f, zstd.WithDecoderConcurrency(1))
	must(t, err)
	defer r.Close()
	all := map[string]string{}
	for in := tar.NewReader(r); ; {
		h, err := in.Next()
		if err == io.EOF {
			return all
		}
		must(t, err)
		if h.Typeflag == tar.TypeReg {
			b, err := io.ReadAll(in)
			must(t, err)
			all[strings.TrimPrefix(h.Name, "s1/")] = string(b)
		}
	}
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

// Whoever reads while a session is packed, at any step, sees all of it.
func TestAReaderBesideAPackerSeesTheWholeSession(t *testing.T) {
	t.Parallel()
	store, faults := journaltest.Faulty(journaltest.Files(t))
	worn(t, store)
	want := lines(t, journaltest.Verify(t, store, "s1"))
	reader, err := journal.OpenFiles(store.Dir(), false) // of another process, which remembers nothing
	must(t, err)
	defer reader.Close()
	looks := 0
	faults.Each(func(point string) {
		if point == journaltest.Listed || looks == 0 && point == journaltest.Write { // the reader's own, and the claim, which it would wait for
			return
		}
		if st, err := reader.Lease(ctx, "s1"); err == nil && !st.Sealed {
			return // it would wait for the seal
		}
		looks++
		if l := journaltest.Verify(t, reader, "s1"); !strings.HasPrefix(lines(t, l), want) {
			t.Errorf("%s: %d events", point, len(l.Events))
		}
	})
	pack(t, store, "s1")
	faults.Each(nil)
	if looks < 20 {
		t.Errorf("only %d looks", looks)
	}
}

func TestAPackedSessionIsWrittenAsBefore(t *testing.T) {
	t.Parallel()
	store := journaltest.Files(t)
	j, err := journal.Open(ctx, store, "s1", journaltest.Options())
	must(t, err)
	long := journaltest.Large(1, 400_000)
	entry := journal.Entry{ID: ulid.Make(), Type: schema.TypeNote, Data: journaltest.Note("with an id").Data}
	records := journaltest.Append(t, j, entry)
	for i := range 30 { // over the borders of frames
		records = append(records, journaltest.Append(t, j, journaltest.Note(fmt.Sprint(i, journaltest.Large(1, 99_990+i))), journaltest.Note(fmt.Sprint(i)))...)
	}
	records = append(records, journaltest.Append(t, j, journaltest.Note(long))...)
	must(t, j.Release(ctx, "done"))
	pack(t, store, "s1")
	j = journaltest.Open(t, store, "s1")
	if j.How() != schema.HowResumed || j.Epoch() != 3 {
		t.Errorf("it is opened as %s, epoch %d", j.How(), j.Epoch())
	}
	for _, want := range records {
		if r, err := j.Event(ctx, want.Seq); err != nil || string(r.Line) != string(want.Line) {
			t.Errorf("event %d is read back as %.80s, %v", want.Seq, r.Line, err)
		}
	}
	// A recorded id is answered from the archive, and a blob that lies there is read.
	again := journaltest.Append(t, j, entry)
	if again[0].Seq != records[0].Seq || j.Head().Seq != records[len(records)-1].Seq+4 {
		t.Errorf("appended again it is %d; the head is %v", again[0].Seq, j.Head())
	}
	last := records[len(records)-1]
	if whole, err := j.Whole(ctx, last.Data); err != nil || string(whole) != string(journaltest.Note(long).Data) {
		t.Errorf("the blob is read back as %.80s, %v", whole, err)
	}
	// The same value again is one blob more, in the folder, and one when packed.
	journaltest.Append(t, j, journaltest.Note(long))
	must(t, j.Release(ctx, "done"))
	journaltest.Verify(t, store, "s1")
	if p := pack(t, store, "s1"); p.Blobs != 1 {
		t.Errorf("packed: %+v", p)
	}
}

func TestWhoMayBeWritingIsNotPackedOrRemoved(t *testing.T) {
	t.Parallel()
	store := journaltest.Files(t)
	do := map[string]func() (journal.Packed, error){
		"pack":   func() (journal.Packed, error) { return store.Pack(ctx, "s1", packOptions()) },
		"remove": func() (journal.Packed, error) { return store.Remove(ctx, "s1", packOptions()) },
	}
	refused := func(kind schema.Kind, pid int) {
		t.Helper()
		before := contents(t, store.Dir())
		for what, f := range do {
			_, err := f()
			if !errors.Is(err, kind) {
				t.Errorf("%s: %v, want %s", what, err, kind)
			} else if d := schema.AsError(err).Details; pid > 0 && d["pid"] != pid {
				t.Errorf("%s: it does not name process %d: %v", what, pid, d)
			}
		}
		after := contents(t, store.Dir())
		for name := range before {
			if strings.HasPrefix(name, "holders") {
				delete(before, name)
				delete(after, name)
			}
		}
		same(t, after, before)
	}
	refused(schema.NotFound, 0)
	p := journaltest.StartWriter(t, journaltest.Writer{Dir: store.Dir(), Session: "s1", Step: true})
	p.WaitFor("open", 1)
	refused(schema.SessionWriterActive, p.PID())
	// It is forced out, and lives: what it still writes must not be lost in between.
	p.Stop()
	force := journaltest.Options()
	force.Force, force.Reason = true, "the test says so"
	j, err := journal.Open(ctx, store, "s1", force)
	must(t, err)
	must(t, j.Release(ctx, "done"))
	refused(schema.SessionWriterActive, p.PID())
	p.Kill()
	grown(t, store, "s1", 1)
	path := filepath.Join(folder(store, "s1"), "000003.jsonl")
	sound, err := os.ReadFile(path)
	must(t, err)
	must(t, os.WriteFile(path, []byte(strings.Replace(string(sound), "tool_started", "tool_startee", 1)), 0o600))
	refused(schema.CorruptLogLine, 0)
	must(t, os.WriteFile(path, sound, 0o600))
	dry := packOptions()
	dry.DryRun = true
	before := contents(t, filepath.Join(store.Dir(), "sessions"))
	for _, f := range []func() (journal.Packed, error){
		func() (journal.Packed, error) { return store.Pack(ctx, "s1", dry) },
		func() (journal.Packed, error) { return store.Remove(ctx, "s1", dry) },
	} {
		if p, err := f(); err != nil || p.Epoch != 0 || p.Segments != 3 || p.Head.Seq == 0 {
			t.Errorf("a look: %+v, %v", p, err)
		}
	}
	same(t, contents(t, filepath.Join(store.Dir(), "sessions")), before)
	pack(t, store, "s1")
	// The archive of another history is not mixed with this one.
	must(t, os.WriteFile(filepath.Join(folder(store, "s1"), "000003.jsonl"), []byte(strings.Replace(string(sound), "so so", "so  so", 1)), 0o600))
	_, err = store.Pack(ctx, "s1", packOptions())
	if !errors.Is(err, schema.CorruptLogLine) {
		t.Errorf("it is packed with %v", err)
	}
	must(t, os.WriteFile(filepath.Join(folder(store, "s1"), "000003.jsonl"), append(sound, "surplus"...), 0o600))
	if _, err = store.Pack(ctx, "s1", packOptions()); !errors.Is(err, schema.AlreadyExists) {
		t.Errorf("it is packed with %v", err)
	}
	must(t, os.WriteFile(filepath.Join(folder(store, "s1"), "000003.jsonl"), sound, 0o600))
	pack(t, store, "s1")
	if p, err := store.Remove(ctx, "s1", packOptions()); err != nil || p.Segments != 6 || p.Freed == 0 {
		t.Errorf("removed: %+v, %v", p, err)
	}
	gone(t, store, "s1")
	// Somebody who came too late has claimed the slot above, and died.
	claimAndDie(t, store, "s1", newest(t, store)+1)
	if _, err := journaltest.Read(store, "s1", journal.ScanOptions{}); !errors.Is(err, schema.NotFound) {
		t.Errorf("it is read with %v", err)
	}
	if _, err := journal.Open(ctx, store, "s1", journaltest.Options()); !errors.Is(err, schema.AlreadyExists) {
		t.Errorf("it is opened with %v", err)
	}
}

// An archive alone is the session, too: nothing else is needed to restore one.
func TestAnArchiveStandsForAFolderWithoutSegments(t *testing.T) {
	t.Parallel()
	store := journaltest.Files(t)
	told := grown(t, store, "s1", 2)
	told = append(told, pack(t, store, "s1").Head)
	want := lines(t, journaltest.Verify(t, store, "s1"))
	must(t, os.Remove(filepath.Join(folder(store, "s1"), "000003.jsonl")))
	if st, err := store.Lease(ctx, "s1"); err != nil || st.State != lease.Available || st.Epoch != 3 {
		t.Errorf("the lease is %+v, %v", st, err)
	}
	if l := journaltest.Verify(t, store, "s1"); lines(t, l) != want || len(l.Findings) > 0 {
		t.Errorf("%d events, findings %v", len(l.Events), l.Findings)
	}
	j, err := journal.Open(ctx, store, "s1", journaltest.Options())
	must(t, err)
	if j.Epoch() != 4 || j.How() != schema.HowResumed {
		t.Errorf("it goes on in epoch %d, %s", j.Epoch(), j.How())
	}
	journaltest.Append(t, j, journaltest.Note("goes on"))
	told = append(told, j.Head())
	must(t, j.Close())
	if l := journaltest.Verify(t, store, "s1"); len(l.Missing(told)) > 0 {
		t.Errorf("missing: %v", l.Missing(told))
	}
	// That its folder is gone is an error, also for whoever lists the sessions, and
	// its id is not given to another history.
	must(t, os.RemoveAll(folder(store, "s1")))
	if got := slices.Collect(maps.Keys(maps.Collect(store.Sessions(ctx)))); !slices.Equal(got, []string{"s1"}) {
		t.Errorf("the sessions are %q", got)
	}
	if _, err := journaltest.Read(store, "s1", journal.ScanOptions{}); !errors.Is(err, schema.CorruptLogLine) {
		t.Errorf("it is read with %v", err)
	}
	if _, err := journal.Open(ctx, store, "s1", journaltest.Options()); !errors.Is(err, schema.CorruptLogLine) {
		t.Errorf("it is opened with %v", err)
	}
	if all, err := export(t, store, filepath.Join(t.TempDir(), "copy")); err != nil || all["s1"].OK || all["s1"].Size > 0 {
		t.Errorf("exported: %+v, %v", all, err)
	}
	must(t, os.Mkdir(folder(store, "s1"), 0o700)) // which brings back what is in the archive
	if l := journaltest.Verify(t, store, "s1"); lines(t, l) != want {
		t.Errorf("%d events", len(l.Events))
	}
}

// Only Pack and Remove may say what the reasons say.
func TestAReleaseDoesNotRemove(t *testing.T) {
	t.Parallel()
	store := journaltest.Files(t)
	j := journaltest.Open(t, store, "s1")
	must(t, j.Release(ctx, schema.ReasonRemoved))
	if l := journaltest.Verify(t, store, "s1"); !strings.Contains(string(l.Events[2].Data), `"asked for: removed"`) {
		t.Errorf("it is released with %s", l.Events[2].Data)
	}
}

// What a dead holder's commit log alone has is exported, and packed.
func TestWhatOnlyTheCommitLogHasIsExportedAndPacked(t *testing.T) {
	t.Parallel()
	before := journaltest.Files(t)
	j := journaltest.Open(t, before, "s1")
	told := []schema.Head{j.Head()}
	for i := range 20 {
		journaltest.Append(t, j, journaltest.Note(fmt.Sprint(i)))
		told = append(told, j.Head())
	}
	// The power has taken what was never synced in the segment, or made zeros of it.
	for _, lose := range []func(b []byte) []byte{
		func(b []byte) []byte { return b[:lineAt(b, 6)] },
		func(b []byte) []byte { clear(b[lineAt(b, 6):]); return b },
	} {
		store := copyOf(t, before, func(_ string, b []byte) []byte { return lose(b) })
		raw, err := os.ReadFile(filepath.Join(folder(store, "s1"), "000001.jsonl"))
		must(t, err)
		if strings.Count(string(raw), "\n") != 6 {
			t.Fatalf("the segment has %d lines", strings.Count(string(raw), "\n"))
		}
		dir := filepath.Join(t.TempDir(), "copy")
		if all, err := export(t, store, dir); err != nil || !all["s1"].OK {
			t.Fatalf("exported: %+v, %v", all, err)
		}
		copied, err := journal.OpenFiles(dir, false)
		must(t, err)
		if l := journaltest.Verify(t, copied, "s1"); len(l.Missing(told)) > 0 {
			t.Errorf("not in the copy: %v", l.Missing(told))
		}
		must(t, copied.Close())
		told := append(told[:len(told):len(told)], pack(t, store, "s1").Head)
		must(t, os.RemoveAll(filepath.Join(store.Dir(), "holders")))
		if l := journaltest.Verify(t, store, "s1"); len(l.Missing(told)) > 0 {
			t.Errorf("not in the archive: %v", l.Missing(told))
		}
	}
}
