package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"regexp/syntax"
	"slices"
	"strings"
	"testing"

	"steno/journal"
	"steno/journal/journaltest"
)

// seqs are the sessions and numbers that a search finds.
func seqs(t *testing.T, out string) string {
	t.Helper()
	var found []string
	for line := range strings.Lines(out) {
		var h hit
		must(t, json.Unmarshal([]byte(line), &h))
		found = append(found, fmt.Sprintf("%s/%d", h.Session, h.Seq))
	}
	return strings.Join(found, " ")
}

func TestS14ASearchFindsWhatIsThere(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	failed := entry("tool_result", `{"call_id":"c2","attempt":1,"ok":false,"error":{"kind":"timeout","message":"slow/er","details":{}},"duration_us":1}`)
	written(t, dir, "a", false, joined(ran("c1", "read", `{"path":"x/y","n":12345678901234567890}`, `"two\nlines"`),
		ran("c2", "bash", `{"command":"say \"hi\" \u001b[2J"}`, `""`)[:3], []journal.Entry{failed}))
	written(t, dir, "b", true, ran("c1", "bash", `{"command":"\u0067it push\/pull"}`, `""`)[:3], []journal.Entry{journaltest.Message("git push, ünd so weiter")})
	written(t, dir, "c", false, []journal.Entry{journaltest.Note(strings.Repeat("x", 300<<10) + " in the blob's end")})
	good(t, dir, "session", "pack", "c")
	written(t, dir, "d", false, []journal.Entry{journaltest.Note("gone")})
	good(t, dir, "session", "rm", "d", "--reason", "test", "--apply")
	for args, want := range map[string]string{
		"git push":               "b/3 b/7",
		"push/pull":              "b/3",
		"ünd":                    "b/7",
		"(?i)GIT PUSH":           "b/3 b/7",
		"^git .*r$":              "b/7",
		"(?m)^lines":             "a/6",
		`say "hi"`:               "a/7",
		"12345678901234567890":   "a/3",
		"-F|n.a":                 "",
		"the blob's end":         "c/3",
		"gone":                   "",
		"|--kind|timeout":        "a/10",
		"slow.er|--kind|timeout": "a/10",
		"|--kind|interrupted":    "",
		"c1|--tool|bash":         "b/3 b/4 b/5",
		"|--tool|read":           "a/3 a/4 a/5 a/6",
		"|--state|failed":        "a/7 a/8 a/9 a/10",
		"bash|--state|unknown":   "b/3",
		"git|a":                  "",
		"git|b|a":                "b/3 b/7",
		"git|latest":             "",
		"push|--since|1h":        "b/3 b/7",
		"push|--until|1h":        "",
		"push|--since|2020-01-01|--until|2021-01-01T00:00:00Z": "",
	} {
		words := strings.Split(args, "|")
		if words[0] == "-F" {
			words = []string{"-F", words[1]}
		}
		if got := seqs(t, good(t, dir, append([]string{"search", "-o", "jsonl"}, words...)...)); got != want {
			t.Errorf("search %q finds %s, want %s", args, got, want)
		}
	}
	if out := good(t, dir, "search", "say"); !strings.Contains(out, `a        7    `) || !strings.Contains(out, `say "hi" \x1b[2J`) {
		t.Error(out)
	}
	if out := good(t, dir, "search", "nowhere", "-o", "json"); out != "[]\n" {
		t.Error(out)
	}
	for _, args := range [][]string{{"("}, {"x", "--kind", "no"}, {"x", "--state", "no"}, {"x", "--since", "no"}, {"x", "../a"}, {}} {
		if _, errOut, code := steno(t, dir, append([]string{"search"}, args...)...); code != 2 || !strings.Contains(errOut, `"next"`) {
			t.Errorf("search %q: exit %d, %s", args, code, errOut)
		}
	}
	if _, _, code := steno(t, dir, "search", "x", "nobody"); code != 3 {
		t.Errorf("an unknown session: exit %d", code)
	}
}

