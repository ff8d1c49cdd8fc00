package executor

import (
	"context"
	"errors"

	"steno/replay"
	"steno/schema"
)

// CancelRequest stops a call, wherever it is on its way. By and Reason go into
// its result.
type CancelRequest struct {
	Session string `json:"session"`
	CallID  string `json:"call_id"`
	By      string `json:"by"` // who asks for it, as the application knows them
	Reason  string `json:"reason,omitzero"`
}

// ResolveRequest settles a call whose outcome is open. By and Reason go into
// what is recorded.
type ResolveRequest struct {
	Session string `json:"session"`
	CallID  string `json:"call_id"`
	// As is succeeded or failed: it is known what the last attempt did, and
	// Output tells it. Or retry: the tool runs once more, and what comes of that
	// is the result.
	As     string `json:"as"`
	Output string `json:"output,omitzero"`
	By     string `json:"by"`
	Reason string `json:"reason"`
}

// What a call may be resolved as.
const (
	AsSucceeded = "succeeded"
	AsFailed    = "failed"
	AsRetry     = "retry"
)

var (
	cancelVerb  = verb{"cancel", (*Executor).runCancel, true, ofWrites}
	resolveVerb = verb{"resolve", (*Executor).runResolve, true, ofWrites}
	waitVerb    = verb{"wait", (*Executor).runWait, true, ofCalls} // it takes as long as the call
)

var outcomeEndpoints = []endpoint{
	{"calls-cancel", "calls.cancel", cancelSchema, resultSchema, cancelVerb, false},
	{"calls-resolve", "calls.resolve", resolveSchema, resultSchema, resolveVerb, false},
	{"calls-wait", "calls.wait", waitSchema, resultSchema, waitVerb, false},
	{"to-wait", "wait.*", waitSchema, resultSchema, waitVerb, true},
	{"to-cancel", "cancel.*", cancelSchema, resultSchema, cancelVerb, true},
	{"to-resolve", "resolve.*", resolveSchema, resultSchema, resolveVerb, true},
}

const (
	who           = `"by":{"type":"string","minLength":1,"maxLength":256}`
	waitSchema    = `{"type":"object","required":["session","call_id"],"properties":{"session":` + sessionID + `,"call_id":{"type":"string"}}}`
	cancelSchema  = `{"type":"object","required":["session","call_id","by"],"properties":{"session":` + sessionID + `,"call_id":{"type":"string"},` + who + `,"reason":{"type":"string","maxLength":1024}}}`
	resolveSchema = `{"type":"object","required":["session","call_id","as","by","reason"],"properties":{"session":` + sessionID + `,"call_id":{"type":"string"},` + who +
		`,"as":{"enum":["succeeded","failed","retry"]},"output":{"type":"string"},"reason":{"type":"string","minLength":1,"maxLength":1024}}}`
)

// maxBy bounds the name of somebody.
const maxBy = 256

// asks checks who asks for something about a call, and why.
func asks(session, named, callID, by, reason string, replaced int) error {
	var err error
	switch {
	case named != session:
		err = schema.Errorf(schema.InvalidArgs, "subject and request name different sessions")
	case schema.CheckCallID(callID) != nil:
		err = schema.CheckCallID(callID)
	case by == "" || len(by) > maxBy:
		err = noBy(by)
	case len(reason) > maxReason:
		err = schema.Errorf(schema.InvalidArgs, "reason must have at most %d bytes", maxReason)
	case replaced > 0:
		err = schema.Errorf(schema.InvalidArgs, "%d characters are not valid Unicode", replaced)
	default:
		return nil
	}
	return schema.AsError(err).With("session", session)
}

// noBy says what is wrong with the name of whoever asks.
func noBy(by string) *schema.Error {
	if by == "" {
		return schema.Errorf(schema.InvalidArgs, "by is missing: who asks for it, which goes into the log").
			With("next", `name the person or program in the request, as "by":"NAME"`)
	}
	return schema.Errorf(schema.InvalidArgs, "by has %d bytes; it may have %d", len(by), maxBy)
}

// plain redacts what people say. There is no mark: nothing runs by these words.
func (x *Executor) plain(words ...*string) {
	for _, w := range words {
		*w, _ = x.redact.Text(*w, "", nil)
	}
}

