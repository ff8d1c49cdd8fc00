package executor_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"unicode/utf8"

	"steno/executor"
	"steno/journal/journaltest"
	"steno/schema"
)

func dryRun(call *executor.Invocation) { call.DryRun = true }

func TestT29ReadShowsAWindowAndTheTotals(t *testing.T) {
	b := newBench(t)
	b.file("f.txt", "one\ntwo\r\nthree\n\nfive")
	b.file("empty", "")
	for _, c := range []struct {
		a                  args
		want               string
		lines, first, last int
	}{
		{args{"path": "f.txt"}, "one\ntwo\r\nthree\n\nfive", 5, 1, 5},
		{args{"path": "f.txt", "offset": 2, "limit": 2}, "two\r\nthree\n", 5, 2, 3},
		{args{"path": "f.txt", "offset": 4}, "\nfive", 5, 4, 5},
		{args{"path": "f.txt", "limit": 1}, "one\n", 5, 1, 1},
		{args{"path": "f.txt", "offset": 6}, "", 5, 0, 0},
		{args{"path": "f.txt", "offset": 1000000000, "limit": 1000000000}, "", 5, 0, 0},
		{args{"path": "empty"}, "", 0, 0, 0},
	} {
		res := b.must("read", c.a)
		if !res.OK || res.Output != c.want {
			t.Errorf("%v: %q, want %q", c.a, res.Output, c.want)
		}
		lines, first, last := member[int](t, res, "lines"), member[int](t, res, "first"), member[int](t, res, "last")
		if lines != c.lines || first != c.first || last != c.last {
			t.Errorf("%v: lines %d, %d to %d; want %d, %d to %d", c.a, lines, first, last, c.lines, c.first, c.last)
		}
		if !slices.Equal(res.FilesRead, []string{c.a["path"].(string)}) || res.FilesChanged != nil {
			t.Errorf("%v: files %q, %q", c.a, res.FilesRead, res.FilesChanged)
		}
	}
	res := b.must("read", args{"path": "f.txt", "offset": 2, "limit": 2})
	if want := "f.txt: 5 lines (2 to 3 shown), 20 bytes"; res.Summary != want {
		t.Errorf("summary %q, want %q", res.Summary, want)
	}
}

func TestReadGoesOnWhereItStopped(t *testing.T) {
	b := newBench(t)
	var text strings.Builder
	for i := range 6000 {
		fmt.Fprintf(&text, "line %d %s\n", i+1, strings.Repeat("ä", 50))
	}
	b.file("f.txt", text.String())
	var got strings.Builder
	next, calls := 1, 0
	for next <= 6000 {
		res := b.must("read", args{"path": "f.txt", "offset": next, "limit": 1000000})
		if len(res.Output) > executor.MaxWindow {
			t.Fatalf("%d bytes of output", len(res.Output))
		}
		got.WriteString(res.Output)
		next = member[int](t, res, "last") + 1
		if calls++; calls > 10 {
			t.Fatal("it does not get on")
		}
	}
	if got.String() != text.String() {
		t.Error("the parts are not the whole")
	}
	if calls < 3 {
		t.Errorf("%d calls for %d bytes", calls, text.Len())
	}
	if n := strings.Count(b.must("read", args{"path": "f.txt"}).Output, "\n"); n != 2000 {
		t.Errorf("%d lines by default", n)
	}
}

func TestReadCutsALineThatIsTooLong(t *testing.T) {
	b := newBench(t)
	b.file("f.txt", "first\nx"+strings.Repeat("ä", executor.MaxWindow)+"\nlast\n")
	res := b.must("read", args{"path": "f.txt"})
	if res.Output != "first\n" || member[int](t, res, "last") != 1 {
		t.Errorf("%d bytes shown, to line %d", len(res.Output), member[int](t, res, "last"))
	}
	res = b.must("read", args{"path": "f.txt", "offset": 2})
	if len(res.Output) > executor.MaxWindow || len(res.Output) < executor.MaxWindow-4 || !utf8.ValidString(res.Output) || strings.Contains(res.Output, "\uFFFD") {
		t.Errorf("%d bytes shown", len(res.Output))
	}
	if !member[bool](t, res, "cut") || member[int](t, res, "lines") != 3 {
		t.Errorf("structured %s", res.Structured)
	}
}

