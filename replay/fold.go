package replay

import (
	"crypto/sha256"
	"encoding/hex"
	"strconv"
	"strings"

	"github.com/go-json-experiment/json/jsontext"

	"steno/schema"
)

// Check says whether events may follow, as [Checker.Check] does.
func (s *State) Check(events []schema.Event) error { return s.rules.Check(events) }

// Apply moves the state by one event that Check has accepted, or refused with
// ResultWithoutCall behind a hole: the call is missing, and its id stays taken.
// Types that are not known only move the head.
func (s *State) Apply(e *schema.Event) {
	s.Session, s.Head = e.Session, e.Head()
	s.begun = s.begun || e.Type != schema.TypeWriterOpened && e.Type != schema.TypeWriterReleased
	if schema.IsOwn(e.Type) || e.Type == schema.TypeNote {
		s.Notes++
		return
	}
	if !schema.KnownType(e.Type) {
		return
	}
	d := data{e.Fields(&s.rules.spare)}
	if e.Type == schema.TypeSessionEnded || ofCall(e.Type) {
		s.rules.apply(e, d)
	}
	ref := Ref{e.Seq, e.Type, e.Sum}
	switch e.Type {
	case schema.TypeWriterOpened:
		s.Epochs = append(s.Epochs, Epoch{Epoch: e.Epoch, Seq: e.Seq, How: d.text(schema.KeyHow)})
	case schema.TypeWriterReleased:
		if n := len(s.Epochs); n > 0 {
			s.Epochs[n-1].Released = true
		}
	case schema.TypeSessionStarted:
		s.Started = &Started{e.Seq, e.Time, d.text(schema.KeyWorkspace), valid(d.Get(schema.KeyLabels)), valid(d.Get(schema.KeyParent))}
		if !s.rules.holes { // one in place of a lost one moves no phase: it may come from anybody who opens the session
			s.TaskKind, s.Phase = d.text(schema.KeyTaskKind), d.text(schema.KeyPhase)
		}
		s.posture(e.Seq, d.Get(schema.KeyPosture))
	case schema.TypeSessionEnded:
		s.Ended = &Ended{e.Seq, d.text(schema.KeyOutcome), d.text(schema.KeyReason)}
	case schema.TypeUserMessage, schema.TypeAssistantMessage, schema.TypeReasoning:
		s.Messages = append(s.Messages, ref)
	case schema.TypePhaseChanged:
		s.Phase, s.PhaseLost = d.text(schema.KeyTo), false
		if kind := d.text(schema.KeyTaskKind); kind != "" {
			s.Escalated = s.Escalated || s.TaskKind == "investigate" && kind == "edit"
			s.TaskKind = kind
		}
	case schema.TypePostureChanged:
		s.posture(e.Seq, d.Get(schema.KeyTo))
	case schema.TypeStateChanged:
		s.Working.merge(valid(d.Get(schema.KeyPatch)))
	case schema.TypeUsage:
		s.addUsage(d.text(schema.KeyModel), valid(d.Get(schema.KeyTokens)))
	case schema.TypeTurnFailed:
		s.Failed = append(s.Failed, ref)
	case schema.TypeHistoryCompaction:
		s.compacts = append(s.compacts, ref)
		s.Compact = &Ref{e.Seq, e.Type, e.Sum} // not &ref, which would be an allocation for every event
	case schema.TypeHistoryRewind:
		s.rewind(e.Seq, d.number(schema.KeyToSeq))
	case schema.TypeDeadLetter:
		s.Dead = append(s.Dead, ref)
	default:
		s.applyCall(e, d, ref)
	}
}

func (s *State) applyCall(e *schema.Event, d data, ref Ref) {
	if e.Type == schema.TypeToolCall {
		c := s.newCall()
		// One text for both, which is one allocation.
		id, sum := plain(d.Get(schema.KeyCallID)), plain(d.Get(schema.KeyArgsSHA256))
		s.text = append(append(s.text[:0], id...), sum...)
		both := string(s.text)
		*c = Call{ID: both[:len(id)], Name: s.name(plain(d.Get(schema.KeyName))), Seq: e.Seq, Sum: e.Sum, Time: e.Time,
			ArgsSHA256: both[len(id):], Redacted: Hidden(d.Get(schema.KeyRedacted)), DryRun: d.is(schema.KeyDryRun), State: Pending}
		s.Calls = append(s.Calls, c)
		return
	}
	call := s.rules.find(plain(d.Get(schema.KeyCallID)))
	if !call.known {
		if call.past > 0 {
			if s.later == nil {
				s.later = map[callKey][]uint64{}
			}
			s.later[call.key] = append(s.later[call.key], e.Seq)
		}
		return
	}
	c := s.Calls[call.n]
	switch e.Type {
	case schema.TypeApprovalRequested:
		c.Approvals = append(c.Approvals, ref)
		if c.Result == nil {
			c.Waiting = &Approval{d.text(schema.KeyApprovalID), e.Seq, d.text(schema.KeyExpiresAt)}
		}
	case schema.TypeDecision:
		last := &s.decided
		by := Decided{e.Seq, again(last.Decision, d.Get(schema.KeyDecision)), again(last.Gate, d.Get(schema.KeyGate)), again(last.By, d.Get(schema.KeyBy)),
			again(last.Rule, d.Get(schema.KeyRule)), d.text(schema.KeyApprovalID)}
		if *last = by; c.Decisions == nil {
			c.Decisions = one(&s.decisions, len(s.Calls))
		}
		c.Decisions = append(c.Decisions, by)
		if c.Waiting != nil && c.Waiting.ID == by.ApprovalID { // the first answer is the one that counts
			c.Waiting = nil
			if grant := d.Get(schema.KeyGrant); grant != nil && by.Decision == "allow" {
				s.grant(e.Seq, grant)
			}
		}
	case schema.TypeToolStarted:
		c.Waiting = nil
		s.executor = again(s.executor, d.Get(schema.KeyExecutor))
		if c.Attempts == nil {
			c.Attempts = one(&s.attempts, len(s.Calls))
		}
		c.Attempts = append(c.Attempts, Attempt{d.number(schema.KeyAttempt), e.Seq, e.Epoch, s.executor, e.Time})
		if c.Result == nil {
			c.State = Unknown
		}
	case schema.TypeToolResult:
		if c.Result != nil {
			c.Superseded = append(c.Superseded, c.Result.Seq)
		}
		c.Result, c.State, c.Waiting = s.newResult(), OK, nil
		d.result(e, c.Result)
		switch {
		case c.Result.Kind == schema.Interrupted:
			c.State = Interrupted
		case !c.Result.OK:
			c.State = Failed
		}
	}
}

