package journal_test

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/oklog/ulid/v2"

	"steno/journal"
	"steno/journal/journaltest"
	"steno/schema"
)

// Benchmarks of many sessions: b.N is how many there are, so they are asked for
// with -benchtime 100000x and the like.

// BenchmarkManyListed lists sessions: their ids, and with their leases.
func BenchmarkManyListed(b *testing.B) {
	list := func(b *testing.B, each func(store journal.Store, id string) error) {
		dir := b.TempDir()
		store := journaltest.FilesIn(b, dir)
		released(b, dir, b.N)
		b.ReportAllocs()
		b.ResetTimer()
		for id, err := range store.Sessions(ctx) {
			if err == nil {
				err = each(store, id)
			}
			if err != nil {
				b.Fatal(err)
			}
		}
		b.StopTimer()
		b.ReportMetric(b.Elapsed().Seconds(), "s/all")
	}
	b.Run("ids", func(b *testing.B) { list(b, func(journal.Store, string) error { return nil }) })
	b.Run("leases", func(b *testing.B) {
		list(b, func(store journal.Store, id string) error {
			_, err := store.Lease(ctx, id)
			return err
		})
	})
}

// BenchmarkTakeover is how long it takes from a kill of the holder of a session
// to the next durable line, of a process that stands by.
func BenchmarkTakeover(b *testing.B) {
	for _, events := range []int{10, 1000} {
		b.Run(fmt.Sprint("events=", events), func(b *testing.B) {
			dir := b.TempDir()
			store := journaltest.FilesIn(b, dir)
			var took []time.Duration
			opt := journaltest.Options()
			standby, err := journal.Open(ctx, store, "standby", opt)
			if err != nil {
				b.Fatal(err)
			}
			journaltest.Append(b, standby, journaltest.Note("ready"))
			for b.Loop() {
				b.StopTimer()
				id := fmt.Sprint("s", len(took))
				w := journaltest.StartWriter(b, journaltest.Writer{Dir: dir, Session: id})
				w.WaitFor("ack", events)
				b.StartTimer()
				began := time.Now()
				w.Kill()
				j, err := journal.Open(ctx, store, id, opt)
				if err != nil {
					b.Fatal(err)
				}
				journaltest.Append(b, j, journaltest.Note("here"))
				took = append(took, time.Since(began))
				b.StopTimer()
				if err := j.Close(); err != nil {
					b.Fatal(err)
				}
				b.StartTimer()
			}
			if err := standby.Close(); err != nil {
				b.Fatal(err)
			}
			slices.Sort(took)
			b.ReportMetric(took[len(took)/2].Seconds()*1e3, "p50-ms")
			b.ReportMetric(took[len(took)*99/100].Seconds()*1e3, "p99-ms")
		})
	}
}

// BenchmarkManyTakenOver takes over the sessions of a process that was killed
// while it appended to them, each with its first durable line.
func BenchmarkManyTakenOver(b *testing.B) {
	dir := b.TempDir()
	store := journaltest.FilesIn(b, dir)
	p := journaltest.Start(b, "holder", holder{dir, b.N})
	p.WaitFor("holds", 1)
	p.Kill()
	opt := journaltest.Options()
	journals := make([]*journal.Journal, b.N)
	var next atomic.Int64
	var work sync.WaitGroup
	b.ResetTimer()
	for range 32 {
		work.Go(func() {
			for i := int(next.Add(1)) - 1; i < b.N; i = int(next.Add(1)) - 1 {
				j, err := journal.Open(ctx, store, fmt.Sprint("s", i), opt)
				if err == nil {
					_, err = j.Append(ctx, journaltest.Note("here"))
				}
				if journals[i] = j; err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	work.Wait()
	b.StopTimer()
	b.ReportMetric(b.Elapsed().Seconds(), "s/all")
	for _, j := range journals {
		if err := j.Close(); err != nil {
			b.Fatal(err)
		}
	}
}

// A holder is what a child of that role does: it opens sessions of a store,
// appends to all of them in turn, and says "holds" once each has 10 notes.
type holder struct {
	Dir      string
	Sessions int
}

func holdMany(arg []byte) error {
	var h holder
	if err := json.Unmarshal(arg, &h); err != nil {
		return err
	}
	store, err := journal.OpenFiles(h.Dir, false)
	if err != nil {
		return err
	}
	opt := journaltest.Options()
	note := journaltest.Note(strings.Repeat("n", 2<<10))
	journals := make([]*journal.Journal, h.Sessions)
	for n := 0; ; n++ {
		failed := make(chan error, len(journals))
		room := make(chan struct{}, 32)
		for i := range journals {
			room <- struct{}{}
			go func() {
				var err error
				if journals[i] == nil {
					journals[i], err = journal.Open(ctx, store, fmt.Sprint("s", i), opt)
				}
				if err == nil {
					_, err = journals[i].Append(ctx, note)
				}
				<-room
				failed <- err
			}()
		}
		for range journals {
			if err := <-failed; err != nil {
				return err
			}
		}
		if n == 9 {
			journaltest.Say("holds")
		}
	}
}

// released makes sessions whose writers are gone, as they would have left them,
// but for the syncs.
func released(tb testing.TB, dir string, n int) {
	tb.Helper()
	holder := journaltest.Options().Holder
	for i := range n {
		id := fmt.Sprintf("s%06d", i)
		claim := schema.Claim{Session: id, Epoch: 1, Time: time.Now(), Holder: holder}
		lines, err := claim.Append(nil)
		if err != nil {
			tb.Fatal(err)
		}
		var prev schema.Sum
		for k, e := range []journal.Entry{
			{Type: schema.TypeWriterOpened, Data: (&schema.Seal{Claim: claim.Sum.String(), How: schema.HowNew}).Data()},
			{Type: schema.TypeSessionStarted, Data: []byte("{}")},
			{Type: schema.TypeWriterReleased, Data: []byte(`{"reason":"done"}`)},
		} {
			event := schema.Event{Session: id, Seq: uint64(k) + 1, Epoch: 1, ID: ulid.Make(), Time: time.Now(), Type: e.Type, Data: e.Data, Dur: uint64(k), Prev: prev}
			lines = event.Append(lines)
			prev = event.Sum
		}
		folder := filepath.Join(dir, "sessions", id)
		if err := os.Mkdir(folder, 0o700); err != nil {
			tb.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(folder, "000001.jsonl"), lines, 0o600); err != nil {
			tb.Fatal(err)
		}
	}
}
