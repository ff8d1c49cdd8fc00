package journal_test

import (
	"fmt"
	"math/rand/v2"
	"os"
	"runtime"
	"slices"
	"strings"
	"testing"

	"steno/journal"
	"steno/journal/journaltest"
	"steno/lease"
	"steno/replay"
	"steno/schema"
)

// A corpus is sessions of calls and results, made by our own writer.
type corpus struct {
	store    *journal.Files
	sessions []string
	events   int
	bytes    int64
}

var vocabulary = strings.Fields("open file read error line value status user path config server request response token index cache record field " +
	"query update session result build test commit branch review merge package module function return string number object array")

// corpora are what is read: many sessions of 1000 events and one long one, with
// 1221 bytes for a call and its result, and many with results of 770 bytes. Each
// has 100,000 events, and 1,000,000 with STENO_TRY=long.
func corpora(b *testing.B, f func(b *testing.B, c *corpus)) {
	events := journaltest.Amount(100_000, 100_000, 1_000_000)
	for _, kind := range []struct {
		name     string
		sessions int
		mean     int // bytes of a result
	}{{"many", events / 1000, 215}, {"one", 1, 215}, {"bodies", events / 1000, 770}} {
		b.Run(kind.name, func(b *testing.B) {
			c := makeCorpus(b, kind.sessions, events/kind.sessions, kind.mean)
			for b.Loop() {
				f(b, c)
			}
			b.StopTimer()
			b.SetBytes(c.bytes)
			b.ReportMetric(float64(c.events)*float64(b.N)/b.Elapsed().Seconds(), "events/s")
			b.ReportMetric(2*float64(c.bytes)/float64(c.events), "B/pair")
		})
	}
}

func makeCorpus(b *testing.B, sessions, each, mean int) *corpus {
	b.Helper()
	r := rand.New(rand.NewPCG(7, 9))
	pool := make([]string, 1024)
	for i := range pool {
		want := mean/2 + r.IntN(mean+1)
		var t strings.Builder
		fmt.Fprintf(&t, `{"exit":%d,"ms":%d,"text":"`, r.IntN(3), r.IntN(9000))
		for t.Len() < want-12 {
			t.WriteString(vocabulary[r.IntN(len(vocabulary))])
			if r.IntN(9) == 0 {
				fmt.Fprintf(&t, `\n%d`, r.IntN(1e6))
			}
			t.WriteByte(' ')
		}
		t.WriteString(`"}`)
		pool[i] = t.String()
	}
	c := &corpus{store: journaltest.Files(b)}
	opt := journal.Options{Holder: lease.Self("bench"), NewState: func() journal.State { return replay.NewChecker() }, Create: true}
	for n := range sessions {
		id := fmt.Sprintf("s-%06d", n)
		c.sessions = append(c.sessions, id)
		j, err := journal.Open(ctx, c.store, id, opt)
		if err != nil {
			b.Fatal(err)
		}
		var entries []journal.Entry
		for k := 0; k < each; k += 2 {
			call := fmt.Sprintf("c-%08d", n*each+k)
			head := fmt.Sprintf(`{"worker":%d,"seq":%d,"path":"/srv/data/report-%06d.csv","mode":"read","query":"`, n, k, k)
			entries = append(entries, journaltest.Call(call, "read_file", head+strings.Repeat("abcdefg ", 30)[:198-len(head)]+`"}`),
				journaltest.Result(call, 1, pool[r.IntN(len(pool))]))
			if len(entries) == 500 || k+2 >= each {
				journaltest.Append(b, j, entries...)
				entries = entries[:0]
			}
		}
		if err := j.Close(); err != nil {
			b.Fatal(err)
		}
		fi, err := os.Stat(fmt.Sprintf("%s/sessions/%s/000001.jsonl", c.store.Dir(), id))
		if err != nil {
			b.Fatal(err)
		}
		c.bytes += fi.Size()
		c.events += int(j.Head().Seq)
	}
	return c
}

func (c *corpus) read(b *testing.B, opt journal.ScanOptions) {
	events := 0
	for _, id := range c.sessions {
		opt.State = replay.New()
		s := journal.NewScan(c.store, id, opt)
		for it, err := range s.Items(ctx) {
			if err != nil || it.Finding != nil && it.Finding.Severity == schema.SeverityError {
				b.Fatal(it.Finding, err)
			}
		}
		events += s.Events
	}
	if events != c.events {
		b.Fatalf("%d events of %d", events, c.events)
	}
}

// BenchmarkVerifyFold reads a store as verify and replay do together: sums,
// chain and bodies are checked, and each session is folded. How it goes with
// the cores takes a process for each number of them, with GOMAXPROCS set and
// -cpu the same: of -cpu 1,2 in one run, what stands under one number is
// measured under the other.
func BenchmarkVerifyFold(b *testing.B) {
	corpora(b, func(b *testing.B, c *corpus) { c.read(b, journal.ScanOptions{}) })
}

// BenchmarkTrusted is the same without the sums.
func BenchmarkTrusted(b *testing.B) {
	corpora(b, func(b *testing.B, c *corpus) { c.read(b, journal.ScanOptions{Trusted: true}) })
}

// BenchmarkAppendBehind appends to a session that has so many events already, in
// memory, so that the disk hides nothing. What the journal and its state keep of each event
// is B/event.
func BenchmarkAppendBehind(b *testing.B) {
	for _, events := range []int{1e3, 1e6} {
		b.Run(fmt.Sprint(events), func(b *testing.B) {
			store := journaltest.Files(b)
			opt := journal.Options{Holder: lease.Self("bench"), NewState: func() journal.State { return replay.NewChecker() }, Create: true}
			before := inUse()
			j, err := journal.Open(ctx, store, "s1", opt)
			if err != nil {
				b.Fatal(err)
			}
			entries := slices.Repeat([]journal.Entry{journaltest.Note(strings.Repeat("x", 300))}, 500)
			for range events / len(entries) {
				journaltest.Append(b, j, entries...)
			}
			kept := float64(inUse()-before) / float64(events)
			b.ReportAllocs()
			for b.Loop() {
				if _, err := j.Append(ctx, entries[0]); err != nil {
					b.Fatal(err)
				}
			}
			b.StopTimer()
			b.ReportMetric(kept, "B/event")
			if err := j.Close(); err != nil {
				b.Fatal(err)
			}
		})
	}
}

func inUse() uint64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}
