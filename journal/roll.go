package journal

import (
	"context"
	"errors"
	"maps"
	"time"

	"steno/lease"
	"steno/schema"
)

// Pauses between the looks whether a full disk has room again.
const (
	firstPause = 50 * time.Millisecond
	maxPause   = 2 * time.Second
)

// A roll goes on with an append that failed. Nothing is ever retried on a
// segment after a write or sync failed there: the same process claims the next
// epoch, reads from the disk what is there, seals, and writes the rest anew
// under the same event ids.
type roll struct {
	why    error          // the failure that it began with
	rest   []Record       // what is yet to be recorded
	fresh  []schema.Event // the same, as it moves the state
	behind []Record       // what was written behind our last durable event, in our segment
	told   []Record       // what is recorded by now

	top   Writer // of the newest claim, and its epoch
	epoch uint64
	next  *claimed // has its name and nothing behind its claim; nil if there is none
	tried *claimed // the last one whose seal failed: nobody knows yet whether it counts
	void  []uint64 // claims that are ours and do not count
	held  []Writer // whose locks stay until the roll is sealed, so that nobody thinks us dead
}

type claimed struct {
	Writer
	epoch uint64
	sum   schema.Sum // of the claim
	size  int64      // of the claim, and of what is carried
	carry *carried
	seal  Record
	found []Record // what its seal says to be recorded
}

// goOn returns once the records of a failed append are recorded, some of them
// maybe by the write that failed. A full disk is waited for until ctx ends or
// the journal is closed. With an error told is what is recorded all the same,
// from the first record on, and kept how many are, -1 where nobody can tell.
func (j *Journal) goOn(ctx context.Context, b batch, why error) (told []Record, kept int, err error) {
	r := &roll{why: why, rest: b.records, fresh: b.fresh, behind: b.records, top: j.writer, epoch: j.epoch}
	defer j.wait(nil)
	defer func() { r.release(j.writer) }()
	err = why
	for pause := firstPause; !errors.Is(err, schema.SessionWriterLost); pause = min(2*pause, maxPause) {
		if err = j.advance(r); err == nil {
			r.release(j.writer)
			if err = j.rewrite(r); err == nil {
				return r.told, len(r.told), nil
			}
			if errors.Is(err, schema.LineTooLong) { // the larger numbers have made it so
				return r.told, len(r.told), err
			}
		}
		if !lease.IsFull(err) {
			break
		}
		if stop := j.pause(ctx, err, pause); stop != nil {
			err = errors.Join(stop, err)
			break
		}
	}
	kept, err = j.end(r, err)
	return r.told, kept, err
}

