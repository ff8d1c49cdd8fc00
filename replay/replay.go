// Package replay says what a log means. Folding the events of a session in
// order gives its state; the same bytes give the same state and the same
// digest on every machine and in every run, and folding a prefix and then the
// rest equals folding all.
//
// The fold is pure: no clock, no randomness, no environment, no I/O. An
// executor moves its live state with the same Apply that folds a stored log,
// so the two cannot drift apart.
package replay

import (
	"crypto/sha256"
	"encoding/hex"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"steno/schema"
)

// State is what a session's events amount to. Content stays in the log: the
// state refers to it by seq and sum, so it stays small beside its log. It is
// for one goroutine at a time. What its methods return belongs to the state
// and must not be changed.
type State struct {
	Session   string      `json:"session"`
	Head      schema.Head `json:"head"`
	Started   *Started    `json:"started"`
	Ended     *Ended      `json:"ended"`
	Epochs    []Epoch     `json:"epochs"`
	Messages  []Ref       `json:"messages"` // messages and reasoning that count, in order
	Calls     []*Call     `json:"calls"`    // in the order of their seq; see Load
	TaskKind  string      `json:"task_kind,omitempty"`
	Phase     string      `json:"phase,omitempty"`
	Escalated bool        `json:"escalated,omitempty"` // an investigate task has become an edit task, which happens once
	Posture   *Posture    `json:"posture"`
	// A change of the posture, or of the phase, may lie in a hole, and nobody has
	// said since what it is: what is stricter may be lost. A field that logs of before
	// do not have must be omitzero, or their digests change.
	PostureLost bool `json:"posture_lost,omitzero"`
	PhaseLost   bool `json:"phase_lost,omitzero"`

	Grants  []Grant       `json:"grants,omitempty"` // in the order of their seq
	Working Patch         `json:"working"`          // the session's working state
	Usage   []*ModelUsage `json:"usage"`            // in the order of first use
	Compact *Ref          `json:"compaction"`       // the latest that no rewind took back
	Rewinds []Rewind      `json:"rewinds"`
	Failed  []Ref         `json:"failed_turns"`
	Dead    []Ref         `json:"dead_letters"`
	Notes   int           `json:"notes"` // notes and types of the caller's own

	compacts []Ref // that count
	usage    map[string]*ModelUsage
	names    map[string]string // of tools, each once
	text     []byte            // to put texts together
	// Room for the next ones: a session may have many.
	calls     []Call
	results   []CallResult
	decisions []Decided
	attempts  []Attempt
	// As they were the last time.
	decided  Decided
	executor string
	rules    *Checker
	begun    bool                 // there is an event that is not about writers
	later    map[callKey][]uint64 // events that name past calls, since it was loaded
}

// A Ref names one event.
type Ref struct {
	Seq  uint64     `json:"seq"`
	Type string     `json:"type"`
	Sum  schema.Sum `json:"sum"`
}

// Started is what session_started said.
type Started struct {
	Seq       uint64         `json:"seq"`
	Time      time.Time      `json:"ts"`
	Workspace string         `json:"workspace,omitempty"`
	Labels    jsontext.Value `json:"labels,omitempty"`
	Parent    jsontext.Value `json:"parent,omitempty"`
}

// Ended is what session_ended said.
type Ended struct {
	Seq     uint64 `json:"seq"`
	Outcome string `json:"outcome"`
	Reason  string `json:"reason,omitempty"`
}

// Posture is how strictly calls are treated: what session_started or the last
// posture_changed said.
type Posture struct {
	Seq        uint64 `json:"seq"`
	Mode       string `json:"mode,omitempty"`
	PolicyHash string `json:"policy_hash,omitempty"`
}

// A Grant is what a person has allowed beyond the call that was asked about.
// Until is as it was recorded, "" for no end: whoever asks has a clock.
type Grant struct {
	Seq     uint64 `json:"seq"` // of the decision
	Tool    string `json:"tool"`
	Program string `json:"program,omitempty"`
	Tier    uint64 `json:"tier"` // 0 also where it is none
	Until   string `json:"until,omitempty"`
}

// An Epoch is one writer's time.
type Epoch struct {
	Epoch    uint64 `json:"epoch"`
	Seq      uint64 `json:"seq"` // of its seal
	How      string `json:"how"`
	Released bool   `json:"released"`
}

// A Rewind took what follows ToSeq out of the projections.
type Rewind struct {
	Seq   uint64 `json:"seq"`
	ToSeq uint64 `json:"to_seq"`
}

// ModelUsage adds up the usage events of one model. Tokens are the whole
// numbers that they held, by key; a bare number counts under "total".
type ModelUsage struct {
	Model  string            `json:"model"`
	Events int               `json:"events"`
	Tokens map[string]uint64 `json:"tokens"`
}

