package journal

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"

	"steno/schema"
)

// read reads what counts of one sealed segment.
func (s *Scan) read(ctx context.Context, g *segment) {
	at, line := int64(0), 0
	if c := s.begun; c != nil && g.endLine > 0 { // it is that of the checkpoint
		at, line = c.End, c.Line
	} else if p := g.previous; p != nil && g.sealLine > 0 && p.Epoch < g.epoch {
		before := s.byEpoch[p.Epoch]
		if before == nil {
			nothing := sha256.Sum256(nil)
			s.whyMissing(ctx, schema.Finding{Segment: p.Epoch, SHA256: hex.EncodeToString(nothing[:])})
		}
		s.excused = before == nil || before.size < before.pin.len
	}
	s.stretch(ctx, g)
	r, err := s.lines(ctx, g.epoch, at, g.counts())
	if err != nil {
		s.fail(err)
		return
	}
	defer r.Close()
	r.number = line
	r.judgeAhead(s.opt.workers)
	if s.live(g) {
		s.testify(ctx, g, at) // which of its events are tentative depends on later ones
	}
	s.end = at
	for !s.stop && s.err == nil && r.next() {
		if g.tail != nil && r.offset == g.tail.From {
			g.tailLine = r.number
		}
		if err := ctx.Err(); err != nil {
			s.fail(err)
			break
		}
		if !r.whole {
			s.tail(ctx, g, r)
			break
		}
		if !s.line(ctx, g, r) {
			break
		}
		g.end, g.endLine = r.next0, r.number
	}
	if r.err != nil {
		s.fail(r.err)
	}
	g.endSeq, g.endSum, g.endBad = s.last, s.sum, s.bad+s.aside > 0
	if g.pin != nil {
		s.behind(ctx, g, r.number)
	}
	if g.tail != nil {
		s.replaced(ctx, g)
	}
	if g.unseen {
		s.overlooked(ctx, g)
	}
}

// behind names what stands behind the bytes that a later seal trusts.
func (s *Scan) behind(ctx context.Context, g *segment, lines int) {
	if to := min(g.pin.size, g.size); g.pin.len < to {
		f := schema.Finding{Segment: g.epoch, Line: lines + 1, Offset: g.pin.len}
		f.Bytes, f.SHA256 = s.rest(ctx, g, g.pin.len, to, false)
		s.found(ctx, f, schema.TornTail, false)
	}
	if g.size > g.pin.size {
		f := schema.Finding{Segment: g.epoch, Offset: g.pin.size}
		f.Bytes, f.SHA256 = s.rest(ctx, g, g.pin.size, g.size, true) // it is not about lines
		s.found(ctx, f, schema.Surplus, false)
	}
}

// tail judges a last line without its newline.
func (s *Scan) tail(ctx context.Context, g *segment, r *lineReader) {
	var e schema.Event
	switch {
	case !(r.nul() && s.above(ctx, g, r.offset, s.last+1)) && !r.long && len(r.line) > 0 && decode(&e, r.line[:len(r.line)-1], r.trusted) == nil:
		// A newline that became a NUL is what a disk leaves that never wrote
		// the block it stood in; any other byte was put there.
		s.found(ctx, r.finding(g), schema.TerminatorDamaged, true)
		s.spoil(schema.TerminatorDamaged)
		g.end, g.endLine = r.next0, r.number
	case s.above(ctx, g, r.offset, s.last+1):
		if s.live(g) && s.Lease.Epoch == g.epoch {
			return // the writer is at work; the line may be whole in a moment
		}
		s.tear(ctx, g, r)
	case g.pin != nil && g.size < g.pin.len:
		// the seal that pins this segment says that it is short
	default:
		why := r.decode(&e)
		if why == nil {
			why = schema.TerminatorDamaged
		}
		s.found(ctx, r.finding(g), why, true)
		s.spoil(why)
		g.end, g.endLine = r.next0, r.number
	}
}

