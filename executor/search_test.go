package executor_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"steno/executor"
	"steno/schema"
)

func TestT29ListIsSortedAndMarksFolders(t *testing.T) {
	b := newBench(t)
	b.file("b.txt", "")
	b.file("a/f.txt", "")
	b.file("a-b", "")
	b.file(".env", "")
	b.file("odd\nname", "")
	b.link("a", "to-a")
	b.link("../out", "to-out")
	b.link("gone", "to-gone")
	res := b.must("list", args{"path": "."})
	want := []string{".env", "a-b", "a/", "b.txt", `"odd\nname"`, "to-a/", "to-gone", "to-out"}
	if got := lines(res.Output); !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	if n := member[int](t, res, "entries"); n != len(want) {
		t.Errorf("%d entries", n)
	}
	if got := b.must("list", args{"path": "to-a"}).Output; got != "f.txt\n" {
		t.Errorf("through a link: %q", got)
	}
	if err := os.Mkdir(filepath.Join(b.dir, "empty"), 0o755); err != nil {
		t.Fatal(err)
	}
	if got := b.must("list", args{"path": "empty"}).Output; got != "" {
		t.Errorf("of an empty folder: %q", got)
	}
}

func TestListSaysHowManyMoreThereAre(t *testing.T) {
	b := newBench(t)
	for i := range 1234 {
		b.file(fmt.Sprintf("many/f%04d", i), "")
	}
	res := b.must("list", args{"path": "many"})
	got := lines(res.Output)
	if len(got) != 1001 || got[999] != "f0999" || got[1000] != "… and 234 more" {
		t.Errorf("%d lines, ending in %q", len(got), got[len(got)-2:])
	}
	if member[int](t, res, "entries") != 1234 || member[int](t, res, "shown") != 1000 {
		t.Errorf("structured %s", res.Structured)
	}
}

func TestT29SearchGivesMatchingLinesInOrder(t *testing.T) {
	b := newBench(t)
	b.file("b.txt", "Needle\nhay\r\nneedle in line three\r\n")
	b.file("a/x.go", "// needle\n")
	b.file("a-b.go", "needle")
	b.file(".git/config", "needle")
	b.file("bin", "needle\x00needle")
	b.file("latin", "needle \xe4\n")
	b.file("sub/.env", "needle")
	b.file("sub/secrets/f", "needle")
	b.link("b.txt", "again")
	b.link("../out", "out")
	res := b.must("search", args{"pattern": "needle"})
	want := []string{
		"a-b.go:1: needle",
		"a/x.go:1: // needle",
		"b.txt:3: needle in line three",
		"latin:1: needle \uFFFD",
	}
	if got := lines(res.Output); !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	if !slices.Equal(res.FilesRead, []string{"a-b.go", "a/x.go", "b.txt", "latin"}) {
		t.Errorf("files read: %q", res.FilesRead)
	}
	if s := string(res.Structured); s != `{"matches":4,"files":4,"searched":4,"skipped":3,"stopped":false}` {
		t.Errorf("structured %s", s)
	}
	if got := b.must("search", args{"pattern": "^(?i)needle$"}).Output; got != "a-b.go:1: needle\nb.txt:1: Needle\n" {
		t.Errorf("got %q", got)
	}
	if got := b.must("search", args{"pattern": "needle", "path": "b.txt"}).Output; got != "b.txt:3: needle in line three\n" {
		t.Errorf("of one file: %q", got)
	}
	if got := b.must("search", args{"pattern": "needle", "path": "a"}).Output; got != "a/x.go:1: // needle\n" {
		t.Errorf("of one folder: %q", got)
	}
	if res := b.must("search", args{"pattern": "no such thing"}); !res.OK || res.Output != "no matches\n" {
		t.Errorf("of nothing: %+v", res)
	}
}

func TestSearchRefusesAPatternThatIsNone(t *testing.T) {
	b := newBench(t)
	for _, pattern := range []string{"(", `(a)\1`, "a{2,1}", "(?=x)"} {
		_, err := b.call("search", args{"pattern": pattern})
		e := wantKind(t, err, schema.InvalidArgs)
		if v := e.Details["violations"].([]executor.Violation); len(v) != 1 || v[0].Pointer != "/pattern" {
			t.Errorf("%s: %v", pattern, v)
		}
	}
}

func TestSearchBoundsWhatItShows(t *testing.T) {
	b := newBench(t)
	b.file("a.txt", strings.Repeat("needle\n", 999))
	b.file("b.txt", strings.Repeat("needle\n", 5))
	res := b.must("search", args{"pattern": "needle"})
	got := lines(res.Output)
	if len(got) != 1001 || got[999] != "b.txt:1: needle" || !strings.HasPrefix(got[1000], "… stopped") || !member[bool](t, res, "stopped") {
		t.Errorf("%d lines, ending in %q", len(got), got[len(got)-1])
	}
	b.file("c.txt", strings.Repeat("ä", 100_000)+"\n")
	res = b.must("search", args{"pattern": "ä", "path": "c.txt"})
	if len(res.Output) > 400 || !utf8.ValidString(res.Output) || !strings.HasSuffix(res.Output, "ä…\n") {
		t.Errorf("%d bytes for one line: %.50q", len(res.Output), res.Output)
	}
	deep := strings.Repeat(strings.Repeat("d", 200)+"/", 10)
	b.file(deep+"f.txt", strings.Repeat("needle\n", 900))
	res = b.must("search", args{"pattern": "needle", "path": strings.Repeat("d", 200)})
	if len(res.Output) > executor.MaxWindow || !member[bool](t, res, "stopped") {
		t.Errorf("%d bytes of output", len(res.Output))
	}
}
