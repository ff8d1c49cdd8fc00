package main

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/klauspost/compress/zstd"
	"github.com/oklog/ulid/v2"

	"steno/journal"
	"steno/journal/journaltest"
	"steno/lease"
	"steno/schema"
)

// hugeOr is 10 GiB with STENO_TEST_HUGE, which takes minutes and that much of
// the disk, and otherwise n.
func hugeOr(n int64) int64 {
	if os.Getenv("STENO_TEST_HUGE") != "" {
		return 10 << 30
	}
	return n
}

// small is steno, whatever its exit code, that must do with 64 MB of memory.
func small(t *testing.T, dir string, args ...string) string {
	t.Helper()
	enough := int64(64 << 20)
	if info, ok := debug.ReadBuildInfo(); ok && slices.Contains(info.Settings, debug.BuildSetting{Key: "-race", Value: "true"}) {
		enough = 1 << 30 // the detector keeps books of its own
	}
	// Ten gigabytes take minutes on a machine that has other things to do.
	ctx, cancel := context.WithTimeout(t.Context(), 5*patience*time.Duration(1+hugeOr(0)>>30))
	defer cancel()
	used := filepath.Join(t.TempDir(), "used")
	cmd := exec.CommandContext(ctx, "measured", append([]string{used}, args...)...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "STENO_DIR=")
	out, _ := cmd.Output()
	b, err := os.ReadFile(used)
	must(t, err)
	if n, err := strconv.ParseInt(string(b), 10, 64); err != nil || n > enough {
		t.Errorf("steno %q took %s bytes of memory, %v", args, b, err)
	} else {
		t.Logf("steno %q took %d bytes of memory", args, n)
	}
	return string(out)
}

// measured FILE ARG... is steno ARG..., and leaves in FILE how much memory that
// took at most. What the kernel says of a process counts the memory of whoever
// started it, before its exec: this process starts it, which is small.
func measured() {
	cmd := exec.Command("steno", os.Args[2:]...)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	err := cmd.Run()
	if cmd.ProcessState == nil || cmd.ProcessState.ExitCode() < 0 {
		fmt.Fprintln(os.Stderr, "it did not end by itself:", err)
		os.Exit(1)
	}
	used := cmd.ProcessState.SysUsage().(*syscall.Rusage).Maxrss << 10
	if err := os.WriteFile(os.Args[1], []byte(fmt.Sprint(used)), 0o600); err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
}

// Lists read the beginning and the end of a newest segment, whatever lies
// between: nobody could wait for them to read a terabyte.
func TestAListDoesNotReadTheLogs(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	good(t, dir, "run", os.DevNull, "--session", "s1")
	path := filepath.Join(dir, ".steno", "sessions", "s1", "000001.jsonl")
	if err := os.Truncate(path, 1<<40); errors.Is(err, syscall.EFBIG) || errors.Is(err, syscall.EINVAL) {
		must(t, os.Truncate(path, 1<<34)) // the most of some file systems
	} else {
		must(t, err)
	}
	for _, args := range [][]string{{"session", "ls"}, {"lease", "ls"}, {"lease", "show", "s1"}} {
		if out := small(t, dir, args...); !strings.Contains(out, "stale") {
			t.Errorf("steno %q says %s", args, out)
		}
	}
}

// A list is streamed too, in the order of the ids.
func TestAListOfManySessionsNeedsLittleMemory(t *testing.T) {
	t.Parallel()
	const sessions = 20_000
	dir := t.TempDir()
	good(t, dir, "run", os.DevNull, "--session", "a")
	want := []string{"a"}
	for n := range sessions {
		id := fmt.Sprintf("s%07d", n)
		must(t, os.Mkdir(filepath.Join(dir, ".steno", "sessions", id), 0o700))
		want = append(want, id)
	}
	for _, args := range [][]string{{"session", "ls"}, {"session", "ls", "--ids"}, {"lease", "ls"}} {
		lines := strings.Split(strings.TrimSuffix(small(t, dir, args...), "\n"), "\n")
		if args[len(args)-1] != "--ids" { // which is for loops, and has no heading
			if !strings.HasPrefix(lines[0], "SESSION") {
				t.Errorf("steno %q begins with %q", args, lines[0])
			}
			lines = lines[1:]
		}
		for i, line := range lines {
			lines[i], _, _ = strings.Cut(line, " ")
		}
		if !slices.Equal(lines, want) {
			t.Errorf("steno %q gives %d sessions, or in another order", args, len(lines))
		}
	}
	var rows []struct{ Session string }
	must(t, json.Unmarshal([]byte(small(t, dir, "session", "ls", "-o", "json")), &rows))
	if len(rows) != len(want) || rows[sessions].Session != want[sessions] {
		t.Errorf("as JSON there are %d sessions", len(rows))
	}
}