// Values that lie beside the log are looked through to their end, however they are
// kept, text by text, and nothing of them is anything but text.
func TestS14ASearchLooksIntoBlobs(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	far := func(text string) string {
		return strings.Repeat("far ", 60_000) + text + strings.Repeat(" away", 60_000)
	}
	value := `{"name-in-the-blob":[1234567,null,true,{"deep":"q\u00fc\ud83d\ude00\/\n` + far("") + `"},"tail needle"],"last":-5.25e3}`
	written(t, dir, "plain", false, joined(ran("c1", "read", `{}`, `"`+far(`the \"needle\" is`)+`"`), []journal.Entry{
		entry("x.value", `{"content":`+value+`}`), journaltest.Note(far("a needle and its [seam")), journaltest.Note("near")}))
	written(t, dir, "packed", false, []journal.Entry{journaltest.Note(far("needle in an archive"))})
	good(t, dir, "session", "pack", "packed")
	written(t, dir, "odd", true, []journal.Entry{journaltest.Note(far("needle of one that died"))})
	for args, want := range map[string]string{
		"needle":                "odd/3 packed/3 plain/6 plain/7 plain/8",
		`the "needle" is`:       "plain/6",
		"-F|its [seam":          "plain/8",
		"(?i)NEEDLE AND":        "plain/8",
		"^tail needle$":         "plain/7",
		"^needle":               "",
		"^1234567$":             "plain/7",
		"^-5.25e3$":             "plain/7",
		"qü😀/\nfar":             "plain/7",
		"name-in-the-blob":      "",
		"null":                  "",
		"a{2}way":               "",
		"[mn]eedle is?":         "packed/3",
		"[n]eedle":              "odd/3 packed/3 plain/6 plain/7 plain/8",
		`needle.{0,9}\[s`:       "plain/8",
		"needle.*seam":          "plain/8",
		`\bneedle"`:             "plain/6",
		"needle|--tool|read":    "plain/6",
		"needle|--kind|timeout": "",
	} {
		words := strings.Split(args, "|")
		if words[0] == "-F" {
			words = []string{"-F", words[1]}
		}
		if got := seqs(t, good(t, dir, append([]string{"search", "-o", "jsonl"}, words...)...)); got != want {
			t.Errorf("search %q finds %s, want %s", args, got, want)
		}
	}
	out := good(t, dir, "search", "needle", "plain", "-o", "json")
	if at, text := pick(t, out, "/0/at"), fmt.Sprint(pick(t, out, "/0/text")); at != "/output" || !strings.HasPrefix(text, "…") || !strings.Contains(text, `far the "needle" is away`) {
		t.Errorf("it shows %s as %q", at, text)
	}
	if text := fmt.Sprint(pick(t, out, "/1/text")); text != "tail needle" { // the whole of it
		t.Errorf("it shows %q", text)
	}
	// One that is gone, or is another one, is named and hides nothing.
	blobs, err := filepath.Glob(filepath.Join(dir, ".steno/sessions/plain/blobs/*"))
	must(t, err)
	must(t, os.Remove(blobs[0]))
	must(t, os.WriteFile(blobs[1], []byte("needle of another"), 0o600))
	out, errOut, code := steno(t, dir, "search", "needle|near", "-o", "jsonl")
	if got := seqs(t, out); code != 4 || strings.Count(got, "plain/") != 2 || !strings.Contains(got, "plain/9") || strings.Count(errOut, "corrupt_log_line") != 1 || !strings.Contains(errOut, "blob_") {
		t.Errorf("exit %d, it finds %s\n%s", code, got, errOut)
	}
}

// Piece by piece a value is found to hold what it holds, wherever pieces end, and
// in the same place as rune by rune.
func TestABlobIsSearchedInPieces(t *testing.T) {
	t.Parallel()
	for _, pattern := range []string{"needle", "(?i)N[e-e]{2}dlE", "nee(dle|)dle", "ü?needle", "x{0,40}needle"} {
		re := regexp.MustCompile(pattern)
		parsed, err := syntax.Parse(pattern, syntax.Perl)
		must(t, err)
		longest := longestOf(parsed)
		if longest == 0 && !strings.Contains(pattern, "|)") {
			t.Fatalf("of %s a match may have any length", pattern)
		}
		for off := 32<<10 - 30; off < 32<<10+300; off += 7 {
			text := strings.Repeat("ü", off/2) + strings.Repeat(".", off%2) + "needle" + strings.Repeat(" far", 20_000)
			in := texts{in: bufio.NewReader(strings.NewReader(text))}
			in.next()
			if got, want := in.find(re, longest), re.FindStringIndex(text); !slices.Equal(got, want) {
				t.Fatalf("%s behind %d bytes is at %v, not %v", pattern, off, got, want)
			}
			in = texts{in: bufio.NewReader(strings.NewReader(text[:off]))}
			in.next()
			if got := in.find(re, longest); got != nil {
				t.Fatalf("%s is at %v, where it is not", pattern, got)
			}
		}
	}
	for pattern, want := range map[string]int{"ab": 8, "a|bcd": 12, "a{3}": 12, "a*": 0, "^a": 0, `\ba`: 0, "a+": 0, "(?i)k": 4, "[^a]": 4, "x{999}y{999}": 0, "": 0} {
		parsed, err := syntax.Parse(pattern, syntax.Perl)
		must(t, err)
		if got := longestOf(parsed); got != want {
			t.Errorf("a match of %q has at most %d bytes, want %d", pattern, got, want)
		}
	}
}

