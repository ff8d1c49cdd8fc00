package journal_test

import (
	"archive/tar"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"github.com/klauspost/compress/zstd"

	"steno/journal"
	"steno/journal/journaltest"
	"steno/schema"
)

// A forger makes archives as journal does, and other ones.
type forger struct {
	t     testing.TB
	b     []byte
	table []byte
}

var forge, _ = zstd.NewWriter(nil, zstd.WithEncoderConcurrency(1)) // errs only for options

// frame adds a frame of these bytes.
func (f *forger) frame(b []byte) *forger { return f.raw(forge.EncodeAll(b, nil), len(b)) }

// raw adds a frame as it is, which is said to hold n bytes.
func (f *forger) raw(b []byte, n int) *forger {
	f.table = binary.LittleEndian.AppendUint32(f.table, uint32(len(b)))
	f.table = binary.LittleEndian.AppendUint32(f.table, uint32(n))
	f.b = append(f.b, b...)
	return f
}

func (f *forger) headers(all ...*tar.Header) *forger {
	f.t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, h := range all {
		if err := w.WriteHeader(h); err != nil {
			f.t.Fatal(err)
		}
	}
	return f.frame(b.Bytes())
}

func (f *forger) begin(mark, session string) *forger {
	return f.headers(&tar.Header{Typeflag: tar.TypeXGlobalHeader, PAXRecords: map[string]string{"comment": mark}},
		&tar.Header{Typeflag: tar.TypeDir, Name: session + "/"})
}

func (f *forger) folder(name string) *forger {
	return f.headers(&tar.Header{Typeflag: tar.TypeDir, Name: name})
}

func (f *forger) file(name string, b []byte) *forger {
	f.headers(&tar.Header{Typeflag: tar.TypeReg, Name: name, Size: int64(len(b))})
	for len(b) > 0 {
		n := min(len(b), 1<<20)
		part := append([]byte(nil), b[:n]...)
		f.frame(append(part, make([]byte, (512-n%512)%512)...))
		b = b[n:]
	}
	return f
}

// end is the archive, with as many frames as it says.
func (f *forger) end(frames int) []byte {
	f.frame(make([]byte, 1024))
	if frames == 0 {
		frames = len(f.table) / 8
	}
	b := binary.LittleEndian.AppendUint32(f.b, 0x184D2A5E)
	b = binary.LittleEndian.AppendUint32(b, uint32(len(f.table)+9))
	b = append(b, f.table...)
	b = binary.LittleEndian.AppendUint32(b, uint32(frames))
	return binary.LittleEndian.AppendUint32(append(b, 0), 0x8F92EAB1)
}

