package journal

import (
	"cmp"
	"context"
	"crypto/rand"
	"slices"
	"sync"

	"github.com/oklog/ulid/v2"

	"steno/lease"
	"steno/schema"
)

// NewID makes an event id that nobody can guess.
func NewID() (id ulid.ULID) {
	_ = id.SetTime(ulid.Now()) // errs beyond the year 10889
	entropy.mu.Lock()
	defer entropy.mu.Unlock()
	if len(entropy.rest) == 0 {
		_, _ = rand.Read(entropy.buf[:]) // never errs
		entropy.rest = entropy.buf[:]
	}
	n := copy(id[6:], entropy.rest)
	clear(entropy.rest[:n])
	entropy.rest = entropy.rest[n:]
	return id
}

// entropy is random bytes that nobody has had yet: asking for many at a time
// costs little more than asking for few.
var entropy struct {
	mu   sync.Mutex
	buf  [100 * (len(ulid.ULID{}) - 6)]byte
	rest []byte
}

// A place is where an event stands.
type place struct {
	epoch  uint64
	offset int64
}

// A run is events whose numbers follow each other. Where a repair has left
// something out, the next one begins.
type run struct {
	seq uint64 // of its first event
	at  int    // index of that event's place
}

func (j *Journal) note(id ulid.ULID, seq uint64, p place) {
	n := len(j.places)
	if k := len(j.runs); k == 0 || seq-j.runs[k-1].seq != uint64(n-j.runs[k-1].at) {
		j.runs = append(j.runs, run{seq, n})
	}
	j.places = append(j.places, p)
	j.ids[id] = seq
}

// place finds an event.
func (j *Journal) place(seq uint64) (p place, ok bool) {
	k, _ := slices.BinarySearchFunc(j.runs, seq, func(r run, seq uint64) int { return cmp.Compare(r.seq, seq+1) })
	if k == 0 {
		return place{}, false
	}
	end := len(j.places)
	if k < len(j.runs) {
		end = j.runs[k].at
	}
	r := j.runs[k-1]
	if seq-r.seq >= uint64(end-r.at) {
		return place{}, false
	}
	return j.places[r.at+int(seq-r.seq)], true
}

// recorded gives those of entries whose ids are in the log: all, none, or the
// beginning, behind which the rest belongs. The caller has the lane.
func (j *Journal) recorded(ctx context.Context, entries []Entry) ([]Record, error) {
	seen := map[ulid.ULID]bool{}
	var known []Record
	for _, in := range entries {
		if in.ID == (ulid.ULID{}) {
			continue
		}
		if seen[in.ID] {
			return nil, schema.Errorf(schema.InvalidArgs, "event id %s stands twice in one append", in.ID).With("session", j.session)
		}
		seen[in.ID] = true
		if seq := j.ids[in.ID]; seq > 0 {
			p, _ := j.place(seq)
			r, err := j.read(ctx, seq, p)
			if err != nil {
				return nil, err
			}
			known = append(known, r)
		}
	}
	if len(known) > 0 && len(known) < len(entries) {
		begins, err := j.begins(ctx, entries, known)
		if err != nil {
			return nil, err
		}
		if !begins {
			ids := make([]string, len(known))
			for i := range known {
				ids[i] = known[i].ID.String()
			}
			return nil, schema.Errorf(schema.AlreadyExists, "%d of %d events of this append are recorded already", len(known), len(entries)).
				With("session", j.session).With("recorded", ids).With("next", "append those that are not recorded, under their own ids")
		}
	}
	return known, nil
}

// begins reports whether known is the beginning of a batch and all that is
// there behind it are seals and releases: the log of a writer that died, or
// failed, when a part of the batch had reached the disk.
func (j *Journal) begins(ctx context.Context, entries []Entry, known []Record) (bool, error) {
	for i := range known {
		if known[i].ID != entries[i].ID || i > 0 && known[i].Seq <= known[i-1].Seq {
			return false, nil
		}
	}
	for seq, i := known[0].Seq, 0; seq <= j.seq; seq++ {
		if i < len(known) && known[i].Seq == seq {
			i++
			continue
		}
		p, ok := j.place(seq)
		if !ok { // a repair has left it out, and it may have been anything
			return false, nil
		}
		r, err := j.read(ctx, seq, p)
		if err != nil {
			return false, err
		}
		if r.Type != schema.TypeWriterOpened && r.Type != schema.TypeWriterReleased {
			return false, nil
		}
	}
	return true, nil
}

// Event reads event seq back from the log: NotFound beyond its end, and for a
// number that a repair has left out.
func (j *Journal) Event(ctx context.Context, seq uint64) (Record, error) {
	j.mu.Lock()
	p, ok := j.place(seq)
	j.mu.Unlock()
	if !ok {
		return Record{}, schema.Errorf(schema.NotFound, "session %s has no event %d", j.session, seq).With("session", j.session)
	}
	return j.read(ctx, seq, p)
}

func (j *Journal) read(ctx context.Context, seq uint64, p place) (Record, error) {
	return j.readUnder(ctx, seq, p, nil)
}

// readUnder reads an event of a segment with a tail, if it is not nil, laid over
// it.
func (j *Journal) readUnder(ctx context.Context, seq uint64, p place, tail *lease.Tail) (Record, error) {
	f, err := j.store.Read(ctx, j.session, p.epoch, p.offset)
	if tail != nil && err == nil {
		f.Close()
		f, err = readUnder(ctx, j.store, j.session, p.epoch, tail, p.offset)
	}
	if err != nil {
		return Record{}, err
	}
	r := newLineReader(f, p.offset, p.offset+schema.MaxLine+1, new(pool))
	r.quick = true
	defer r.Close()
	var e schema.Event
	if !r.next() || !r.whole || e.Decode(r.line) != nil || e.Session != j.session || e.Seq != seq {
		err := schema.Errorf(schema.CorruptLogLine, "event %d of session %s is no longer what was written", seq, j.session).
			With("session", j.session).With("segment", p.epoch).With("offset", p.offset)
		return Record{}, err.Cause(r.err)
	}
	line := slices.Clone(r.line)
	if err := e.Decode(line); err != nil { // so that Data outlives the reader
		return Record{}, err
	}
	return Record{e, line}, nil
}
