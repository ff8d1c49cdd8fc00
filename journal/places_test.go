package journal_test

import (
	"encoding/binary"
	"testing"

	"github.com/oklog/ulid/v2"

	"steno/journal"
	"steno/journal/journaltest"
)

// What is kept of each event in a few bytes is what a plain table would say, over
// new segments, numbers that a repair left out, long lines and moved tails.
func TestPlacesAreThoseOfAPlainTable(t *testing.T) {
	t.Parallel()
	seed := journaltest.Seed(t)
	for n := range journaltest.Amount(20, 100, 1000) {
		r := journaltest.Rand(seed, n)
		type event struct {
			id         ulid.ULID
			seq, epoch uint64
			offset     int64
		}
		var p journal.Places
		var all []event
		seq, epoch, offset := uint64(0), uint64(1), int64(100)
		for range 3000 {
			switch r.IntN(200) {
			case 0:
				epoch, offset = epoch+1+r.Uint64N(3), 300
			case 1:
				seq += r.Uint64N(1 << 40)
			case 2:
				offset += 1 << 33
			case 3: // the last of this segment stand in the next one
				at := offset
				for i := len(all) - 1; i >= 0 && all[i].epoch == epoch && r.IntN(700) > 0; i-- {
					at = all[i].offset
				}
				p.Move(epoch, at, epoch+1, 500)
				for i := range all {
					if e := &all[i]; e.epoch == epoch && e.offset >= at {
						e.epoch, e.offset = epoch+1, 500+e.offset-at
					}
				}
				epoch, offset = epoch+1, 500+offset-at
			}
			seq++
			e := event{ulid.ULID{15: 1}, seq, epoch, offset}
			binary.BigEndian.PutUint64(e.id[:], seq)
			p.Note(e.id, e.seq, e.epoch, e.offset)
			all = append(all, e)
			offset += 400 + r.Int64N(900)
		}
		for i, e := range all {
			if epoch, offset, ok := p.Seq(e.seq); !ok || epoch != e.epoch || offset != e.offset {
				t.Fatalf("seed %d, event %d of number %d stands at %d %d, %t; want %+v", seed, i, e.seq, epoch, offset, ok, e)
			}
			if seq, epoch, offset, ok := p.ID(e.id); !ok || seq != e.seq || epoch != e.epoch || offset != e.offset {
				t.Fatalf("seed %d, event %s is number %d at %d %d, %t; want %+v", seed, e.id, seq, epoch, offset, ok, e)
			}
			if i+1 < len(all) && all[i+1].seq > e.seq+1 {
				if _, _, ok := p.Seq(e.seq + 1); ok {
					t.Fatalf("seed %d, number %d was left out and has a place", seed, e.seq+1)
				}
			}
		}
		if _, _, ok := p.Seq(seq + 1); ok {
			t.Fatalf("seed %d, number %d is not there yet and has a place", seed, seq+1)
		}
		if _, _, _, ok := p.ID(ulid.ULID{1}); ok {
			t.Fatal("an id that is not there has a place")
		}
	}
}
