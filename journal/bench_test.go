package journal_test

import (
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"steno/journal"
	"steno/journal/journaltest"
	"steno/replay"
)

// BenchmarkAppend appends results to files on a real disk, with real syncs.
func BenchmarkAppend(b *testing.B) {
	entry := journaltest.Note(strings.Repeat("x", 300))
	for _, sessions := range []int{1, 16} {
		b.Run(fmt.Sprintf("sessions=%d", sessions), func(b *testing.B) {
			store := journaltest.FilesIn(b, b.TempDir())
			syncs, bytes := perAppend(b, entry)
			var journals []*journal.Journal
			for n := range sessions {
				journals = append(journals, journaltest.Open(b, store, fmt.Sprint("s", n)))
			}
			var left atomic.Int64
			left.Store(int64(b.N))
			var wg sync.WaitGroup
			b.ResetTimer()
			for _, j := range journals {
				wg.Go(func() {
					for left.Add(-1) >= 0 {
						if _, err := j.Append(ctx, entry); err != nil {
							b.Error(err)
							return
						}
					}
				})
			}
			wg.Wait()
			b.StopTimer()
			b.ReportMetric(syncs, "syncs/op")
			b.ReportMetric(bytes, "bytes/op")
		})
	}
}

// perAppend counts on a store of its own, since counting replaces the sync that
// is to be measured.
func perAppend(b *testing.B, entry journal.Entry) (syncs, bytes float64) {
	b.Helper()
	store, faults := journaltest.Faulty(journaltest.Files(b))
	j := journaltest.Open(b, store, "s1")
	const n = 50
	s, w := faults.Seen(journaltest.Sync), faults.Bytes()
	for range n {
		journaltest.Append(b, j, entry)
	}
	return float64(faults.Seen(journaltest.Sync)-s) / n, float64(faults.Bytes()-w) / n
}

// BenchmarkScan reads a log of calls, as a reader that only wants the events
// and as one that folds them.
func BenchmarkScan(b *testing.B) {
	store := journaltest.NewMemory()
	j := journaltest.Open(b, store, "s1")
	args := fmt.Sprintf(`{"path":%q}`, strings.Repeat("dir/", 20))
	output := fmt.Sprintf("%q", strings.Repeat("a line of output\\n", 20))
	for n := range 3000 {
		id := fmt.Sprint("c", n)
		journaltest.Append(b, j, journaltest.Call(id, "read", args), journaltest.Started(id, 1))
		journaltest.Append(b, j, journaltest.Result(id, 1, output))
	}
	if err := j.Close(); err != nil {
		b.Fatal(err)
	}
	size := int64(len(segmentsOf(b, store)[1]))
	for name, state := range map[string]func() journal.State{
		"events": func() journal.State { return nil },
		"folded": func() journal.State { return replay.New() },
	} {
		b.Run(name, func(b *testing.B) {
			b.SetBytes(size)
			b.ReportAllocs()
			events := 0
			for b.Loop() {
				s := journal.NewScan(store, "s1", journal.ScanOptions{State: state()})
				for _, err := range s.Items(ctx) {
					if err != nil {
						b.Fatal(err)
					}
				}
				if s.FirstError != nil {
					b.Fatal(s.FirstError)
				}
				events += s.Events
			}
			b.ReportMetric(float64(events)/b.Elapsed().Seconds(), "events/s")
		})
	}
}