func TestReadSaysThatItReplacedBytes(t *testing.T) {
	b := newBench(t)
	b.file("f.bin", "a\xff\xff\xff\x00b\n") // three bytes become one character of three bytes
	res := b.must("read", args{"path": "f.bin"})
	if res.Output != "a\uFFFD\x00b\n" || !member[bool](t, res, "replaced") {
		t.Errorf("%q, %s", res.Output, res.Structured)
	}
}

func TestReadNeedsLittleMemoryForAHugeFile(t *testing.T) {
	b := newBench(t)
	f, err := os.Create(filepath.Join(b.dir, "huge.txt"))
	if err != nil {
		t.Fatal(err)
	}
	w := bufio.NewWriter(f)
	line := strings.Repeat("x", 99) + "\n"
	for range 1 << 20 { // 100 MiB
		w.WriteString(line)
	}
	if err := errors.Join(w.Flush(), f.Close()); err != nil {
		t.Fatal(err)
	}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	res := b.must("read", args{"path": "huge.txt", "offset": 1<<20 - 1})
	runtime.ReadMemStats(&after)
	if res.Output != line+line || member[int](t, res, "lines") != 1<<20 || member[int](t, res, "bytes") != 100<<20 {
		t.Errorf("%d bytes shown, %s", len(res.Output), res.Structured)
	}
	if used := after.TotalAlloc - before.TotalAlloc; used > 10<<20 {
		t.Errorf("reading took %d bytes of memory", used)
	}
	_, err = b.call("edit", args{"path": "huge.txt", "old": "x", "new": "y"})
	wantKind(t, err, schema.PayloadTooLarge)
	res = b.must("search", args{"pattern": "x"})
	if member[int](t, res, "skipped") != 1 || res.Output != "no matches\n" {
		t.Errorf("search: %q, %s", res.Output, res.Structured)
	}
}

func TestToolsEndWithTheirContext(t *testing.T) {
	b := newBench(t)
	b.file("f.txt", "text")
	cancelled, cancel := context.WithCancel(context.Background())
	cancel()
	late, cancel := context.WithTimeout(context.Background(), 0)
	defer cancel()
	all := map[string]func(string) args{"bash": func(string) args { return args{"command": "echo x > f.txt"} }}
	for name, a := range onPath {
		all[name] = a
	}
	for name, a := range all {
		path := "f.txt"
		if name == "list" || name == "search" {
			path = "."
		}
		if _, err := b.do(cancelled, name, a(path), nil); !errors.Is(err, schema.Cancelled) {
			t.Errorf("%s, cancelled: %v", name, err)
		}
		if _, err := b.do(late, name, a(path), nil); !errors.Is(err, schema.Timeout) {
			t.Errorf("%s, deadline: %v", name, err)
		}
	}
	if got := b.text("f.txt"); got != "text" {
		t.Errorf("changed to %q", got)
	}
}

func TestT29WriteMakesFilesAndFolders(t *testing.T) {
	b := newBench(t)
	res := b.must("write", args{"path": "a/b/new.txt", "content": "zwölf\n"})
	if got := b.text("a/b/new.txt"); got != "zwölf\n" {
		t.Errorf("the file has %q", got)
	}
	if !res.OK || !slices.Equal(res.FilesChanged, []string{"a/b/new.txt"}) || res.Output != "created a/b/new.txt, 7 bytes" {
		t.Errorf("%+v", res)
	}
	res = b.must("write", args{"path": "a/b/new.txt", "content": ""})
	if got := b.text("a/b/new.txt"); got != "" || res.Output != "wrote a/b/new.txt, 0 bytes" {
		t.Errorf("the file has %q; %q", got, res.Output)
	}
	if list := b.must("list", args{"path": "a/b"}).Output; list != "new.txt\n" {
		t.Errorf("beside the file: %q", list)
	}
}

func TestWriteReplacesAFileAtOnceAndKeepsItsMode(t *testing.T) {
	b := newBench(t)
	path := b.file("run.sh", "old")
	if err := os.Chmod(path, 0o755); err != nil {
		t.Fatal(err)
	}
	open, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer open.Close()
	before, _ := os.Stat(path)
	b.must("write", args{"path": "run.sh", "content": "brand new"})
	after, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	if after.Mode() != before.Mode() {
		t.Errorf("mode %v, was %v", after.Mode(), before.Mode())
	}
	// Whoever has the old file open goes on reading the whole of it.
	old := make([]byte, 10)
	if n, _ := open.Read(old); string(old[:n]) != "old" {
		t.Errorf("the open file has %q", old[:n])
	}
	if os.SameFile(before, after) {
		t.Error("the file was written in place")
	}
}

