package executor

import (
	"errors"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"steno/journal"
	"steno/schema"
)

// detach records the result of a call whose tool does not stop. The tool keeps
// its slot until it returns; what it then says is a late result.
func (s *session) detach(f *flight, attempt uint64, began time.Time, over resolution) {
	if !f.claimed.CompareAndSwap(false, true) {
		return
	}
	err := schema.Errorf(schema.Timeout, "the deadline passed, and the tool does not stop")
	out := verdict{over: over, duration: time.Since(began)}
	if c := f.cancelled.Load(); c != nil {
		err = schema.Errorf(schema.Cancelled, "cancelled, and the tool does not stop")
		out.over.by, out.over.reason = c.by, c.reason
	}
	out.err = err.With("session", s.id).With("detached", true)
	s.x.log.Warn("a tool does not stop; it keeps its slot", "session", s.id, "call", f.call.CallID, "tool", f.call.Name)
	f.answer, f.err = s.finish(f.call, attempt, out, false)
	s.land(f)
}

// late records what a tool has said after its call had a result: in the place
// of that, if it leaves the outcome open, otherwise as a note.
func (s *session) late(req *Request, attempt uint64, took time.Duration, res Result, err error) {
	out := s.verdict(res, err)
	out.duration = took
	if out.err != nil && (schema.KindOf(out.err) == schema.Timeout || schema.KindOf(out.err) == schema.Cancelled) {
		return // which is what the record says
	}
	for {
		c := s.copied(req.CallID)
		if c == nil {
			return // it could not be recorded either
		}
		if out.over = (resolution{reason: "late"}); c.Result != nil {
			out.over.supersedes = c.Result.Seq
		}
		if c.Result != nil && !c.Result.Open() {
			err = s.noteLate(req, attempt, out)
			break
		}
		if _, err = s.finish(req, attempt, out, false); !errors.Is(err, schema.ResultConflict) {
			break // else somebody has resolved it in this instant
		}
	}
	if err != nil {
		s.x.log.Warn("a late result was not recorded", "session", s.id, "call", req.CallID, "kind", schema.KindOf(err), "err", err)
	}
}

// maxNoted bounds a result that is only noted.
const maxNoted = 64 << 10

// noteLate keeps a further result of a call that has a genuine one.
func (s *session) noteLate(req *Request, attempt uint64, out verdict) error {
	s.x.inspect(req, &out)
	out.over = resolution{}
	out.result.Output, _ = schema.Truncate(out.result.Output, maxNoted/8)
	out.result.Content, out.result.Structured = nil, nil
	d := desks.Get().(*desk)
	defer d.back()
	result := jsontext.Value(out.record(d, req, attempt).Data)
	var o schema.Object
	o.Text("call_id", req.CallID).Text("text", "a late result of a call that has a genuine one")
	if len(result) <= maxNoted {
		o.Raw("result", result)
	}
	_, err := s.append(journal.Entry{Type: schema.TypeNote, Data: o.Bytes()})
	return err
}
