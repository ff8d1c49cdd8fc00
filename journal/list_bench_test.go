package journal_test

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/oklog/ulid/v2"

	"steno/journal"
	"steno/journal/journaltest"
	"steno/schema"
)

// BenchmarkList lists 100,000 sessions: their ids, and with their leases.
func BenchmarkList(b *testing.B) {
	const sessions = 100_000
	dir := b.TempDir()
	store := journaltest.FilesIn(b, dir)
	released(b, dir, sessions)
	list := func(b *testing.B, each func(id string) error) {
		b.ReportAllocs()
		n := 0
		for b.Loop() {
			for id, err := range store.Sessions(ctx) {
				if err == nil {
					err = each(id)
				}
				if err != nil {
					b.Fatal(err)
				}
				n++
			}
		}
		b.ReportMetric(float64(n)/b.Elapsed().Seconds(), "sessions/s")
	}
	b.Run("ids", func(b *testing.B) { list(b, func(string) error { return nil }) })
	b.Run("leases", func(b *testing.B) {
		list(b, func(id string) error {
			_, err := store.Lease(ctx, id)
			return err
		})
	})
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
