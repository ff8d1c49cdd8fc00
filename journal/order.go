package journal

import (
	"bytes"
	"context"
	"io"
	"strconv"

	"steno/schema"
)

// A sound line whose number jumps forward says one of two things: that lines
// before it are missing, or that it stands in the wrong place. Believed in the
// second case it would hide every line up to its number. So the reader looks
// ahead, and believes what hides fewer lines.

// misplaced reports whether a line that jumps stands in the wrong place: if
// more lines behind it have the numbers that it leaves out, or its own, than
// follow it up to the first of those. Of two neighbours that changed places the
// first is believed.
func (s *Scan) misplaced(ctx context.Context, g *segment, r *lineReader, e *schema.Event) bool {
	if g.pin != nil && e.Seq > g.pin.seq {
		return true // a later seal says where the segment ends
	}
	// Each look reads the rest of the segment. A log in which everything jumps
	// must not be read for ever.
	rest := g.size - r.next0
	if s.ahead += rest; s.ahead > 1<<20+4*g.size {
		return false
	}
	in, err := s.lines(ctx, g.epoch, r.next0, g.counts())
	if err != nil {
		s.fail(err)
		return false
	}
	defer in.Close()
	in.quick = true
	hides, stays := 0, 1 // how many lines believing it hides, and not believing it
	var first schema.Sum
	var l schema.Event
	for in.next() {
		if !in.whole || in.decode(&l) != nil || l.Session != s.session || l.Epoch != g.epoch || l.Seq <= s.last {
			continue
		}
		switch {
		case l.Seq > e.Seq && hides == 0:
			stays++
		case l.Seq <= e.Seq:
			if hides++; hides == 1 {
				first = l.Sum
			}
		}
	}
	if in.err != nil {
		s.fail(in.err)
	}
	return hides > stays || hides == 1 && stays == 1 && e.Prev != first
}

// counts is how many bytes of a segment may count.
func (g *segment) counts() int64 {
	if g.pin != nil {
		return min(g.size, g.pin.len)
	}
	return g.size
}

// stretch lets a segment count up to the event that a later seal pins, where
// that stands further on than the seal says: something was put before it, and
// must not push out what was there.
func (s *Scan) stretch(ctx context.Context, g *segment) {
	if g.pin == nil || g.size <= g.pin.len {
		return
	}
	end := []byte(g.pin.sum.String() + "\"}\n")
	for _, at := range []int64{g.pin.len, s.beforeListed(g)} {
		if at -= int64(len(end)); at < 0 {
			continue
		}
		f, err := s.from(ctx, g.epoch, at)
		if err != nil {
			s.fail(err)
			return
		}
		have := make([]byte, len(end))
		_, err = io.ReadFull(f, have)
		f.Close()
		if err == nil && bytes.Equal(have, end) {
			return
		}
	}
	in, err := s.lines(ctx, g.epoch, 0, g.size)
	if err != nil {
		s.fail(err)
		return
	}
	defer in.Close()
	in.quick = true
	var l schema.Event
	for in.next() {
		if in.whole && !in.long && bytes.HasSuffix(in.line, end[:len(end)-1]) && in.decode(&l) == nil &&
			l.Session == s.session && l.Seq == g.pin.seq && in.next0 > g.pin.len {
			g.pin.len, g.pin.size = in.next0, g.pin.size+in.next0-g.pin.len
			break
		}
	}
	if in.err != nil {
		s.fail(in.err)
	}
}

// beforeListed is where the lines begin that a repair lists at the end of what
// counts of a segment: the pinned event stands before them.
func (s *Scan) beforeListed(g *segment) int64 {
	begins := map[int64]int64{} // by the end
	for at, list := range s.skips {
		for _, k := range list {
			if at.epoch == g.epoch {
				begins[k.Offset+k.Bytes+1] = k.Offset
			}
		}
	}
	end := g.pin.len
	for begin, ok := begins[end]; ok && begin < end; begin, ok = begins[end] {
		end = begin
	}
	return end
}

// A seal that cannot be read no longer says what counts of the segments below.
// Something is known all the same: it had a number, and it stood before the
// first sound line of its epoch. What has the seal's number, or a higher one,
// in a segment below was written by somebody who had lost.

// numberOf reads the number off a line that does not check out, 0 if it cannot
// be made out.
func (s *Scan) numberOf(g *segment, line []byte) uint64 {
	rest, ok := bytes.CutPrefix(line, []byte(`{"v":1,"session":"`+s.session+`","seq":`))
	digits, rest, found := bytes.Cut(rest, []byte(`,"epoch":`+strconv.FormatUint(g.epoch, 10)+`,`))
	if !ok || !found || len(rest) == 0 {
		return 0
	}
	n, err := strconv.ParseUint(string(digits), 10, 63)
	if err != nil {
		return 0
	}
	return n
}

// below is the highest number that can count below a segment whose seal cannot
// be read: second is what the line behind its claim seems to have, and the
// first sound line is number n of the segment and has seq.
func below(second uint64, n int, seq uint64) uint64 {
	if second > 0 && second+uint64(n-2) == seq {
		return second - 1
	}
	return max(2, seq) - 2
}