// What is no sound archive of a session is named, whatever it is; the newest
// segment is read, nothing hangs, and no memory is taken for what it promises.
func TestAnArchiveThatIsNoneIsNamed(t *testing.T) {
	t.Parallel()
	const mark = "steno-archive 1"
	store := journaltest.Files(t)
	grown(t, store, "s1", 2)
	first, err := os.ReadFile(filepath.Join(folder(store, "s1"), "000001.jsonl"))
	must(t, err)
	second, err := os.ReadFile(filepath.Join(folder(store, "s1"), "000002.jsonl"))
	must(t, err)
	pack(t, store, "s1")
	sound, err := os.ReadFile(archive(store, "s1"))
	must(t, err)
	blob := strings.Repeat("0", 64)
	begun := func() *forger { return (&forger{t: t}).begin(mark, "s1") }
	window := func(log byte) []byte { // a frame that asks for a window of 1<<log bytes
		return append([]byte{0x28, 0xB5, 0x2F, 0xFD, 0x00, (log - 10) << 3}, 0x03, 0x80, 0x00, 'x') // RLE, last, 16 KiB
	}
	write := func(b []byte) func(path string) error {
		return func(path string) error { return os.WriteFile(path, b, 0o600) }
	}
	cut := "its end is missing or damaged"
	notBuilt, alien := "it is not built as an archive is", "it holds something that is no segment"
	for name, c := range map[string]struct {
		put  func(path string) error
		want string
		kind schema.Kind
	}{
		"nothing":                 {write(nil), "it is no zstd file", ""},
		"text":                    {write([]byte("hello, this is a text, and no archive")), "it is no zstd file", ""},
		"gzip":                    {write([]byte("\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\x03")), "it is no zstd file", ""},
		"cut in the middle":       {write(sound[:len(sound)/2]), cut, ""},
		"one byte short":          {write(sound[:len(sound)-1]), cut, ""},
		"one byte more":           {write(append(bytes.Clone(sound), 0)), cut, ""},
		"without its beginning":   {write(sound[100:]), "", ""},
		"a hole behind it":        {func(p string) error { return errors.Join(os.WriteFile(p, sound, 0o600), os.Truncate(p, 1<<40)) }, cut, ""},
		"tar and zstd of others":  {write(forge.EncodeAll(make([]byte, 10240), nil)), cut, ""},
		"of another session":      {write((&forger{t: t}).begin(mark, "s2").file("s2/000001.jsonl", first).end(0)), "it is not of this session", ""},
		"files of another":        {write(begun().file("s2/000001.jsonl", first).end(0)), alien, ""},
		"of a newer version":      {write((&forger{t: t}).begin("steno-archive 2", "s1").end(0)), "is of a newer version", schema.UnsupportedSchemaVersion},
		"of no version":           {write((&forger{t: t}).begin("steno-archive x", "s1").end(0)), "it is none of ours", ""},
		"without a mark":          {write((&forger{t: t}).folder("s1/").end(0)), "it is none of ours", ""},
		"a path upwards":          {write(begun().file("s1/../000001.jsonl", first).end(0)), alien, ""},
		"an absolute path":        {write(begun().file("/s1/000001.jsonl", first).end(0)), alien, ""},
		"a link":                  {write(begun().headers(&tar.Header{Typeflag: tar.TypeSymlink, Name: "s1/000001.jsonl", Linkname: "/etc/passwd"}).end(0)), alien, ""},
		"a hard link":             {write(begun().headers(&tar.Header{Typeflag: tar.TypeLink, Name: "s1/000001.jsonl", Linkname: "s1/000002.jsonl"}).end(0)), alien, ""},
		"a device":                {write(begun().headers(&tar.Header{Typeflag: tar.TypeBlock, Name: "s1/000001.jsonl", Devmajor: 8}).end(0)), alien, ""},
		"a FIFO":                  {write(begun().headers(&tar.Header{Typeflag: tar.TypeFifo, Name: "s1/000001.jsonl"}).end(0)), alien, ""},
		"a folder":                {write(begun().folder("s1/000001.jsonl/").end(0)), alien, ""},
		"a segment twice":         {write(begun().file("s1/000001.jsonl", first).file("s1/000001.jsonl", first).end(0)), alien, ""},
		"segments out of order":   {write(begun().file("s1/000002.jsonl", second).file("s1/000001.jsonl", first).end(0)), alien, ""},
		"another spelling":        {write(begun().file("s1/1.jsonl", first).end(0)), alien, ""},
		"segment 0":               {write(begun().file("s1/000000.jsonl", first).end(0)), alien, ""},
		"a file that is none":     {write(begun().file("s1/readme", first).end(0)), alien, ""},
		"a blob of another name":  {write(begun().folder("s1/blobs/").file("s1/blobs/x", first).end(0)), alien, ""},
		"a blob without folder":   {write(begun().file("s1/blobs/"+blob, first).end(0)), alien, ""},
		"a blob twice":            {write(begun().folder("s1/blobs/").file("s1/blobs/"+blob, nil).file("s1/blobs/"+blob, nil).end(0)), alien, ""},
		"a segment behind blobs":  {write(begun().folder("s1/blobs/").file("s1/000001.jsonl", first).end(0)), alien, ""},
		"an extended attribute":   {write(begun().headers(&tar.Header{Typeflag: tar.TypeReg, Name: "s1/000001.jsonl", PAXRecords: map[string]string{"SCHILY.xattr.user.x": "y"}}).end(0)), notBuilt, ""},
		"two headers in a frame":  {write(begun().headers(&tar.Header{Typeflag: tar.TypeReg, Name: "s1/000001.jsonl"}, &tar.Header{Typeflag: tar.TypeReg, Name: "s1/000002.jsonl"}).end(0)), notBuilt, ""},
		"more than the header":    {write(begun().headers(&tar.Header{Typeflag: tar.TypeReg, Name: "s1/000001.jsonl", Size: 1 << 30}).end(0)), notBuilt, ""},
		"more than all archives":  {write(begun().headers(&tar.Header{Typeflag: tar.TypeReg, Name: "s1/000001.jsonl", Size: 1 << 50}).end(0)), alien, ""},
		"less than the header":    {write(begun().headers(&tar.Header{Typeflag: tar.TypeReg, Name: "s1/000001.jsonl", Size: 1000}).frame(first[:512]).end(0)), notBuilt, ""},
		"without an end":          {write((&forger{t: t}).begin(mark, "s1").file("s1/000001.jsonl", first[:1024]).end(0)[:0]), "it is no zstd file", ""},
		"a header too long":       {write(begun().frame(make([]byte, 16<<10)).end(0)), notBuilt, ""},
		"a header of noise":       {write(begun().frame(bytes.Repeat([]byte{7}, 512)).end(0)), "a header in it", ""},
		"a frame beyond a MiB":    {write(begun().headers(&tar.Header{Typeflag: tar.TypeReg, Name: "s1/000001.jsonl", Size: 2 << 20}).frame(make([]byte, 2<<20)).end(0)), notBuilt, ""},
		"a header that unpacks":   {write(begun().raw(forge.EncodeAll(make([]byte, 1<<30), nil), 512).end(0)), "a header in it is damaged", ""},
		"a window of a gigabyte":  {write(begun().raw(window(30), 512).end(0)), "a header in it is damaged", ""},
		"a frame of no length":    {write(begun().raw(nil, 512).end(0)), notBuilt, ""},
		"fewer frames than said":  {write(begun().end(1 << 17)), cut, ""},
		"four billion frames":     {write(begun().end(-1)), cut, ""},
		"more frames than may be": {many(t, 1<<18+1), "the limit is 262144", ""},
		"a symbolic link":         {func(p string) error { return os.Symlink("/etc/passwd", p) }, "it is no regular file", ""},
		"a hard link to it":       {func(p string) error { return errors.Join(os.WriteFile(p+"2", sound, 0o600), os.Link(p+"2", p)) }, "it has a second name", ""},
		"a FIFO in its place":     {func(p string) error { return syscall.Mkfifo(p, 0o600) }, "it is no regular file", ""},
		"a folder in its place":   {func(p string) error { return os.Mkdir(p, 0o700) }, "it is no regular file", ""},
		"one that others write":   {func(p string) error { return errors.Join(os.WriteFile(p, sound, 0o600), os.Chmod(p, 0o666)) }, "it may be written by others", ""},
		"none":                    {func(string) error { return nil }, "is not there", ""},
	} {
		t.Run(name, func(t *testing.T) {
			copied := journaltest.FilesIn(t, filepath.Join(t.TempDir(), "store"))
			must(t, os.CopyFS(folder(copied, "s1"), os.DirFS(folder(store, "s1"))))
			must(t, os.Chmod(folder(copied, "s1"), 0o700))
			must(t, os.Chmod(filepath.Join(folder(copied, "s1"), "000003.jsonl"), 0o600))
			must(t, os.Mkdir(filepath.Join(copied.Dir(), "archive"), 0o700))
			must(t, c.put(archive(copied, "s1")))
			was := memory()
			l, err := journaltest.Read(copied, "s1", journal.ScanOptions{Blobs: true})
			if err != nil {
				t.Fatalf("it is read with %v", err)
			}
			if got := memory() - was; got > 64<<20 {
				t.Errorf("reading took %d bytes of memory", got)
			}
			if len(l.Events) != 2 || l.Head.Epoch != 3 || l.FirstError == nil {
				t.Fatalf("%d events, head %v, first error %v", len(l.Events), l.Head, l.FirstError)
			}
			f := *l.FirstError
			kind, reason := c.kind, schema.Reason("")
			if kind == "" {
				kind, reason = schema.CorruptLogLine, schema.SegmentMissing
			}
			if f.Kind != kind || f.Reason != reason || f.Segment != 2 || f.NextGoodSeq != l.Events[0].Seq || !strings.Contains(f.Detail, c.want) {
				t.Errorf("found %+v, want %q", f, c.want)
			}
			// Nobody writes over it, packs it away or gives it to another history.
			if _, err := journal.Open(ctx, copied, "s1", journaltest.Options()); !errors.Is(err, kind) {
				t.Errorf("it is opened with %v", err)
			}
			if _, err := copied.Pack(ctx, "s1", packOptions()); !errors.Is(err, kind) {
				t.Errorf("it is packed with %v", err)
			}
			must(t, os.RemoveAll(archive(copied, "s1")))
			must(t, os.WriteFile(archive(copied, "s1"), sound, 0o600))
			journaltest.Verify(t, copied, "s1")
			if name != "none" {
				nothingLeft(t, c.put, sound, 0, kind, reason, c.want)
			}
			nothingLeft(t, c.put, sound, 3, kind, reason, c.want)
		})
	}
}

