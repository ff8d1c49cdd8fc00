// Command benchreport reads the output of go test -bench and prints one table
// in Markdown: a row for each benchmark, with the median of its runs.
//
//	go test -run '^$' -bench . -benchmem -count 5 ./... | go run ./.ci/benchreport
//
// It exits 1 if the output says that something failed, or has no benchmark.
package main

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// A column is a unit of go test, and its heading.
type column struct {
	unit, head string
	per        float64 // what a value is divided by
}

var columns = []column{
	{"ns/op", "µs/op", 1e3},
	{"ops/s", "ops/s", 1},
	{"events/s", "events/s", 1},
	{"MB/s", "MB/s", 1},
	{"p50-ms", "p50 ms", 1},
	{"p99-ms", "p99 ms", 1},
	{"syncs/op", "syncs/op", 1},
	{"bytes/op", "written B/op", 1},
	{"B/op", "heap B/op", 1},
	{"allocs/op", "allocs/op", 1},
}

// A row is a benchmark and the values of its runs, by unit.
type row struct {
	name   string
	values map[string][]float64
}

// line is a result: the name without the number of processors, then pairs of a
// value and its unit.
var line = regexp.MustCompile(`^Benchmark(\S+?)(?:-\d+)?\s+\d+\s+(.*)$`)

func main() {
	if err := report(os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "benchreport:", err)
		os.Exit(1)
	}
}

func report(in io.Reader, out io.Writer) error {
	var rows []*row
	pkg, failed := "", false
	lines := bufio.NewScanner(in)
	for lines.Scan() {
		text := lines.Text()
		if p, ok := strings.CutPrefix(text, "pkg: "); ok {
			pkg = p
			continue
		}
		m := line.FindStringSubmatch(text)
		if m == nil {
			if failed = failed || strings.HasPrefix(text, "FAIL") || strings.HasPrefix(text, "--- FAIL"); failed {
				fmt.Fprintln(os.Stderr, text)
			}
			continue
		}
		fmt.Fprintln(os.Stderr, text) // it takes minutes; somebody may be watching
		name := pkg + " " + m[1]
		i := slices.IndexFunc(rows, func(r *row) bool { return r.name == name })
		if i < 0 {
			i = len(rows)
			rows = append(rows, &row{name, map[string][]float64{}})
		}
		fields := strings.Fields(m[2])
		for k := 0; k+1 < len(fields); k += 2 {
			v, err := strconv.ParseFloat(fields[k], 64)
			if err != nil {
				return fmt.Errorf("%s: %w", text, err)
			}
			rows[i].values[fields[k+1]] = append(rows[i].values[fields[k+1]], v)
		}
	}
	if err := lines.Err(); err != nil {
		return err
	}
	if failed || len(rows) == 0 {
		return fmt.Errorf("%d benchmarks, and something failed or nothing ran", len(rows))
	}
	print(out, rows)
	return nil
}

func print(out io.Writer, rows []*row) {
	used := slices.DeleteFunc(slices.Clone(columns), func(c column) bool {
		return !slices.ContainsFunc(rows, func(r *row) bool { return r.values[c.unit] != nil })
	})
	known := func(unit string) bool {
		return slices.ContainsFunc(columns, func(c column) bool { return c.unit == unit })
	}
	fmt.Fprint(out, "| benchmark |")
	for _, c := range used {
		fmt.Fprintf(out, " %s |", c.head)
	}
	fmt.Fprintln(out, " further |\n|---"+strings.Repeat("|--:", len(used))+"|---|")
	for _, r := range rows {
		fmt.Fprintf(out, "| %s |", r.name)
		for _, c := range used {
			if v := r.values[c.unit]; v != nil {
				fmt.Fprintf(out, " %s |", number(median(v)/c.per))
			} else {
				fmt.Fprint(out, " |")
			}
		}
		var further []string
		for unit, v := range r.values {
			if !known(unit) {
				further = append(further, number(median(v))+" "+unit)
			}
		}
		slices.Sort(further)
		fmt.Fprintf(out, " %s |\n", strings.Join(further, ", "))
	}
}

func median(v []float64) float64 {
	slices.Sort(v)
	return (v[len(v)/2] + v[(len(v)-1)/2]) / 2
}

// number is a value with three digits at least.
func number(v float64) string {
	switch {
	case v >= 100 || v == 0:
		return strconv.FormatFloat(v, 'f', 0, 64)
	case v >= 10:
		return strconv.FormatFloat(v, 'f', 1, 64)
	}
	return strconv.FormatFloat(v, 'f', 2, 64)
}
