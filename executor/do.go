package executor

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"steno/journal"
	"steno/replay"
	"steno/schema"
)

// Do runs a call of a session, or gives the result that is recorded for it.
// The session must be there. It returns when the result is recorded, or when
// ctx ends; the call then goes on, and the same request joins it.
//
// The answer is a recorded result, also where the tool failed or was refused.
// Errors: InvalidArgs and PayloadTooLarge for a request that is none,
// NotFound, CallConflict, SessionEnded, Backpressure, the kinds of
// journal.Open, and LogWriteFailed, SyncFailed, SessionWriterLost and
// ToolResultRecordFailed where nothing can be promised about the outcome.
func (x *Executor) Do(ctx context.Context, session string, req Request) (Answer, error) {
	if req.sum == "" {
		if err := req.compact(); err != nil {
			return Answer{}, err
		}
	}
	if enter(x.calls) != nil {
		return x.recall(ctx, session, &req)
	}
	defer func() { <-x.calls }()
	s, err := x.hold(ctx, session, nil)
	if err != nil {
		return Answer{}, err
	}
	defer s.leave()
	return s.do(ctx, &req)
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
	s.x.inspect(req, nil) // before anybody else can see it
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
	if err := s.slot(); err != nil {
		return Answer{}, err
	}
	defer s.unslot()
	if known != nil {
		return s.resume(f, known)
	}
	tool, refusal := s.admit(req)
	if refusal != nil {
		// A refused call is in the log too: the call, and why it did not run.
		return s.finish(req, 0, s.verdict(Result{}, refusal), true)
	}
	attempt, err := s.start(req, 1, true, true)
	if err != nil {
		return Answer{}, err
	}
	f.hasBegun()
	return s.call(req, tool, attempt)
}

// known gives what is recorded of a call, as a copy; CallConflict if the
// request is another call under the same id.
func (s *session) known(req *Request) (c *replay.Call, err error) {
	s.view(func(st *replay.State) {
		r := st.Call(req.CallID)
		if r == nil {
			return
		}
		if why := req.conflict(r.Name, r.ArgsSHA256, r.DryRun); why != "" {
			err = conflict(s.id, req.CallID, why)
			return
		}
		copied := *r
		c = &copied
	})
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

// slot waits until the session may run one more call.
func (s *session) slot() error {
	if closed(s.x.stopping.Done()) {
		return s.stopped()
	}
	select {
	case s.slots <- struct{}{}:
		return nil
	default:
	}
	select {
	case s.slots <- struct{}{}:
		return nil
	case <-s.ctx.Done():
		return s.stopped()
	case <-s.x.stopping.Done():
		return s.stopped()
	}
}

func (s *session) unslot() { <-s.slots }

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

// admit says whether a call may run: the tool exists and the arguments fit.
// Phases, tiers, paths and policy have their place here.
func (s *session) admit(req *Request) (Tool, error) {
	if req.lost != nil { // it must not run with what is left of its arguments
		return Tool{}, req.lost
	}
	e, err := s.x.cfg.Tools.lookup(req.Name)
	if err != nil {
		return Tool{}, err
	}
	return e.tool, e.fits(req.Args, readSound)
}

// start records the start of an attempt together with what must be durable
// before it.
func (s *session) start(req *Request, attempt uint64, call, decision bool) (replay.Attempt, error) {
	d := desks.Get().(*desk)
	defer d.back()
	entries := make([]journal.Entry, 0, 3)
	if call {
		entries = append(entries, req.entry(d))
	}
	if decision {
		entries = append(entries, req.decided(d))
	}
	o := d.object()
	o.Grow(len(req.CallID)+128).Text("call_id", req.CallID).Uint("attempt", attempt).Text("executor", s.x.cfg.Holder.ID)
	if attempt > 1 {
		// A take-over fences the log, not the world.
		o.Uint("possibly_running", attempt-1)
	}
	r, err := s.append(append(entries, journal.Entry{Type: schema.TypeToolStarted, Data: d.done(&o)})...)
	if err != nil {
		return replay.Attempt{}, err
	}
	e := r[len(r)-1]
	return replay.Attempt{Attempt: attempt, Seq: e.Seq, Epoch: e.Epoch}, nil
}

// call runs the tool and records what became of it.
func (s *session) call(req *Request, tool Tool, a replay.Attempt) (Answer, error) {
	key := req.Key
	if key == "" {
		key = req.CallID
	}
	inv := &Invocation{Session: s.id, CallID: req.CallID, Key: key, Attempt: int(a.Attempt), Epoch: a.Epoch, Seq: a.Seq,
		Args: req.Args, Context: req.Context, DryRun: req.DryRun}
	inv.Workspace, inv.noFolder = s.space()
	ctx := s.ctx
	if tool.Timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, tool.Timeout)
		defer cancel()
	}
	began := time.Now()
	res, err := s.safely(ctx, tool, inv)
	if s.ctx.Err() != nil && (err != nil || !res.OK) {
		// We stopped it. That is neither its output nor its failure: the
		// outcome stays open, and whoever holds the session next settles it.
		return Answer{}, s.stopped()
	}
	out := s.verdict(res, err)
	out.duration = time.Since(began)
	return s.finish(req, a.Attempt, out, false)
}

