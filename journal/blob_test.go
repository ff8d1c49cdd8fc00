package journal_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/go-json-experiment/json"
	"github.com/klauspost/compress/zstd"

	"steno/journal"
	"steno/journal/journaltest"
	"steno/schema"
)

// large is a note whose text is a blob; an odd number gives one that is not packed.
func large(number uint64) journal.Entry { return journaltest.Note(journaltest.Large(number, 300_000)) }

func blobName(number uint64) string {
	sum := sha256.Sum256([]byte(journaltest.Large(number, 300_000)))
	name := hex.EncodeToString(sum[:])
	if number%2 == 0 {
		name += ".zst"
	}
	return name
}

func blobsOf(store *journal.Files) string {
	return filepath.Join(store.Dir(), "sessions", "s1", "blobs")
}

func names(t *testing.T, dir string) (names []string) {
	t.Helper()
	list, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	for _, e := range list {
		names = append(names, e.Name())
	}
	return names
}

func TestABlobIsAPlainFileOfOursNamedByWhatItHolds(t *testing.T) {
	old := syscall.Umask(0o777)
	defer syscall.Umask(old)
	store := journaltest.Files(t)
	syscall.Umask(old)
	j := journaltest.Open(t, store, "s1")
	journaltest.Append(t, j, large(1), large(2), large(1))
	want := []string{blobName(1), blobName(2)}
	slices.Sort(want)
	if got := names(t, blobsOf(store)); !slices.Equal(got, want) {
		t.Errorf("the blobs are %q, want %q", got, want)
	}
	for path, mode := range map[string]os.FileMode{"": os.ModeDir | 0o700, want[0]: 0o600, want[1]: 0o600} {
		fi, err := os.Stat(filepath.Join(blobsOf(store), path))
		must(t, err)
		if fi.Mode() != mode {
			t.Errorf("%q has mode %v, want %v", path, fi.Mode(), mode)
		}
	}
	if b, err := os.ReadFile(filepath.Join(blobsOf(store), blobName(1))); err != nil || string(b) != journaltest.Large(1, 300_000) {
		t.Errorf("the blob has %d bytes: %v", len(b), err)
	}
	fi, err := os.Stat(filepath.Join(blobsOf(store), blobName(2)))
	if err != nil || fi.Size() > 100_000 {
		t.Errorf("the packed blob has %d bytes: %v", fi.Size(), err)
	}
}

// Every write and every sync of a blob may fail. The append is refused, nothing
// of it is in the log, and the journal goes on; those of the line are the line's.
func TestABlobThatCannotBeStoredRefusesTheAppendAndNothingElse(t *testing.T) {
	faults := map[string]func(*journaltest.Faults, int){
		"write": func(x *journaltest.Faults, n int) { x.FailWrite(n, journaltest.ErrDisk) },
		"full":  func(x *journaltest.Faults, n int) { x.ShortWrite(n, 1000, syscall.ENOSPC) },
		"short": func(x *journaltest.Faults, n int) { x.ShortWrite(n, 7, nil) },
		"sync":  func(x *journaltest.Faults, n int) { x.FailSync(n, journaltest.ErrDisk) },
		"lost":  func(x *journaltest.Faults, n int) { x.LoseSync(n, journaltest.ErrDisk) },
	}
	stopped, cancel := context.WithCancel(ctx) // so that a full disk is not waited for
	cancel()
	for name, fault := range faults {
		for _, number := range []uint64{1, 2} {
			for _, there := range []bool{false, true} { // the blob, from an append before
				t.Run(fmt.Sprintf("%s/%d/%t", name, number, there), func(t *testing.T) {
					t.Parallel()
					refused := 0
					for n := 1; ; n++ {
						files := journaltest.Files(t)
						store, x := journaltest.Faulty(files)
						j, err := journal.Open(ctx, store, "s1", journaltest.Options())
						must(t, err)
						journaltest.Append(t, j, journaltest.Note("before"))
						if there {
							journaltest.Append(t, j, large(number))
						}
						head, writes := j.Head(), x.Seen(journaltest.Written)
						fault(x, n)
						_, err = j.Append(stopped, large(number))
						if err == nil || x.Seen(journaltest.Written) > writes || j.Err() != nil { // the blob is stored; now it is the line
							must(t, j.Close())
							break
						}
						refused++
						if !errors.Is(err, schema.LogWriteFailed) || schema.AsError(err).Details["outcome"] != journal.NotStored.String() {
							t.Errorf("fault %d: %v, %v", n, err, schema.AsError(err).Details)
						}
						if name == "full" && !errors.Is(err, syscall.ENOSPC) {
							t.Errorf("fault %d does not say that the disk is full: %v", n, err)
						}
						if l := journaltest.Verify(t, store, "s1"); j.Head() != head || l.Head != head || len(l.Findings) > 0 {
							t.Errorf("fault %d: the head is %v, in the log %v, with %v", n, j.Head(), l.Head, l.Findings)
						}
						journaltest.Append(t, j, large(number), journaltest.Note("goes on"))
						must(t, j.Close())
						if l := journaltest.Verify(t, store, "s1"); len(l.Findings) > 0 {
							t.Errorf("fault %d: %v", n, l.Findings)
						}
						if left := names(t, blobsOf(store)); len(left) != 1 || left[0] != blobName(number) {
							t.Errorf("fault %d leaves %q", n, left)
						}
					}
					// Of a new blob: its bytes; it, its folder, and that of the session.
					least := map[string]int{"write": 1, "full": 1, "short": 1, "sync": 3, "lost": 3}[name]
					if there {
						least = map[string]int{"sync": 2, "lost": 2}[name]
					}
					if refused < least {
						t.Errorf("only %d faults hit the blob, want %d", refused, least)
					}
				})
			}
		}
	}
}