// A long log is streamed; who goes on with it keeps what its events amount to.
func TestALongLogNeedsLittleMemory(t *testing.T) {
	t.Parallel()
	const batches, calls = 60, 250 // of four events
	dir := t.TempDir()
	store := journaltest.FilesIn(t, filepath.Join(dir, ".steno"))
	j, err := journal.Open(t.Context(), store, "s1", journaltest.Options())
	must(t, err)
	output := `"` + strings.Repeat("o", 600) + `"`
	for b := range batches {
		var entries []journal.Entry
		for n := range calls {
			id := fmt.Sprintf("c%d.%d", b, n)
			entries = append(entries, journaltest.Call(id, "shell", `{}`), journaltest.Started(id, 1),
				journaltest.Result(id, 1, output), journaltest.Note(id))
		}
		journaltest.Append(t, j, entries...)
	}
	must(t, j.Close())
	if out := small(t, dir, "verify", "s1", "-o", "json"); pick(t, out, "/events") != float64(4*batches*calls+2) || pick(t, out, "/ok") != true {
		t.Errorf("verify says %s", out)
	}
	if out := small(t, dir, "session", "show", "s1", "-o", "jsonl"); strings.Count(out, "\n") != 4*batches*calls+2 {
		t.Errorf("show gives %d lines", strings.Count(out, "\n"))
	}
	for format, of := range map[string]string{"md": "\n### #", "html": "<article ", "jsonl": "\n", "bundle": `"type":"tool_started","data":{"call_id"`} {
		small(t, dir, "export", "s1", "--format", format, "--to", format)
		b, err := os.ReadFile(filepath.Join(dir, format))
		must(t, err)
		want := 4*batches*calls + 2
		if format == "md" {
			want-- // the epoch has another heading
		} else if format == "bundle" {
			want = batches * calls
		}
		if n := bytes.Count(b, []byte(of)); n != want {
			t.Errorf("as %s it has %d pieces, want %d", format, n, want)
		}
		must(t, os.Remove(filepath.Join(dir, format)))
	}
	if out := small(t, dir, "session", "show", "s1", "--timeline", "-o", "jsonl"); strings.Count(out, "\n") != batches*calls {
		t.Errorf("the timeline has %d calls", strings.Count(out, "\n"))
	}
	if out := small(t, dir, "search", "ooo", "-o", "jsonl"); strings.Count(out, "\n") != batches*calls {
		t.Errorf("search gives %d lines", strings.Count(out, "\n"))
	}
	good(t, dir, "run", os.DevNull, "--session", "s1")
	if out := good(t, dir, "lease", "show", "s1", "-o", "json"); pick(t, out, "/epoch") != 2.0 {
		t.Errorf("nobody went on with it: %s", out)
	}
	// Packed it needs no more, and neither does packing it.
	if out := small(t, dir, "session", "pack", "s1", "-o", "json"); pick(t, out, "/applied") != true {
		t.Errorf("pack says %s", out)
	}
	if out := small(t, dir, "verify", "s1", "-o", "json"); pick(t, out, "/events") != float64(4*batches*calls+6) || pick(t, out, "/ok") != true {
		t.Errorf("verify says %s", out)
	}
}

