// Package steno_test holds the rules of this repository that a machine can
// check.
package steno_test

import (
	"encoding/json"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"steno/journal/journaltest"
)

type pkg struct {
	ImportPath   string
	Dir          string
	Doc          string
	GoFiles      []string
	Imports      []string
	TestImports  []string
	XTestImports []string
}

func packages(t *testing.T) []pkg {
	t.Helper()
	out, err := exec.Command("go", "list", "-json", "./...").Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	var all []pkg
	for d := json.NewDecoder(strings.NewReader(string(out))); d.More(); {
		var p pkg
		if err := d.Decode(&p); err != nil {
			t.Fatal(err)
		}
		if p.ImportPath != "steno" {
			all = append(all, p)
		}
	}
	if len(all) < 6 {
		t.Fatalf("only %d packages were found", len(all))
	}
	return all
}

// The picture of imports: an arrow that is not here does not exist.
func TestPackagesImportOnlyWhatThePictureShows(t *testing.T) {
	picture := map[string][]string{
		"steno/schema":              {},
		"steno/lease":               {"steno/schema"},
		"steno/journal":             {"steno/lease", "steno/schema"},
		"steno/journal/journaltest": {"steno/journal", "steno/lease", "steno/replay", "steno/schema"},
		"steno/replay":              {"steno/schema"},
		"steno/executor/redact":     {"steno/schema"},
		"steno/executor":            {"steno/executor/redact", "steno/journal", "steno/lease", "steno/replay", "steno/schema"},
		"steno/executor/mcp":        {"steno/executor", "steno/executor/redact", "steno/journal", "steno/replay", "steno/schema"},
		"steno/cmd/steno":           {"steno/executor", "steno/executor/mcp", "steno/executor/redact", "steno/journal", "steno/lease", "steno/replay", "steno/schema"},
	}
	for _, p := range packages(t) {
		may, known := picture[p.ImportPath]
		if !known {
			t.Errorf("package %s has no place in the picture", p.ImportPath)
			continue
		}
		for _, i := range p.Imports {
			if strings.HasPrefix(i, "steno") && !slices.Contains(may, i) {
				t.Errorf("%s imports %s", p.ImportPath, i)
			}
			if strings.HasPrefix(i, "github.com/nats-io/nats-server") && p.ImportPath != "steno/cmd/steno" && p.ImportPath != "steno/journal/journaltest" {
				t.Errorf("%s imports the NATS server", p.ImportPath)
			}
		}
	}
}

func TestPureFoldAndSchemaHaveNoClockRandomnessOrFiles(t *testing.T) {
	for _, p := range packages(t) {
		if p.ImportPath != "steno/schema" && p.ImportPath != "steno/replay" {
			continue
		}
		for _, i := range p.Imports {
			switch i {
			case "os", "net", "math/rand", "math/rand/v2", "crypto/rand", "io/ioutil", "path/filepath", "os/exec":
				t.Errorf("%s imports %s", p.ImportPath, i)
			}
		}
		for _, name := range p.GoFiles {
			f, err := parser.ParseFile(token.NewFileSet(), filepath.Join(p.Dir, name), nil, 0)
			if err != nil {
				t.Fatal(err)
			}
			ast.Inspect(f, func(n ast.Node) bool {
				if s, ok := n.(*ast.SelectorExpr); ok {
					if x, ok := s.X.(*ast.Ident); ok && x.Name == "time" && (s.Sel.Name == "Now" || s.Sel.Name == "Since") {
						t.Errorf("%s/%s asks the clock", p.ImportPath, name)
					}
				}
				return true
			})
		}
	}
}

func TestEveryPackageSaysWhatItIsFor(t *testing.T) {
	for _, p := range packages(t) {
		if p.Doc == "" {
			t.Errorf("package %s has no doc comment", p.ImportPath)
		}
	}
}

func TestJournaltestIsImportedByTestsOnly(t *testing.T) {
	for _, p := range packages(t) {
		if slices.Contains(p.Imports, "steno/journal/journaltest") {
			t.Errorf("%s imports journaltest", p.ImportPath)
		}
	}
}

