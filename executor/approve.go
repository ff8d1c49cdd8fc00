package executor

import (
	"context"
	"errors"
	"time"

	"steno/journal"
	"steno/replay"
	"steno/schema"
)

// A call that waits for a person holds nothing: no flight, no slot, no use of
// its session. What stands in the log is all there is of it. Requests that want
// its result look again when it is answered here, and every askAgain, since the
// session may have gone elsewhere.
const (
	askAgain   = 2 * time.Second
	maxPatient = 1024 // requests of this process that wait, and calls of one session
)

const (
	ruleExpired = "expired"
	timeFormat  = "2006-01-02T15:04:05.000000Z"
)

// AnswerRequest says what a person has decided about a call that waits.
type AnswerRequest struct {
	Session    string `json:"session"`
	CallID     string `json:"call_id"`
	ApprovalID string `json:"approval_id"` // which question is answered
	Decision   string `json:"decision"`    // allow or deny
	Reason     string `json:"reason,omitzero"`
	// ArgsSHA256 is of the arguments that the person has seen, and Redacted stands
	// for the values that are hidden in them, as in [ApprovalInfo]. Others than
	// those of the call are call_conflict. Both may be left out.
	ArgsSHA256 string `json:"args_sha256,omitzero"`
	Redacted   string `json:"redacted,omitzero"`
	Actor      Actor  `json:"actor,omitzero"` // who it is, as the application says
	// Grant, with allow, also lets like calls of the session run unasked.
	Grant *GrantRequest `json:"grant,omitzero"`
}

// AnswerAnswer says which answer counts.
type AnswerAnswer struct {
	OK         bool   `json:"ok"`
	Session    string `json:"session"`
	CallID     string `json:"call_id"`
	ApprovalID string `json:"approval_id"`
	Decision   string `json:"decision"`
	First      bool   `json:"first"` // false: it was answered so before
	Seq        uint64 `json:"seq"`   // of the decision
	Head       string `json:"head"`
}

// waiting is why a call has no result yet. What is hidden in some can come back
// only with their request, which is to ask often.
func (s *session) waiting(call, approval string, hides bool) error {
	kind, next := schema.Unavailable, "answer it: steno approvals allow "+inShell(s.id, call)+", or deny; the request is answered then"
	if s.x.cfg.DenyUnattended || s.x.cfg.Attended { // nobody would hear of an answer here, or who makes the call has it
		kind, next = schema.Backpressure, "answer it: steno approvals allow "+inShell(s.id, call)+", or deny; then ask again"
	}
	e := schema.Errorf(kind, "call %s waits for a person's answer", call).
		With("session", s.id).With("call_id", call).With("approval_id", approval).With("next", next)
	if hides {
		e.With("redacted", true)
	}
	return e
}

// waits reports whether an error says that a call waits for a person, and which.
func waits(err error) (session, call string, ok bool) {
	e, is := errors.AsType[*schema.Error](err)
	if !is || e.Kind != schema.Unavailable || e.Details["approval_id"] == nil {
		return "", "", false
	}
	session, _ = e.Details["session"].(string)
	call, ok = e.Details["call_id"].(string)
	return session, call, ok
}

// ask records the question to a person, and the call before it if it is new.
func (s *session) ask(req *Request, a admitted, call bool) error {
	n := 0
	s.view(func(st *replay.State) {
		for _, c := range st.Open() {
			if c.Waiting != nil {
				n++
			}
		}
	})
	if n >= maxPatient {
		return schema.Errorf(schema.Backpressure, "%d calls of session %s wait for a person's answer", n, s.id).With("session", s.id).
			With("next", "answer them: steno approvals ls --session "+s.id)
	}
	d := desks.Get().(*desk)
	defer d.back()
	entries := make([]journal.Entry, 0, 2)
	if call {
		entries = append(entries, req.entry(d))
	}
	id, expires := journal.NewID().String(), ""
	o := d.object()
	o.Grow(len(req.CallID)+256).Text("call_id", req.CallID).Text("approval_id", id).Text("reason", a.decision.reason)
	if program, ok := a.tool.programOf(req.Args); ok && program != "" {
		if program, hit := s.x.redact.Text(program, "", nil); hit == nil {
			o.Text("program", program)
		}
	}
	if a.expires > 0 {
		expires = time.Now().Add(a.expires).UTC().Format(timeFormat)
		o.Text("expires_at", expires)
	}
	s.answering.Lock() // whoever reads the question in the file and answers it waits until it counts
	_, err := s.append(append(entries, journal.Entry{Type: schema.TypeApprovalRequested, Data: d.done(&o)})...)
	s.answering.Unlock()
	if err != nil {
		return err
	}
	s.expireLater(req.CallID, expires)
	return s.waiting(req.CallID, id, req.hid != nil)
}