// Whatever is wrong with a session is named and hides no other, and nothing that
// does not count is found.
func TestS14ASearchNamesDamagedSessions(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for _, id := range []string{"a", "b", "c", "d", "e"} {
		written(t, dir, id, false, []journal.Entry{journaltest.Note("one"), journaltest.Note("needle"), journaltest.Note("three")})
	}
	at := func(id string) string { return filepath.Join(dir, ".steno/sessions", id, "000001.jsonl") }
	must(t, change(at("a"), "three", "thrEE"))
	b, err := os.ReadFile(at("b"))
	must(t, err)
	lines := strings.SplitAfter(string(b), "\n")
	must(t, os.WriteFile(at("b"), []byte(strings.Join(append(lines[:3:3], lines[4:]...), "")), 0o600)) // a line is gone, with its sums right
	must(t, os.Chmod(at("c"), 0o666))
	f, err := os.OpenFile(at("d"), os.O_APPEND|os.O_WRONLY, 0)
	must(t, err)
	_, err = f.WriteString(`{"v":1,"session":"d","seq":7,"needle`)
	must(t, err)
	must(t, f.Close())
	out, errOut, code := steno(t, dir, "search", "needle", "-o", "jsonl")
	if got := seqs(t, out); got != "a/4 b/4 d/4 e/4" || code != 4 {
		t.Errorf("it finds %s, exit %d", got, code)
	}
	for _, want := range []string{`"session":"a"`, `"session":"b"`, "unsafe_state_path"} {
		if strings.Count(errOut, want) != 1 {
			t.Errorf("%s is named %d times in\n%s", want, strings.Count(errOut, want), errOut)
		}
	}
	// Damage is named also where nothing matches.
	if _, errOut, code := steno(t, dir, "search", "nowhere"); code != 4 || strings.Count(errOut, "corrupt_log_line") != 2 {
		t.Errorf("exit %d, %s", code, errOut)
	}
}

// callsOfMany are those of each of manySessions.
const callsOfMany = 249

// manySessions writes sessions of 1,000 events, one in a hundred with a needle.
func manySessions(b *testing.B, sessions int) (dir string) {
	dir = b.TempDir()
	for s := range sessions {
		var entries []journal.Entry
		for n := range callsOfMany {
			word := "nothing"
			if n == 100 && s%100 == 0 {
				word = "needle"
			}
			entries = append(entries, ran(fmt.Sprint("c", n), "read", fmt.Sprintf(`{"path":"src/%d/file.go","limit":100,"why":%q}`, n, word), `"package main // some text that a tool gave"`)...)
		}
		written(b, dir, fmt.Sprintf("s%04d", s), false, entries)
	}
	return dir
}

// BenchmarkSearch goes through 1,000 sessions of 1,000 events, and counts the calls
// that went well, beside grep and jq.
func BenchmarkSearch(b *testing.B) {
	const sessions = 1000
	dir := manySessions(b, sessions)
	run := func(name, says string, n int, args ...string) {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				cmd := exec.Command(args[0], args[1:]...)
				cmd.Dir = dir
				out, err := cmd.CombinedOutput()
				if is := strings.Count(string(out), says); err != nil || is != n {
					b.Fatalf("%v, %d found: %.300s", err, is, out)
				}
			}
		})
	}
	const logs = "cat .steno/sessions/*/0*.jsonl | "
	jq := func(name, says string, n int, filter string) {
		if _, err := exec.LookPath("jq"); err == nil {
			run(name, says, n, "sh", "-c", logs+"jq "+filter)
		}
	}
	run("steno search", "needle", sessions/100, "steno", "search", "needle")
	run("grep", "needle", sessions/100, "sh", "-c", "grep -h needle .steno/sessions/*/0*.jsonl")
	jq("jq search", "needle", sessions/100, `-c 'select(.data.args.why? == "needle")'`)
	count := fmt.Sprint(sessions * callsOfMany)
	run("steno count", `"ok":`+count, 1, "steno", "check", "--logs", "-o", "json")
	jq("jq count", `"true":`+count, 1, `-nc 'reduce (inputs | select(.type? == "tool_result") | .data.ok) as $ok ({}; .[$ok | tostring] += 1)'`)
}

// BenchmarkVerify reads 200 sessions of 1,000 events with one processor and with two.
func BenchmarkVerify(b *testing.B) {
	const sessions = 200
	dir := manySessions(b, sessions)
	for _, cores := range []string{"1", "2"} {
		b.Run(cores, func(b *testing.B) {
			for b.Loop() {
				cmd := exec.Command("steno", "verify")
				cmd.Dir, cmd.Env = dir, append(os.Environ(), "GOMAXPROCS="+cores)
				if out, err := cmd.CombinedOutput(); err != nil || strings.Count(string(out), "ok  ") != sessions {
					b.Fatalf("%v: %.300s", err, out)
				}
			}
			b.ReportMetric(sessions*1000*float64(b.N)/b.Elapsed().Seconds(), "events/s")
		})
	}
}
