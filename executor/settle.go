package executor

import (
	"cmp"
	"errors"
	"strings"

	"github.com/go-json-experiment/json/jsontext"

	"steno/replay"
	"steno/schema"
)

// settleAll deals with the calls that an earlier writer left open, in the
// order of their seq, before any new call. One that started runs again if its
// tool is repeatable or read-only; otherwise the tool is asked what became of
// it, and where it cannot tell the call gets a synthetic interrupted result. One
// that was recorded and not started starts. One whose arguments the log does not
// have as they were is interrupted. One whose tool is not known here stays as it is.
func (s *session) settleAll() {
	defer close(s.settled)
	if err := s.escalateLast(); err != nil && s.sound() {
		s.x.log.Error("a task was not escalated", "session", s.id, "kind", schema.KindOf(err), "err", err)
	}
	var open []replay.Call
	s.view(func(st *replay.State) {
		if st.Ended != nil {
			return // nothing may follow; the calls stay as they are
		}
		for _, c := range st.Open() {
			open = append(open, *c)
		}
	})
	for i := range open {
		c := &open[i]
		if c.Waiting != nil && !expired(c.Waiting) {
			s.expireLater(c.ID, c.Waiting.Expires)
			continue
		}
		if c.Waiting != nil {
			if err := s.expire(c.ID); err != nil && s.sound() {
				s.x.log.Error("a question could not be closed in time", "session", s.id, "call", c.ID, "kind", schema.KindOf(err), "err", err)
			}
			continue
		}
		r, err := s.journal.Event(s.ctx, c.Seq)
		if err == nil {
			err = s.settle(c, r.Data)
		}
		if s.x.stopping.Err() != nil || !s.sound() {
			return // the rest is for the next holder
		}
		if err != nil {
			s.x.log.Error("an open call was not settled", "session", s.id, "call", c.ID, "kind", schema.KindOf(err), "err", err)
		}
	}
}

// settle returns once the start or the end of the call is recorded.
func (s *session) settle(c *replay.Call, data []byte) error {
	req, marked, err := s.request(c, data)
	if err != nil {
		return err
	}
	begun := make(chan struct{})
	f, err := s.fly(req, begun, func(s *session, f *flight) (Answer, error) {
		if err := s.slot(f); err != nil {
			return s.unrun(f, c, err)
		}
		defer s.unslot(f)
		if marked { // no tool may get a mark in place of a value
			v, last := s.interrupted(c.ID), lastAttempt(c)
			if last == 0 {
				v.err = schema.Errorf(schema.Interrupted, "the call never started: values of it are redacted in the log, and no request that carries them came in time").
					With("session", s.id).With("next", "nothing took effect; send it again under a new call id")
			}
			return s.finish(f.call, last, v, false)
		}
		return s.resume(f, c)
	})
	if err != nil {
		return err
	}
	select {
	case <-begun:
	case <-f.done:
	}
	return nil
}

// request makes a call's request anew from the data of its event. marked says
// that values of it were replaced before they were recorded.
func (s *session) request(c *replay.Call, data []byte) (req *Request, marked bool, err error) {
	req = new(Request)
	whole, err := s.journal.Whole(s.ctx, data)
	if errors.Is(err, schema.CorruptLogLine) {
		whole, req.lost = data, schema.AsError(err).With("call_id", c.ID)
	} else if err != nil {
		return nil, false, err
	}
	if err := schema.Unmarshal(whole, req); err != nil {
		return nil, false, err
	}
	req.sum, req.replaced = c.ArgsSHA256, 0
	if c.Redacted != "" {
		req.hid = &hiding{digest: c.Redacted} // for those who join; the call is recorded already
	}
	var marks struct {
		Redacted []jsontext.Value `json:"redacted"`
	}
	if err := schema.Unmarshal(data, &marks); err != nil {
		return nil, false, err
	}
	return req, len(marks.Redacted) > 0, nil
}

