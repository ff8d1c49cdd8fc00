package replay_test

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"steno/journal"
	"steno/journal/journaltest"
	"steno/replay"
	"steno/schema"
)

var freeze = flag.Bool("freeze", false, "make testdata/compat/v1 anew, which is only right before a release")

const compat = "../testdata/compat/v1"

// digests folds the frozen logs: a line for every event, with the digest of the
// state behind it.
func digests(t *testing.T, store *journal.Files) string {
	t.Helper()
	var out strings.Builder
	for id, err := range store.Sessions(t.Context()) {
		if err != nil {
			t.Fatal(err)
		}
		st := replay.New()
		for it, err := range journal.NewScan(store, id, journal.ScanOptions{State: st, Blobs: true}).Items(t.Context()) {
			if err != nil {
				t.Fatal(err)
			}
			if it.Finding != nil {
				fmt.Fprintf(&out, "%s %s %s\n", id, it.Finding.Kind, it.Finding.Reason)
			} else {
				fmt.Fprintf(&out, "%s %d %s\n", id, it.Event.Seq, st.Digest())
			}
		}
		out.WriteString(id)
		for _, form := range []string{"steno", "anthropic", "openai"} {
			events := func(yield func(*schema.Event, error) bool) {
				for it, err := range journal.NewScan(store, id, journal.ScanOptions{}).Items(t.Context()) {
					if err != nil || it.Event != nil && !yield(it.Event, nil) {
						return
					}
				}
			}
			sum, n, err := replay.DigestMessages(replay.Messages(events, replay.Projection{Format: form}))
			if err != nil {
				t.Fatal(err)
			}
			fmt.Fprintf(&out, " %d %s", n, sum)
		}
		out.WriteByte('\n')
	}
	return out.String()
}

// frozen is the store of the frozen logs, in a copy.
func frozen(t *testing.T) *journal.Files {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "store")
	if err := os.CopyFS(dir, os.DirFS(compat)); err != nil {
		t.Fatal(err)
	}
	err := filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if err == nil && d.IsDir() {
			return os.Chmod(path, 0o700)
		} else if err == nil {
			return os.Chmod(path, 0o600)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return journaltest.FilesIn(t, dir)
}

// Logs of every version, with their digests behind every event, fold for ever. The
// last line of a session is of its messages, whose words may change, on purpose.
func TestS5FrozenLogsFoldAsTheyDid(t *testing.T) {
	if *freeze {
		thaw(t)
	}
	want, err := os.ReadFile(filepath.Join(compat, "digests.txt"))
	if err != nil {
		t.Fatal(err)
	}
	if got := digests(t, frozen(t)); got != string(want) {
		a, b := strings.Split(got, "\n"), strings.Split(string(want), "\n")
		for i := range min(len(a), len(b)) {
			if a[i] != b[i] {
				t.Fatalf("line %d of the digests is\n%s\nand was\n%s", i+1, a[i], b[i])
			}
		}
		t.Fatalf("there are %d lines and were %d", len(a), len(b))
	}
}

// The digests are the same in two processes that differ in all that a process
// can differ in.
func TestS5DigestsAreTheSameInEveryProcess(t *testing.T) {
	if os.Getenv("STENO_TEST_DIGESTS") != "" {
		fmt.Print("<<" + digests(t, frozen(t)) + ">>")
		return
	}
	t.Parallel()
	var first []byte
	for _, env := range [][]string{{"GOMAXPROCS=1", "TZ=UTC", "LANG=C", "GOGC=10"}, {"GOMAXPROCS=4", "TZ=Asia/Tokyo", "LANG=tr_TR.UTF-8", "LC_ALL=tr_TR.UTF-8", "GODEBUG=randautoseed=0"}} {
		cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run", "^TestS5DigestsAreTheSameInEveryProcess$")
		cmd.Env = append(append(os.Environ(), env...), "STENO_TEST_DIGESTS=1")
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		_, out, _ = bytes.Cut(out, []byte("<<"))
		out, _, ok := bytes.Cut(out, []byte(">>"))
		if !ok || len(out) < 1000 {
			t.Fatalf("there are no digests in %s", out)
		}
		if first == nil {
			first = out
		} else if !bytes.Equal(first, out) {
			t.Errorf("with %v the digests are others", env)
		}
	}
}

