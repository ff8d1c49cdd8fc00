package executor

import (
	"context"
	"sync"

	"steno/journal"
	"steno/replay"
	"steno/schema"
)

// policies are those that sessions of this process go by.
type policies struct {
	mu       sync.Mutex
	kept     bool // the store has the process's own
	restored map[replay.Posture]*Policy
}

// keep has the store keep the process's own policy, before its hash is recorded
// for the first time.
func (x *Executor) keepPolicy() error {
	x.policies.mu.Lock()
	defer x.policies.mu.Unlock()
	if x.policies.kept {
		return nil
	}
	err := x.cfg.Store.KeepPolicy(x.cfg.Policy.text)
	x.policies.kept = err == nil
	return err
}

// policy is what the session goes by, which stands in its log. A process
// without a policy of its own goes by what an earlier one has recorded, so that
// nothing becomes less strict by leaving --policy out, nor by damage.
// ResumePolicyUnavailable: the recorded one cannot be had, or may be lost.
func (s *session) policy() (*Policy, error) {
	switch is, lost := s.posture(); {
	case lost:
		return nil, schema.Errorf(schema.ResumePolicyUnavailable, "what session %s goes by may be lost with damaged lines of its log", s.id).With("session", s.id).
			With("next", "say what it goes by from now on: bring a policy with --policy, or set a mode, with steno session posture "+s.id+" --mode MODE --reason WHY; recorded results are answered meanwhile")
	case is == nil:
		return nil, nil
	default:
		return s.x.restore(s.id, *is)
	}
}

// posture is what the session goes by, nil if it never had a policy. Where it is
// lost, what is given is what it was before.
func (s *session) posture() (is *replay.Posture, lost bool) {
	s.view(func(st *replay.State) { is, lost = st.Posture, st.PostureLost })
	return is, lost
}

// adopt records that the session goes by the process's own policy from now on,
// if there is one and the session goes by another.
func (s *session) adopt() error {
	own := s.x.cfg.Policy
	if own == nil || own.goes(s.posture()) {
		return nil
	}
	if err := s.x.keepPolicy(); err != nil {
		return err
	}
	s.phases.Lock()
	defer s.phases.Unlock()
	is, lost := s.posture()
	if own.goes(is, lost) {
		return nil // somebody else was faster
	}
	var from schema.Object
	if is != nil {
		from = postureOf(is.Mode, is.PolicyHash)
	}
	to := postureOf(own.mode, own.hash)
	var o schema.Object
	o.Raw("from", from.Bytes()).Raw("to", to.Bytes()).Text("by", s.x.cfg.Holder.ID).Text("reason", "an executor with a policy of its own has the session")
	_, err := s.append(journal.Entry{Type: schema.TypePostureChanged, Data: o.Bytes()})
	return err
}

// goes reports whether a posture is of this document. Its mode may be another
// one.
func (p *Policy) goes(is *replay.Posture, lost bool) bool {
	return is != nil && !lost && is.PolicyHash == p.hash
}

func postureOf(mode, hash string) (o schema.Object) {
	if mode != "" {
		o.Text("mode", mode)
	}
	if hash != "" {
		o.Text("policy_hash", hash)
	}
	return o
}

// started is the data of the session_started that begins a session here.
func (s *session) started() ([]byte, error) {
	o := s.create.started()
	if own := s.x.cfg.Policy; own != nil {
		if err := s.x.keepPolicy(); err != nil {
			return nil, err
		}
		posture := postureOf(own.mode, own.hash)
		o.Raw("posture", posture.Bytes())
	}
	return o.Bytes(), nil
}

// restore gives the policy of a posture.
func (x *Executor) restore(session string, is replay.Posture) (*Policy, error) {
	if own := x.cfg.Policy; own != nil && is.PolicyHash == own.hash && is.Mode == own.mode {
		return own, nil
	}
	is.Seq = 0
	x.policies.mu.Lock()
	defer x.policies.mu.Unlock()
	if p := x.policies.restored[is]; p != nil {
		return p, nil
	}
	p, err := x.readPolicy(is)
	if err != nil {
		return nil, schema.Errorf(schema.ResumePolicyUnavailable, "the policy that session %s goes by cannot be had", session).
			With("session", session).With("policy_hash", is.PolicyHash).With("mode", is.Mode).
			With("next", "put the document back, as policies/<policy_hash>.yaml in the store's folder, or bring another with --policy; the log can be read meanwhile").Cause(err)
	}
	if len(x.policies.restored) > 1<<10 { // nobody has so many
		x.policies.restored = nil
	}
	if x.policies.restored == nil {
		x.policies.restored = map[replay.Posture]*Policy{}
	}
	x.policies.restored[is] = p
	return p, nil
}

