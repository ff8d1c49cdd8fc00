// Package harness is the closed loop that steno and every peer are driven
// with, so that their numbers are taken the same way.
package harness

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// A Point is what one peer did with one number of callers. Times are in
// microseconds.
type Point struct {
	Round  int     `json:"round"`
	Peer   string  `json:"peer"`
	Conc   int     `json:"conc"`
	N      int     `json:"n"`
	Rate   float64 `json:"rate"` // calls a second
	P50    float64 `json:"p50_us,omitempty"`
	P99    float64 `json:"p99_us,omitempty"`
	Syncs  float64 `json:"syncs,omitempty"` // for each call, where they can be counted
	Bytes  float64 `json:"bytes,omitempty"`
	CPU    float64 `json:"cpu_us,omitempty"` // for each call, of the process that calls
	Others float64 `json:"others_pct"`       // of the processors, used by others just before
	Errs   int64   `json:"errs,omitempty"`
	Err    string  `json:"err,omitempty"` // the first
}

// Args are the arguments of a call, about 200 bytes.
func Args(caller, call int) []byte {
	s := fmt.Sprintf(`{"worker":%d,"seq":%d,"path":"/srv/data/report-%06d.csv","mode":"read","query":"`, caller, call, call%1000000)
	pad := 198 - len(s)
	return []byte(s + strings.Repeat("abcdefg ", pad/8+1)[:pad] + `"}`)
}

var filler = func() string {
	var b strings.Builder
	for i := 0; b.Len() < 1100; i++ {
		fmt.Fprintf(&b, "row %d: value=%d status=ok; ", i, (i*2654435761)%99991)
	}
	return b.String()
}()

// Tool is the tool: it echoes the head of its arguments in a result of 1 KiB.
func Tool(args []byte) []byte {
	r := make([]byte, 0, 1056)
	r = append(r, `{"ok":true,"echo":`...)
	r = strconv.AppendQuote(r, string(args[:min(len(args), 64)]))
	r = append(r, `,"text":"`...)
	if n := 1022 - len(r); n > 0 {
		r = append(r, filler[:n]...)
	}
	return append(r, `"}`...)
}

// Levels are the numbers of callers; CONC names others.
func Levels() []int {
	out := []int{1, 16, 64, 256}
	if v := os.Getenv("CONC"); v != "" {
		out = out[:0]
		for f := range strings.SplitSeq(v, ",") {
			n, err := strconv.Atoi(f)
			Must(err)
			out = append(out, n)
		}
	}
	return out
}

// dur is how long a point is measured; SECS names another.
func dur() time.Duration {
	if v := os.Getenv("SECS"); v != "" {
		f, err := strconv.ParseFloat(v, 64)
		Must(err)
		return time.Duration(f * float64(time.Second))
	}
	return 2 * time.Second
}

// Want says whether ONLY, a list of parts of names, selects a peer; empty, it
// selects all.
func Want(peer string) bool {
	only := os.Getenv("ONLY")
	return only == "" || slices.ContainsFunc(strings.Split(only, ","), func(s string) bool { return strings.Contains(peer, s) })
}

// Dir makes a folder for the files of a peer, in BENCH_DIR if that is set.
// Whoever asks for it removes it.
func Dir() string {
	d, err := os.MkdirTemp(os.Getenv("BENCH_DIR"), "peer-")
	Must(err)
	d, err = filepath.Abs(d)
	Must(err)
	return d
}

// Must ends the process with an error, if there is one.
func Must(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "fatal:", err)
		os.Exit(1)
	}
}

// busy is the time that the processors have worked so far, and all their time,
// in ticks; zero where the system does not tell.
func busy() (work, all float64) {
	b, _ := os.ReadFile("/proc/stat")
	line, _, _ := strings.Cut(string(b), "\n")
	for i, s := range strings.Fields(line) {
		if v, err := strconv.ParseFloat(s, 64); err == nil && i <= 8 { // behind that they are counted twice
			all += v
			if i != 4 && i != 5 { // idle, waiting for a disk
				work += v
			}
		}
	}
	return work, all
}

// Others is the percentage of the processors that others use just now.
func Others() float64 {
	w0, a0 := busy()
	time.Sleep(300 * time.Millisecond)
	w1, a1 := busy()
	if a1 <= a0 {
		return 0
	}
	return 100 * (w1 - w0) / (a1 - a0)
}

// processor is the time that this process has worked so far, in microseconds.
func processor() float64 {
	var u syscall.Rusage
	Must(syscall.Getrusage(syscall.RUSAGE_SELF, &u))
	return float64(u.Utime.Nano()+u.Stime.Nano()) / 1e3
}

// All measures a peer at every level. Each caller makes its calls one after
// the other, for a while that is not counted and then for the measured time.
func All(peer string, call func(caller, n int) error) {
	for _, c := range Levels() {
		Emit(Run(peer, c, call, nil))
	}
}

// Run measures one level. cost, if it is not nil, gives the syncs and bytes
// of this process so far.
func Run(peer string, callers int, call func(caller, n int) error, cost func() (syncs, bytes int64)) Point {
	p := Point{Peer: peer, Conc: callers, Others: Others()}
	dur := dur()
	begin, end := dur/4, dur/4+dur
	lats := make([][]time.Duration, callers)
	var calls, errs atomic.Int64
	var first atomic.Pointer[string]
	var syncs, bytes int64
	if cost != nil {
		syncs, bytes = cost()
	}
	var wg sync.WaitGroup
	worked, t0 := processor(), time.Now()
	for c := range callers {
		wg.Go(func() {
			for n := 0; ; n++ {
				a := time.Since(t0)
				if a >= end {
					return
				}
				if err := call(c, n); err != nil {
					s := err.Error()
					first.CompareAndSwap(nil, &s)
					if errs.Add(1) > 100 {
						return
					}
					continue
				}
				calls.Add(1)
				if b := time.Since(t0); b >= begin && b <= end {
					lats[c] = append(lats[c], b-a)
				}
			}
		})
	}
	wg.Wait()
	p.CPU = (processor() - worked) / float64(calls.Load())
	if cost != nil {
		s, b := cost()
		p.Syncs, p.Bytes = float64(s-syncs)/float64(calls.Load()), float64(b-bytes)/float64(calls.Load())
	}
	if p.Errs = errs.Load(); p.Errs > 0 {
		p.Err = *first.Load()
	}
	all := slices.Sorted(slices.Values(slices.Concat(lats...)))
	p.N, p.Rate = len(all), float64(len(all))/dur.Seconds()
	if p.N > 0 {
		at := func(q int) float64 { return float64(all[p.N*q/100]) / 1e3 }
		p.P50, p.P99 = at(50), at(99)
	}
	return p
}

// Emit shows a point on stderr and adds it, with its ROUND, to the file
// BENCH_OUT.
func Emit(p Point) {
	p.Round, _ = strconv.Atoi(os.Getenv("ROUND"))
	fmt.Fprintf(os.Stderr, "%-40s c=%-4d %8.0f calls/s  p50 %8.0f us  p99 %8.0f us  cpu %4.0f us  others %2.0f%% %s\n",
		p.Peer, p.Conc, p.Rate, p.P50, p.P99, p.CPU, p.Others, p.Err)
	out := os.Getenv("BENCH_OUT")
	if out == "" {
		return
	}
	b, err := json.Marshal(p)
	Must(err)
	f, err := os.OpenFile(out, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	Must(err)
	_, err = f.Write(append(b, '\n'))
	Must(err)
	Must(f.Close())
}
