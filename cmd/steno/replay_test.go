package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// As of any event the state is the one that was there then.
func TestS10ReplayAsOf(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	frozen := filepath.Join(root(t), "testdata", "compat", "v1")
	must(t, os.CopyFS(filepath.Join(dir, ".steno"), os.DirFS(frozen)))
	b, err := os.ReadFile(filepath.Join(frozen, "digests.txt"))
	must(t, err)
	seen := 0
	for line := range strings.Lines(string(b)) {
		f := strings.Fields(line)
		if len(f) != 3 || f[0] != "epochs" {
			continue
		}
		seen++
		out := good(t, dir, "replay", "epochs", "--as-of", f[1], "-o", "json")
		if pick(t, out, "/digest") != f[2] || fmt.Sprint(pick(t, out, "/head/seq")) != f[1] && !strings.Contains(fmt.Sprint(pick(t, out, "/head")), "."+f[1]+".") {
			t.Errorf("as of %s it says %.200s", f[1], out)
		}
	}
	if seen < 10 {
		t.Errorf("only %d digests were compared", seen)
	}
	for _, c := range []struct {
		asOf string
		want int
	}{{fmt.Sprint(seen + 1), 3}, {"0", 2}, {"-1", 2}} {
		if out, errOut, code := steno(t, dir, "replay", "epochs", "--as-of", c.asOf, "-o", "json"); code != c.want || out != "" {
			t.Errorf("as of %s: exit %d, %.200s %s", c.asOf, code, out, errOut)
		}
	}
}