// resume goes on with a call that is recorded and has no result.
func (s *session) resume(f *flight, c *replay.Call) (Answer, error) {
	req := f.call
	if err := s.adopt(); err != nil {
		return Answer{}, err
	}
	if err := s.callsAs(req, c); err != nil {
		return Answer{}, err
	}
	conclude := func(v verdict) (Answer, error) {
		a, err := s.finish(req, lastAttempt(c), v, false)
		if now := s.copied(c.ID); errors.Is(err, schema.ResultConflict) && now.Result != nil {
			return s.recorded(now) // it has come late, from who was thought dead
		}
		return a, err
	}
	last := lastAttempt(c)
	again := c.DryRun || allowedSince(c)
	if last > 0 && !again {
		switch checked, err := s.check(f, c); {
		case err == nil && checked.Took:
			out := s.verdict(checked.Result, nil)
			out.over.by = "check"
			out.escalates = s.escalates(req.Name, req.DryRun, checked.Result.OK)
			return conclude(out)
		case f.cancelled.Load() != nil:
			return s.finishCancelled(f, c, f.cancelled.Load())
		case s.ctx.Err() != nil:
			return Answer{}, s.stopped()
		case err == nil:
			again = true
		}
	}
	var a admitted
	var decided *decision
	var refusal, err error
	var attempt replay.Attempt
	open := false // what became of it is not known, and it may not run again
	told := false // a result has come late
	judge := func(alone bool) (moves bool) {
		if now := s.copied(c.ID); now.Result != nil {
			told = true
			return false
		}
		var policy *Policy
		if policy, err = s.policy(); err != nil {
			return false
		}
		a, decided, refusal = s.regate(req, policy, c)
		open = last > 0 && (refusal != nil || !a.tool.Repeatable && !a.tool.ReadOnly && !again)
		if refusal != nil || open {
			return false
		}
		if moves = a.move != nil && !alone; !moves {
			attempt, err = s.start(req, last+1, false, a, decided)
		}
		return moves
	}
	for s.inPhase(judge); s.x.awaitFiles(s.x.stopping, refusal); {
		s.inPhase(judge)
	}
	switch {
	case told:
		return s.recorded(s.copied(c.ID))
	case notBegun(refusal):
		return Answer{}, refusal // which was not the gate's
	case a.asks && (last == 0 || again && !req.DryRun): // the tool says that its last attempt did nothing
		return Answer{}, s.ask(req, a, false)
	case errors.Is(refusal, schema.UnknownTool):
		// Whoever recorded the call had its tool, and knows whether it may run again. Nothing is final about that.
		return Answer{}, schema.AsError(refusal).With("session", s.id).With("call_id", c.ID).With("next", nextUnknown(s.id, c.ID))
	case errors.Is(refusal, schema.Unavailable) && (last == 0 || again || a.tool.Name == "" || a.tool.Repeatable || a.tool.ReadOnly):
		// Its tool will be back (without one nobody knows whether it may run again), and whoever sends the call again then has it run.
		return Answer{}, schema.AsError(refusal).With("session", s.id).With("call_id", c.ID).
			With("next", "the call is recorded and waits for its tool: send it again")
	case open:
		v := s.interrupted(c.ID)
		if refusal != nil {
			v.decided = s.refused(a, refusal).decided
		}
		return conclude(v)
	case refusal != nil:
		return s.finish(req, 0, s.refused(a, refusal), false)
	case err != nil:
		return Answer{}, err
	}
	f.hasBegun()
	return s.call(f, a.tool, attempt, resolution{})
}

// callsAs gives a request what the recorded call has besides its arguments: who
// repeats a call does not make it. Where that is hidden in the record it must be
// the same in the request.
func (s *session) callsAs(req *Request, c *replay.Call) error {
	r, err := s.journal.Event(s.ctx, c.Seq)
	if err != nil {
		return err
	}
	var is struct {
		Actor   Actor          `json:"actor"`
		Context jsontext.Value `json:"context"`
		Turn    jsontext.Value `json:"turn"`
		Key     string         `json:"key"`
		Marks   marks          `json:"redacted"`
	}
	if err := schema.Unmarshal(r.Data, &is); err != nil {
		return err
	}
	var has marks
	now := hiding{context: req.Context, turn: req.Turn, key: req.Key}
	if req.hid != nil {
		now = *req.hid
		if err := schema.Unmarshal([]byte(cmp.Or(string(now.marks), "[]")), &has); err != nil {
			return err
		}
	}
	req.Actor = is.Actor
	other := ""
	take := func(name string, same bool, set func()) {
		if recorded := is.Marks.under("/" + name); recorded == "" {
			set()
		} else if !same || has.under("/"+name) != recorded {
			other = name
		}
	}
	take("context", string(now.context) == string(is.Context), func() { req.Context = is.Context })
	take("turn", string(now.turn) == string(is.Turn), func() { req.Turn = is.Turn })
	take("key", now.key == is.Key, func() { req.Key = is.Key })
	if other != "" {
		return conflict(s.id, req.CallID, "another "+other+", which is redacted there")
	}
	return nil
}

// marks are those of a recorded call.
type marks []struct {
	Pointer string `json:"pointer"`
	Hash    string `json:"hash"`
}

// under gives the hashes of those below a pointer, in their order.
func (m marks) under(pointer string) (hashes string) {
	for _, mark := range m {
		if mark.Pointer == pointer || strings.HasPrefix(mark.Pointer, pointer+"/") {
			hashes += mark.Hash + "\n"
		}
	}
	return hashes
}

// lastAttempt is the newest attempt of a call without a result, 0 if it has
// not started.
func lastAttempt(c *replay.Call) (last uint64) {
	if n := len(c.Attempts); n > 0 {
		last = c.Attempts[n-1].Attempt
	}
	if c.State == replay.Unknown { // it has started, or may have where events are missing
		last = max(last, 1)
	}
	return last
}
