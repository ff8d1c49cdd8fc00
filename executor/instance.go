package executor

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"slices"
	"sync"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"steno/journal"
	"steno/replay"
	"steno/schema"
)

// A Session is what a tool is told of the session that it works for, as it is
// at that moment.
type Session struct {
	ID        string
	Workspace string         // a folder; "" if there is none
	Labels    jsontext.Value // an object, or nil
	TaskKind  string         // "" if nobody has said
	Phase     string         // "" if it has none
	// Restored says that the session was taken up from its log: its working
	// state, if there is any, is what an earlier process has left.
	Restored bool

	state func() jsontext.Value
}

// State is the working state of the session now: what its patches have made, or
// nil.
func (s Session) State() jsontext.Value { return s.state() }

// State is the working state of the call's session now: what its patches have
// made, or nil. [Result.Patch] changes it.
func (call *Invocation) State() jsontext.Value {
	if call.state == nil { // it was not made by an executor
		return nil
	}
	return call.state()
}

// An Instance is what a tool has made for one session.
type Instance struct {
	// Run is as [Tool.Run]; it is called for this session only.
	Run func(ctx context.Context, call *Invocation) (Result, error)
	// Close is called once, when the session is given back and no call of it
	// runs any more, in the reverse order in which instances were made. It may
	// be nil.
	Close func() error
}

// described is what tools are told of the session.
func (s *session) described() Session {
	t := Session{ID: s.id, Restored: s.journal.How() != schema.HowNew, state: s.working}
	s.view(func(st *replay.State) {
		if st.Started != nil {
			t.Workspace, t.Labels = st.Started.Workspace, slices.Clone(st.Started.Labels)
		}
		t.TaskKind, t.Phase = st.TaskKind, st.Phase
	})
	return t
}

// working is the working state.
func (s *session) working() (state jsontext.Value) {
	s.view(func(st *replay.State) {
		b, err := json.Marshal(&st.Working, json.Deterministic(true))
		if err == nil && string(b) != "null" {
			state = b
		}
	})
	return state
}

// ended reports whether the session has ended: its state is what it is.
func (s *session) ended() (ended bool) {
	s.view(func(st *replay.State) { ended = st.Ended != nil })
	return ended
}

// admit says why a tool may not be called now, whatever its arguments; no gate
// if it may. What is advertised and what runs is decided here.
func (s *session) admit(policy *Policy, t *Tool, at stage) decision {
	d := policy.admit(t, at)
	if d.gate == "" && t.Ready != nil {
		if err := t.Ready(); err != nil {
			return decision{gate: "available", by: "auto", kind: schema.Unavailable, reason: schema.AsError(err).Message}
		}
	}
	if d.gate == "" && t.Available != nil && !s.available(t) {
		d = decision{gate: "available", by: "auto", kind: schema.PhaseDenied, reason: "the tool says that it is not available in this session"}
	}
	return d
}

// available asks the tool itself. One that panics is not.
func (s *session) available(t *Tool) (yes bool) {
	defer func() {
		if p := recover(); p != nil {
			s.x.log.Error("a tool panicked when it was asked whether it is available", "session", s.id, "tool", t.Name, "panic", p, "stack", string(debug.Stack()))
			yes = false
		}
	}()
	return t.Available(s.described())
}

// patched is the state_changed that a result brings about.
func patched(patch jsontext.Value) (journal.Entry, error) {
	text, replaced, err := schema.Compact(nil, patch, 2)
	if err != nil {
		return journal.Entry{}, err
	}
	var o schema.Object
	o.Raw("patch", text)
	if replaced > 0 {
		o.Uint("replaced", uint64(replaced))
	}
	data := o.Bytes()
	if len(text) > schema.MaxPatch {
		return journal.Entry{}, fmt.Errorf("it has %d bytes; the limit is %d", len(text), schema.MaxPatch)
	}
	return journal.Entry{Type: schema.TypeStateChanged, Data: data}, schema.CheckData(schema.TypeStateChanged, data)
}

// An instance is one that was made, or is being made, for a session.
type instance struct {
	of   *registered
	made sync.Once
	err  error
	Instance

	// Guarded by the session's boundMu.
	users int
	gone  bool // closed when nobody uses it any more
}

// bound gives the Run of a tool for this session, made when it is first needed.
// The caller says when it has returned.
func (s *session) bound(ctx context.Context, t Tool) (run func(context.Context, *Invocation) (Result, error), leave func(), err error) {
	if t.Bind == nil {
		return t.Run, func() {}, nil
	}
	s.boundMu.Lock()
	if s.unbound {
		s.boundMu.Unlock()
		return nil, nil, s.stopped()
	}
	n := slices.IndexFunc(s.instances, func(in *instance) bool { return in.of == t.of })
	if n < 0 {
		n = len(s.instances)
		s.instances = append(s.instances, &instance{of: t.of})
	}
	in := s.instances[n]
	in.users++
	s.boundMu.Unlock()
	defer func() {
		if in.err == nil {
			return
		}
		s.boundMu.Lock() // the next call tries again
		defer s.boundMu.Unlock()
		s.instances = slices.DeleteFunc(s.instances, func(other *instance) bool { return other == in })
	}()
	in.made.Do(func() {
		in.err = errors.New("it panicked") // unless it returns
		made, err := t.Bind(ctx, s.described())
		if err == nil && made.Run == nil {
			err = errors.New("it has no Run")
		}
		in.Instance, in.err = made, err
	})
	if in.err != nil {
		return nil, nil, in.err
	}
	return in.Run, func() { s.relinquish(in) }, nil
}

// relinquish ends a use of an instance.
func (s *session) relinquish(in *instance) {
	s.boundMu.Lock()
	in.users--
	last := in.gone && in.users == 0
	s.boundMu.Unlock()
	if last {
		if err := closeTool(in.of.tool.Name, in.Close); err != nil {
			s.x.log.Warn("a tool was not closed in good order", "session", s.id, "err", err)
		}
	}
}

// unbind closes the instances of the session, the newest first. One whose call
// does not end is closed when it does.
func (s *session) unbind() (errs []error) {
	s.boundMu.Lock()
	s.unbound = true
	var idle []*instance
	for _, in := range slices.Backward(s.instances) {
		if in.gone = true; in.users == 0 {
			idle = append(idle, in)
		}
	}
	s.boundMu.Unlock()
	for _, in := range idle {
		errs = append(errs, closeTool(in.of.tool.Name, in.Close))
	}
	return errs
}

// Close closes the tools that have a Close, also those that were replaced, in
// the reverse order in which they were registered. It is for whoever made the
// Registry, once no executor works with it any more; what it does, it does once.
// The error joins those of the tools.
func (r *Registry) Close() error {
	r.mu.Lock()
	all := r.order
	r.order = nil
	r.mu.Unlock()
	var errs []error
	for _, e := range slices.Backward(all) {
		errs = append(errs, closeTool(e.tool.Name, e.tool.Close))
	}
	return errors.Join(errs...)
}

// closeTool closes a tool, or an instance of it.
func closeTool(name string, f func() error) (err error) {
	if f == nil {
		return nil
	}
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("the tool %s panicked when it was closed: %v", name, p)
		}
	}()
	if err := f(); err != nil {
		return fmt.Errorf("the tool %s: %w", name, err)
	}
	return nil
}