// runWait answers with the result of a call once it is recorded. Like a call it
// takes a session that nobody holds, so that what a dead process left is settled.
func (x *Executor) runWait(ctx context.Context, session string, payload []byte, here bool) (reply, error) {
	var req struct {
		Session string `json:"session"`
		CallID  string `json:"call_id"`
	}
	replaced, err := door(payload, &req, levelData)
	if err == nil {
		err = asks(session, req.Session, req.CallID, "nobody", "", replaced)
	}
	if err != nil {
		return reply{}, err
	}
	s, err := x.find(ctx, session, here)
	if err != nil {
		return reply{}, err
	}
	defer s.leave()
	a, err := s.wait(ctx, req.CallID)
	if errors.Is(err, schema.NotFound) {
		err = x.givenUp(ctx, session, req.CallID, err)
	}
	if err != nil {
		return reply{}, err
	}
	return reply{a.Data, x.headers(session, a.Head, a.CallID)}, nil
}

// wait gives the result of a call that is on its way, or recorded.
func (s *session) wait(ctx context.Context, id string) (Answer, error) {
	for {
		settled := closed(s.settled)
		s.mu.Lock()
		f := s.flights[id]
		s.mu.Unlock()
		c, err := s.callOf(id)
		switch {
		case err != nil:
			return Answer{}, err
		case c != nil && c.Result != nil && f == nil:
			return s.recorded(c)
		case f != nil:
			return s.landed(ctx, f)
		case settled && c == nil:
			return Answer{}, noCall(s.id, id)
		case settled && c.Waiting != nil:
			if err := s.stillWaits(c); err != nil {
				return Answer{}, err
			}
			continue
		case settled:
			return Answer{}, schema.Errorf(schema.Backpressure, "call %s has no result, and does not run", id).With("session", s.id).With("call_id", id).
				With("next", "see what it waits for; run: steno calls show "+inShell(s.id, id))
		}
		select {
		case <-s.settled:
		case <-ctx.Done():
			return Answer{}, s.x.ended(ctx, s.id)
		}
	}
}

// runCancel stops a call.
func (x *Executor) runCancel(ctx context.Context, session string, payload []byte, here bool) (reply, error) {
	var req CancelRequest
	replaced, err := door(payload, &req, levelData)
	if err == nil {
		err = asks(session, req.Session, req.CallID, req.By, req.Reason, replaced)
	}
	if err != nil {
		return reply{}, err
	}
	x.plain(&req.By, &req.Reason)
	s, err := x.find(ctx, session, here)
	if err != nil {
		return reply{}, err
	}
	defer s.leave()
	a, err := s.cancelCall(ctx, req.CallID, &cancellation{req.By, req.Reason})
	if err != nil {
		return reply{}, err
	}
	return reply{a.Data, x.headers(session, a.Head, a.CallID)}, nil
}

// runResolve settles an open outcome.
func (x *Executor) runResolve(ctx context.Context, session string, payload []byte, here bool) (reply, error) {
	var req ResolveRequest
	replaced, err := door(payload, &req, levelData)
	if err == nil {
		err = asks(session, req.Session, req.CallID, req.By, req.Reason, replaced)
	}
	switch {
	case err != nil:
	case req.Reason == "":
		err = schema.Errorf(schema.InvalidArgs, "reason is missing").With("session", session)
	case req.As != AsSucceeded && req.As != AsFailed && req.As != AsRetry:
		err = schema.Errorf(schema.InvalidArgs, "as must be one of succeeded, failed, retry").With("session", session)
	case req.As == AsRetry && req.Output != "":
		err = schema.Errorf(schema.InvalidArgs, "a retry has the output of the tool").With("session", session)
	}
	if err != nil {
		return reply{}, err
	}
	x.plain(&req.By, &req.Reason)
	s, err := x.find(ctx, session, here)
	if err != nil {
		return reply{}, err
	}
	defer s.leave()
	a, err := s.resolve(ctx, &req)
	if err != nil {
		return reply{}, err
	}
	return reply{a.Data, x.headers(session, a.Head, a.CallID)}, nil
}

// A cancellation is who has cancelled a call, and why.
type cancellation struct{ by, reason string }

// errCancelled says that a flight was cancelled before its tool ran.
var errCancelled = schema.Errorf(schema.Cancelled, "cancelled before the tool ran")

