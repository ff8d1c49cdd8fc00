package executor

import (
	"context"
	"errors"
	"iter"

	"github.com/go-json-experiment/json/jsontext"

	"steno/replay"
	"steno/schema"
)

// ResumeRequest takes a session up where its log ends.
type ResumeRequest struct {
	Session string `json:"session"`
	// Format asks for the messages that the agent goes on with: "steno",
	// "anthropic" or "openai". Without it there are none. They come in pages: After
	// is how many there have been, AsOf the event up to which the first page went.
	Format string `json:"format,omitzero"`
	After  int    `json:"after,omitzero"`
	AsOf   uint64 `json:"as_of,omitzero"`
}

// ResumeAnswer is a session that can go on.
type ResumeAnswer struct {
	OK       bool   `json:"ok"`
	Session  string `json:"session"`
	Head     string `json:"head"`
	Epoch    uint64 `json:"epoch"`
	How      string `json:"how"` // how its holder came by it: new, resumed, takeover or forced
	Outcome  string `json:"outcome,omitzero"`
	TaskKind string `json:"task_kind,omitzero"`
	Phase    string `json:"phase,omitzero"`
	Mode     string `json:"mode,omitzero"`        // of the posture
	Policy   string `json:"policy_hash,omitzero"` // of the posture
	// Calls counts them by their state. Open are those whose outcome is not known
	// for good, in the order of their seq, at most 1000; Omitted are more of them.
	Calls   map[string]int `json:"calls"`
	Open    []OpenCall     `json:"open"`
	Omitted int            `json:"omitted,omitzero"`
	// Messages, if they were asked for. More says that there are more, AsOf what
	// to ask for them with.
	Messages []jsontext.Value `json:"messages,omitzero"`
	More     bool             `json:"more,omitzero"`
	AsOf     uint64           `json:"as_of,omitzero"`
}

// OpenCall is a call of which more is to come.
type OpenCall struct {
	CallID string `json:"call_id"`
	Name   string `json:"name"`
	Seq    uint64 `json:"seq"`
	// State is running; waiting for a person; interrupted or failed, with a result
	// that a later one may supersede; pending or unknown, where it has none and
	// does not run: after the session's end, or where Kind is unknown_tool, which
	// says that whoever holds the session does not have its tool.
	State      string      `json:"state"`
	Kind       schema.Kind `json:"kind,omitzero"` // of its result, if it has one
	ApprovalID string      `json:"approval_id,omitzero"`
	Expires    string      `json:"expires_at,omitzero"`
	Next       string      `json:"next"` // what can be done about it
}

// maxOpenCalls bounds the calls of an answer, maxMessages the bytes of its
// messages.
const (
	maxOpenCalls = 1000
	maxMessages  = 512 << 10
)

const (
	resumeSchema = `{"type":"object","required":["session"],"properties":{"session":` + sessionID + `,"format":{"enum":["steno","anthropic","openai"]},` +
		`"after":{"type":"integer","minimum":0},"as_of":{"type":"integer","minimum":0}}}`
	resumeAnswerSchema = `{"type":"object","required":["ok","session","head","epoch","how","calls","open"],"properties":{"ok":{"const":true},"session":{"type":"string"},` +
		`"head":{"type":"string"},"epoch":{"type":"integer"},"how":{"type":"string"},"calls":{"type":"object","additionalProperties":{"type":"integer"}},` +
		`"open":{"type":"array","items":{"type":"object","required":["call_id","name","seq","state","next"]}},"omitted":{"type":"integer"},` +
		`"messages":{"type":"array","items":{"type":"object"}},"more":{"type":"boolean"},"as_of":{"type":"integer"}}}`
)

var resumeVerb = verb{"resume", (*Executor).runResume, true, ofWrites}

var resumeEndpoints = []endpoint{
	{"session-resume", "session.resume", resumeSchema, resumeAnswerSchema, resumeVerb, false},
	{"to-resume", "resume.*", resumeSchema, resumeAnswerSchema, resumeVerb, true},
}

// runResume takes a session, if nobody holds it, and tells of it once what an
// earlier writer has left open is settled.
func (x *Executor) runResume(ctx context.Context, session string, payload []byte, here bool) (reply, error) {
	var req ResumeRequest
	if _, err := door(payload, &req, levelData); err != nil {
		return reply{}, err
	}
	switch {
	case req.Session != session:
		return reply{}, schema.Errorf(schema.InvalidArgs, "subject and request name different sessions").With("session", session)
	case req.After < 0:
		return reply{}, schema.Errorf(schema.InvalidArgs, "after is negative").With("session", session)
	}
	s, err := x.find(ctx, session, here)
	if err != nil {
		return reply{}, x.howFar(ctx, session, err)
	}
	defer s.leave()
	select {
	case <-s.settled:
	case <-ctx.Done():
		return reply{}, x.ended(ctx, session)
	}
	if x.stopping.Err() != nil || !s.sound() { // the settlement may have been cut short
		return reply{}, goingAway(session)
	}
	if err := s.restored(); err != nil {
		return reply{}, err
	}
	a := s.resumption()
	head, err := schema.ParseHead(a.Head)
	if err == nil && req.Format != "" {
		if a.AsOf = req.AsOf; a.AsOf == 0 {
			a.AsOf = head.Seq
		}
		err = a.page(x.events(ctx, session), req, func(data []byte) ([]byte, error) { return s.journal.Whole(ctx, data) })
	}
	if err != nil {
		return reply{}, err
	}
	return answer(a, x, session, head)
}

