package executor

import (
	"cmp"
	"context"
	"iter"
	"slices"
	"strings"

	"github.com/go-json-experiment/json/jsontext"

	"steno/journal"
	"steno/replay"
	"steno/schema"
)

// How far a run has come in its record, which is what a program that asks for its
// session is told: to one that begins, its record is not over.

// A recordedChange is a change of the phase, or of the mode of the posture.
type recordedChange struct {
	typ      string
	to, task string // the phase and the kind of task, or the mode
	hash     string // of the policy
	head     schema.Head
	asked    bool
}

func changeOf(e *schema.Event) *recordedChange {
	var d struct {
		To   jsontext.Value `json:"to"`
		Task string         `json:"task_kind"`
	}
	var to struct {
		Mode string `json:"mode"`
		Hash string `json:"policy_hash"`
	}
	c := &recordedChange{typ: e.Type, head: e.Head()}
	_ = schema.Unmarshal(e.Data, &d) // the fold has accepted it
	if e.Type == schema.TypePhaseChanged {
		_ = schema.Unmarshal(d.To, &c.to)
		c.task = d.Task
	} else if schema.Unmarshal(d.To, &to) == nil {
		c.to, c.hash = to.Mode, to.Hash
	}
	return c
}

// recordedTools are the tools that calls are of, as known tells of them.
func recordedTools(calls []*recordedCall, known []Tool) (list []Tool) {
	is := func(name string) func(Tool) bool { return func(t Tool) bool { return t.Name == name } }
	for _, c := range calls {
		if c.Result != nil && c.Result.Kind == schema.UnknownTool || slices.ContainsFunc(list, is(c.Name)) {
			continue
		}
		t := Tool{Name: c.Name, Description: "A tool of a recorded session, which does not say what was told of it.", Input: jsontext.Value(`{"type":"object"}`)}
		if i := slices.IndexFunc(known, is(c.Name)); i >= 0 {
			t = known[i]
		}
		list = append(list, t)
	}
	slices.SortFunc(list, func(a, b Tool) int { return cmp.Compare(a.Name, b.Name) })
	return list
}

// soFar gives the record up to the last event that the run has come to. In the
// place of what it has not asked for or appended by then stands a note without a
// line, since a hole would look like damage. The caller holds mu.
func (r *Recording) soFar(ctx context.Context) iter.Seq2[journal.Item, error] {
	calls, events, last := map[string]bool{}, map[uint64]bool{}, uint64(0)
	come := func(seq uint64) { events[seq], last = true, max(last, seq) }
	if s := r.state.Started; s != nil {
		come(s.Seq)
	}
	for _, c := range r.calls {
		if c.asked {
			calls[c.ID], last = true, max(last, c.Result.Seq)
		}
	}
	for _, i := range r.noted {
		come(r.events[i].seq)
	}
	for i := range r.given {
		come(r.events[i].seq)
	}
	for _, c := range r.changes {
		if c.asked {
			come(c.head.Seq)
		}
	}
	if r.ended {
		come(r.state.Ended.Seq)
	}
	there := func(e *schema.Event) bool {
		switch {
		case e.Type == schema.TypeSessionEnded || schema.Appendable(e.Type) == nil:
			return events[e.Seq]
		case slices.Contains([]string{schema.TypeToolCall, schema.TypeApprovalRequested, schema.TypeDecision, schema.TypeToolStarted, schema.TypeToolResult}, e.Type):
			return calls[calledIn(e)]
		}
		return true
	}
	return func(yield func(journal.Item, error) bool) {
		for it, err := range journal.NewScan(r.store, r.session, journal.ScanOptions{Strict: true}).Items(ctx) {
			if err != nil {
				yield(it, err)
				return
			}
			e := it.Event
			if e == nil {
				continue
			}
			if e.Seq > last {
				return
			}
			if !there(e) {
				it.Line, it.Event = nil, &schema.Event{Session: e.Session, Seq: e.Seq, Epoch: e.Epoch, ID: e.ID, Time: e.Time, Type: schema.TypeNote, Data: []byte("{}"), Prev: e.Prev, Sum: e.Sum}
			}
			if !yield(it, nil) {
				return
			}
		}
	}
}

// now is the state of the session as far as the run has come, and shows each of
// its events to see, unless that is nil. The caller holds mu.
func (r *Recording) now(ctx context.Context, see func(journal.Item)) (*replay.State, error) {
	st := replay.New()
	for it, err := range r.soFar(ctx) {
		if err != nil {
			return nil, err
		}
		if st.Apply(it.Event); see != nil && it.Line != nil {
			see(it)
		}
	}
	return st, nil
}

// resume tells of the session as far as the run has come. What a user says next
// in the record is said by then: who runs again need not be who said it.
func (r *Recording) resume(ctx context.Context, req ResumeRequest) ([]byte, error) {
	if req.After < 0 {
		return nil, schema.Errorf(schema.InvalidArgs, "after is negative").With("session", r.session)
	}
	ahead := ^uint64(0) // of the first call that the run has not come to
	for _, c := range r.calls {
		if !c.asked {
			ahead = c.Seq
			break
		}
	}
	for r.given = max(r.given, r.appended); r.given < len(r.events) && r.events[r.given].typ == schema.TypeUserMessage && r.events[r.given].seq < ahead; {
		r.given++
	}
	st, err := r.now(ctx, nil)
	if err != nil {
		return nil, err
	}
	a := resumptionOf(r.session, st, nil)
	if n := len(st.Epochs); n > 0 {
		a.Epoch, a.How = st.Epochs[n-1].Epoch, st.Epochs[n-1].How
	}
	if req.Format != "" {
		if a.AsOf = req.AsOf; a.AsOf == 0 {
			a.AsOf = st.Head.Seq
		}
		events := func(yield func(*schema.Event, error) bool) {
			for it, err := range r.soFar(ctx) {
				if !yield(it.Event, err) {
					return
				}
			}
		}
		if err := a.page(events, req, func(data []byte) ([]byte, error) { return journal.Whole(ctx, r.store, r.session, data) }); err != nil {
			return nil, err
		}
	}
	return encode(a)
}

// change is the recorded change that a program asks for, nil where the run is
// there already. The caller holds mu.
func (r *Recording) change(st *replay.State, typ, to, task, is string) (*recordedChange, error) {
	if is == to && (task == "" || task == st.TaskKind) {
		return nil, nil
	}
	var next *recordedChange
	for _, c := range r.changes {
		if c.typ != typ || c.head.Seq <= st.Head.Seq { // come by itself, as with an edit
			continue
		}
		if c.to == to && (task == "" || task == c.task) {
			c.asked = true
			return c, nil
		}
		if next == nil {
			next = c
		}
	}
	e := r.diverge("the record has no such change", strings.TrimSpace(typ+" "+to+" "+task), nil)
	if next != nil {
		e.With("recorded", strings.TrimSpace(next.typ+" "+next.to+" "+next.task)).With("seq", next.head.Seq)
	}
	return nil, e
}

// listTools tells of the tools as session.tools does.
func (r *Recording) listTools(ctx context.Context, req ToolsRequest) ([]byte, error) {
	st, err := r.now(ctx, nil)
	if err != nil {
		return nil, err
	}
	a := ToolsAnswer{OK: true, Phase: st.Phase, TaskKind: st.TaskKind, Tools: []jsontext.Value{}}
	for _, t := range r.tools {
		spec, err := t.Spec(req.Format)
		if err != nil {
			return nil, schema.AsError(err).With("session", r.session)
		}
		a.Tools = append(a.Tools, spec)
	}
	return encode(a)
}