func TestWriteKeepsTheOwnerAndDropsSetUserID(t *testing.T) {
	if os.Geteuid() != 0 {
		journaltest.Lacks(t, "root, who may give a file to somebody else")
	}
	b := newBench(t)
	path := b.file("f", "old")
	if err := errors.Join(os.Chown(path, 12345, 54321), os.Chmod(path, 0o751|os.ModeSetuid)); err != nil {
		t.Fatal(err)
	}
	b.must("write", args{"path": "f", "content": "new"})
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	if st := info.Sys().(*syscall.Stat_t); st.Uid != 12345 || st.Gid != 54321 || info.Mode() != 0o751 {
		t.Errorf("owner %d:%d, mode %v", st.Uid, st.Gid, info.Mode())
	}
}

func TestWriteGoesThroughALinkInsideTheWorkspace(t *testing.T) {
	b := newBench(t)
	b.file("real.txt", "old")
	b.link("real.txt", "link")
	b.link("fresh.txt", "dangling")
	if res := b.must("write", args{"path": "link", "content": "new"}); !slices.Equal(res.FilesChanged, []string{"real.txt"}) {
		t.Errorf("changed %q", res.FilesChanged)
	}
	b.must("write", args{"path": "dangling", "content": "made"})
	if a, c := b.text("real.txt"), b.text("fresh.txt"); a != "new" || c != "made" {
		t.Errorf("the files have %q and %q", a, c)
	}
	if info, err := os.Lstat(filepath.Join(b.dir, "link")); err != nil || info.Mode()&os.ModeSymlink == 0 {
		t.Errorf("the link is gone: %v, %v", info, err)
	}
}

func TestAReadOnlyFileIsNotChanged(t *testing.T) {
	b := newBench(t)
	path := b.file("f.txt", "text")
	if err := os.Chmod(path, 0o444); err != nil {
		t.Fatal(err)
	}
	for _, tool := range []string{"write", "edit"} {
		_, err := b.call(tool, onPath[tool]("f.txt"))
		if e := wantKind(t, err, schema.WriteFailed); e.Details["cause"] != "permission denied" {
			t.Errorf("%s: %v, cause %v", tool, e, e.Details["cause"])
		}
	}
	if got := b.text("f.txt"); got != "text" {
		t.Errorf("changed to %q", got)
	}
}

func TestT12ADryRunSaysWhatWouldHappen(t *testing.T) {
	b := newBench(t)
	b.file("f.txt", "text text")
	for _, c := range []struct {
		tool string
		a    args
		want string
	}{
		{"write", args{"path": "a/b/new.txt", "content": "12345"}, "would create a/b/new.txt, 5 bytes"},
		{"write", args{"path": "new.txt", "content": "12345"}, "would create new.txt, 5 bytes"},
		{"write", args{"path": "f.txt", "content": ""}, "would overwrite f.txt (9 bytes) with 0 bytes"},
		{"edit", args{"path": "f.txt", "old": "text", "new": "x", "replace_all": true}, "would edit f.txt, 2 to replace"},
		{"bash", args{"command": "touch made"}, "would run bash -c touch made"},
		{"bash", args{"argv": []string{"touch", "made"}}, "would run touch made"},
	} {
		res, err := b.do(context.Background(), c.tool, c.a, dryRun)
		if err != nil || !res.OK || res.Output != c.want || res.FilesChanged != nil {
			t.Errorf("%s %v: %q, %v", c.tool, c.a, res.Output, err)
		}
	}
	// What would be refused is refused.
	_, err := b.do(context.Background(), "write", args{"path": "a/.env", "content": ""}, dryRun)
	wantKind(t, err, schema.ProtectedPath)
	_, err = b.do(context.Background(), "edit", args{"path": "f.txt", "old": "none", "new": ""}, dryRun)
	wantKind(t, err, schema.NoMatch)
	if list := b.must("list", nil).Output; list != "f.txt\n" || b.text("f.txt") != "text text" {
		t.Errorf("changed: %q, %q", list, b.text("f.txt"))
	}
}

