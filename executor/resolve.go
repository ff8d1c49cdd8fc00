package executor

import (
	"context"
	"errors"

	"steno/replay"
	"steno/schema"
)

// A resolution is why a result is recorded that no tool has just given, or that
// takes the place of another one.
type resolution struct {
	supersedes uint64 // the seq of an open result, 0 if there is none
	by, reason string
}

func (r *resolution) record(o *schema.Object) {
	if r.supersedes > 0 {
		o.Uint("supersedes", r.supersedes)
	}
	if r.by != "" {
		o.Text("by", r.by)
	}
	if r.reason != "" {
		o.Text("reason", r.reason)
	}
}

// resolve settles an open outcome, once.
func (s *session) resolve(ctx context.Context, req *ResolveRequest) (Answer, error) {
	select {
	case <-s.settled:
	case <-ctx.Done():
		return Answer{}, s.x.ended(ctx, s.id)
	}
	c, err := s.oneCall(req.CallID)
	if err != nil {
		return Answer{}, err
	}
	if a, err := s.resolvable(c, req); a.Data != nil || err != nil {
		return a, err
	}
	call, marked, err := s.requestOf(c)
	if err != nil {
		return Answer{}, err
	}
	if marked && req.As == AsRetry {
		return Answer{}, schema.Errorf(schema.InvalidArgs, "values of call %s were replaced before it was recorded, so it cannot run from the log", c.ID).
			With("session", s.id).With("call_id", c.ID).With("next", "send it under a new call id, then resolve this one as succeeded or failed")
	}
	f, err := s.fly(call, nil, func(s *session, f *flight) (Answer, error) {
		now := s.copied(c.ID) // nobody else settles it while we fly
		if a, err := s.resolvable(now, req); a.Data != nil || err != nil {
			return a, err
		}
		over := resolution{now.Result.Seq, req.By, req.Reason}
		if req.As == AsRetry {
			return s.retry(f, now, over)
		}
		out := verdict{over: over, result: Result{OK: req.As == AsSucceeded, Output: req.Output}, escalates: s.escalates(now.Name, now.DryRun, req.As == AsSucceeded)}
		if req.As == AsFailed {
			text := req.Output
			if text == "" {
				text = "the call failed, by decision: " + req.Reason
			}
			out.err = schema.Errorf(schema.ToolFailed, "%s", text).With("session", s.id).
				With("next", "a person has settled it so; send it under a new call id if it is still wanted")
		}
		return s.finish(f.call, max(1, lastAttempt(now)), out, false)
	})
	if err != nil {
		return Answer{}, err
	}
	if f.call != call {
		return Answer{}, schema.Errorf(schema.ResultConflict, "call %s is being settled", c.ID).With("session", s.id).With("call_id", c.ID).
			With("next", "see what comes of it; run: steno calls wait "+inShell(s.id, c.ID))
	}
	return s.landed(ctx, f)
}

// resolvable says why a call cannot be resolved. If it was, in the same way, it
// gives that result: whoever asks again may have had no answer.
func (s *session) resolvable(c *replay.Call, req *ResolveRequest) (Answer, error) {
	refuse := func(why, next string) error {
		return schema.Errorf(schema.ResultConflict, "call %s %s", c.ID, why).With("session", s.id).With("call_id", c.ID).With("next", next)
	}
	if c.Result == nil {
		return Answer{}, refuse("has no result yet, so there is nothing to settle",
			"wait for its result, or cancel it first; run: steno calls show "+inShell(s.id, c.ID))
	}
	if c.Result.Open() {
		return Answer{}, nil
	}
	a, err := s.recorded(c)
	if err != nil {
		return Answer{}, err
	}
	var r struct {
		OK         bool   `json:"ok"`
		Supersedes uint64 `json:"supersedes"`
		By         string `json:"by"`
		Reason     string `json:"reason"`
	}
	if err := schema.Unmarshal(a.Data, &r); err != nil {
		return Answer{}, err
	}
	if r.Supersedes > 0 && r.By == req.By && r.Reason == req.Reason && (req.As == AsRetry || r.OK == (req.As == AsSucceeded)) {
		return a, nil
	}
	return Answer{}, refuse("has a genuine result, which stands", "run: steno calls show "+inShell(s.id, c.ID))
}

// retry runs a call once more because somebody has decided so. Until it has a
// result the open one stands, and nothing runs again by itself.
func (s *session) retry(f *flight, c *replay.Call, over resolution) (Answer, error) {
	if err := s.slot(f); err != nil {
		if errors.Is(err, schema.Cancelled) {
			return s.recorded(c)
		}
		return Answer{}, err
	}
	defer s.unslot(f)
	if err := s.adopt(); err != nil {
		return Answer{}, err
	}
	var a admitted
	var refusal, err error
	var attempt replay.Attempt
	s.inPhase(func(alone bool) (moves bool) {
		var policy *Policy
		if policy, err = s.policy(); err != nil {
			return false
		}
		a, refusal = s.gate(f.call, policy, true)
		if a.decision.ask { // a person has been asked
			refusal = nil
		}
		if moves = refusal == nil && a.move != nil && !alone; refusal == nil && !moves {
			decided := decision{allow: true, gate: "resolve", by: "human", policy: a.decision.policy, reason: over.reason, actor: Actor{over.by, viaRequest}}
			attempt, err = s.start(f.call, max(1, lastAttempt(c))+1, false, a, &decided)
		}
		return moves
	})
	if refusal != nil {
		return Answer{}, schema.AsError(refusal).With("session", s.id).With("call_id", c.ID)
	}
	if err != nil {
		return Answer{}, err
	}
	return s.call(f, a.tool, attempt, over)
}