// What is wrong with a blob is found at the line that names it, and the rest
// stays as it is.
func TestWhatIsWrongWithABlobIsFoundAtItsLine(t *testing.T) {
	pack := func(b []byte, opt ...zstd.EOption) []byte {
		enc, err := zstd.NewWriter(nil, opt...)
		must(t, err)
		return enc.EncodeAll(b, nil)
	}
	plain, packed := []byte(journaltest.Large(1, 300_000)), []byte(journaltest.Large(2, 300_000))
	other := bytes.Clone(plain)
	other[1000]++
	bomb := pack(make([]byte, 256<<20))
	for what, c := range map[string]struct {
		number uint64
		ext    string // of the file, instead of the one that it has
		data   []byte // nil: no file
		why    schema.Reason
		look   bool // also found without reading it
	}{
		"missing":                  {1, "", nil, schema.BlobMissing, true},
		"missing, packed":          {2, ".zst", nil, schema.BlobMissing, true},
		"another byte":             {1, "", other, schema.BlobMismatch, false},
		"cut off":                  {1, "", plain[:1000], schema.BlobMismatch, true},
		"empty":                    {1, "", []byte{}, schema.BlobMismatch, true},
		"longer":                   {1, "", append(bytes.Clone(plain), 'x'), schema.BlobMismatch, true},
		"packed by another":        {1, ".zst", pack(plain), "", false},
		"unpacked by another":      {2, "", packed, "", false},
		"two frames":               {2, ".zst", append(pack(packed[:1000]), pack(packed[1000:])...), schema.BlobMismatch, true},
		"packed, other text":       {2, ".zst", pack(other), schema.BlobMismatch, false},
		"packed, too short":        {2, ".zst", pack(packed[:1000]), schema.BlobMismatch, true},
		"packed, too long":         {2, ".zst", pack(append(bytes.Clone(packed), 'x')), schema.BlobMismatch, true},
		"packed, cut off":          {2, ".zst", pack(packed)[:200], schema.BlobMismatch, false},
		"packed, and more behind":  {2, ".zst", append(pack(packed), "more"...), schema.BlobMismatch, false},
		"not packed at all":        {2, ".zst", packed, schema.BlobMismatch, false},
		"packed, empty":            {2, ".zst", []byte{}, schema.BlobMismatch, false},
		"a bomb":                   {2, ".zst", bomb, schema.BlobMismatch, true},
		"a bomb of a second frame": {2, ".zst", append(pack(packed), bomb...), schema.BlobMismatch, false},
	} {
		t.Run(what, func(t *testing.T) {
			store := journaltest.Files(t)
			j, err := journal.Open(ctx, store, "s1", journaltest.Options())
			must(t, err)
			journaltest.Append(t, j, journaltest.Note("before"))
			bad := journaltest.Append(t, j, large(c.number))[0]
			journaltest.Append(t, j, large(4), journaltest.Message("behind"))
			must(t, j.Close())
			must(t, os.Remove(filepath.Join(blobsOf(store), blobName(c.number))))
			if c.data != nil {
				must(t, os.WriteFile(filepath.Join(blobsOf(store), strings.TrimSuffix(blobName(c.number), ".zst")+c.ext), c.data, 0o600))
			}
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			l, err := journaltest.Read(store, "s1", journal.ScanOptions{Blobs: true})
			runtime.ReadMemStats(&after)
			must(t, err)
			if used := after.TotalAlloc - before.TotalAlloc; used > 64<<20 {
				t.Errorf("it took %d bytes of memory", used)
			}
			look, err := journaltest.Read(store, "s1", journal.ScanOptions{})
			must(t, err)
			if len(l.Events) != 6 || len(look.Events) != 6 || l.State.Digest() != look.State.Digest() {
				t.Errorf("%d and %d events", len(l.Events), len(look.Events))
			}
			if (len(look.Findings) > 0) != c.look || c.look && look.Findings[0].Reason != c.why {
				t.Errorf("a look finds %v", look.Findings)
			}
			if c.why == "" {
				if len(l.Findings) > 0 {
					t.Errorf("found for no reason: %v", l.Findings)
				}
			} else if len(l.Findings) != 1 || l.FirstError == nil || l.FirstError.Reason != c.why || l.FirstError.Kind != schema.CorruptLogLine ||
				l.FirstError.Line != 5 || l.FirstError.Bytes != int64(len(bad.Line)) {
				t.Errorf("found are %+v", l.Findings)
			}
			_, err = journaltest.Read(store, "s1", journal.ScanOptions{Strict: true, Blobs: true})
			if (err == nil) != (c.why == "") || err != nil && !errors.Is(err, schema.CorruptLogLine) {
				t.Errorf("a strict reading ends with %v", err)
			}
			_, err = journal.Whole(ctx, store, "s1", bad.Data)
			if (err == nil) != (c.why == "") || err != nil && schema.AsError(err).Details["reason"] != string(c.why) {
				t.Errorf("its value is %v", err)
			}
			// Who writes the same value again has it whole, and with it the old line.
			if j, err = journal.Open(ctx, store, "s1", journaltest.Options()); c.look {
				if !errors.Is(err, schema.CorruptLogLine) {
					t.Errorf("taking over gives %v", err)
				}
				return
			}
			must(t, err)
			journaltest.Append(t, j, large(c.number))
			must(t, j.Close())
			if l := journaltest.Verify(t, store, "s1"); len(l.Findings) > 0 {
				t.Errorf("found afterwards: %v", l.Findings)
			}
			aside := 0
			for _, name := range names(t, blobsOf(store)) {
				if strings.HasPrefix(name, ".damaged-") {
					aside++
					if b, err := os.ReadFile(filepath.Join(blobsOf(store), name)); err != nil || !bytes.Equal(b, c.data) {
						t.Error("what was damaged has changed")
					}
				}
			}
			if (aside == 1) != (c.why != "") {
				t.Errorf("%d files were set aside", aside)
			}
		})
	}
}