// quits is closed when a flight is cancelled.
func (s *session) quits(f *flight) <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	if f.quit == nil {
		f.quit = make(chan struct{})
		if f.cancelled.Load() != nil {
			close(f.quit)
		}
	}
	return f.quit
}

// abort tells a flight that its call is no longer wanted. The first who says so
// is recorded.
func (s *session) abort(f *flight, c *cancellation) {
	s.mu.Lock()
	first := f.cancelled.CompareAndSwap(nil, c)
	if first && f.quit != nil {
		close(f.quit)
	}
	s.mu.Unlock()
	if stop := f.stop.Load(); first && stop != nil {
		(*stop)()
		f.overdue.Reset(s.x.stopWait)
	}
}

// unrun is what becomes of a call that got no slot: a result if it was
// cancelled, otherwise the error. c is what is recorded of it.
func (s *session) unrun(f *flight, c *replay.Call, err error) (Answer, error) {
	by := f.cancelled.Load()
	if by == nil || !errors.Is(err, schema.Cancelled) {
		return Answer{}, err
	}
	return s.finishCancelled(f, c, by)
}

// finishCancelled records that a call was cancelled before its tool ran, or ran
// here.
func (s *session) finishCancelled(f *flight, c *replay.Call, by *cancellation) (Answer, error) {
	v := s.verdict(Result{}, errCancelled)
	v.over = resolution{by: by.by, reason: by.reason}
	last := uint64(0)
	if c != nil {
		last = lastAttempt(c)
	}
	if last == 0 {
		v.decided = &decision{gate: "cancel", by: "human", rule: "cancelled", reason: by.reason, actor: Actor{by.by, viaRequest}}
	} else {
		v.err = schema.Errorf(schema.Cancelled, "cancelled; whether the tool took effect is not known").With("session", s.id).With("next", nextResolve(s.id, f.call.CallID))
	}
	return s.finish(f.call, last, v, c == nil)
}

// cancelCall stops a call, and gives the result that it has then.
func (s *session) cancelCall(ctx context.Context, id string, by *cancellation) (Answer, error) {
	for {
		settled := closed(s.settled)
		s.mu.Lock()
		f := s.flights[id]
		s.mu.Unlock()
		if f != nil {
			s.abort(f, by)
			return s.landed(ctx, f)
		}
		c, err := s.callOf(id)
		switch {
		case err != nil:
			return Answer{}, err
		case c != nil && c.Result != nil:
			return s.recorded(c)
		case !settled: // it may be one of those that are settled now
			select {
			case <-s.settled:
				continue
			case <-ctx.Done():
				return Answer{}, s.x.ended(ctx, s.id)
			}
		case c == nil:
			return Answer{}, noCall(s.id, id)
		}
		// Nobody runs it: what became of it could not be recorded before.
		req, _, err := s.requestOf(c)
		if err != nil {
			return Answer{}, err
		}
		f, err = s.fly(req, nil, func(s *session, f *flight) (Answer, error) {
			s.answering.Lock() // it may wait for a person, who answers just now
			defer s.answering.Unlock()
			defer s.x.waiters.wake(s.id, id)
			return s.finishCancelled(f, c, by)
		})
		if err != nil {
			return Answer{}, err
		}
		if f.call == req {
			return s.landed(ctx, f)
		}
	}
}

func noCall(session, id string) error {
	return schema.Errorf(schema.NotFound, "session %s has no call %s", session, id).With("session", session).With("call_id", id).
		With("next", "look which there are; run: steno calls ls "+session)
}

// copied is what is recorded of a call that runs here, or was open when the
// session was opened; nil if nothing is.
func (s *session) copied(id string) (c *replay.Call) {
	s.view(func(st *replay.State) {
		if r := st.Call(id); r != nil {
			copied := *r
			c = &copied
		}
	})
	return c
}

// requestOf makes the request of a recorded call anew.
func (s *session) requestOf(c *replay.Call) (req *Request, marked bool, err error) {
	r, err := s.journal.Event(s.ctx, c.Seq)
	if err != nil {
		return nil, false, err
	}
	return s.request(c, r.Data)
}

// landed waits for the end of a flight.
func (s *session) landed(ctx context.Context, f *flight) (Answer, error) {
	select {
	case <-f.done:
		return f.answer, f.err
	case <-ctx.Done():
		return Answer{}, s.x.ended(ctx, s.id)
	}
}