// spoil counts a line that cannot be read, and may have been an event, or many.
func (s *Scan) spoil(why error) {
	s.bad++
	s.several = s.several || errors.Is(why, schema.GluedLines) || errors.Is(why, schema.OverLimit)
}

// tear ends the open segment: from this line on nothing was ever acknowledged.
func (s *Scan) tear(ctx context.Context, g *segment, r *lineReader) {
	f := schema.Finding{Segment: g.epoch, Line: r.number, Offset: r.offset}
	f.Bytes, f.SHA256 = s.rest(ctx, g, r.offset, g.size, false)
	s.torn = true
	s.found(ctx, f, schema.TornTail, true)
}

// line judges one line among its neighbours; false ends the segment.
func (s *Scan) line(ctx context.Context, g *segment, r *lineReader) bool {
	if r.number == 1 {
		if g.headerErr != nil {
			s.found(ctx, r.finding(g), g.headerErr, false)
			if errors.Is(r.decode(&s.spare[0]), schema.GluedLines) {
				s.spoil(schema.GluedLines) // an event may have stood on this line
			}
		}
		s.end = r.next0
		return true
	}
	if !r.long && (len(r.line) == 0 || r.line[0] <= ' ') && len(bytes.Trim(r.line, " \t")) == 0 {
		s.found(ctx, r.finding(g), schema.BlankLine, false)
		return true
	}
	number := s.last + 1
	one, why := r.event(s.spare[:])
	e := &one[0]
	if why != nil && r.nul() && s.above(ctx, g, r.offset, number) {
		s.tear(ctx, g, r)
		return false
	}
	if why != nil {
		s.foundLine(ctx, g, r, why, true, number)
		s.spoil(why)
		return true
	}
	switch {
	case e.Session != s.session:
		why = schema.SessionMismatch
	case e.Epoch < g.epoch && r.number > g.sealLine:
		why = schema.EpochFell
	case e.Epoch > g.epoch:
		why = schema.BadEnvelope // nobody writes the number of a later epoch
	case g.pin == nil && g.bounded && e.Seq > g.most, g.pin != nil && e.Seq > g.pin.seq && s.last+s.bad >= g.pin.seq:
		s.found(ctx, r.finding(g), schema.Surplus, false)
		return true
	case e.Seq <= s.last:
		why, number = schema.SeqDuplicate, e.Seq
	}
	if why != nil {
		s.foundLine(ctx, g, r, why, false, number)
		s.aside++
		return true
	}
	missing := e.Seq - number
	if missing > s.bad && !s.excused && s.misplaced(ctx, g, r, e) {
		f := r.finding(g)
		f.Detail = "the line stands before lines that it should follow"
		if s.above(ctx, g, r.offset, number) {
			f.Kind = schema.TailSuspect
		}
		s.found(ctx, f, schema.SeqDuplicate, false)
		s.aside++
		return true
	}
	named, broken := false, missing == 0 && e.Prev != s.sum
	if r.number == g.sealLine {
		if why := s.atSeal(g); why != nil {
			s.found(ctx, r.finding(g), why, missing > 0)
			named, broken = true, true
		}
	}
	switch {
	case named:
	case s.wider(e.Seq):
		s.foundLine(ctx, g, r, schema.SeqGap, true, number)
	case missing > 0 && (s.excused || s.several || s.bad+s.aside >= missing):
		// what is named already may be the missing lines
	case missing > 0:
		s.foundLine(ctx, g, r, schema.SeqGap, true, number)
	case broken:
		s.foundLine(ctx, g, r, schema.ChainBroken, false, number)
	}
	s.take(ctx, g, r, one, named, broken)
	return true
}

// foundLine reports a line; number is the event that it hurts. What is above
// the durable numbers of the open segment is only suspect.
func (s *Scan) foundLine(ctx context.Context, g *segment, r *lineReader, why error, hole bool, number uint64) {
	f := r.finding(g)
	if _, ok := why.(schema.Reason); ok && s.above(ctx, g, r.offset, number) {
		f.Kind = schema.TailSuspect
	}
	s.found(ctx, f, why, hole)
}