// advance claims the next epoch, reads what the disk has, seals, and applies
// what is recorded by that. What it has done before it fails is not done again.
func (j *Journal) advance(r *roll) error {
	// ctx ends waits; what is begun is done.
	ctx := context.Background()
	if r.next == nil {
		claim := schema.Claim{Session: j.session, Epoch: r.epoch + 1, Time: time.Now(), Holder: j.holder}
		header, err := claim.Append(nil)
		if err != nil {
			return err
		}
		room := int64(sealRoom)
		for i := range r.rest {
			room += int64(len(r.rest[i].Line)) + lineGrowth
		}
		w, err := r.top.Next(ctx, header, room)
		if errors.Is(err, schema.AlreadyExists) {
			return schema.Errorf(schema.SessionWriterLost, "session %s: epoch %d has been claimed by another writer", j.session, claim.Epoch).
				With("session", j.session).With("epoch", j.epoch).With("outcome", Unknown.String()).Cause(err)
		}
		if err != nil {
			return err
		}
		r.next = &claimed{Writer: w, epoch: claim.Epoch, sum: claim.Sum, size: int64(len(header))}
		r.top, r.epoch = w, claim.Epoch
	}
	// Newest first. A seal whose write or sync failed may be there.
	if t := r.tried; t != nil {
		n, _, _, err := j.recordedBehind(ctx, r.next, t.epoch, t.size, t.seal.Seq-1, t.seal.Prev, []Record{t.seal})
		if err != nil {
			return err
		}
		if r.tried = nil; n > 0 {
			j.commit(r, t)
		} else {
			r.void, r.held = append(r.void, t.epoch), append(r.held, t)
		}
	}
	n, size, tail, err := j.recordedBehind(ctx, r.next, j.epoch, j.size, j.seq, j.sum, r.behind)
	if err == nil {
		err = j.lastKept(ctx, tail)
	}
	if err != nil {
		return err
	}
	t := r.next
	t.found = r.behind[:n]
	length, seq, sum := j.size, j.seq, j.sum
	for i := range t.found {
		length, seq, sum = length+int64(len(t.found[i].Line))+1, t.found[i].Seq, t.found[i].Sum
	}
	if t.carry, err = j.carriedOf(ctx, j.epoch, tail, length); err != nil {
		return err
	}
	if t.carry != nil {
		if err := t.Carry(ctx, t.carry.lines); err != nil {
			r.next, r.void, r.held = nil, append(r.void, t.epoch), append(r.held, t)
			return err
		}
		t.size += t.carry.size()
	}
	seal := schema.Seal{Claim: t.sum.String(), How: schema.HowRoll, Void: r.void,
		Previous: &schema.Previous{Epoch: j.epoch, Len: &length, Size: &size, Seq: seq, Sum: sum},
		Evidence: &schema.Evidence{State: string(lease.Active), Observed: schema.AsError(r.why).Message, By: j.by, Reason: "the same process goes on"}}
	t.seal.Event = schema.Event{Session: j.session, Seq: seq + 1, Epoch: t.epoch, ID: NewID(), Time: now(),
		Type: schema.TypeWriterOpened, Dur: seq, Prev: sum}
	t.carry.name(&seal)
	t.seal.Data = seal.Data()
	line := t.seal.Append(nil)
	t.seal.Line = line[:len(line)-1]
	// The seal is synced alone. Lines that reached the disk without it would
	// make the segment one that was sealed and is damaged.
	r.next, r.tried = nil, t
	if _, err := t.Append(ctx, line, false); err != nil {
		return err
	}
	r.tried = nil
	j.commit(r, t)
	return nil
}

// sealRoom is more than a seal has, lineGrowth than a line grows by with its
// numbers.
const (
	sealRoom   = 2048
	lineGrowth = 64
)

// commit applies what a seal that is durable says to be recorded, and the seal.
func (j *Journal) commit(r *roll, t *claimed) {
	j.mu.Lock()
	defer j.mu.Unlock()
	n := len(t.found)
	j.apply(t.found, r.fresh[:n])
	j.move(t.carry, j.epoch, place{t.epoch, t.size - t.carry.size()})
	r.told = append(r.told, t.found...)
	r.rest, r.fresh, r.behind, r.void = r.rest[n:], r.fresh[n:], nil, nil
	r.held = append(r.held, j.writer)
	j.writer, j.epoch, j.size = t.Writer, t.epoch, t.size
	j.apply([]Record{t.seal}, []schema.Event{t.seal.Event})
}

// release gives the locks of all claims back but that of keep.
func (r *roll) release(keep Writer) {
	if r.next != nil {
		r.held = append(r.held, r.next.Writer)
	}
	if r.tried != nil {
		r.held = append(r.held, r.tried.Writer)
	}
	for _, w := range r.held {
		if w != keep {
			_ = w.Release() // it is finished, and writes nothing
		}
	}
	r.next, r.tried, r.held = nil, nil, nil
}