// A Call is a request to run a tool and all that became of it.
type Call struct {
	ID         string      `json:"call_id"`
	Name       string      `json:"name"`
	Seq        uint64      `json:"seq"`
	Sum        schema.Sum  `json:"sum"`
	Time       time.Time   `json:"ts"`
	ArgsSHA256 string      `json:"args_sha256"`
	Redacted   string      `json:"redacted,omitempty"` // [Hidden] of its marks: with ArgsSHA256 what the arguments were
	DryRun     bool        `json:"dry_run,omitempty"`
	State      CallState   `json:"state"`
	Approvals  []Ref       `json:"approvals,omitempty"`
	Waiting    *Approval   `json:"waiting,omitempty"` // what nobody has answered yet
	Decisions  []Decided   `json:"decisions"`
	Attempts   []Attempt   `json:"attempts"`
	Result     *CallResult `json:"result"`
	Superseded []uint64    `json:"superseded,omitempty"` // seqs of results that a later one replaced
}

// StartedSince reports whether the call has started behind an event of its
// session.
func (c *Call) StartedSince(seq uint64) bool {
	n := len(c.Attempts)
	return n > 0 && c.Attempts[n-1].Seq > seq
}

// CallState is how far a call has come.
type CallState string

const (
	Pending     CallState = "pending"     // recorded, not started; it may wait for an approval
	Unknown     CallState = "unknown"     // started, or perhaps started in a hole, and without a result
	OK          CallState = "ok"          // a genuine result
	Failed      CallState = "failed"      // a genuine result that is not ok
	Interrupted CallState = "interrupted" // a synthetic result; the outcome is open
)

// An Approval is a question to a person about a call. Expires is as it was
// recorded, "" for never: only the holder's decision ends it.
type Approval struct {
	ID      string `json:"approval_id"`
	Seq     uint64 `json:"seq"`
	Expires string `json:"expires_at,omitempty"`
}

// Decided is one recorded decision about a call.
type Decided struct {
	Seq        uint64 `json:"seq"`
	Decision   string `json:"decision"`
	Gate       string `json:"gate"`
	By         string `json:"by"`
	Rule       string `json:"rule,omitempty"`
	ApprovalID string `json:"approval_id,omitempty"` // what it answers
}

// An Attempt is one start of a call's tool.
type Attempt struct {
	Attempt  uint64    `json:"attempt"`
	Seq      uint64    `json:"seq"` // of tool_started; with Epoch the fencing token
	Epoch    uint64    `json:"epoch"`
	Executor string    `json:"executor"`
	Time     time.Time `json:"ts"`
}

// CallResult is the result that counts. Its content is in the log at Seq.
type CallResult struct {
	Seq       uint64      `json:"seq"`
	Sum       schema.Sum  `json:"sum"`
	Time      time.Time   `json:"ts"`
	Attempt   uint64      `json:"attempt"`
	OK        bool        `json:"ok"`
	Kind      schema.Kind `json:"kind,omitempty"` // of its error
	ExitCode  *int64      `json:"exit_code,omitempty"`
	Duration  uint64      `json:"duration_us"`
	Synthetic bool        `json:"synthetic,omitempty"`
}

// Open reports whether the result leaves it open what became of the call, so
// that a later one may supersede it. A genuine result never does.
func (r *CallResult) Open() bool { return leavesOpen(r.Kind, r.Synthetic, r.Attempt) }

// New returns the state of an empty log.
func New() *State {
	return &State{usage: map[string]*ModelUsage{}, names: map[string]string{}, rules: NewChecker()}
}

// Begun reports whether the session is there for anybody but its writers. One of
// which a crash has left the first seal alone is not; one that has lost its
// session_started to damage is, and Started is nil.
func (s *State) Begun() bool { return s.begun || s.rules.holes }

// Call returns a call by its id, nil if it is not recorded, or past; see Load.
func (s *State) Call(id string) *Call {
	if c := s.rules.find([]byte(id)); c.known {
		return s.Calls[c.n]
	}
	return nil
}

// Open returns the calls without a result, in the order of their seq.
func (s *State) Open() []*Call {
	var open []*Call
	for _, c := range s.Calls {
		if c.Result == nil {
			open = append(open, c)
		}
	}
	return open
}

// Digest is the SHA-256, in hex, of the state's one canonical encoding: its
// JSON with the keys of structs in the order of their fields, and the keys of
// maps sorted by their bytes. It covers content through the sums of the
// events. Torn tails, surplus, void claims, blank lines and today's lease are
// no events and leave it as it is. A state that was loaded has none.
func (s *State) Digest() string {
	if s.rules.past != nil {
		panic("replay: a state that was loaded has no digest")
	}
	h := sha256.New()
	if err := json.MarshalWrite(h, s, json.Deterministic(true)); err != nil {
		panic("replay: the state has no JSON form: " + err.Error()) // a bug: every field has one
	}
	return hex.EncodeToString(h.Sum(nil))
}
