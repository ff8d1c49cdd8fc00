package executor

import (
	"context"
	"slices"
	"strings"

	"github.com/go-json-experiment/json/jsontext"

	"steno/journal"
	"steno/replay"
	"steno/schema"
)

// The phases that a session may be in, and the kinds of task that it may be
// about. One without a phase admits every tool.
const (
	PhaseInvestigating = "investigating"
	PhaseEditing       = "editing"
	PhaseVerifying     = "verifying"

	TaskEdit        = "edit"
	TaskTestOnly    = "test_only"
	TaskInvestigate = "investigate"
)

var (
	phases    = []string{PhaseInvestigating, PhaseEditing, PhaseVerifying}
	taskKinds = []string{TaskEdit, TaskTestOnly, TaskInvestigate}
)

// A stage is where a session is in its task. No kind of task is as edit.
type stage struct {
	phase, task string
	escalated   bool
	lost        bool // the phase may have been another one since, in damaged lines
}

func (s *session) stage() (at stage) {
	s.view(func(st *replay.State) { at = stageOf(st) })
	return at
}

func stageOf(st *replay.State) stage {
	return stage{st.Phase, st.TaskKind, st.Escalated, st.PhaseLost}
}

// admits says why a tool may not run at a stage, "" if it may. Tools that edit the workspace are
// more than their phases: they also run while somebody investigates, and only
// where they say so, or the policy does, once their work is verified.
func (at stage) admits(t *Tool, edits bool) string {
	switch {
	case at.lost:
		for _, phase := range phases {
			if why := (stage{phase: phase, task: at.task, escalated: at.escalated}).admits(t, edits); why != "" {
				return "damaged lines may have changed it, and only what every phase admits runs until somebody says it with steno session phase"
			}
		}
		return ""
	case at.phase == "":
		return ""
	case t.Escalates:
		switch {
		case at.escalated:
			return "the task was escalated already"
		case at.phase != PhaseInvestigating || at.task != TaskInvestigate:
			return "it is for a task of kind investigate, in the phase investigating"
		}
		return ""
	case at.phase == PhaseVerifying && t.edits():
		if edits || slices.Contains(t.Phases, PhaseVerifying) {
			return ""
		}
		return "nothing is edited in the phase verifying"
	case t.in(at.phase) || at.phase == PhaseInvestigating && t.edits():
		return ""
	}
	return "it is for the phases " + strings.Join(t.Phases, ", ")
}

// moves reports whether a call of the tool, which is admitted, begins to edit:
// an investigation whose task is no more than that goes on as one.
func (at stage) moves(t *Tool) bool {
	return !at.lost && at.phase == PhaseInvestigating && at.task != TaskInvestigate && t.edits() && !t.Escalates
}

// in reports whether a phase is one of the tool's.
func (t *Tool) in(phase string) bool { return len(t.Phases) == 0 || slices.Contains(t.Phases, phase) }

// edits reports whether the tool edits the workspace, and no more.
func (t *Tool) edits() bool { return t.Tier == 1 && t.in(PhaseEditing) }

// A move is a change of phase or task.
type move struct {
	from, to string
	task     string // "" if it stays
	trigger  jsontext.Value
	replaced int // U+FFFD that the door put in
}

// moved is a move that a call brings about.
func moved(from, to, task, callID string) *move {
	var o schema.Object
	return &move{from: from, to: to, task: task, trigger: o.Text("call_id", callID).Bytes()}
}

func (m *move) entry() journal.Entry {
	from := m.from
	if from == "" {
		from = "none"
	}
	var o schema.Object
	o.Text("from", from).Text("to", m.to)
	if m.task != "" {
		o.Text("task_kind", m.task)
	}
	if len(m.trigger) > 0 {
		o.Raw("trigger", m.trigger)
	}
	if m.replaced > 0 {
		o.Uint("replaced", uint64(m.replaced))
	}
	return journal.Entry{Type: schema.TypePhaseChanged, Data: o.Bytes()}
}

// admit says why a policy and a stage do not admit a tool; no gate if they do.
func (p *Policy) admit(t *Tool, at stage) decision {
	if t.Tier >= neverTier {
		return p.never()
	}
	if p != nil && p.mode == modeReadOnly && !t.ReadOnly {
		return p.unwritten()
	}
	if why := at.admits(t, p != nil && p.edits); why != "" {
		reason := "the phase " + at.phase + " does not admit the tool: " + why
		if at.lost {
			reason = "the phase may be lost: " + why
		}
		return decision{gate: "phase", by: "auto", kind: schema.PhaseDenied, reason: reason}
	}
	return decision{}
}

// inPhase runs f while the stage of the session stays as it is. Where f says
// that it is to change, f runs again, alone.
func (s *session) inPhase(f func(alone bool) (moves bool)) {
	s.phases.RLock()
	moves := f(false)
	s.phases.RUnlock()
	if moves {
		s.phases.Lock()
		defer s.phases.Unlock()
		f(true)
	}
}

