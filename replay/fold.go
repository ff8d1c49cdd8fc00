package replay

import (
	"bytes"
	"strconv"

	"github.com/go-json-experiment/json/jsontext"

	"steno/schema"
)

// data has the fields that the fold looks at, of all types together.
type data struct {
	CallID     string            `json:"call_id"`
	Name       string            `json:"name"`
	ArgsSHA256 string            `json:"args_sha256"`
	DryRun     bool              `json:"dry_run"`
	Decision   string            `json:"decision"`
	Gate       string            `json:"gate"`
	By         jsontext.Value    `json:"by"`
	Attempt    uint64            `json:"attempt"`
	Executor   string            `json:"executor"`
	OK         bool              `json:"ok"`
	Error      *schema.ErrorBody `json:"error"`
	ExitCode   *int64            `json:"exit_code"`
	DurationUS uint64            `json:"duration_us"`
	Synthetic  bool              `json:"synthetic"`
	Supersedes *uint64           `json:"supersedes"`
	How        string            `json:"how"`
	Workspace  string            `json:"workspace"`
	Labels     jsontext.Value    `json:"labels"`
	Parent     jsontext.Value    `json:"parent"`
	TaskKind   string            `json:"task_kind"`
	Phase      string            `json:"phase"`
	To         jsontext.Value    `json:"to"`
	Patch      jsontext.Value    `json:"patch"`
	Model      string            `json:"model"`
	Tokens     jsontext.Value    `json:"tokens"`
	ToSeq      uint64            `json:"to_seq"`
	Outcome    string            `json:"outcome"`
	Reason     string            `json:"reason"`
}

// A batch is what the events of one append add while they are checked, before
// any of them is applied.
type batch struct {
	calls  map[string]bool // added here; true once it has a result here
	ended  bool
	result map[string]bool // calls of the state that get a result here
}

// Check says whether events may follow, as if each were applied before the
// next; it changes nothing. InvalidArgs: the data does not fit its type.
// DuplicateCall: the call id is in use. ResultWithoutCall: a result, start or
// decision names no call. ResultConflict: a second result that does not
// supersede the synthetic one. SessionEnded: nothing of this type may follow
// session_ended.
func (s *State) Check(events []schema.Event) error {
	var b batch
	for i := range events {
		if err := s.check(&events[i], &b); err != nil {
			return err
		}
	}
	return nil
}

func (s *State) check(e *schema.Event, b *batch) error {
	if err := schema.CheckData(e.Type, e.Data); err != nil {
		return err
	}
	var d data
	call := false
	switch e.Type {
	case schema.TypeToolCall, schema.TypeApprovalRequested, schema.TypeDecision, schema.TypeToolStarted, schema.TypeToolResult:
		call = true
		if err := schema.Unmarshal(e.Data, &d); err != nil {
			return err
		}
	}
	if (s.Ended != nil || b.ended) && !afterEnd(e.Type, &d) {
		return schema.Errorf(schema.SessionEnded, "session %s has ended; it takes no %s", e.Session, e.Type).With("session", e.Session)
	}
	if e.Type == schema.TypeSessionEnded {
		b.ended = true
	}
	if !call {
		return nil
	}
	refuse := func(k schema.Kind, format string, args ...any) error {
		return schema.Errorf(k, format, args...).With("session", e.Session).With("call_id", d.CallID)
	}
	c := s.calls[d.CallID]
	answered, here := b.calls[d.CallID]
	if e.Type == schema.TypeToolCall {
		if c != nil || here {
			return refuse(schema.DuplicateCall, "call %s is recorded already", d.CallID)
		}
		if b.calls == nil {
			b.calls = map[string]bool{}
		}
		b.calls[d.CallID] = false
		return nil
	}
	if c == nil && !here {
		return refuse(schema.ResultWithoutCall, "a %s names call %s, which is not recorded", e.Type, d.CallID)
	}
	if e.Type != schema.TypeToolResult {
		return nil
	}
	switch {
	case answered || b.result[d.CallID]:
		return refuse(schema.ResultConflict, "call %s gets two results at once", d.CallID)
	case c != nil && c.Result != nil && (d.Supersedes == nil || *d.Supersedes != c.Result.Seq):
		return refuse(schema.ResultConflict, "call %s has a result, at seq %d", d.CallID, c.Result.Seq)
	case c != nil && c.Result != nil && !c.Result.open():
		return refuse(schema.ResultConflict, "the result of call %s is genuine and is never superseded", d.CallID)
	}
	if here {
		b.calls[d.CallID] = true
	} else {
		if b.result == nil {
			b.result = map[string]bool{}
		}
		b.result[d.CallID] = true
	}
	return nil
}

func afterEnd(typ string, d *data) bool {
	switch typ {
	case schema.TypeWriterOpened, schema.TypeWriterReleased, schema.TypeNote, schema.TypeDeadLetter:
		return true
	case schema.TypeToolResult:
		return d.Supersedes != nil
	}
	return schema.IsOwn(typ)
}