// safely runs a tool so that its panic ends the call and not the process.
func (s *session) safely(ctx context.Context, tool Tool, inv *Invocation) (res Result, err error) {
	defer func() {
		if p := recover(); p != nil {
			s.x.log.Error("a tool panicked", "session", s.id, "call", inv.CallID, "tool", tool.Name, "panic", p, "stack", string(debug.Stack()))
			err = schema.Errorf(schema.ToolFailed, "the tool failed unexpectedly").With("class", "panic")
		}
	}()
	res, err = tool.Run(ctx, inv)
	var e *schema.Error
	if err != nil && !errors.As(err, &e) && !errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, context.Canceled) {
		// The model is shown the class only; the cause may hold anything.
		s.x.log.Error("a tool failed unexpectedly", "session", s.id, "call", inv.CallID, "tool", tool.Name, "err", err)
		err = schema.Errorf(schema.ToolFailed, "the tool failed unexpectedly").With("class", fmt.Sprintf("%T", err))
	}
	return res, err
}

// finish records a result, and the call before it if it is new, and answers.
// From here on the outcome is known to this process only until the append
// returns.
func (s *session) finish(req *Request, attempt uint64, out verdict, call bool) (Answer, error) {
	s.x.inspect(req, &out)
	d := desks.Get().(*desk)
	defer d.back()
	entries := make([]journal.Entry, 0, 2)
	if call {
		entries = append(entries, req.entry(d))
	}
	r, err := s.append(append(entries, out.record(d, req, attempt))...)
	if err != nil {
		if attempt > 0 && !errors.Is(err, schema.SessionWriterLost) && !errors.Is(err, schema.SessionEnded) {
			outcome, ok := schema.AsError(err).Details["outcome"] // of the result
			if !ok {
				outcome = journal.Unknown.String()
			}
			err = schema.Errorf(schema.ToolResultRecordFailed, "call %s ran, and its result could not be recorded", req.CallID).
				With("session", s.id).With("call_id", req.CallID).With("outcome", outcome).Cause(err)
		}
		return Answer{}, err
	}
	return Answer{req.CallID, r[len(r)-1].Data, s.journal.Head()}, nil
}

// settleAll deals with the calls that an earlier writer left open, in the
// order of their seq, before any new call: a call that started and is not
// repeatable gets a synthetic interrupted result, one that is repeatable gets
// its next attempt, and one that was recorded and not started starts. One whose
// arguments the log does not have as they were is interrupted.
func (s *session) settleAll() {
	defer close(s.settled)
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
	req := new(Request)
	whole, err := s.journal.Whole(s.ctx, data)
	if errors.Is(err, schema.CorruptLogLine) {
		whole, req.lost = data, schema.AsError(err).With("call_id", c.ID)
	} else if err != nil {
		return err
	}
	if err := schema.Unmarshal(whole, req); err != nil {
		return err
	}
	req.sum, req.replaced = c.ArgsSHA256, 0
	var marks struct {
		Redacted []jsontext.Value `json:"redacted"`
	}
	if err := schema.Unmarshal(data, &marks); err != nil {
		return err
	}
	begun := make(chan struct{})
	f, err := s.fly(req, begun, func(s *session, f *flight) (Answer, error) {
		if err := s.slot(); err != nil {
			return Answer{}, err
		}
		defer s.unslot()
		if len(marks.Redacted) > 0 { // no tool may get a mark in place of a value
			return s.finish(f.call, lastAttempt(c), s.interrupted(), false)
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

// resume goes on with a call that is recorded and has no result.
func (s *session) resume(f *flight, c *replay.Call) (Answer, error) {
	req := f.call
	tool, refusal := s.admit(req)
	last := lastAttempt(c)
	switch {
	case last > 0 && (refusal != nil || !tool.Repeatable && !c.DryRun):
		return s.finish(req, last, s.interrupted(), false)
	case refusal != nil:
		return s.finish(req, 0, s.verdict(Result{}, refusal), false)
	}
	attempt, err := s.start(req, last+1, false, len(c.Decisions) == 0)
	if err != nil {
		return Answer{}, err
	}
	f.hasBegun()
	return s.call(req, tool, attempt)
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
