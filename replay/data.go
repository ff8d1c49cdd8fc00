package replay

import (
	"bytes"
	"strconv"

	"github.com/go-json-experiment/json/jsontext"

	"steno/schema"
)

// data has the fields that the fold looks at, of all types together. They are
// kept as they are written: a key that a type does not know is ignored, so it
// must not matter that another type has it with another kind of value.
type data struct {
	CallID, Name, ArgsSHA256, DryRun, Decision, Gate, By, Attempt, Executor, OK, Error, ExitCode, DurationUS, Synthetic,
	Supersedes, How, Workspace, Labels, Parent, TaskKind, Phase, To, Patch, Model, Tokens, ToSeq, Outcome, Reason jsontext.Value
}

// field is where the fold keeps the value of a key, nil if it does not look.
func (d *data) field(key []byte) *jsontext.Value {
	switch string(key) {
	case "call_id":
		return &d.CallID
	case "name":
		return &d.Name
	case "args_sha256":
		return &d.ArgsSHA256
	case "dry_run":
		return &d.DryRun
	case "decision":
		return &d.Decision
	case "gate":
		return &d.Gate
	case "by":
		return &d.By
	case "attempt":
		return &d.Attempt
	case "executor":
		return &d.Executor
	case "ok":
		return &d.OK
	case "error":
		return &d.Error
	case "exit_code":
		return &d.ExitCode
	case "duration_us":
		return &d.DurationUS
	case "synthetic":
		return &d.Synthetic
	case "supersedes":
		return &d.Supersedes
	case "how":
		return &d.How
	case "workspace":
		return &d.Workspace
	case "labels":
		return &d.Labels
	case "parent":
		return &d.Parent
	case "task_kind":
		return &d.TaskKind
	case "phase":
		return &d.Phase
	case "to":
		return &d.To
	case "patch":
		return &d.Patch
	case "model":
		return &d.Model
	case "tokens":
		return &d.Tokens
	case "to_seq":
		return &d.ToSeq
	case "outcome":
		return &d.Outcome
	case "reason":
		return &d.Reason
	}
	return nil
}

// take takes up the fields that the fold looks at. They alias the data.
func (d *data) take(f *schema.Fields) {
	for i := range f.Len() {
		key, value := f.At(i)
		if at := d.field(key); at != nil {
			*at = value
		}
	}
}

// result is what the fold makes of a tool_result.
func (d *data) result(e *schema.Event, r *CallResult) {
	*r = CallResult{Seq: e.Seq, Sum: e.Sum, Time: e.Time, Attempt: number(d.Attempt), OK: isTrue(d.OK), Kind: d.kind(),
		Duration: number(d.DurationUS), Synthetic: isTrue(d.Synthetic)}
	if n, err := strconv.ParseInt(string(d.ExitCode), 10, 64); err == nil {
		r.ExitCode = &n
	}
}

// kind is that of a result's error, "" where there is none.
func (d *data) kind() schema.Kind {
	if len(d.Error) > 0 {
		var f schema.Fields
		f.Read(d.Error)
		for i := range f.Len() {
			if key, value := f.At(i); string(key) == "kind" {
				return schema.Kind(text(value))
			}
		}
	}
	return ""
}

// open reports whether a result leaves the outcome open, so that a later one
// may supersede it. A genuine result is never superseded.
func (d *data) open() bool {
	switch d.kind() {
	case schema.Interrupted, schema.OutcomeUnknown, schema.Timeout, schema.Cancelled, schema.Detached:
		return true
	}
	return isTrue(d.Synthetic)
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
	n, _ := strconv.ParseUint(string(v), 10, 63)
	return n
}

func isTrue(v jsontext.Value) bool { return string(v) == "true" }

// text gives a JSON string's text, and other JSON as it is written.
func text(v jsontext.Value) string { return string(plain(v)) }

// plain is text that may alias v.
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
