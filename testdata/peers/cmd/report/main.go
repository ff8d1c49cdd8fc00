// Command report reads the points of a run, one JSON object a line, and prints
// Markdown: what each peer did, what steno did for each of them, and which
// targets were reached.
package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"peers/harness"
)

const (
	door  = "steno door inproc"
	alone = "steno without transport"
)

// A target is a ratio of calls a second that steno is to reach.
type target struct {
	ours, peer string
	callers    []int
	least      float64
}

var targets = []target{
	{door, "contract+core inproc", []int{1, 16, 64, 256}, 0.9},
	{door, "JetStream sync=always inproc", []int{16}, 6.5},
	{door, "JetStream sync=always inproc", []int{64, 256}, 12},
	{door, "DBOS on PostgreSQL", []int{16, 64, 256}, 9},
	{door, "Restate", []int{16, 64, 256}, 15},
	{alone, "SQLite FULL, batched", []int{1}, 0.68},
	{alone, "SQLite FULL, batched", []int{16}, 1.0},
	{alone, "SQLite FULL, batched", []int{64, 256}, 1.2},
}

// The 99th percentile of the door with 64 callers: in milliseconds, or as often
// the median.
const (
	p99Callers = 64
	p99Millis  = 4
	p99Medians = 3
)

type key struct {
	peer    string
	callers int
}

type table struct {
	points map[key][]harness.Point
	peers  []string // in the order in which they came
	levels []int
}

func main() {
	t, err := read(os.Stdin)
	harness.Must(err)
	t.rates(os.Stdout)
	t.costs(os.Stdout)
	t.work(os.Stdout)
	t.ratios(os.Stdout)
	t.reached(os.Stdout)
}

func read(in io.Reader) (*table, error) {
	t := &table{points: map[key][]harness.Point{}}
	for d := json.NewDecoder(in); ; {
		var p harness.Point
		if err := d.Decode(&p); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return nil, err
		}
		k := key{p.Peer, p.Conc}
		t.points[k] = append(t.points[k], p)
		if !slices.Contains(t.peers, p.Peer) {
			t.peers = append(t.peers, p.Peer)
		}
		if !slices.Contains(t.levels, p.Conc) {
			t.levels = append(t.levels, p.Conc)
		}
	}
	slices.Sort(t.levels)
	slices.Sort(t.peers)
	ours := func(p string) int { return map[bool]int{true: 0, false: 1}[strings.HasPrefix(p, "steno")] }
	slices.SortStableFunc(t.peers, func(a, b string) int { return ours(a) - ours(b) })
	return t, nil
}

// median is that of the points' values, 0 of none.
func median(points []harness.Point, value func(harness.Point) float64) float64 {
	var all []float64
	for _, p := range points {
		all = append(all, value(p))
	}
	return middle(all)
}

func middle(all []float64) float64 {
	slices.Sort(all)
	n := len(all)
	if n == 0 {
		return 0
	}
	return (all[n/2] + all[(n-1)/2]) / 2
}

func rate(p harness.Point) float64 { return p.Rate }
func p50(p harness.Point) float64  { return p.P50 / 1e3 }
func p99(p harness.Point) float64  { return p.P99 / 1e3 }

func (t *table) header(w io.Writer, first string) {
	fmt.Fprintf(w, "\n| %s |", first)
	for _, c := range t.levels {
		fmt.Fprintf(w, " c=%d |", c)
	}
	fmt.Fprintln(w, "\n|---"+strings.Repeat("|---", len(t.levels))+"|")
}

func (t *table) rates(w io.Writer) {
	var others []float64
	rounds := map[int]bool{}
	for _, ps := range t.points {
		for _, p := range ps {
			others, rounds[p.Round] = append(others, p.Others), true
		}
	}
	fmt.Fprintf(w, "Calls a second, median of %d rounds (p50 / p99 in ms). Before the points others used %.0f %% of the processors (median), %.0f %% at most.\n",
		len(rounds), middle(others), slices.Max(append(others, 0)))
	t.header(w, "peer")
	var failed []string
	for _, peer := range t.peers {
		fmt.Fprintf(w, "| %s |", peer)
		for _, c := range t.levels {
			ps := t.points[key{peer, c}]
			for _, p := range ps {
				if p.Errs > 0 {
					failed = append(failed, fmt.Sprintf("%s, c=%d, round %d: %d errors: %.200s", peer, c, p.Round, p.Errs, p.Err))
				}
			}
			if len(ps) == 0 {
				fmt.Fprint(w, " |")
				continue
			}
			fmt.Fprintf(w, " %.0f (%.2f / %.2f) |", median(ps, rate), median(ps, p50), median(ps, p99))
		}
		fmt.Fprintln(w)
	}
	for _, f := range failed {
		fmt.Fprintln(w, "\n"+f)
	}
}

