package main

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"steno/journal"
	"steno/journal/journaltest"
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

// Who holds a session, lives or is dead, is told beside the state and is no part
// of it.
func TestS5TheDigestIsTheSameUnderAnyLease(t *testing.T) {
	t.Parallel()
	dir, copied := t.TempDir(), t.TempDir()
	store := journaltest.FilesIn(t, filepath.Join(dir, ".steno")).WithoutLog()
	open := func() *journal.Journal {
		j, err := journal.Open(t.Context(), store, "s1", journaltest.Options())
		must(t, err)
		return j
	}
	look := func(dir, state string) string {
		t.Helper()
		out := good(t, dir, "replay", "s1", "-o", "json")
		if is := pick(t, out, "/lease/state"); is != state {
			t.Errorf("the lease is %v, not %s", is, state)
		}
		return pick(t, out, "/digest").(string)
	}
	j := open()
	journaltest.Append(t, j, journaltest.Call("c", "read", `{}`), journaltest.Result("c", 1, `"x"`), journaltest.Call("open", "read", `{}`))
	held := look(dir, "active")
	must(t, os.CopyFS(filepath.Join(copied, ".steno"), os.DirFS(filepath.Join(dir, ".steno")))) // where nobody holds it
	elsewhere := look(copied, "stale")
	must(t, j.Close())
	if stale := look(dir, "stale"); stale != held || elsewhere != held {
		t.Errorf("held it is %s, stale %s, and elsewhere %s", held, stale, elsewhere)
	}
	must(t, open().Release(t.Context(), "done"))
	free := look(dir, "available")
	f, err := os.Open(filepath.Join(dir, ".steno/sessions/s1/000002.jsonl"))
	must(t, err)
	defer f.Close()
	must(t, syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB))
	out := good(t, dir, "replay", "s1", "-o", "json")
	if locked := pick(t, out, "/digest"); locked != free || pick(t, out, "/lease/state") == "available" {
		t.Errorf("free it is %s, and while somebody has its lock %s, %s", free, locked, pick(t, out, "/lease/state"))
	}
	if free == held {
		t.Error("another event gives the same digest")
	}
}

// The same command gets the recorded answer, and whatever else it asks for an
// error; the tools are not there any more.
func TestS10ReplayServesTheRecord(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	must(t, os.Mkdir(filepath.Join(dir, "work"), 0o700))
	must(t, os.WriteFile(filepath.Join(dir, "work", "file"), []byte("hello"), 0o600))
	good(t, dir, "run", os.DevNull, "--session", "s1", "--workspace", "work")
	said := good(t, dir, "call", "read", "--session", "s1", "--call-id", "a", "--args", `{"path":"file"}`, "-o", "json")
	must(t, os.RemoveAll(filepath.Join(dir, "work")))
	p := launch(t, dir, "replay", "s1", "--serve", "nats")
	p.says("}\n")
	file := filepath.Join(dir, "recording.json")
	must(t, os.WriteFile(file, []byte(p.out.String()), 0o600))
	head := good(t, dir, "head", "s1")
	again := good(t, dir, "call", "read", "--session", "s1", "--call-id", "a", "--args", `{"path":"file"}`, "-o", "json", "--nats", file)
	if again != said {
		t.Errorf("it says %s\nand said %s", again, said)
	}
	for _, args := range [][]string{{"--call-id", "a", "--args", `{"path":"other"}`}, {"--call-id", "b", "--args", `{"path":"file"}`}} {
		out, errOut, code := steno(t, dir, append([]string{"call", "read", "--session", "s1", "--nats", file}, args...)...)
		if code == 0 || !strings.Contains(out+errOut, "replay_divergence") {
			t.Errorf("call %q: exit %d, %s%s", args, code, out, errOut)
		}
	}
	p.signal(syscall.SIGTERM)
	if code := p.exit(); code != 9 || !strings.Contains(p.err.String(), "replay_divergence") {
		t.Errorf("it ends with %d, %s", code, p.err.String())
	}
	if good(t, dir, "head", "s1") != head {
		t.Error("the session has changed")
	}
	for args, want := range map[string]int{"s1 --serve http": 2, "s1 --serve nats --nats nats://127.0.0.1:1": 2, "s1 --serve nats --as-of 99": 3, "none --serve nats": 3} {
		if out, errOut, code := steno(t, dir, append([]string{"replay"}, strings.Fields(args)...)...); code != want || out != "" {
			t.Errorf("replay %s: exit %d, %s%s", args, code, out, errOut)
		}
	}
}

// FORMAT.md says how anybody gets the digest from what is printed.
func TestS5ADigestIsOfWhatIsPrinted(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	const odd = "a\u007fb\u0085c\u2028d\u202ee\U000E0041f"
	written(t, dir, "s1", false, []journal.Entry{entry("state_changed", `{"patch":{"`+odd+`":"`+odd+`"}}`), journaltest.Call("c1", "read", `{}`), entry("phase_changed", `{"from":"a","to":"`+odd+`"}`)})
	out := good(t, dir, "replay", "s1", "-o", "json")
	var v struct {
		State  json.RawMessage `json:"state"`
		Digest string          `json:"digest"`
	}
	must(t, json.Unmarshal([]byte(out), &v))
	const printed = `a\u007fb\u0085c\u2028d\u202ee\udb40\udc41f`
	if n := strings.Count(string(v.State), printed); n != 3 {
		t.Errorf("there are %d of them in %s", n, v.State)
	}
	sum := sha256.Sum256([]byte(strings.ReplaceAll(string(v.State), printed, odd)))
	if hex.EncodeToString(sum[:]) != v.Digest {
		t.Errorf("the digest is %s, and the sum of what is printed %x", v.Digest, sum)
	}
}
