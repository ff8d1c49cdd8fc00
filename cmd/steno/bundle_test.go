package main

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"steno/journal"
	"steno/journal/journaltest"
)

// unbundled is a bundle that was unpacked, and its files as they stand in it.
func unbundled(t *testing.T, b []byte) (dir string, names []string) {
	t.Helper()
	to := t.TempDir()
	for r := tar.NewReader(bytes.NewReader(b)); ; {
		h, err := r.Next()
		if err == io.EOF {
			break
		}
		must(t, err)
		if h.Uid != 0 || h.Gid != 0 || h.Uname != "" || !h.ModTime.Equal(bundleTime) || !filepath.IsLocal(h.Name) {
			t.Errorf("the header is %+v", h)
		}
		path := filepath.Join(to, h.Name)
		must(t, os.MkdirAll(filepath.Dir(path), 0o700))
		data, err := io.ReadAll(r)
		must(t, err)
		must(t, os.WriteFile(path, data, h.FileInfo().Mode()))
		top, name, _ := strings.Cut(h.Name, "/")
		dir, names = filepath.Join(to, top), append(names, name)
	}
	return dir, names
}

// judges are the programs of a bundle, as somebody starts them who has no steno.
func judges(t *testing.T) map[string][]string {
	list := map[string][]string{"verify.sh": {"sh"}}
	if python, err := exec.LookPath("python3"); err == nil {
		list["verify.py"] = []string{python, "-B"}
	}
	return list
}

func judge(t *testing.T, dir, program string, by []string, args ...string) (out string, code int) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), by[0], append(append(by[1:len(by):len(by)], filepath.Join(dir, program)), args...)...)
	cmd.Dir = t.TempDir()
	b, err := cmd.CombinedOutput()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		code = exit.ExitCode()
	} else {
		must(t, err)
	}
	return string(b), code
}

// lasting is a session of three epochs with a blob, and with a torn tail behind
// the first that the second leaves out.
func lasting(t *testing.T, dir string) (torn int) {
	call := func(id string) []journal.Entry {
		return []journal.Entry{journaltest.Call(id, "shell", `{"t":"\"}\\ü"}`), journaltest.Started(id, 1), journaltest.Result(id, 1, `"`+id+strings.Repeat(" long", 80_000)+`"`)}
	}
	store, err := journal.OpenFiles(filepath.Join(dir, ".steno"), true)
	must(t, err)
	j, err := journal.Open(t.Context(), store, "s1", journaltest.Options())
	must(t, err)
	journaltest.Append(t, j, call("c1")...)
	must(t, errors.Join(j.Close(), store.Close()))
	f, err := os.OpenFile(segment(dir, "000001.jsonl"), os.O_WRONLY|os.O_APPEND, 0)
	must(t, err)
	torn, err = f.WriteString(`{"v":1,"session":"s1","seq":6,"epo`)
	must(t, errors.Join(err, f.Close()))
	written(t, dir, "s1", true, call("c2"), []journal.Entry{journaltest.Note("end")})
	return torn
}

func segment(dir, name string) string { return filepath.Join(dir, ".steno", "sessions", "s1", name) }