// Twice is as good as once, and so is any beginning and then the rest, of any log
// there is.
func TestS5APrefixAndTheRestOfEveryFrozenLog(t *testing.T) {
	t.Parallel()
	store := frozen(t)
	for id, err := range store.Sessions(t.Context()) {
		if err != nil {
			t.Fatal(err)
		}
		var events []schema.Event
		for it, err := range journal.NewScan(store, id, journal.ScanOptions{}).Items(t.Context()) {
			if err == nil && it.Event != nil {
				e := *it.Event
				e.Data = bytes.Clone(e.Data)
				events = append(events, e)
			}
		}
		once := replay.New()
		for i := range events {
			once.Apply(&events[i])
		}
		for cut := range events {
			s := replay.New()
			for i := range events[:cut] {
				s.Apply(&events[i])
			}
			if _, err := s.Digest(), s.Check(events[cut:cut+1]); schema.KindOf(err) == schema.Internal {
				t.Error(err)
			}
			for i := range events[cut:] {
				s.Apply(&events[cut+i])
			}
			if s.Digest() != once.Digest() {
				t.Errorf("%s: cut at %d the digest is another", id, cut)
			}
		}
	}
}

// thaw writes the logs anew.
func thaw(t *testing.T) {
	if err := os.RemoveAll(compat); err != nil {
		t.Fatal(err)
	}
	store, err := journal.OpenFiles(compat, true)
	if err != nil {
		t.Fatal(err)
	}
	store = store.WithoutLog()
	var entries []journal.Entry
	for _, e := range whole().events {
		switch e.Type {
		case schema.TypeWriterOpened, schema.TypeWriterReleased, schema.TypeSessionStarted:
		default:
			entries = append(entries, journal.Entry{Type: e.Type, Data: e.Data})
		}
	}
	write := func(id string, dies bool, entries ...journal.Entry) {
		opt := journaltest.Options()
		opt.Started = whole().events[1].Data
		opt.Holder.Host, opt.Holder.BootID, opt.Holder.PID, opt.Holder.PIDStarted = "host", "00000000-0000-4000-8000-000000000000", 1, "1"
		j, err := journal.Open(t.Context(), store, id, opt)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range entries {
			if r, err := j.Event(t.Context(), j.Head().Seq); err == nil && e.Type == schema.TypeToolResult && bytes.Contains(e.Data, []byte(`"supersedes"`)) {
				e.Data = fmt.Appendf(nil, `{"call_id":"b","attempt":1,"ok":true,"output":"late","duration_us":5,"supersedes":%d}`, r.Seq)
			}
			journaltest.Append(t, j, e)
		}
		if dies {
			err = j.Close()
		} else {
			err = j.Release(t.Context(), "done")
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	write("every-type", false, entries...)
	large := strings.Repeat("large ", 50_000)
	write("epochs", true, journal.Entry{Type: schema.TypeUserMessage, Data: fmt.Appendf(nil, `{"text":%q}`, large)}, journaltest.Call("a", "read", `{"n":1e400}`), journaltest.Started("a", 1))
	write("epochs", true, journaltest.Result("a", 1, `"out"`), journal.Entry{Type: schema.TypeStateChanged, Data: fmt.Appendf(nil, `{"patch":{"large":%q,"n":12345678901234567890}}`, large)})
	write("epochs", false, journaltest.Call("b", "read", `{}`))
	write("torn", true, journaltest.Call("a", "read", `{}`), journaltest.Started("a", 1))
	segment := filepath.Join(compat, "sessions", "torn", "000001.jsonl")
	b, err := os.ReadFile(segment)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(segment, append(b, `{"v":1,"session":"torn","seq":5,"ep`...), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := store.Close(); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"holders", "secret"} {
		if err := os.RemoveAll(filepath.Join(compat, name)); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(compat, "digests.txt"), []byte(digests(t, frozen(t))), 0o600); err != nil {
		t.Fatal(err)
	}
}