// stillWaits is what becomes of a call that waits, when somebody asks for it.
func (s *session) stillWaits(c *replay.Call) error {
	if !expired(c.Waiting) {
		return s.waiting(c.ID, c.Waiting.ID, c.Redacted != "")
	}
	return s.expire(c.ID)
}

func expired(a *replay.Approval) bool {
	at, err := time.Parse(time.RFC3339Nano, a.Expires)
	return err == nil && !time.Now().Before(at) // what is no time never comes
}

// expireLater expires a question in time, if the session is still here then.
func (s *session) expireLater(call, expires string) {
	at, err := time.Parse(time.RFC3339Nano, expires)
	if err != nil {
		return
	}
	t := time.AfterFunc(time.Until(at), func() {
		if !s.x.begin(s) {
			return
		}
		defer s.x.work.Done()
		defer s.leave()
		if err := s.expire(call); err != nil && s.sound() {
			s.x.log.Error("a question could not be closed in time", "session", s.id, "call", call, "kind", schema.KindOf(err), "err", err)
		}
	})
	context.AfterFunc(s.ctx, func() { t.Stop() })
}

// expire denies a call whose question nobody has answered in time.
func (s *session) expire(call string) error {
	s.answering.Lock()
	defer s.answering.Unlock()
	c := s.copied(call)
	if c == nil || c.Waiting == nil || !expired(c.Waiting) {
		return nil // somebody was faster
	}
	return s.deny(c, &decision{gate: "approval", by: "policy", rule: ruleExpired, policy: s.policyHash(), approval: c.Waiting.ID, kind: schema.ApprovalExpired, reason: "nobody answered in time"})
}

// deny records that a call which waits does not run, and its result.
func (s *session) deny(c *replay.Call, d *decision) error {
	v := s.verdict(Result{}, schema.AsError(d.refusal(c.Name)).With("approval_id", d.approval))
	v.decided = d
	_, err := s.finish(&Request{CallID: c.ID, Name: c.Name, sum: c.ArgsSHA256}, 0, v, false)
	if err == nil {
		s.x.waiters.wake(s.id, c.ID)
	}
	return err
}

func (s *session) policyHash() string {
	if is, _ := s.posture(); is != nil {
		return is.PolicyHash
	}
	return ""
}

// answer records what a person has decided. The first answer is the one that
// counts; the same one again is answered alike.
func (s *session) answer(req AnswerRequest) (AnswerAnswer, error) {
	s.answering.Lock()
	defer s.answering.Unlock()
	out := AnswerAnswer{OK: true, Session: s.id, CallID: req.CallID, ApprovalID: req.ApprovalID, Decision: req.Decision}
	fail := func(kind schema.Kind, format string, args ...any) (AnswerAnswer, error) {
		return AnswerAnswer{}, schema.Errorf(kind, format, args...).With("session", s.id).With("call_id", req.CallID)
	}
	c, err := s.oneCall(req.CallID)
	if err != nil {
		return AnswerAnswer{}, err
	}
	if c.Waiting == nil || c.Waiting.ID != req.ApprovalID {
		return s.answered(c, req, out, fail)
	}
	if seen := req.ArgsSHA256 + req.Redacted; seen != "" && (req.ArgsSHA256 != c.ArgsSHA256 || req.Redacted != c.Redacted) {
		a, err := fail(schema.CallConflict, "the call has other arguments, or other values are hidden in them, than was decided about")
		schema.AsError(err).With("args_sha256", c.ArgsSHA256).With("redacted", c.Redacted).With("next", "look again; run: steno approvals ls --session "+s.id)
		return a, err
	}
	if expired(c.Waiting) {
		err := s.deny(c, &decision{gate: "approval", by: "policy", rule: ruleExpired, policy: s.policyHash(), approval: c.Waiting.ID, kind: schema.ApprovalExpired, reason: "nobody answered in time"})
		if err != nil {
			return AnswerAnswer{}, err
		}
		return fail(schema.ApprovalExpired, "the question was to be answered until %s", c.Waiting.Expires)
	}
	d := &decision{allow: req.Decision == "allow", gate: "approval", by: "human", policy: s.policyHash(), approval: req.ApprovalID, reason: req.Reason, actor: req.Actor}
	if req.Grant != nil {
		if d.grant, err = s.grant(c, req.Grant); err != nil {
			return AnswerAnswer{}, err
		}
	}
	if d.allow {
		err = s.allow(c, d)
	} else {
		if d.kind = schema.ApprovalDenied; d.reason == "" {
			d.reason = "a person has denied the call"
		}
		err = s.deny(c, d)
	}
	if err != nil {
		return AnswerAnswer{}, err
	}
	s.view(func(st *replay.State) {
		decisions := st.Call(c.ID).Decisions
		out.Seq, out.Head = decisions[len(decisions)-1].Seq, st.Head.String()
	})
	out.First = true
	return out, nil
}

