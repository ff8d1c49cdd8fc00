package replay

import (
	"crypto/sha256"
	"encoding/hex"
	"iter"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"steno/schema"
)

// Pairs is what a log says of calls and their results, as it stands: nothing is
// repaired, left out or put in. [Messages] is the repaired view beside it.
type Pairs struct {
	Calls    []*RawCall    `json:"calls"`    // in the order in which their ids first come
	Problems []PairProblem `json:"problems"` // in the order of the log; then open calls
}

// A RawCall is all that events say under one call id.
type RawCall struct {
	CallID  string      `json:"call_id"`
	Name    string      `json:"name,omitzero"`
	Seq     uint64      `json:"seq"` // of its tool_call; 0 if there is none
	Again   []uint64    `json:"again,omitzero"`
	Starts  []uint64    `json:"starts"`
	Results []RawResult `json:"results"`
}

// A RawResult is one tool_result of a call.
type RawResult struct {
	Seq        uint64      `json:"seq"`
	OK         bool        `json:"ok"`
	Kind       schema.Kind `json:"kind,omitzero"`
	Synthetic  bool        `json:"synthetic,omitzero"`
	Supersedes uint64      `json:"supersedes,omitzero"`
	Counts     bool        `json:"counts"` // it is the answer to the call
}

// A PairProblem is one event that does not fit the others.
type PairProblem struct {
	Seq    uint64      `json:"seq"`
	Type   string      `json:"type"`
	CallID string      `json:"call_id"`
	Kind   schema.Kind `json:"kind"` // duplicate_call, result_without_call, result_conflict, invalid_args, orphan_tool_call
	Why    string      `json:"why"`
}

// ReadPairs reads the events of a session, which may have holes. It keeps all
// that it returns.
func ReadPairs(events iter.Seq2[*schema.Event, error]) (*Pairs, error) {
	p := &Pairs{Calls: []*RawCall{}, Problems: []PairProblem{}}
	by := map[string]*RawCall{}
	rules := NewChecker()
	var spare schema.Fields
	var last uint64
	var one [1]schema.Event
	for e, err := range events {
		if err != nil {
			return nil, err
		}
		if e.Seq != last+1 {
			rules.Hole()
		}
		last, one[0] = e.Seq, *e
		refused := rules.Check(one[:])
		if refused == nil || schema.KindOf(refused) == schema.ResultWithoutCall {
			rules.Apply(e)
		}
		if !ofCall(e.Type) {
			continue
		}
		d := data{e.Fields(&spare)}
		id := d.text(schema.KeyCallID)
		c := by[id]
		if c == nil {
			c = &RawCall{CallID: id, Starts: []uint64{}, Results: []RawResult{}}
			by[id], p.Calls = c, append(p.Calls, c)
		}
		switch {
		case e.Type == schema.TypeToolCall && c.Seq > 0:
			c.Again = append(c.Again, e.Seq)
		case e.Type == schema.TypeToolCall:
			c.Seq, c.Name = e.Seq, d.text(schema.KeyName)
		case e.Type == schema.TypeToolStarted:
			c.Starts = append(c.Starts, e.Seq)
		case e.Type == schema.TypeToolResult:
			if refused == nil {
				for i := range c.Results {
					c.Results[i].Counts = false
				}
			}
			c.Results = append(c.Results, RawResult{e.Seq, d.is(schema.KeyOK), d.kind(), d.is(schema.KeySynthetic), d.number(schema.KeySupersedes), refused == nil})
		}
		if refused != nil {
			p.Problems = append(p.Problems, PairProblem{e.Seq, e.Type, id, schema.KindOf(refused), schema.AsError(refused).Message})
		}
	}
	for _, c := range p.Calls {
		if n := len(c.Results); c.Seq > 0 && (n == 0 || !c.counted()) {
			why := "the call has no result"
			if n > 0 && c.Results[0].Seq < c.Seq {
				why = "its result stands before it, and does not count"
			}
			p.Problems = append(p.Problems, PairProblem{c.Seq, schema.TypeToolCall, c.CallID, schema.OrphanToolCall, why})
		}
	}
	return p, nil
}

func (c *RawCall) counted() bool {
	for _, r := range c.Results {
		if r.Counts {
			return true
		}
	}
	return false
}

// Digest is the SHA-256, in hex, of the JSON of the pairs.
func (p *Pairs) Digest() string {
	h := sha256.New()
	if err := json.MarshalWrite(h, p, json.Deterministic(true), jsontext.AllowInvalidUTF8(true)); err != nil {
		panic("replay: the pairs have no JSON form: " + err.Error()) // a bug: every field has one
	}
	return hex.EncodeToString(h.Sum(nil))
}

// DigestMessages is the SHA-256, in hex, of messages, each with a newline behind
// it, and how many they are.
func DigestMessages(messages iter.Seq2[jsontext.Value, error]) (digest string, n int, err error) {
	h := sha256.New()
	for m, err := range messages {
		if err != nil {
			return "", 0, err
		}
		h.Write(append(m[:len(m):len(m)], '\n'))
		n++
	}
	return hex.EncodeToString(h.Sum(nil)), n, nil
}
