package schema

import (
	"crypto/sha256"
	"encoding/hex"
	"slices"
	"strconv"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

// Types of events that a log holds. Types that begin with "x." are the
// caller's own.
const (
	TypeWriterOpened      = "writer_opened" // the seal of a segment
	TypeWriterReleased    = "writer_released"
	TypeSessionStarted    = "session_started"
	TypeUserMessage       = "user_message"
	TypeAssistantMessage  = "assistant_message"
	TypeReasoning         = "reasoning"
	TypeToolCall          = "tool_call"
	TypeApprovalRequested = "approval_requested"
	TypeDecision          = "permission_decision"
	TypeToolStarted       = "tool_started"
	TypeToolResult        = "tool_result"
	TypePhaseChanged      = "phase_changed"
	TypePostureChanged    = "posture_changed"
	TypeStateChanged      = "state_changed"
	TypeUsage             = "usage"
	TypeTurnFailed        = "turn_failed"
	TypeHistoryCompaction = "history_compaction"
	TypeHistoryRewind     = "history_rewind"
	TypeSessionEnded      = "session_ended"
	TypeDeadLetter        = "dead_letter"
	TypeNote              = "note"
)

// How a writer came by its epoch.
const (
	HowNew      = "new"
	HowResumed  = "resumed"  // the last holder released the session
	HowTakeover = "takeover" // the last holder is dead
	HowForced   = "forced"   // the last holder may live
	HowRoll     = "roll"     // the same process, after a write that failed
	HowRepair   = "repair"
)

// ephemeral types are only ever published live.
var ephemeral = map[string]bool{
	"text_delta": true, "reasoning_delta": true, "tool_progress": true,
	"status": true, "plan": true, "context_pressure": true,
}

// appendable types may come from an agent; the executor and the journal own
// the others.
var appendable = map[string]bool{
	TypeUserMessage: true, TypeAssistantMessage: true, TypeReasoning: true, TypeStateChanged: true, TypeUsage: true,
	TypeTurnFailed: true, TypeHistoryCompaction: true, TypeHistoryRewind: true, TypeNote: true,
}

// IsOwn reports whether typ is one of the caller's own types.
func IsOwn(typ string) bool { return strings.HasPrefix(typ, "x.") }

// Appendable is nil for the types an agent may append. Live-only types are
// EphemeralNotLoggable; types that the executor owns, unknown ones and what is
// no type at all are InvalidArgs.
func Appendable(typ string) error {
	switch {
	case ephemeral[typ]:
		return Errorf(EphemeralNotLoggable, "%s is only ever published live", typ)
	case appendable[typ], IsOwn(typ) && ValidType(typ):
		return nil
	case KnownType(typ):
		return Errorf(InvalidArgs, "%s is written by the executor only", typ)
	}
	return Errorf(InvalidArgs, "%s is no type that can be appended; types of your own begin with x.", quote(typ))
}

// KnownType reports whether typ is one of the types above.
func KnownType(typ string) bool { return specOf(typ) != nil }

// Unmarshal reads data into one of the structs below. Keys match exactly: the
// standard decoder would let "CALL_ID" overwrite "call_id", and then two
// readers had two truths.
func Unmarshal(data []byte, v any) error {
	if err := json.Unmarshal(data, v, jsontext.AllowInvalidUTF8(true)); err != nil {
		return Errorf(InvalidArgs, "data does not fit its type").Cause(err)
	}
	return nil
}

// Seal is the data of writer_opened.
type Seal struct {
	Claim    string    `json:"claim"`
	How      string    `json:"how"`
	Previous *Previous `json:"previous"`
	Carried  int       `json:"carried"`
	Void     []uint64  `json:"void"`
	Skipped  []Skipped `json:"skipped"`
	Evidence *Evidence `json:"evidence"`
}

// Skipped is a place that a repair leaves out: what a finding says of it, and
// what stood on either side. SHA256 is over Bytes bytes from Offset; Lines is
// how many lines these are, with one reason for all. Prev is the sum of the
// last event before the place, "" where that does not matter or another place
// of the same hole has it; Next is the number of the first event behind the
// hole that the place is part of. Blob is the hash of a blob that is not what
// the line says.
type Skipped struct {
	Epoch  uint64 `json:"epoch"`
	Line   int    `json:"line"`
	Lines  int    `json:"lines"`
	Offset int64  `json:"offset"`
	Bytes  int64  `json:"bytes"`
	SHA256 string `json:"sha256"`
	Reason Reason `json:"reason"`
	Prev   string `json:"prev,omitzero"`
	Next   uint64 `json:"next,omitzero"`
	Blob   string `json:"blob,omitzero"`
}

// Previous is what counts of the newest sealed segment before: Len of its
// bytes are trusted, Len to Size was a torn tail when the seal was written,
// what lies beyond Size came later from a writer that had lost. A stream store
// has neither. Of a repair, Len covers the bad lines at the end that it lists.
type Previous struct {
	Epoch uint64 `json:"epoch"`
	Len   *int64 `json:"len"`
	Size  *int64 `json:"size"`
	Seq   uint64 `json:"seq"`
	Sum   Sum    `json:"sum"`
}

// Evidence says what a take-over was based on and who wanted it.
type Evidence struct {
	State    string `json:"state"`
	Observed string `json:"observed"`
	By       string `json:"by"`
	Reason   string `json:"reason"`
}

// Data is the JSON of a seal.
func (s *Seal) Data() []byte {
	var o Object
	o.Text("claim", s.Claim).Text("how", s.How)
	if p := s.Previous; p != nil {
		var q Object
		q.Uint("epoch", p.Epoch)
		if p.Len != nil && p.Size != nil {
			q.Uint("len", uint64(*p.Len)).Uint("size", uint64(*p.Size))
		}
		o.Raw("previous", q.Uint("seq", p.Seq).Text("sum", p.Sum.String()).Bytes())
	}
	if s.Carried > 0 {
		o.Uint("carried", uint64(s.Carried))
	}
	if len(s.Void) > 0 {
		list := []byte{'['}
		for i, n := range s.Void {
			if i > 0 {
				list = append(list, ',')
			}
			list = strconv.AppendUint(list, n, 10)
		}
		o.Raw("void", append(list, ']'))
	}
	if len(s.Skipped) > 0 {
		list := []byte{'['}
		for i, k := range s.Skipped {
			if i > 0 {
				list = append(list, ',')
			}
			var q Object
			q.Uint("epoch", k.Epoch).Uint("line", uint64(k.Line)).Uint("lines", uint64(k.Lines)).Uint("offset", uint64(k.Offset)).
				Uint("bytes", uint64(k.Bytes)).Text("sha256", k.SHA256).Text("reason", string(k.Reason))
			if k.Prev != "" {
				q.Text("prev", k.Prev)
			}
			if k.Next > 0 {
				q.Uint("next", k.Next)
			}
			if k.Blob != "" {
				q.Text("blob", k.Blob)
			}
			list = append(list, q.Bytes()...)
		}
		o.Raw("skipped", append(list, ']'))
	}
	if e := s.Evidence; e != nil {
		var q Object
		o.Raw("evidence", q.Text("state", e.State).Text("observed", e.Observed).Text("by", e.By).Text("reason", e.Reason).Bytes())
	}
	return o.Bytes()
}

// ArgsSHA256 is the args_sha256 of arguments that came from Compact.
func ArgsSHA256(args []byte) (string, error) {
	if inOrder(args, 0, 2) != len(args) {
		var err error
		if args, err = CanonicalArgs(args); err != nil {
			return "", err
		}
	}
	sum := sha256.Sum256(args)
	var text [2 * len(sum)]byte
	hex.Encode(text[:], sum[:])
	return string(text[:]), nil
}

// An Object builds compact JSON with its keys in the order they are added. The
// zero Object is ready for use.
type Object struct{ buf []byte }

// ObjectIn is an empty Object that is made in the room that b has behind its
// end, as long as it is enough.
func ObjectIn(b []byte) Object { return Object{b[len(b):]} }

// Grow makes room for n bytes at once, which saves copying.
func (o *Object) Grow(n int) *Object {
	o.buf = slices.Grow(o.buf, n)
	return o
}

func (o *Object) key(k string) {
	if len(o.buf) == 0 {
		o.buf = append(o.buf, '{')
	} else {
		o.buf = append(o.buf, ',')
	}
	o.buf = append(appendText(o.buf, k), ':')
}

// Text adds a string; broken UTF-8 in it becomes U+FFFD.
func (o *Object) Text(key, value string) *Object {
	o.key(key)
	o.buf = appendText(o.buf, value)
	return o
}

// Raw adds JSON that is compact already.
func (o *Object) Raw(key string, value []byte) *Object {
	o.key(key)
	o.buf = append(o.buf, value...)
	return o
}

// Uint adds a number.
func (o *Object) Uint(key string, value uint64) *Object {
	o.key(key)
	o.buf = strconv.AppendUint(o.buf, value, 10)
	return o
}

// Bool adds true or false.
func (o *Object) Bool(key string, value bool) *Object {
	o.key(key)
	o.buf = strconv.AppendBool(o.buf, value)
	return o
}

// Bytes ends the object and returns it. The Object is empty again.
func (o *Object) Bytes() []byte {
	b := append(o.buf, '}')
	if len(b) == 1 {
		b = []byte("{}")
	}
	o.buf = nil
	return b
}