// restored makes sure that the session goes by its policy. A session that has
// ended needs none any more.
func (s *session) restored() error {
	ended := false
	s.view(func(st *replay.State) { ended = st.Ended != nil })
	if ended {
		return nil
	}
	if err := s.adopt(); err != nil {
		return err
	}
	_, err := s.policy()
	return err
}

func (s *session) resumption() (a ResumeAnswer) {
	s.mu.Lock()
	running := make(map[string]bool, len(s.flights))
	for id := range s.flights {
		running[id] = true
	}
	s.mu.Unlock()
	s.view(func(st *replay.State) { a = resumptionOf(s.id, st, running) })
	a.Epoch, a.How = s.journal.Epoch(), s.journal.How()
	for i := range a.Open {
		o := &a.Open[i]
		if a.Outcome != "" || o.State != string(replay.Pending) && o.State != string(replay.Unknown) {
			continue
		}
		if _, err := s.x.cfg.Tools.lookup(o.Name); errors.Is(err, schema.UnknownTool) {
			o.Kind, o.Next = schema.UnknownTool, nextUnknown(s.id, o.CallID)
		}
	}
	return a
}

// resumptionOf tells of a session, but for who holds it.
func resumptionOf(id string, st *replay.State, running map[string]bool) ResumeAnswer {
	a := ResumeAnswer{OK: true, Session: id, Head: st.Head.String(), TaskKind: st.TaskKind, Phase: st.Phase, Calls: map[string]int{}, Open: []OpenCall{}}
	if st.Ended != nil {
		a.Outcome = st.Ended.Outcome
	}
	if st.Posture != nil {
		a.Mode, a.Policy = st.Posture.Mode, st.Posture.PolicyHash
	}
	for state, n := range st.Count() {
		a.Calls[string(state)] = n
	}
	for _, c := range st.Calls {
		if c.Result != nil && !c.Result.Open() {
			continue
		}
		o := OpenCall{CallID: c.ID, Name: c.Name, Seq: c.Seq, State: string(c.State), Next: nextOf(id, c)}
		switch {
		case c.Result != nil:
			o.Kind = c.Result.Kind
		case c.Waiting != nil:
			o.State, o.ApprovalID, o.Expires = "waiting", c.Waiting.ID, c.Waiting.Expires
		case running[c.ID]:
			o.State, o.Next = "running", "run: steno calls wait "+inShell(id, c.ID)
		}
		if len(a.Open) == maxOpenCalls {
			a.Omitted++
			continue
		}
		a.Open = append(a.Open, o)
	}
	return a
}

// page gives the messages that are asked for, up to the event a.AsOf.
func (a *ResumeAnswer) page(events iter.Seq2[*schema.Event, error], req ResumeRequest, whole func(data []byte) ([]byte, error)) error {
	n, size := 0, 0
	a.Messages = []jsontext.Value{}
	for m, err := range replay.Messages(events, replay.Projection{Format: req.Format, AsOf: a.AsOf, Whole: whole}) {
		if err != nil {
			return schema.AsError(err).With("session", a.Session)
		}
		if n++; n <= req.After {
			continue
		}
		if len(m) > maxPayload-maxMessages/2 {
			return schema.Errorf(schema.PayloadTooLarge, "the session is taken and settled, and its message %d has %d bytes, which is too much for an answer", n, len(m)).
				With("session", a.Session).With("head", a.Head).With("next", "leave the format out; read the messages from the log; run: steno export "+a.Session+" --format "+req.Format)
		}
		if size += len(m); size > maxMessages && len(a.Messages) > 0 {
			a.More = true
			return nil
		}
		a.Messages = append(a.Messages, m)
	}
	return nil
}

// howFar says of a damaged log how far it is sound: up to there its messages can
// be had, and a session can be forked.
func (x *Executor) howFar(ctx context.Context, id string, damage error) error {
	switch schema.KindOf(damage) {
	case schema.CorruptLogLine, schema.TailSuspect, schema.UnsupportedSchemaVersion:
	default:
		return damage
	}
	var head schema.Head
	for e, err := range x.events(ctx, id) {
		if err != nil {
			break
		}
		head = e.Head()
	}
	if head.Seq == 0 {
		return damage
	}
	return schema.AsError(damage).With("last_good_seq", head.Seq).With("last_good_head", head.String())
}

// Resume takes a session up: it returns once calls that an earlier writer left
// open are settled, and what was run again for that has its result, with all
// messages if a format is asked for. Doing it again settles no call twice. Calls
// whose tool the executor does not know stay as they are.
//
// ResumePolicyUnavailable: the policy that the session goes by cannot be had.
// CorruptLogLine, TailSuspect: the log is damaged, and sound up to
// details.last_good_seq.
func (c *Client) Resume(ctx context.Context, req ResumeRequest) (a ResumeAnswer, err error) {
	first := ResumeRequest{Session: req.Session}
	if err := c.ask(ctx, "session.resume", first, &a); err != nil {
		return a, err
	}
	waited := false
	for _, o := range a.Open {
		if o.State != "running" {
			continue
		}
		waited = true
		if _, err := c.Wait(ctx, req.Session, o.CallID); err != nil {
			return a, err
		}
	}
	if req.Format == "" && !waited {
		return a, nil
	}
	var all []jsontext.Value
	for more := true; more; more = a.More {
		a = ResumeAnswer{}
		if err := c.ask(ctx, "session.resume", req, &a); err != nil {
			return a, err
		}
		all = append(all, a.Messages...) // none without a format
		req.AsOf, req.After = a.AsOf, len(all)
	}
	a.Messages = all
	return a, nil
}
