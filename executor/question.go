package executor

import (
	"errors"
	"time"

	"steno/replay"
	"steno/schema"
)

// A Question is what Run returns as its error where it goes on only once a person has
// said yes, and has had no effect until then. The question is recorded and waits as
// one of a policy does; once it is allowed Run is called for another attempt, whatever
// the tool declares, and once it is denied the call is. Where nobody can be asked the
// call is denied at once.
type Question struct {
	Text string // what the tool asks, for people; longer than 1,024 bytes it loses its middle
}

func (q *Question) Error() string { return "the tool asks: " + q.Text }

// maxQuestion bounds the text of a question.
const maxQuestion = 1024

// asked reports whether a tool has answered with a question.
func asked(err error) (q *Question, is bool) { return q, errors.As(err, &q) }

// question records what a tool asks a person, or that nobody can be asked.
func (s *session) question(req *Request, tool Tool, a replay.Attempt, q *Question, took time.Duration, over resolution) (Answer, error) {
	policy, err := s.policy()
	if err != nil {
		return Answer{}, err
	}
	text, _ := s.x.redact.Text(q.Error(), "", nil)
	text, _ = schema.Truncate(text, maxQuestion)
	if s.x.cfg.DenyUnattended || policy != nil && policy.deny {
		d := decision{gate: "approval", by: "policy", rule: ruleUnattended, policy: s.policyHash(), kind: schema.ApprovalDenied, reason: text}
		out := s.verdict(Result{}, d.refusal(req.Name))
		out.decided, out.duration, out.over = &d, took, over
		return s.finish(req, a.Attempt, out, false)
	}
	var expires time.Duration
	if policy != nil {
		expires = policy.expires
	}
	return Answer{}, s.ask(req, admitted{tool: tool, decision: decision{reason: text}, expires: expires}, false)
}

// allowedSince reports whether a person has allowed a further attempt of a call: the
// tool has asked in the last one, and did nothing.
func allowedSince(c *replay.Call) bool {
	n := len(c.Decisions)
	if n == 0 || c.Decisions[n-1].By != "human" || c.Decisions[n-1].Decision != "allow" || len(c.Attempts) == 0 {
		return false
	}
	return !c.StartedSince(c.Decisions[n-1].Seq)
}