func TestEveryDirectDependencyIsJustified(t *testing.T) {
	mod := read(t, "go.mod")
	if strings.Contains(mod, "replace ") {
		t.Error("go.mod has a replace")
	}
	decisions := read(t, "DECISIONS.md")
	n := 0
	for line := range strings.Lines(mod) {
		m := regexp.MustCompile(`^\t?(?:require )?(\S+\.\S+/\S+) v`).FindStringSubmatch(line)
		if m == nil || strings.Contains(line, "// indirect") {
			continue
		}
		n++
		name := strings.TrimPrefix(m[1], "github.com/")
		if !strings.Contains(decisions, name) {
			t.Errorf("DECISIONS.md says nothing about %s", m[1])
		}
	}
	if n == 0 {
		t.Error("no dependency was found in go.mod")
	}
}

// Every promise in the README names a test, and that test exists.
func TestEveryPromiseNamesATestThatExists(t *testing.T) {
	tests := tests(t)
	rows := 0
	for line := range strings.Lines(section(read(t, "README.md"), "## Promises")) {
		if !strings.HasPrefix(line, "| **") {
			continue
		}
		rows++
		named := regexp.MustCompile("`((?:Test|Fuzz|Benchmark|Example)\\w+)").FindAllStringSubmatch(line, -1)
		if len(named) == 0 {
			t.Errorf("a promise without a test: %s", line)
		}
		for _, m := range named {
			if len(tests[m[1]]) == 0 {
				t.Errorf("README names %s, which does not exist", m[1])
			}
		}
	}
	if rows < 11 {
		t.Errorf("the README has %d promises, and 11 are kept", rows)
	}
}

// tests gives the folders and the text of every test function, by its name.
func tests(t *testing.T) map[string]map[string]string {
	t.Helper()
	all := map[string]map[string]string{}
	head := regexp.MustCompile(`(?m)^func ((?:Test|Fuzz|Benchmark|Example)\w*)\(`)
	err := filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(path, "_test.go") && !strings.Contains(path, "journaltest") {
			return err
		}
		b, err := os.ReadFile(path)
		for _, m := range head.FindAllSubmatchIndex(b, -1) {
			name := string(b[m[2]:m[3]])
			body, _, _ := strings.Cut(string(b[m[0]:]), "\n}\n")
			if all[name] == nil {
				all[name] = map[string]string{}
			}
			all[name][filepath.ToSlash(filepath.Dir(path))] = body
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// Every part of every fault case has a test that exists, or a reason why not.
func TestEveryCaseIsInTheTable(t *testing.T) {
	tests := tests(t)
	left := map[string]bool{} // parts without a row
	for _, c := range journaltest.AllCases(t) {
		parts := c.Parts()
		if len(parts) == 0 {
			t.Errorf("%s has nothing that a test could read", c.Name)
		}
		for _, part := range parts {
			left[c.Name+" "+part] = true
		}
	}
	for _, r := range journaltest.CaseTable(t) {
		if row := r.Case + " " + r.Part; !left[row] {
			t.Errorf("the table has %s, which is not there or stands twice", row)
		}
		delete(left, r.Case+" "+r.Part)
		named, why, notYet := strings.Cut(r.Test, journaltest.NotYet)
		if notYet && strings.TrimSpace(why) == "" || !notYet && named == "" {
			t.Errorf("the table has neither a test nor a reason for %s %s", r.Case, r.Part)
		}
		for _, name := range strings.Fields(named) {
			folder, test, elsewhere := strings.Cut(name, ".")
			if elsewhere && tests[test][folder] == "" {
				t.Errorf("%s %s: there is no test %s", r.Case, r.Part, name)
			}
			takes := func(body string) bool { return strings.Contains(body, `Cases(t, "`+r.Part+`")`) }
			if !elsewhere && !slices.ContainsFunc(slices.Collect(maps.Values(tests[name])), takes) {
				t.Errorf("%s %s: no test %s takes its cases from the table", r.Case, r.Part, name)
			}
		}
	}
	for row := range left {
		t.Errorf("the table does not have %s", row)
	}
}

// A long file hides a second idea.
func TestFilesStayShort(t *testing.T) {
	const limit = 450
	err := filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && strings.HasPrefix(d.Name(), ".") && path != "." {
			return fs.SkipDir
		}
		if !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return nil
		}
		if n := strings.Count(read(t, path), "\n"); n > limit {
			t.Errorf("%s has %d lines", path, n)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

func read(t *testing.T, path string) string {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// section is the text from a heading to the next of its level.
func section(text, heading string) string {
	_, rest, _ := strings.Cut(text, "\n"+heading+"\n")
	body, _, _ := strings.Cut(rest, "\n## ")
	return body
}