// Whoever has a bundle and no steno can tell a sound one from one that was
// changed, and is told no damage where a seal has left a torn tail out.
func TestABundleIsCheckedWithoutSteno(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	torn := lasting(t, dir)
	good(t, dir, "head", "--new-key", "example.org/steno", "--key", "key")
	before := strings.Join(tree(t, filepath.Join(dir, ".steno")), "\n")
	out := good(t, dir, "export", "s1", "--format", "bundle", "--key", "key")
	if again := good(t, dir, "export", "s1", "--format", "bundle", "--key", "key"); again != out {
		t.Error("the same session made another bundle")
	}
	if after := strings.Join(tree(t, filepath.Join(dir, ".steno")), "\n"); after != before {
		t.Errorf("the store was\n%s\nand is\n%s", before, after)
	}
	sound, names := unbundled(t, []byte(out))
	if got := strings.Join(names, " "); !strings.HasPrefix(got, "report.md head head.note FORMAT.md KINDS.md verify.py verify.sh note.sh report.json s1/000001.jsonl s1/000002.jsonl s1/000003.jsonl s1/blobs/") || len(names) != 14 {
		t.Errorf("it holds %s", got)
	}
	head := strings.TrimSpace(read(t, sound, "head"))
	if want := strings.TrimSpace(good(t, dir, "head", "s1")); head != want || !strings.Contains(read(t, sound, "head.note"), "\nhead "+want+"\n") {
		t.Errorf("its head is %s, that of the session %s", head, want)
	}
	if report := read(t, sound, "report.json"); pick(t, report, "/ok") != true || pick(t, report, "/findings/0/kind") != "torn_tail" || report != good(t, dir, "verify", "s1", "-o", "json") {
		t.Errorf("verify says %s", report)
	}
	if md := read(t, sound, "report.md"); !strings.Contains(md, "torn_tail") || !strings.Contains(md, "the log is in order") {
		t.Errorf("the report is %s", md)
	}
	for _, name := range []string{"000001.jsonl", "000002.jsonl", "000003.jsonl"} {
		if b, err := os.ReadFile(segment(dir, name)); err != nil || string(b) != read(t, sound, "s1", name) {
			t.Errorf("%s is another one, %v", name, err)
		}
	}
	// Packed, the session has a seal more, and is the same bundle but for that.
	good(t, dir, "session", "pack", "s1")
	packed, _ := unbundled(t, []byte(good(t, dir, "export", "s1", "--format", "bundle")))
	for _, name := range names {
		if strings.HasPrefix(name, "s1/") && read(t, packed, name) != read(t, sound, name) {
			t.Errorf("of a packed session %s is another one", name)
		}
	}
	if _, err := os.Stat(filepath.Join(packed, "note.sh")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("without a note there is a program that checks it: %v", err)
	}
	const unchecked = "the signature in head.note was NOT checked"

	blob := names[len(names)-1]
	var line struct {
		Epoch, Seq uint64
		Sum        string
	}
	must(t, json.Unmarshal([]byte(strings.Split(read(t, sound, "s1", "000002.jsonl"), "\n")[2]), &line))
	early := fmt.Sprintf("%d.%d.%s", line.Epoch, line.Seq, line.Sum)
	lines := strings.SplitAfter(read(t, sound, "s1", "000003.jsonl"), "\n")
	for _, c := range []struct {
		name string
		do   func(dir string) (args []string)
		code int
		says string
	}{
		{"sound", func(string) []string { return nil }, 0, "is right, up to the head " + head},
		{"sound, and says what it did not check", func(string) []string { return nil }, 0, unchecked},
		{"sound, and says what is not judged", func(string) []string { return nil }, 0, fmt.Sprintf("000001.jsonl: the %d bytes behind event 5 are not judged", torn)},
		{"sound, by a head that was kept", func(string) []string { return []string{head} }, 0, "is right, up to the head " + head},
		{"sound, by an early head that was kept", func(dir string) []string { must(t, os.Remove(filepath.Join(dir, "head.note"))); return []string{early} }, 0, "is right, up to the head " + early},
		{"sound, by another head", func(string) []string { return []string{"3.11." + strings.Repeat("0", 64)} }, 1, ""},
		{"packed", func(dir string) []string {
			must(t, errors.Join(os.RemoveAll(dir), os.CopyFS(dir, os.DirFS(packed))))
			return nil
		}, 0, "is right"},
		{"a bit in a value", func(dir string) []string {
			must(t, change(filepath.Join(dir, "s1/000001.jsonl"), "shell", "sheml"))
			return nil
		}, 1, "000001.jsonl line 4"},
		{"a bit in a time", func(dir string) []string {
			must(t, change(filepath.Join(dir, "s1/000002.jsonl"), `"ts":"2`, `"ts":"3`))
			return nil
		}, 1, "000002.jsonl line 1"},
		{"the last line is gone", func(dir string) []string {
			put(t, dir, "s1/000003.jsonl", strings.Join(lines[:len(lines)-2], ""))
			return nil
		}, 1, ""},
		{"the newest segment is gone", func(dir string) []string { must(t, os.Remove(filepath.Join(dir, "s1/000003.jsonl"))); return nil }, 1, "the head is"},
		{"a segment is gone", func(dir string) []string { must(t, os.Remove(filepath.Join(dir, "s1/000002.jsonl"))); return nil }, 1, "000001.jsonl line"},
		{"a claim without a seal", func(dir string) []string {
			put(t, dir, "s1/000004.jsonl", strings.SplitAfter(read(t, dir, "s1/000003.jsonl"), "\n")[0])
			return nil
		}, 2, "seal"},
		{"a line in the middle is gone", func(dir string) []string {
			put(t, dir, "s1/000003.jsonl", lines[0]+lines[1]+strings.Join(lines[3:], ""))
			return nil
		}, 1, ""},
		{"the end of a sealed segment is gone", func(dir string) []string {
			b := read(t, dir, "s1/000001.jsonl")
			put(t, dir, "s1/000001.jsonl", b[:len(b)-100])
			return nil
		}, 1, "000001.jsonl line"},
		{"a line more in a sealed segment", func(dir string) []string {
			put(t, dir, "s1/000001.jsonl", read(t, dir, "s1/000001.jsonl")+"\n")
			return nil
		}, 0, "bytes behind event 5 are not judged"},
		{"something behind the head", func(dir string) []string { put(t, dir, "s1/000003.jsonl", strings.Join(lines, "")+"{\x00"); return nil }, 0, "the 2 bytes behind"},
		{"a NUL in a line", func(dir string) []string {
			put(t, dir, "s1/000001.jsonl", strings.Replace(read(t, dir, "s1/000001.jsonl"), "shell", "sh\x00ell", 1))
			return nil
		}, 1, "000001.jsonl line"},
		{"a blob is gone", func(dir string) []string { must(t, os.Remove(filepath.Join(dir, blob))); return nil }, 1, "no blob"},
		{"another blob", func(dir string) []string { must(t, change(filepath.Join(dir, blob), "long", "lung")); return nil }, 1, "another blob"},
		{"another head", func(dir string) []string { must(t, change(filepath.Join(dir, "head"), "3.", "2.")); return nil }, 1, "head.note"},
		{"no head", func(dir string) []string { must(t, os.Remove(filepath.Join(dir, "head"))); return nil }, 2, "no head"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			spoilt := filepath.Join(t.TempDir(), "s1.bundle")
			must(t, os.CopyFS(spoilt, os.DirFS(sound)))
			args := c.do(spoilt)
			for program, by := range judges(t) {
				if out, code := judge(t, spoilt, program, by, args...); code != c.code || !strings.Contains(out, c.says) {
					t.Errorf("%s: exit %d, want %d: %s", program, code, c.code, out)
				}
			}
		})
	}
}

