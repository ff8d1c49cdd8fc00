package schema_test

import (
	"bytes"
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"steno/schema"
)

var update = flag.Bool("update", false, "write KINDS.md anew")

// A constant is one string constant of a source file of this package.
type constant struct {
	name, typ, value, comment string
}

func constants(t testing.TB, file string) []constant {
	t.Helper()
	f, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.ParseComments)
	if err != nil {
		t.Fatal(err)
	}
	var out []constant
	for _, d := range f.Decls {
		g, ok := d.(*ast.GenDecl)
		if !ok || g.Tok != token.CONST {
			continue
		}
		for _, s := range g.Specs {
			v := s.(*ast.ValueSpec)
			for i, name := range v.Names {
				c := constant{name: name.Name, comment: strings.TrimSpace(v.Comment.Text())}
				if id, ok := v.Type.(*ast.Ident); ok {
					c.typ = id.Name
				}
				if i < len(v.Values) {
					if lit, ok := v.Values[i].(*ast.BasicLit); ok && lit.Kind == token.STRING {
						if c.value, err = strconv.Unquote(lit.Value); err != nil {
							t.Fatal(err)
						}
					}
				}
				out = append(out, c)
			}
		}
	}
	return out
}

// types are the types of events that the package has constants for.
func types(t testing.TB) []string {
	t.Helper()
	var out []string
	for _, c := range constants(t, "event.go") {
		if strings.HasPrefix(c.name, "Type") {
			out = append(out, c.value)
		}
	}
	if len(out) == 0 {
		t.Fatal("no constants found")
	}
	return out
}