// Links, FIFOs and foreign files never lead a reader or a writer astray.
func TestHostileFilesAmongTheBlobs(t *testing.T) {
	for what, put := range map[string]func(path, outside string) error{
		"a link to another file":  func(path, outside string) error { return os.Symlink(outside, path) },
		"a link to nothing":       func(path, outside string) error { return os.Symlink(outside+"x", path) },
		"a second name":           func(path, outside string) error { return os.Link(outside, path) },
		"a FIFO":                  func(path, _ string) error { return syscall.Mkfifo(path, 0o600) },
		"a folder":                func(path, _ string) error { return os.Mkdir(path, 0o700) },
		"a file others may write": func(path, _ string) error { return errors.Join(os.WriteFile(path, nil, 0o600), os.Chmod(path, 0o666)) },
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			store := journaltest.Files(t)
			j, err := journal.Open(ctx, store, "s1", journaltest.Options())
			must(t, err)
			defer j.Close()
			journaltest.Append(t, j, large(2))
			outside := filepath.Join(filepath.Dir(store.Dir()), "outside-"+filepath.Base(store.Dir()))
			must(t, os.WriteFile(outside, []byte(journaltest.Large(1, 300_000)), 0o600))
			defer os.Remove(outside)
			path := filepath.Join(blobsOf(store), blobName(1))
			must(t, put(path, outside))
			_, err = j.Append(ctx, large(1))
			if !errors.Is(err, schema.UnsafeStatePath) || schema.AsError(err).Details["outcome"] != journal.NotStored.String() || strings.Contains(err.Error(), outside) {
				t.Errorf("the append gives %v", err)
			}
			if b, err := os.ReadFile(outside); err != nil || string(b) != journaltest.Large(1, 300_000) {
				t.Error("the other file has changed")
			}
			journaltest.Append(t, j, journaltest.Note("goes on"))

			// The same where a line names it.
			must(t, os.RemoveAll(path))
			journaltest.Append(t, j, large(1))
			must(t, os.Remove(path))
			must(t, put(path, outside))
			l, err := journaltest.Read(store, "s1", journal.ScanOptions{Blobs: true})
			if err != nil || len(l.Findings) != 1 || l.Findings[0].Reason != schema.BlobMismatch || len(l.Events) != 5 {
				t.Errorf("%d events, %v, %v", len(l.Events), l.Findings, err)
			}
			must(t, os.RemoveAll(path))
			journaltest.Append(t, j, large(1)) // for Verify
		})
	}
	for what, put := range map[string]func(path, outside string) error{
		"a link":                    func(path, outside string) error { return os.Symlink(outside, path) },
		"a file":                    func(path, _ string) error { return os.WriteFile(path, nil, 0o600) },
		"a FIFO":                    func(path, _ string) error { return syscall.Mkfifo(path, 0o600) },
		"a folder others may write": func(path, _ string) error { return errors.Join(os.Mkdir(path, 0o700), os.Chmod(path, 0o777)) },
	} {
		t.Run(what+" in the place of the folder", func(t *testing.T) {
			t.Parallel()
			store := journaltest.Files(t)
			j := journaltest.Open(t, store, "s1")
			outside := t.TempDir()
			must(t, put(blobsOf(store), outside))
			_, err := j.Append(ctx, large(1))
			if !errors.Is(err, schema.UnsafeStatePath) || strings.Contains(err.Error(), outside) {
				t.Errorf("the append gives %v", err)
			}
			if left := names(t, outside); len(left) > 0 {
				t.Errorf("elsewhere is %q", left)
			}
			must(t, os.Remove(blobsOf(store)))
			journaltest.Append(t, j, large(1))
		})
	}
}

