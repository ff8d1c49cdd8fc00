package main

import (
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"html"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"unicode"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"steno/journal"
	"steno/journal/journaltest"
)

// evil are texts that a tool, a model or a person may have said. Each has the
// word in it by which it is found again.
func evil() []string {
	texts := []string{
		"![EVIL](https://evil.example/EVIL.png)", "[EVIL](javascript:EVIL)", "<img src=x onerror=EVIL>", "</script><script>EVIL()</script>", "<!-- EVIL",
		"</pre></code></details><h1>EVIL", "]]>EVIL", "&lt;EVIL&#x3c;", `"><svg onload="EVIL">`, "' onmouseover='EVIL", "https://evil.example/EVIL www.evil.example <https://EVIL.example>",
		"a\n```\n![EVIL](x)\n```", "``````EVIL``````", "`EVIL", "EVIL`", " EVIL ", "a\n~~~\n# EVIL", "a\r\n# EVIL\r- EVIL", "|EVIL|\n|-|", "[EVIL]: https://evil.example", "{{EVIL}}", "\\`EVIL\\`",
	}
	all := "EVIL"
	for r := rune(1); r < 0x100; r++ {
		if unicode.IsControl(r) {
			all += string(r) + "x"
		}
	}
	for _, r := range "\u061c\u200b\u200c\u200d\u200e\u200f\u2028\u2029\u202a\u202b\u202c\u202d\u202e\u2060\u2066\u2067\u2068\u2069\ufeff\u00ad" {
		all += string(r) + "y"
	}
	return append(texts, all, "\x1b]52;c;EVIL\x07\x1b[2J")
}