// Apply moves the state by one event that Check has accepted. Types that are
// not known only move the head.
func (s *State) Apply(e *schema.Event) {
	s.Session, s.Head = e.Session, e.Head()
	if schema.IsOwn(e.Type) || e.Type == schema.TypeNote {
		s.Notes++
		return
	}
	if !schema.KnownType(e.Type) {
		return
	}
	var d data
	if schema.Unmarshal(e.Data, &d) != nil {
		return // Check has seen it; what it lets through fits
	}
	ref := Ref{e.Seq, e.Type, e.Sum}
	switch e.Type {
	case schema.TypeWriterOpened:
		s.Epochs = append(s.Epochs, Epoch{Epoch: e.Epoch, Seq: e.Seq, How: d.How})
	case schema.TypeWriterReleased:
		if n := len(s.Epochs); n > 0 {
			s.Epochs[n-1].Released = true
		}
	case schema.TypeSessionStarted:
		s.Started = &Started{e.Seq, e.Time, d.Workspace, clone(d.Labels), clone(d.Parent)}
		s.TaskKind, s.Phase = d.TaskKind, d.Phase
	case schema.TypeSessionEnded:
		s.Ended = &Ended{e.Seq, d.Outcome, d.Reason}
	case schema.TypeUserMessage, schema.TypeAssistantMessage, schema.TypeReasoning:
		s.Messages = append(s.Messages, ref)
	case schema.TypePhaseChanged:
		s.Phase = text(d.To)
		if d.TaskKind != "" {
			s.TaskKind = d.TaskKind
		}
	case schema.TypePostureChanged:
		s.Posture = &ref
	case schema.TypeStateChanged:
		s.Working.merge(d.Patch)
	case schema.TypeUsage:
		s.addUsage(d.Model, d.Tokens)
	case schema.TypeTurnFailed:
		s.Failed = append(s.Failed, ref)
	case schema.TypeHistoryCompaction:
		s.Compact = &ref
	case schema.TypeHistoryRewind:
		s.rewind(e.Seq, d.ToSeq)
	case schema.TypeDeadLetter:
		s.Dead = append(s.Dead, ref)
	default:
		s.applyCall(e, &d, ref)
	}
}

func (s *State) applyCall(e *schema.Event, d *data, ref Ref) {
	if e.Type == schema.TypeToolCall {
		c := &Call{ID: d.CallID, Name: d.Name, Seq: e.Seq, Sum: e.Sum, Time: e.Time,
			ArgsSHA256: d.ArgsSHA256, DryRun: d.DryRun, State: Pending}
		s.Calls = append(s.Calls, c)
		s.calls[c.ID] = c
		return
	}
	c := s.calls[d.CallID]
	if c == nil {
		return
	}
	switch e.Type {
	case schema.TypeApprovalRequested:
		c.Approvals = append(c.Approvals, ref)
	case schema.TypeDecision:
		c.Decisions = append(c.Decisions, Decided{e.Seq, d.Decision, d.Gate, text(d.By)})
	case schema.TypeToolStarted:
		c.Attempts = append(c.Attempts, Attempt{d.Attempt, e.Seq, e.Epoch, d.Executor, e.Time})
		if c.Result == nil {
			c.State = Unknown
		}
	case schema.TypeToolResult:
		if c.Result != nil {
			c.Superseded = append(c.Superseded, c.Result.Seq)
		}
		r := &CallResult{Seq: e.Seq, Sum: e.Sum, Time: e.Time, Attempt: d.Attempt, OK: d.OK,
			ExitCode: d.ExitCode, Duration: d.DurationUS, Synthetic: d.Synthetic}
		c.Result, c.State = r, OK
		if d.Error != nil {
			r.Kind = d.Error.Kind
		}
		switch {
		case r.Kind == schema.Interrupted:
			c.State = Interrupted
		case !r.OK:
			c.State = Failed
		}
	}
}

// Hole says that events are missing here: what has not started before may have
// started among them.
func (s *State) Hole() {
	for _, c := range s.Calls {
		if c.State == Pending {
			c.State = Unknown
		}
	}
}

// open reports whether a result leaves the outcome open, so that a later one
// may supersede it. A genuine result is never superseded.
func (r *CallResult) open() bool {
	switch r.Kind {
	case schema.Interrupted, schema.OutcomeUnknown, schema.Timeout, schema.Cancelled, schema.Detached:
		return true
	}
	return r.Synthetic
}

// rewind takes what follows to out of the messages. Calls stay: whatever the
// history shows, a call with a result is never run again.
func (s *State) rewind(seq, to uint64) {
	s.Rewinds = append(s.Rewinds, Rewind{seq, to})
	n := len(s.Messages)
	for n > 0 && s.Messages[n-1].Seq > to {
		n--
	}
	s.Messages = s.Messages[:n]
}

func (s *State) addUsage(model string, tokens jsontext.Value) {
	u := s.usage[model]
	if u == nil {
		u = &ModelUsage{Model: model, Tokens: map[string]uint64{}}
		s.usage[model] = u
		s.Usage = append(s.Usage, u)
	}
	u.Events++
	if n, err := strconv.ParseUint(string(tokens), 10, 63); err == nil {
		u.Tokens["total"] += n
		return
	}
	var by map[string]jsontext.Value
	if len(tokens) == 0 || tokens[0] != '{' || schema.Unmarshal(tokens, &by) != nil {
		return
	}
	for k, v := range by {
		if n, err := strconv.ParseUint(string(v), 10, 63); err == nil {
			u.Tokens[k] += n
		}
	}
}

func clone(v jsontext.Value) jsontext.Value { return jsontext.Value(bytes.Clone(v)) }

// text gives a JSON string's text, and other JSON as it is written.
func text(v jsontext.Value) string {
	if len(v) > 0 && v[0] == '"' {
		if b, err := jsontext.AppendUnquote(nil, v); err == nil {
			return string(b)
		}
	}
	return string(v)
}