// atSeal says whether the seal fits its claim and the segment it follows.
func (s *Scan) atSeal(g *segment) error {
	if !g.sealFits {
		return schema.SealMismatch
	}
	p := g.previous
	if p == nil {
		return nil
	}
	if p.Epoch >= g.epoch { // it can only speak of segments below
		return schema.SealMismatch
	}
	before := s.byEpoch[p.Epoch]
	if before == nil {
		return nil
	}
	if before.size < before.pin.len {
		return schema.SealShort
	}
	if (before.endSeq != p.Seq || before.endSum != p.Sum) && !before.endBad {
		return schema.SealMismatch
	}
	return nil
}

// take gives the one event out, and folds it if it fits. named says that what is
// wrong with it was, broken that it does not follow the one before.
func (s *Scan) take(ctx context.Context, g *segment, r *lineReader, one []schema.Event, named, broken bool) {
	e := &one[0]
	s.flush(e.Seq)
	if s.opt.AsOf > 0 && e.Seq > s.opt.AsOf {
		s.Beyond, s.stop = true, true
		return
	}
	s.Events++
	s.last, s.sum, s.end = e.Seq, e.Sum, r.next0
	s.Head = e.Head()
	s.bad, s.aside, s.several, s.excused, s.hole, s.run = 0, 0, false, false, hole{}, nil
	s.opt.plan.close(e.Seq)
	s.compare(ctx, g, r, e)
	if g == s.open {
		s.durable = max(s.durable, e.Dur)
	}
	if e.Time.Before(s.time) {
		s.found(ctx, r.finding(g), schema.ClockWentBack, false)
	}
	s.time = e.Time
	if !schema.KnownType(e.Type) && !schema.IsOwn(e.Type) {
		s.found(ctx, r.finding(g), schema.UnknownType, false)
	}
	folded, lack := s.blobs(ctx, e)
	if s.err != nil {
		return
	}
	if st := s.opt.State; st != nil {
		if err := st.Check(one); err == nil {
			st.Apply(folded)
			if len(lack) > 0 && folded != e { // the state lacks a patch
				st.Hole()
			}
		} else if s.damaged && errors.Is(err, schema.ResultWithoutCall) {
			st.Apply(folded)
		} else if !named {
			f := r.finding(g)
			f.Detail = "the fold refuses the event: " + bounded(schema.AsError(err).Message)
			f.Kind = schema.CorruptLogLine
			if s.above(ctx, g, r.offset, e.Seq) {
				f.Kind = schema.TailSuspect
			}
			s.found(ctx, f, schema.BadEvent, false)
		}
		if broken {
			st.Broken()
		}
	}
	if len(lack) > 0 {
		s.foundBlobs(ctx, g, r, e, lack)
	}
	if s.stop {
		return
	}
	if !s.yield(Item{Event: e, Line: r.line, Segment: g.epoch, Offset: r.offset, Tentative: s.live(g) && e.Seq > s.durable}, nil) {
		s.stop = true
	}
}

// unsealed names a claim of which nothing counts, whatever may stand behind it
// by now.
func (s *Scan) unsealed(ctx context.Context, g *segment) {
	f := schema.Finding{Segment: g.epoch}
	if g.headerErr == nil || g.void {
		why := schema.VoidClaim
		if s.pending && g == s.segments[len(s.segments)-1] {
			why = schema.TakeoverInProgress
		}
		s.found(ctx, f, why, false)
		return
	}
	r, err := s.lines(ctx, g.epoch, 0, g.size)
	if err != nil {
		s.fail(err)
		return
	}
	defer r.Close()
	r.next()
	f.Line, f.Bytes, f.SHA256 = 1, r.length, r.sha256()
	s.found(ctx, f, g.headerErr, false)
}
