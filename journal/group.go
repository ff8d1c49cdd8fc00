package journal

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/oklog/ulid/v2"

	"steno/lease"
	"steno/schema"
)

// A part is one append among those that share a write.
type part struct {
	ctx     context.Context
	entries []Entry
	batch   batch
	records []Record
	err     error
	done    chan struct{} // closed once records or err is there; nil if nobody waits elsewhere
}

// A batch is entries that are ready to be written.
type batch struct {
	known   []Record       // recorded already: all, or the beginning
	records []Record       // the others, as they are told and read back
	fresh   []schema.Event // as the state is moved by them
	lines   []byte
	blobs   []schema.Blob
	room    *room // that fresh is in
}

// maxShared and maxParts bound what appends write together, in bytes and in
// appends: the fold checks each of them behind those before it.
const (
	maxShared = 128 << 10
	maxParts  = 64
)

func (j *Journal) append(ctx context.Context, entries []Entry) ([]Record, error) {
	p := &part{ctx: ctx, entries: entries}
	select {
	case j.lane <- struct{}{}: // nobody appends
		j.share(append(j.waiters(), p))
		<-j.lane
		return p.records, p.err
	default:
	}
	p.done = make(chan struct{})
	j.mu.Lock()
	j.queue = append(j.queue, p)
	j.mu.Unlock()
	switch mine, err := j.await(p); {
	case err != nil:
		return nil, err
	case mine:
		j.share(j.waiters()) // it is among them, or done
		<-j.lane
	}
	<-p.done
	return p.records, p.err
}

