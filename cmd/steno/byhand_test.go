package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"steno/journal/journaltest"
	"steno/schema"
)

// byHand checks a session's folder with the script that needs no steno.
func byHand(t *testing.T, args ...string) (out string, code int) {
	t.Helper()
	b, err := exec.CommandContext(t.Context(), "sh", append([]string{filepath.Join(root(t), "testdata/sha256sum.sh")}, args...)...).CombinedOutput()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	if exit != nil {
		code = exit.ExitCode()
	}
	return string(b), code
}

// inOrder is what the script says of a log that it finds nothing wrong with.
func inOrder(head schema.Head) string {
	return "every sum, number and link is right, up to " + head.String() + "; what else the lines say is not judged here\n"
}

// checkByHand holds the script against the session of the demo.
func checkByHand(t *testing.T, dir string) {
	var says struct{ Head schema.Head }
	must(t, json.Unmarshal([]byte(good(t, "/", "verify", "demo", "-o", "json", "--dir", dir)), &says))
	if out, code := byHand(t, filepath.Join(dir, filepath.Dir(segment1))); code != 0 || out != inOrder(says.Head) {
		t.Errorf("exit %d: %s; verify says %s", code, out, says.Head)
	}
	spoilt := copyOf(t, dir)
	must(t, change(filepath.Join(spoilt, segment1), "flashes", "flaShes"))
	if out, code := byHand(t, filepath.Join(spoilt, filepath.Dir(segment1))); code != 1 || !strings.HasPrefix(out, "another sum: ") {
		t.Errorf("exit %d: %s", code, out)
	}
}

// What verify calls damaged the script never calls right, but for lines that
// were written so: their sums fit, and what they say is no matter of sums.
func TestTheScriptPassesNothingThatVerifyCallsDamaged(t *testing.T) {
	t.Parallel()
	written := []schema.Reason{schema.BadEvent, schema.BadEnvelope, schema.DuplicateKey, schema.TooDeep}
	passed, refused := 0, 0
	logs := journaltest.CasesOf(t, "log", "TestLogCases")
	for nth, more := 0, true; more; nth++ {
		more = false
		dir := t.TempDir()
		good(t, dir, "run", os.DevNull, "--session", "good")
		for _, c := range logs {
			if all := c.Logs(); nth < len(all) {
				more = true
				c.Lay(t, all[nth].Log, filepath.Join(dir, ".steno"), all[nth].Session)
			}
		}
		said, _, _ := steno(t, dir, "verify", "-o", "jsonl")
		for line := range strings.Lines(said) {
			var v struct {
				Session  string
				Head     schema.Head
				Findings []schema.Finding
			}
			must(t, json.Unmarshal([]byte(line), &v))
			bad := slices.ContainsFunc(v.Findings, func(f schema.Finding) bool {
				return f.Severity == schema.SeverityError && !slices.Contains(written, f.Reason)
			})
			out, code := byHand(t, filepath.Join(dir, ".steno/sessions", v.Session))
			right := strings.HasSuffix(out, inOrder(v.Head))
			switch {
			case right != (code == 0) || right && bad:
				t.Errorf("exit %d: %s\nverify says %s", code, out, line)
			case right:
				passed++
			case bad:
				refused++
			}
		}
	}
	if passed < 20 || refused < 20 {
		t.Errorf("the script passes %d logs and refuses %d damaged ones", passed, refused)
	}
}