func (x *Executor) readPolicy(is replay.Posture) (*Policy, error) {
	p := &Policy{mode: modeAuto}
	if is.PolicyHash != "" {
		text, err := x.cfg.Store.Policy(is.PolicyHash)
		if err != nil {
			return nil, err
		}
		if p, err = ParsePolicy(text); err != nil {
			return nil, err
		}
	}
	switch is.Mode {
	case "":
	case modeAuto, modeAsk, modeReadOnly:
		p.mode = is.Mode
	default:
		return nil, schema.Errorf(schema.InvalidConfig, "there is no mode %s", quoted(is.Mode))
	}
	return p, nil
}

// PostureRequest changes the mode of the policy that a session goes by: auto, ask
// or read_only. Its rules stay. A session without a policy goes by the mode alone
// then. A policy that another process brings takes the place of both.
type PostureRequest struct {
	Session string `json:"session"`
	Mode    string `json:"mode"`
	By      string `json:"by"` // who changes it, as the application knows them
	Reason  string `json:"reason"`
}

// PostureAnswer says what the session goes by now.
type PostureAnswer struct {
	OK         bool   `json:"ok"`
	Mode       string `json:"mode"`
	PolicyHash string `json:"policy_hash,omitzero"`
	Changed    bool   `json:"changed"` // false if the mode was that already; nothing is recorded then
	Head       string `json:"head"`
}

const (
	postureSchema = `{"type":"object","required":["session","mode","by","reason"],"properties":{"session":` + sessionID + `,"mode":{"enum":["auto","ask","read_only"]},` + who +
		`,"reason":{"type":"string","minLength":1,"maxLength":1024}}}`
	postureAnswerSchema = `{"type":"object","required":["ok","mode","changed","head"],"properties":{"ok":{"const":true},"mode":{"type":"string"},` +
		`"policy_hash":{"type":"string"},"changed":{"type":"boolean"},"head":{"type":"string"}}}`
)

var postureVerb = verb{"posture", (*Executor).runPosture, true, ofWrites}

// runPosture changes the mode that a session goes by.
func (x *Executor) runPosture(ctx context.Context, session string, payload []byte, here bool) (reply, error) {
	var req PostureRequest
	replaced, err := door(payload, &req, levelData)
	if err != nil {
		return reply{}, err
	}
	bad := func(format string, args ...any) (reply, error) {
		return reply{}, schema.Errorf(schema.InvalidArgs, format, args...).With("session", session)
	}
	switch {
	case req.Session != session:
		return bad("subject and request name different sessions")
	case req.Mode != modeAuto && req.Mode != modeAsk && req.Mode != modeReadOnly:
		return bad("mode is %s; it must be auto, ask or read_only", quoted(req.Mode))
	case req.By == "" || len(req.By) > maxBy:
		return reply{}, noBy(req.By).With("session", session)
	case replaced > 0:
		return bad("by and reason must be valid Unicode")
	case req.Reason == "" || len(req.Reason) > maxReason:
		return bad("reason must have 1 to %d bytes", maxReason)
	}
	x.plain(&req.By, &req.Reason)
	s, done, err := x.writing(ctx, session, here)
	if err != nil {
		return reply{}, err
	}
	defer done()
	if err := s.adopt(); err != nil { // or that would undo it
		return reply{}, err
	}
	s.phases.Lock()
	defer s.phases.Unlock()
	var is replay.Posture
	p, lost := s.posture()
	if p != nil {
		is = *p
	}
	head, from := s.journal.Head(), postureOf(is.Mode, is.PolicyHash)
	change := lost || is.Mode != req.Mode
	if is.Mode = req.Mode; change {
		if _, err := x.restore(session, is); err != nil { // the rules that stay
			return reply{}, err
		}
		to := postureOf(is.Mode, is.PolicyHash)
		var o schema.Object
		o.Raw("from", from.Bytes()).Raw("to", to.Bytes()).Text("by", req.By).Text("reason", req.Reason)
		r, err := s.append(journal.Entry{Type: schema.TypePostureChanged, Data: o.Bytes()})
		if err != nil {
			return reply{}, err
		}
		head = r[0].Head()
	}
	return answer(PostureAnswer{OK: true, Mode: is.Mode, PolicyHash: is.PolicyHash, Changed: change, Head: head.String()}, x, session, head)
}