// A writer whose session was moved away, or its blobs, tells nobody of a line
// whose blob its readers do not find.
func TestBlobsThatAreMovedAwayAreNotAcknowledged(t *testing.T) {
	for _, what := range []string{"sessions/s1", "sessions/s1/blobs"} {
		store := journaltest.Files(t)
		j, err := journal.Open(ctx, store, "s1", journaltest.Options())
		must(t, err)
		journaltest.Append(t, j, large(1))
		away := filepath.Join(journaltest.TempDir(t), "away")
		must(t, os.Rename(filepath.Join(store.Dir(), what), away))
		must(t, os.Mkdir(filepath.Join(store.Dir(), what), 0o700))
		if _, err := j.Append(ctx, large(2)); err == nil {
			// It has found the folder that is there now.
			if _, err := os.Stat(filepath.Join(store.Dir(), what, blobName(2))); err != nil {
				t.Errorf("%s: acknowledged, and the blob is elsewhere: %v", what, err)
			}
		} else if !errors.Is(err, schema.SessionWriterLost) {
			t.Errorf("%s: %v", what, err)
		}
		must(t, j.Close())
	}
}

func TestWhatADeadWriterLeftOfABlobIsSwept(t *testing.T) {
	store := journaltest.Files(t)
	p := journaltest.StartWriter(t, journaltest.Writer{Dir: store.Dir(), Session: "s1", Entries: 3, Bytes: 300_000, KillAt: journaltest.Sync, KillNth: 5})
	if killed, err := p.Wait(); !killed {
		t.Fatalf("the writer was not killed: %v, %q", err, p.Lines())
	}
	left := names(t, blobsOf(store))
	if len(left) != 1 || !strings.HasPrefix(left[0], ".blob-") {
		t.Fatalf("it has left %q", left)
	}
	fifo := filepath.Join(blobsOf(store), ".blob-fifo")
	must(t, syscall.Mkfifo(fifo, 0o600))
	journaltest.Append(t, journaltest.Open(t, store, "s1"), journaltest.Note("x"))
	if left := names(t, blobsOf(store)); !slices.Equal(left, []string{".blob-fifo"}) {
		t.Errorf("there is still %q", left)
	}
}

