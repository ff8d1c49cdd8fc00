package executor

import (
	"time"

	"steno/replay"
	"steno/schema"
)

// admitted is what the gate says of a call.
type admitted struct {
	tool     Tool
	decision decision      // none where the call was refused before anything was decided
	asks     bool          // it is not refused for good: a person is asked
	expires  time.Duration // how long that person has
	move     *move         // a change of phase that the call brings about, or nil
}

// gate says whether a call may run, and why not: the tool exists, the arguments
// fit, its phase and tier admit it, its paths stay in the workspace, it is not
// one of too many that are the same, and the policy allows it. What it decides is
// recorded before the tool runs, or with the result that says why it does not.
// asked says that the call is recorded already, so it is no repeat.
func (s *session) gate(req *Request, policy *Policy, asked bool) (admitted, error) {
	if req.lost != nil { // it must not run with what is left of its arguments
		return admitted{}, req.lost
	}
	e, err := s.x.cfg.Tools.lookup(req.Name)
	if err != nil {
		return admitted{}, err
	}
	if err := e.fits(req.Args, readSound); err != nil {
		return admitted{}, err
	}
	a, at := admitted{tool: e.tool}, s.stage()
	req.tier, req.phase = uint64(e.tool.Tier), at.phase
	if a.decision = s.admit(policy, &e.tool, at); a.decision.gate != "" {
		return a, a.decision.refusal(e.tool.Name)
	}
	paths, denied, refusal := s.touches(&e.tool, req.Args)
	if a.decision = denied; refusal != nil {
		return a, refusal
	}
	if !asked {
		if a.decision = s.repeated(policy, req); a.decision.gate != "" {
			return a, a.decision.refusal(e.tool.Name)
		}
	}
	if !req.DryRun && at.moves(&e.tool) {
		a.move = moved(at.phase, PhaseEditing, "", req.CallID)
	}
	q := question{tool: &e.tool, args: req.Args, paths: paths, now: time.Now()}
	s.view(func(st *replay.State) { q.grants = st.Grants }) // which only grow
	if a.decision = policy.decide(q); !a.decision.allow {
		if a.asks = a.decision.ask && !s.x.cfg.DenyUnattended && !policy.deny; a.asks {
			a.expires = policy.expires
		}
		return a, a.decision.refusal(e.tool.Name)
	}
	return a, nil
}

// refused is what becomes of a call that the gate does not let through.
func (s *session) refused(a admitted, refusal error) verdict {
	v := s.verdict(Result{}, refusal)
	if a.decision.gate != "" {
		v.decided = &a.decision
	}
	return v
}

// regate asks the gate about a call that an earlier writer has recorded and
// left without a result. A denial that is recorded stands, whatever the gate
// says now, and so does a person's allow where the policy would ask, for the
// attempt that it allowed; otherwise what the gate says now is what counts.
func (s *session) regate(req *Request, policy *Policy, c *replay.Call) (a admitted, decided *decision, refusal error) {
	a, refusal = s.gate(req, policy, true)
	if len(c.Decisions) == 0 {
		return a, &a.decision, refusal
	}
	last := c.Decisions[len(c.Decisions)-1]
	if last.Decision == "deny" {
		kind := schema.PermissionDenied
		switch last.Gate {
		case "mode":
			kind = schema.WritePolicyDenied
		case "phase", "available":
			kind = schema.PhaseDenied
		case "tier":
			kind = schema.TierDenied
		case "path", "evidence":
			if kind = schema.ProtectedPath; schema.Kind(last.Rule).Known() {
				kind = schema.Kind(last.Rule)
			}
		case "approval":
			kind = schema.ApprovalDenied
			if last.Rule == ruleExpired {
				kind = schema.ApprovalExpired
			}
		case "cancel":
			kind = schema.Cancelled
		case "repeat":
			kind = schema.RepeatLimit
		}
		recorded := decision{kind: kind, rule: last.Rule, reason: "the call was denied before"}
		return admitted{tool: a.tool}, nil, recorded.refusal(req.Name)
	}
	used := c.StartedSince(last.Seq) && !a.tool.Repeatable && !a.tool.ReadOnly && !req.DryRun
	if (refusal == nil || a.decision.ask && !used) && last.By == "human" {
		a.decision.allow, a.asks = true, false
		return a, nil, nil
	}
	if refusal == nil && a.decision.policy == "" && last.Gate == a.decision.gate {
		return a, nil, nil // it says what is recorded
	}
	return a, &a.decision, refusal
}
