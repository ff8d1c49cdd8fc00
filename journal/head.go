package journal

import (
	"context"
	"fmt"

	"steno/schema"
)

// A head that was kept elsewhere names an event that was acknowledged. No log
// can show by itself that its end was cut off at a line, or that it was
// written anew from some point on; beside such a head it does.

// compare holds an event against the head that was kept elsewhere. If its own
// line is damaged, the event behind it vouches for it.
func (s *Scan) compare(ctx context.Context, g *segment, r *lineReader, e *schema.Event) {
	h := s.opt.Head
	if s.compared || e.Seq < h.Seq {
		return
	}
	s.compared = true
	if h.Seq == 0 || e.Head() == h || e.Seq == h.Seq+1 && e.Prev == h.Sum {
		return
	}
	f := r.finding(g)
	f.Detail = fmt.Sprintf("the log has %s here; the head kept elsewhere is %s", e.Head(), h)
	s.found(ctx, f, schema.HeadMismatch, false)
}

// atEnd names what is known to be gone of the end, and a log that ends before the
// head that was kept elsewhere.
func (s *Scan) atEnd(ctx context.Context) {
	s.missing(ctx)
	s.flush(0)
	h := s.opt.Head
	if s.compared || h.Seq == 0 || s.stop || s.err != nil {
		return
	}
	f := schema.Finding{Detail: fmt.Sprintf("the log has no event; the head kept elsewhere is %s", h)}
	if s.Events > 0 {
		f.Detail = fmt.Sprintf("the log ends with %s; the head kept elsewhere is %s", s.Head, h)
	}
	if g := s.open; g != nil {
		f.Segment, f.Line, f.Offset = g.epoch, g.endLine+1, g.end
	}
	s.found(ctx, f, schema.HeadMismatch, false)
}

// gone is the error of a session that cannot be read. One of which a head was
// kept elsewhere has been there.
func (s *Scan) gone(err error) error {
	if h := s.opt.Head; h.Seq > 0 && schema.KindOf(err) == schema.NotFound {
		return schema.Errorf(schema.HeadMismatch, "session %s is not there; the head kept elsewhere is %s", s.session, h).
			With("session", s.session).With("next", "look for the session's folder, or restore it").Cause(err)
	}
	return err
}