func TestT29EditReplacesTextThatIsThereOnce(t *testing.T) {
	b := newBench(t)
	b.file("f.txt", "one\ntwo\xff\nthree\n")
	res := b.must("edit", args{"path": "f.txt", "old": "two", "new": "2"})
	if got := b.text("f.txt"); got != "one\n2\xff\nthree\n" {
		t.Errorf("the file has %q; bytes that are not UTF-8 stay", got)
	}
	if !slices.Equal(res.FilesChanged, []string{"f.txt"}) || member[int](t, res, "replacements") != 1 {
		t.Errorf("%q, %s", res.FilesChanged, res.Structured)
	}
	b.must("edit", args{"path": "f.txt", "old": "\nthree\n", "new": ""})
	if got := b.text("f.txt"); got != "one\n2\xff" {
		t.Errorf("the file has %q", got)
	}
}

func TestEditRefusesTextThatIsNotThereOnce(t *testing.T) {
	b := newBench(t)
	b.file("f.txt", "aaa bbb bbb\r\nend")
	for _, c := range []struct {
		old     string
		want    schema.Kind
		matches any
	}{
		{"ccc", schema.NoMatch, nil},
		{"AAA", schema.NoMatch, nil},
		{"bbb\nend", schema.NoMatch, nil},
		{"bbb", schema.NotUnique, 2},
		{"aa", schema.NotUnique, 2}, // overlapping: either could be meant
		{"b", schema.NotUnique, 6},
	} {
		_, err := b.call("edit", args{"path": "f.txt", "old": c.old, "new": "x"})
		if e := wantKind(t, err, c.want); e.Details["matches"] != c.matches {
			t.Errorf("%q: matches %v, want %v", c.old, e.Details["matches"], c.matches)
		}
	}
	_, err := b.call("edit", args{"path": "f.txt", "old": "bbb\nend", "new": "x"})
	if e := wantKind(t, err, schema.NoMatch); !strings.Contains(e.Message, "carriage return") {
		t.Errorf("the message does not speak of line ends: %s", e.Message)
	}
	_, err = b.call("edit", args{"path": "f.txt", "old": "bbb", "new": "bbb"})
	wantKind(t, err, schema.InvalidArgs)
	_, err = b.do(context.Background(), "edit", args{"path": "f.txt", "old": "", "new": "x"}, nil)
	wantKind(t, err, schema.InvalidArgs)
	_, err = b.call("edit", args{"path": "f.txt", "old": "ccc", "new": "x", "replace_all": true})
	wantKind(t, err, schema.NoMatch)
	if got := b.text("f.txt"); got != "aaa bbb bbb\r\nend" {
		t.Errorf("the file has %q", got)
	}
}

func TestEditReplacesAllIfAsked(t *testing.T) {
	b := newBench(t)
	b.file("f.txt", "a b a b a")
	res := b.must("edit", args{"path": "f.txt", "old": "a", "new": "aa", "replace_all": true})
	if got := b.text("f.txt"); got != "aa b aa b aa" || member[int](t, res, "replacements") != 3 {
		t.Errorf("the file has %q; %s", got, res.Structured)
	}
}

func TestEditDoesNotGrowAFileWithoutBound(t *testing.T) {
	b := newBench(t)
	b.file("f.txt", strings.Repeat("a", 1<<20))
	_, err := b.call("edit", args{"path": "f.txt", "old": "a", "new": strings.Repeat("b", 1<<19), "replace_all": true})
	wantKind(t, err, schema.PayloadTooLarge)
	// Looking for text that overlaps with itself everywhere ends soon.
	_, err = b.call("edit", args{"path": "f.txt", "old": strings.Repeat("a", 1<<19), "new": "b"})
	wantKind(t, err, schema.NotUnique)
}

func TestEditsOfOneFileDoNotGetLost(t *testing.T) {
	b := newBench(t)
	var text strings.Builder
	for i := range 30 {
		fmt.Fprintf(&text, "<%d>\n", i)
	}
	b.file("f.txt", text.String())
	var wg sync.WaitGroup
	for i := range 30 {
		wg.Go(func() {
			if _, err := b.do(context.Background(), "edit", args{"path": "f.txt", "old": fmt.Sprintf("<%d>", i), "new": "done"}, nil); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if got := b.text("f.txt"); got != strings.Repeat("done\n", 30) {
		t.Errorf("the file has %q", got)
	}
}

func TestArgumentsThatTheSchemaCannotBoundAreInvalid(t *testing.T) {
	b := newBench(t)
	b.file("f.txt", "text")
	for tool, a := range map[string]args{
		"read": {"path": "f.txt", "offset": 1.5},
		"bash": {"command": "true", "timeout_s": "1"},
	} {
		_, err := b.do(context.Background(), tool, a, nil)
		wantKind(t, err, schema.InvalidArgs)
	}
}
