package executor

import (
	"context"

	"github.com/go-json-experiment/json/jsontext"

	"steno/replay"
	"steno/schema"
)

// Do runs a call of a session, or gives the result that is recorded for it.
// The session must be there. It returns when the result is recorded, also where
// a person must be asked first, or when ctx ends; the call then goes on, and the
// same request joins it.
//
// The answer is a recorded result, also where the tool failed or was refused.
// Errors: InvalidArgs and PayloadTooLarge for a request that is none,
// NotFound, CallConflict, SessionEnded, Backpressure, the kinds of
// journal.Open, and LogWriteFailed, SyncFailed, SessionWriterLost and
// ToolResultRecordFailed where nothing can be promised about the outcome.
func (x *Executor) Do(ctx context.Context, session string, req Request) (a Answer, err error) {
	if req.sum == "" {
		req.Actor.via(viaGo)
		err := req.compact()
		if err == nil {
			err = req.hide(x.redact)
		}
		if err != nil {
			return Answer{}, err
		}
	}
	if enter(x.calls) != nil {
		return x.recall(ctx, session, &req)
	}
	defer func() { <-x.calls }()
	err = x.patiently(ctx, x.calls, func() error {
		s, err := x.hold(ctx, session, nil)
		if err != nil {
			return err
		}
		defer s.leave()
		a, err = s.do(ctx, &req)
		return err
	})
	return a, err
}

// recall gives the recorded result of a call that there is no room for, if this
// process holds the session; Backpressure if it has none.
func (x *Executor) recall(ctx context.Context, session string, req *Request) (Answer, error) {
	if s, err := x.held(ctx, session); err == nil {
		defer s.leave()
		if a, there, err := s.recall(req); there || err != nil {
			return a, err
		}
	}
	return Answer{}, noRoom(x.calls).With("session", session)
}

// compact is the door for a request that comes as a Go value.
func (r *Request) compact() error {
	for _, v := range []*jsontext.Value{&r.Args, &r.Context, &r.Turn} {
		if len(*v) == 0 {
			continue
		}
		text, n, err := schema.Compact(nil, *v, 2)
		if err != nil {
			return schema.AsError(err).With("call_id", r.CallID)
		}
		*v, r.replaced = text, r.replaced+n
	}
	return r.check()
}

// do joins the flight of a call, or starts it.
func (s *session) do(ctx context.Context, req *Request) (Answer, error) {
	settled := closed(s.settled)
	if a, there, err := s.recall(req); there || err != nil {
		return a, err // whatever else becomes of the session
	}
	if !settled {
		select {
		case <-s.settled: // what an earlier process left open comes first
		case <-ctx.Done():
			return Answer{}, s.x.ended(ctx, s.id)
		}
		if a, there, err := s.recall(req); there || err != nil {
			return a, err // it was one of those
		}
	}
	f, err := s.fly(req, nil, (*session).run)
	if err != nil {
		return Answer{}, err
	}
	select {
	case <-f.done:
		return f.answer, f.err
	case <-ctx.Done():
		return Answer{}, s.x.ended(ctx, s.id)
	}
}

// run is the way of one call, journal first.
func (s *session) run(f *flight) (Answer, error) {
	req := f.call
	known, err := s.known(req)
	if err != nil || known != nil && known.Result != nil {
		if err != nil {
			return Answer{}, err
		}
		return s.recorded(known)
	}
	for known != nil && known.Waiting != nil {
		if err := s.stillWaits(known); err != nil {
			return Answer{}, err
		}
		// Somebody has answered, or nobody in time.
		if known, err = s.known(req); err != nil {
			return Answer{}, err
		}
		if known.Result != nil {
			return s.recorded(known)
		}
	}
	if err := s.slot(f); err != nil {
		return s.unrun(f, known, err)
	}
	defer s.unslot(f)
	if known != nil {
		return s.resume(f, known)
	}
	if err := s.adopt(); err != nil {
		return Answer{}, err
	}
	var a admitted
	var refusal error
	var attempt replay.Attempt
	judge := func(alone bool) (moves bool) {
		var policy *Policy
		if policy, err = s.policy(); err != nil {
			return false
		}
		a, refusal = s.gate(req, policy, false)
		if moves = refusal == nil && a.move != nil && !alone; refusal == nil && !moves {
			attempt, err = s.start(req, 1, true, a, &a.decision)
		}
		return moves
	}
	for s.inPhase(judge); s.x.awaitFiles(s.x.stopping, refusal); {
		s.inPhase(judge)
	}
	if notBegun(refusal) {
		return Answer{}, refusal // which was not the gate's
	}
	if a.asks {
		return Answer{}, s.ask(req, a, true)
	}
	if refusal != nil {
		// A refused call is in the log too: the call, and why it did not run.
		return s.finish(req, 0, s.refused(a, refusal), true)
	}
	if err != nil {
		return Answer{}, err
	}
	f.hasBegun()
	return s.call(f, a.tool, attempt, resolution{})
}