// nothingLeft is the same for a session that has no segment in its folder, with
// the mark that an export leaves, or none: it is not taken for one that never
// had any.
func nothingLeft(t *testing.T, put func(path string) error, sound []byte, mark uint64, kind schema.Kind, reason schema.Reason, want string) {
	t.Helper()
	store := journaltest.FilesIn(t, filepath.Join(t.TempDir(), "store"))
	must(t, os.Mkdir(folder(store, "s1"), 0o700))
	must(t, os.Mkdir(filepath.Join(store.Dir(), "archive"), 0o700))
	if mark > 0 {
		must(t, os.WriteFile(filepath.Join(folder(store, "s1"), fmt.Sprintf("%06d.archived", mark)), nil, 0o600))
	}
	must(t, put(archive(store, "s1")))
	before := contents(t, folder(store, "s1"))
	l, err := journaltest.Read(store, "s1", journal.ScanOptions{Blobs: true})
	if err != nil || len(l.Events) > 0 || len(l.Findings) != 1 || l.FirstError == nil {
		t.Fatalf("mark %d: %d events, findings %v, %v", mark, len(l.Events), l.Findings, err)
	}
	if f := *l.FirstError; f.Kind != kind || f.Reason != reason || f.Segment != mark || f.Line != 0 || !strings.Contains(f.Detail, want) {
		t.Errorf("mark %d: found %+v, want %q", mark, f, want)
	}
	options := journaltest.Options()
	for _, options.Create = range []bool{false, true} {
		if _, err := journal.Open(ctx, store, "s1", options); !errors.Is(err, kind) {
			t.Errorf("mark %d: it is opened with %v", mark, err)
		}
	}
	r, err := journal.Repair(ctx, store, "s1", journal.RepairOptions{Holder: options.Holder, NewState: packOptions().NewState})
	if !errors.Is(err, kind) || r.Epoch > 0 || kind == schema.CorruptLogLine && !strings.Contains(fmt.Sprint(schema.AsError(err).Details["next"]), "restore archive/s1.tar.zst") {
		t.Errorf("mark %d: it is repaired with %+v, %v", mark, r, err)
	}
	if _, err := store.Pack(ctx, "s1", packOptions()); !errors.Is(err, kind) {
		t.Errorf("mark %d: it is packed with %v", mark, err)
	}
	if all, err := export(t, store, filepath.Join(t.TempDir(), "copy")); err != nil || all["s1"].OK || all["s1"].Size > 0 || all["s1"].Error.Kind != kind {
		t.Errorf("mark %d: it is exported: %+v, %v", mark, all["s1"], err)
	}
	same(t, contents(t, folder(store, "s1")), before)
	// A claim that nobody sealed changes nothing of that.
	claimAndDie(t, store, "s1", 4)
	if l, err := journaltest.Read(store, "s1", journal.ScanOptions{}); err != nil || l.FirstError == nil || l.FirstError.Reason != reason {
		t.Errorf("mark %d: with a claim above, first error %v, %v", mark, l.FirstError, err)
	}
	if _, err := journal.Open(ctx, store, "s1", options); !errors.Is(err, kind) {
		t.Errorf("mark %d: with a claim above it is opened with %v", mark, err)
	}
	must(t, os.RemoveAll(archive(store, "s1")))
	must(t, os.WriteFile(archive(store, "s1"), sound, 0o600))
	if l := journaltest.Verify(t, store, "s1"); len(l.Events) == 0 {
		t.Error("with a sound archive it has no events")
	}
}