// Killed anywhere while it stores blobs, a writer has acknowledged nothing
// whose blob is not whole.
func TestAWriterKilledAtAnyStepOfABlobHasLostNothing(t *testing.T) {
	for _, point := range []string{journaltest.Write, journaltest.Sync} {
		for n := 1; n <= journaltest.Amount(14, 14, 20); n++ {
			t.Run(fmt.Sprint(point, n), func(t *testing.T) {
				t.Parallel()
				store := journaltest.Files(t)
				p := journaltest.StartWriter(t, journaltest.Writer{Dir: store.Dir(), Session: "s1", Entries: 2, Bytes: 300_000, KillAt: point, KillNth: n})
				p.Wait()
				told := p.Acknowledged()
				j, err := journal.Open(ctx, store, "s1", journaltest.Options())
				must(t, err)
				journaltest.Append(t, j, large(1), large(2))
				told = append(told, j.Head())
				must(t, j.Close())
				l := journaltest.Verify(t, store, "s1")
				if gone := l.Missing(told); len(gone) > 0 {
					t.Errorf("acknowledged and not there: %v", gone)
				}
			})
		}
	}
}

// A state that lacks a patch says so, and is the same for every reader.
func TestAPatchThatIsMissingIsAHole(t *testing.T) {
	store := journaltest.NewMemory()
	j, err := journal.Open(ctx, store, "s1", journaltest.Options())
	must(t, err)
	var o, p schema.Object
	var r []journal.Record
	for _, e := range []journal.Entry{journaltest.Call("c1", "shell", `{}`),
		{Type: schema.TypeStateChanged, Data: []byte(`{"patch":{"a":1}}`)},
		{Type: schema.TypeStateChanged, Data: o.Raw("patch", p.Text("b", journaltest.Large(2, 300_000)).Bytes()).Bytes()},
		{Type: schema.TypeStateChanged, Data: []byte(`{"patch":{"c":2}}`)}} {
		r = append(r, journaltest.Append(t, j, e)...)
	}
	must(t, j.Close())
	blobs, err := schema.Refs(r[2].Data)
	must(t, err)
	for what, b := range map[string][]byte{"missing": nil, "no JSON": []byte(`{"b":`), "other JSON": []byte(`{"b":1}`)} {
		store.PutBlob("s1", blobs[0].SHA256, b)
		l, err := journaltest.Read(store, "s1", journal.ScanOptions{Blobs: true})
		must(t, err)
		if len(l.Findings) != 1 || l.FirstError.Line != 6 || len(l.Events) != 6 || l.State.Head.Seq != 6 {
			t.Errorf("%s: %d events, head %v, found %v", what, len(l.Events), l.State.Head, l.Findings)
		}
		if got := working(t, l); got != `{"a":1,"c":2}` {
			t.Errorf("%s: the working state is %.100s", what, got)
		}
		if c := l.State.Call("c1"); c.State != "unknown" { // it may have started in the hole
			t.Errorf("%s: the call is %s", what, c.State)
		}
		if _, err := journal.Open(ctx, store, "s1", journaltest.Options()); !errors.Is(err, schema.CorruptLogLine) {
			t.Errorf("%s: it is opened with %v", what, err)
		}
	}
}