// known gives what is recorded of a call, as a copy; CallConflict if the
// request is another call under the same id.
func (s *session) known(req *Request) (*replay.Call, error) {
	c, err := s.callOf(req.CallID)
	if c == nil || err != nil {
		return nil, err
	}
	if why := req.conflict(c.Name, c.ArgsSHA256, c.Redacted, c.DryRun); why != "" {
		return nil, conflict(s.id, req.CallID, why).With("seq", c.Seq).With("tool", c.Name).With("args_sha256", c.ArgsSHA256)
	}
	return c, nil
}

// callOf is copied, and also of a call that was over long before the session was
// opened, whose events are read for it. CorruptLogLine: they are not what was
// recorded.
func (s *session) callOf(id string) (c *replay.Call, err error) {
	var past []uint64
	s.view(func(st *replay.State) {
		if r := st.Call(id); r != nil {
			copied := *r
			c = &copied
		} else {
			past = st.Past(id)
		}
	})
	if past == nil {
		return c, nil
	}
	events := make([]schema.Event, len(past))
	for i, seq := range past {
		r, err := s.journal.Event(s.ctx, seq)
		if err != nil {
			return nil, err
		}
		events[i] = r.Event
	}
	return replay.Recall(id, events)
}

// oneCall is callOf where there must be one: NotFound.
func (s *session) oneCall(id string) (*replay.Call, error) {
	c, err := s.callOf(id)
	if c == nil && err == nil {
		err = noCall(s.id, id)
	}
	return c, err
}

// recall answers with the result that is recorded, if one is.
func (s *session) recall(req *Request) (a Answer, there bool, err error) {
	known, err := s.known(req)
	if err != nil || known == nil || known.Result == nil {
		return Answer{}, false, err
	}
	a, err = s.recorded(known)
	return a, true, err
}

// recorded answers with the result in the log; the tool is not touched.
func (s *session) recorded(c *replay.Call) (Answer, error) {
	r, err := s.journal.Event(s.ctx, c.Result.Seq)
	if err != nil {
		return Answer{}, err
	}
	return Answer{c.ID, r.Data, s.journal.Head()}, nil
}

// slot waits until the session may run one more call, or the call is cancelled.
// One that must run alone among its like waits for that first: whoever waits
// holds no slot of the session.
func (s *session) slot(f *flight) error {
	s.x.workers.find(s.x.stopping, f.call.Name)
	if closed(s.x.stopping.Done()) {
		return s.stopped()
	}
	if s.x.cfg.Tools.exclusive(f.call.Name) {
		if err := s.acquire(f, s.only); err != nil {
			return err
		}
		f.only = true
	}
	err := s.acquire(f, s.slots)
	if err != nil && f.only {
		<-s.only
	}
	return err
}

func (s *session) acquire(f *flight, slots chan struct{}) error {
	select {
	case slots <- struct{}{}:
		return nil
	default:
	}
	select {
	case slots <- struct{}{}:
		return nil
	case <-s.quits(f):
		return errCancelled
	case <-s.ctx.Done():
		return s.stopped()
	case <-s.x.stopping.Done():
		return s.stopped()
	}
}

func (s *session) unslot(f *flight) {
	<-s.slots
	if f.only {
		<-s.only
	}
}

func closed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// stopped is why nothing more runs in this session here.
func (s *session) stopped() error {
	if err := s.journal.Err(); err != nil {
		return err
	}
	return goingAway(s.id)
}