// evilSession has each of them wherever a log takes a text.
func evilSession(t testing.TB, dir string) {
	q := func(s string) string {
		b, err := jsontext.AppendQuote(nil, s)
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	var entries []journal.Entry
	for n, s := range evil() {
		id := fmt.Sprintf("c%d", n)
		args, err := json.Marshal(map[string]string{s: s}, json.Deterministic(true))
		if err != nil {
			t.Fatal(err)
		}
		actor := `"actor":{"id":` + q(s) + `,"via":` + q(s) + `}`
		entries = append(entries, entry("user_message", `{"text":`+q(s)+`,`+actor+`}`), entry("assistant_message", `{"content":[{"type":"text","text":`+q(s)+`}],"model":`+q(s)+`,"partial":true}`),
			entry("reasoning", `{"item":`+string(args)+`,"model":`+q(s)+`}`), journaltest.Call(id, "shell", string(args)),
			entry("approval_requested", `{"call_id":"`+id+`","approval_id":`+q(s)+`,"reason":`+q(s)+`}`),
			entry("permission_decision", `{"call_id":"`+id+`","approval_id":`+q(s)+`,"decision":"allow","gate":`+q(s)+`,"by":"human","rule":`+q(s)+`,"reason":`+q(s)+`,`+actor+`}`),
			entry("tool_started", `{"call_id":"`+id+`","attempt":1,"executor":`+q(s)+`,"tool_version":`+q(s)+`}`),
			entry("tool_result", `{"call_id":"`+id+`","attempt":1,"ok":false,"duration_us":1,"error":{"kind":"tool_failed","message":`+q(s)+`,"details":`+string(args)+`},"output":`+q(s)+
				`,"summary":`+q(s)+`,"redacted":[{"pointer":`+q(s)+`,"rule":`+q(s)+`,"hash":`+q(s)+`}],"structured":`+string(args)+`}`),
			entry("note", string(args)), entry("x.own", q(s)), entry("x.own", string(args)))
	}
	written(t, dir, "s1", false, entries)
}

// silent fails for whatever could act on a terminal or turn the text around.
func silent(t *testing.T, out string) {
	t.Helper()
	for i, r := range out {
		if r != '\n' && r != '\t' && (unicode.IsControl(r) || unicode.In(r, unicode.Cf, unicode.Zl, unicode.Zp)) || r == unicode.ReplacementChar {
			t.Fatalf("%U stands in %q", r, out[max(0, i-80):i+20])
		}
	}
}

// What anybody said stands in code spans and fences, where it is text.
func TestWhatStandsInALogIsNothingButTextInMarkdown(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	evilSession(t, dir)
	out := good(t, dir, "export", "s1", "--format", "md")
	silent(t, out)
	fence, said, blocks := "", 0, 0
	for _, line := range strings.Split(out, "\n") {
		switch {
		case fence != "":
			if said += strings.Count(line, "EVIL"); strings.HasPrefix(strings.TrimLeft(line, " "), fence) {
				if line != fence {
					t.Errorf("a fence ends with %q", line)
				}
				fence = ""
			}
			continue
		case strings.HasPrefix(line, "```"):
			fence, blocks = strings.TrimSuffix(line, "text"), blocks+1
			if strings.Trim(fence, "`") != "" {
				t.Errorf("a fence begins with %q", line)
			}
			continue
		}
		for line != "" { // as CommonMark has it: a span ends at the first run that is as long as its first
			i := strings.IndexByte(line, '`')
			if i < 0 {
				i = len(line)
			}
			if strings.ContainsAny(line[:i], "<>[]!&\\|{}") && !strings.HasPrefix(line, "> **") || strings.Contains(line[:i], "EVIL") {
				t.Errorf("outside of a span stands %q", line[:i])
			}
			if line = line[i:]; line == "" {
				break
			}
			marks := len(line) - len(strings.TrimLeft(line, "`"))
			end := -1
			for at := marks; at < len(line); {
				n := len(line[at:]) - len(strings.TrimLeft(line[at:], "`"))
				if n == marks {
					end = at
					break
				}
				at += max(1, n)
			}
			if end < 0 {
				t.Fatalf("a span does not end: %q", line)
			}
			said += strings.Count(line[:end], "EVIL")
			line = line[end+marks:]
		}
	}
	if fence != "" || said < 20*len(evil()) || blocks < 8*len(evil()) {
		t.Errorf("%d words in %d blocks, fence %q", said, blocks, fence)
	}
}

var (
	tag  = regexp.MustCompile("<[^>]*>")
	tags = regexp.MustCompile(`^<(!doctype html|html lang="en"|meta [^<>]*|/?(html|head|title|body|h1|h2|h3|dl|dt|dd|main|code|p|ul|li|i|b|strong|details|summary|style)|/?(details open|pre|div|time|article|a)|` +
		`dd class="error"|p class="(key|open|finding (error|notice))"|article id="\d+" class="[a-z]+"|div class="lanes" aria-hidden="true"|time datetime="[0-9T:.Z-]+"|a href="#\d+"|b class="[a-z]*"|` +
		`i class="[a-z ]+" title="[^<>"]*")>$`)
)

// A page has no tag and no attribute but ours, and links into itself only.
func TestWhatStandsInALogIsNothingButTextInHTML(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	evilSession(t, dir)
	out := good(t, dir, "export", "s1", "--format", "html")
	silent(t, out)
	style, body, ok := strings.Cut(out, "</style>")
	style, css, begun := strings.Cut(style, "<style>")
	sum := sha256.Sum256([]byte(css))
	if policy := `content="default-src 'none'; style-src 'sha256-` + base64.StdEncoding.EncodeToString(sum[:]) + `'; base-uri 'none'; form-action 'none'"`; !ok || !begun || !strings.Contains(style, policy) {
		t.Errorf("the policy does not fit the style: %.600s", out)
	}
	if strings.Contains(css, "url(") || strings.Contains(css, "@import") || strings.Contains(css, "<") {
		t.Error("the style loads something")
	}
	for _, v := range tag.FindAllString(style+body, -1) {
		if !tags.MatchString(v) {
			t.Errorf("there is the tag %q", v)
		}
	}
	text := tag.ReplaceAllString(body, "")
	if strings.ContainsAny(text, `<>"'`) || strings.Count(text, "EVIL") < 20*len(evil()) {
		t.Errorf("%d words, or a mark that is not escaped", strings.Count(text, "EVIL"))
	}
	// What was said is all there: nothing was lost to be safe.
	for _, s := range evil() {
		if !strings.Contains(html.UnescapeString(text), inertLines(s)) {
			t.Errorf("%q is not there", s)
		}
	}
}

// Calls side by side have bars of their own, as long as they are open; a link
// leads from each result to its call, and to each event.
func TestAPageDrawsCallsSideBySide(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	written(t, dir, "s1", true, []journal.Entry{journaltest.Call("a", "shell", `{}`), journaltest.Started("a", 1), journaltest.Call("b", "shell", `{}`), journaltest.Started("b", 1),
		journaltest.Result("a", 1, `"x"`)}, []journal.Entry{journaltest.Note("n")})
	out := good(t, dir, "export", "s1", "--format", "html")
	rows := regexp.MustCompile(`<article id="(\d+)" class="(\w+)"><div class="lanes" aria-hidden="true">(.*?)</div>`).FindAllStringSubmatch(out, -1)
	want := []string{
		`1 epoch `, `2 other `, `3 call <i class="idle first" title="a shell"><b class="">○</b></i>`, `4 start <i class="runs" title="a shell"><b class="">▶</b></i>`,
		`5 call <i class="runs" title="a shell"></i><i class="idle first" title="b shell"><b class="">○</b></i>`, `6 start <i class="runs" title="a shell"></i><i class="runs" title="b shell"><b class="">▶</b></i>`,
		`7 result <i class="runs last" title="a shell"><b class="good">●</b></i><i class="runs" title="b shell"></i>`, `8 epoch <i></i><i class="lost" title="b shell"></i>`,
		`9 other <i></i><i class="lost" title="b shell"></i>`, `10 epoch <i></i><i class="lost" title="b shell"></i>`,
	}
	for i, r := range rows {
		if got := strings.Join(r[1:], " "); i >= len(want) || got != want[i] {
			t.Errorf("row %d is %s", i, got)
		}
	}
	for _, w := range []string{`<a href="#3">its call</a>`, `<a href="#7">event 7</a>`, `<p class="open"><a href="#5">#5</a> Call <code>b</code> of <code>shell</code> has no result; its writer is gone`} {
		if !strings.Contains(out, w) {
			t.Errorf("there is no %s", w)
		}
	}
	if len(rows) != len(want) {
		t.Errorf("%d rows: %s", len(rows), out)
	}
}

func TestARecordSaysWhatIsLeftOutAndWhatIsDamaged(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	large := strings.Repeat("long text ", 40_000)
	written(t, dir, "s1", true, []journal.Entry{
		journaltest.Call("c1", "shell", `{"n":12345678901234567890}`),
		entry("permission_decision", `{"call_id":"c1","decision":"allow","gate":"policy","by":"policy","rule":"trusted","policy_hash":"00"}`),
		journaltest.Started("c1", 1),
		entry("tool_result", `{"call_id":"c1","attempt":1,"ok":false,"duration_us":0,"synthetic":true,"error":{"kind":"interrupted","message":"nobody knows","details":{}}}`),
		entry("tool_result", `{"call_id":"c1","attempt":1,"ok":true,"duration_us":7000,"output":"late","supersedes":6}`),
		journaltest.Call("c2", "shell", `{}`), journaltest.Result("c2", 1, `"`+large+`"`),
		entry("history_rewind", `{"to_seq":7}`),
	}, []journal.Entry{journaltest.Note("after")})
	out := good(t, dir, "export", "s1", "--format", "md")
	for _, want := range []string{
		"# Session `s1`\n", "- **head:** `2.13.", "- **holds:** 13 events in 2 epochs, 2 calls\n", "- **synthetic:** 1 result written", "- **superseded:** 1 result that", "the log is in order\n",
		"\n## #1 Epoch 1 begins the session\n", "\n## #11 Epoch 2 TAKES OVER: the writer before was dead\n", "- Of epoch 1 counts what ends with event 10\n",
		"\n### #4 Call `c1` gets `allow` by `policy` at the gate `policy` under the rule `trusted`\n", "\n### #5 Call `c1` starts, attempt 1, in ",
		"\n### #6 Call `c1` failed with `interrupted` which leaves open what became of it after 0s, attempt 1\n", "\n- SYNTHETIC: ", "\n- SUPERSEDED by the result in event 7\n", "\n- It replaces the result in event 6\n",
		"12345678901234567890", "\n- TAKEN BACK by event 10\n", "`output` (400000 bytes, of which this is the beginning and the end; sha256 ",
	} {
		if !strings.Contains(out, want) {
			t.Errorf("there is no %q", want)
		}
	}
	if len(out) > 80_000 {
		t.Errorf("it has %d bytes", len(out))
	}
	if t.Failed() {
		t.Log(out)
	}
	if asOf := good(t, dir, "export", "s1", "--format", "md", "--as-of", "5"); !strings.Contains(asOf, "- **head:** `1.5.") || strings.Contains(asOf, "#6") || strings.Contains(asOf, "SUPERSEDED") {
		t.Errorf("as of 5 it is %s", asOf)
	}
	if a, b := good(t, dir, "export", "s1", "--format", "jsonl"), good(t, dir, "session", "show", "s1", "-o", "jsonl"); a != b {
		t.Errorf("as jsonl it is %.300s", a)
	}
	// Damage is named where it stands, and the rest goes on.
	must(t, change(filepath.Join(dir, ".steno", "sessions", "s1", "000001.jsonl"), `"rule":"trusted"`, `"rule":"trustee"`))
	out, errOut, code := steno(t, dir, "export", "s1", "--format", "md")
	if i := strings.Index(out, "\n> **ERROR** `000001.jsonl line 5, "); code != 4 || i < strings.Index(out, "### #3 ") || i > strings.Index(out, "### #5 ") || !strings.Contains(errOut, `"sum_mismatch"`) {
		t.Errorf("exit %d, %s: %s", code, errOut, out)
	}
	if !strings.Contains(out, "THE LOG IS DAMAGED") || !strings.Contains(out, "- **error:** `000001.jsonl line 5") || !strings.Contains(out, "#13 ") {
		t.Errorf("of a damaged log it is %s", out)
	}
}

// A file of an export is whole, is never written over, and nothing stands beside it.
func TestAnExportMakesAFileOrNone(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	written(t, dir, "s1", false, []journal.Entry{journaltest.Call("c1", "shell", `{}`)})
	before := strings.Join(tree(t, filepath.Join(dir, ".steno")), "\n")
	for _, format := range append([]string{"openai"}, ownFormats...) {
		want, at := good(t, dir, "export", "s1", "--format", format), filepath.Join(dir, format)
		if out := good(t, dir, "export", "s1", "--format", format, "--to", format); out != "" {
			t.Errorf("with --to it says %q", out)
		}
		if b, err := os.ReadFile(at); err != nil || string(b) != want {
			t.Errorf("%s: %v, %d bytes, want %d", format, err, len(b), len(want))
		}
		must(t, os.WriteFile(at, []byte("mine"), 0o600))
		if _, errOut, code := steno(t, dir, "export", "s1", "--format", format, "--to", format); code != 1 || !strings.Contains(errOut, `"already_exists"`) {
			t.Errorf("over a file: exit %d, %s", code, errOut)
		}
		if b, err := os.ReadFile(at); err != nil || string(b) != "mine" {
			t.Errorf("%s is now %.40q, %v", format, b, err)
		}
		must(t, os.Remove(at))
	}
	for args, want := range map[string]string{
		"s1 --format md --to none/at/all":  `exit 1 write_failed`,
		"s1 --format md --to x --as-of 99": `exit 3 not_found`,
		"s1 --format md --as-of 0":         `exit 2 invalid_args`,
		"none --format md --to x":          `exit 3 not_found`,
		"s1 --format md --lenient":         `exit 2 invalid_args`,
		"s1 --format md -o json":           `exit 2 invalid_args`,
		"s1 --format no --to x":            `exit 2 invalid_args`,
		"copy --all --to x":                `exit 2 invalid_args`,
		"s1 --to x":                        `exit 2 invalid_args`,
	} {
		out, errOut, code := steno(t, dir, append([]string{"export"}, strings.Fields(args)...)...)
		var kind string
		if i := strings.Index(errOut, `"kind":"`); i >= 0 {
			kind, _, _ = strings.Cut(errOut[i+8:], `"`)
		}
		if got := fmt.Sprintf("exit %d %s", code, kind); out != "" || got != want {
			t.Errorf("export %s: %s, want %s; %s%s", args, got, want, out, errOut)
		}
	}
	// A damaged session is written all the same.
	must(t, change(filepath.Join(dir, ".steno", "sessions", "s1", "000001.jsonl"), `"c1"`, `"c2"`))
	if _, _, code := steno(t, dir, "export", "s1", "--format", "md", "--to", "md"); code != 4 {
		t.Errorf("of a damaged session: exit %d", code)
	}
	must(t, change(filepath.Join(dir, ".steno", "sessions", "s1", "000001.jsonl"), `"c2"`, `"c1"`))
	if b, err := os.ReadFile(filepath.Join(dir, "md")); err != nil || !strings.Contains(string(b), "THE LOG IS DAMAGED") {
		t.Errorf("of a damaged session: %v, %s", err, b)
	}
	if list, err := os.ReadDir(dir); err != nil || len(list) != 2 {
		t.Errorf("beside the store and the record stand %v, %v", list, err)
	}
	if after := strings.Join(tree(t, filepath.Join(dir, ".steno")), "\n"); after != before {
		t.Errorf("the store was\n%s\nand is\n%s", before, after)
	}
}