func working(t *testing.T, l *journaltest.Log) string {
	t.Helper()
	b, err := json.Marshal(&l.State.Working)
	must(t, err)
	return string(b)
}

// Verifying gigabytes takes no more memory than verifying a line.
func TestVerifyingABlobTakesLittleMemory(t *testing.T) {
	store := journaltest.Files(t)
	j, err := journal.Open(ctx, store, "s1", journaltest.Options())
	must(t, err)
	for _, n := range []uint64{1, 2} {
		journaltest.Append(t, j, journaltest.Note(journaltest.Large(n, 24<<20)))
	}
	must(t, j.Close())
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	l, err := journaltest.Read(store, "s1", journal.ScanOptions{Blobs: true})
	runtime.ReadMemStats(&after)
	if err != nil || len(l.Findings) > 0 {
		t.Fatalf("%v, %v", l.Findings, err)
	}
	if used := after.TotalAlloc - before.TotalAlloc; used > 12<<20 {
		t.Errorf("it took %d bytes of memory", used)
	}
}

// What a line says of the length of a blob is not believed.
func TestALineThatLiesAboutALengthTakesNoMemory(t *testing.T) {
	store := journaltest.NewMemory()
	j, err := journal.Open(ctx, store, "s1", journaltest.Options())
	must(t, err)
	must(t, j.Close())
	sum := strings.Repeat("a", 64)
	store.PutBlob("s1", sum, []byte("x"))
	for _, n := range []string{"0", "2", "1073741824", "1073741825", "9223372036854775807"} {
		data := []byte(`{"text":{"ref":{"sha256":"` + sum + `","bytes":` + n + `,"media_type":"text/plain"}},"blobs":["/text"]}`)
		if _, err := journal.Whole(ctx, store, "s1", data); !errors.Is(err, schema.CorruptLogLine) {
			t.Errorf("%s bytes: %v", n, err)
		}
	}
}

func TestOpenBlobSaysSoWhenTheBytesAreNotThose(t *testing.T) {
	store := journaltest.NewMemory()
	j, err := journal.Open(ctx, store, "s1", journaltest.Options())
	must(t, err)
	r := journaltest.Append(t, j, large(2))[0]
	must(t, j.Close())
	blobs, err := schema.Refs(r.Data)
	must(t, err)
	read := func(ref schema.Ref) (string, error) {
		b, err := journal.OpenBlob(context.Background(), store, "s1", ref)
		if err != nil {
			return "", err
		}
		defer b.Close()
		all, err := io.ReadAll(b)
		return string(all), err
	}
	ref := blobs[0].Ref
	for _, n := range []int64{ref.Bytes, -1} {
		ref.Bytes = n
		if text, err := read(ref); err != nil || text != journaltest.Large(2, 300_000) {
			t.Errorf("%d bytes: %v", len(text), err)
		}
	}
	store.PutBlob("s1", ref.SHA256, []byte(journaltest.Large(3, 300_000)))
	if _, err := read(ref); schema.AsError(err).Details["reason"] != string(schema.BlobMismatch) {
		t.Errorf("other bytes: %v", err)
	}
	store.PutBlob("s1", ref.SHA256, nil)
	if _, err := read(ref); schema.AsError(err).Details["reason"] != string(schema.BlobMissing) {
		t.Errorf("no bytes: %v", err)
	}
}

// At every step the disk may keep what it likes of what was not synced; a line
// that was acknowledged has its blob.
func TestPowerCutAtEveryStepOfABlob(t *testing.T) {
	journaltest.Either(t, everyStepOfABlob)
}

