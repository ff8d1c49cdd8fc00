package replay

import (
	"bytes"
	"strconv"

	"github.com/go-json-experiment/json"
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

// parse reads data, which comes from Compact or from a line that was decoded,
// so that it is sound and has no white space. The values alias b.
func (d *data) parse(b []byte) error {
	i := 1
	for len(b) > 2 && b[0] == '{' {
		end := schema.SkipValue(b, i)
		if end < 0 || b[end] != ':' || b[i] != '"' {
			break
		}
		key := b[i+1 : end-1]
		if bytes.IndexByte(key, '\\') >= 0 {
			key = []byte(text(b[i:end]))
		}
		at := end + 1
		if i = schema.SkipValue(b, at); i < 0 {
			break
		}
		if f := d.field(key); f != nil {
			*f = b[at:i:i]
		}
		if b[i] == '}' {
			return nil
		}
		i++ // a comma
	}
	if string(b) == "{}" {
		return nil
	}
	return schema.Errorf(schema.InvalidArgs, "data is not an object")
}

// answer is the result that the fold makes of a tool_result.
func (d *data) answer(e *schema.Event) *CallResult {
	r := &CallResult{Seq: e.Seq, Sum: e.Sum, Time: e.Time, Attempt: number(d.Attempt), OK: isTrue(d.OK),
		Duration: number(d.DurationUS), Synthetic: isTrue(d.Synthetic)}
	if n, err := strconv.ParseInt(string(d.ExitCode), 10, 64); err == nil {
		r.ExitCode = &n
	}
	var body struct {
		Kind jsontext.Value `json:"kind"`
	}
	if len(d.Error) > 0 && json.Unmarshal(d.Error, &body, jsontext.AllowInvalidUTF8(true)) == nil {
		r.Kind = schema.Kind(text(body.Kind))
	}
	return r
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
func text(v jsontext.Value) string {
	if len(v) == 0 || v[0] != '"' {
		return string(v)
	}
	b, _ := jsontext.AppendUnquote(nil, v) // an error only says that text was replaced
	return string(b)
}