// Damages that somebody makes by hand.
func TestTheScriptSeesWhatAHandDoes(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	calls := filepath.Join(dir, "calls.jsonl")
	for epoch := range 3 {
		must(t, os.WriteFile(calls, fmt.Appendf(nil, `{"name":"bash","args":{"command":"seq %d 100000"}}`+"\n", 1+min(epoch, 1)*99990+epoch), 0o600))
		good(t, dir, "run", calls, "--session", "s1")
	}
	log := filepath.Join(dir, ".steno/sessions/s1")
	if out, code := byHand(t, log); code != 0 {
		t.Fatalf("exit %d: %s", code, out)
	}
	blobs, err := filepath.Glob(log + "/blobs/*")
	if err != nil || len(blobs) != 1 {
		t.Fatal(blobs, err)
	}
	sole := filepath.Join(dir, "sole")
	for name, c := range map[string]struct {
		do   string // in a copy of the session's folder
		code int
	}{
		"a NUL in a line":             {`sed -i '3s/"seq"/"s\x00eq"/' 000003.jsonl`, 1},
		"a NUL in a sealed segment":   {`printf '\0' | dd of=000001.jsonl bs=1 seek=700 conv=notrunc status=none`, 1},
		"bytes behind the end":        {`printf x >>000003.jsonl`, 1},
		"a NUL behind the end":        {`printf '\0' >>000003.jsonl`, 1},
		"bytes behind a sealed end":   {`printf x >>000001.jsonl`, 2},
		"an empty line":               {`echo >>000003.jsonl`, 1},
		"the end cut inside a line":   {`truncate -s -20 000003.jsonl`, 1},
		"a line and 20 bytes gone":    {`sed -i '$d' 000003.jsonl; truncate -s -20 000003.jsonl`, 1},
		"a sealed end cut at a line":  {`sed -i '$d' 000001.jsonl`, 1},
		"a line gone":                 {`sed -i 4d 000001.jsonl`, 1},
		"a line gone, of the last":    {`sed -i 3d 000003.jsonl`, 1},
		"a line twice":                {`sed -i 2p 000003.jsonl`, 1},
		"another byte":                {`sed -i '2s/takeover\|resumed/rEsumed/' 000003.jsonl`, 1},
		"a carriage return":           {`sed -i 's/$/\r/' 000003.jsonl`, 1},
		"the first segment gone":      {`rm 000001.jsonl`, 1},
		"a segment gone":              {`rm 000002.jsonl`, 2},
		"an empty segment":            {`: >000003.jsonl`, 2},
		"a segment that is a link":    {`mv 000003.jsonl x; ln -s x 000003.jsonl`, 1},
		"others may write":            {`chmod 666 000003.jsonl`, 1},
		"all segments gone":           {`rm 0*.jsonl`, 2},
		"a blob gone":                 {`rm -r blobs`, 1},
		"another blob":                {`echo x >$(echo blobs/* | sed 's/\.zst//')`, 1},
		"another name of the session": {`sed -i 's/"s1"/"s9"/' 0*.jsonl`, 1},
	} {
		copied := filepath.Join(sole, strings.ReplaceAll(name, " ", "-"), "s1")
		must(t, os.CopyFS(copied, os.DirFS(log)))
		do := exec.CommandContext(t.Context(), "sh", "-ec", "chmod 600 *.jsonl blobs/*; "+c.do)
		do.Dir = copied
		if b, err := do.CombinedOutput(); err != nil {
			t.Errorf("%s: %v: %s", name, err, b)
			continue
		}
		if out, code := byHand(t, copied); code != c.code || strings.Contains(out, "is right") {
			t.Errorf("%s: exit %d, want %d: %s", name, code, c.code, out)
		}
	}
	fifo := filepath.Join(sole, "fifo", "s1")
	must(t, os.CopyFS(fifo, os.DirFS(log)))
	must(t, os.Remove(filepath.Join(fifo, "000002.jsonl")))
	must(t, syscall.Mkfifo(filepath.Join(fifo, "000002.jsonl"), 0o600))
	if out, code := byHand(t, fifo); code != 1 {
		t.Errorf("a segment that is a FIFO: exit %d: %s", code, out)
	}
	for _, args := range [][]string{{}, {filepath.Join(dir, "none")}, {calls}, {""}} {
		if out, code := byHand(t, args...); code != 2 || strings.Contains(out, "is right") {
			t.Errorf("%q: exit %d: %s", args, code, out)
		}
	}
}

// Of a sound session that is packed or repaired the script gives no judgement,
// and says what to do; what is unpacked it judges.
func TestTheScriptSaysWhatItDoesNotJudge(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	calls := filepath.Join(dir, "calls.jsonl")
	must(t, os.WriteFile(calls, []byte(`{"name":"bash","args":{"command":"seq 100000"}}`+"\n"), 0o600))
	for _, id := range []string{"p1", "r1"} {
		good(t, dir, "run", calls, "--session", id)
	}
	at := func(id string) string { return filepath.Join(dir, ".steno/sessions", id) }
	no := func(what, folder, word string) {
		t.Helper()
		if out, code := byHand(t, folder); code != 2 || !strings.Contains(out, word) {
			t.Errorf("%s: exit %d: %s", what, code, out)
		}
	}
	good(t, dir, "session", "pack", "p1")
	no("packed", at("p1"), "p1 is packed; check what this unpacks: tar --zstd -xf ../../archive/p1.tar.zst")
	good(t, dir, "export", "--all", "copy")
	no("exported", filepath.Join(dir, "copy/sessions/p1"), "p1 is packed")
	if _, err := exec.LookPath("zstd"); err == nil {
		must(t, os.Mkdir(filepath.Join(dir, "elsewhere"), 0o700))
		tar := exec.CommandContext(t.Context(), "tar", "--zstd", "-xf", "../../archive/p1.tar.zst", "-C", filepath.Join(dir, "elsewhere"))
		tar.Dir = at("p1")
		if b, err := tar.CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, b)
		}
		if out, code := byHand(t, filepath.Join(dir, "elsewhere/p1")); code != 0 {
			t.Errorf("unpacked: exit %d: %s", code, out)
		}
	}
	must(t, change(filepath.Join(at("r1"), "000001.jsonl"), "seq 100000", "seq 100001"))
	if out, code := byHand(t, at("r1")); code != 1 {
		t.Errorf("damaged: exit %d: %s", code, out)
	}
	good(t, dir, "repair", "r1", "--reason", "a hand slipped", "--apply")
	good(t, dir, "verify", "r1")
	no("repaired", at("r1"), "r1 was repaired")
}