// Who signed the head openssl says, by a key that comes from elsewhere. Without
// openssl, and without a key, it is said that nobody has looked.
func TestTheSignatureOfABundleIsCheckedWithoutSteno(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	written(t, dir, "s1", false, []journal.Entry{journaltest.Note("x")})
	key := strings.TrimSpace(good(t, dir, "head", "--new-key", "example.org/steno", "--key", "key"))
	other := strings.TrimSpace(good(t, dir, "head", "--new-key", "example.org/steno", "--key", "other"))
	sound, _ := unbundled(t, []byte(good(t, dir, "export", "s1", "--format", "bundle", "--key", "key")))
	if _, err := exec.LookPath("openssl"); err != nil {
		t.Log("there is no openssl here: signatures are not checked, and programs must say so")
		for program, by := range judges(t) {
			if out, code := judge(t, sound, program, by, key); code != 2 || !strings.Contains(out, "NOT checked") {
				t.Errorf("%s: exit %d: %s", program, code, out)
			}
		}
		return
	}
	store := strings.TrimSpace(read(t, dir, ".steno/store"))
	for _, c := range []struct {
		name string
		do   func(dir string)
		key  string
		code int
		says string
	}{
		{"as it was signed", func(string) {}, key, 0, "head.note is signed by example.org/steno\n"},
		{"by another key", func(string) {}, other, 1, "not signed by"},
		{"by another name", func(string) {}, strings.Replace(key, "org", "net", 1), 1, "not signed by"},
		{"by no key", func(string) {}, "example.org/steno+1+!", 1, "not signed by"},
		{"of a note that was changed", func(dir string) {
			must(t, change(filepath.Join(dir, "head.note"), store, strings.Repeat("0", len(store))))
		}, key, 1, "or was changed"},
		{"without openssl", func(dir string) {
			must(t, change(filepath.Join(dir, "note.sh"), "openssl pkeyutl -help", "0penssl pkeyutl -help"))
		}, key, 2, "NOT checked"},
		{"without a note", func(dir string) { must(t, os.Remove(filepath.Join(dir, "head.note"))) }, key, 2, "beside a head.note"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			spoilt := filepath.Join(t.TempDir(), "s1.bundle")
			must(t, os.CopyFS(spoilt, os.DirFS(sound)))
			c.do(spoilt)
			for program, by := range judges(t) {
				if out, code := judge(t, spoilt, program, by, c.key); code != c.code || !strings.Contains(out, c.says) || (code == 0) != strings.Contains(out, "is right, up to the head") {
					t.Errorf("%s: exit %d, want %d: %s", program, code, c.code, out)
				}
			}
		})
	}
}

