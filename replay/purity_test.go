package replay_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// errno is the name of an error of the kernel, which is a number.
var errno = regexp.MustCompile(`^E[A-Z0-9]+$`)

// impure names what in a source file can make the same log give another state:
// the world outside, chance, and the clock.
func impure(t *testing.T, name string, src any) (found []string) {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), name, src, 0)
	if err != nil {
		t.Fatal(err)
	}
	for _, i := range file.Imports {
		path, err := strconv.Unquote(i.Path.Value)
		if err != nil {
			t.Fatal(err)
		}
		for _, bad := range []string{"os", "net", "math/rand", "crypto/rand", "io/ioutil", "runtime", "unsafe", "C",
			"golang.org/x/sys", "steno/lease", "steno/journal"} {
			if path == bad || strings.HasPrefix(path, bad+"/") {
				found = append(found, path)
			}
		}
	}
	ast.Inspect(file, func(n ast.Node) bool {
		s, ok := n.(*ast.SelectorExpr)
		if !ok {
			return true
		}
		pkg, ok := s.X.(*ast.Ident)
		if ok && pkg.Name == "syscall" && !errno.MatchString(s.Sel.Name) {
			found = append(found, "syscall."+s.Sel.Name)
		}
		if !ok || pkg.Name != "time" && pkg.Name != "ulid" {
			return true
		}
		switch s.Sel.Name {
		case "Now", "Since", "Until", "After", "AfterFunc", "Sleep", "Tick", "NewTimer", "NewTicker", "Local", "LoadLocation", "Make", "DefaultEntropy":
			found = append(found, pkg.Name+"."+s.Sel.Name)
		}
		return true
	})
	return found
}

// A fold that looked at the clock or the world could not be repeated, and the
// line's own package is under it.
func TestTheFoldIsPure(t *testing.T) {
	files := 0
	for _, dir := range []string{".", "../schema"} {
		names, err := filepath.Glob(filepath.Join(dir, "*.go"))
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range names {
			if strings.HasSuffix(name, "_test.go") {
				continue
			}
			files++
			if found := impure(t, name, nil); len(found) > 0 {
				t.Errorf("%s uses %v", name, found)
			}
		}
	}
	if files < 6 {
		t.Errorf("only %d files were read", files)
	}
}

func TestTheRuleAgainstImpurityNoticesIt(t *testing.T) {
	src := `package p
import ("os"; "time"; "math/rand/v2"; "net/http")
var x = time.Now().Add(time.Second)
`
	if found := strings.Join(impure(t, "p.go", src), " "); found != "os math/rand/v2 net/http time.Now" {
		t.Errorf("found only %s", found)
	}
	if found := impure(t, "p.go", "package p\nimport \"syscall\"\nvar x, y = syscall.ENFILE, syscall.Getpid()\n"); strings.Join(found, " ") != "syscall.Getpid" {
		t.Errorf("found %v", found)
	}
	if found := impure(t, "p.go", "package p\nimport \"time\"\nvar x = time.Second\n"); found != nil {
		t.Errorf("found %v where nothing is", found)
	}
}