// A segment of any size is read in the memory of a few lines.
func TestAHugeSegmentNeedsLittleMemory(t *testing.T) {
	t.Parallel()
	huge := hugeOr(1 << 30)
	line := func(f *os.File, n int) error { // of so many letters
		b := bytes.Repeat([]byte("z"), 1<<20)
		for n > 0 {
			k, err := f.Write(b[:min(n, len(b))])
			if err != nil {
				return err
			}
			n -= k
		}
		_, err := f.WriteString("\n")
		return err
	}
	for _, c := range []struct {
		name string
		put  func(f *os.File) error
		want []string
	}{
		{"25 MB in a line", func(f *os.File) error { return line(f, 25_000_000) }, []string{`"over_limit"`, `"line":4`, `"bytes":25000000`}},
		{"a hole behind the last line", func(f *os.File) error {
			fi, err := f.Stat()
			if err == nil {
				err = f.Truncate(fi.Size() + huge)
			}
			return err
		}, []string{`"torn_tail"`, `"line":4`, fmt.Sprintf(`"bytes":%d`, huge)}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			good(t, dir, "run", os.DevNull, "--session", "s1")
			path := filepath.Join(dir, ".steno", "sessions", "s1", "000001.jsonl")
			// Without its release, so that what follows may be a tail.
			b, err := os.ReadFile(path)
			must(t, err)
			lines := bytes.SplitAfter(b, []byte("\n"))
			must(t, os.WriteFile(path, bytes.Join(lines[:3], nil), 0o600))
			f, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND, 0)
			must(t, err)
			must(t, c.put(f))
			must(t, f.Close())
			out := small(t, dir, "verify", "s1", "-o", "json")
			for _, w := range c.want {
				if !strings.Contains(out, w) {
					t.Errorf("there is no %s in %s", w, out)
				}
			}
		})
	}
}

// A long is a sound log of any length, written without keeping it in memory.
type long struct {
	t     *testing.T
	dir   string
	file  *os.File
	out   *bufio.Writer
	last  schema.Event
	size  int64 // of the segment
	total int64 // of all
	buf   []byte
}

func newLong(t *testing.T) *long {
	l := &long{t: t, dir: t.TempDir()}
	j, err := journal.Open(t.Context(), journaltest.FilesIn(t, filepath.Join(l.dir, ".steno")), "s1", journaltest.Options())
	must(t, err)
	h := j.Head()
	must(t, j.Close())
	l.last = schema.Event{Session: "s1", Seq: h.Seq, Epoch: h.Epoch, Sum: h.Sum, Time: time.Now().UTC()}
	l.open(1, os.O_APPEND)
	fi, err := l.file.Stat()
	must(t, err)
	l.size = fi.Size()
	return l
}

func (l *long) path(name ...string) string {
	return filepath.Join(append([]string{l.dir, ".steno", "sessions", "s1"}, name...)...)
}

func (l *long) open(epoch uint64, flag int) {
	var err error
	l.file, err = os.OpenFile(l.path(fmt.Sprintf("%06d.jsonl", epoch)), os.O_WRONLY|flag, 0o600)
	must(l.t, err)
	l.out = bufio.NewWriterSize(l.file, 1<<20)
}

func (l *long) close() {
	must(l.t, l.out.Flush())
	must(l.t, l.file.Close())
}

func (l *long) write(line []byte) {
	_, err := l.out.Write(line)
	must(l.t, err)
	l.size += int64(len(line))
	l.total += int64(len(line))
}

func (l *long) add(typ string, data []byte) {
	prev := l.last
	l.last = schema.Event{Session: "s1", Seq: prev.Seq + 1, Epoch: prev.Epoch, ID: ulid.ULID{1}, Time: prev.Time, Type: typ, Data: data, Dur: prev.Seq, Prev: prev.Sum}
	l.buf = l.last.Append(l.buf[:0])
	l.write(l.buf)
}

// roll goes on in the next segment.
func (l *long) roll(program string) {
	l.close()
	size := l.size
	pin := &schema.Previous{Epoch: l.last.Epoch, Len: &size, Size: &size, Seq: l.last.Seq, Sum: l.last.Sum}
	l.last.Epoch, l.size = l.last.Epoch+1, 0
	l.open(l.last.Epoch, os.O_CREATE|os.O_EXCL)
	holder := lease.Self(program)
	claim := schema.Claim{Session: "s1", Epoch: l.last.Epoch, Time: l.last.Time, Holder: holder}
	line, err := claim.Append(nil)
	must(l.t, err)
	l.write(line)
	seal := schema.Seal{Claim: claim.Sum.String(), How: schema.HowTakeover, Previous: pin,
		Evidence: &schema.Evidence{State: "stale", Reason: program}}
	l.add(schema.TypeWriterOpened, seal.Data())
}