func everyStepOfABlob(t *testing.T, logged bool) {
	store, faults := journaltest.FaultyEither(journaltest.Files(t), logged)
	r := journaltest.Rand(journaltest.Seed(t), 0)
	var mu sync.Mutex // a commit log passes its points beside all else
	var told []schema.Head
	steps, handed, sum := 0, false, cuts{}
	faults.Each(func(point string) {
		mu.Lock()
		defer mu.Unlock()
		steps++
		disk := faults.Disk(t, store)
		images := []journaltest.Image{disk.Random(r)}
		for _, c := range journaltest.Cuts {
			images = append(images, disk.Cut(c))
		}
		bytes, names := disk.Lost()
		for _, img := range images {
			sum.add(handed, bytes, names)
			store, remove := journal.Store(img.Memory()), func() error { return nil }
			if img.Logged() { // which only files have
				files := img.Files(t)
				store, remove = files, func() error { return errors.Join(files.Close(), os.RemoveAll(files.Dir())) }
			}
			l, err := journaltest.Read(store, "s1", journal.ScanOptions{Blobs: true})
			must(t, remove())
			if err != nil && len(told) > 0 || l.FirstError != nil || len(l.Missing(told)) > 0 {
				t.Errorf("step %d, at %s: %v, %v, acknowledged and not there: %v", steps, point, err, l.FirstError, l.Missing(told))
			}
		}
	})
	var j *journal.Journal
	open := func() {
		var err error
		j, err = journal.Open(ctx, store, "s1", journaltest.Options())
		must(t, err)
		mu.Lock()
		defer mu.Unlock()
		told = append(told, j.Head())
	}
	hand := func(now bool) {
		mu.Lock()
		defer mu.Unlock()
		handed = now
	}
	write := func(entries ...journal.Entry) {
		hand(true)
		records, _ := j.Append(ctx, entries...)
		hand(false)
		mu.Lock()
		defer mu.Unlock()
		for _, r := range records {
			told = append(told, r.Head())
		}
	}
	open()
	write(large(1))
	write(large(2), large(1))
	faults.FailSync(2, journaltest.ErrDisk) // of the blobs' folder: the name was there
	write(large(3))
	write(large(3))
	must(t, j.Close())
	open()
	write(large(3), large(4))
	must(t, j.Close())
	faults.Each(nil)
	mu.Lock()
	defer mu.Unlock()
	if steps < 30 {
		t.Errorf("there were only %d steps", steps)
	}
	journaltest.Tried("power, at every step of blobs, commit log %t: %d steps, %s", logged, steps, sum)
}

// A writer that was forced out may wake up in the middle of a blob, with all
// that can go wrong there; what its successor has stored stays.
func TestAWokenWriterTakesNoBlobFromItsSuccessor(t *testing.T) {
	for name, fault := range map[string]func(*journaltest.Faults, int){
		"nothing": func(*journaltest.Faults, int) {},
		"write":   func(x *journaltest.Faults, n int) { x.FailWrite(1, journaltest.ErrDisk) },
		"sync":    func(x *journaltest.Faults, n int) { x.FailSync(n, journaltest.ErrDisk) },
		"lost":    func(x *journaltest.Faults, n int) { x.LoseSync(n, journaltest.ErrDisk) },
	} {
		for _, damaged := range []bool{false, true} {
			// Where it stands still: before each sync of the blob, which are those of
			// the file and two folders, and for a damaged one of it and its folder.
			for n := range map[bool]int{false: 3, true: 5}[damaged] {
				n++
				t.Run(fmt.Sprintf("%s/%t/%d", name, damaged, n), func(t *testing.T) {
					t.Parallel()
					files := journaltest.Files(t)
					store, faults := journaltest.Faulty(files)
					old, err := journal.Open(ctx, store, "s1", journaltest.Options())
					must(t, err)
					defer old.Close()
					if damaged {
						must(t, os.Mkdir(blobsOf(files), 0o700))
						must(t, os.WriteFile(filepath.Join(blobsOf(files), blobName(2)), []byte("damaged"), 0o600))
					}
					next := func() {
						j := journaltest.Force(t, files, "s1")
						journaltest.Append(t, j, large(2))
						journaltest.Verify(t, files, "s1")
					}
					once := false
					faults.At(journaltest.Sync, n, func() { next(); once = true })
					fault(faults, n)
					if _, err := old.Append(ctx, large(2)); once && err == nil {
						t.Error("the woken writer has acknowledged something")
					}
					if l := journaltest.Verify(t, files, "s1"); once && l.Events[len(l.Events)-1].Type != schema.TypeNote {
						t.Error("the successor's note is gone")
					}
				})
			}
		}
	}
}