// escalates reports whether a result, whenever and from wherever it comes, makes an
// edit task of an investigate task.
func (s *session) escalates(tool string, dryRun, ok bool) bool {
	if !ok || dryRun {
		return false
	}
	e, err := s.x.cfg.Tools.lookup(tool)
	return err == nil && e.tool.Escalates
}

// escalation is what the success of a tool that escalates changes, nil where
// somebody else was faster, or the session has ended. The caller has the phases for
// itself.
func (s *session) escalation(callID string) *move {
	at := s.stage()
	if at.lost || at.phase == "" || at.task != TaskInvestigate || at.escalated || s.ended() {
		return nil
	}
	return moved(at.phase, at.phase, TaskEdit, callID)
}

// escalateLast escalates the task where a crash has left the success of a tool
// that escalates as the last line, without what it changes.
func (s *session) escalateLast() error {
	var last *replay.Call
	s.view(func(st *replay.State) {
		seal := st.Epochs[len(st.Epochs)-1].Seq // ours
		for _, c := range st.Calls[max(0, len(st.Calls)-2*maxFlights):] {
			if c.Result != nil && c.Result.Seq+1 == seal {
				copied := *c
				last = &copied
			}
		}
	})
	if last == nil || !s.escalates(last.Name, last.DryRun, last.Result.OK) {
		return nil
	}
	s.phases.Lock()
	defer s.phases.Unlock()
	m := s.escalation(last.ID)
	if m == nil {
		return nil
	}
	_, err := s.append(m.entry())
	return err
}

// PhaseRequest moves a session to another phase: investigating, editing or
// verifying. TaskKind also changes what its task is: edit, test_only or
// investigate. It is the application's to say, not the model's. A session that
// is there already stays as it is.
type PhaseRequest struct {
	Session  string         `json:"session"`
	Phase    string         `json:"phase"`
	TaskKind string         `json:"task_kind,omitzero"` // stays if empty
	Trigger  jsontext.Value `json:"trigger,omitzero"`   // why, or who
}

// PhaseAnswer says where the session is now.
type PhaseAnswer struct {
	OK       bool   `json:"ok"`
	Phase    string `json:"phase"`
	TaskKind string `json:"task_kind,omitzero"`
	Changed  bool   `json:"changed"` // false if it was there already
	Head     string `json:"head"`
}

// checkStage refuses phases and kinds of task that there are not. Either may be
// empty.
func checkStage(session, phase, task string) error {
	bad := func(key, got string, known []string) error {
		return schema.Errorf(schema.InvalidArgs, "%s is %s; it must be one of %s", key, quoted(got), strings.Join(known, ", ")).
			With("session", session).With("pointer", "/"+key)
	}
	if phase != "" && !slices.Contains(phases, phase) {
		return bad("phase", phase, phases)
	}
	if task != "" && !slices.Contains(taskKinds, task) {
		return bad("task_kind", task, taskKinds)
	}
	return nil
}

var phaseVerb = verb{"phase", (*Executor).runPhase, true, ofWrites}

// runPhase moves a session to another phase.
func (x *Executor) runPhase(ctx context.Context, session string, payload []byte, here bool) (reply, error) {
	var req PhaseRequest
	replaced, err := door(payload, &req, levelData)
	if err != nil {
		return reply{}, err
	}
	switch {
	case req.Session != session:
		return reply{}, schema.Errorf(schema.InvalidArgs, "subject and request name different sessions").With("session", session)
	case req.Phase == "":
		return reply{}, schema.Errorf(schema.InvalidArgs, "phase is missing").With("session", session)
	case len(req.Trigger) > maxData:
		return reply{}, schema.Errorf(schema.PayloadTooLarge, "trigger has %d bytes; the limit is %d", len(req.Trigger), maxData).With("session", session)
	}
	if err := checkStage(session, req.Phase, req.TaskKind); err != nil {
		return reply{}, err
	}
	req.Trigger, _ = x.redact.JSON(req.Trigger, "", nil)
	s, done, err := x.writing(ctx, session, here)
	if err != nil {
		return reply{}, err
	}
	defer done()
	s.phases.Lock()
	defer s.phases.Unlock()
	at, head := s.stage(), s.journal.Head()
	change := at.lost || req.Phase != at.phase || req.TaskKind != "" && req.TaskKind != at.task
	if change {
		m := move{from: at.phase, to: req.Phase, task: req.TaskKind, trigger: req.Trigger, replaced: replaced}
		r, err := s.append(m.entry())
		if err != nil {
			return reply{}, err
		}
		at, head = s.stage(), r[0].Head()
	}
	return answer(PhaseAnswer{OK: true, Phase: at.phase, TaskKind: at.task, Changed: change, Head: head.String()}, x, session, head)
}
