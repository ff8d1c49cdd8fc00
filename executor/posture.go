package executor

import (
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
// nothing becomes less strict by leaving --policy out. ResumePolicyUnavailable:
// the recorded one cannot be had.
func (s *session) policy() (*Policy, error) {
	is := s.posture()
	if is == nil {
		return nil, nil
	}
	return s.x.restore(s.id, *is)
}

func (s *session) posture() (is *replay.Posture) {
	s.view(func(st *replay.State) { is = st.Posture })
	return is
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
	is := s.posture()
	if own.goes(is) {
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
func (p *Policy) goes(is *replay.Posture) bool { return is != nil && is.PolicyHash == p.hash }

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