// An export notes what it has put into an archive: what is lost with it, or put
// back from an older one, is noticed, and a writer goes on from what is there.
func TestAnExportKnowsWhatIsInItsArchives(t *testing.T) {
	t.Parallel()
	store := journaltest.Files(t)
	grown(t, store, "s1", 1)
	older, err := os.ReadFile(archive(exported(t, store), "s1"))
	must(t, err)
	grown(t, store, "s1", 2)
	copied := exported(t, store)
	if have := contents(t, folder(copied, "s1")); len(have) != 1 || have["000003.archived"] != "" {
		t.Errorf("the folder has %q", keys(have))
	}
	sound, err := os.ReadFile(archive(copied, "s1"))
	must(t, err)
	must(t, os.WriteFile(archive(copied, "s1"), older, 0o600))
	l, err := journaltest.Read(copied, "s1", journal.ScanOptions{})
	must(t, err)
	if f := l.FirstError; f == nil || f.Reason != schema.SegmentMissing || f.Segment != 3 || f.LastGoodSeq != l.Head.Seq || l.Head.Epoch != 1 {
		t.Errorf("of an older archive: %+v", f)
	}
	if _, err := journal.Open(ctx, copied, "s1", journaltest.Options()); !errors.Is(err, schema.CorruptLogLine) {
		t.Errorf("it is opened with %v", err)
	}
	// Unpacked it is in order without the archive, and so is what goes on.
	must(t, os.WriteFile(archive(copied, "s1"), sound, 0o600))
	for name, b := range unpacked(t, archive(copied, "s1")) {
		path := filepath.Join(folder(copied, "s1"), name)
		must(t, os.MkdirAll(filepath.Dir(path), 0o700))
		must(t, os.WriteFile(path, []byte(b), 0o600))
	}
	must(t, os.Remove(archive(copied, "s1")))
	journaltest.Verify(t, copied, "s1")
	grown(t, copied, "s1", 1)
	journaltest.Verify(t, copied, "s1")
	pack(t, copied, "s1")
	if have := contents(t, folder(copied, "s1")); len(have) != 1 || have["000005.jsonl"] == "" {
		t.Errorf("packed, the folder has %q", keys(have))
	}
	journaltest.Verify(t, copied, "s1")
	_, err = copied.Remove(ctx, "s1", packOptions())
	must(t, err)
	gone(t, copied, "s1")
	if kept := contents(t, folder(exported(t, copied), "s1")); len(kept) != 1 {
		t.Errorf("a removed session is exported as %q", keys(kept))
	}
}

