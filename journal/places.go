package journal

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"math"
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

// places are where the events of a log stand, by number and by id: some 20
// bytes for each, and 30 more once it was asked for an id, for a session may have
// millions. Whoever adds to them has the lane and mu, or is alone.
type places struct {
	list []stretch
	n    uint32               // how many events there are
	ids  map[ulid.ULID]uint32 // of each but the last its place in the order of the log, from 0
	last []ulid.ULID          // ids that are not in the map yet: most logs are never asked for one
	old  schema.Table         // the same of the ids that a checkpoint has, which are in neither
}

// A stretch is events of one segment whose numbers follow each other. Where a
// repair has left something out, the next one begins. Each is short, so that a
// long log never has to be copied.
type stretch struct {
	at     uint32 // place of its first event in the order of the log
	seq    uint64 // of that
	epoch  uint64
	offset int64
	behind []uint32 // how much further each stands
}

const maxStretch = 512

func (p *places) note(id ulid.ULID, seq uint64, at place) {
	p.last = append(p.last, id)
	p.add(seq, at)
}

func (p *places) add(seq uint64, at place) {
	if k := len(p.list); k > 0 {
		s := &p.list[k-1]
		n, behind := len(s.behind), at.offset-s.offset
		if n < maxStretch && at.epoch == s.epoch && seq == s.seq+uint64(n) && 0 <= behind && behind <= math.MaxUint32 {
			s.behind = append(s.behind, uint32(behind))
			p.n++
			return
		}
	}
	p.list = append(p.list, stretch{p.n, seq, at.epoch, at.offset, []uint32{0}})
	p.n++
}

// seq finds an event by its number.
func (p *places) seq(seq uint64) (place, bool) {
	k, _ := slices.BinarySearchFunc(p.list, seq, func(s stretch, seq uint64) int { return cmp.Compare(s.seq, seq+1) })
	if k == 0 || seq-p.list[k-1].seq >= uint64(len(p.list[k-1].behind)) {
		return place{}, false
	}
	s := &p.list[k-1]
	return place{s.epoch, s.offset + int64(s.behind[seq-s.seq])}, true
}

// id finds an event by its id, and its number. The first time it makes the table
// of all ids, which takes a fraction of a second where there are millions; most
// sessions are never asked. The caller has the lane.
func (p *places) id(id ulid.ULID) (seq uint64, at place, ok bool) {
	if p.ids == nil {
		p.ids = make(map[ulid.ULID]uint32, len(p.last))
	}
	for i, id := range p.last {
		p.ids[id] = p.n - uint32(len(p.last)-i)
	}
	if p.last = p.last[:0]; cap(p.last) > 64 {
		p.last = nil
	}
	n, ok := p.ids[id]
	if !ok {
		n, ok = p.old.Find(id)
	}
	if !ok {
		return 0, place{}, false
	}
	k, _ := slices.BinarySearchFunc(p.list, n, func(s stretch, n uint32) int { return cmp.Compare(s.at, n+1) })
	s := &p.list[k-1]
	return s.seq + uint64(n-s.at), place{s.epoch, s.offset + int64(s.behind[n-s.at])}, true
}

// move notes that the last events, those of a segment from an offset on, stand
// somewhere else now, in the same distances.
func (p *places) move(from, to place) {
	type moved struct {
		seq    uint64
		offset int64
	}
	var last []moved
	for k := len(p.list); k > 0 && p.list[k-1].epoch == from.epoch; k = len(p.list) {
		s := &p.list[k-1]
		n := len(s.behind)
		offset := s.offset + int64(s.behind[n-1])
		if offset < from.offset {
			break
		}
		last = append(last, moved{s.seq + uint64(n-1), to.offset + offset - from.offset})
		if s.behind = s.behind[: n-1 : n-1]; n == 1 { // the rest may be a checkpoint's
			p.list = p.list[:k-1]
		}
		p.n--
	}
	for _, m := range slices.Backward(last) {
		p.add(m.seq, place{to.epoch, m.offset})
	}
}

// recorded gives those of entries whose ids are in the log: all, none, or the
// beginning, behind which the rest belongs. The caller has the lane.
func (j *Journal) recorded(ctx context.Context, entries []Entry) ([]Record, error) {
	var seen map[ulid.ULID]bool
	var known []Record
	for _, in := range entries {
		if in.ID == (ulid.ULID{}) {
			continue
		}
		if seen == nil {
			seen = map[ulid.ULID]bool{}
		}
		if seen[in.ID] {
			return nil, schema.Errorf(schema.InvalidArgs, "event id %s stands twice in one append", in.ID).With("session", j.session)
		}
		seen[in.ID] = true
		if seq, p, ok := j.places.id(in.ID); ok {
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
		p, ok := j.places.seq(seq)
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
	p, ok := j.places.seq(seq)
	j.mu.Unlock()
	if !ok {
		return Record{}, schema.Errorf(schema.NotFound, "session %s has no event %d", j.session, seq).With("session", j.session)
	}
	r, err := j.read(ctx, seq, p)
	if errors.Is(err, schema.CorruptLogLine) { // a roll may have carried it elsewhere meanwhile
		j.mu.Lock()
		q, ok := j.places.seq(seq)
		j.mu.Unlock()
		if ok && q != p {
			return j.read(ctx, seq, q)
		}
	}
	return r, err
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
