package replay

import (
	"bytes"
	"strconv"

	"github.com/go-json-experiment/json/jsontext"

	"steno/schema"
)

// data are the fields of an event's data, of which the fold reads some. They
// are kept as they are written: a key that a type does not know is ignored, so
// it must not matter that another type has it with another kind of value.
type data struct{ *schema.Fields }

func (d data) text(k schema.Key) string   { return string(plain(d.Get(k))) }
func (d data) number(k schema.Key) uint64 { return number(d.Get(k)) }
func (d data) is(k schema.Key) bool       { return string(d.Get(k)) == "true" }

// result is what the fold makes of a tool_result.
func (d data) result(e *schema.Event, r *CallResult) {
	*r = CallResult{Seq: e.Seq, Sum: e.Sum, Time: e.Time, Attempt: d.number(schema.KeyAttempt), OK: d.is(schema.KeyOK), Kind: d.kind(),
		Duration: d.number(schema.KeyDurationUS), Synthetic: d.is(schema.KeySynthetic)}
	if code := d.Get(schema.KeyExitCode); code != nil {
		if n, err := strconv.ParseInt(string(code), 10, 64); err == nil {
			r.ExitCode = &n
		}
	}
}

// kind is that of a result's error, "" where there is none.
func (d data) kind() schema.Kind {
	body := d.Get(schema.KeyError)
	if body == nil {
		return ""
	}
	var f schema.Fields
	f.Read(body)
	return schema.Kind(plain(f.Get(schema.KeyKind)))
}

// open reports whether a result leaves the outcome open, so that a later one
// may supersede it. A genuine result is never superseded.
func (d data) open() bool {
	return leavesOpen(d.kind(), d.is(schema.KeySynthetic), d.number(schema.KeyAttempt))
}

func leavesOpen(kind schema.Kind, synthetic bool, attempt uint64) bool {
	switch kind {
	case schema.Interrupted, schema.OutcomeUnknown, schema.Timeout, schema.Detached:
		return true
	case schema.Cancelled: // before it began, it can have done nothing
		return synthetic || attempt > 0
	}
	return synthetic
}

// valid copies JSON, with U+FFFD for half a surrogate pair, so that the state
// can always be encoded.
func valid(v jsontext.Value) jsontext.Value {
	if bytes.Contains(v, []byte(`\u`)) {
		if b, _, err := schema.Compact(nil, v, 1); err == nil {
			return b
		}
	}
	return bytes.Clone(v)
}

// number gives a number that CheckData has seen, 0 for none.
func number(v jsontext.Value) uint64 {
	if len(v) == 0 {
		return 0 // without the error that says so
	}
	n, _ := strconv.ParseUint(string(v), 10, 63)
	return n
}

// plain gives a JSON string's text, and other JSON as it is written. It may
// alias v.
func plain(v jsontext.Value) []byte {
	if len(v) == 0 || v[0] != '"' {
		return v
	}
	if bytes.IndexByte(v, '\\') < 0 {
		return v[1 : len(v)-1]
	}
	b, _ := jsontext.AppendUnquote(nil, v) // an error only says that text was replaced
	return b
}
