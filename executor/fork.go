package executor

import (
	"context"
	"errors"
	"iter"

	"steno/journal"
	"steno/replay"
	"steno/schema"
)

// ForkRequest makes a session that goes on from an event of another one.
type ForkRequest struct {
	Session string `json:"session"`     // the parent
	At      uint64 `json:"at,omitzero"` // its last event that counts; 0 for the last it has
	To      string `json:"to,omitzero"` // the id of the new session; steno's if it is left out
}

// ForkAnswer tells of the new session. Doing it again is answered alike.
type ForkAnswer struct {
	OK      bool   `json:"ok"`
	Session string `json:"session"`
	Created bool   `json:"created"`
	Parent  string `json:"parent"`
	At      uint64 `json:"at"`
	Head    string `json:"head"`
}

const (
	forkSchema       = `{"type":"object","required":["session"],"properties":{"session":` + sessionID + `,"at":{"type":"integer","minimum":0},"to":` + sessionID + `}}`
	forkAnswerSchema = `{"type":"object","required":["ok","session","created","parent","at","head"],"properties":{"ok":{"const":true},"session":{"type":"string"},` +
		`"created":{"type":"boolean"},"parent":{"type":"string"},"at":{"type":"integer"},"head":{"type":"string"}}}`
)

var forkVerb = verb{"fork", (*Executor).runFork, false, ofWrites}

// runFork makes a fork. It needs no lease on the parent, so any executor of the
// store may do it.
func (x *Executor) runFork(ctx context.Context, _ string, payload []byte, _ bool) (reply, error) {
	var req ForkRequest
	if _, err := door(payload, &req, levelData); err != nil {
		return reply{}, err
	}
	if req.To == "" {
		req.To = journal.NewID().String()
	}
	if err := errors.Join(schema.CheckSession(req.Session), schema.CheckSession(req.To)); err != nil {
		return reply{}, err
	}
	a := ForkAnswer{OK: true, Session: req.To, Parent: req.Session}
	var st *replay.State
	fork, err := replay.ReadFork(req.Session, req.At, x.eventsTo(ctx, req.Session, func() journal.State {
		if st != nil { // it is as of the event already
			return replay.NewChecker()
		}
		st = replay.New()
		return st
	}))
	if err != nil {
		return reply{}, err
	}
	if st.PostureLost || st.PhaseLost { // which a fork could not know, and would run what the parent does not
		return reply{}, schema.Errorf(schema.ResumePolicyUnavailable, "what session %s goes by at event %d may be lost with damaged lines of its log", req.Session, fork.At).
			With("session", req.Session).With("seq", fork.At).With("next", "say it, then fork behind that; run: steno session posture "+req.Session+" --mode MODE --reason WHY, and: steno session phase "+req.Session+" PHASE")
	}
	a.At = fork.At
	var stricter *journal.Entry
	if req.At > 0 {
		if stricter, err = x.stricterSince(ctx, req.Session, fork.At, st); err != nil {
			return reply{}, err
		}
	}
	opt := journal.Options{Holder: x.cfg.Holder, NewState: func() journal.State { return replay.NewChecker() }, Started: fork.Started()}
	head, err := x.cfg.Store.Create(ctx, req.To, opt, x.copies(ctx, fork, stricter))
	if errors.Is(err, schema.AlreadyExists) { // by an earlier request, perhaps
		kin := replay.ReadKin(req.To, x.events(ctx, req.To))
		if there, e := x.summary(ctx, req.To); e == nil && kin.Parent == req.Session && (req.At == 0 || kin.Seq == req.At) {
			head, err := schema.ParseHead(there.Head)
			if a.At, a.Head = kin.Seq, there.Head; err != nil {
				return reply{}, err
			}
			return answer(a, x, req.To, head)
		}
	}
	if err != nil {
		return reply{}, err
	}
	a.Created, a.Head = true, head.String()
	return answer(a, x, req.To, head)
}

// events gives the events of a session that are known to be durable, each time
// anew. Damage ends them with its error.
func (x *Executor) events(ctx context.Context, id string) iter.Seq2[*schema.Event, error] {
	return x.eventsTo(ctx, id, func() journal.State { return replay.NewChecker() })
}

// eventsTo is events, and moves a state along, which then is as of the last one
// given.
func (x *Executor) eventsTo(ctx context.Context, id string, state func() journal.State) iter.Seq2[*schema.Event, error] {
	known := uint64(0) // of a session that is held here more is known than stands in its log
	if s, err := x.held(ctx, id); err == nil {
		known = s.journal.Head().Seq
		s.leave()
	}
	return func(yield func(*schema.Event, error) bool) {
		scan := journal.NewScan(x.cfg.Store, id, journal.ScanOptions{Strict: true, State: state()})
		for it, err := range scan.Items(ctx) {
			if err != nil {
				yield(nil, err)
				return
			}
			if it.Event != nil && (!it.Tentative || it.Event.Seq <= known) && !yield(it.Event, nil) {
				return
			}
		}
	}
}

// stricterSince is what a fork of before has to go by because its parent does by
// now, nil if that is nothing else: an old event brings back no mode that was
// tightened since, nor rules that have gone. st is the parent as of that event. What
// damage behind it hides nobody knows; what can be read counts.
func (x *Executor) stricterSince(ctx context.Context, parent string, at uint64, st *replay.State) (*journal.Entry, error) {
	now := replay.New()
	scan := journal.NewScan(x.cfg.Store, parent, journal.ScanOptions{State: now})
	for _, err := range scan.Items(ctx) {
		if err != nil {
			return nil, err
		}
	}
	if now.Posture == nil || now.Posture.Seq <= at {
		return nil, nil
	}
	var then replay.Posture
	if st.Posture != nil {
		then = *st.Posture
	}
	to := *now.Posture
	if strictness[then.Mode] > strictness[to.Mode] {
		to.Mode = then.Mode
	}
	if to.PolicyHash == "" {
		to.PolicyHash = then.PolicyHash
	}
	if strictness[to.Mode] == strictness[then.Mode] && to.PolicyHash == then.PolicyHash {
		return nil, nil
	}
	from, as := postureOf(then.Mode, then.PolicyHash), postureOf(to.Mode, to.PolicyHash)
	var o schema.Object
	o.Raw("from", from.Bytes()).Raw("to", as.Bytes()).Text("by", x.cfg.Holder.ID).Text("reason", "a fork goes by what its parent goes by now, where that is stricter")
	return &journal.Entry{Type: schema.TypePostureChanged, Data: o.Bytes()}, nil
}

// strictness orders modes. None at all is as auto.
var strictness = map[string]int{modeAsk: 1, modeReadOnly: 2}

// copies are the entries of a fork, and what it goes by besides. Their blobs become
// blobs of its own.
func (x *Executor) copies(ctx context.Context, fork *replay.Fork, more *journal.Entry) iter.Seq2[journal.Entry, error] {
	return func(yield func(journal.Entry, error) bool) {
		for c, err := range fork.Copies() {
			if err == nil {
				c.Data, err = journal.Whole(ctx, x.cfg.Store, fork.Parent, c.Data)
			}
			if !yield(journal.Entry{Type: c.Type, Data: c.Data}, err) || err != nil {
				return
			}
		}
		if more != nil {
			yield(*more, nil)
		}
	}
}

// Fork makes a session that goes on from an event of another. AlreadyExists: its
// id is taken.
func (c *Client) Fork(ctx context.Context, req ForkRequest) (a ForkAnswer, err error) {
	if req.To == "" {
		req.To = journal.NewID().String() // so that a repeat does not make another
	}
	return a, c.ask(ctx, "session.fork", req, &a)
}
