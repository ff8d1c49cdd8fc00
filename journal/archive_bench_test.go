package journal_test

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"steno/journal"
	"steno/journal/journaltest"
)

// BenchmarkPacked reads one long session as its writer left it and packed,
// through, and one event at a time from anywhere.
func BenchmarkPacked(b *testing.B) {
	c := makeCorpus(b, 1, 100_000, 215)
	id := c.sessions[0]
	for _, how := range []string{"plain", "packed"} {
		if how == "packed" {
			p, err := c.store.Pack(ctx, id, packOptions())
			if err != nil {
				b.Fatal(err)
			}
			c.events += 2
			fmt.Printf("%d bytes are packed into %d, 1 to %.2f\n", p.Bytes, p.Size, float64(p.Bytes)/float64(p.Size))
		}
		b.Run(how+"/read", func(b *testing.B) {
			b.SetBytes(c.bytes)
			for b.Loop() {
				c.read(b, journal.ScanOptions{})
			}
			b.ReportMetric(float64(c.events)*float64(b.N)/b.Elapsed().Seconds(), "events/s")
		})
		b.Run(how+"/event", func(b *testing.B) {
			j, err := journal.Open(ctx, c.store, id, journaltest.Options())
			if err != nil {
				b.Fatal(err)
			}
			r := rand.New(rand.NewPCG(1, 2))
			for b.Loop() {
				if _, err := j.Event(ctx, 1+r.Uint64N(100_000)); err != nil {
					b.Fatal(err)
				}
			}
			if err := j.Release(ctx, "done"); err != nil {
				b.Fatal(err)
			}
			c.events += 2 // its seal and its release
		})
	}
}

// BenchmarkPack packs a session of 100,000 events.
func BenchmarkPack(b *testing.B) {
	b.SetBytes(makeCorpus(b, 1, 100_000, 215).bytes)
	for b.Loop() {
		b.StopTimer()
		c := makeCorpus(b, 1, 100_000, 215)
		b.StartTimer()
		if _, err := c.store.Pack(ctx, c.sessions[0], packOptions()); err != nil {
			b.Fatal(err)
		}
	}
}