// answered is for a question that is not open.
func (s *session) answered(c *replay.Call, req AnswerRequest, out AnswerAnswer, fail func(schema.Kind, string, ...any) (AnswerAnswer, error)) (AnswerAnswer, error) {
	for _, d := range c.Decisions {
		switch {
		case d.ApprovalID != req.ApprovalID || d.ApprovalID == "":
			continue
		case d.Rule == ruleExpired:
			return fail(schema.ApprovalExpired, "the question was closed, since nobody had answered in time")
		case d.Decision == req.Decision:
			out.Seq, out.Head = d.Seq, s.journal.Head().String()
			return out, nil
		case d.Decision == "deny":
			return fail(schema.ApprovalDenied, "the call was denied before, at %d", d.Seq)
		}
		a, err := fail(schema.CallConflict, "the call was allowed before, at %d", d.Seq)
		return a, schema.AsError(err).With("next", "the first answer stands; to stop the call run: steno calls cancel "+inShell(s.id, c.ID))
	}
	a, err := fail(schema.NotFound, "call %s has no question %s", c.ID, quoted(req.ApprovalID))
	if c.Waiting != nil {
		schema.AsError(err).With("waits_for", c.Waiting.ID)
	}
	return a, err
}

// allow records that a call may start, and starts it.
func (s *session) allow(c *replay.Call, d *decision) error {
	desk := desks.Get().(*desk)
	defer desk.back()
	if _, err := s.append(d.entry(desk, &Request{CallID: c.ID, sum: c.ArgsSHA256})); err != nil {
		return err
	}
	s.x.waiters.wake(s.id, c.ID)
	if !s.x.begin(s) {
		return nil // whoever holds the session next starts it
	}
	go func() {
		defer s.x.work.Done()
		defer s.leave()
		_, marked, err := s.requestOf(c)
		if marked { // only a request that carries what is hidden can run it
			select {
			case <-time.After(5 * askAgain):
			case <-s.x.stopping.Done():
				return
			}
		}
		if err == nil {
			err = s.startAllowed(c.ID)
		}
		for errors.Is(err, schema.Backpressure) || errors.Is(err, schema.ResumePolicyUnavailable) || couldNotWrite(err) { // whoever asked may be gone, so nobody else would start it
			select {
			case <-time.After(askAgain):
				err = s.startAllowed(c.ID)
			case <-s.ctx.Done():
				return
			case <-s.x.stopping.Done():
				return
			}
		}
		if err != nil && s.sound() {
			s.x.log.Error("a call that was allowed was not started", "session", s.id, "call", c.ID, "kind", schema.KindOf(err), "err", err)
		}
	}()
	return nil
}

// startAllowed starts a call that somebody has allowed, unless it has started.
// A flight that was on its way may have looked before the answer came.
func (s *session) startAllowed(id string) error {
	for range 3 {
		c := s.copied(id)
		if c.Result != nil || c.Waiting != nil || len(c.Decisions) == 0 || c.StartedSince(c.Decisions[len(c.Decisions)-1].Seq) {
			return nil
		}
		r, err := s.journal.Event(s.ctx, c.Seq)
		if err == nil {
			err = s.settle(c, r.Data)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

var answerVerb = verb{"approve", (*Executor).runAnswer, true, ofWrites}

// runAnswer answers a question about a call.
func (x *Executor) runAnswer(ctx context.Context, session string, payload []byte, here bool) (reply, error) {
	var req AnswerRequest
	replaced, err := door(payload, &req, levelData)
	if err != nil {
		return reply{}, err
	}
	bad := func(why string) (reply, error) {
		return reply{}, schema.Errorf(schema.InvalidArgs, "%s", why).With("session", session)
	}
	switch {
	case req.Session != session:
		return bad("subject and request name different sessions")
	case schema.CheckCallID(req.CallID) != nil || req.ApprovalID == "":
		return bad("call_id and approval_id say what is answered; steno approvals ls has both")
	case req.Decision != "allow" && req.Decision != "deny":
		return bad("decision must be allow or deny")
	case req.Grant != nil && req.Decision == "deny":
		return bad("a denial grants nothing")
	case len(req.Reason) > maxReason || replaced > 0:
		return bad("reason is valid Unicode of at most 1024 bytes")
	}
	if err := req.Actor.check(); err != nil {
		return reply{}, schema.AsError(err).With("session", session)
	}
	x.plain(&req.Reason, &req.Actor.ID)
	req.Actor.via(viaOf(ctx))
	s, done, err := x.writing(ctx, session, here)
	if err != nil {
		return reply{}, err
	}
	defer done()
	select {
	case <-s.settled:
	case <-ctx.Done():
		return reply{}, x.ended(ctx, session)
	}
	a, err := s.answer(req)
	if err != nil {
		return reply{}, err
	}
	return answer(a, x, session, s.journal.Head())
}