func format(t testing.TB) string {
	t.Helper()
	b, err := os.ReadFile("FORMAT.md")
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func TestFormatPageNamesEveryTypeAndReason(t *testing.T) {
	page := format(t)
	reasons := 0
	for _, c := range constants(t, "finding.go") {
		if c.typ == "Reason" {
			reasons++
			if !strings.Contains(page, "`"+c.value+"`") {
				t.Errorf("the page does not name the reason %s", c.value)
			}
		}
	}
	if reasons != 23 {
		t.Errorf("%d reasons; the format has 23", reasons)
	}
	for _, typ := range append(types(t), "text_delta", "reasoning_delta", "tool_progress", "status", "plan", "context_pressure") {
		if !strings.Contains(page, "`"+typ+"`") {
			t.Errorf("the page does not name the type %s", typ)
		}
	}
	for _, k := range schema.Kinds() {
		if k.Origin == "finding" && !strings.Contains(page, "`"+string(k.Kind)+"`") {
			t.Errorf("the page does not name the finding %s", k.Kind)
		}
	}
	for _, n := range []int{schema.MaxLine, schema.MaxDepth, schema.MaxInline} {
		text := strconv.Itoa(n)
		if n > 999 {
			text = text[:len(text)-3] + "," + text[len(text)-3:]
		}
		if !strings.Contains(page, text) {
			t.Errorf("the page does not name the limit %s", text)
		}
	}
}

// The order in which the page lists the reasons of a line is the order in
// which they are decided; the vectors show that order, and this that the page
// tells it.
func TestFormatPageHasTheReasonsInTheirOrder(t *testing.T) {
	_, section, _ := strings.Cut(format(t), "## 7. Judging one line")
	section, _, ok := strings.Cut(section, "## 8.")
	if !ok {
		t.Fatal("no section 7")
	}
	at := -1
	for _, r := range []string{"over_limit", "blank_line", "nul_bytes", "invalid_utf8", "too_deep", "duplicate_key", "glued_lines",
		"invalid_json", "not_an_object", "unsupported_schema_version", "bad_envelope", "sum_mismatch"} {
		i := strings.Index(section, "`"+r+"`")
		if i <= at {
			t.Errorf("%s stands at %d, the one before at %d", r, i, at)
		}
		at = i
	}
}

// A typeRow is a row of the page's table of events.
type typeRow struct {
	typ       string
	required  map[string]string // key to kind
	all       map[string]string
	oneOf     []string
	mandatory []string // the required keys, in their order
}

var (
	keyKind = regexp.MustCompile("`([a-z_0-9]+)` (text|number|bool|object|array|any)")
	keyOr   = regexp.MustCompile("`([a-z_]+)` or `([a-z_]+)`")
)

func eventTable(t testing.TB) []typeRow {
	t.Helper()
	_, section, _ := strings.Cut(format(t), "| type | must have | may have |\n|---|---|---|\n")
	section, _, ok := strings.Cut(section, "\n\n")
	if !ok {
		t.Fatal("the page has no table of events")
	}
	var out []typeRow
	for text := range strings.SplitSeq(section, "\n") {
		cell := strings.Split(strings.Trim(text, "|"), "|")
		if len(cell) != 3 {
			t.Fatalf("not a row: %q", text)
		}
		r := typeRow{typ: strings.Trim(cell[0], " `"), required: map[string]string{}, all: map[string]string{}}
		for _, m := range keyKind.FindAllStringSubmatch(cell[1], -1) {
			r.required[m[1]], r.all[m[1]] = m[2], m[2]
			r.mandatory = append(r.mandatory, m[1])
		}
		for _, m := range keyKind.FindAllStringSubmatch(cell[2], -1) {
			r.all[m[1]] = m[2]
		}
		if m := keyOr.FindStringSubmatch(cell[1]); m != nil {
			r.oneOf = m[1:]
		}
		for k, v := range map[string]string{"actor": "object", "origin": "object", "replaced": "number", "blobs": "array"} {
			r.all[k] = v
		}
		out = append(out, r)
	}
	return out
}

func TestFormatPageHasExactlyTheKnownTypes(t *testing.T) {
	var got []string
	for _, r := range eventTable(t) {
		got = append(got, r.typ)
	}
	if want := types(t); !slices.Equal(got, want) {
		t.Errorf("the table has\n%v, the package\n%v", got, want)
	}
}

// A page that tells how to check a log by hand is worth what its commands do.
func TestFormatPageChecksALogByHand(t *testing.T) {
	for _, tool := range []string{"sh", "sha256sum", "cut"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skipf("needs %s: %v", tool, err)
		}
	}
	_, script, _ := strings.Cut(format(t), "```sh\n")
	script, _, ok := strings.Cut(script, "```")
	if !ok {
		t.Fatal("the page has no script")
	}
	segments := map[string][]byte{}
	var names []string
	var head string
	for _, r := range vectors(t, "log.txt") {
		name := strings.TrimPrefix(r.title, "segment ") + ".jsonl"
		if segments[name] == nil {
			names = append(names, name)
		}
		b := raw(t, r.text)
		head = string(b[len(b)-66 : len(b)-2])
		segments[name] = append(append(segments[name], b...), '\n')
	}
	check := func(change func(name string, b []byte) []byte) string {
		t.Helper()
		dir := t.TempDir()
		for _, name := range names {
			if err := os.WriteFile(filepath.Join(dir, name), change(name, segments[name]), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		cmd := exec.Command("sh", "-c", script)
		cmd.Dir = dir
		out, err := cmd.CombinedOutput()
		if sound := strings.HasPrefix(string(out), "head sum: "); sound != (err == nil) || strings.Contains(string(out), "head sum: ") != sound {
			t.Errorf("%v: %s", err, out)
		}
		return string(out)
	}
	if got, want := check(func(_ string, b []byte) []byte { return b }), "head sum: "+head+"\n"; got != want {
		t.Errorf("a sound log: %q, want %q", got, want)
	}
	first := func(edit func(lines [][]byte) [][]byte) string {
		return check(func(name string, b []byte) []byte {
			if name != names[0] {
				return b
			}
			return bytes.Join(edit(bytes.SplitAfter(b, []byte("\n"))), nil)
		})
	}
	for what, c := range map[string]struct{ got, want string }{
		"a letter changed": {first(func(l [][]byte) [][]byte { l[3] = bytes.Replace(l[3], []byte("hi"), []byte("ho"), 1); return l }), "000001.jsonl:4: sum_mismatch\n"},
		"a line deleted":   {first(func(l [][]byte) [][]byte { return slices.Delete(l, 3, 4) }), "000001.jsonl:4: chain_broken\n"},
		"a line repeated":  {first(func(l [][]byte) [][]byte { return slices.Insert(l, 4, l[3]) }), "000001.jsonl:5: chain_broken\n"},
		"the claim edited": {first(func(l [][]byte) [][]byte { l[0] = bytes.Replace(l[0], []byte("host-a"), []byte("host-b"), 1); return l }), "000001.jsonl:1: sum_mismatch\n"},
		"a NUL put in":     {first(func(l [][]byte) [][]byte { l[3] = bytes.Replace(l[3], []byte("hi"), []byte("h\x00i"), 1); return l }), "000001.jsonl: nul_bytes\n"},
		"bytes at the end": {first(func(l [][]byte) [][]byte { return append(l, []byte("x")) }), "000001.jsonl: the last line has no end\n"},
		"a NUL at the end": {first(func(l [][]byte) [][]byte { return append(l, []byte("\x00")) }), "000001.jsonl: nul_bytes\n000001.jsonl: the last line has no end\n"},
		"the end cut off":  {first(func(l [][]byte) [][]byte { l[len(l)-2] = l[len(l)-2][:9]; return l[:len(l)-1] }), "000001.jsonl: the last line has no end\n"},
		"all lines gone":   {first(func(l [][]byte) [][]byte { return nil }), "000001.jsonl: no event\n"},
		"another closing":  {first(func(l [][]byte) [][]byte { l[4] = bytes.Replace(l[4], []byte("\"}\n"), []byte("\"]\n"), 1); return l }), "000001.jsonl:5: sum_mismatch\n"},
	} {
		if !strings.HasPrefix(c.got, c.want) {
			t.Errorf("%s: %q, want %q first", what, c.got, c.want)
		}
	}
	names = nil
	if got := check(nil); !strings.Contains(got, "0*.jsonl: no event\n") {
		t.Errorf("no file: %q", got)
	}
}

func TestKindsPage(t *testing.T) {
	meaning := map[string]string{}
	for _, c := range constants(t, "kinds.go") {
		if c.typ == "Kind" {
			meaning[c.value] = c.comment
		}
	}
	var b strings.Builder
	b.WriteString(`# Error kinds

Every failure has one of these kinds; the list is closed, and a kind keeps its name and
its meaning for ever. Programs branch on the kind, never on the message. The JSON form
is the same everywhere:

    {"ok":false,"error":{"kind":"…","message":"…","details":{"next":"…"}}}

*By* is the package that emits the kind; ` + "`agent`" + ` kinds are written by agents and only carried.
*Retry* says whether the same request can succeed later. *Exit* is the status of the
` + "`steno`" + ` command where the kind ends it; a recorded result ends nothing, so ` + "`run`" + ` and ` + "`call`" + ` exit 0 for a
failed one. *Status* is the HTTP-like number that travels as ` + "`Nats-Service-Error-Code`" + `.
*Next* is ` + "`details.next`" + `. A kind from elsewhere that is not in the list is kept in
` + "`details.kind`" + ` under ` + "`tool_failed`" + `. Kinds of what is not built yet (policy and approvals, import)
are in the list already, so that it stays closed.

This page is made from kinds.go: ` + "`go test ./schema -run KindsPage -update`" + `.

`)
	origin := ""
	for _, k := range schema.Kinds() {
		if k.Origin != origin {
			if origin != "" {
				b.WriteString("\n")
			}
			origin = k.Origin
			fmt.Fprintf(&b, "## %s\n\n| kind | by | retry | exit | status | meaning | next |\n|---|---|---|---|---|---|---|\n", origin)
		}
		retry := "no"
		if k.Retry {
			retry = "yes"
		}
		m := meaning[string(k.Kind)]
		if m == "" {
			t.Errorf("no comment stands behind the constant of %s", k.Kind)
		}
		next := strings.ReplaceAll(k.Next, "{session}", "SESSION")
		if strings.Contains(m+next, "|") {
			t.Errorf("%s would break its table", k.Kind)
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s | %d | %d | %s | %s |\n", k.Kind, k.By, retry, k.Exit, k.Status, m, next)
	}
	if *update {
		if err := os.WriteFile("KINDS.md", []byte(b.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile("KINDS.md")
	if err != nil {
		t.Fatal(err)
	}
	if string(got) != b.String() {
		t.Error("KINDS.md is not what kinds.go says; write it anew with -update")
	}
}
