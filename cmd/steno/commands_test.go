package main

import (
	"bytes"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"steno/schema"
)

func every(c *cobra.Command, f func(*cobra.Command)) {
	f(c)
	for _, sub := range c.Commands() {
		every(sub, f)
	}
}

func TestS18EveryCommandHelpsWithAnExample(t *testing.T) {
	every((&app{}).root(), func(c *cobra.Command) {
		path := strings.Fields(c.CommandPath())[1:]
		t.Run(strings.Join(append([]string{"steno"}, path...), " "), func(t *testing.T) {
			if c.Short == "" || c.Example == "" {
				t.Error("it has no description or no example")
			}
			var out, errOut bytes.Buffer
			if code := run(t.Context(), append(path, "--help"), strings.NewReader(""), &out, &errOut); code != 0 || errOut.Len() > 0 {
				t.Errorf("--help: exit %d, %s", code, &errOut)
			}
			if !strings.Contains(out.String(), "Examples:\n"+c.Example) {
				t.Errorf("--help shows no example:\n%s", &out)
			}
			for line := range strings.Lines(c.Example) {
				tryExample(t, line)
			}
		})
	})
}

// tryExample reads the steno command of a line as the command itself would.
func tryExample(t *testing.T, line string) {
	t.Helper()
	for part := range strings.SplitSeq(line, "|") {
		words := shellWords(part)
		if len(words) == 0 || words[0] != "steno" {
			continue
		}
		c, rest, err := (&app{}).root().Find(words[1:])
		if err == nil {
			err = c.ParseFlags(rest)
		}
		if err == nil {
			err = c.ValidateArgs(c.Flags().Args())
		}
		if err != nil {
			t.Errorf("%s: %v", strings.TrimSpace(line), err)
		}
	}
}

// shellWords splits at white space outside single quotes.
func shellWords(s string) (words []string) {
	for i, part := range strings.Split(s, "'") {
		if i%2 == 1 {
			words = append(words, part)
			continue
		}
		words = append(words, strings.Fields(part)...)
	}
	return words
}

// prose are words that follow the name in sentences about it.
var prose = map[string]bool{"writes": true, "may": true, "this": true}

var mention = regexp.MustCompile(`(?:^|[^/\w.-])steno((?: +[a-z][a-z-]*| +--?[a-z][a-z-]*)+)`)

// code is what stands between backquotes in a page, one or three.
var code = regexp.MustCompile("(?s)```.*?```|`[^`\n]*`")

// checkMentions says what of the commands that a text names does not exist.
func checkMentions(root *cobra.Command, text string) (bad []string) {
	for _, m := range mention.FindAllStringSubmatch(text, -1) {
		words := strings.Fields(m[1])
		if prose[words[0]] {
			continue
		}
		c := root
		for _, w := range words {
			name, flag := strings.CutPrefix(w, "--")
			switch next, _, err := c.Find([]string{w}); {
			case flag && name != "help":
				if c.Flag(name) == nil && c.InheritedFlags().Lookup(name) == nil {
					bad = append(bad, strings.TrimSpace(m[0])+": no flag "+w)
				}
			case strings.HasPrefix(w, "-"), !c.HasSubCommands():
			case err != nil || next == c:
				bad = append(bad, strings.TrimSpace(m[0])+": no command "+w)
			default:
				c = next
			}
		}
	}
	return bad
}

func TestMentionsAreChecked(t *testing.T) {
	root := (&app{}).root()
	root.InitDefaultHelpCmd()
	for _, text := range []string{"run: steno forget {session}", "steno session fly s1", "steno verify --tail X", "with: steno fly"} {
		if len(checkMentions(root, text)) == 0 {
			t.Errorf("%q passes", text)
		}
	}
	for _, text := range []string{"run: steno verify {session}", "steno session show demo --dir x", "steno run --help", "steno 0.1.0", "a steno"} {
		if bad := checkMentions(root, text); len(bad) > 0 {
			t.Errorf("%q: %q", text, bad)
		}
	}
}

// A next step that cannot be typed is worse than none.
func TestNextStepsNameCommandsThatExist(t *testing.T) {
	tree := (&app{}).root()
	tree.InitDefaultHelpCmd()
	for _, k := range schema.Kinds() {
		for _, bad := range checkMentions(tree, k.Next) {
			t.Errorf("the next step of %s: %s", k.Kind, bad)
		}
	}
	files, found := token.NewFileSet(), 0
	top := root(t)
	err := filepath.WalkDir(top, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && path != top && (strings.HasPrefix(d.Name(), ".") || d.Name() == "testdata") {
			return filepath.SkipDir
		}
		if strings.HasSuffix(path, ".md") {
			b, err := os.ReadFile(path)
			for _, block := range code.FindAllString(string(b), -1) {
				for _, bad := range checkMentions(tree, block) {
					t.Errorf("%s: %s", path, bad)
				}
			}
			return err
		}
		if !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return nil
		}
		f, err := parser.ParseFile(files, path, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		ast.Inspect(f, func(n ast.Node) bool {
			lit, ok := n.(*ast.BasicLit)
			if !ok || lit.Kind != token.STRING {
				return true
			}
			text, err := strconv.Unquote(lit.Value)
			if err != nil {
				t.Fatal(err)
			}
			found += len(mention.FindAllString(text, -1))
			for _, bad := range checkMentions(tree, text) {
				t.Errorf("%s: %s", files.Position(lit.Pos()), bad)
			}
			return true
		})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if found < 20 {
		t.Errorf("only %d commands are named in the sources; are they still looked for?", found)
	}
}