// many is an archive with so many frames, written without much memory.
func many(t *testing.T, n int) func(string) error {
	return func(path string) error {
		f := (&forger{t: t}).begin("steno-archive 1", "s1")
		one := forge.EncodeAll(make([]byte, 512), nil)
		f.b = append(f.b, bytes.Repeat(one, n-2)...)
		entry := binary.LittleEndian.AppendUint32(binary.LittleEndian.AppendUint32(nil, uint32(len(one))), 512)
		f.table = append(f.table, bytes.Repeat(entry, n-2)...)
		return os.WriteFile(path, f.end(0), 0o600)
	}
}

func memory() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// Every bit of an archive: what is changed by that is found, and only what
// stands in the same frame is lost with it. So it is with the newest segment in
// the folder, as pack leaves it, and without any, as in an export.
func TestEveryFlippedBitOfAnArchiveIsFound(t *testing.T) {
	t.Parallel()
	store := journaltest.Files(t)
	grown(t, store, "s1", 2)
	pack(t, store, "s1")
	t.Run("packed", func(t *testing.T) { everyBitOfAnArchive(t, store, 1) })
	t.Run("exported", func(t *testing.T) { everyBitOfAnArchive(t, exported(t, store), 8) })
	without := exported(t, store)
	must(t, os.Remove(filepath.Join(folder(without, "s1"), "000003.archived")))
	t.Run("alone", func(t *testing.T) { everyBitOfAnArchive(t, without, 8) })
}

