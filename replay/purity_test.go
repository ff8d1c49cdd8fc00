package replay_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"go/types"
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
		for _, bad := range []string{"os", "net", "math/rand", "crypto/rand", "hash/maphash", "io/ioutil", "runtime", "unsafe", "C",
			"golang.org/x/sys", "steno/lease", "steno/journal"} {
			// The one table whose places nobody sees, but for how fast it is.
			if filepath.Base(name) == "checker.go" && path == "hash/maphash" {
				continue
			}
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

// unordered names the functions of a package that go through a map in whatever
// order it has, whose types are those of its own files.
func unordered(t *testing.T, files ...*ast.File) (found []string) {
	t.Helper()
	info := types.Info{Types: map[ast.Expr]types.TypeAndValue{}}
	conf := types.Config{Importer: nothing{}, Error: func(error) {}} // what others export stays unknown
	_, _ = conf.Check("p", positions, files, &info)
	for _, file := range files {
		for _, decl := range file.Decls {
			f, ok := decl.(*ast.FuncDecl)
			if !ok {
				continue
			}
			ast.Inspect(f, func(n ast.Node) bool {
				if r, ok := n.(*ast.RangeStmt); ok && info.TypeOf(r.X) != nil {
					if _, ok := info.TypeOf(r.X).Underlying().(*types.Map); ok {
						found = append(found, f.Name.Name)
					}
				}
				return true
			})
		}
	}
	return found
}

type nothing struct{}

func (nothing) Import(path string) (*types.Package, error) {
	return types.NewPackage(path, path[strings.LastIndexByte(path, '/')+1:]), nil
}

var positions = token.NewFileSet()

// inAnyOrder are functions that go through a map and give the same whatever its
// order is: they add up, set keys of another map, or sort what they take.
var inAnyOrder = map[string]bool{"addUsage": true, "index": true, "merge": true, "MarshalJSONTo": true, "PutBack": true, "Body": true, "Envelope": true}

// A fold that looked at the clock or the world could not be repeated, and the
// line's own package is under it.
func TestTheFoldIsPure(t *testing.T) {
	files := 0
	for _, dir := range []string{".", "../schema"} {
		names, err := filepath.Glob(filepath.Join(dir, "*.go"))
		if err != nil {
			t.Fatal(err)
		}
		var parsed []*ast.File
		for _, name := range names {
			if strings.HasSuffix(name, "_test.go") {
				continue
			}
			files++
			file, err := parser.ParseFile(positions, name, nil, 0)
			if err != nil {
				t.Fatal(err)
			}
			parsed = append(parsed, file)
			if found := impure(t, name, nil); len(found) > 0 {
				t.Errorf("%s uses %v", name, found)
			}
		}
		for _, name := range unordered(t, parsed...) {
			if !inAnyOrder[name] {
				t.Errorf("in %s the function %s goes through a map", dir, name)
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
	for name, want := range map[string]int{"checker.go": 0, "fold.go": 1} {
		if found := impure(t, name, "package p\nimport \"hash/maphash\"\nvar x = maphash.MakeSeed()\n"); len(found) != want {
			t.Errorf("in %s it finds %v", name, found)
		}
	}
	file, err := parser.ParseFile(positions, "p.go", "package p\nimport \"x/y\"\ntype s struct { m map[string]y.T; l []int }\nfunc a(v *s) { for range v.m { } }\nfunc b(v *s) { for range v.l { } }\n", 0)
	if err != nil {
		t.Fatal(err)
	}
	if found := unordered(t, file); len(found) != 1 || found[0] != "a" {
		t.Errorf("%v go through maps", found)
	}
	if found := impure(t, "p.go", "package p\nimport \"time\"\nvar x = time.Second\n"); found != nil {
		t.Errorf("found %v where nothing is", found)
	}
}