// await waits until a part is done, or the lane is free for whoever waits. The
// context of the part ends the wait only where an append before waits for room
// on the disk.
func (j *Journal) await(p *part) (mine bool, err error) {
	select {
	case <-p.done:
		return false, nil
	case j.lane <- struct{}{}:
		return true, nil
	case <-p.ctx.Done():
	}
	j.mu.Lock()
	stuck := j.stuck
	j.mu.Unlock()
	select {
	case <-p.done:
		return false, nil
	case j.lane <- struct{}{}:
		return true, nil
	case <-stuck:
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	i := slices.Index(j.queue, p)
	if i < 0 {
		return false, nil // it is being written
	}
	j.queue = slices.Delete(j.queue, i, i+1)
	return false, schema.Errorf(schema.LogWriteFailed, "session %s waits for room on the disk", j.session).
		With("session", j.session).With("outcome", NotStored.String()).Cause(p.ctx.Err())
}

func (j *Journal) waiters() []*part {
	j.mu.Lock()
	defer j.mu.Unlock()
	list := j.queue
	j.queue = nil
	return list
}

// share writes appends, as many at a time as may share a write. The caller has
// the lane.
func (j *Journal) share(parts []*part) {
	var all batch
	group := parts[:0] // it never gets ahead of where parts are read
	for _, p := range parts {
		if len(group) == maxParts || len(all.lines) > maxShared || all.has(p.entries) {
			j.write(all, group)
			all, group = batch{}, group[:0]
		}
		p.batch, p.err = j.encode(context.Background(), p.entries, &all)
		// What is to be written is behind its beginning; a line may be too long only
		// with what it has to say behind others.
		if (len(p.batch.known) > 0 || errors.Is(p.err, schema.LineTooLong)) && len(group) > 0 {
			j.write(all, group)
			all, group = batch{}, group[:0]
			p.batch, p.err = j.encode(context.Background(), p.entries, &all)
		}
		if p.err == nil && len(p.batch.fresh) > 0 {
			if p.err = j.put(p.ctx, p.batch.blobs, true); p.err == nil {
				group = append(group, p)
				all.add(&p.batch)
				continue
			}
			if n := len(p.batch.known); n > 0 {
				p.err = schema.AsError(p.err).With("outcome", outcomeOf(n, len(p.entries)))
			}
		}
		p.finish(p.batch.known)
	}
	j.write(all, group)
	j.keepSoon()
}

// has reports whether an id of entries is in the batch.
func (b *batch) has(entries []Entry) bool {
	if len(b.records) == 0 {
		return false
	}
	for _, in := range entries {
		for i := range b.records {
			if in.ID != (ulid.ULID{}) && in.ID == b.records[i].ID {
				return true
			}
		}
	}
	return false
}

// add puts a part behind what is there. What the part has stays its own.
func (b *batch) add(p *batch) {
	if len(b.fresh) == 0 {
		b.records, b.fresh, b.lines = p.records, p.fresh, p.lines
		return
	}
	b.records = append(b.records[:len(b.records):len(b.records)], p.records...)
	b.fresh = append(b.fresh[:len(b.fresh):len(b.fresh)], p.fresh...)
	b.lines = append(b.lines[:len(b.lines):len(b.lines)], p.lines...)
}

func (p *part) finish(records []Record) {
	if p.err == nil {
		p.records = records
	}
	if p.done != nil {
		close(p.done)
	}
}

// write writes what parts have together, and tells each what became of it.
func (j *Journal) write(all batch, parts []*part) {
	if len(parts) == 0 {
		return
	}
	told, kept := all.records, len(all.records)
	_, err := j.writer.Append(context.Background(), all.lines, false)
	if err == nil {
		j.done(all)
	} else {
		ctx, cancel := untilAllEnd(parts)
		told, kept, err = j.goOn(ctx, all, err)
		cancel()
	}
	for i, p := range parts {
		n := len(p.batch.records)
		mine := told[:min(n, len(told))]
		if len(mine) < n && errors.Is(err, schema.LineTooLong) { // one of them, in the epoch that the roll has begun
			j.anew(parts[i:])
			return
		}
		if len(mine) < n {
			outcome := Unknown.String()
			if kept >= 0 {
				outcome = outcomeOf(len(p.batch.known)+min(kept, n), len(p.entries))
			}
			e := *schema.AsError(err)
			e.Details = maps.Clone(e.Details)
			p.err = e.With("outcome", outcome)
		} else if len(p.batch.known) > 0 {
			mine = append(p.batch.known, mine...)
		}
		if kept >= 0 {
			kept = max(0, kept-n)
		}
		told = told[min(n, len(told)):]
		if err == nil {
			p.batch.room.back()
		}
		p.finish(mine)
	}
}

// anew writes parts that a roll has not: those of which a line is too long with
// the larger numbers are refused, and the others are not. The events keep their
// ids, so that what is recorded of the first of them is known.
func (j *Journal) anew(parts []*part) {
	for _, p := range parts {
		p.entries = slices.Clone(p.entries)
		for i, n := range p.batch.records {
			p.entries[len(p.batch.known)+i].ID = n.ID
		}
	}
	j.share(parts)
}

// done moves the state by what is durable, and tells of it. The lane keeps the
// order: to tell may take its time.
func (j *Journal) done(b batch) {
	j.mu.Lock()
	j.fold(b.records, b.fresh)
	j.mu.Unlock()
	if j.tell != nil {
		for i := range b.records {
			j.tell(b.records[i])
		}
	}
}

// untilAllEnd gives a context that ends when nobody waits any more.
func untilAllEnd(parts []*part) (context.Context, func()) {
	ctx, cancel := context.WithCancel(context.Background())
	var left atomic.Int64
	left.Store(int64(len(parts)))
	var stops []func() bool
	for _, p := range parts {
		stops = append(stops, context.AfterFunc(p.ctx, func() {
			if left.Add(-1) == 0 {
				cancel()
			}
		}))
	}
	return ctx, func() {
		for _, stop := range stops {
			stop()
		}
		cancel()
	}
}

// appendAlone writes what must be durable in the segment itself and does not
// roll: the seal, or the last line.
func (j *Journal) appendAlone(ctx context.Context, entries []Entry) ([]Record, error) {
	j.lane <- struct{}{}
	defer func() { <-j.lane }()
	b, err := j.encode(context.Background(), entries, &batch{})
	if err != nil || len(b.fresh) == 0 {
		return b.known, err
	}
	if err := j.put(ctx, b.blobs, false); err != nil {
		return nil, err
	}
	if _, err := j.writer.Append(context.Background(), b.lines, true); err != nil {
		j.die(err)
		return nil, err
	}
	j.done(b)
	return b.records, nil
}

// A room is memory for the fresh events of one append, which the next may have.
type room struct {
	fresh  []schema.Event
	fields []*schema.Fields
}

var rooms = sync.Pool{New: func() any { return new(room) }}

// back gives a room back that nobody looks into any more.
func (r *room) back() {
	if len(r.fresh) > 8 {
		return
	}
	clear(r.fresh)
	for _, f := range r.fields {
		f.Read(nil)
	}
	rooms.Put(r)
}

// put stores blobs. One that does not fit is waited for like the lines: the
// writer goes on after it.
func (j *Journal) put(ctx context.Context, blobs []schema.Blob, mayWait bool) (err error) {
	if len(blobs) == 0 {
		return nil
	}
	defer j.wait(nil)
	for i, pause := 0, firstPause; i < len(blobs); {
		if err = j.writer.Put(context.Background(), &blobs[i]); err == nil {
			i++
			continue
		}
		if !mayWait || !lease.IsFull(err) {
			return err
		}
		if stop := j.pause(ctx, err, pause); stop != nil {
			return schema.AsError(stop).With("session", j.session).With("outcome", NotStored.String()).Cause(errors.Join(schema.AsError(stop).Err, err))
		}
		pause = min(2*pause, maxPause)
	}
	return nil
}