// exported is an export of a store, as a store.
func exported(t *testing.T, store *journal.Files) *journal.Files {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "copy")
	_, err := export(t, store, dir)
	must(t, err)
	copied, err := journal.OpenFiles(dir, true)
	must(t, err)
	t.Cleanup(func() { copied.Close() })
	return copied
}

// everyBitOfAnArchive tries its bits, one in rare of them but for the table.
func everyBitOfAnArchive(t *testing.T, store *journal.Files, rare int) {
	want := journaltest.Verify(t, store, "s1")
	sound, err := os.ReadFile(archive(store, "s1"))
	must(t, err)
	path := archive(store, "s1")
	step := journaltest.Amount(4001, 401, 29) // in bits
	flipped, harmless := 0, 0
	for bit, by := 0, 0; bit < 8*len(sound); bit += by {
		if by = rare * step; bit > 8*(len(sound)-1024) {
			by = step / 40
		}
		b := bytes.Clone(sound)
		b[bit/8] ^= 1 << (bit % 8)
		must(t, os.WriteFile(path+".new", b, 0o600))
		must(t, os.Rename(path+".new", path))
		l, err := journaltest.Read(store, "s1", journal.ScanOptions{Blobs: true})
		if err != nil {
			t.Fatalf("bit %d: %v", bit, err)
		}
		flipped++
		if l.FirstError == nil {
			harmless++ // in a copy of the newest segment, say, which is not read
			if lines(t, l) != lines(t, want) {
				t.Errorf("bit %d: other events, and nothing is found", bit)
			}
			continue
		}
		if l.FirstError.Reason != schema.BlobMismatch { // who opens it reads no blobs
			if _, err := journal.Open(ctx, store, "s1", journaltest.Options()); err == nil {
				t.Fatalf("bit %d: it is opened", bit)
			}
		}
	}
	must(t, os.WriteFile(path, sound, 0o600))
	if flipped < 500/rare || harmless > flipped/4 {
		t.Errorf("of %d bits %d change nothing", flipped, harmless)
	}
	journaltest.Tried("damage, bits of an archive: %d flipped, of which %d change nothing", flipped, harmless)
}

// A frame that is damaged takes its MiB, and no line behind or before it.
func TestADamagedFrameHidesNoOtherLine(t *testing.T) {
	t.Parallel()
	store := journaltest.Files(t)
	j, err := journal.Open(ctx, store, "s1", journaltest.Options())
	must(t, err)
	for i := range 40 { // some four MiB
		journaltest.Append(t, j, journaltest.Note(fmt.Sprint(i, " ", journaltest.Large(1, 100_000))))
	}
	must(t, j.Release(ctx, "done"))
	pack(t, store, "s1")
	whole := journaltest.Verify(t, store, "s1")
	b, err := os.ReadFile(archive(store, "s1"))
	must(t, err)
	b[len(b)/2] ^= 1
	must(t, os.WriteFile(archive(store, "s1"), b, 0o600))
	l, err := journaltest.Read(store, "s1", journal.ScanOptions{})
	must(t, err)
	lost := len(whole.Events) - len(l.Events)
	if lost < 10 || lost > 13 || l.FirstError == nil || l.FirstError.Segment != 1 || l.Head != whole.Head {
		t.Errorf("%d events are lost; first error %v", lost, l.FirstError)
	}
	for _, f := range l.Findings {
		if f.Segment != 1 || f.Reason != schema.OverLimit && f.Reason != schema.NULBytes {
			t.Errorf("found %v", f)
		}
	}
	// It can be repaired, and is sound again when a sound copy is put back.
	r, err := journal.Repair(ctx, store, "s1", journal.RepairOptions{Holder: packOptions().Holder, NewState: packOptions().NewState})
	if err != nil || r.Epoch == 0 {
		t.Fatal(r, err)
	}
	journaltest.Verify(t, store, "s1")
	b[len(b)/2] ^= 1
	must(t, os.WriteFile(archive(store, "s1"), b, 0o600))
	if l := journaltest.Verify(t, store, "s1"); len(l.Events) != len(whole.Events)+2 {
		t.Errorf("%d events, where there were %d", len(l.Events), len(whole.Events))
	}
}