// Of a damaged session the bundle has everything as it is, and no head.
func TestABundleOfADamagedSessionVouchesForNothing(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	lasting(t, dir)
	must(t, change(segment(dir, "000001.jsonl"), "shell", "sheml"))
	sum := sha256.Sum256([]byte("c2" + strings.Repeat(" long", 80_000)))
	blob := segment(dir, "blobs/"+hex.EncodeToString(sum[:])+".zst")
	must(t, os.WriteFile(blob, []byte("no frame"), 0o600))
	good(t, dir, "head", "--new-key", "example.org/steno", "--key", "key")
	out, errOut, code := steno(t, dir, "export", "s1", "--format", "bundle", "--key", "key")
	if code != 4 || !strings.Contains(errOut, "its head is not signed") || !strings.Contains(errOut, "sum_mismatch") {
		t.Fatalf("exit %d, %s", code, errOut)
	}
	bundle, names := unbundled(t, []byte(out))
	all := strings.Join(names, " ")
	if strings.Contains(all, "head") || read(t, bundle, "s1/blobs", filepath.Base(blob)) != "no frame" {
		t.Errorf("it holds %s", all)
	}
	if report := read(t, bundle, "report.json"); pick(t, report, "/ok") != false || pick(t, report, "/findings/0/reason") != "sum_mismatch" || !strings.Contains(report, "blob_mismatch") {
		t.Errorf("verify says %s", report)
	}
	for program, by := range judges(t) {
		if out, code := judge(t, bundle, program, by); code != 2 || !strings.Contains(out, "no head") {
			t.Errorf("%s: exit %d: %s", program, code, out)
		}
	}
	// Repaired it is in order for steno, and for nobody else to judge.
	good(t, dir, "repair", "s1", "--reason", "x", "--apply")
	bundle, _ = unbundled(t, []byte(good(t, dir, "export", "s1", "--format", "bundle")))
	for program, by := range judges(t) {
		if out, code := judge(t, bundle, program, by); code == 0 {
			t.Errorf("%s: exit %d: %s", program, code, out)
		}
	}
}

// A bundle that is made while its session is written stands still: what it says
// is true of what it holds.
func TestABundleOfASessionThatIsWrittenIsSound(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	j, err := journal.Open(t.Context(), journaltest.FilesIn(t, filepath.Join(dir, ".steno")), "s1", journaltest.Options())
	must(t, err)
	stop, done := make(chan bool), make(chan error)
	go func() {
		for {
			select {
			case <-stop:
				done <- j.Close()
				return
			default:
				if _, err := j.Append(t.Context(), journaltest.Note("n")); err != nil {
					done <- err
					return
				}
			}
		}
	}()
	var bundles []string
	for range 3 {
		out, errOut, code := steno(t, dir, "export", "s1", "--format", "bundle")
		if bundles = append(bundles, out); code != 0 {
			t.Errorf("exit %d, %s", code, errOut)
		}
	}
	close(stop)
	must(t, <-done)
	programs := judges(t)
	for _, out := range bundles {
		bundle, _ := unbundled(t, []byte(out))
		for program, by := range programs {
			if program == "verify.sh" && len(programs) > 1 {
				continue // it is slow, and has nothing else to say
			}
			if out, code := judge(t, bundle, program, by); code != 0 {
				t.Errorf("%s: exit %d: %s", program, code, out)
			}
		}
	}
}

func read(t *testing.T, path ...string) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(path...))
	must(t, err)
	return string(b)
}

func put(t *testing.T, dir, name, text string) {
	t.Helper()
	must(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
}

// What a tool or a user says is no word of the log.
func TestABundleIsNotFooledByItsContent(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	fake := `{"x":1,"blobs":["/y"],"output":{"ref":{"sha256":"` + strings.Repeat("a", 64) + `"}}}`
	result := func(id, output, structured string) []journal.Entry {
		return []journal.Entry{journaltest.Call(id, "shell", `{}`), journaltest.Started(id, 1),
			entry("tool_result", fmt.Sprintf(`{"call_id":%q,"attempt":1,"ok":true,"output":%q,"structured":%s,"duration_us":1}`, id, output, structured))}
	}
	alike := []journal.Entry{entry("user_message", `{"content":[{"type":"writer_opened","data":{"n":1},"skipped":["a"]}]}`), entry("x.mine", `{"a":{"x":1,"blobs":["/y"]},"dur":5}`)}
	written(t, dir, "s1", false, joined(alike, result("c1", "out", fake), result("c2", strings.Repeat("long ", 80_000), `{"y":1}`)))
	// One that says the like of the value that is a blob: a shell cannot tell which is which.
	written(t, dir, "s2", false, result("c1", strings.Repeat("long ", 80_000), fake))
	for id, want := range map[string]map[string]int{"s1": {"verify.sh": 0, "verify.py": 0}, "s2": {"verify.sh": 2, "verify.py": 0}} {
		bundle, _ := unbundled(t, []byte(good(t, dir, "export", id, "--format", "bundle")))
		for program, by := range judges(t) {
			if out, code := judge(t, bundle, program, by); code != want[program] {
				t.Errorf("%s, %s: exit %d: %s", id, program, code, out)
			}
		}
		blobs, err := filepath.Glob(filepath.Join(bundle, id, "blobs", "*"))
		must(t, err)
		must(t, os.WriteFile(blobs[0], []byte("other"), 0o600))
		for program, by := range judges(t) {
			if out, code := judge(t, bundle, program, by); code == 0 {
				t.Errorf("%s, %s: exit %d of another blob: %s", id, program, code, out)
			}
		}
	}
}
