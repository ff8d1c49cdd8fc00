package executor

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"time"

	"steno/journal"
	"steno/replay"
	"steno/schema"
)

// start records the start of an attempt together with what must be durable
// before it: the call, what allows it unless that is recorded, and the change
// of phase that it brings about.
func (s *session) start(req *Request, attempt uint64, call bool, a admitted, allowed *decision) (replay.Attempt, error) {
	d := desks.Get().(*desk)
	defer d.back()
	entries := make([]journal.Entry, 0, 4)
	if call {
		entries = append(entries, req.entry(d))
	}
	if allowed != nil {
		entries = append(entries, allowed.entry(d, req))
	}
	if a.move != nil {
		entries = append(entries, a.move.entry())
	}
	o := d.object()
	o.Grow(len(req.CallID)+128).Text("call_id", req.CallID).Uint("attempt", attempt).Text("executor", s.x.cfg.Holder.ID)
	if a.tool.Original != "" {
		o.Text("original", a.tool.Original)
	}
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

// invocation is what a tool is told of an attempt.
func (s *session) invocation(req *Request, a replay.Attempt) *Invocation {
	key := req.Key
	if key == "" {
		key = req.CallID
	}
	inv := &Invocation{of: s, says: new(speech), Session: s.id, CallID: req.CallID, Key: key, Attempt: int(a.Attempt), Epoch: a.Epoch, Seq: a.Seq,
		Args: req.Args, Context: req.Context, Actor: req.Actor, DryRun: req.DryRun, log: s.x.log, state: s.working}
	inv.Workspace, inv.noFolder = s.space()
	return inv
}

// DefaultTimeout is how long an attempt may take of a tool that does not say.
const DefaultTimeout = 10 * time.Minute

// call runs the tool and records what became of it. over is the open result
// that it is to supersede, if there is one.
func (s *session) call(f *flight, tool Tool, a replay.Attempt, over resolution) (Answer, error) {
	req := f.call
	life := s.ctx
	if !tool.Repeatable && !tool.ReadOnly {
		// Nobody else may run it again, so it goes on where the session is lost,
		// and its result is delivered to whoever has that then.
		life = s.life
		s.outlives()
		defer s.outlived()
	}
	limit := tool.Timeout
	if limit == 0 {
		limit = DefaultTimeout
	}
	began := time.Now()
	ctx, stop := context.WithTimeout(life, limit)
	defer stop()
	f.overdue = time.AfterFunc(limit+s.x.stopWait, func() { s.detach(f, a, began, over) })
	defer f.overdue.Stop()
	f.stop.Store(&stop)
	inv := s.invocation(req, a)
	for s.x.awaitFiles(ctx, inv.noFolder) {
		inv.Workspace, inv.noFolder = s.space()
	}
	if notBegun(inv.noFolder) {
		inv.noFolder = ctxError(ctx)
	}
	var res Result
	var err error
	if f.cancelled.Load() == nil {
		res, err = s.safely(ctx, tool, inv)
	} else {
		err = schema.Errorf(schema.Cancelled, "cancelled before the tool ran")
	}
	if !f.claimed.CompareAndSwap(false, true) {
		f.detached = true
		<-f.done
		s.late(req, a, time.Since(began), res, err)
		return Answer{}, nil
	}
	if life.Err() != nil && (err != nil || !res.OK) {
		// We stopped it. That is neither its output nor its failure: the
		// outcome stays open, and whoever holds the session next settles it.
		return Answer{}, s.stopped()
	}
	if q, is := asked(err); is {
		return s.question(req, tool, a, q, time.Since(began), over)
	}
	out := s.verdict(res, err)
	out.escalates = s.escalates(req.Name, req.DryRun, out.err == nil && res.OK)
	out.duration, out.over = time.Since(began), over
	if c := f.cancelled.Load(); c != nil && out.err != nil && schema.KindOf(out.err) == schema.Cancelled {
		out.over.by, out.over.reason = c.by, c.reason
	}
	answer, err := s.finish(req, a.Attempt, out, false)
	switch {
	case errors.Is(err, schema.SessionWriterLost):
		s.deliver(req, a, out)
	case errors.Is(err, schema.ResultConflict):
		// An earlier attempt has returned after all, or somebody has said what became
		// of the call: that counts, and this is kept.
		if err := s.noteLate(req, a.Attempt, out); err != nil {
			return Answer{}, err
		}
		if c := s.copied(req.CallID); c != nil && c.Result != nil {
			return s.recorded(c)
		}
	}
	return answer, err
}

// safely runs a tool so that its panic ends the call and not the process.
func (s *session) safely(ctx context.Context, tool Tool, inv *Invocation) (res Result, err error) {
	defer func() {
		if p := recover(); p != nil {
			s.x.log.Error("a tool panicked", "session", s.id, "call", inv.CallID, "tool", tool.Name, "panic", p, "stack", string(debug.Stack()))
			err = schema.Errorf(schema.ToolFailed, "the tool failed unexpectedly").With("class", "panic")
		}
	}()
	defer inv.end()
	if inv.DryRun && !tool.DryRun {
		return tool.of.plan(inv), nil // and nothing is made for it
	}
	run, leave, err := s.bound(ctx, tool)
	if err == nil {
		defer leave()
		res, err = run(ctx, inv)
	}
	if err == nil {
		return res, nil
	}
	var e *schema.Error
	if _, asks := asked(err); !asks && !errors.As(err, &e) && !errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, context.Canceled) {
		// The model is shown the class only; the cause may hold anything.
		s.x.log.Error("a tool failed unexpectedly", "session", s.id, "call", inv.CallID, "tool", tool.Name, "err", err)
		err = schema.Errorf(schema.ToolFailed, "the tool failed unexpectedly").With("class", fmt.Sprintf("%T", err))
	}
	return res, err
}

// finish records a result, before it the call if it is new and what decided that
// it does not run, and answers.
// From here on the outcome is known to this process only until the append
// returns.
func (s *session) finish(req *Request, attempt uint64, out verdict, call bool) (Answer, error) {
	s.x.inspect(&out)
	d := desks.Get().(*desk)
	defer d.back()
	entries := make([]journal.Entry, 0, 3)
	if call {
		entries = append(entries, req.entry(d))
	}
	if out.decided != nil {
		entries = append(entries, out.decided.entry(d, req))
	}
	var patch journal.Entry
	if out.err == nil && len(out.result.Patch) > 0 && !s.ended() { // a late result may come behind the end
		var err error
		if patch, err = patched(out.result.Patch); err != nil { // it fitted before it was redacted
			patch = journal.Entry{}
			out.left += len(out.result.Patch)
		}
	}
	e := out.record(d, req, attempt)
	if attempt > 0 && !out.synthetic && out.over.supersedes == 0 && !req.DryRun {
		e.Data = s.repeats.count(req, e.Data)
	}
	entries = append(entries, e)
	at := len(entries) - 1
	if patch.Type != "" {
		entries = append(entries, patch)
	}
	if out.escalates {
		s.phases.Lock()
		defer s.phases.Unlock()
		if m := s.escalation(req.CallID); m != nil {
			entries = append(entries, m.entry())
		}
	}
	r, err := s.append(entries...)
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
	return Answer{req.CallID, r[at].Data, s.journal.Head()}, nil
}
