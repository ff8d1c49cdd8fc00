// Command testreport reads the output of go test -json and prints it for
// people: a line per package, the output of what failed, the names of what was
// skipped, and the totals. Subtests count as tests.
//
//	go test -json ./... | go run ./.ci/testreport [-summary FILE]
//
// It exits 1 if a test or package failed, if nothing ran at all, or if a test
// was skipped as root on Linux and does not say what the machine lacks: a skip
// there is a test that silently stopped testing.
package main

import (
	"bufio"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"runtime"
	"sort"
	"strings"
)

// An event is a line of go test -json; see go doc test2json and go help buildjson.
type event struct {
	Action      string
	Package     string
	Test        string
	Elapsed     float64
	Output      string
	ImportPath  string // of a build-output event
	FailedBuild string
}

// A name is a test, or, with no test, the package itself.
type name struct{ pkg, test string }

func (n name) String() string { return n.pkg + " " + n.test }

func main() {
	summary := flag.String("summary", "", "also write the totals to `FILE`")
	flag.Parse()
	line, err := report(os.Stdin)
	if line != "" && *summary != "" {
		if werr := os.WriteFile(*summary, []byte(line+"\n"), 0o666); werr != nil && err == nil {
			err = werr
		}
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "testreport:", err)
		os.Exit(1)
	}
}

func report(in *os.File) (summary string, err error) {
	var (
		output  = map[name]*strings.Builder{} // kept until the outcome is known
		builds  = map[string]*strings.Builder{}
		running = map[name]bool{}
		failedT = map[string][]name{} // failed tests of a package
		skipped []string
		pass    int
		fail    int
	)
	lines := bufio.NewReader(in) // a line of output has no greatest length
	for {
		raw, rerr := lines.ReadString('\n')
		if rerr != nil && raw == "" {
			break
		}
		var e event
		if json.Unmarshal([]byte(raw), &e) != nil {
			fmt.Print(raw) // the go command itself speaks, for example of a broken go.mod
			continue
		}
		n := name{e.Package, e.Test}
		switch e.Action {
		case "build-output":
			keep(builds, e.ImportPath).WriteString(e.Output)
		case "output":
			keep(output, n).WriteString(e.Output)
		case "run":
			running[n] = true
		case "pass", "fail", "skip":
			delete(running, n)
			if n.test == "" {
				if e.Action == "skip" {
					fmt.Printf("none %s\n", n.pkg) // it has no tests
					break
				}
				if e.Action == "pass" {
					fmt.Printf("ok   %s %.1fs\n", n.pkg, e.Elapsed)
					break
				}
				fmt.Printf("FAIL %s %.1fs\n", n.pkg, e.Elapsed)
				for _, t := range failedT[n.pkg] {
					show(t.String(), output[t])
				}
				// A package that dies takes the tests that were running along.
				for _, t := range unfinished(running, n.pkg) {
					show(t.String()+" (unfinished)", output[t])
					delete(running, t)
					fail++
					failedT[n.pkg] = append(failedT[n.pkg], t)
				}
				if len(failedT[n.pkg]) == 0 {
					fail++ // it did not build, or died outside of any test
				}
				show(n.pkg, builds[e.FailedBuild])
				show(n.pkg, output[n])
				break
			}
			switch e.Action {
			case "pass":
				pass++
				delete(output, n)
			case "fail":
				fail++
				failedT[n.pkg] = append(failedT[n.pkg], n)
			case "skip":
				why := ""
				if b := output[n]; b != nil {
					why = strings.TrimSpace(reason(b.String()))
				}
				skipped = append(skipped, fmt.Sprintf("%s: %s", n, why))
				delete(output, n)
			}
		}
	}
	unexcused := 0
	for _, s := range skipped {
		fmt.Println("SKIP", s)
		if !strings.Contains(s, ": this machine lacks ") {
			unexcused++
		}
	}
	summary = fmt.Sprintf("%d passed, %d failed, %d skipped", pass, fail, len(skipped))
	switch {
	case fail > 0:
		err = fmt.Errorf("%s", summary)
	case pass == 0:
		err = fmt.Errorf("no test ran")
	case unexcused > 0 && runtime.GOOS == "linux" && os.Geteuid() == 0:
		err = fmt.Errorf("%d skipped as root on Linux, for no lack of this machine", unexcused)
	}
	return summary, err
}

func keep[K comparable](m map[K]*strings.Builder, k K) *strings.Builder {
	if m[k] == nil {
		m[k] = new(strings.Builder)
	}
	return m[k]
}

// show prints what was kept, indented below a heading.
func show(heading string, b *strings.Builder) {
	if b == nil || b.Len() == 0 {
		return
	}
	fmt.Printf("  --- %s\n", heading)
	for line := range strings.Lines(b.String()) {
		fmt.Print("      ", line)
	}
	if !strings.HasSuffix(b.String(), "\n") {
		fmt.Println()
	}
}

// reason drops from a skipped test's output what the test runner wrote.
func reason(s string) string {
	var b strings.Builder
	for line := range strings.Lines(s) {
		if t := strings.TrimSpace(line); !strings.HasPrefix(t, "=== ") && !strings.HasPrefix(t, "--- ") {
			b.WriteString(t + " ")
		}
	}
	return b.String()
}

func unfinished(running map[name]bool, pkg string) []name {
	var ns []name
	for n := range running {
		if n.pkg == pkg {
			ns = append(ns, n)
		}
	}
	sort.Slice(ns, func(i, j int) bool { return ns[i].test < ns[j].test })
	return ns
}