// A sound log of any length is read in 64 MB, whatever it is made of, but for
// some 40 bytes for each call.
func TestASoundLogNeedsLittleMemory(t *testing.T) {
	t.Parallel()
	text := strings.Repeat("m", 200)
	for _, c := range []struct {
		name string
		make func(l *long)
	}{
		{"messages", func(l *long) {
			for size := hugeOr(200 << 20); l.total < size; {
				var o, u schema.Object
				l.add(schema.TypeUserMessage, o.Text("text", text).Bytes())
				l.add(schema.TypeUsage, u.Text("model", "m").Raw("tokens", []byte(`{"input":7}`)).Bytes())
			}
		}},
		{"200,000 calls", func(l *long) {
			for n := range 200_000 {
				for _, e := range []journal.Entry{journaltest.Call(fmt.Sprint("call-", n), "shell", `{}`), journaltest.Result(fmt.Sprint("call-", n), 1, `"o"`)} {
					l.add(e.Type, e.Data)
				}
			}
		}},
		{"200 claims and seals of 900 KB each", func(l *long) {
			program := strings.Repeat("p", 900_000)
			for range 200 {
				l.roll(program)
			}
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			l := newLong(t)
			c.make(l)
			l.close()
			began := time.Now()
			if out := small(t, l.dir, "verify", "s1", "-o", "json"); pick(t, out, "/events") != float64(l.last.Seq) || pick(t, out, "/ok") != true {
				t.Errorf("verify says %s", out)
			}
			t.Logf("%d events, %d bytes, read in %v", l.last.Seq, l.total, time.Since(began))
			if out := small(t, l.dir, "head", "s1"); !strings.Contains(out, l.last.Head().String()) {
				t.Errorf("head says %s", out)
			}
			if strings.HasSuffix(c.name, "calls") { // a call, an answer and so on
				if out := small(t, l.dir, "export", "s1", "--format", "openai", "-o", "jsonl"); strings.Count(out, "\n") != 400_000 {
					t.Errorf("export gives %d messages", strings.Count(out, "\n"))
				}
				if out := small(t, l.dir, "doctor", "s1"); !strings.Contains(out, "calls s1: 200000 calls, none open") {
					t.Errorf("doctor says %s", out)
				}
				if out := small(t, l.dir, "check", "--logs", "-o", "json"); pick(t, out, "/logs/calls/ok") != 200_000.0 {
					t.Errorf("check says %s", out)
				}
			}
		})
	}
}

// A blob is read through, however long it is. Only a patch is kept, so one that
// is too long for that is refused by its length, or where it goes on beyond it.
func TestAHugeBlobNeedsLittleMemory(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name        string
		size, named int64
		want        string
	}{
		{"a patch of 300 MB", 300_000_000, 300_000_000, `"bad_event"`},
		{"a patch that is longer than it says", 300_000_000, schema.MaxPatch, `"blob_mismatch"`},
		{"the longest patch", schema.MaxPatch, schema.MaxPatch, `"ok":true`},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			l := newLong(t)
			hash := sha256.New()
			tmp := filepath.Join(l.dir, "blob")
			file, err := os.Create(tmp)
			must(t, err)
			enc, err := zstd.NewWriter(file)
			must(t, err)
			must(t, os.Mkdir(l.path("blobs"), 0o700))
			_, err = io.Copy(io.MultiWriter(hash, enc), io.MultiReader(strings.NewReader(`{"a":"`), io.LimitReader(letters{}, c.size-8), strings.NewReader(`"}`)))
			must(t, err)
			must(t, enc.Close())
			must(t, file.Close())
			sum := hex.EncodeToString(hash.Sum(nil))
			must(t, os.Chmod(tmp, 0o600))
			must(t, os.Rename(tmp, l.path("blobs", sum+".zst")))
			for range 5 {
				var ref, patch, o schema.Object
				ref.Text("sha256", sum).Uint("bytes", uint64(c.named)).Text("media_type", schema.MediaJSON)
				patch.Raw("ref", ref.Bytes()).Text("preview", "{")
				l.add(schema.TypeStateChanged, o.Raw("patch", patch.Bytes()).Raw("blobs", []byte(`["/patch"]`)).Bytes())
			}
			l.close()
			if out := small(t, l.dir, "verify", "s1", "-o", "json"); !strings.Contains(out, c.want) {
				t.Errorf("there is no %s in %s", c.want, out)
			}
		})
	}
}

// letters never end.
type letters struct{}

func (letters) Read(b []byte) (int, error) {
	for i := range b {
		b[i] = 'z'
	}
	return len(b), nil
}

func init() { commands["measured"] = measured }