func (t *table) costs(w io.Writer) {
	t.header(w, "syncs and bytes written for each call")
	for _, peer := range t.peers {
		if len(t.levels) == 0 || median(t.points[key{peer, t.levels[0]}], func(p harness.Point) float64 { return p.Bytes }) == 0 {
			continue
		}
		fmt.Fprintf(w, "| %s |", peer)
		for _, c := range t.levels {
			ps := t.points[key{peer, c}]
			fmt.Fprintf(w, " %.2f, %.0f |", median(ps, func(p harness.Point) float64 { return p.Syncs }), median(ps, func(p harness.Point) float64 { return p.Bytes }))
		}
		fmt.Fprintln(w)
	}
}

// work is what is left to compare where the disk is not what a peer waits for.
func (t *table) work(w io.Writer) {
	t.header(w, "microseconds of processor for each call, of the process that calls; servers outside of it are not in it")
	for _, peer := range t.peers {
		fmt.Fprintf(w, "| %s |", peer)
		for _, c := range t.levels {
			fmt.Fprintf(w, " %.0f |", median(t.points[key{peer, c}], func(p harness.Point) float64 { return p.CPU }))
		}
		fmt.Fprintln(w)
	}
}

// ratio is ours / peer: of the medians, and the median of the ratios in each
// round. ok is false if one of them was not measured.
func (t *table) ratio(ours, peer string, callers int) (medians, rounds float64, ok bool) {
	a, b := t.points[key{ours, callers}], t.points[key{peer, callers}]
	if len(a) == 0 || len(b) == 0 || median(b, rate) == 0 {
		return 0, 0, false
	}
	var each []float64
	for _, p := range a {
		for _, q := range b {
			if p.Round == q.Round && q.Rate > 0 {
				each = append(each, p.Rate/q.Rate)
			}
		}
	}
	return median(a, rate) / median(b, rate), middle(each), true
}

func (t *table) ratios(w io.Writer) {
	t.header(w, "steno / peer: of the medians, median of the rounds")
	for _, peer := range t.peers {
		ours := door
		if strings.HasPrefix(peer, "SQLite") || strings.HasPrefix(peer, "plain") {
			ours = alone // these have no transport either
		}
		if strings.HasPrefix(peer, "steno") {
			continue
		}
		fmt.Fprintf(w, "| %s / %s |", ours, peer)
		for _, c := range t.levels {
			if m, r, ok := t.ratio(ours, peer, c); ok {
				fmt.Fprintf(w, " %.2f, %.2f |", m, r)
			} else {
				fmt.Fprint(w, " |")
			}
		}
		fmt.Fprintln(w)
	}
}

func (t *table) reached(w io.Writer) {
	fmt.Fprintln(w, "\nTargets, by the ratio of the medians:")
	fmt.Fprintln(w)
	for _, g := range targets {
		for _, c := range g.callers {
			m, _, ok := t.ratio(g.ours, g.peer, c)
			said := "not measured"
			if ok {
				said = fmt.Sprintf("%s: %.2f", verdict(m >= g.least), m)
			}
			fmt.Fprintf(w, "- %s / %s, c=%d, at least %.2f: %s\n", g.ours, g.peer, c, g.least, said)
		}
	}
	ps := t.points[key{door, p99Callers}]
	mid, top := median(ps, p50), median(ps, p99)
	said := "not measured"
	if len(ps) > 0 {
		said = fmt.Sprintf("%s: %.2f ms, %.1f times", verdict(top <= p99Millis || top <= p99Medians*mid), top, top/mid)
	}
	fmt.Fprintf(w, "- %s, c=%d, p99 at most %d ms or %d times the median: %s\n", door, p99Callers, p99Millis, p99Medians, said)
}

func verdict(ok bool) string {
	if ok {
		return "reached"
	}
	return "not reached"
}