// rewrite writes the rest in the new epoch. The fold has accepted it when it
// was first written, behind the same events but the seal.
func (j *Journal) rewrite(r *roll) error {
	if len(r.rest) == 0 {
		return nil
	}
	var lines []byte
	again, fresh := make([]Record, len(r.rest)), make([]schema.Event, len(r.rest))
	seq, sum, ts := j.seq, j.sum, now()
	for i := range again {
		e := &again[i].Event
		*e = r.rest[i].Event
		seq++
		e.Seq, e.Epoch, e.Time, e.Dur, e.Prev = seq, j.epoch, ts, j.seq, sum
		line := e.Append(nil)
		if n := len(line) - 1; n > schema.MaxLine {
			return schema.Errorf(schema.LineTooLong, "%s would be a line of %d bytes; the limit is %d", e.Type, n, schema.MaxLine).
				With("session", j.session).With("bytes", n).With("limit", schema.MaxLine)
		}
		again[i].Line, sum, lines = line[:len(line)-1], e.Sum, append(lines, line...)
		fresh[i] = *e
		fresh[i].Data = r.fresh[i].Data
	}
	r.rest, r.fresh, r.behind, r.epoch, r.top = again, fresh, again, j.epoch, j.writer
	if _, err := j.writer.Append(context.Background(), lines, false); err != nil {
		r.why = err
		return err
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	j.apply(again, fresh)
	r.told, r.rest, r.behind = append(r.told, again...), nil, nil
	return nil
}

// recordedBehind reads how many of the records that were written behind event
// seq, from an offset on, are whole on the disk, and the size of the segment.
// It judges as a reader does: what is torn is none of them, and any other line
// that is not the expected one is damage.
func (j *Journal) recordedBehind(ctx context.Context, w Writer, epoch uint64, offset int64, seq uint64, sum schema.Sum, wrote []Record) (n int, noted int64, tail *lease.Tail, err error) {
	if noted, err = w.Settle(ctx, epoch); err != nil {
		return 0, 0, nil, err
	}
	if tail, err = j.store.Tail(ctx, j.session, epoch, j.holder.ID, noted); err != nil {
		return 0, 0, nil, err
	}
	damaged := func(at int64, why string) (int, int64, *lease.Tail, error) {
		return 0, 0, nil, schema.Errorf(schema.CorruptLogLine, "segment %06d at byte %d: %s", epoch, at, why).
			With("session", j.session).With("segment", epoch).With("offset", at)
	}
	size, end := noted, offset
	if tail != nil {
		size = tail.End()
	}
	for i := range wrote {
		end += int64(len(wrote[i].Line)) + 1
	}
	switch {
	case size < offset:
		return damaged(size, "the segment is shorter than what was acknowledged")
	case size > end:
		return damaged(end, "somebody else has written into the segment")
	}
	g := &segment{epoch: epoch, size: size, tail: tail, sealed: true}
	s := NewScan(j.store, j.session, ScanOptions{below: epoch + 1})
	s.segments, s.byEpoch, s.open = []*segment{g}, map[uint64]*segment{epoch: g}, g
	s.last, s.sum, s.durable = seq, sum, seq
	foreign := int64(-1)
	s.yield = func(it Item, _ error) bool {
		switch {
		case it.Event == nil || foreign >= 0:
		case n < len(wrote) && it.Event.Sum == wrote[n].Sum:
			n++
		default:
			foreign = it.Offset
		}
		return true
	}
	s.readBehind(ctx, g, offset)
	switch {
	case s.err != nil:
		return 0, 0, nil, s.err
	case s.FirstError != nil:
		return damaged(s.FirstError.Offset, s.FirstError.Detail)
	case foreign >= 0:
		return damaged(foreign, "a line that this process has not written")
	}
	return n, noted, tail, nil
}

// lastKept reads our last durable event back. A disk may have answered success
// for it and lost it, and that shows once the pages are dropped: what is not
// there must not be pinned.
func (j *Journal) lastKept(ctx context.Context, tail *lease.Tail) error {
	p, _ := j.places.seq(j.seq)
	r, err := j.readUnder(ctx, j.seq, p, tail)
	if err == nil && r.Sum != j.sum {
		err = schema.Errorf(schema.CorruptLogLine, "event %d of session %s is another than was acknowledged", j.seq, j.session).
			With("session", j.session).With("segment", j.epoch)
	}
	return err
}

// readBehind reads the lines of a segment from an offset on.
func (s *Scan) readBehind(ctx context.Context, g *segment, offset int64) {
	r, err := s.lines(ctx, g.epoch, offset, g.size)
	if err != nil {
		s.fail(err)
		return
	}
	defer r.Close()
	r.number = 1 // the claim is before
	for s.err == nil && r.next() {
		if !r.whole {
			s.tail(ctx, g, r)
			break
		}
		if !s.line(ctx, g, r) {
			break
		}
	}
	s.flush(0)
	if r.err != nil {
		s.fail(r.err)
	}
}

// end ends the journal after a roll that failed, and says what is known of the
// append: what its caller is told is true, and details.roll says why the
// journal did not go on.
func (j *Journal) end(r *roll, err error) (kept int, _ error) {
	lost := errors.Is(err, schema.SessionWriterLost)
	why := *schema.AsError(r.why)
	if lost {
		why = *schema.AsError(err)
	}
	why.Details = maps.Clone(why.Details) // the writer goes on giving its own
	if lost {
		kept = j.keptBySeal(r)
	} else {
		if lease.IsFull(err) {
			why.Kind = schema.LogWriteFailed
		}
		why.Message += "; and the next epoch could not be begun: " + schema.AsError(err).Message
		why.With("roll", string(schema.KindOf(err))).Cause(errors.Join(r.why, err))
		kept = j.kept(r)
	}
	j.die(&why)
	return kept, &why
}

// kept is how many records of an append are recorded whose roll failed, -1 where
// nobody can tell. Where none of its lines is whole on the disk, none ever will
// be, since nothing is written there any more.
func (j *Journal) kept(r *roll) int {
	if schema.AsError(r.why).Details["outcome"] == NotStored.String() {
		return len(r.told)
	}
	n, _, tail, err := j.recordedBehind(context.Background(), j.writer, j.epoch, j.size, j.seq, j.sum, r.behind)
	if err != nil || n > 0 || j.lastKept(context.Background(), tail) != nil {
		return -1
	}
	return len(r.told)
}

func outcomeOf(recorded, of int) string {
	switch recorded {
	case 0:
		return NotStored.String()
	case of:
		return "recorded"
	}
	return "recorded_in_part"
}

// keptBySeal reads the seal of a successor: what it pins of our segment is
// recorded, and nothing else ever will be.
func (j *Journal) keptBySeal(r *roll) int {
	ctx := context.Background()
	s := NewScan(j.store, j.session, ScanOptions{})
	if s.survey(ctx) != nil || s.byEpoch[j.epoch] == nil || s.byEpoch[j.epoch].pin == nil {
		return -1
	}
	pin := s.byEpoch[j.epoch].pin
	for _, g := range s.segments {
		if p := g.previous; g.sealed && !g.void && p != nil && p.Epoch == j.epoch {
			// What it has carried over counts, too.
			pin.seq, pin.sum = g.sealHead.Seq-1, g.sealPrev
			// A seal that is not durable may yet be another.
			if _, err := j.writer.Settle(ctx, g.epoch); err != nil {
				return -1
			}
		}
	}
	if pin.seq == j.seq && pin.sum == j.sum {
		return len(r.told)
	}
	for i := range r.behind {
		if pin.seq == r.behind[i].Seq && pin.sum == r.behind[i].Sum {
			return len(r.told) + i + 1
		}
	}
	return -1 // it is about another log than ours
}

// pause waits for room on the disk; the error says why it does not.
func (j *Journal) pause(ctx context.Context, full error, d time.Duration) error {
	j.wait(full)
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return schema.Errorf(schema.LogWriteFailed, "the disk is full, and nobody waits any longer").Cause(ctx.Err())
	case <-j.closing:
		return schema.Errorf(schema.LogWriteFailed, "the disk is full, and session %s is given back", j.session)
	}
}

// wait notes that appends wait because of full, or no longer wait, and tells
// whoever wants to know of the change.
func (j *Journal) wait(full error) {
	j.mu.Lock()
	changed := (full == nil) != (j.full == nil)
	j.full = full
	if changed && full != nil {
		close(j.stuck)
	} else if changed {
		j.stuck = make(chan struct{})
	}
	j.mu.Unlock()
	if changed && j.waiting != nil {
		j.waiting(full)
	}
}
