package journal_test

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"steno/journal"
	"steno/journal/journaltest"
)

// BenchmarkOpenLong opens a session of 100,000 events, or 1,000,000 with
// STENO_TRY=long, to write it: with the whole log, and from a checkpoint; and
// makes the checkpoint.
func BenchmarkOpenLong(b *testing.B) {
	events := journaltest.Amount(100_000, 100_000, 1_000_000)
	c := makeCorpus(b, 1, events, 215)
	id := c.sessions[0]
	open := func(b *testing.B, opt journal.Options) *journal.Journal {
		j, err := journal.Open(ctx, c.store, id, opt)
		if err != nil {
			b.Fatal(err)
		}
		return j
	}
	b.Run("whole", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			j := open(b, journaltest.Options())
			b.StopTimer()
			journaltest.Release(b, j)
			b.StartTimer()
		}
	})
	b.Run("made", func(b *testing.B) {
		for b.Loop() {
			b.StopTimer()
			_ = os.Remove(checkpointIn(c.store.Dir(), id))
			j := open(b, keeping(4096))
			b.StartTimer()
			if journal.Kept(j) == 0 {
				b.Fatal("there is no checkpoint")
			}
			b.StopTimer()
			journaltest.Release(b, j)
			b.StartTimer()
		}
		fi, err := os.Stat(checkpointIn(c.store.Dir(), id))
		if err != nil {
			b.Fatal(err)
		}
		b.ReportMetric(float64(fi.Size())/float64(events), "B/event")
	})
	b.Run("checkpoint", func(b *testing.B) {
		journaltest.Release(b, open(b, keeping(4096)))
		b.ReportAllocs()
		for b.Loop() {
			j := open(b, keeping(4096))
			b.StopTimer()
			journaltest.Release(b, j)
			b.StartTimer()
		}
	})
}

// BenchmarkAppendBesideCheckpoints appends to a session for which checkpoints are
// made meanwhile, and to one for which none are.
func BenchmarkAppendBesideCheckpoints(b *testing.B) {
	entry := journaltest.Note(strings.Repeat("x", 300))
	for _, every := range []uint64{0, 4096} {
		b.Run(fmt.Sprint("every=", every), func(b *testing.B) {
			opt := journaltest.Options()
			if every > 0 {
				opt = keeping(every)
			}
			j, err := journal.Open(ctx, journaltest.FilesIn(b, b.TempDir()), "s1", opt)
			if err != nil {
				b.Fatal(err)
			}
			var took []time.Duration
			for b.Loop() {
				began := time.Now()
				journaltest.Append(b, j, entry)
				took = append(took, time.Since(began))
			}
			slices.Sort(took)
			b.ReportMetric(float64(took[len(took)*99/100].Microseconds()), "p99-µs")
			if err := j.Close(); err != nil {
				b.Fatal(err)
			}
		})
	}
}