// newCall gives room for a call.
func (s *State) newCall() *Call { return &one(&s.calls, len(s.Calls))[:1][0] }

func (s *State) newResult() *CallResult { return &one(&s.results, len(s.Calls))[:1][0] }

// one takes room for one of a kind from room, as a list that is empty. It is
// made for many at once, the more calls there are.
func one[T any](room *[]T, calls int) []T {
	if len(*room) == 0 {
		*room = make([]T, min(max(calls, 1), 128))
	}
	taken := (*room)[:0:1]
	*room = (*room)[1:]
	return taken
}

// again is the text of a value that is mostly what it was the last time, which is
// then kept once.
func again(last string, v jsontext.Value) string {
	if text := plain(v); string(text) != last {
		return string(text)
	}
	return last
}

// name keeps the name of a tool once, unless there are very many.
func (s *State) name(name []byte) string {
	if kept, ok := s.names[string(name)]; ok {
		return kept
	}
	kept := string(name)
	if len(s.names) < 1<<10 {
		s.names[kept] = kept
	}
	return kept
}

// Hole says that events are missing here: what has not started before may have
// started among them, what waited may have been answered, and the session may
// have become stricter.
func (s *State) Hole() {
	s.rules.Hole()
	s.lose()
}

// Broken says that the last event does not follow the one before as that stands
// now. Whoever edits a line may sum it anew, so neither counts where something
// would be allowed by it: no grant of before, and nothing that waits to start.
func (s *State) Broken() {
	s.Grants = nil
	s.lose()
}

// lose forgets what may be otherwise than the log says.
func (s *State) lose() {
	s.PostureLost, s.PhaseLost = true, true
	for _, c := range s.Calls {
		c.Waiting = nil
		if c.State == Pending {
			c.State = Unknown
		}
	}
}

func (s *State) posture(seq uint64, of jsontext.Value) {
	if of == nil {
		return
	}
	var p struct {
		Mode       jsontext.Value `json:"mode"`
		PolicyHash jsontext.Value `json:"policy_hash"`
	}
	_ = schema.Unmarshal(of, &p) // it is an object, and takes any value
	s.Posture, s.PostureLost = &Posture{seq, string(plain(p.Mode)), string(plain(p.PolicyHash))}, false
}

func (s *State) grant(seq uint64, grant jsontext.Value) {
	var g struct {
		Tool    jsontext.Value `json:"tool"`
		Program jsontext.Value `json:"program"`
		Tier    jsontext.Value `json:"tier"`
		Until   jsontext.Value `json:"until"`
	}
	_ = schema.Unmarshal(grant, &g) // as above
	s.Grants = append(s.Grants, Grant{seq, string(plain(g.Tool)), string(plain(g.Program)), number(g.Tier), string(plain(g.Until))})
}

// Hidden stands for the values that were replaced in the arguments of a call:
// the SHA-256, in hex, over the hashes of the marks whose pointer leads into
// args, in their order, each with a newline; "" if there are none. marks is the
// list redacted of a tool_call. What is no mark is passed over.
func Hidden(marks jsontext.Value) string {
	if len(marks) == 0 {
		return ""
	}
	var list []jsontext.Value
	if schema.Unmarshal(marks, &list) != nil {
		return ""
	}
	var hashes []byte
	for _, v := range list {
		var m struct {
			Pointer string `json:"pointer"`
			Hash    string `json:"hash"`
		}
		if schema.Unmarshal(v, &m) == nil && (m.Pointer == "/args" || strings.HasPrefix(m.Pointer, "/args/")) {
			hashes = append(append(hashes, m.Hash...), '\n')
		}
	}
	if hashes == nil {
		return ""
	}
	sum := sha256.Sum256(hashes)
	return hex.EncodeToString(sum[:])
}

// rewind takes what follows to out of the messages, and takes compactions back
// that stand there. Calls stay: whatever the
// history shows, a call with a result is never run again.
func (s *State) rewind(seq, to uint64) {
	s.Rewinds = append(s.Rewinds, Rewind{seq, to})
	n := len(s.Messages)
	for n > 0 && s.Messages[n-1].Seq > to {
		n--
	}
	s.Messages = s.Messages[:n]
	for n = len(s.compacts); n > 0 && s.compacts[n-1].Seq > to; n-- {
		s.Compact = nil
	}
	if s.compacts = s.compacts[:n]; s.Compact == nil && n > 0 {
		last := s.compacts[n-1]
		s.Compact = &last
	}
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
